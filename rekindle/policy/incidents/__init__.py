"""Decides what the picture of an incident shows. Pure."""
