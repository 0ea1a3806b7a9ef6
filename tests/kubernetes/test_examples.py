"""The manifests of `examples/kubernetes` as they stand: admitted, and read as jobs of two pods with two ranks each."""

import pytest

from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import KINDS
from activities.clusters.kubernetes.objects import is_managed, job_object_of
from rekindle.model.training_side import TrainingSide
from tests.fakes.controller import apply_crds
from tests.fakes.kubeflow import refused_pytorch_job, refused_train_job
from tests.kubernetes.world.control_plane import Namespace
from tests.kubernetes.world.examples import FOLDER, documents, plural_of

WRITTEN = ("Job", "JobSet", "PyTorchJob", "TrainJob", "AscendJob")


def test_every_foreign_kind_has_a_manifest() -> None:
    """A kind is supported when a user can copy what works."""
    foreign = {kind.name for kind in KINDS if kind.has_object and not kind.is_ours}
    assert foreign == set(WRITTEN) == {documents(file.stem)[-1]["kind"] for file in FOLDER.glob("*.yaml")}


@pytest.mark.parametrize("name", WRITTEN)
async def test_a_manifest_is_admitted_and_read(name: str, namespace: Namespace) -> None:
    """Each object by the API server, by dry run; the job by us, without its manager."""
    await apply_crds(namespace.api)
    found = documents(name)
    admitted = [await namespace.api.create(namespace.path(plural_of(one)), one, dry_run=True) for one in found]
    (kind,) = (one for one in KINDS if one.name == name)
    job = Workload(kind, admitted[-1])
    read = job_object_of(job, observe=False)
    assert is_managed(job)
    assert (read.spec.pods, read.spec.ranks_per_pod, read.spec.training_side) == (2, 2, TrainingSide.REKINDLE)
    assert read.refilled  # its controller makes another pod for one that leaves, so that a smaller size frees no node


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"Chief": {}}, "must be Master or Worker"),
        ({"Master": {"replicas": 2, "template": {"spec": {"containers": []}}}}, "replicas: must be 1"),
        ({"Worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "x", "image": "y"}]}}}}, "with name pytorch"),
        ({"Worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch"}]}}}}, "must be required"),
    ],
)
def test_the_played_training_operator_is_as_strict(change: dict[str, object], problem: str) -> None:
    """A manifest that its webhook refuses would pass for supported otherwise."""
    assert refused_pytorch_job(documents("PyTorchJob")[-1]) == ""
    assert problem in refused_pytorch_job({"spec": {"pytorchReplicaSpecs": change}})


def test_the_played_trainer_is_as_strict() -> None:
    """The variables that it writes itself may not be set by others."""
    assert refused_train_job(documents("TrainJob")[-1]) == ""
    said = {"env": [{"name": "PET_MASTER_ADDR", "value": "gpt-manager"}]}
    assert "must not have reserved envs" in refused_train_job({"spec": {"trainer": said}})
    assert "must have an int value" in refused_train_job({"spec": {"trainer": {"numProcPerNode": "many"}}})
