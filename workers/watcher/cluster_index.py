"""Index of the cluster objects that the watcher has seen, by job. Used by `workers/watcher/watcher.py`."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TypeVar

from rekindle.model.cluster import JobObject, JobView, Node, Pod
from rekindle.model.rule_file import plain
from rekindle.model.rules import Rules, Unbelieved
from rekindle.policy.detection.rule_breaker import ANY, Counts, Key, called, counted, doubting, unbelieved
from rekindle.policy.detection.sighting import gone, matters
from rekindle.policy.detection.storm import signs

Thing = TypeVar("Thing", JobObject, Node, Pod)


class ClusterIndex:
    """Index of jobs by UID, pods by job and UID, and nodes by name, and of the jobs that have pods on a node.

    The cost of a change depends only on the objects that it concerns: the pods are not scanned to find the job.
    """

    def __init__(
        self,
        jobs: Iterable[JobObject] = (),
        pods: Iterable[Pod] = (),
        nodes: Iterable[Node] = (),
        rules: Rules | None = None,
    ) -> None:
        """Args:
        rules: what is wrong with a node; by default the ready-made set `plain`.
        """
        self._rules = self.rules = rules or plain()
        """All rules, and the rules in effect: without those that are not believed now."""
        self.unbelieved: tuple[Unbelieved, ...] = ()
        """Rules that are not believed because they call too many nodes sick, with current numbers."""
        self._counts: Counts = Counter()
        self._counted: dict[str, frozenset[Key]] = {}
        """Rules that each node counts for, by node name."""
        self._signs: dict[str, tuple[bool, frozenset[str]]] = {}
        """Whether each unhealthy node has accelerators, and the signs by which it is unhealthy, by node name."""
        self._signed: Counter[tuple[bool, frozenset[str]]] = Counter()
        """Number of nodes with equal values of `_signs`."""
        self.jobs: dict[str, JobObject] = {}
        self._pods: dict[str, dict[str, Pod]] = {}
        self._nodes: dict[str, Node] = {}
        self._wrong: set[str] = set()
        """Names of the nodes on which a rule finds something wrong."""
        self._jobs_on: dict[str, Counter[str]] = {}
        """Number of pods of each job, by node name and job."""
        everything: list[JobObject | Pod | Node] = [*jobs, *pods, *nodes]
        for thing in everything:
            self._put(thing)
        self._believe()

    def put(self, thing: JobObject | Pod | Node) -> set[str]:
        """Stores an object unless a newer version is known. Returns the jobs that the change concerns."""
        concerned = self._put(thing)
        return concerned | self._believe() if isinstance(thing, Node) else concerned

    def _put(self, thing: JobObject | Pod | Node) -> set[str]:
        if isinstance(thing, Node):
            return self._put_node(thing)
        if isinstance(thing, JobObject):
            _newer(self.jobs, thing.metadata.uid, thing)
            return {thing.metadata.uid}
        pods = self._pods.setdefault(thing.metadata.owner_uid, {})
        before = pods.get(thing.metadata.uid)
        if _newer(pods, thing.metadata.uid, thing):
            self._count(before, -1)
            self._count(thing, 1)
        return {thing.metadata.owner_uid}

    def remove(self, thing: JobObject | Pod | Node) -> set[str]:
        """Removes an object. Returns the jobs that the change concerns."""
        if isinstance(thing, Node):
            return self._remove_node(thing) | self._believe()
        if isinstance(thing, JobObject):
            self.jobs.pop(thing.metadata.uid, None)
            for pod in self._pods.pop(thing.metadata.uid, {}).values():  # no event reports their end any more
                self._count(pod, -1)
            return {thing.metadata.uid}
        pods = self._pods.get(thing.metadata.owner_uid, {})
        self._count(pods.pop(thing.metadata.uid, None), -1)
        if not pods:
            self._pods.pop(thing.metadata.owner_uid, None)
        return {thing.metadata.owner_uid}

    def _put_node(self, node: Node) -> set[str]:
        """Stores a node. Returns no job if nothing changed: thousands of nodes send such updates every few minutes."""
        name = node.metadata.name
        before = self._nodes.get(name)
        if not _newer(self._nodes, name, node) or (before and _says(before) == _says(node)):
            return set()
        is_wrong = matters(node, self._rules)
        (self._wrong.add if is_wrong else self._wrong.discard)(name)
        self._count_node(name, counted(node, called(node, self._rules) if is_wrong else ()))
        self._sign(name, node.status.accelerators > 0, signs(node, self._rules) if is_wrong else frozenset())
        return set(self._jobs_on.get(name, ()))

    def _remove_node(self, node: Node) -> set[str]:
        """Removes a node. While pods are still listed on it, it is kept as a missing node."""
        name = node.metadata.name
        self._nodes.pop(name, None)
        self._wrong.discard(name)
        self._count_node(name, frozenset())
        self._sign(name, False, frozenset())
        if name in self._jobs_on:
            self._nodes[name] = gone(name, node.metadata.resource_version)
            self._wrong.add(name)
        return set(self._jobs_on.get(name, ()))

    def _count(self, pod: Pod | None, number: int) -> None:
        if pod is None or not pod.spec.node_name:
            return
        jobs = self._jobs_on.setdefault(pod.spec.node_name, Counter())
        jobs[pod.metadata.owner_uid] += number
        if not jobs[pod.metadata.owner_uid]:
            del jobs[pod.metadata.owner_uid]
        if not jobs:
            del self._jobs_on[pod.spec.node_name]

    def _count_node(self, name: str, now: frozenset[Key]) -> None:
        before = self._counted.pop(name, frozenset())
        self._counts.subtract(before)
        self._counts.update(now)
        if now:
            self._counted[name] = now

    def _sign(self, name: str, trains: bool, now: frozenset[str]) -> None:
        if before := self._signs.pop(name, None):
            self._signed[before] -= 1
            if not self._signed[before]:
                del self._signed[before]
        if now:
            self._signs[name] = trains, now
            self._signed[trains, now] += 1

    def unhealthy(self) -> tuple[int, int]:
        """Returns the number of nodes, and of those that are unhealthy by a rule that is believed or not ready. If any node has
        accelerators, only such nodes are counted. Nodes that were deleted are not."""
        trains = self._counts[True, ANY] > 0
        signed = ((one, number) for (has, one), number in self._signed.items() if has is trains)
        return self._counts[trains, ANY], sum(number for one, number in signed if one - self.rules.unbelieved)

    def _believe(self) -> set[str]:
        """Updates the set of believed rules. Returns the jobs with pods on nodes that a changed rule calls sick."""
        self.unbelieved = unbelieved(self._counts, self._rules)
        changed = self.rules.unbelieved ^ {one.rule for one in self.unbelieved}
        if changed:
            self.rules = doubting(self._rules, self.unbelieved)
        return self.concerned(changed)

    def concerned(self, rules: Collection[str]) -> set[str]:
        """Returns the jobs with pods on nodes that these rules call sick."""
        if not rules:
            return set()
        sick = (name for name, keys in self._counted.items() if any(rule in rules for _, rule in keys))
        return {job for name in sick for job in self._jobs_on.get(name, ())}

    def is_wrong(self, node: str) -> bool:
        return node in self._wrong

    def view(self, job_id: str) -> JobView:
        """Returns a job, its pods, and those of their nodes that something is wrong with."""
        pods = tuple(self._pods.get(job_id, {}).values())
        names = {pod.spec.node_name for pod in pods} & self._wrong
        return JobView(job=self.jobs.get(job_id), pods=pods, nodes=tuple(self._nodes[name] for name in sorted(names)))


def _says(node: Node) -> tuple[object, ...]:
    """Returns the parts of a node that rules evaluate."""
    return node.status, node.spec, node.metadata.labels, node.metadata.annotations


def _newer(table: dict[str, Thing], key: str, thing: Thing) -> bool:
    """Stores an object in the table and returns True, unless the table has a later version of it."""
    known = table.get(key)
    if known is not None and known.metadata.resource_version > thing.metadata.resource_version:
        return False
    table[key] = thing
    return True
