"""An installation chooses the labels that name a job's pods and their ranks."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from activities.clusters.api_server import Api
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import PYTORCH_JOB
from activities.clusters.port import Snapshot
from rekindle.model import keys
from rekindle.model.cluster import PodPhase
from rekindle.settings import Settings
from tests.fakes.controller import apply_crds
from tests.fakes.kubeflow import submit_pytorch_job
from tests.kubernetes.world.control_plane import Namespace
from tests.kubernetes.world.worlds import rank_of
from tests.support.cluster import FOREVER

JOB_KEY, RANK_KEY = "example.com/job", "example.com/rank"


@pytest.fixture
async def job(namespace: Namespace) -> Workload:
    """A PyTorchJob whose controller writes labels of its own, on two pods."""
    await apply_crds(namespace.api)
    job = Workload(PYTORCH_JOB, await submit_pytorch_job(namespace, {"labels": {keys.MANAGED: "true"}}))
    for rank in ("1", "0"):
        metadata = {
            "name": f"of-rank-{rank}",
            "labels": {JOB_KEY: job.name},
            "annotations": {RANK_KEY: rank},
            "ownerReferences": [{**job.reference, "controller": True}],
        }
        container = {"name": "main", "image": "none", "command": list(FOREVER)}
        body = {"metadata": metadata, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
        await namespace.api.create(namespace.path("pods"), body)
    return job


@pytest.fixture
async def cluster(kubeconfig: Path, namespace: Namespace) -> AsyncIterator[KubernetesCluster]:
    settings = Settings(
        cluster="kubernetes", namespaces=(namespace.name,), job_keys={"PyTorchJob": JOB_KEY}, rank_keys=(RANK_KEY,)
    )
    cluster = KubernetesCluster(Api(kubeconfig), settings)
    yield cluster
    await cluster.close()


async def test_pods_are_found_by_the_installations_labels(cluster: KubernetesCluster, job: Workload) -> None:
    """Pods are found by a list, by the watch and by `follow`, each with the rank that its label carries."""
    names = {"0": "of-rank-0", "1": "of-rank-1"}
    assert {rank_of(pod): pod.metadata.name for pod in await cluster.pods(job.uid)} == names
    async with aclosing(cluster.watch()) as news:
        first = await anext(news)
    assert isinstance(first, Snapshot)
    assert {rank_of(pod): pod.metadata.name for pod in first.pods} == names
    async with aclosing(cluster.follow(job.uid)) as states:
        async for pods in states:
            if {pod.status.phase for pod in pods} == {PodPhase.RUNNING}:
                break


async def test_a_backup_pod_takes_the_rank_that_the_old_pod_carries(cluster: KubernetesCluster, job: Workload) -> None:
    """A backup pod belongs to the job by the same label as the old pod."""
    old = next(pod for pod in await cluster.pods(job.uid) if rank_of(pod) == "1")
    backup = await cluster.ensure_backup(old, "backup", ())
    assert rank_of(backup) == "1"
    assert backup.metadata.labels[JOB_KEY] == job.name
    assert backup.metadata.uid in {pod.metadata.uid for pod in await cluster.pods(job.uid)}
