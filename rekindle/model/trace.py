"""Measurements of the ranks of a job, which a platform turns on and off."""

from rekindle.model.base import Value


class Trace(Value):
    """The switches of ClusterD's `ProfilingSwitch`."""

    communication: bool = False
    step: bool = False
    checkpoint: bool = False
    forward: bool = False
    loader: bool = False
