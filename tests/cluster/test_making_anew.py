"""Pods that other controllers recreate: which one is deleted when, which one is its successor, and how missing ones are
reported."""

import asyncio
from datetime import timedelta

import pytest

from activities.pod_recreation import MakingAnew
from rekindle.model.activities.recreation import Held, Recreation, RecreationRequest
from rekindle.model.cluster import Pod
from rekindle.model.fault import HOLDER_LENGTH
from tests.fakes.scripted_cluster import TheirCluster
from tests.support.harness import a_mindio_job


@pytest.fixture
def cluster() -> TheirCluster:
    return TheirCluster(a_mindio_job(pods=3), nodes=6)


async def made(
    cluster: TheirCluster, *old: Pod, told: bool = True, lost_nodes: tuple[str, ...] = (), within: float = 20
) -> Recreation:
    job = cluster.job_model
    held = tuple(Held(pod_rank=_rank(pod), holder=pod.metadata.uid[:HOLDER_LENGTH], told=told) for pod in old)
    request = RecreationRequest(job_id=job.id, held=held, lost_nodes=lost_nodes, within=timedelta(seconds=within))
    return await MakingAnew(cluster, request).run(request.within)


def _rank(pod: Pod) -> int:
    return int(pod.metadata.annotations["hccl/rankIndex"])


async def test_a_pod_that_has_ended_is_left_to_its_scheduler_first(cluster: TheirCluster) -> None:
    """A pod that has ended is left to its scheduler first, which deletes it in time. No other deletion happens."""
    old = cluster.fail(cluster.holder(1).metadata.name)
    waiting = asyncio.create_task(made(cluster, old))
    while not cluster.followers:
        await asyncio.sleep(0)  # until it is looked at
    await cluster.ensure_deleted(cluster.job_model.id, old.metadata.name, old.metadata.uid, 0)
    (moved,) = (await waiting).moved
    assert (moved.before.uid, moved.after.uid) == (old.metadata.uid, cluster.holder(1).metadata.uid)
    assert cluster.writes == [f"kill {old.metadata.name}"]


async def test_a_pod_of_a_rank_that_nobody_held_is_taken_and_none_is_deleted(cluster: TheirCluster) -> None:
    """A missing replica has no holder, so that no pod that lives has to leave for another one."""
    job, here = cluster.job_model, cluster.holder(1)
    request = RecreationRequest(
        job_id=job.id, held=(Held(pod_rank=1, holder="", told=False),), lost_nodes=(), within=timedelta(seconds=20)
    )
    found = await MakingAnew(cluster, request).run(request.within)
    assert [(one.before.uid, one.after.uid) for one in found.moved] == [("", here.metadata.uid)]
    assert cluster.writes == []


async def test_a_pod_that_was_told_to_leave_has_its_time(cluster: TheirCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exit that is under way would end the next pod. After its time the pod is deleted all the same."""
    old = cluster.holder(1)
    assert (await made(cluster, old, within=0.1)).missing == f"pod {old.metadata.name} has not gone"
    assert cluster.writes == []
    monkeypatch.setattr(MakingAnew, "LEAVES", 0.1)
    assert not (await made(cluster, old)).missing
    assert cluster.writes == [f"kill {old.metadata.name}"]


@pytest.mark.parametrize(("told", "lost_nodes"), [(False, ()), (True, ("node-1",))], ids=["not told", "on a lost node"])
async def test_a_pod_that_will_not_leave_by_itself_goes_at_once(
    cluster: TheirCluster, told: bool, lost_nodes: tuple[str, ...]
) -> None:
    """A pod that received no request to leave, or whose node is lost, is deleted at once."""
    old = cluster.holder(1)
    cluster.node_names.remove("node-1")
    (moved,) = (await made(cluster, old, told=told, lost_nodes=lost_nodes, within=5)).moved
    assert moved.before.uid == old.metadata.uid


async def test_a_pod_that_came_before_anybody_looked_is_the_next_one(cluster: TheirCluster) -> None:
    """A pod that its scheduler created before the first look is the successor. Nothing is deleted, and the old pod is known by
    its short UID."""
    old = cluster.holder(1)
    await cluster.ensure_deleted(cluster.job_model.id, old.metadata.name, old.metadata.uid, 0)
    before = list(cluster.writes)
    (moved,) = (await made(cluster, old)).moved
    assert (moved.before.uid, moved.after.uid) == (old.metadata.uid[:HOLDER_LENGTH], cluster.holder(1).metadata.uid)
    assert cluster.writes == before


async def test_a_new_pod_that_fails_goes_like_an_old_one(cluster: TheirCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new pod that fails is deleted like an old one, until one lives."""
    monkeypatch.setattr(MakingAnew, "DELETED_BY_OTHERS", 0.0)
    old = cluster.holder(1)
    await cluster.ensure_deleted(cluster.job_model.id, old.metadata.name, old.metadata.uid, 0)
    failed = cluster.fail(cluster.holder(1).metadata.name)
    (moved,) = (await made(cluster, old)).moved
    assert moved.after.uid not in (old.metadata.uid, failed.metadata.uid)


async def test_all_of_them_are_awaited_and_each_that_is_missing_is_named(cluster: TheirCluster) -> None:
    """One pod is recreated, one finds no node."""
    cluster.late.add(2)
    old = [cluster.holder(1), cluster.holder(2)]
    found = await made(cluster, *old, told=False, within=0.5)
    assert [one.pod_rank for one in found.moved] == [1]
    assert found.missing == f"pod {old[1].metadata.name} has no node"


async def test_a_pod_that_nobody_makes_is_said(cluster: TheirCluster) -> None:
    """A pod that its controller does not create is reported as missing."""
    old = cluster.holder(1)
    del cluster.pods_by_name[old.metadata.name]
    assert (await made(cluster, old, within=0.1)).missing == "nobody has recreated the pod of pod rank 1"
