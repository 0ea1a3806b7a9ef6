"""Package of TaskD's name for what changes a framework."""
