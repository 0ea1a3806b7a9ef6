"""Single requests to the world, each idempotent. Only `workflows/steps.py` names them; only `workers` builds them."""
