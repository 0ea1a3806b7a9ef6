"""Parameters of training jobs: what a job object may set, what is wrong with it, and what it means for its pods."""
