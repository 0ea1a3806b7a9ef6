"""The vocabulary: frozen values that travel in payloads, over the cluster's API and through the decisions."""
