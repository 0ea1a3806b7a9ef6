"""Clusters on one machine, for demos and tests: the local cluster, and a Kubernetes control plane with its own kubelets."""
