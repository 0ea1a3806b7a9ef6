"""The table of kinds of jobs: where their pod templates are, and which components take part."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rekindle.model.job import Trait
from rekindle.model.training_side import TrainingSide
from rekindle.policy.parameters.reading import Document, mapping, number_of, sequence

Steps = tuple[str | int, ...]
"""Keys and numbers of items that lead to a value of a document."""

Groups = Iterator[tuple[Steps, str, object, object]]


@dataclass(frozen=True)
class KindRow:
    """Kind of a job, as far as its file is concerned."""

    api: str
    templates: Callable[[Document], Groups]
    """Yields steps, type, replicas and pod template of each group of pods."""
    side: TrainingSide = TrainingSide.REKINDLE
    traits: tuple[Trait, ...] = ()
    of_mindcluster: bool = False
    """True if Volcano reads the job's parameters."""
    of_operator: bool = False
    """True if the Ascend Operator creates its pods."""
    is_ours: bool = False
    """True if Rekindle creates its pods."""
    maps_variables: bool = False
    """True if its environment variables are a mapping of names to values."""
    is_served: bool = True
    """True if Rekindle registers its jobs."""
    own_manager: str = ""
    """Value of `managedBy` that means the same as its absence."""
    is_queued: bool = True
    """True if Kueue manages its jobs."""
    has_runtime: bool = False
    """True if another object, the runtime, specifies ports, mounts, restarts and the usual number of pods."""
    places_jobs: bool = False
    """True if an annotation may place each of its Jobs exclusively."""


def _of_replicas(field: str, *leaders: str) -> Callable[[Document], Groups]:
    """Args:
    leaders: types whose pods have the first ranks.
    """

    def templates(spec: Document) -> Groups:
        groups = mapping(spec.get(field))
        for role in sorted(groups, key=lambda role: (role not in leaders, str(role))):
            of = mapping(groups[role])
            yield ("spec", field, str(role), "template"), str(role), of.get("replicas", 1), of.get("template")

    return templates


def _of_tasks(spec: Document) -> Groups:
    for number, task in enumerate(sequence(spec.get("tasks"))):
        of = mapping(task)
        yield ("spec", "tasks", number, "template"), str(of.get("name", "")), of.get("replicas", 1), of.get("template")


def _pods_of(spec: Document) -> object:
    """Returns the number of pods of a Job: that of its indexes, of which some may run later."""
    return spec.get("completions") or spec.get("parallelism") or 1


def _of_job(spec: Document) -> Groups:
    yield ("spec", "template"), "", _pods_of(spec), spec.get("template")


def _of_job_set(spec: Document) -> Groups:
    for number, one in enumerate(sequence(spec.get("replicatedJobs"))):
        of = mapping(one)
        job = mapping(mapping(of.get("template")).get("spec"))
        pods = number_of(of.get("replicas", 1)) * number_of(_pods_of(job))
        steps = ("spec", "replicatedJobs", number, "template", "spec", "template")
        yield steps, str(of.get("name", "")), pods, job.get("template")


def _of_trainer(spec: Document) -> Groups:
    trainer = mapping(spec.get("trainer"))
    container = {key: trainer[key] for key in ("image", "command", "args", "env") if key in trainer}
    if isinstance(processes := trainer.get("numProcPerNode"), int):
        container["env"] = [*sequence(trainer.get("env")), {"name": "PET_NPROC_PER_NODE", "value": str(processes)}]
    body = {"spec": {"containers": [{"name": "node", **container}]}}
    yield ("spec", "trainer"), "node", trainer.get("numNodes") or 1, body


def _of_training_job(spec: Document) -> Groups:
    kubernetes = mapping(spec.get("kubernetes"))
    variables = [{"name": name, "value": value} for name, value in mapping(spec.get("env")).items()]
    container = {
        **mapping(kubernetes.get("container")),
        "name": "training",
        "command": spec.get("command"),
        "env": [*sequence(mapping(kubernetes.get("container")).get("env")), *variables],
    }
    pods = {**mapping(kubernetes.get("pod")), "containers": [container]}
    yield ("spec",), "", spec.get("pods", 1), {"spec": pods}


_ASCEND = (Trait.CONTROLLER_RECREATES, Trait.NO_STANDBYS, Trait.CONTRACT_WORDS)
KINDS = {
    "TrainingJob": KindRow("rekindle.io/v1", _of_training_job, is_ours=True, maps_variables=True, is_queued=False),
    "AscendJob": KindRow(
        "mindxdl.gitee.com/v1",
        _of_replicas("replicaSpecs", "Master", "Scheduler", "Chief"),
        side=TrainingSide.MINDIO,
        traits=_ASCEND,
        of_mindcluster=True,
        of_operator=True,
        is_queued=False,
    ),
    "VolcanoJob": KindRow("batch.volcano.sh/v1alpha1", _of_tasks, side=TrainingSide.MINDIO, of_mindcluster=True, is_served=False),
    "Job": KindRow("batch/v1", _of_job, own_manager="kubernetes.io/job-controller"),
    "JobSet": KindRow(
        "jobset.x-k8s.io/v1alpha2", _of_job_set, own_manager="jobset.sigs.k8s.io/jobset-controller", places_jobs=True
    ),
    "PyTorchJob": KindRow(
        "kubeflow.org/v1", _of_replicas("pytorchReplicaSpecs", "Master"), own_manager="kubeflow.org/training-operator"
    ),
    "TrainJob": KindRow(
        "trainer.kubeflow.org/v1alpha1", _of_trainer, own_manager="trainer.kubeflow.org/trainjob-controller", has_runtime=True
    ),
}
"""Kinds of jobs. That of Volcano is called `Job` as well, and is told by its API."""
