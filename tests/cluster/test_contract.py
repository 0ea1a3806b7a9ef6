"""What every driver of the port `Cluster` does alike. A driver is a row of `DRIVERS`."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from activities.cluster import Cluster, Snapshot
from activities.local import LocalCluster
from rekindle.cluster_client import ClusterClient
from rekindle.errors import Conflict, NotFound, WatchExpired
from rekindle.model import keys
from rekindle.model.cluster import ClusterEvent, JobObject, Pod, PodPhase
from tests.support.cluster import FOREVER, job_object, until_gone, until_running


@dataclass(frozen=True)
class World:
    """A cluster under test, and the hand of its administrator."""

    cluster: Cluster
    admin: ClusterClient

    async def job(self, **wishes: object) -> JobObject:
        """A job whose pods run."""
        job = await self.admin.submit(job_object(**wishes))  # type: ignore[arg-type]
        await until_running(self.admin, *(f"demo-worker-{rank}" for rank in range(job.spec.pods)))
        return await self.cluster.job(job.metadata.uid)

    async def pod(self, job: JobObject, name: str) -> Pod:
        return next(pod for pod in await self.cluster.pods(job.metadata.uid) if pod.metadata.name == name)


DRIVERS: dict[str, Callable[[ClusterClient], Cluster]] = {"local": lambda admin: LocalCluster(admin.socket)}


@pytest.fixture(params=sorted(DRIVERS))
async def world(request: pytest.FixtureRequest, client: ClusterClient) -> AsyncIterator[World]:
    cluster = DRIVERS[request.param](client)
    yield World(cluster, client)
    await cluster.close()


async def test_a_job_is_found_by_its_uid_only(world: World) -> None:
    """The port finds a job by UID; a name, or any other UID, is NotFound."""
    job = await world.job()
    assert (await world.cluster.job(job.metadata.uid)).metadata.name == "demo"
    for stranger in ("demo", "no-such-uid"):
        with pytest.raises(NotFound):
            await world.cluster.job(stranger)


async def test_pods_carry_their_rank_and_spread_over_nodes(world: World) -> None:
    """A job's pods are one a rank, each on a node of its own while there are nodes."""
    job = await world.job(pods=3)
    pods = await world.cluster.pods(job.metadata.uid)
    assert sorted(pod.metadata.annotations[keys.RANK_INDEX] for pod in pods) == ["0", "1", "2"]
    assert {pod.spec.node_name for pod in pods} == {node.metadata.name for node in await world.admin.nodes()}
    assert {pod.metadata.owner_uid for pod in pods} == {job.metadata.uid}


async def test_a_pod_of_another_uid_is_another_pod(world: World) -> None:
    """A pod is found by name, UID and job together."""
    job = await world.job()
    pod = await world.pod(job, "demo-worker-0")
    assert await world.cluster.pod(job.metadata.uid, pod.metadata.name, pod.metadata.uid) == pod
    for job_id, uid in ((job.metadata.uid, "stale"), ("no-such-job", pod.metadata.uid)):
        with pytest.raises(NotFound):
            await world.cluster.pod(job_id, pod.metadata.name, uid)


async def test_a_backup_is_created_once_beside_the_old_pod(world: World) -> None:
    """ensure_backup clones the old pod with its rank and marks, off its node and the avoided ones; a second call finds it."""
    job = await world.job(pods=1)
    old = await world.pod(job, "demo-worker-0")
    avoid = sorted({node.metadata.name for node in await world.admin.nodes()} - {old.spec.node_name})[:1]
    backup = await world.cluster.ensure_backup(old, "demo-worker-0-hot-0001", avoid)
    (running,) = await until_running(world.admin, "demo-worker-0-hot-0001")
    again = await world.cluster.ensure_backup(old, "demo-worker-0-hot-0001", avoid)
    assert backup.metadata.uid == running.metadata.uid == again.metadata.uid != old.metadata.uid
    assert running.spec.node_name not in {old.spec.node_name, *avoid}
    assert running.metadata.annotations[keys.RANK_INDEX] == "0"
    assert running.metadata.annotations[keys.POD_TYPE] == "backup"
    assert running.metadata.annotations[keys.BACKUP_SOURCE] == "demo-worker-0"


