"""Measurements that the ranks of a job make of themselves, as a platform switches it on and off."""

from rekindle.model.base import Value


class Trace(Value):
    """The switches of ClusterD's `ProfilingSwitch`."""

    communication: bool = False
    step: bool = False
    checkpoint: bool = False
    forward: bool = False
    loader: bool = False
