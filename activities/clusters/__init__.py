"""Port to a cluster, and its drivers."""
