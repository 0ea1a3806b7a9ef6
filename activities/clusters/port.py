"""The port to a cluster: what recoveries and the watcher need of one, whoever runs its pods.

Shaped after Kubernetes: objects with uid, labels, annotations, phase and conditions; graceful deletion under a UID precondition;
a scheduler that says `Unschedulable` and why; a watch that can break. Every write names the state that it ensures, and "already
so" is success. Drivers: `activities/clusters/local.py`, `activities/clusters/kubernetes/`.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rekindle.model.cluster import ClusterEvent, JobObject, Node, Pod, WatchEvent
from rekindle.model.rules import Rules


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one moment: where a watch begins."""

    jobs: Sequence[JobObject]
    pods: Sequence[Pod]
    nodes: Sequence[Node]
    unreadable: Sequence[str] = ()
    """UIDs of jobs that are there, and whose objects mean nothing as they are written now, or of which a restart has left
    templates of pods only: what was known of them holds."""


@dataclass(frozen=True)
class Replacement:
    """Backup pod that takes over a pod rank which has lost its pod."""

    backup: Pod
    old: Pod | None
    """The pod that held the rank last, as far as the cluster still shows it."""


class Cluster(Protocol):
    """Errors are those of `rekindle.errors`: ClusterUnavailable (try again), NotFound, Conflict, Invalid, Forbidden; WatchExpired
    where something is watched."""

    rules: Rules
    """Rules that decide which states of nodes and pods are faults."""

    async def job(self, job_id: str) -> JobObject:
        """The job object with this UID, or NotFound."""
        ...

    async def pods(self, job_id: str) -> list[Pod]:
        """All pods of a job, terminating ones too."""
        ...

    async def pod(self, job_id: str, name: str, uid: str) -> Pod:
        """One pod of this name and UID, or NotFound (another UID is another pod)."""
        ...

    async def node(self, name: str) -> Node:
        """One node as it is, or NotFound."""
        ...

    async def nodes(self) -> Sequence[Node]:
        """All nodes as they are, as far as they can be read; none where we may not list them."""
        ...

    async def annotate_node(self, name: str, annotations: dict[str, str | None]) -> None:
        """Sets annotations of a node; None removes a key. NotFound where there is no such node."""
        ...

    async def cordon_node(self, name: str, *, cordoned: bool) -> None:
        """No new pod is put there, or pods are again. NotFound where there is no such node."""
        ...

    async def pods_on(self, node: str) -> Sequence[Pod]:
        """The pods on a node that are not over, terminating ones too, of jobs that ask for recoveries."""
        ...

    def follow(self, job_id: str) -> AsyncGenerator[Sequence[Pod], None]:
        """All pods of a job as they are, and again after every change. Ends with WatchExpired or ClusterUnavailable."""
        ...

    def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        """Everything as it is, and then every change of a job, a pod or a node. Ends with WatchExpired or ClusterUnavailable."""
        ...

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        """A clone of `old` with its rank, marked as backup, never on these nodes (nor on the old pod's). `name` is a wish: where
        somebody else creates the pod, it has a name of their choice. A standby that runs elsewhere than on these nodes takes the
        rank in place of a new pod, and says in its annotation `rekindle.io/taken-as` what that would have been called."""
        ...

    async def refusal_of_backup(self, job_id: str) -> str:
        """Returns why the cluster would not admit a backup pod of the job as things are, in its words; empty: it would, or no pod
        of it lives. Nothing is made."""
        ...

    async def ensure_replacement(self, job_id: str, pod_rank: int, name: str, avoid_nodes: Sequence[str]) -> Replacement:
        """A backup pod for a rank whose pod has failed, ends, is gone, or is on one of these nodes; on none of them. What the
        job's controller made in the lost pod's place is told to end, since nobody needs it; where others alone make pods, that is
        the answer. A standby takes the rank as above. Invalid: the job's kind cannot do it, or the job has failed for good."""
        ...

    async def ensure_standbys(self, job_id: str, count: int, avoid_nodes: Sequence[str]) -> list[Pod]:
        """So many pods that a worker's pod is the model of, but for its rank and for being marked as standby. Those that have
        ended, are on these nodes, are of another life of the job or too many are told to end; new ones go to none of these nodes,
        and to none that has a rank of the job. Answers those that stay and the new ones. Invalid: the job's kind cannot have
        them; NotFound: no pod of the job lives."""
        ...

    async def ensure_promoted(self, job_id: str, name: str, uid: str) -> None:
        """The backup pod is the pod of its rank from now on: its marks are removed."""
        ...

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        """Asks for the deletion of this very pod. A pod that is gone, or has another UID, is success; a terminating one may be
        hurried."""
        ...

    async def ensure_no_backups(self, job_id: str, grace_seconds: int) -> list[Pod]:
        """Every backup pod that was not promoted is told to end, and no mark of it is left on other pods. Answers them. A standby
        that was given a rank is a backup pod; one that was not stays."""
        ...

    async def ensure_stopped(self, job_id: str, grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        """All pods of the job are told to end, standbys first, and nobody makes new ones before `ensure_pods`. Answers them. Pods
        on lost nodes get no grace: nobody there would report their end."""
        ...

    async def ensure_pods(
        self, job_id: str, generation: str, avoid_nodes: Sequence[str], shun_nodes: Sequence[str] = ()
    ) -> list[Pod]:
        """One live pod for each pod rank and one manager, created for this generation where missing. Names are free again: call
        it when the old pods are gone. `generation` makes a repeated call find the pods of the first. Nodes that are shunned are
        taken where there is no other place for a pod."""
        ...

    async def ensure_job_metadata(self, job_id: str, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        """Sets labels and annotations of the job where its scheduler reads them too; None removes a key."""
        ...

    async def ensure_budget(self, job_id: str, *, holds: bool) -> None:
        """Keeps the job's ranks from being evicted, or no more: who drains a node waits until they have moved. Nothing where the
        cluster knows no evictions."""
        ...

    async def budgets(self) -> Mapping[str, int]:
        """Returns the number of pods that each job keeps from being evicted, by job id; -1: unknown.

        Budgets of deleted jobs and those that another party requested are included.
        """
        ...

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        """Writes an event about an object of the job."""
        ...

    async def close(self) -> None:
        """Closes connections."""
        ...
