"""Port to a cluster: what recoveries and the watcher need of it, regardless of what runs its pods.

Shaped after Kubernetes: objects with uid, labels, annotations, phase and conditions; graceful deletion under a UID precondition;
a scheduler that says `Unschedulable` and why; a watch that can break. Every write names the state that it ensures, and "already
so" is success. Drivers: `activities/clusters/local.py`, `activities/clusters/kubernetes/`.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rekindle.model.cluster import ClusterEvent, JobObject, Node, Pod, WatchEvent
from rekindle.model.contract import Words
from rekindle.model.rules import Rules
from rekindle.policy.placement.spares import Occupant


@dataclass(frozen=True)
class Snapshot:
    """State of a cluster at the beginning of a watch."""

    jobs: Sequence[JobObject]
    pods: Sequence[Pod]
    nodes: Sequence[Node]
    unreadable: Sequence[str] = ()
    """UIDs of existing jobs whose objects are invalid now, or of which a restart has left only templates of pods.

    Their last known state stays valid.
    """


@dataclass(frozen=True)
class Replacement:
    """Backup pod that takes over a pod rank which has lost its pod."""

    backup: Pod
    old: Pod | None
    """Last pod that held the rank, if the cluster still shows it."""


class Evictions(Protocol):
    """Capability of a cluster whose pods may be evicted: a drain of a node waits while a budget holds the ranks of a job."""

    async def ensure_budget(self, job_id: str, *, holds: bool) -> None:
        """Keeps the job's ranks from being evicted, or allows it again."""
        ...

    async def budgets(self) -> Mapping[str, int]:
        """Returns the number of pods that each job keeps from being evicted, by job id; -1: unknown.

        Budgets of deleted jobs and those that another party requested are included.
        """
        ...


class Contract(Protocol):
    """Capability of a cluster whose other components read how a recovery goes, and whose platforms may decide about it."""

    async def ensure_words(self, job_id: str, words: Words) -> int | None:
        """Writes what the contract says of a job now. Every part is written, even if another one fails.

        Returns the `RetryTime` of the job's reset-config; None: the job has no usable reset-config.
        """
        ...

    async def said_by_platform(self, job_id: str) -> Mapping[str, str]:
        """Returns the annotations of the job where its platform writes."""
        ...

    async def tell_platform(self, job_id: str, annotations: Mapping[str, str]) -> None:
        """Sets annotations of the job where its platform reads."""
        ...


