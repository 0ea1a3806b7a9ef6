"""Time of a job: what each second of it was spent on, and what faults cost."""
