"""The processes of the control plane: each module is one, started with `python -P -m workers.<name>`."""
