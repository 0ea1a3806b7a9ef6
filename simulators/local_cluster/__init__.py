"""The process of the local cluster: objects shaped like Kubernetes', a scheduler, and pods that are process groups here."""
