"""Training scripts that tests run."""
