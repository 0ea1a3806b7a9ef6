"""Driver for Kubernetes: pods of a real API server, which are created by us or by the controllers of their jobs."""
