"""Behaviour that every driver of the port `Cluster` shares. A driver is a row of `WORLDS`; API server and scheduler are real."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from activities.clusters.port import Snapshot
from rekindle.errors import Conflict, Invalid, NotFound, WatchExpired
from rekindle.model import keys
from rekindle.model.cluster import ClusterEvent, JobView, PodPhase
from rekindle.policy.detection.sighting import sight
from rekindle.policy.placement.spares import Occupant
from tests.kubernetes.world.worlds import NODES, WORLDS, World, rank_of, tried
from tests.support.cluster import FOREVER


def stubborn(directory: Path) -> tuple[str, ...]:
    """Returns a command that ignores SIGTERM, and writes a file for each process that does."""
    return ("sh", "-c", f"trap '' TERM; touch {directory}/$$.deaf; while :; do sleep 0.05; done")


async def until_deaf(directory: Path, count: int) -> None:
    async with asyncio.timeout(60):
        while len(list(directory.glob("*.deaf"))) < count:
            await asyncio.sleep(0.01)


SAME_DRIVER = pytest.mark.same_path(over="world")


@pytest.fixture(params=[pytest.param(name, marks=SAME_DRIVER if "direct" in name else ()) for name in WORLDS])
async def world(request: pytest.FixtureRequest, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[World]:
    async with WORLDS[request.param](kubeconfig, tmp_path) as world:
        yield world


STANDING = pytest.mark.parametrize(
    "world",
    [
        pytest.param(name, marks=SAME_DRIVER if "direct" in name else ())
        for name in ("local", "direct, TrainingJob", "direct, Job")
    ],
    indirect=True,
)
"""Drivers that may create pods without a rank."""


@pytest.mark.same_path("a job is found by its UID, on every kind of cluster")
async def test_a_job_is_found_by_its_uid_only(world: World) -> None:
    """The port finds a job by UID; a name, or any other UID, is NotFound."""
    job = await world.job()
    assert (await world.cluster.job(job)).metadata.name == "demo"
    for stranger in ("demo", "no-such-uid"):
        with pytest.raises(NotFound):
            await world.cluster.job(stranger)


@pytest.mark.same_path("pods carry their rank, on every kind of cluster")
async def test_pods_carry_their_rank_and_fit_on_their_nodes(world: World) -> None:
    """A job's pods are one a rank, each on a node that has what it asks for."""
    job = await world.job(3, accelerators=2)
    pods = await world.cluster.pods(job)
    assert sorted(rank_of(pod) or "" for pod in pods) == ["0", "1", "2"]
    assert {pod.spec.node_name for pod in pods} == set(NODES)
    assert {pod.metadata.owner_uid for pod in pods} == {job}


@pytest.mark.same_path("a node is cordoned, on every kind of cluster")
async def test_a_node_is_cordoned_and_shows_the_pods_of_jobs(world: World) -> None:
    """A node that is cordoned twice stays the same. Its running pods stay, and are listed with their ranks."""
    job = await world.job(2)
    pod = await world.holder(job, 0)
    node = pod.spec.node_name
    for cordoned in (True, True, False):
        await world.cluster.cordon_node(node, cordoned=cordoned)
        assert (await world.cluster.node(node)).spec.unschedulable is cordoned
    there = {one.metadata.uid: one for one in await world.cluster.pods_on(node)}
    assert set(there) == {one.metadata.uid for one in await world.cluster.pods(job) if one.spec.node_name == node}
    assert (rank_of(there[pod.metadata.uid]), there[pod.metadata.uid].metadata.owner_uid) == ("0", job)
    with pytest.raises(NotFound):
        await world.cluster.cordon_node("no-such-node", cordoned=True)


@pytest.mark.same_path("a pod of another UID is another pod, on every kind of cluster")
async def test_a_pod_of_another_uid_is_another_pod(world: World) -> None:
    """A pod is found by name, UID and job together."""
    job = await world.job()
    pod = await world.holder(job, 0)
    assert (await world.cluster.pod(job, pod.metadata.name, pod.metadata.uid)).metadata.uid == pod.metadata.uid
    for job_id, uid in ((job, "stale"), ("no-such-job", pod.metadata.uid)):
        with pytest.raises(NotFound):
            await world.cluster.pod(job_id, pod.metadata.name, uid)


