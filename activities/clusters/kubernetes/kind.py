"""Describes a kind of training job on Kubernetes, and one job of it. The table of kinds is `kinds/__init__.py`.

A kind is a row: the path of its objects, the label of their pods, and the functions that read an object. It has two strategies:
`restart` for the whole job, and `count` for the place of a backup. Code that serves jobs asks the row; no other module knows a
kind by its name.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from activities.clusters.api_server import Api, Object, lean
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.missing_rank import LostRank
from rekindle.model.cluster import JobObject
from rekindle.model.job import Trait
from rekindle.model.keys import JOB_ID, REPLICA_TYPE, STOPPED, TRAINING_SIDE
from rekindle.model.sizes import LONGEST_RANK
from rekindle.model.training_side import TrainingSide
from rekindle.settings import Settings

REPLICA_INDEX = "training.kubeflow.org/replica-index"
MANAGER = "manager"


@dataclass(frozen=True)
class Places:
    """Nodes on which the pods of a restart may be placed."""

    avoid: Sequence[str] = ()
    shun: Sequence[str] = ()
    """Nodes that are used only if no other node is free."""


class PodReader(Protocol):
    """Reads jobs and their pods. Implemented by `Reader`, which needs the table of kinds."""

    async def job(self, job_id: str) -> "Workload": ...

    async def pods(self, job: "Workload", keep: Callable[[Object], Object] = lean) -> list[Object]: ...

    async def until(self, job: "Workload", done: Callable[[Sequence[Object]], bool], limit: float) -> list[Object]: ...

    async def managers(self, job: "Workload") -> list[Object]: ...

    async def parts(self, job: "Workload") -> list["Workload"]: ...


class PodAccess(Protocol):
    """Operations on pods that the strategies of a kind use. Implemented by `PodOperations`."""

    @property
    def api(self) -> Api: ...

    @property
    def reader(self) -> PodReader: ...

    @property
    def settings(self) -> Settings: ...

    async def create(self, namespace: str, body: Object, is_ours: Callable[[Object], bool]) -> Object: ...

    async def create_all(self, job: "Workload", wanted: Sequence[Object]) -> list[Object]: ...

    async def delete(self, pod: Object, grace_seconds: int) -> None: ...

    async def delete_all(self, pods: Sequence[Object], grace_seconds: int) -> None: ...

    async def as_made(self, job: "Workload", pod: Object) -> Object: ...

    async def topology(self, job: "Workload", pod: Object) -> list[tuple[str, str]]: ...

    async def taken(self, job: "Workload", backup: Object, avoid_nodes: Collection[str]) -> Object | None: ...

    async def ensure_metadata(
        self, job: "Workload", labels: dict[str, str | None], annotations: dict[str, str | None]
    ) -> None: ...


class Restart(Protocol):
    """Strategy that stops all pods of a job and creates them again. Every call may be repeated."""

    @property
    def suspend(self) -> tuple[str, ...]:
        """Path below `spec` of the field that suspends the job, so that its controller creates no pods; empty: there is none."""

    async def ensure_stopped(
        self, ops: "PodAccess", job: "Workload", pods: Sequence[Object], grace_seconds: int, lost_nodes: Collection[str] = ()
    ) -> None: ...

    async def ensure_pods(self, ops: "PodAccess", job: "Workload", generation: str, places: Places) -> list[Object]: ...

    async def let_go(self, ops: "PodAccess", job: "Workload") -> None:
        """Reverts the changes of a restart to the object of a job that is not started again."""


class Count(Protocol):
    """Strategy for the controller that counts a job's pods: how one pod takes the place of another for it.

    Every call may be repeated.
    """

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels by which the controller counts pods. A backup pod gets them when it takes over."""

    @property
    def finalizers(self) -> tuple[str, ...]:
        """Finalizers of a pod that the controller counts."""

    @property
    def makes_pods(self) -> bool:
        """True if the controller that counts pods also creates missing ones."""

    async def ensure_backup(
        self, ops: "PodAccess", job: "Workload", old: Object, name: str, avoid_nodes: Sequence[str]
    ) -> Object: ...

    async def ensure_replacement(
        self, ops: "PodAccess", job: "Workload", lost: LostRank, name: str, avoid_nodes: Sequence[str]
    ) -> Object: ...

    async def ensure_promoted(self, ops: "PodAccess", job: "Workload", pod: Object) -> None: ...

    async def ensure_deleted(self, ops: "PodAccess", job: "Workload", pod: Object, grace_seconds: int) -> None: ...

    async def ensure_no_backups(self, ops: "PodAccess", job: "Workload", pods: Sequence[Object], grace_seconds: int) -> None: ...


