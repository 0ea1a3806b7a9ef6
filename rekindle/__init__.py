"""Rekindle: durable recovery of training jobs. Programs use `rekindle.client`; people use the command `rekindle`."""

__version__ = "0.1.0"
