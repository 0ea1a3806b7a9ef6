"""Bodies of the local cluster's HTTP API are read as they arrive, and applied in a cluster without nodes, where nothing
starts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rekindle.model.cluster import ClusterEvent, GenerationRequest, JobObject, MetadataPatch, NodePatch, Pod
from simulators.local_cluster.environment import environment_of, log_of
from simulators.local_cluster.http import read
from simulators.local_cluster.jobs import Jobs
from simulators.local_cluster.options import Options
from simulators.local_cluster.pods import Pods
from simulators.local_cluster.scheduling import place
from simulators.local_cluster.store import Store
from tests.fuzz.broken import broken, fuzzed, reads

JOB: dict[str, Any] = {
    "kind": "LocalJob",
    "metadata": {"name": "job", "namespace": "default", "labels": {"subHealthyStrategy": "ignore"}, "annotations": {"a": "b"}},
    "spec": {
        "pods": 2,
        "ranksPerPod": 2,
        "template": {"command": ["train"], "env": {"A": "b"}, "accelerators": 1},
        "manager": {"command": ["manage"], "env": {}, "accelerators": 0},
        "trainingSide": "rekindle",
        "limits": {"pause": 60},
    },
}
POD: dict[str, Any] = {
    "metadata": {
        "name": "spare",
        "ownerUid": "of the job",
        "labels": {"training.kubeflow.org/replica-type": "worker", "rekindle.io/generation": "0"},
        "annotations": {"hccl/rankIndex": "0", "podType": "backup"},
    },
    "spec": {
        "command": ["train"],
        "env": {"A": "b"},
        "accelerators": 1,
        "avoidNodes": ["node-0"],
        "terminationGracePeriodSeconds": 10,
    },
}
BODIES: dict[type[BaseModel], dict[str, Any]] = {
    JobObject: JOB,
    Pod: POD,
    MetadataPatch: {"metadata": {"labels": {"a": "b", "c": None}, "annotations": {"d": "e"}}},
    NodePatch: {
        "accelerators": 4,
        "conditions": [{"type": "SubHealthy", "status": "True", "reason": "slow", "message": "it is"}],
    },
    GenerationRequest: {"generation": "1", "avoidNodes": ["node-0"]},
    ClusterEvent: {"name": "job", "kind": "LocalJob", "reason": "Why", "message": "what", "timestamp": "2026-01-02T03:04:05Z"},
}


class Cluster:
    """A cluster that does not run and has no nodes."""

    def __init__(self, directory: Path) -> None:
        self.options = Options(directory / "socket", directory, 0, 0, "127.0.0.1", 8899)
        self.directory = directory
        self.store = Store(lambda: None)
        self.pods = Pods(self.store, self.options, "none")
        self.jobs = Jobs(self.store, self.pods, self.options)

    def submit(self, body: dict[str, Any]) -> JobObject:
        return self.jobs.submit(read(json.dumps(body).encode(), JobObject))

    def create(self, body: dict[str, Any]) -> None:
        pod = self.pods.create(read(json.dumps(body).encode(), Pod))
        job = self.store.job(pod.metadata.owner_uid)
        place(pod, job, self.store.nodes.values(), self.store.pods.values())
        environment_of(pod, job, self.options, {})
        assert self.directory in log_of(pod, job).resolve().parents
        self.pods.delete(pod.metadata.name, pod.metadata.uid, None)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("cluster"))


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@fuzzed
def test_a_broken_body_is_refused_by_its_fields(kind: type[BaseModel], data: st.DataObject) -> None:
    """Errors of any sort in any field are refused."""
    content = json.dumps(data.draw(broken(BODIES[kind]))).encode()
    reads(lambda: read(content, kind))


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@given(content=st.binary(max_size=100))
@fuzzed
def test_a_body_of_any_bytes_is_refused(kind: type[BaseModel], content: bytes) -> None:
    """A body of any bytes, which is hardly JSON, is refused."""
    reads(lambda: read(content, kind))


@given(body=broken(JOB))
@fuzzed
def test_a_broken_job_is_not_begun(cluster: Cluster, body: Any) -> None:
    """A submitted job writes only into the cluster's own directory, and has no more pods than a job may have. A broken one does
    not begin."""

    def submit() -> JobObject:
        job = cluster.submit(body)
        assert cluster.directory / "jobs" in Path(job.status.directory).parents
        assert Path(job.status.directory).resolve().parent == cluster.directory / "jobs"
        for pod in cluster.store.pods_of(job.metadata.uid):
            assert log_of(pod, job).resolve().parent.parent == Path(job.status.directory)
        cluster.jobs.delete(job.metadata.uid, 0)
        cluster.jobs.reconcile(cluster.store.job(job.metadata.uid))
        return job

    reads(submit)
    assert not cluster.store.jobs


@given(body=broken(POD))
@fuzzed
def test_a_broken_pod_is_not_created(cluster: Cluster, body: Any) -> None:
    """A broken pod is refused. A created one can be scheduled, started and deleted like any other."""
    job = cluster.submit({**JOB, "metadata": {"name": "holder"}})
    if isinstance(body, dict) and isinstance(metadata := body.get("metadata"), dict) and "ownerUid" in metadata:
        metadata["ownerUid"] = job.metadata.uid
    try:
        reads(lambda: cluster.create(body))
    finally:
        cluster.jobs.delete(job.metadata.uid, 0)
        cluster.jobs.reconcile(cluster.store.job(job.metadata.uid))
