"""The command `rekindle`: people's way in. It uses names and starts processes; it imports no workflow, activity or worker."""
