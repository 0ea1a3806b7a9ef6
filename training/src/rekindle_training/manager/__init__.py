"""The one process of a job's training side that speaks to the control plane; a pod of its own."""
