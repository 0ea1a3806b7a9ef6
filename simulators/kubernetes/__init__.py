"""A real Kubernetes control plane on this machine, and kubelets that run pods as its processes. For tests and demos."""
