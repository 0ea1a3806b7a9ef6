"""The processes of the control plane: each module or package is one, started with `python -P -m workers.<name>`."""