class Cluster(Protocol):
    """Port to a cluster.

    Errors are those of `rekindle.errors`: ClusterUnavailable (try again), NotFound, Conflict, Invalid, Forbidden; WatchExpired
    for watches.
    """

    rules: Rules
    """Rules that decide which states of nodes and pods are faults."""

    @property
    def evictions(self) -> Evictions | None:
        """Budgets against evictions. None: pods of this cluster are never evicted."""
        ...

    @property
    def contract(self) -> Contract | None:
        """Words for other components. None: none of them reads any."""
        ...

    async def job(self, job_id: str) -> JobObject:
        """Returns the job object with this UID, or raises NotFound."""
        ...

    async def pods(self, job_id: str) -> list[Pod]:
        """Returns all pods of a job, terminating ones too."""
        ...

    async def pod(self, job_id: str, name: str, uid: str) -> Pod:
        """Returns the pod of this name and UID, or raises NotFound (another UID is another pod)."""
        ...

    async def node(self, name: str) -> Node:
        """Returns one node, or raises NotFound."""
        ...

    async def nodes(self) -> Sequence[Node]:
        """Returns all nodes that can be read; none if we may not list them."""
        ...

    async def annotate_node(self, name: str, annotations: dict[str, str | None]) -> None:
        """Sets annotations of a node; None removes a key. Raises NotFound if there is no such node."""
        ...

    async def cordon_node(self, name: str, *, cordoned: bool) -> None:
        """Cordons a node, so that no new pod is placed there, or uncordons it. Raises NotFound if there is no such node."""
        ...

    async def pods_on(self, node: str) -> Sequence[Pod]:
        """Returns the pods on a node that are not over, terminating ones too, of jobs that ask for recoveries."""
        ...

    async def occupants(self) -> Sequence[Occupant]:
        """Returns all pods that can be read, have a node and are not over, of any job and of none."""
        ...

    def follow(self, job_id: str) -> AsyncGenerator[Sequence[Pod], None]:
        """Yields all pods of a job, and again after every change. Ends with WatchExpired or ClusterUnavailable."""
        ...

    def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        """Yields the state of the cluster, and then every change of a job, a pod or a node.

        Ends with WatchExpired or ClusterUnavailable.
        """
        ...

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        """Ensures a clone of `old` with its rank, marked as backup, which is neither on these nodes nor on that of the old pod.

        `name` is a proposal: another component that creates the pod chooses the name. A standby on an allowed node takes the rank
        instead of a new pod; its annotation `rekindle.io/taken-as` then has the name that the new pod would have had.
        """
        ...

    async def refusal_of_backup(self, job_id: str) -> str:
        """Returns why the cluster would not admit a backup pod of the job now; empty: it would, or no pod of the job is running.

        Creates nothing.
        """
        ...

    async def ensure_replacement(self, job_id: str, pod_rank: int, name: str, avoid_nodes: Sequence[str]) -> Replacement:
        """Ensures a backup pod for a rank whose pod has failed, ends, is gone, or is on one of these nodes.

        The backup is on none of them.

        A pod that the job's controller created in the lost pod's place is deleted, since it is not needed. If only other
        components create pods, that pod is returned. A standby takes the rank as in `ensure_backup`. Raises Invalid if the job's
        kind does not support it, or the job has failed for good.
        """
        ...

    async def ensure_standbys(self, job_id: str, count: int, avoid_nodes: Sequence[str]) -> list[Pod]:
        """Ensures so many standbys, modelled on a worker's pod without its rank. Returns the standbys that stay and the new ones.

        Standbys that have ended, are on these nodes, belong to another generation or are too many are deleted. New ones are
        placed neither on these nodes nor on one that has a rank of the job. Raises Invalid if the job's kind cannot have
        standbys, and NotFound if no pod of the job is running.
        """
        ...

    async def ensure_promoted(self, job_id: str, name: str, uid: str) -> None:
        """Makes the backup pod the pod of its rank: its marks are removed."""
        ...

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        """Deletes exactly this pod.

        A pod that is gone, or has another UID, is success; the deletion of a terminating one may be accelerated.
        """
        ...

    async def ensure_no_backups(self, job_id: str, grace_seconds: int) -> list[Pod]:
        """Deletes every backup pod that was not promoted, and removes its marks from other pods.

        Returns the deleted pods. A standby that was given a rank is a backup pod; other standbys stay.
        """
        ...

    async def ensure_stopped(self, job_id: str, grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        """Deletes all pods of the job, standbys first, and keeps new ones from being created before `ensure_pods`.

        Returns the deleted pods. Pods on lost nodes get no grace period, as no kubelet would report their end.
        """
        ...

    async def ensure_pods(
        self, job_id: str, generation: str, avoid_nodes: Sequence[str], shun_nodes: Sequence[str] = ()
    ) -> list[Pod]:
        """Ensures one live pod for each pod rank, and one manager, created in this generation if missing.

        The names must be free: call it when the old pods are gone. `generation` makes a repeated call find the pods of the first.
        Shunned nodes are used only if no other node is free.
        """
        ...

    async def ensure_job_metadata(self, job_id: str, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        """Sets labels and annotations of the job where its scheduler reads them too; None removes a key."""
        ...

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        """Writes an event about an object of the job."""
        ...

    async def close(self) -> None:
        """Closes connections."""
        ...
