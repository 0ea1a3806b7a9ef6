"""One training script in the idiom of each system that brings training back after a fault; see `benchmarks.process_recovery`."""
