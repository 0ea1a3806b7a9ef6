"""What the watcher has seen of a cluster, found by job. Used by `workers/watcher/watcher.py`."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TypeVar

from rekindle.model.cluster import JobObject, JobView, Node, Pod
from rekindle.model.rule_file import plain
from rekindle.model.rules import Rules, Unbelieved
from rekindle.policy.believing import Counts, Key, called, counted, doubting, unbelieved
from rekindle.policy.sighting import gone, matters

Thing = TypeVar("Thing", JobObject, Node, Pod)


class ClusterIndex:
    """Jobs by UID, pods by their job and UID, nodes by name, and which jobs have pods on a node.

    One change costs as much as it concerns: none of all the pods are walked to find whose it is.
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
        """All of them, and what is to be believed now."""
        self.unbelieved: tuple[Unbelieved, ...] = ()
        """Rules that call too many nodes sick, with the numbers of now."""
        self._counts: Counts = Counter()
        self._counted: dict[str, frozenset[Key]] = {}
        """As what each node counts."""
        self.jobs: dict[str, JobObject] = {}
        self._pods: dict[str, dict[str, Pod]] = {}
        self._nodes: dict[str, Node] = {}
        self._wrong: set[str] = set()
        """Names of the nodes that something is wrong with."""
        self._jobs_on: dict[str, Counter[str]] = {}
        """How many pods each job has on a node."""
        everything: list[JobObject | Pod | Node] = [*jobs, *pods, *nodes]
        for thing in everything:
            self._put(thing)
        self._believe()

    def put(self, thing: JobObject | Pod | Node) -> set[str]:
        """Takes it, if it is no older than what is known; answers the jobs that it concerns."""
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
        """Forgets it; answers the jobs that it concerns."""
        if isinstance(thing, Node):
            return self._remove_node(thing) | self._believe()
        if isinstance(thing, JobObject):
            self.jobs.pop(thing.metadata.uid, None)
            for pod in self._pods.pop(thing.metadata.uid, {}).values():  # of their end nobody is told any more
                self._count(pod, -1)
            return {thing.metadata.uid}
        pods = self._pods.get(thing.metadata.owner_uid, {})
        self._count(pods.pop(thing.metadata.uid, None), -1)
        if not pods:
            self._pods.pop(thing.metadata.owner_uid, None)
        return {thing.metadata.owner_uid}

    def _put_node(self, node: Node) -> set[str]:
        """Thousands of nodes say every few minutes that nothing is new: that concerns nobody."""
        name = node.metadata.name
        before = self._nodes.get(name)
        if not _newer(self._nodes, name, node) or (before and _says(before) == _says(node)):
            return set()
        is_wrong = matters(node, self._rules)
        (self._wrong.add if is_wrong else self._wrong.discard)(name)
        self._count_node(name, counted(node, called(node, self._rules) if is_wrong else ()))
        return set(self._jobs_on.get(name, ()))

    def _remove_node(self, node: Node) -> set[str]:
        """While pods seem to run on it, it is missed."""
        name = node.metadata.name
        self._nodes.pop(name, None)
        self._wrong.discard(name)
        self._count_node(name, frozenset())
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

    def _believe(self) -> set[str]:
        """Answers the jobs with pods where a rule says something that is believed from now on, or no more."""
        self.unbelieved = unbelieved(self._counts, self._rules)
        changed = self.rules.unbelieved ^ {one.rule for one in self.unbelieved}
        if changed:
            self.rules = doubting(self._rules, self.unbelieved)
        return self.concerned(changed)

    def concerned(self, rules: Collection[str]) -> set[str]:
        """Jobs with pods on nodes that these rules call sick."""
        if not rules:
            return set()
        sick = (name for name, keys in self._counted.items() if any(rule in rules for _, rule in keys))
        return {job for name in sick for job in self._jobs_on.get(name, ())}

    def is_wrong(self, node: str) -> bool:
        return node in self._wrong

    def view(self, job_id: str) -> JobView:
        """One job, its pods, and of the nodes that they are on those that something is wrong with."""
        pods = tuple(self._pods.get(job_id, {}).values())
        names = {pod.spec.node_name for pod in pods} & self._wrong
        return JobView(job=self.jobs.get(job_id), pods=pods, nodes=tuple(self._nodes[name] for name in sorted(names)))


def _says(node: Node) -> tuple[object, ...]:
    """What rules look at."""
    return node.status, node.spec, node.metadata.labels, node.metadata.annotations


def _newer(table: dict[str, Thing], key: str, thing: Thing) -> bool:
    """Puts it into the table, unless that knows a later version of it."""
    known = table.get(key)
    if known is not None and known.metadata.resource_version > thing.metadata.resource_version:
        return False
    table[key] = thing
    return True
