"""Clusters, manifests and attempts for tests of Kubernetes."""
