"""Decides whether there is a storm: so many unhealthy nodes, or recoveries at once, that modes which move pods are held. Pure.

A switch that restarts makes hundreds of nodes unhealthy for minutes. Pods that are moved then find no node, or a worse one. Used
by the watcher, which sees all nodes and knows the running recoveries.
"""

from dataclasses import dataclass, field
from datetime import timedelta

from rekindle.model.cluster import Node
from rekindle.model.rules import Rules, Then
from rekindle.policy.detection.rules import said_of
from rekindle.policy.detection.sighting import is_lost

FEWEST = 3
"""Minimum number of unhealthy nodes. Fewer may be unhealthy together by chance, as in a cluster of two nodes."""

LONGEST = timedelta(hours=1)
"""Time after which a state is normal, and no storm. Nodes that are broken for weeks must not delay each recovery."""

NOT_READY = ""
"""Stands for a node that is not ready, in place of the name of a rule."""


@dataclass(frozen=True)
class Marks:
    """Marks of the installation above which there is a storm. 0: there is none for this reason."""

    nodes: int = 0
    """Share of the nodes that are unhealthy, in percent."""

    recoveries: int = 0
    """Number of recoveries that run at once."""


@dataclass(frozen=True)
class Seen:
    nodes: int = 0
    unhealthy: int = 0
    recoveries: int = 0


@dataclass(frozen=True)
class Cause:
    words: str = ""
    """Description with the numbers. Empty: the mark is not exceeded."""

    since: float = 0.0
    """Time at which the mark was exceeded, in seconds of a clock that is never set."""

    def counts(self, now: float) -> bool:
        return bool(self.words) and now - self.since < LONGEST.total_seconds()


@dataclass(frozen=True)
class Storm:
    nodes: Cause = field(default_factory=Cause)
    recoveries: Cause = field(default_factory=Cause)

    def reason(self, now: float) -> str:
        """Returns why there is a storm now. Empty: there is none."""
        return "; ".join(cause.words for cause in (self.nodes, self.recoveries) if cause.counts(now))


def storm(seen: Seen, marks: Marks, before: Storm, now: float) -> Storm:
    """Returns the state of the storm. It begins above a mark and ends at half of the mark, so that it does not begin again and
    again.

    Args:
        before: the last result.
        now: time of the clock of `Cause.since`.
    """
    share = _above(100 * seen.unhealthy, marks.nodes * seen.nodes, before.nodes)
    exceeded = bool(marks.nodes) and seen.unhealthy >= FEWEST and share
    words = f"{seen.unhealthy} of {seen.nodes} nodes are unhealthy, the mark is {marks.nodes}%"
    nodes = _cause(words if exceeded else "", before.nodes, now)
    exceeded = bool(marks.recoveries) and _above(seen.recoveries, marks.recoveries, before.recoveries)
    words = f"{seen.recoveries} recoveries run at once, the mark is {marks.recoveries}"
    return Storm(nodes=nodes, recoveries=_cause(words if exceeded else "", before.recoveries, now))


def _above(number: int, mark: int, before: Cause) -> bool:
    return 2 * number > mark if before.words else number > mark


def _cause(words: str, before: Cause, now: float) -> Cause:
    return Cause(words=words, since=before.since if before.words else now) if words else Cause()


def signs(node: Node, rules: Rules) -> frozenset[str]:
    """Returns why a node is unhealthy: the rules that call it so, and `NOT_READY`. Empty: it is healthy.

    A cordon or a drain is no sign. A cordoned node that is not ready is taken for a node under maintenance.
    """
    called = {one.named.name for one in said_of(node, rules) if one.then is not Then.MAINTENANCE}
    if is_lost(node) and not node.spec.unschedulable:
        called.add(NOT_READY)
    return frozenset(called)
