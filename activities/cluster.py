"""The port to a cluster: what recoveries and the watcher need of one, whoever runs its pods.

Shaped after Kubernetes: objects with uid, labels, annotations, phase and conditions; graceful deletion under a UID precondition;
a scheduler that says `Unschedulable` and why; a watch that can break. Every write names the state that it ensures, and "already
so" is success. Drivers: `activities/local.py`.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from rekindle.model.cluster import ClusterEvent, JobObject, Node, Pod, WatchEvent


class Cluster(Protocol):
    """Errors are those of `rekindle.errors`: ClusterUnavailable (try again), NotFound, Conflict, Invalid, WatchExpired."""

    async def jobs(self) -> list[JobObject]:
        """All job objects."""
        ...

    async def job(self, job_id: str) -> JobObject:
        """The job object with this UID, or NotFound."""
        ...

    async def pods(self, job_id: str) -> list[Pod]:
        """All pods of a job, terminating ones too."""
        ...

    async def nodes(self) -> list[Node]:
        """All nodes."""
        ...

    async def pod(self, job_id: str, name: str, uid: str) -> Pod:
        """One pod of this name and UID, or NotFound (another UID is another pod)."""
        ...

    def watch(self) -> AsyncIterator[WatchEvent]:
        """Changes of jobs, pods and nodes, beginning with ADDED for all that exist. Ends with WatchExpired or
        ClusterUnavailable."""
        ...

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        """A clone of `old` under this name, with its rank, marked as backup, never on these nodes (nor on the old pod's)."""
        ...

    async def ensure_promoted(self, job_id: str, name: str, uid: str) -> None:
        """The backup pod is the pod of its rank from now on: its marks are removed."""
        ...

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        """Asks for the deletion of this very pod. A pod that is gone, or has another UID, is success; a terminating one may be
        hurried."""
        ...

    async def ensure_pods(self, job_id: str, generation: str, avoid_nodes: Sequence[str]) -> list[Pod]:
        """One live pod for each pod rank and one manager, created for this generation where missing. Names are free again: call
        it when the old pods are gone. `generation` makes a repeated call find the pods of the first."""
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
