"""What a cluster shows of its nodes and what becomes of it, for people. Made by `rekindle.policy.explaining`."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.rules import Unbelieved
from rekindle.model.sizes import LONGEST_NAME, LONGEST_NOTE

MOST_NODES = 60
"""That one list shows."""

MOST_FACTS = 100
"""That are shown of one node; of many each has a few."""

MOST_THERE = 256
"""Pods of jobs on one node that are shown: hardly a kubelet runs more."""

FEW_FACTS = 4

MOST_DOUBTED = 20
"""Rules that are not believed, of which all are shown beside the nodes that they call sick."""


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

    cordon: bool | None = None
    """Cordons the node that is named, or takes that back; None: neither."""

    pods: bool = False
    """Also the pods of jobs on the node that is named."""

    reason: Annotated[str, Field(max_length=LONGEST_NOTE)] = ""


class FactNow(Value):
    saw: Note
    message: Note = ""
    since: datetime | None = None
    until: datetime | None = None
    """When it is over by itself."""
    devices: tuple[str, ...] = ()
    rule: str = ""
    """That decides about it; empty: none knows it, it is not used."""

    then: str = ""
    settle: float = 0.0
    clear: float = 0.0
    unbelieved: Note = ""
    """Why the rule is not believed now; empty: it is."""


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


class PodThere(Value):
    """A pod of a job that is on a node and not over."""

    job_id: Text
    name: Note
    uid: Text
    pod_rank: int | None = None
    """None: it has none, as a manager and a standby."""


class There(Value):
    """What matters of a node that is drained."""

    cordoned: bool = False
    rule: Note = ""
    """By which a cordoned node is to be left."""

    refused: Note = ""
    """Why a cordon makes nobody leave it; empty: it does."""

    pods: tuple[PodThere, ...] = ()


class NodesNow(Value):
    nodes: tuple[NodeNow, ...] = ()
    there: There | None = None
    """Of the node that was named, where its pods were asked for."""

    count: int = 0
    """Of the nodes of the cluster."""

    more: int = 0
    """Nodes that are left out."""

    unbelieved: tuple[Unbelieved, ...] = ()
    """Rules that call too many nodes sick, of all nodes where all were asked for."""
