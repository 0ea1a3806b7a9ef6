"""The kinds of training jobs that Kubernetes knows, as one table: where their objects are, which pods are theirs, how they stop.

A job's pods are told by a label with its name, a pod's rank by an annotation or label; the installation may name others.
What a controller does by itself (a missing pod is made anew, a second one of an index is deleted) is met by withholding the
labels by which it counts, until a backup pod takes over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import shapes
from rekindle.model.cluster import LOOSE_PODS
from rekindle.model.keys import JOB_ID, JOB_NAME, REPLICA_TYPE, STOPPED
from rekindle.model.sizes import LONGEST_RANK

BATCH_JOB_NAME = "batch.kubernetes.io/job-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOBSET_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
NODE = "node"
"""Of a TrainJob's replicated jobs, the one whose pods carry ranks; others prepare for it."""
REPLICA_INDEX = "training.kubeflow.org/replica-index"
MANAGER = "manager"


@dataclass(frozen=True)
class Template:
    """A pod template inside of a job object, and how many pods are made from it."""

    body: Object
    pods: int
    replica_type: str = ""
    """Or the name of a JobSet's replicated job."""

    each: int = 0
    """Pods of one of a JobSet's Jobs."""

    @property
    def is_manager(self) -> bool:
        """The training side's manager has no rank."""
        return bool(self.body.get("metadata", {}).get("labels", {}).get(REPLICA_TYPE) == MANAGER)


@dataclass(frozen=True)
class Kind:
    name: str
    api: str
    plural: str
    pod_label: str
    """Label that all of its pods carry, with the job's name, unless the installation names another."""

    templates: Callable[[Object], list[Template]]
    """From the spec of a job object; the bodies are parts of it."""

    shape: type[shapes.Shape]
    """Of the whole object, as far as it is read."""

    withheld: tuple[str, ...] = ()
    """Labels by which its controller counts pods: a backup pod gets them when it takes over."""

    suspend: tuple[str, ...] = ()
    """The field, below spec, that keeps its controller from making pods; empty: it makes none by itself."""

    makes_jobs: bool = False
    """Its pods are made from the templates of Jobs, and a restart changes these: its own are a runtime's, or immutable."""

    lets_two_be: bool = False
    """Its controller leaves a second pod of an index alone, for ever, and fills an empty one at once."""

    def path(self, namespace: str = "", name: str = "") -> str:
        """Of the collection or of one object; without a namespace: of all namespaces."""
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.api}{where}/{self.plural}" + (f"/{name}" if name else "")

    @property
    def api_version(self) -> str:
        return self.api.removeprefix("/apis/").removeprefix("/api/")


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
    def reference(self) -> Object:
        """What is made for it is deleted with it."""
        return {"apiVersion": self.kind.api_version, "kind": self.kind.name, "name": self.name, "uid": self.uid}

    @property
    def is_suspended(self) -> bool:
        """By whomever."""
        said: Any = self.object["spec"]
        for part in self.kind.suspend:
            said = said.get(part) or {}
        return bool(self.kind.suspend and said)

    @property
    def is_held(self) -> bool:
        """Suspended by its owner or a queue, and not for a moment by a restart of ours."""
        return self.is_suspended and self.annotation(STOPPED) != "yes"

    @property
    def was_resumed(self) -> bool:
        """By somebody else, in the middle of a restart."""
        return not self.is_suspended and bool(self.annotation(STOPPED))

    @property
    def templates(self) -> list[Template]:
        return self.kind.templates(self.object["spec"])

    @property
    def workers(self) -> list[Template]:
        """Of the pods that carry ranks."""
        return [template for template in self.templates if not template.is_manager]

    def checked(self) -> "Workload":
        """The same without its nulls, as its kind has it.

        Raises:
            BadInput: a field that is read is wrong.
        """
        return Workload(self.kind, shapes.checked(self.kind.shape, self.object))

    def annotation(self, key: str) -> str:
        return str(self.metadata.get("annotations", {}).get(key, ""))


def _indexed(spec: Object) -> int:
    return int(spec.get("completions") or spec.get("parallelism") or 1)


def _of_batch_job(spec: Object) -> list[Template]:
    return [Template(spec["template"], _indexed(spec))]


def _of_jobset(spec: Object) -> list[Template]:
    """Those with ranks first."""
    found = []
    for replicated in spec["replicatedJobs"]:
        job = replicated["template"]["spec"]
        each = _indexed(job)
        found.append(Template(job["template"], int(replicated.get("replicas", 1)) * each, replicated["name"], each))
    return sorted(found, key=lambda template: template.is_manager)


