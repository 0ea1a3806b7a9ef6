"""Explanation for people of what the cluster shows about its nodes, and its effects.

Built by `rekindle.policy.detection.node_report`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.rules import Unbelieved
from rekindle.model.sizes import LONGEST_NAME, LONGEST_NOTE

MOST_NODES = 60
"""Maximum number of nodes in one list."""

MOST_FACTS = 100
"""Maximum number of facts of one node. In a list of many nodes each has `FEW_FACTS`."""

MOST_THERE = 256
"""Maximum number of pods of jobs that are shown for one node: hardly any kubelet runs more."""

FEW_FACTS = 4

MOST_DOUBTED = 20
"""Maximum number of rules that are shown as not believed, beside the nodes that they call unhealthy."""


class Mark(StrEnum):
    """Value of the annotation `rekindle.io/health`, by which a person marks a node."""

    SICK = "sick"
    BROKEN = "broken"
    WELL = "well"
    NONE = "none"
    """Removes the mark."""


class NodesRequest(Value):
    """Argument of the workflow `Nodes`: the mark to set on nodes, if any, and the nodes to return."""

    names: tuple[Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)], ...] = Field(default=(), max_length=MOST_NODES)
    """Names of the nodes. Empty: all nodes with something to report."""

    mark: Mark | None = None
    """Mark to set on the named nodes. None: nothing is written."""

    cordon: bool | None = None
    """True to cordon the named node, False to uncordon it. None: neither."""

    pods: bool = False
    """True to return also the pods of jobs on the named node."""

    reason: Annotated[str, Field(max_length=LONGEST_NOTE)] = ""


class FactNow(Value):
    saw: Note
    message: Note = ""
    since: datetime | None = None
    until: datetime | None = None
    """Time at which the fact expires by itself."""
    devices: tuple[str, ...] = ()
    rule: str = ""
    """Name of the rule that decides about the fact. Empty: no rule matches it and it is not used."""

    then: str = ""
    settle: float = 0.0
    clear: float = 0.0
    unbelieved: Note = ""
    """Reason why the rule is not believed now. Empty: it is believed."""


class NodeNow(Value):
    name: str
    lost: Note = ""
    """Reason why the node is not ready. Empty: it is ready."""

    silenced: Note = ""
    """Mark of a person that the node is well. Empty: there is no such mark."""

    unheard: Note = ""
    """Mark of a person that no rule matches. Empty: there is none."""

    isolated: Note = ""
    """Reason why no new pods are scheduled to the node. Empty: they can be."""

    facts: tuple[FactNow, ...] = ()
    """Facts about the node: first those with an effect, then those that no rule matches, then those that rules ignore."""

    more: int = 0
    """Number of facts that are left out."""


class PodThere(Value):
    """Pod of a job that is on the node and has not ended."""

    job_id: Text
    name: Note
    uid: Text
    pod_rank: int | None = None
    """Pod rank. None: the pod has none, such as a manager or a standby."""


class There(Value):
    """State of a node that matters for its drain."""

    cordoned: bool = False
    rule: Note = ""
    """Name of the rule by which pods leave a cordoned node."""

    refused: Note = ""
    """Reason why pods do not leave the node when it is cordoned. Empty: they do."""

    pods: tuple[PodThere, ...] = ()


class NodesNow(Value):
    nodes: tuple[NodeNow, ...] = ()
    there: There | None = None
    """Drain state of the named node, if its pods were requested."""

    count: int = 0
    """Number of nodes of the cluster, or of named nodes that exist."""

    more: int = 0
    """Number of nodes that are left out."""

    unbelieved: tuple[Unbelieved, ...] = ()
    """Rules that are not believed now, since they call too many nodes of the cluster unhealthy. If nodes were named: none where
    no such rule calls one of them unhealthy."""
