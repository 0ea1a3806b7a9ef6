"""Readers of jobs agree: `rekindle check` and the webhook read what the watcher registers."""

from typing import Any

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Kind, Workload
from activities.clusters.kubernetes.kinds import KINDS
from activities.clusters.kubernetes.objects import job_object_of
from rekindle.errors import BadInput
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.policy.parameters.checks import findings
from rekindle.policy.parameters.job_file import job_in
from rekindle.policy.parameters.kinds.table import KINDS as FILES
from rekindle.policy.parameters.own import modes, registered
from rekindle.policy.parameters.pods import NOT_SERVED

CONTAINER = {"name": "main", "image": "none", "command": ["rekindle-train", "train.py"]}


def job(kind: str, spec: Object, **metadata: Any) -> Object:
    api = next(one.api.removeprefix("/apis/") for one in KINDS if one.name == kind)
    written = {"name": "gpt", "namespace": "training", "uid": "1", "labels": {"subHealthyStrategy": "hotSwitch"}, **metadata}
    return {"apiVersion": api, "kind": kind, "metadata": written, "spec": spec}


def pods(**container: Any) -> Object:
    return {"spec": {"restartPolicy": "Never", "containers": [{**CONTAINER, **container}]}}


def of_replicas(**groups: Any) -> Object:
    """Returns the spec of a PyTorchJob with these replicas, each with the number of accelerators of its pods."""
    return {
        "pytorchReplicaSpecs": {
            name: {"replicas": replicas, "template": pods(resources={"limits": {"gpu.intel.com/i915": str(devices)}})}
            for name, (replicas, devices) in groups.items()
        }
    }


def set_of(*jobs: Object, **metadata: Any) -> Object:
    of = [{"name": f"j{number}", "replicas": 1, "template": {"spec": spec, **metadata}} for number, spec in enumerate(jobs)]
    return {"replicatedJobs": of}


MANAGER = {**pods(), "metadata": {"labels": {"training.kubeflow.org/replica-type": "manager"}}}
QUEUED = {"labels": {"subHealthyStrategy": "hotSwitch", "kueue.x-k8s.io/queue-name": "research"}}
EXCLUSIVE = {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}}
GATED = {"spec": {**pods()["spec"], "schedulingGates": [{"name": "example.com/later"}]}}


def of_job(**spec: Any) -> Object:
    return {"completionMode": "Indexed", "template": pods(), **spec}


JOBS = {
    "completions": job("Job", of_job(completions=4)),
    "some at once": job("Job", of_job(completions=4, parallelism=2)),
    "parallelism": job("Job", of_job(parallelism=3)),
    "a set": job("JobSet", {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": of_job(completions=4)}}]}),
    "ranks by a variable": job("Job", of_job(completions=2, template=pods(env=[{"name": "NPROC_PER_NODE", "value": "8"}]))),
    "ranks by accelerators": job("Job", of_job(completions=2, template=pods(resources={"limits": {"nvidia.com/gpu": "4"}}))),
    "a trainer": job("TrainJob", {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 4, "numProcPerNode": 8}}),
    "a set with its manager": job(
        "JobSet",
        set_of({**of_job(completions=1), "template": MANAGER}, of_job(completions=4)),
        annotations={"rekindle.io/elastic": "1; pods=2"},
    ),
    "a leader of its own size": job("PyTorchJob", of_replicas(Worker=(3, 8), Master=(1, 2))),
    "a queue": job("Job", of_job(completions=2), **QUEUED),
    "another controller": job("JobSet", {"managedBy": "kueue.x-k8s.io/multikueue", **set_of(of_job(completions=2))}),
    "its own controller": job("Job", of_job(completions=2, managedBy="kubernetes.io/job-controller")),
    "a gate": job("Job", of_job(completions=2, template=GATED)),
    "placed exclusively": job("JobSet", set_of(of_job(completions=2)), **EXCLUSIVE),
    "a Job placed exclusively": job("JobSet", set_of(of_job(completions=2), metadata=EXCLUSIVE)),
    "more than one replica": job("Job", of_job(completions=4), annotations={"rekindle.io/elastic": "3"}),
}


@pytest.mark.parametrize("document", JOBS.values(), ids=JOBS)
def test_a_job_has_the_same_pods_and_ranks(document: Object) -> None:
    """A size that the cluster accepts is not refused before."""
    kind = next(one for one in KINDS if one.name == document["kind"])
    there = job_of(job_object_of(Workload(kind, document), observe=False), Limits())
    read = job_in(document, Limits())
    assert read is not None
    here = registered(read)
    assert (here.pods, here.ranks_per_pod, here.elastic) == (there.pods, there.ranks_per_pod, there.elastic)
    assert (here.queue, here.unmovable) == (there.queue, there.unmovable)


@pytest.mark.parametrize("kind", KINDS, ids=[one.name for one in KINDS])
def test_a_kind_has_the_same_controller_and_queue(kind: Kind) -> None:
    """Both tables say who decides when the pods of a job run."""
    row = FILES[kind.name]
    assert (row.own_manager, row.is_queued, row.is_served) == (kind.own_manager, kind.is_queued, True)


def test_a_kind_that_nobody_registers_is_named() -> None:
    """No mode is possible for a job that Rekindle does not serve, whatever its labels ask for."""
    assert {name for name, row in FILES.items() if not row.is_served} == FILES.keys() - {one.name for one in KINDS}
    document = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "gpt"}}
    read = job_in({**document, "spec": {"tasks": [{"name": "w", "replicas": 2, "template": pods()}]}}, Limits())
    assert read is not None
    assert [one.message for one in findings(read) if one.field == "kind"] == [NOT_SERVED]
    assert {one.against for one in modes(read)} == {(NOT_SERVED,)}


def test_a_name_that_fits_into_no_label_is_found() -> None:
    """The cluster refuses such a job, too."""
    document = job("Job", of_job(completions=2), name="a" * 64)
    read = job_in(document, Limits())
    assert read is not None
    assert "metadata.name" in {one.field for one in findings(read)}
    with pytest.raises(BadInput, match="64 characters are too many"):
        job_object_of(Workload(next(one for one in KINDS if one.name == "Job"), document), observe=False)


def test_a_job_whose_pods_have_no_index_is_warned_about() -> None:
    """Pods of a Job without an index have no rank, so that none of them would be recovered."""
    read = job_in(job("Job", {"completions": 2, "parallelism": 2, "template": pods()}), Limits())
    assert read is not None
    assert [one.message for one in findings(read) if one.field == "spec.completionMode"] == [
        "its pods have no index, which would be their rank (needed: Indexed)"
    ]
