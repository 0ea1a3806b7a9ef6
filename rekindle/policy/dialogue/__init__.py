"""Orders to a training side, its reports, and who it is."""
