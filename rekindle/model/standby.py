"""Standbys: pods on spare nodes that have loaded everything except the state. They have no rank until they are given one."""

import re
from datetime import datetime

from rekindle.model.base import Value
from rekindle.model.bounds import Note

NAME = re.compile(r".+-standby-[0-9]+")
"""Name of a pod that was created as a standby, as `name_of` makes it. A pod keeps it when it has taken over a rank."""


def name_of(stem: str, number: int) -> str:
    return f"{stem}-standby-{number}"


def was_standby(name: str) -> bool:
    """Returns whether a pod of this name was created as a standby."""
    return NAME.fullmatch(name) is not None


class Standby(Value):
    """A standby, as the cluster shows it."""

    name: str
    uid: str
    node: str = ""
    """Name of the node. Empty: not scheduled yet."""

    runs: bool = False
    waits: Note = ""
    """Reason why the standby has no node, in the scheduler's words."""

    wrong: Note = ""
    """Reason why the standby is to be replaced. Empty: it is healthy."""


class Upkeep(Value):
    """Record of the upkeep of the standbys, in the state of the job's workflow."""

    tried_at: datetime | None = None
    """Time of the last try to create or delete standbys."""

    tries: int = 0
    """Number of consecutive tries without a quiet time between them."""

    refused: Note = ""
    """Reason why the last try failed, in the cluster's words. Empty: it did not fail."""

    told: str = ""
    """Reason of the last event about a problem of the standbys. Empty: there is no problem."""
