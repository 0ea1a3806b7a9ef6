"""Orders to a training side, its reports, and its identity."""
