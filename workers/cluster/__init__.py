"""The local cluster: objects shaped like Kubernetes', a scheduler, and pods that are process groups on this machine."""
