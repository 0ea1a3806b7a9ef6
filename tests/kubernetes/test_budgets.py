"""A job's disruption budget holds evictions of its ranks back, on a real API server, and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from activities.clusters.api_server import Object
from activities.clusters.port import Evictions
from rekindle.errors import ClusterError
from rekindle.model.cluster import Pod, PodPhase
from rekindle.model.keys import JOB_ID, RANK_INDEX
from tests.fakes.foreign import Setting
from tests.fakes.kubeflow import submit, train_jobs_path, train_spec
from tests.kubernetes.world.worlds import WORLDS, KubernetesWorld
from workers.other_controller import PART_OF


@pytest.fixture(params=["direct, TrainingJob", "direct, Job", "operator"])
async def world(request: pytest.FixtureRequest, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    async with WORLDS[request.param](kubeconfig, tmp_path) as world:
        yield world


async def evicted(world: KubernetesWorld, pod: Pod) -> bool:
    """Returns whether the server accepts an eviction, as `kubectl drain` requests it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.metadata.name}}
    try:
        await world.namespace.api.create(world.namespace.path("pods", f"{pod.metadata.name}/eviction"), body)
    except ClusterError as error:
        if "disruption budget" not in str(error):
            raise
        return False
    return True


async def budgets(world: KubernetesWorld | Setting) -> list[Object]:
    return (await world.namespace.api.list(f"/apis/policy/v1/namespaces/{world.namespace.name}/poddisruptionbudgets")).items


async def counted(world: KubernetesWorld | Setting) -> Object:
    """Returns the status of the only budget as soon as the server has computed it. Until then the status does not concern the
    budget's newest generation."""
    async with asyncio.timeout(60):
        while True:
            (budget,) = await budgets(world)
            status: Object = budget.get("status", {})
            if status.get("observedGeneration") == budget["metadata"]["generation"] and status["currentHealthy"]:
                return status
            await asyncio.sleep(0.05)


async def running(world: KubernetesWorld, job: str, wanted: Callable[[Pod], bool]) -> Pod:
    def found(pods: Any) -> list[Pod]:
        return [pod for pod in pods if wanted(pod) and pod.status.phase is PodPhase.RUNNING]

    return found(await world.until(job, lambda pods: bool(found(pods))))[0]


def evictions(world: KubernetesWorld | Setting) -> Evictions:
    found = world.cluster.evictions
    assert found
    return found


async def test_a_rank_is_not_evicted_while_its_job_holds_the_drain(world: KubernetesWorld) -> None:
    """A budget that is written twice is one, and ends with the job; without it the rank is evicted."""
    job = await world.job(2)
    rank = await running(world, job, lambda pod: RANK_INDEX in pod.metadata.annotations or not world.shows_managers)
    for _ in range(2):
        await evictions(world).ensure_budget(job, holds=True)
    (budget,) = await budgets(world)
    assert [owner["uid"] for owner in budget["metadata"]["ownerReferences"]] == [job]
    assert budget["metadata"]["labels"] == {PART_OF: "rekindle", JOB_ID: job}, "by which docs/kubernetes.md deletes all of ours"
    assert not await evicted(world, rank)
    forged = {"metadata": {"name": "forged", "labels": budget["metadata"]["labels"]}, "spec": {"minAvailable": 7}}
    path = f"/apis/policy/v1/namespaces/{world.namespace.name}/poddisruptionbudgets"
    forged = await world.namespace.api.create(path, forged)
    await world.cluster.job(job)
    assert await evictions(world).budgets() == {job: 2}
    await world.namespace.api.delete(f"{path}/forged", forged["metadata"]["uid"])
    for _ in range(2):
        await evictions(world).ensure_budget(job, holds=False)
    assert not await budgets(world)
    assert await evicted(world, rank)


async def test_the_server_can_count_what_a_budget_holds(kubeconfig: Path, tmp_path: Path) -> None:
    """A budget is counted for running pods of a kind that states no number of pods. A backup that loads beside them allows no
    eviction of a rank."""
    async with WORLDS["direct, TrainingJob"](kubeconfig, tmp_path) as world:
        job = await world.job(2)
        rank = await running(world, job, lambda pod: RANK_INDEX in pod.metadata.annotations)
        await world.until_runs(job, await world.cluster.ensure_backup(rank, "spare", ()))
        await evictions(world).ensure_budget(job, holds=True)
        status = await counted(world)
        assert (status["expectedPods"], status["desiredHealthy"], status["disruptionsAllowed"]) == (2, 2, 0)
        assert not await evicted(world, rank)


