"""The lost pod of a rank is replaced by the same hand-over as in a hot switch, on every kind of cluster. A driver is a row of
`WORLDS`; API server, scheduler and activities are real."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.pods import PodActivities
from rekindle.errors import Invalid
from rekindle.model import keys
from rekindle.model.activities.pods import BackupRequest, PodsRequest, Replacement, Scheduled, StopRequest, Swap, SwapRequest
from rekindle.model.cluster import Pod, PodPhase
from rekindle.model.situation import PodRef
from tests.kubernetes.world.worlds import NODES, WORLDS, IndexedJob, KubernetesWorld, Operated, World, rank_of

SAME_DRIVER = pytest.mark.same_path(over="world")
RECOVERS = {keys.SUB_HEALTHY_STRATEGY: "hotSwitch", keys.PROCESS_RECOVER_ENABLE: "on"}
"""Labels with which Volcano ends only the lost pod."""

WAIT_LIMIT = 60.0


def all_but(*names: str) -> list[Any]:
    return [pytest.param(name, marks=marks_of(name)) for name in WORLDS if name not in names]


def marks_of(world: str) -> Any:
    """Marks the row of a Job, whose controller creates pods; the other kinds behave alike."""
    return SAME_DRIVER if world in ("direct, TrainingJob", "direct, pods") else ()


@pytest.fixture(params=all_but())
async def world(request: pytest.FixtureRequest, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[World]:
    async with WORLDS[request.param](kubeconfig, tmp_path) as world:
        yield world


class Recovery:
    """The pod activities of a recovery, each run as Temporal runs it."""

    def __init__(self, world: World, job: str) -> None:
        self._world, self._job, self._pods = world, job, PodActivities(world.cluster)

    async def replace(self, rank: int, *avoid: str) -> Replacement:
        """Runs the activity twice, as if its first answer had been lost."""
        request = BackupRequest(job_id=self._job, pod_rank=rank, name_suffix="0001", avoid_nodes=avoid)
        first: Replacement = await run(self._pods.ensure_replacement, request)
        again: Replacement = await run(self._pods.ensure_replacement, request)
        assert first.backup.uid == again.backup.uid
        return first

    async def scheduled(self, made: Replacement, seconds: float = WAIT_LIMIT) -> Scheduled:
        found: Scheduled = await run(self._pods.await_scheduled, self._wait(made.backup, seconds))
        return found

    async def take_over(self, made: Replacement) -> Pod:
        """Returns the pod that then holds the rank."""
        assert (await run(self._pods.await_running, self._wait(made.backup))).running
        swap = SwapRequest(job_id=self._job, old=made.old, backup=made.backup)
        for _ in range(2):
            swapped: Swap = await run(self._pods.swap, swap)
            assert swapped.old_deleted
        if made.old:
            assert await run(self._pods.await_gone, self._wait(made.old)) == ()
        for _ in range(2):
            await run(self._pods.promote, swap)
        return await self._world.cluster.pod(self._job, made.backup.name, made.backup.uid)

    async def undo(self) -> None:
        request = StopRequest(job_id=self._job, grace_seconds=0)
        gone: tuple[PodRef, ...] = await run(self._pods.delete_backups, request)
        left = {pod.uid for pod in gone}
        await self._world.until(self._job, lambda pods: not left & {pod.metadata.uid for pod in pods})
        assert await run(self._pods.delete_backups, request) == ()

    def _wait(self, pod: PodRef, seconds: float = WAIT_LIMIT) -> PodsRequest:
        return PodsRequest(job_id=self._job, pods=(pod,), within=timedelta(seconds=seconds))


async def run(activity: Callable[[Any], Awaitable[Any]], request: object) -> Any:
    """Runs an activity, and retries it where a controller is a moment late."""
    async with asyncio.timeout(WAIT_LIMIT):
        while True:
            try:
                return await ActivityEnvironment().run(activity, request)
            except ApplicationError as error:
                if error.non_retryable:
                    raise
                await asyncio.sleep(0.1)  # as Temporal does


async def each_rank_once(world: World, job: str, count: int) -> None:
    """Waits until each rank of the job has exactly one pod, which runs and has no mark."""

    def once(pods: Any) -> bool:
        own = [pod for pod in pods if int(rank_of(pod) or count) < count]
        alone = Counter(rank_of(pod) for pod in own) == Counter(str(rank) for rank in range(count))
        return alone and all(
            pod.status.phase is PodPhase.RUNNING and keys.POD_TYPE not in pod.metadata.annotations for pod in own
        )

    await world.until(job, once)


async def test_a_rank_whose_pod_failed_is_taken_over(world: World) -> None:
    """A failed pod's rank is taken over by one pod, on a node that is not to be avoided. This holds also where the job's
    controller creates pods by itself."""
    job = await world.job(2, labels={**RECOVERS, "fault-retry-times": "3"})
    old = await world.holder(job, 1)
    await world.kill(job, old)
    recovery = Recovery(world, job)
    made = await recovery.replace(1, NODES[0])
    assert (await recovery.scheduled(made)).node in NODES[1:] or not world.by_our_hand
    if world.by_our_hand:
        assert made.old
        assert made.old.uid == old.metadata.uid
        backup = await world.cluster.pod(job, made.backup.name, made.backup.uid)
        assert backup.metadata.annotations[keys.POD_TYPE] == "backup"
    assert rank_of(await recovery.take_over(made)) == "1"
    await each_rank_once(world, job, 2)


async def test_what_a_controller_made_in_the_lost_pods_place_goes(kubeconfig: Path, tmp_path: Path) -> None:
    """A pod that a controller created in the lost pod's place is deleted. It has no claim to the rank, and does not keep the only
    free node from the backup."""
    async with WORLDS["direct, Job"](kubeconfig, tmp_path) as world:
        job = await world.job(2, accelerators=2)
        old = await world.holder(job, 1)
        await world.delete(old)
        await world.until(job, lambda pods: {"0", "1"} == {rank_of(pod) for pod in pods if pod.metadata.uid != old.metadata.uid})
        extra = await world.holder(job, 1)
        recovery = Recovery(world, job)
        await recovery.take_over(await recovery.replace(1, old.spec.node_name))
        await world.until_gone(job, extra)
        await world.settle()
        await each_rank_once(world, job, 2)


@pytest.mark.parametrize("world", all_but("direct, pods"), indirect=True)
async def test_a_rank_whose_pod_is_gone_is_taken_over(world: World) -> None:
    """Nothing of the old pod is needed; a pod that a controller created in its place does not share the rank."""
    job = await world.job(2)
    old = await world.holder(job, 1)
    await world.delete(old)
    await world.until_gone(job, old)
    recovery = Recovery(world, job)
    taken = await recovery.take_over(await recovery.replace(1))
    assert taken.metadata.uid != old.metadata.uid
    await each_rank_once(world, job, 2)


async def test_a_rank_on_a_lost_node_is_taken_over(world: World) -> None:
    """A rank on a lost node is taken over on the only node that is left. The lost node's pod is deleted without grace period."""
    job = await world.job(2, accelerators=2, labels=RECOVERS)
    old = await world.holder(job, 1)
    async with world.without(old.spec.node_name):
        recovery = Recovery(world, job)
        made = await recovery.replace(1)
        taken = await recovery.take_over(made)
        assert taken.spec.node_name != old.spec.node_name
        assert old.metadata.uid not in {pod.metadata.uid for pod in await world.cluster.pods(job)}