@pytest.mark.same_path("a node is found by its name, on every kind of cluster")
async def test_a_node_is_found_by_its_name(world: World) -> None:
    """A node is returned with its conditions; an unknown name is NotFound."""
    node = await world.cluster.node(NODES[0])
    assert node.metadata.name == NODES[0]
    assert node.metadata.uid
    assert {condition.type: condition.status for condition in node.status.conditions}["Ready"] == "True"
    with pytest.raises(NotFound):
        await world.cluster.node("no-such-node")


async def test_a_backup_is_created_once_beside_the_old_pod(world: World) -> None:
    """ensure_backup clones the old pod with its rank and marks, off its node and the avoided ones; a second call finds it."""
    job = await world.job()
    old = await world.holder(job, 0)
    avoid = sorted({*NODES} - {old.spec.node_name})[:1]
    backup = await world.cluster.ensure_backup(old, "demo-0-hot-0001", avoid)
    running = await world.until_runs(job, backup)
    again = await world.cluster.ensure_backup(old, "demo-0-hot-0001", avoid)
    assert backup.metadata.uid == again.metadata.uid != old.metadata.uid
    assert running.spec.node_name not in {old.spec.node_name, *avoid} or not world.by_our_hand
    assert rank_of(running) == "0"
    assert running.metadata.annotations[keys.POD_TYPE] == "backup"
    assert running.metadata.annotations[keys.BACKUP_SOURCE] == old.metadata.name
    assert running.metadata.owner_uid == job


async def test_a_backup_without_a_node_says_why(world: World) -> None:
    """The scheduler's condition is Unschedulable, with the scheduler's own message."""
    job = await world.job(3, accelerators=2)
    backup = await world.cluster.ensure_backup(await world.holder(job, 1), "spare", ())

    def unschedulable(pods: object) -> bool:
        return any(
            condition.type == "PodScheduled"
            and condition.reason == "Unschedulable"
            and "0/3 nodes are available" in condition.message
            for pod in pods  # type: ignore[attr-defined]
            if pod.metadata.uid == backup.metadata.uid
            for condition in pod.status.conditions
        )

    await world.until(job, unschedulable)


@pytest.mark.same_path("what pods occupy is told, on every kind of cluster")
async def test_what_every_pod_occupies_is_told(world: World) -> None:
    """Pods with a node and their accelerators are told, whoever they belong to. A backup pod names the job that it is for."""
    job = await world.job(2, accelerators=2)
    told = [one for one in await world.cluster.occupants() if one.accelerators]
    holders = [await world.holder(job, rank) for rank in (0, 1)]
    assert sorted(told) == sorted(Occupant(pod.spec.node_name, 2) for pod in holders)
    backup = await world.cluster.ensure_backup(holders[1], "spare", ())
    running = await world.until_runs(job, backup)
    told = [one for one in await world.cluster.occupants() if one.backup_of]
    assert told == [Occupant(running.spec.node_name, 2, backup_of=job)]


async def test_a_backup_takes_over(world: World) -> None:
    """The old pod goes, the backup loses its marks and stays the only pod of its rank; a second promotion changes nothing."""
    job = await world.job(2)
    old = await world.holder(job, 1)
    backup = await world.until_runs(job, await world.cluster.ensure_backup(old, "spare", ()))
    await world.cluster.ensure_deleted(job, old.metadata.name, old.metadata.uid, 0)
    await world.until_gone(job, old)
    for _ in range(2):
        await world.cluster.ensure_promoted(job, backup.metadata.name, backup.metadata.uid)
    pods = await world.until(job, lambda pods: len(pods) == 2)
    promoted = next(pod for pod in pods if rank_of(pod) == "1")
    assert promoted.metadata.uid == backup.metadata.uid
    assert promoted.status.phase is PodPhase.RUNNING
    assert not {keys.POD_TYPE, keys.BACKUP_SOURCE} & set(promoted.metadata.annotations)
    with pytest.raises(NotFound):
        await world.cluster.ensure_promoted(job, backup.metadata.name, old.metadata.uid)