async def test_a_promoted_backup_has_no_marks(world: World) -> None:
    """ensure_promoted removes the marks of this very backup, and a second call changes nothing."""
    job = await world.job()
    old = await world.pod(job, "demo-worker-0")
    backup = await world.cluster.ensure_backup(old, "spare", ())
    for _ in range(2):
        await world.cluster.ensure_promoted(job.metadata.uid, "spare", backup.metadata.uid)
    promoted = await world.pod(job, "spare")
    assert not {keys.POD_TYPE, keys.BACKUP_SOURCE} & set(promoted.metadata.annotations)
    with pytest.raises(NotFound):
        await world.cluster.ensure_promoted(job.metadata.uid, "spare", old.metadata.uid)


async def test_deletion_has_a_uid_precondition(world: World) -> None:
    """Deleting under a stale UID leaves the pod of that name alone, and is success; so is deleting what is gone."""
    job = await world.job()
    pod = await world.pod(job, "demo-worker-0")
    await world.cluster.ensure_deleted(job.metadata.uid, "demo-worker-0", "stale", 0)
    assert (await world.pod(job, "demo-worker-0")).metadata.deletion_timestamp is None
    await world.cluster.ensure_deleted(job.metadata.uid, "demo-worker-0", pod.metadata.uid, 0)
    await until_gone(world.admin, pod)
    await world.cluster.ensure_deleted(job.metadata.uid, "demo-worker-0", pod.metadata.uid, 0)