async def test_two_ranks_are_taken_over_at_once(world: World) -> None:
    """Each rank has a backup of its own."""
    job = await world.job(3)
    lost = [await world.holder(job, rank) for rank in (1, 2)]
    for pod in lost:
        await (world.delete(pod) if isinstance(world, Operated) else world.kill(job, pod))
    recovery = Recovery(world, job)
    made = await asyncio.gather(*(recovery.replace(rank) for rank in (1, 2)))
    taken = await asyncio.gather(*(recovery.take_over(one) for one in made))
    assert [rank_of(pod) for pod in taken] == ["1", "2"]
    await each_rank_once(world, job, 3)


async def test_a_replacement_that_was_given_up_leaves_nothing(world: World) -> None:
    """No backup is left, and no pod that is not counted."""
    job = await world.job(2)
    old = await world.holder(job, 1)
    await (world.delete(old) if isinstance(world, Operated) else world.kill(job, old))
    recovery = Recovery(world, job)
    await recovery.replace(1)
    await recovery.undo()
    pods = await world.cluster.pods(job)
    assert not [pod for pod in pods if keys.POD_TYPE in pod.metadata.annotations]
    (kept,) = [pod for pod in pods if rank_of(pod) == "0"]
    assert kept.status.phase is PodPhase.RUNNING


async def test_a_replacement_without_a_node_says_why(world: World) -> None:
    """A replacement without a node reports the scheduler's message, as a hot switch does."""
    job = await world.job(3, accelerators=2, labels=RECOVERS)
    old = await world.holder(job, 1)
    async with world.without(old.spec.node_name):
        recovery = Recovery(world, job)
        made = await recovery.replace(1)
        words = "0/3 nodes are available"
        await world.until(job, lambda pods: any(words in said.message for pod in pods for said in pod.status.conditions))
        scheduled = await recovery.scheduled(made, 0)
        assert (scheduled.node, words in scheduled.message) == ("", True)


@pytest.mark.parametrize("kind", ["direct, Job", "operator"])
async def test_a_job_that_has_failed_for_good_is_refused(kind: str, kubeconfig: Path, tmp_path: Path) -> None:
    """A job that has failed for good is refused with an error, because its controller would end any pod that joins it. Nothing is
    created."""
    async with WORLDS[kind](kubeconfig, tmp_path) as world:
        assert isinstance(world, KubernetesWorld)
        job = await world.job(2)
        if isinstance(world, IndexedJob):
            await world.namespace.api.patch(world.path, {"spec": {"backoffLimit": 0}})
        await world.kill(job, await world.holder(job, 1))
        plural = "jobs" if isinstance(world, IndexedJob) else "ascendjobs"
        await world.namespace.until(plural, "demo", has_failed)
        with pytest.raises(ApplicationError, match="demo has failed for good: "):
            await Recovery(world, job).replace(1)
        with pytest.raises(Invalid, match="demo has failed for good: "):
            await world.cluster.ensure_stopped(job, 0)
        with pytest.raises(Invalid, match="demo has failed for good: "):
            await world.cluster.ensure_pods(job, "second", ())
        assert not [pod for pod in await world.cluster.pods(job) if keys.POD_TYPE in pod.metadata.annotations]


def has_failed(job: Any) -> bool:
    return any(one["type"] == "Failed" and one["status"] == "True" for one in job.get("status", {}).get("conditions", ()))


async def test_a_pod_that_nobody_makes_is_not_invented(kubeconfig: Path, tmp_path: Path) -> None:
    """Pods without an owner may differ in anything: no template exists for one that is gone."""
    async with WORLDS["direct, pods"](kubeconfig, tmp_path) as world:
        job = await world.job(2)
        old = await world.holder(job, 1)
        await world.delete(old)
        await world.until_gone(job, old)
        with pytest.raises(ApplicationError, match="nothing is left of the pod of rank 1 of job demo"):
            await Recovery(world, job).replace(1)
