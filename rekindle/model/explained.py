"""What a cluster shows of its nodes and what becomes of it, for people. Made by `rekindle.policy.explaining`."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rekindle.model.base import Value
from rekindle.model.bounds import Note
from rekindle.model.sizes import LONGEST_NAME, LONGEST_NOTE

MOST_NODES = 60
"""That one list shows."""

MOST_FACTS = 100
"""That are shown of one node; of many each has a few."""
FEW_FACTS = 4


class Mark(StrEnum):
    """What a person says of a node, in the annotation `rekindle.io/health`."""

    SICK = "sick"
    BROKEN = "broken"
    WELL = "well"
    NONE = "none"
    """Takes the word back."""


class NodesRequest(Value):
    """Argument of the workflow `Nodes`: what to say of a node, if anything, and which to look at."""

    names: tuple[Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)], ...] = Field(default=(), max_length=MOST_NODES)
    """Empty: all of which there is something to say."""

    mark: Mark | None = None
    """Of the nodes that are named; None: nothing is written."""

    reason: Annotated[str, Field(max_length=LONGEST_NOTE)] = ""


class FactNow(Value):
    saw: Note
    message: Note = ""
    since: datetime | None = None
    devices: tuple[str, ...] = ()
    rule: str = ""
    """That decides about it; empty: none knows it, it is not used."""

    then: str = ""
    settle: float = 0.0
    clear: float = 0.0


class NodeNow(Value):
    name: str
    lost: Note = ""
    """Why it is not ready; empty: it is."""

    silenced: Note = ""
    """The word of a person that it is well; empty: nobody says so."""

    unheard: Note = ""
    """The word of a person that no rule knows; empty: there is none."""

    isolated: Note = ""
    """Why no new pod goes there; empty: they may."""

    facts: tuple[FactNow, ...] = ()
    """Those that mean something come first, then those that are not used, then those that mean nothing."""

    more: int = 0
    """Facts that are left out."""


class NodesNow(Value):
    nodes: tuple[NodeNow, ...] = ()
    count: int = 0
    """Of the nodes of the cluster."""

    more: int = 0
    """Nodes that are left out."""