@pytest.mark.same_path("a pod that took over can be replaced again, on every kind of cluster")
async def test_a_pod_that_took_over_can_be_replaced_again(world: World) -> None:
    """A pod that took over in a hot switch can be replaced by another hot switch."""
    job = await world.job()
    backups = []
    for name in ("first", "second"):
        old = await world.holder(job, 0)
        backups.append(backup := await world.until_runs(job, await world.cluster.ensure_backup(old, name, ())))
        await world.cluster.ensure_deleted(job, old.metadata.name, old.metadata.uid, 0)
        await world.until_gone(job, old)
        await world.cluster.ensure_promoted(job, backup.metadata.name, backup.metadata.uid)
    (pod,) = await world.until(job, lambda pods: len(pods) == 1)
    assert pod.metadata.uid == backups[-1].metadata.uid


async def test_deletion_has_a_uid_precondition(world: World) -> None:
    """Deleting under a stale UID leaves the pod of that name alone, and is success; so is deleting what is gone."""
    job = await world.job(2)
    pod = await world.holder(job, 0)
    await world.cluster.ensure_deleted(job, pod.metadata.name, "stale", 0)
    assert (await world.holder(job, 0)).metadata.deletion_timestamp is None
    await world.cluster.ensure_deleted(job, pod.metadata.name, pod.metadata.uid, 0)
    await world.until_gone(job, pod)
    await world.cluster.ensure_deleted(job, pod.metadata.name, pod.metadata.uid, 0)


async def test_grace_zero_hurries_a_terminating_pod(world: World, tmp_path: Path) -> None:
    """A pod that ignores SIGTERM lives through its grace period, until a second deletion with grace 0."""
    job = await world.job(2, command=stubborn(tmp_path))
    await until_deaf(tmp_path, 2)
    pod = await world.holder(job, 0)
    await world.cluster.ensure_deleted(job, pod.metadata.name, pod.metadata.uid, 600)
    terminating = await world.cluster.pod(job, pod.metadata.name, pod.metadata.uid)
    assert terminating.metadata.deletion_timestamp
    assert terminating.status.phase is PodPhase.RUNNING
    await world.cluster.ensure_deleted(job, pod.metadata.name, pod.metadata.uid, 0)
    await world.until_gone(job, pod)


async def test_only_backups_that_were_not_promoted_are_swept(world: World) -> None:
    """ensure_no_backups ends them, and leaves the pods of ranks alone."""
    job = await world.job(2)
    ranks = {pod.metadata.uid for pod in await world.cluster.pods(job)}
    await world.cluster.ensure_backup(await world.holder(job, 0), "spare", ())
    (swept,) = await world.cluster.ensure_no_backups(job, 0)
    await world.until_gone(job, swept)
    assert await world.cluster.ensure_no_backups(job, 0) == []
    assert {pod.metadata.uid for pod in await world.cluster.pods(job)} == ranks


async def test_standbys_are_made_once_and_end_when_they_are_too_many(world: World) -> None:
    """Standbys are off the nodes of the job, have no rank and are not counted as pods of the job. A driver that does not create
    the pods refuses."""
    job = await world.job(2)
    if not world.has_standbys:
        with pytest.raises(Invalid, match="cannot have standbys"):
            await world.cluster.ensure_standbys(job, 1, ())
        return
    ranks = {pod.spec.node_name for pod in await world.cluster.pods(job)}
    made = await world.cluster.ensure_standbys(job, 1, ())
    again = await world.cluster.ensure_standbys(job, 1, ())
    assert len(made) == 1
    assert [pod.metadata.uid for pod in made] == [pod.metadata.uid for pod in again]
    running = await world.until_runs(job, made[0])
    assert running.spec.node_name not in ranks
    assert (rank_of(running), running.metadata.annotations[keys.POD_TYPE]) == (None, "standby")
    assert sight(JobView(job=await world.cluster.job(job), pods=tuple(await world.cluster.pods(job)))).problems == ()
    assert await world.cluster.ensure_no_backups(job, 0) == []
    (elsewhere,) = await world.cluster.ensure_standbys(job, 1, (running.spec.node_name,))
    await world.until_gone(job, running)
    await world.cluster.ensure_standbys(job, 0, ())
    await world.until_gone(job, elsewhere)
    assert len(await world.cluster.pods(job)) == 2


