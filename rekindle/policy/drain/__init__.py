"""Nodes that are to be left: what a job does about it, and how far a node is."""
