"""Frozen values that are passed in payloads, over the cluster's API and to decisions."""
