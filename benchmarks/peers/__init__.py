"""Training scripts, each in the idiom of a system that recovers training after a fault; see `benchmarks.process_recovery`."""