@STANDING
async def test_a_standby_that_runs_is_the_backup_of_a_rank(world: World) -> None:
    """A standby becomes the backup of a rank that is alive or lost. A repeated call finds it, and from then on it is an ordinary
    backup pod."""
    job = await world.job(2)
    for rank, name in ((1, "demo-1-hot-0001"), (1, "demo-1-hot-0002"), (0, "demo-0-hot-0003")):
        (standby,) = await world.cluster.ensure_standbys(job, 1, ())
        standby = await world.until_runs(job, standby)
        old = await world.holder(job, rank)
        backups = []
        for _ in range(2):
            if name.endswith("2"):
                backups.append((await world.cluster.ensure_replacement(job, rank, name, [old.spec.node_name])).backup)
            else:
                backups.append(await world.cluster.ensure_backup(old, name, ()))
        assert {backup.metadata.uid for backup in backups} == {standby.metadata.uid}
        assert rank_of(backups[1]) == str(rank)
        assert {keys.POD_TYPE: "backup", keys.TAKEN_AS: name}.items() <= backups[1].metadata.annotations.items()
        await world.cluster.ensure_deleted(job, old.metadata.name, old.metadata.uid, 0)
        await world.until_gone(job, old)
        await world.cluster.ensure_promoted(job, standby.metadata.name, standby.metadata.uid)
        pods = await world.until(job, lambda pods: len(pods) == 2)
        promoted = next(pod for pod in pods if rank_of(pod) == str(rank))
        assert promoted.metadata.uid == standby.metadata.uid
        assert not {keys.POD_TYPE, keys.BACKUP_SOURCE, keys.TAKEN_AS} & set(promoted.metadata.annotations)


@STANDING
async def test_a_standby_that_was_taken_is_given_up_with_the_backups(world: World) -> None:
    """A standby that was taken is deleted with the backups, and not put back. An unacceptable standby is not taken, and stays. A
    restart ends all standbys."""
    job = await world.job()
    old = await world.holder(job, 0)
    (standby,) = await world.cluster.ensure_standbys(job, 1, ())
    standby = await world.until_runs(job, standby)
    fresh = await world.cluster.ensure_backup(old, "other", [standby.spec.node_name])
    assert fresh.metadata.uid != standby.metadata.uid
    assert [pod.metadata.uid for pod in await world.cluster.ensure_no_backups(job, 0)] == [fresh.metadata.uid]
    taken = await world.cluster.ensure_backup(old, "spare", ())
    assert taken.metadata.uid == standby.metadata.uid
    await world.cluster.ensure_no_backups(job, 0)
    await world.until_gone(job, taken, fresh)
    (another,) = await world.cluster.ensure_standbys(job, 1, ())
    stopped = await tried(lambda: world.cluster.ensure_stopped(job, 0))
    assert another.metadata.uid in {pod.metadata.uid for pod in stopped}
    await world.until_gone(job, *stopped)


async def test_a_restarted_job_has_new_pods_of_one_generation(world: World, tmp_path: Path) -> None:
    """ensure_stopped ends all pods, backups too; ensure_pods is a Conflict while they are there, and then makes new ones, once,
    off the nodes to avoid."""
    job = await world.job(2, command=stubborn(tmp_path), manager=FOREVER)
    await until_deaf(tmp_path, 2)
    await world.cluster.ensure_backup(await world.holder(job, 0), "spare", ())
    stopped = await world.cluster.ensure_stopped(job, 600)
    assert len(stopped) == (4 if world.shows_managers else 3)
    if world.by_our_hand:
        with pytest.raises(Conflict):
            await world.cluster.ensure_pods(job, "second", ())
        await world.cluster.ensure_stopped(job, 0)
    await world.until_gone(job, *stopped)
    new = await tried(lambda: world.cluster.ensure_pods(job, "second", ("node-0",)))
    again = await world.cluster.ensure_pods(job, "second", ("node-0",))
    assert {pod.metadata.uid for pod in new} == {pod.metadata.uid for pod in again}
    assert sorted(rank for pod in new if (rank := rank_of(pod))) == ["0", "1"]
    running = [await world.until_runs(job, pod) for pod in new]
    if world.by_our_hand:
        assert {pod.metadata.labels[keys.GENERATION] for pod in new} == {"second"}
        assert "node-0" not in {pod.spec.node_name for pod in running}


