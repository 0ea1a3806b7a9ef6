"""A real Temporal service on this machine: its four services as processes, over PostgreSQL."""
