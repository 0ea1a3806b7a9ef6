"""Demos: scenarios that run a training job on this machine, break it, and show its recovery."""