async def test_grace_zero_hurries_a_terminating_pod(world: World) -> None:
    """A pod that ignores SIGTERM lives through its grace period, until a second deletion with grace 0."""
    stubborn = ("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
    job = await world.job(command=stubborn)
    pod = await world.pod(job, "demo-worker-0")
    await world.cluster.ensure_deleted(job.metadata.uid, pod.metadata.name, pod.metadata.uid, 600)
    terminating = await world.pod(job, "demo-worker-0")
    assert terminating.metadata.deletion_timestamp
    assert terminating.status.phase is PodPhase.RUNNING
    await world.cluster.ensure_deleted(job.metadata.uid, pod.metadata.name, pod.metadata.uid, 0)
    await until_gone(world.admin, pod)


async def test_a_new_generation_waits_for_the_old_pods(world: World) -> None:
    """ensure_pods is a Conflict while old pods hold their places; when they are gone it creates the new ones, once."""
    job = await world.job(pods=2, manager=FOREVER)
    old = await world.cluster.pods(job.metadata.uid)
    with pytest.raises(Conflict, match="still there"):
        await world.cluster.ensure_pods(job.metadata.uid, "second", ())
    for pod in old:
        await world.cluster.ensure_deleted(job.metadata.uid, pod.metadata.name, pod.metadata.uid, 0)
    await until_gone(world.admin, *old)
    new = await world.cluster.ensure_pods(job.metadata.uid, "second", ("node-0",))
    again = await world.cluster.ensure_pods(job.metadata.uid, "second", ("node-0",))
    assert [pod.metadata.uid for pod in new] == [pod.metadata.uid for pod in again]
    assert {pod.metadata.name for pod in new} == {pod.metadata.name for pod in old}
    assert {pod.metadata.labels[keys.GENERATION] for pod in new} == {"second"}
    running = await until_running(world.admin, *(pod.metadata.name for pod in new))
    assert "node-0" not in {pod.spec.node_name for pod in running}


async def test_metadata_of_a_job_is_merged(world: World) -> None:
    """ensure_job_metadata sets and removes single keys and leaves the others."""
    job = await world.job(labels={"kept": "yes", keys.SUB_HEALTHY_STRATEGY: "hotSwitch"})
    await world.cluster.ensure_job_metadata(job.metadata.uid, {keys.SUB_HEALTHY_STRATEGY: "ignore"}, {keys.DOWNGRADED: "why"})
    changed = await world.cluster.job(job.metadata.uid)
    assert changed.metadata.labels == {"kept": "yes", keys.SUB_HEALTHY_STRATEGY: "ignore"}
    assert changed.metadata.annotations == {keys.DOWNGRADED: "why"}
    await world.cluster.ensure_job_metadata(job.metadata.uid, {}, {keys.DOWNGRADED: None})
    assert (await world.cluster.job(job.metadata.uid)).metadata.annotations == {}


async def test_an_event_about_a_job_is_kept(world: World) -> None:
    """record writes an event that people can list."""
    job = await world.job()
    event = ClusterEvent(name="demo", kind="LocalJob", reason="RecoveryRecovered", message="all is well")
    await world.cluster.record(job.metadata.uid, event)
    assert "RecoveryRecovered" in {known.reason for known in await world.admin.events("demo")}


async def test_a_watch_begins_with_the_world_and_goes_on_after_it_broke(world: World) -> None:
    """A watch begins with all that exists, ends with WatchExpired when it breaks, and a new one begins with the world again."""
    job = await world.job()
    for _ in range(2):
        news = world.cluster.watch()
        everything = await anext(news)
        assert isinstance(everything, Snapshot)
        assert [found.metadata.uid for found in everything.jobs] == [job.metadata.uid]
        assert [pod.metadata.name for pod in everything.pods] == ["demo-worker-0"]
        assert [node.metadata.name for node in everything.nodes] == ["node-0", "node-1", "node-2"]
        await world.admin.break_watches()
        with pytest.raises(WatchExpired):
            async for _event in news:
                pass


async def test_a_follower_sees_every_change_of_its_job(world: World) -> None:
    """follow begins with the job's pods as they are, shows them after each change, and nothing of other jobs."""
    job = await world.job(pods=2)
    states = world.cluster.follow(job.metadata.uid)
    assert sorted(pod.metadata.name for pod in await anext(states)) == ["demo-worker-0", "demo-worker-1"]
    pod = await world.pod(job, "demo-worker-1")
    await world.cluster.ensure_deleted(job.metadata.uid, pod.metadata.name, pod.metadata.uid, 0)
    async for state in states:
        if pod.metadata.uid not in {one.metadata.uid for one in state}:
            break
    await states.aclose()


async def test_a_stopped_job_has_no_pods_left(world: World) -> None:
    """ensure_stopped tells all pods of the job to end, backups too, and a second call finds nothing to do."""
    job = await world.job(pods=2)
    await world.cluster.ensure_backup(await world.pod(job, "demo-worker-0"), "spare", ())
    stopped = await world.cluster.ensure_stopped(job.metadata.uid, 0)
    assert sorted(pod.metadata.name for pod in stopped) == ["demo-worker-0", "demo-worker-1", "spare"]
    await until_gone(world.admin, *stopped)
    assert await world.cluster.ensure_stopped(job.metadata.uid, 0) == []


async def test_only_backups_that_were_not_promoted_are_swept(world: World) -> None:
    """ensure_no_backups ends them, and leaves promoted ones and the pods of ranks alone."""
    job = await world.job()
    old = await world.pod(job, "demo-worker-0")
    promoted = await world.cluster.ensure_backup(old, "promoted", ())
    await world.cluster.ensure_promoted(job.metadata.uid, "promoted", promoted.metadata.uid)
    await world.cluster.ensure_backup(old, "spare", ())
    (swept,) = await world.cluster.ensure_no_backups(job.metadata.uid, 0)
    await until_gone(world.admin, swept)
    assert {pod.metadata.name for pod in await world.cluster.pods(job.metadata.uid)} == {"demo-worker-0", "promoted"}
