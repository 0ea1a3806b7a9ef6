"""The command `rekindle`, for people. It uses names and starts processes; it imports no workflow, activity or worker."""
