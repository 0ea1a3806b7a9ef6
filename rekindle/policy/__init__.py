"""Decisions: functions from values to values, without I/O and without a clock. Workflows call them in the sandbox."""
