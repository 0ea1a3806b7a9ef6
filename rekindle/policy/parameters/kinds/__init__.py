"""Kinds of jobs, as far as their files are concerned."""
