"""Describes a kind of training job on Kubernetes, and one job of it. The table of kinds is `kinds/__init__.py`.

A kind is a row: where its objects are, which pods are theirs, what its object says, and its two strategies: how the whole job is
restarted, and who counts its pods. Code that serves jobs asks the row; no other module knows a kind by its name.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import shapes
from activities.clusters.kubernetes.lost_rank import LostRank
from rekindle.model.cluster import JobObject
from rekindle.model.job import TrainingSide, Trait
from rekindle.model.keys import JOB_ID, REPLICA_TYPE, STOPPED, TRAINING_SIDE
from rekindle.model.sizes import LONGEST_RANK

if TYPE_CHECKING:  # who serves jobs needs the table, and the table needs strategies
    from activities.clusters.kubernetes.hands import Hands

REPLICA_INDEX = "training.kubeflow.org/replica-index"
MANAGER = "manager"


@dataclass(frozen=True)
class Places:
    """Nodes on which the pods of a restart may be placed."""

    avoid: Sequence[str] = ()
    shun: Sequence[str] = ()
    """Nodes that are better than none."""


class Restart(Protocol):
    """Strategy that stops all pods of a job and creates them again. Every call may be repeated."""

    @property
    def suspend(self) -> tuple[str, ...]:
        """The field, below spec, that keeps its controller from making pods; empty: there is none."""

    async def ensure_stopped(
        self, hands: "Hands", job: "Workload", pods: Sequence[Object], grace_seconds: int, lost_nodes: Collection[str] = ()
    ) -> None: ...

    async def ensure_pods(self, hands: "Hands", job: "Workload", generation: str, places: Places) -> list[Object]: ...

    async def let_go(self, hands: "Hands", job: "Workload") -> None:
        """Takes back what a restart has done to the object of a job that is not started again."""


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
        self, hands: "Hands", job: "Workload", old: Object, name: str, avoid_nodes: Sequence[str]
    ) -> Object: ...

    async def ensure_replacement(
        self, hands: "Hands", job: "Workload", lost: LostRank, name: str, avoid_nodes: Sequence[str]
    ) -> Object: ...

    async def ensure_promoted(self, hands: "Hands", job: "Workload", pod: Object) -> None: ...

    async def ensure_deleted(self, hands: "Hands", job: "Workload", pod: Object, grace_seconds: int) -> None: ...

    async def ensure_no_backups(self, hands: "Hands", job: "Workload", pods: Sequence[Object], grace_seconds: int) -> None: ...


@dataclass(frozen=True)
class Template:
    """A pod template inside of a job object, and how many pods are made from it."""

    body: Object
    pods: int
    replica_type: str = ""
    """Replica type of the pods, or the name of a JobSet's replicated job."""

    each: int = 0
    """Pods of one of a JobSet's Jobs."""

    @property
    def is_manager(self) -> bool:
        """The training side's manager has no rank."""
        return bool(self.body.get("metadata", {}).get("labels", {}).get(REPLICA_TYPE) == MANAGER)


@dataclass(frozen=True)
class Indexing:
    """Describes how the controllers of a kind mark on a pod which of their pods it is."""

    keys: tuple[str, ...] = ()
    """Annotations or labels with the pod's number; the first that is there."""

    type_label: str = REPLICA_TYPE
    """Label that names the template of a pod. Numbers begin with 0 in each template."""

    group_label: str = ""
    """The number of its group, where a template is for several of them; numbers begin with 0 in each."""

    carries_ranks: str = ""
    """The only template whose pods have ranks, where nothing is marked; empty: all have."""

    mark: tuple[str, str] = ("", "")
    """Label of the objects that make the pods, and its value where their pods have ranks. `Reader` hands it down to the pods."""

    also: tuple[str, ...] = ()
    """Further labels and annotations that no other pod of the job may have."""

    @property
    def of_one_pod(self) -> tuple[str, ...]:
        return tuple(key for key in (*self.keys, self.group_label, *self.also) if key)


