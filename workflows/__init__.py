"""Durable procedures: one entity workflow per job, one workflow type per mode."""
