"""Readers of jobs agree: `rekindle check` and the webhook read what the watcher registers."""

from typing import Any

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import KINDS
from activities.clusters.kubernetes.objects import job_object_of
from rekindle.errors import BadInput
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.policy.parameters.checks import findings
from rekindle.policy.parameters.job_file import job_in
from rekindle.policy.parameters.own import registered

CONTAINER = {"name": "main", "image": "none", "command": ["rekindle-train", "train.py"]}


def job(kind: str, spec: Object, **metadata: Any) -> Object:
    api = next(one.api.removeprefix("/apis/") for one in KINDS if one.name == kind)
    written = {"name": "gpt", "namespace": "training", "uid": "1", "labels": {"subHealthyStrategy": "hotSwitch"}, **metadata}
    return {"apiVersion": api, "kind": kind, "metadata": written, "spec": spec}


def pods(**container: Any) -> Object:
    return {"spec": {"restartPolicy": "Never", "containers": [{**CONTAINER, **container}]}}


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