@dataclass(frozen=True)
class Template:
    """Pod template inside a job object, and the number of pods that are created from it."""

    body: Object
    pods: int
    replica_type: str = ""
    """Replica type of the pods, or the name of a JobSet's replicated job."""

    each: int = 0
    """Number of pods of one Job of a JobSet."""

    @property
    def is_manager(self) -> bool:
        """True if the template is that of the training side's manager, which has no rank."""
        return bool(self.body.get("metadata", {}).get("labels", {}).get(REPLICA_TYPE) == MANAGER)


@dataclass(frozen=True)
class Indexing:
    """Describes how the controllers of a kind mark on a pod which of their pods it is."""

    keys: tuple[str, ...] = ()
    """Annotations or labels with the pod's number; the first one that is present counts."""

    type_label: str = REPLICA_TYPE
    """Label that names the template of a pod. Numbers begin with 0 in each template."""

    group_label: str = ""
    """Label with the number of the pod's group, if a template is used for several groups. Numbers begin with 0 in each group."""

    carries_ranks: str = ""
    """Name of the only template whose pods have ranks, if no object is marked; empty: the pods of all templates have."""

    mark: tuple[str, str] = ("", "")
    """Label of the objects that create the pods, and its value if their pods have ranks. `Reader` copies it to the pods."""

    also: tuple[str, ...] = ()
    """Further labels and annotations that are unique to one pod of the job."""

    @property
    def of_one_pod(self) -> tuple[str, ...]:
        return tuple(key for key in (*self.keys, self.group_label, *self.also) if key)


@dataclass(frozen=True)
class Right:
    """Access rule of RBAC."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Names of the objects that it is for; empty: all."""


def _of_the_object(job: "Workload") -> list[tuple[str, str]]:
    return [(job.path, job.uid)]


def _fails_with_none(_job: "Workload", _pod: Object) -> str:
    return ""


def _can_be_moved(_job: "Workload") -> str:
    return ""


def _annotated_side(job: "Workload") -> object:
    return job.annotation(TRAINING_SIDE)


@dataclass(frozen=True, kw_only=True)
class Kind:
    name: str
    api: str
    plural: str
    pod_label: str
    """Label that all pods of the job carry, with the job's name as value, unless the installation names another.

    If it is `rekindle.io/job-id`, the value is the job's UID.
    """

    shape: type[schemas.Shape]
    """Shape of the whole object, as far as it is read."""

    templates: Callable[[Object], list[Template]]
    """Returns the templates in the spec of a job object. Their bodies are parts of the spec."""

    read: "Callable[[Workload], JobObject]"
    """Returns the content of the job object. Raises BadInput if it is invalid."""

    restart: Restart
    count: Count

    fails_with: "Callable[[Workload, Object], str]" = _fails_with_none
    """Returns why the failure of this pod is a failure of the whole job; empty: it is not, or the controller decides.

    Needed if the controller does not mark pods that it has counted.
    """

    unmovable: "Callable[[Workload], str]" = _can_be_moved
    """Returns why no other pod can take the place of one of the job's pods; empty: one can."""

    indexing: Indexing = Indexing()
    made_of: "Kind | None" = None
    """Kind of the objects that create the pods for the job, and that the job controls directly or indirectly."""

    usual_side: TrainingSide = TrainingSide.REKINDLE
    said_side: "Callable[[Workload], object]" = _annotated_side
    traits: tuple[Trait, ...] = ()
    is_ours: bool = False
    """True if jobs of this kind are managed without a label that asks for it."""

    has_object: bool = True
    """True if the job has an object.

    Objects that are created for the job can be owned by it, and are deleted with it.
    """

    own_manager: str = ""
    """Value of `managedBy` that means the same as its absence."""

    is_queued: bool = True
    """True if Kueue manages jobs of this kind."""

    written_to: "Callable[[Workload], list[tuple[str, str]]]" = _of_the_object
    """Paths of the objects that carry the job's labels and annotations, each with the UID that it must have, if that is known.

    The last one is the job itself; others may not exist.
    """

    rights: tuple[Right, ...] = ()
    """Rights that a recovery needs for jobs of this kind, besides reading and changing them."""

    reading: tuple[Right, ...] = ()
    """Rights that observing jobs of this kind needs, besides reading them."""

    def path(self, namespace: str = "", name: str = "") -> str:
        """Returns the API path of the collection or of one object; without a namespace, that of all namespaces."""
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.api}{where}/{self.plural}" + (f"/{name}" if name else "")

    @property
    def api_version(self) -> str:
        return self.api.removeprefix("/apis/").removeprefix("/api/")

    @property
    def group(self) -> str:
        """API group of the kind; empty: the core group."""
        return group_of(self.api_version)


def group_of(api_version: str) -> str:
    return api_version.rpartition("/")[0]


