"""TrainJob of Kubeflow's trainer, which creates a JobSet from a runtime."""

from dataclasses import replace

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.kind import Kind, Template
from activities.clusters.kubernetes.kinds.batch_job import BATCH_JOB
from activities.clusters.kubernetes.kinds.job_set import COUNT, INDEXING_OF_JOBS, JOBSET_NAME, RESTART_OF_JOBS
from activities.clusters.kubernetes.objects import foreign

NODE = "node"
"""Usual name of the replicated job whose pods carry ranks; the others prepare data for it."""

STEP_OF_TRAINER = ("trainer.kubeflow.org/trainjob-ancestor-step", "trainer")
"""Label by which a runtime marks the replicated job with ranks, whatever its name is. JobSet copies it to the Job."""


def _templates(spec: Object) -> list[Template]:
    """Returns the template of the trainer, as far as the TrainJob specifies it. Its runtime defines the rest."""
    trainer = spec.get("trainer", {})
    ranks = {"name": "PET_NPROC_PER_NODE", "value": str(trainer.get("numProcPerNode", ""))}
    container = {
        **{key: trainer[key] for key in ("command", "args") if key in trainer},
        "image": trainer.get("image", "runtime"),
        "env": [*trainer.get("env", ()), ranks],
        "resources": trainer.get("resourcesPerNode", {}),
    }
    return [Template({"spec": {"containers": [container]}}, int(trainer.get("numNodes") or 1), NODE)]


TRAIN_JOB = Kind(
    name="TrainJob",
    api="/apis/trainer.kubeflow.org/v1alpha1",
    plural="trainjobs",
    pod_label=JOBSET_NAME,
    shape=schemas.Job[schemas.TrainJob],
    templates=_templates,
    read=foreign,
    restart=RESTART_OF_JOBS,
    count=COUNT,
    indexing=replace(INDEXING_OF_JOBS, carries_ranks=NODE, mark=STEP_OF_TRAINER),
    made_of=BATCH_JOB,
    own_manager="trainer.kubeflow.org/trainjob-controller",
)
