"""The port to a cluster, and its drivers."""
