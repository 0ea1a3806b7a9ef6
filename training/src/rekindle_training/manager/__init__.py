"""The one process of a job's training side that speaks to the control plane. It has a separate pod."""
