"""Pods of an AscendJob that the Ascend Operator recreates while the others keep their memory, on a real API server."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import ASCEND_JOB
from activities.clusters.kubernetes.objects import job_object_of
from activities.pods import PodActivities
from rekindle.model import keys
from rekindle.model.activities.recreation import Held, Recreation, RecreationRequest
from rekindle.model.cluster import Pod
from rekindle.model.fault import HOLDER_LENGTH
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from tests.kubernetes.world.worlds import WAIT_LIMIT, WORLDS, World
from tests.support.valid_objects import JOBS

RECOVERS = {keys.SUB_HEALTHY_STRATEGY: "ignore", keys.PROCESS_RECOVER_ENABLE: "on"}


@pytest.fixture
async def world(kubeconfig: Path, tmp_path: Path) -> AsyncIterator[World]:
    async with WORLDS["operator"](kubeconfig, tmp_path) as world:
        yield world


async def made_anew(world: World, job: str, *old: Pod, told: bool, within: float = WAIT_LIMIT) -> Recreation:
    held = tuple(Held(pod_rank=_rank(pod), holder=pod.metadata.uid[:HOLDER_LENGTH], told=told) for pod in old)
    request = RecreationRequest(job_id=job, held=held, lost_nodes=(), within=timedelta(seconds=within))
    made: Recreation = await ActivityEnvironment().run(PodActivities(world.cluster).make_anew, request)
    return made


def _rank(pod: Pod) -> int:
    return int(pod.metadata.annotations[keys.RANK_INDEX])


def uids(made: Recreation) -> list[tuple[Any, ...]]:
    """Returns rank, old UID and new UID of each recreated pod. The old UID is cut to its known first characters, because a pod
    may have been gone before the first look."""
    return [(one.pod_rank, one.before.uid[:HOLDER_LENGTH], one.after.uid) for one in made.moved]


@pytest.mark.parametrize(("said", "limit"), [("30", 30), ("270", 270), ("29", 270), ("271", 270), ("soon", 270), ("", 270)])
def test_the_contracts_word_for_the_time_to_schedule_is_a_limit(said: str, limit: int) -> None:
    """The contract's time to schedule is a limit if it is 30 to 270 s, and ignored otherwise. Our own annotation precedes it."""
    assert _scheduled({keys.WAIT_RESCHEDULE: said}) == timedelta(seconds=limit)
    ours = {keys.WAIT_RESCHEDULE: said, keys.LIMITS: '{"replacementScheduled": 400}'}
    assert _scheduled(ours) == timedelta(seconds=400)


def _scheduled(annotations: dict[str, str]) -> timedelta:
    job = JOBS[ASCEND_JOB]
    written = {**job, "metadata": {**job["metadata"], "annotations": annotations}}
    found = job_object_of(Workload(ASCEND_JOB, written).checked(), observe=False)
    return job_of(found, Limits()).limits.replacement_scheduled


async def test_pods_that_leave_are_followed_by_others_and_nobody_else_is_touched(world: World) -> None:
    """Two pods leave and are replaced, whichever controller deletes them first, and no other pod changes. A repeated call gives
    the same answer."""
    job = await world.job(3, labels={**RECOVERS, "fault-retry-times": "3"})
    first, *old = [await world.holder(job, rank) for rank in range(3)]
    for pod in old:
        await world.kill(job, pod)
    made = await made_anew(world, job, *old, told=True)
    new = [await world.holder(job, rank) for rank in (1, 2)]
    assert uids(made) == [
        (_rank(pod), pod.metadata.uid[:HOLDER_LENGTH], now.metadata.uid) for pod, now in zip(old, new, strict=True)
    ]
    assert not {pod.metadata.uid for pod in old} & {pod.metadata.uid for pod in new}
    again = await made_anew(world, job, *old, told=True)
    assert [one.after.uid for one in again.moved] == [one.after.uid for one in made.moved]
    assert (await world.holder(job, 0)).metadata.uid == first.metadata.uid


async def test_a_pod_that_nobody_tells_to_leave_is_deleted_while_it_runs(world: World) -> None:
    """A pod that receives no request to leave is deleted while it runs: without `fault-retry-times` a failed pod would end the
    job."""
    job = await world.job(2, labels=RECOVERS)
    old = await world.holder(job, 1)
    made = await made_anew(world, job, old, told=False)
    new = await world.holder(job, 1)
    assert uids(made) == [(1, old.metadata.uid[:HOLDER_LENGTH], new.metadata.uid)]
    await world.until_runs(job, new)


async def test_what_is_missing_at_the_deadline_is_said(world: World) -> None:
    """The error names a pod that was asked to leave and did not do so in time."""
    job = await world.job(2, labels={**RECOVERS, "fault-retry-times": "3"})
    old = await world.holder(job, 1)
    made = await made_anew(world, job, old, told=True, within=0.5)
    assert (made.moved, made.missing) == ((), f"pod {old.metadata.name} has not gone")
    assert (await world.holder(job, 1)).metadata.uid == old.metadata.uid