async def test_a_pod_without_a_rank_lets_no_rank_go(setting: Setting) -> None:
    """A pod without a rank allows no eviction of a rank: here a TrainJob whose runtime has more pods than those of its nodes."""
    spec = train_spec({"numNodes": 2, "resourcesPerNode": {}}, initializer={"dataset": {}})
    job = await setting.running(await submit(train_jobs_path, setting.namespace, {}, spec), pods=3)
    await evictions(setting).ensure_budget(job, holds=True)
    status = await counted(setting)
    assert (status["expectedPods"], status["desiredHealthy"], status["disruptionsAllowed"]) == (2, 2, 0)


async def test_the_ranks_of_a_marked_trainer_are_held(setting: Setting) -> None:
    """The ranks are held whatever name the runtime of a TrainJob gives to the Job with the ranks."""
    spec = train_spec({"numNodes": 2, "resourcesPerNode": {}}, initializer={"dataset": {}}, runtimeRef={"name": "marked"})
    job = await setting.running(await submit(train_jobs_path, setting.namespace, {}, spec), pods=3)
    await evictions(setting).ensure_budget(job, holds=True)
    status = await counted(setting)
    assert (status["expectedPods"], status["desiredHealthy"], status["disruptionsAllowed"]) == (2, 2, 0)


async def test_a_budget_for_other_pods_is_made_anew(setting: Setting) -> None:
    """A budget that an earlier version has left matches no pod, and is recreated."""
    spec = train_spec({"numNodes": 2, "resourcesPerNode": {}}, runtimeRef={"name": "marked"})
    job = await setting.running(await submit(train_jobs_path, setting.namespace, {}, spec), pods=2)
    await evictions(setting).ensure_budget(job, holds=True)
    (budget,) = await budgets(setting)
    path = f"/apis/policy/v1/namespaces/{setting.namespace.name}/poddisruptionbudgets/{budget['metadata']['name']}"
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": "of-no-pod"}
    await setting.namespace.api.patch(path, {"spec": {"selector": {"matchLabels": labels}}})
    await evictions(setting).ensure_budget(job, holds=True)
    (anew,) = await budgets(setting)
    assert anew["spec"]["selector"] == budget["spec"]["selector"]


async def test_a_budget_follows_a_job_that_grows(kubeconfig: Path, tmp_path: Path) -> None:
    """A budget requires as many pods as the job has ranks now, also after the job has grown."""
    async with WORLDS["direct, Job"](kubeconfig, tmp_path) as world:
        job = await world.job(1)
        await evictions(world).ensure_budget(job, holds=True)
        await world.namespace.api.patch(world.namespace.path("jobs", "demo"), {"spec": {"parallelism": 2, "completions": 2}})
        await evictions(world).ensure_budget(job, holds=True)
        (budget,) = await budgets(world)
        assert budget["spec"]["minAvailable"] == 2


async def test_no_budget_outlives_its_job(kubeconfig: Path, tmp_path: Path) -> None:
    """`kubectl delete --cascade=orphan` leaves the pods and other objects that the job owned. Their budget ends, so that the pods
    can be evicted."""
    async with WORLDS["direct, Job"](kubeconfig, tmp_path) as world:
        api, job = world.namespace.api, await world.job(1)
        await evictions(world).ensure_budget(job, holds=True)
        await api._ask("DELETE", world.namespace.path("jobs", "demo"), {}, {"propagationPolicy": "Orphan"})
        async with asyncio.timeout(60):
            while (await api.list(world.namespace.path("jobs"))).items:
                await asyncio.sleep(0.05)
        assert len(await budgets(world)) == 1
        await evictions(world).ensure_budget(job, holds=False)
        assert not await budgets(world)


async def test_a_manager_holds_no_drain(kubeconfig: Path, tmp_path: Path) -> None:
    """A manager has no rank and is recreated elsewhere, so the budget does not hold its eviction back."""
    async with WORLDS["direct, TrainingJob"](kubeconfig, tmp_path) as world:
        job = await world.job(1, manager=("sleep", "1000"))
        await evictions(world).ensure_budget(job, holds=True)
        assert await evicted(world, await running(world, job, lambda pod: RANK_INDEX not in pod.metadata.annotations))


async def test_the_budget_of_another_is_left_alone(kubeconfig: Path, tmp_path: Path) -> None:
    """A foreign budget is left alone also if it has the name that ours would have."""
    async with WORLDS["direct, TrainingJob"](kubeconfig, tmp_path) as world:
        job = await world.job(1)
        await evictions(world).ensure_budget(job, holds=True)
        (budget,) = await budgets(world)
        path = f"/apis/policy/v1/namespaces/{world.namespace.name}/poddisruptionbudgets"
        await world.namespace.api.patch(f"{path}/{budget['metadata']['name']}", {"metadata": {"ownerReferences": None}})
        for holds in (True, False):
            await evictions(world).ensure_budget(job, holds=holds)
        assert len(await budgets(world)) == 1