@dataclass(frozen=True)
class Workload:
    """Job object as the API server has it. Its metadata is valid; everything else only after `checked`."""

    kind: Kind
    object: Object

    @property
    def metadata(self) -> Object:
        metadata: Object = self.object["metadata"]
        return metadata

    @property
    def uid(self) -> str:
        return str(self.metadata["uid"])

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata["namespace"])

    @property
    def path(self) -> str:
        return self.kind.path(self.namespace, self.name)

    @property
    def selector(self) -> dict[str, str]:
        """Label that the job's pods carry, as the kind's usual controller writes it."""
        label = self.kind.pod_label
        return {label: self.uid if label == JOB_ID else self.name}

    @property
    def reference(self) -> Object:
        """Owner reference to the job. An object that has it is deleted with the job."""
        return {"apiVersion": self.kind.api_version, "kind": self.kind.name, "name": self.name, "uid": self.uid}

    @property
    def is_suspended(self) -> bool:
        """True if the job is suspended, regardless of who suspended it."""
        said: Any = self.object["spec"]
        for part in self.kind.restart.suspend:
            said = said.get(part) or {}
        return bool(self.kind.restart.suspend and said)

    @property
    def is_held(self) -> bool:
        """True if the job is suspended by its owner or a queue, and not temporarily by a restart of ours."""
        return self.is_suspended and self.annotation(STOPPED) != "yes"

    @property
    def was_resumed(self) -> bool:
        """True if another party resumed the job in the middle of a restart."""
        return not self.is_suspended and bool(self.annotation(STOPPED))

    @cached_property
    def templates(self) -> list[Template]:
        """Templates of the job's pods.

        Computed once: each of thousands of pods needs them, and a tenant may write ten thousand.
        """
        return self.kind.templates(self.object["spec"])

    @property
    def workers(self) -> list[Template]:
        """Templates of the pods that carry ranks."""
        return [template for template in self.templates if not template.is_manager]

    @cached_property
    def first_ranks(self) -> dict[str, tuple[int, int]]:
        """Pod ranks before each template of workers, and pods of one of its groups, by replica type."""
        found: dict[str, tuple[int, int]] = {}
        ranks = 0
        for template in self.workers:
            found.setdefault(template.replica_type, (ranks, template.each))
            ranks += template.pods
        return found

    def checked(self) -> "Workload":
        """Returns the job without nulls, validated by the shape of its kind.

        Raises:
            BadInput: a field that is read is wrong.
        """
        return Workload(self.kind, schemas.checked(self.kind.shape, self.object))

    def annotation(self, key: str) -> str:
        return str(self.metadata.get("annotations", {}).get(key, ""))


def of_replicas(field: str, *leaders: str) -> Callable[[Object], list[Template]]:
    """Returns a function that reads templates by replica type, the leaders first: pod ranks are counted in this order."""

    def templates(spec: Object) -> list[Template]:
        replicas: dict[str, Any] = spec.get(field, {})
        order = sorted(replicas, key=lambda name: (name not in leaders, name))
        return [Template(replicas[name]["template"], int(replicas[name].get("replicas", 1)), name.lower()) for name in order]

    return templates


# ---- the rank of a pod


def rank_of(job: Workload, pod: Object, keys: Sequence[str]) -> str:
    """Returns the pod rank as it is written on the pod; empty: it is not.

    Args:
        keys: annotations or labels with the rank, of which the first that is present counts. Those of the kind come after them.
    """
    own = job.kind.indexing
    if found := _first(pod, keys):
        return found
    labels = pod["metadata"].get("labels", {})
    if not _carries_a_rank(own, labels):
        return ""
    index = _first(pod, own.keys)
    return index if (place := number(index)) is None else str(place + _before(job, labels))


def _carries_a_rank(own: Indexing, labels: dict[str, str]) -> bool:
    key, wanted = own.mark
    if key and key in labels:
        return labels[key] == wanted
    return not own.carries_ranks or labels.get(own.type_label, own.carries_ranks) == own.carries_ranks


def _first(pod: Object, keys: Sequence[str]) -> str:
    annotations, labels = pod["metadata"].get("annotations", {}), pod["metadata"].get("labels", {})
    return next((str(found) for key in keys if (found := annotations.get(key) or labels.get(key))), "")


def number(text: str) -> int | None:
    """Parses a rank or an index that another party wrote; None: it is not valid."""
    return int(text) if text.isdecimal() and len(text) <= LONGEST_RANK else None


def _before(job: Workload, labels: dict[str, str]) -> int:
    """Returns the number of ranks of the templates, and of groups of the same template, that come before the pod."""
    own, starts = job.kind.indexing, job.first_ranks
    ranks, each = starts.get(labels.get(own.type_label, next(iter(starts), "")).lower(), (0, 0))
    return ranks + (number(labels.get(own.group_label, "")) or 0) * each