@dataclass(frozen=True)
class Right:
    """A rule of access."""

    group: str
    resource: str
    verbs: tuple[str, ...]


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
    """Label that all of its pods carry, with the job's name, unless the installation names another. `rekindle.io/job-id` has its
    UID instead."""

    shape: type[shapes.Shape]
    """Shape of the whole object, as far as it is read."""

    templates: Callable[[Object], list[Template]]
    """Returns the templates in the spec of a job object. Their bodies are parts of the spec."""

    read: "Callable[[Workload], JobObject]"
    """Returns the content of the job object. Raises BadInput if it is invalid."""

    restart: Restart
    count: Count

    fails_with: "Callable[[Workload, Object], str]" = _fails_with_none
    """Returns why the failure of this pod is that of the whole job, where its controller marks no pod that it has counted; empty:
    it is not, or the controller is waited for."""

    unmovable: "Callable[[Workload], str]" = _can_be_moved
    """Returns why no other pod can take the place of one of its pods, in words; empty: one can."""

    indexing: Indexing = Indexing()
    made_of: "Kind | None" = None
    """Kind of the objects that make its pods for it, and that it controls, be it by others between them."""

    usual_side: TrainingSide = TrainingSide.REKINDLE
    said_side: "Callable[[Workload], object]" = _annotated_side
    traits: tuple[Trait, ...] = ()
    is_ours: bool = False
    """True if jobs of this kind are managed without a label that asks for it."""

    has_object: bool = True
    """True if the job has an object of its own.

    What is created for the job can be owned by that object and is deleted with it.
    """

    own_manager: str = ""
    """Value of `managedBy` that says no more than its absence."""

    is_queued: bool = True
    """True if Kueue manages jobs of this kind."""

    written_to: "Callable[[Workload], list[tuple[str, str]]]" = _of_the_object
    """Paths of what carries the job's labels and annotations, each with the UID that it must have, if that is known. The last one
    is the job itself; of the others some may not be there."""

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
    """One job object as the API server has it. What its metadata says can be relied on; the rest behind `checked` only."""

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
        """The label that its pods carry, as the kind's usual controller writes it."""
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
        """Suspended by its owner or a queue, and not for a moment by a restart of ours."""
        return self.is_suspended and self.annotation(STOPPED) != "yes"

    @property
    def was_resumed(self) -> bool:
        """True if another party resumed the job in the middle of a restart."""
        return not self.is_suspended and bool(self.annotation(STOPPED))

    @cached_property
    def templates(self) -> list[Template]:
        """Once: each of thousands of pods asks for them, and a tenant may write ten thousand."""
        return self.kind.templates(self.object["spec"])

    @property
    def workers(self) -> list[Template]:
        """Templates of the pods that carry ranks."""
        return [template for template in self.templates if not template.is_manager]

    @cached_property
    def first_ranks(self) -> dict[str, tuple[int, int]]:
        """Number of ranks before each template of workers, and of ranks of one of its groups, by replica type."""
        found: dict[str, tuple[int, int]] = {}
        ranks = 0
        for template in self.workers:
            found.setdefault(template.replica_type, (ranks, template.each))
            ranks += template.pods
        return found

    def checked(self) -> "Workload":
        """The same without its nulls, as its kind has it.

        Raises:
            BadInput: a field that is read is wrong.
        """
        return Workload(self.kind, shapes.checked(self.kind.shape, self.object))

    def annotation(self, key: str) -> str:
        return str(self.metadata.get("annotations", {}).get(key, ""))


def of_replicas(field: str, *leaders: str) -> Callable[[Object], list[Template]]:
    """Templates by replica type, the leader first: pod ranks are counted in this order."""

    def templates(spec: Object) -> list[Template]:
        replicas: dict[str, Any] = spec.get(field, {})
        order = sorted(replicas, key=lambda name: (name not in leaders, name))
        return [Template(replicas[name]["template"], int(replicas[name].get("replicas", 1)), name.lower()) for name in order]

    return templates


# ---- the rank of a pod


def rank_of(job: Workload, pod: Object, keys: Sequence[str]) -> str:
    """The pod rank as it is written on the pod; empty: nothing says it.

    Args:
        keys: annotations or labels, the first one that is there decides; behind them the kind's own.
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
    """A rank or an index that somebody wrote."""
    return int(text) if text.isdecimal() and len(text) <= LONGEST_RANK else None


def _before(job: Workload, labels: dict[str, str]) -> int:
    """Ranks of the templates, and of the groups of its own, that come before the pod."""
    own, starts = job.kind.indexing, job.first_ranks
    ranks, each = starts.get(labels.get(own.type_label, next(iter(starts), "")).lower(), (0, 0))
    return ranks + (number(labels.get(own.group_label, "")) or 0) * each