def _of_train_job(spec: Object) -> list[Template]:
    """As far as it says something; the rest is its runtime's."""
    trainer = spec.get("trainer", {})
    ranks = {"name": "PET_NPROC_PER_NODE", "value": str(trainer.get("numProcPerNode", ""))}
    container = {
        **{key: trainer[key] for key in ("command", "args") if key in trainer},
        "image": trainer.get("image", "runtime"),
        "env": [*trainer.get("env", ()), ranks],
        "resources": trainer.get("resourcesPerNode", {}),
    }
    return [Template({"spec": {"containers": [container]}}, int(trainer.get("numNodes") or 1))]


def _of_replicas(field: str, *leaders: str) -> Callable[[Object], list[Template]]:
    """Templates by replica type, the leader first: pod ranks are counted in this order."""

    def templates(spec: Object) -> list[Template]:
        replicas: dict[str, Any] = spec.get(field, {})
        order = sorted(replicas, key=lambda name: (name not in leaders, name))
        return [Template(replicas[name]["template"], int(replicas[name].get("replicas", 1)), name.lower()) for name in order]

    return templates


def _of_training_job(spec: Object) -> list[Template]:
    return [Template({}, int(spec["pods"]))]


KUBEFLOW = "training.kubeflow.org/operator-name"
BATCH_UID = ("batch.kubernetes.io/controller-uid", "controller-uid")

TRAINING_JOB = Kind(
    "TrainingJob", "/apis/rekindle.io/v1", "trainingjobs", JOB_ID, _of_training_job, shapes.Job[shapes.TrainingJob]
)
BARE = Kind(
    LOOSE_PODS,
    "/api/v1",
    "pods",
    JOB_ID,
    lambda spec: [Template(spec["template"], int(spec["pods"]))],
    shapes.Job[shapes.Loose],
)
"""Pods that nobody controls, told together by their labels; there is no object but them."""

ASCEND_JOB = Kind(
    "AscendJob",
    "/apis/mindxdl.gitee.com/v1",
    "ascendjobs",
    JOB_NAME,
    _of_replicas("replicaSpecs", "Master", "Scheduler", "Chief"),
    shapes.Job[shapes.AscendJob],
)
BATCH_JOB = Kind(
    "Job",
    "/apis/batch/v1",
    "jobs",
    BATCH_JOB_NAME,
    _of_batch_job,
    shapes.Job[shapes.BatchJob],
    BATCH_UID,
    ("suspend",),
)
JOB_SET = Kind(
    "JobSet",
    "/apis/jobset.x-k8s.io/v1alpha2",
    "jobsets",
    JOBSET_NAME,
    _of_jobset,
    shapes.Job[shapes.JobSet],
    BATCH_UID,
    ("suspend",),
    makes_jobs=True,
)
PYTORCH_JOB = Kind(
    "PyTorchJob",
    "/apis/kubeflow.org/v1",
    "pytorchjobs",
    JOB_NAME,
    _of_replicas("pytorchReplicaSpecs", "Master"),
    shapes.Job[shapes.PyTorchJob],
    (KUBEFLOW,),
    ("runPolicy", "suspend"),
    lets_two_be=True,
)
TRAIN_JOB = Kind(
    "TrainJob",
    "/apis/trainer.kubeflow.org/v1alpha1",
    "trainjobs",
    JOBSET_NAME,
    _of_train_job,
    shapes.Job[shapes.TrainJob],
    BATCH_UID,
    ("suspend",),
    makes_jobs=True,
)

KINDS: Sequence[Kind] = (TRAINING_JOB, ASCEND_JOB, BATCH_JOB, JOB_SET, PYTORCH_JOB, TRAIN_JOB)
"""Kinds that have an object."""

BY_NAME = {kind.name: kind for kind in KINDS}


def rank_of(job: Workload, pod: Object, keys: Sequence[str]) -> str:
    """The pod rank as it is written on the pod; empty: nothing says it.

    Args:
        keys: annotations or labels, the first one that is there decides; behind them the kind's own.
    """
    annotations, labels = pod["metadata"].get("annotations", {}), pod["metadata"].get("labels", {})
    for key in keys:
        if found := annotations.get(key) or labels.get(key):
            return str(found)
    if job.kind is TRAIN_JOB and labels.get(REPLICATED_JOB, NODE) != NODE:
        return ""
    index = str(labels.get(REPLICA_INDEX) or annotations.get(COMPLETION_INDEX) or labels.get(COMPLETION_INDEX) or "")
    if not index.isdecimal() or len(index) > LONGEST_RANK:
        return index
    return str(int(index) + _before(job, labels))


def _before(job: Workload, labels: dict[str, str]) -> int:
    """Ranks of the replica types, or of the JobSet's jobs, that come before the pod's own."""
    type_label = REPLICATED_JOB if job.kind is JOB_SET else REPLICA_TYPE
    number = labels.get(JOBSET_JOB_INDEX, "")
    ranks = 0
    for template in job.workers:
        if template.replica_type == labels.get(type_label, template.replica_type).lower():
            return ranks + (int(number) * template.each if number.isdecimal() and len(number) <= LONGEST_RANK else 0)
        ranks += template.pods
    return 0
