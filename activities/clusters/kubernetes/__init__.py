"""Drivers for Kubernetes: pods of a real API server, created by us (`direct`) or by the Ascend Operator (`operator`)."""
