"""Generated code of the wire contract; `protos/generate.py` writes it."""