async def test_pods_of_a_lost_node_get_no_grace(world: World, tmp_path: Path) -> None:
    """Pods of a lost node get no grace period, because their kubelet would not report their end. Other pods keep the grace period
    of the request."""
    job = await world.job(2, command=stubborn(tmp_path), accelerators=2)
    await until_deaf(tmp_path, 2)
    lost, other = [await world.holder(job, rank) for rank in (0, 1)]
    await world.cluster.ensure_stopped(job, 600, {lost.spec.node_name})
    await world.until_gone(job, lost)
    if world.by_our_hand:  # Volcano deletes all by force
        ending = await world.cluster.pod(job, other.metadata.name, other.metadata.uid)
        assert ending.metadata.deletion_timestamp
        assert ending.status.phase is PodPhase.RUNNING
    await world.cluster.ensure_stopped(job, 0)
    await world.until_gone(job, other)


@pytest.mark.same_path("metadata is merged, on every kind of cluster")
async def test_metadata_of_a_job_is_merged(world: World) -> None:
    """ensure_job_metadata sets and removes single keys and leaves the others."""
    job = await world.job(labels={"kept": "yes", keys.SUB_HEALTHY_STRATEGY: "hotSwitch"})
    await world.cluster.ensure_job_metadata(job, {keys.SUB_HEALTHY_STRATEGY: "ignore"}, {keys.DOWNGRADED: "why"})
    changed = await world.labels(job)
    assert (changed["kept"], changed[keys.SUB_HEALTHY_STRATEGY], changed[keys.DOWNGRADED]) == ("yes", "ignore", "why")
    await world.cluster.ensure_job_metadata(job, {}, {keys.DOWNGRADED: None})
    assert keys.DOWNGRADED not in await world.labels(job)


@pytest.mark.same_path("an event is kept, on every kind of cluster")
async def test_an_event_about_a_job_is_kept(world: World) -> None:
    """record writes an event that people can list."""
    job = await world.job()
    await world.cluster.record(job, ClusterEvent(name="demo", kind="any", reason="RecoveryRecovered", message="all is well"))
    assert "RecoveryRecovered" in await world.reasons()


async def test_a_watch_begins_with_the_world_and_goes_on_after_it_broke(world: World) -> None:
    """A watch begins with all that exists, ends with WatchExpired when it breaks, and a new one begins with the world again."""
    job = await world.job()
    for _ in range(2):
        async with aclosing(world.cluster.watch()) as news:
            everything = await anext(news)
            assert isinstance(everything, Snapshot)
            assert [found.metadata.uid for found in everything.jobs] == [job]
            assert [rank_of(pod) for pod in everything.pods] == ["0"]
            assert [node.metadata.name for node in everything.nodes] == list(NODES)
            with pytest.raises(WatchExpired):
                await until_it_breaks(world, news)


async def until_it_breaks(world: World, news: AsyncGenerator[object, None]) -> None:
    breaking = asyncio.create_task(world.break_watches())  # the watch opens at the first read
    async for _event in news:
        pass
    await breaking


async def test_a_follower_sees_every_change_of_its_job(world: World) -> None:
    """follow begins with the job's pods as they are, and shows them after each change."""
    job = await world.job(2)
    async with aclosing(world.cluster.follow(job)) as states:
        assert sorted(rank_of(pod) or "" for pod in await anext(states)) == ["0", "1"]
        pod = await world.holder(job, 1)
        await world.cluster.ensure_deleted(job, pod.metadata.name, pod.metadata.uid, 0)
        async for state in states:
            if pod.metadata.uid not in {one.metadata.uid for one in state}:
                break
