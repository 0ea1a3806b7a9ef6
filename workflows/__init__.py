"""The durable procedures: one entity a job, one workflow type a mode."""
