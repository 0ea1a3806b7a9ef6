"""What the watcher has seen of a cluster, found by job."""

from collections.abc import Iterable
from typing import TypeVar

from rekindle.model.cluster import JobObject, JobView, Node, Pod
from rekindle.policy.intake import Told

Thing = TypeVar("Thing", JobObject, Node, Pod)


class World:
    """Jobs by UID, pods by their job and UID, nodes by name."""

    def __init__(self, jobs: Iterable[JobObject] = (), pods: Iterable[Pod] = (), nodes: Iterable[Node] = ()) -> None:
        self.jobs: dict[str, JobObject] = {}
        self._pods: dict[str, dict[str, Pod]] = {}
        self._nodes: dict[str, Node] = {}
        self._interested: dict[str, set[str]] = {}
        """Jobs by the nodes that a view of them ever showed."""
        everything: list[JobObject | Pod | Node] = [*jobs, *pods, *nodes]
        for thing in everything:
            self.put(thing)

    def put(self, thing: JobObject | Pod | Node) -> set[str]:
        """Takes it, if it is no older than what is known; answers the jobs that it concerns."""
        if isinstance(thing, Node):
            _newer(self._nodes, thing.metadata.name, thing)
        elif isinstance(thing, JobObject):
            _newer(self.jobs, thing.metadata.uid, thing)
        else:
            _newer(self._pods.setdefault(thing.metadata.owner_uid, {}), thing.metadata.uid, thing)
        return self._concerned(thing)

    def remove(self, thing: JobObject | Pod | Node) -> set[str]:
        """Forgets it; answers the jobs that it concerns."""
        if isinstance(thing, Node):
            self._nodes.pop(thing.metadata.name, None)
        elif isinstance(thing, JobObject):
            self.jobs.pop(thing.metadata.uid, None)
        else:
            pods = self._pods.get(thing.metadata.owner_uid, {})
            pods.pop(thing.metadata.uid, None)
            if not pods:
                self._pods.pop(thing.metadata.owner_uid, None)
        return self._concerned(thing)

    def _concerned(self, thing: JobObject | Pod | Node) -> set[str]:
        if isinstance(thing, Node):
            return set(self._interested.get(thing.metadata.name, ()))
        return {thing.metadata.uid if isinstance(thing, JobObject) else thing.metadata.owner_uid}

    def view(self, job_id: str, told: Told) -> JobView:
        """One job, its pods, and the nodes that matter to it."""
        pods = tuple(self._pods.get(job_id, {}).values())
        names = {pod.spec.node_name for pod in pods} | {one.node for one in told.open}
        for name in names - {""}:
            self._interested.setdefault(name, set()).add(job_id)
        nodes = tuple(self._nodes[name] for name in sorted(names) if name in self._nodes)
        return JobView(job=self.jobs.get(job_id), pods=pods, nodes=nodes)


def _newer(table: dict[str, Thing], key: str, thing: Thing) -> None:
    known = table.get(key)
    if known is None or known.metadata.resource_version <= thing.metadata.resource_version:
        table[key] = thing
