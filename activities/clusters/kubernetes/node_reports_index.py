"""Nodes as the watch knows them, each with the current reports of others about it."""

import heapq
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.reports import MOST, Where, Wrong, ignored, in_force, in_order, read
from rekindle.model.cluster import Node, NodeReport
from rekindle.model.keys import DEVICES, HEALTH, ISOLATED, NODE_HEALTHY, SERIAL_NUMBER
from rekindle.model.public_fault import SERIAL
from rekindle.model.rules import Rules
from rekindle.policy.detection.rules import is_of_matter

MOST_PROBLEMS = 3
"""Maximum number of problems of one object that are named."""


def _utc() -> datetime:
    return datetime.now(UTC)


class SaidOfNodes:
    """Nodes and the reports about them.

    There are thousands of nodes and tens of thousands of events, so reports that no rule uses are not kept.
    """

    def __init__(self, rules: Rules, now: Callable[[], datetime] = _utc) -> None:
        self._rules, self._now = rules, now
        self._annotations = {*rules.annotations, DEVICES, HEALTH, ISOLATED, NODE_HEALTHY, SERIAL_NUMBER}
        self._nodes: dict[str, Node] = {}
        self._serials: dict[str, set[str]] = {}
        """Names of nodes, by `SERIAL` and their serial number. Not all vendors give each machine its own number."""
        self._reports: dict[str, dict[str, tuple[NodeReport, ...]]] = {}
        """Reports by node or its serial number, and by the UID of the object that contains them."""
        self._about: dict[str, tuple[str, ...]] = {}
        """Names of the nodes that an object is about, by the object's UID."""
        self._ends: list[tuple[datetime, str]] = []
        """Heap of the times at which reports expire, each with the node or its serial number."""

    def put(self, node: Node) -> Node:
        """Stores a node, and returns it with its reports."""
        metadata = node.metadata
        kept = {
            "labels": {key: value for key, value in metadata.labels.items() if key in self._rules.labels},
            "annotations": {key: value for key, value in metadata.annotations.items() if key in self._annotations},
        }
        slim = node.model_copy(update={"metadata": metadata.model_copy(update=kept)})
        self._nodes[metadata.name] = slim
        if serial := _serial(slim):
            self._serials.setdefault(serial, set()).add(metadata.name)
        return self._whole(slim)

    def drop(self, node: Node) -> Node:
        self._nodes.pop(node.metadata.name, None)
        self._serials.get(_serial(node), set()).discard(node.metadata.name)
        return node

    def take(self, where: Where, thing: Object, *, gone: bool, wrong: Wrong = ignored) -> list[Node]:
        """Stores the reports of an object, and returns the nodes that it concerns, as they are now.

        If the object as a whole cannot be read, its previous reports stay.

        Args:
            wrong: receives the reason for each part that cannot be read.
        """
        uid = str(thing["metadata"]["uid"])
        problems: list[str] = []
        found = {} if gone else read(where, thing, problems.append)
        said = {name: self._of_matter(reports) for name, reports in found.items()}
        said = {name: reports for name, reports in said.items() if reports}
        before = self._about.pop(uid, ())
        if problems:
            wrong("; ".join(problems[:MOST_PROBLEMS]))
            said |= {name: (*said.get(name, ()), *self._unsaid(name, uid, said.get(name, ()))) for name in before}
        if said:
            self._about[uid] = tuple(said)
        for name in before:
            self._reports[name].pop(uid, None)
            if not self._reports[name]:
                del self._reports[name]
        for name, reports in said.items():
            self._reports.setdefault(name, {})[uid] = reports
            for until in {one.until for one in reports if one.until}:
                heapq.heappush(self._ends, (until, name))
        return self._known(dict.fromkeys((*before, *said)))

    def _unsaid(self, name: str, uid: str, now: Iterable[NodeReport]) -> Iterable[NodeReport]:
        """Returns the reports that the object made about a node before, and does not make any more."""
        ids = {one.id for one in now}
        return [one for one in self._reports[name][uid] if one.id not in ids][:MOST]

    def _known(self, named: Iterable[str]) -> list[Node]:
        names = dict.fromkeys(own for name in named for own in sorted(self._serials.get(name, {name})))
        nodes = (self._nodes.get(name) for name in names)
        return [self._whole(node) for node in nodes if node]

    @property
    def next_end(self) -> float | None:
        """Returns the seconds until the next report expires; None: none does."""
        return max(0.0, (self._ends[0][0] - self._now()).total_seconds()) if self._ends else None

    def ended(self) -> list[Node]:
        """Removes expired reports, and returns their nodes as they are now."""
        names: dict[str, None] = {}
        while self._ends and self._ends[0][0] <= self._now():
            names[heapq.heappop(self._ends)[1]] = None
        return self._known(names)

    def _of_matter(self, reports: tuple[NodeReport, ...]) -> tuple[NodeReport, ...]:
        return in_force((one for one in reports if is_of_matter(one, self._rules)), self._rules, self._now())

    def _whole(self, node: Node) -> Node:
        now = self._now()
        said = (self._reports.get(name, {}) for name in (node.metadata.name, _serial(node)))
        reports = [one for of in said for some in of.values() for one in some if one.until is None or one.until > now]
        if not reports:
            return node
        return node.model_copy(update={"status": node.status.model_copy(update={"reports": in_order(reports)})})


def _serial(node: Node) -> str:
    """Returns the serial number of a node; empty: unknown."""
    number = node.metadata.annotations.get(SERIAL_NUMBER, "")
    return f"{SERIAL}{number}" if number else ""
