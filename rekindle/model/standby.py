"""Standbys: pods on spare nodes in which everything is loaded but the state. They have no rank until they are given one."""

from datetime import datetime

from rekindle.model.base import Value
from rekindle.model.bounds import Note


class Standby(Value):
    """One of them, as the cluster shows it."""

    name: str
    uid: str
    node: str = ""
    """Empty: it has none yet."""

    runs: bool = False
    waits: Note = ""
    """Why it has no node, in the scheduler's words."""

    wrong: Note = ""
    """Why another one is to take its place; empty: it is as it should be."""


class Upkeep(Value):
    """What was done about them, in the state of the job's workflow."""

    tried_at: datetime | None = None
    """When they were seen to last."""

    tries: int = 0
    """How often in a row, without a time of quiet between them."""

    refused: Note = ""
    """Why the last try came to nothing, in the cluster's words; empty: it did not."""

    told: str = ""
    """Reason of the event that says what is wrong with them; empty: nothing is."""
