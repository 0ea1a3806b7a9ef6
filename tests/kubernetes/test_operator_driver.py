"""AscendJobs on a real API server, with a simulated Ascend Operator and Volcano. Either may be deaf, lose a write or miss an
event, and our worker may die after each of its writes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import ascend_operator as driver_module
from activities.clusters.kubernetes.kind import Places, Workload
from activities.clusters.kubernetes.kinds import ASCEND_JOB
from rekindle.errors import Conflict
from tests.fakes.ascend_operator import submit_ascend_job
from tests.fakes.controller import annotations_of, is_terminating, labels_of, pods_until
from tests.fakes.volcano import operator_and_volcano
from tests.kubernetes.world.ascend_jobs import (
    OLD,
    DiedError,
    MortalApi,
    OperatorDriver,
    World,
    backups,
    marks,
    one_of_each_rank,
    uid,
    uids,
    until_running,
)
from tests.kubernetes.world.control_plane import Namespace

LABELS = {"fault-scheduling": "force", "subHealthyStrategy": "hotSwitch"}
RECOVER = {"recover-strategy": "recover"}
SCRIPTS = {"well": 3, "two backups": 4, "deaf Volcano": 4, "missed end": 4}
"""Courses of a hot switch, and the number of our writes in each."""


@pytest.fixture
async def world(namespace: Namespace, kubeconfig: Path) -> AsyncIterator[World]:
    async with operator_and_volcano(namespace) as (operator, volcano), MortalApi(kubeconfig) as api:
        job = Workload(ASCEND_JOB, await submit_ascend_job(namespace, labels=LABELS, annotations=RECOVER))
        first = await until_running(namespace)
        for pod in first.values():
            await volcano.saw(pod)  # the gang runs, too
        yield World(namespace, operator, volcano, api, job, first)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the time in which the driver waits for a deaf peer."""
    for name in ("BACKUP_MADE", "BACKUP_NAMED", "ASKED_BEFORE", "DELETED_BY_OTHERS", "PROMOTED_BY_OPERATOR", "RECREATED"):
        monkeypatch.setattr(driver_module, name, 0.3)


# ---- hot switch


async def test_a_hot_switch_is_done_by_the_operator_and_volcano(world: World) -> None:
    """The backup ends as the pod of its rank, without a mark. The driver makes three patches."""
    backup = await world.hot_switch()
    pods = await world.pods()
    assert uids(pods) == {uid(world.first["demo-master-0"]), uid(backup)}
    assert one_of_each_rank(pods)
    assert not marks(pods)
    assert world.api.writes == [f"PATCH {OLD}", f"PATCH {OLD}", f"PATCH {backup['metadata']['name']}"]
    await world.promote(backup)
    assert len(world.api.writes) == 3


async def test_a_repeated_request_finds_its_backup(world: World) -> None:
    """A caller that asks again receives the same pod, and nothing is written."""
    backup = await world.backup()
    before = list(world.api.writes)
    assert uid(await world.backup()) == uid(backup)
    assert world.api.writes == before


def one_of(name: str, *parameters: object) -> Any:
    """A case of a test of which a commit runs one under this name."""
    return pytest.param(*parameters, marks=pytest.mark.same_path(name))


@pytest.mark.parametrize(
    ("script", "life"),
    [
        one_of(f"a worker dies in a hot switch: {script}", script, life)
        for script, lives in SCRIPTS.items()
        for life in range(1, lives + 1)
    ],
)
async def test_a_hot_switch_survives_the_death_of_a_worker(world: World, script: str, life: int, impatient: None) -> None:
    """A hot switch survives the death of a worker after any of its writes, also after those that repair. The same activity, run
    again, ends in the same state."""
    world.operator.failing_patches = int(script == "two backups")
    world.operator.misses_the_end_of = {OLD} if script == "missed end" else set()
    world.api.life = life
    backup = await world.backup()
    world.volcano.deaf = script == "deaf Volcano"
    await world.delete_old()
    if script == "missed end":
        await world.namespace.until("pods", OLD, lambda pod: uid(pod) != uid(world.first[OLD]))
    await world.promote(backup)
    assert world.api.died
    pods = await pods_until(world.namespace, one_of_each_rank)
    assert uids(pods) == {uid(world.first["demo-master-0"]), uid(backup)}
    assert not marks(pods)


@pytest.mark.parametrize(
    ("deaf", "life"),
    [
        one_of(f"a hot switch is given up, deaf: {deaf}", deaf, life)
        for deaf in ("nobody", "operator", "volcano")
        for life in (1, 2, 3)
    ],
)
async def test_a_hot_switch_that_was_given_up_leaves_nothing_behind(
    world: World, life: int, deaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean-up ends with one pod of each rank and without a mark, after any of our writes, whichever peer is deaf
    meanwhile."""
    world.api.life = life
    with pytest.raises(DiedError):
        await give_up_at_death(world)
    shorten(monkeypatch)
    world.operator.deaf, world.volcano.deaf = deaf == "operator", deaf == "volcano"
    await world.sweep()
    assert not marks(pod for pod in await world.pods() if not is_terminating(pod))
    world.operator.deaf = world.volcano.deaf = False
    assert not marks(await pods_until(world.namespace, one_of_each_rank))


@pytest.mark.same_path("a clean-up of a hot switch dies")
@pytest.mark.parametrize("life", [1, 2, 3])
async def test_a_clean_up_that_dies_is_done_again(world: World, life: int, impatient: None) -> None:
    """A clean-up that dies after any of its writes is completed by a second one, though the Operator does not help."""
    await world.backup()
    world.operator.deaf = True
    world.api.life = life
    with pytest.raises(DiedError):
        await world.sweep()
    await world.sweep()
    pods = await world.pods()
    assert uids(pods) == uids(world.first.values())
    assert not marks(pods)


async def give_up_at_death(world: World) -> None:
    """Runs a hot switch whose activities are not run again after a death."""
    backup = await world.driver.ensure_backup(world.job, world.first[OLD], "a-wish", ())
    await world.namespace.until_phase(backup["metadata"]["name"], "Running")
    await world.driver.ensure_deleted(world.job, await world.pod(OLD), 0)
    await world.namespace.until_gone(world.first[OLD])
    await world.driver.ensure_promoted(world.job, backup)


async def test_a_pod_that_was_not_looked_at_is_not_taken_to_be_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver deletes the old pod itself, however slowly the API server answers and however short the wait for a deaf Volcano
    is."""
    monkeypatch.setattr(driver_module, "DELETED_BY_OTHERS", 0.0)
    await world.backup()
    world.volcano.deaf = True
    await world.driver.ensure_deleted(world.job, await world.pod(OLD), 0)
    assert world.api.writes[-1] == f"DELETE {OLD}"


async def test_a_deaf_operator_makes_no_backup_and_none_later(world: World, impatient: None) -> None:
    """A deaf Operator causes a Conflict, which a caller may retry. Once the request is taken back, an Operator that works again
    creates no backup."""
    world.operator.deaf = True
    with pytest.raises(Conflict, match=f"made no backup of pod {OLD}"):
        await world.driver.ensure_backup(world.job, world.first[OLD], "a-wish", ())
    await world.sweep()
    world.operator.deaf = False
    await world.operator.saw(await world.pod(OLD))
    pods = await world.pods()
    assert uids(pods) == uids(world.first.values())
    assert not marks(pods)


async def test_a_backup_that_comes_late_is_swept_too(world: World) -> None:
    """An Operator that began before its request was taken back still creates a backup, and names it on the old pod."""
    world.operator.deaf = True
    asked = {"inHotSwitchFlow": "true", "needOperatorOpe": "create"}
    old = await world.namespace.api.patch(world.namespace.path("pods", OLD), {"metadata": {"annotations": asked}})
    sweeping = asyncio.create_task(world.sweep())
    await world.namespace.until("pods", OLD, lambda pod: not marks([pod]))
    late = await world.operator.make_backup(world.job.object, old)
    named = {"backupNewPodName": late["metadata"]["name"]}
    await world.namespace.api.patch(world.namespace.path("pods", OLD), {"metadata": {"annotations": named}})
    world.operator.misses_the_end_of.add(late["metadata"]["name"])
    world.operator.deaf = False
    await sweeping
    await world.namespace.until_gone(late)
    assert not marks(await world.pods())


async def test_a_backup_is_named_by_us_where_the_operator_died_before_it_did(world: World, impatient: None) -> None:
    """The driver makes the Operator's second write when the Operator died before it. The Operator then does not begin again."""
    world.operator.deaf = True
    asked = {"inHotSwitchFlow": "true", "needOperatorOpe": "create"}
    old = await world.api.patch(world.namespace.path("pods", OLD), {"metadata": {"annotations": asked}})
    made = await world.operator.make_backup(world.job.object, old)
    assert uid(await world.driver.ensure_backup(world.job, old, "a-wish", ())) == uid(made)
    old = await world.pod(OLD)
    assert annotations_of(old)["backupNewPodName"] == made["metadata"]["name"]
    world.operator.deaf = False
    await world.operator.saw(old)
    assert uids(backups(await world.pods())) == {uid(made)}


async def test_of_two_backups_one_is_kept(world: World) -> None:
    """A second one, of an Operator that began again, is deleted; the old pod stays in the flow, and the switch succeeds."""
    world.operator.failing_patches = 1
    backup = await world.backup()
    (kept,) = backups(await pods_until(world.namespace, lambda pods: len(pods) == 3))
    assert uid(kept) == uid(backup)
    assert annotations_of(await world.pod(OLD))["backupNewPodName"] == backup["metadata"]["name"]
    await world.delete_old()
    await world.promote(backup)
    pods = await pods_until(world.namespace, one_of_each_rank)
    assert uid(backup) in uids(pods)
    assert not marks(pods)


async def test_a_deaf_volcano_is_not_waited_for_long(world: World, impatient: None) -> None:
    """The driver deletes the old pod itself, and the rest continues."""
    backup = await world.backup()
    world.volcano.deaf = True
    await world.delete_old()
    assert world.api.writes[-1] == f"DELETE {OLD}"
    await world.promote(backup)
    pods = await world.pods()
    assert uids(pods) == {uid(world.first["demo-master-0"]), uid(backup)}
    assert not marks(pods)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {"process-recover-enable": "pause"}},
        {"labels": {"process-recover-enable": None}},
        {"labels": {"subHealthyStrategy": "ignore"}},
        {"labels": {"fault-scheduling": None}},
        {"annotations": {"ProcessRecoverStrategy": ""}},
    ],
    ids=["it would delete all pods", "it would do so too", "it ignores sub-health", "it does not act", "a platform decides"],
)
async def test_volcano_is_asked_only_for_what_it_would_do(world: World, change: dict[str, dict[str, str | None]]) -> None:
    """The driver deletes the old pod itself, at once, where Volcano would do nothing or more than delete that pod."""
    backup = await world.backup()
    await world.namespace.api.patch(world.group, {"metadata": change})
    await world.delete_old()
    assert world.api.writes == [f"PATCH {OLD}", f"DELETE {OLD}"]
    await world.promote(backup)
    assert uids(await world.pods()) == {uid(world.first["demo-master-0"]), uid(backup)}


async def test_the_leader_is_not_left_to_volcano(world: World) -> None:
    """The driver deletes a leader itself, because Volcano would end the whole job for a faulty leader."""
    leader = world.first["demo-master-0"]
    backup = await world.driver.ensure_backup(world.job, leader, "a-wish", ())
    await world.namespace.until_phase(backup["metadata"]["name"], "Running")
    await world.driver.ensure_deleted(world.job, await world.pod("demo-master-0"), 0)
    await world.namespace.until_gone(leader)
    await world.promote(backup)
    assert uids(await world.pods()) == {uid(world.first[OLD]), uid(backup)}


async def test_a_deaf_operator_neither_promotes_nor_deletes(world: World, impatient: None) -> None:
    """The driver does both instead."""
    backup = await world.backup()
    world.operator.deaf = True
    await world.delete_old()
    await world.promote(backup)
    pods = await world.pods()
    assert uids(pods) == {uid(world.first["demo-master-0"]), uid(backup)}
    assert not marks(pods)


async def test_an_unwanted_backup_ends_also_without_the_operator(world: World, impatient: None) -> None:
    """The driver deletes an unwanted backup when the Operator does not do it."""
    backup = await world.backup()
    world.operator.deaf = True
    await world.driver.ensure_deleted(world.job, backup, 0)
    await world.namespace.until_gone(backup)
    assert world.api.writes[-1].startswith("DELETE demo-worker-0-hot-")


async def test_a_third_pod_of_a_rank_ends(world: World) -> None:
    """The Operator creates a third pod after it missed the end of the old pod; the backup keeps the rank."""
    world.operator.misses_the_end_of.add(OLD)
    backup = await world.backup()
    await world.delete_old()
    third = await world.namespace.until("pods", OLD, lambda pod: uid(pod) != uid(world.first[OLD]))
    await world.promote(backup)
    await world.namespace.until_gone(third)
    pods = await pods_until(world.namespace, one_of_each_rank)
    assert uid(backup) in uids(pods)
    assert not marks(pods)


async def test_a_pod_outside_of_any_flow_is_deleted_by_us(world: World) -> None:
    """A pod that is in no hot switch is deleted by the driver, with the requested grace period."""
    await world.driver.ensure_deleted(world.job, world.first[OLD], 0)
    await world.namespace.until_gone(world.first[OLD])
    assert world.api.writes == [f"DELETE {OLD}"]
    await world.driver.ensure_deleted(world.job, world.first[OLD], 0)


# ---- the whole job


@pytest.mark.parametrize("life", [None, 1, 2])
async def test_a_job_restarts_by_volcano(world: World, life: int | None) -> None:
    """Process-level recovery is paused, Volcano deletes all pods, the Operator creates new ones, and process-level recovery is on
    again. The driver deletes no pod, unless a worker died in between and Volcano had ended the gang by then."""
    world.api.life = life
    known: list[Object] = []

    async def stop(driver: OperatorDriver) -> None:
        known[:] = await world.pods()
        await driver.ensure_stopped(world.job, known, 5)

    await world.step(stop)
    for pod in [*world.first.values(), *known]:
        await world.namespace.until_gone(pod)
    assert await world.recovery() == "pause"
    pods = await world.driver.ensure_pods(world.job, "a-generation", Places())
    assert uids(pods).isdisjoint(uids(world.first.values()))
    assert one_of_each_rank(pods)
    assert await world.recovery() == "on"
    assert life or not any(write.startswith("DELETE") for write in world.api.writes)


async def test_a_job_restarts_in_the_middle_of_a_hot_switch(world: World) -> None:
    """A restart in the middle of a hot switch also ends the backup, and leaves no mark of the switch on the new pods."""
    await world.backup()
    known = await world.pods()
    await world.driver.ensure_stopped(world.job, known, 5)
    for pod in known:
        await world.namespace.until_gone(pod)
    pods = await world.driver.ensure_pods(world.job, "a-generation", Places())
    assert one_of_each_rank(pods)
    assert not marks(pods)


async def test_a_stop_takes_back_what_a_hot_switch_asked_for(world: World) -> None:
    """A stop takes back the requests of a hot switch before Volcano acts: the Operator creates no backup of a pod that is about
    to end."""
    world.operator.deaf = world.volcano.deaf = True
    asked = {"inHotSwitchFlow": "true", "needOperatorOpe": "create"}
    old = await world.api.patch(world.namespace.path("pods", OLD), {"metadata": {"annotations": asked}})
    backup = await world.operator.make_backup(world.job.object, old)
    await world.driver.ensure_stopped(world.job, await world.pods(), 5)
    assert not marks([await world.pod(OLD)])
    assert annotations_of(await world.pod(backup["metadata"]["name"]))["needOperatorOpe"] == "delete"
    assert labels_of(await world.pod("demo-master-0"))["fault-type"] == "Separate"


async def test_a_backup_that_outlived_a_restart_ends(world: World) -> None:
    """A backup that outlived a restart is deleted once the job's pods exist."""
    world.operator.deaf = True
    backup = await world.operator.make_backup(world.job.object, world.first[OLD])
    assert one_of_each_rank(await world.driver.ensure_pods(world.job, "a-generation", Places()))
    await world.namespace.until_gone(backup)


async def test_without_volcano_a_job_is_stopped_by_force(world: World, impatient: None) -> None:
    """A repeated call without grace deletes all pods by the driver; they come back, and process-level recovery does too."""
    world.volcano.deaf = True
    known = await world.pods()
    await world.driver.ensure_stopped(world.job, known, 5)
    await world.driver.ensure_stopped(world.job, await world.pods(), 0)
    for pod in known:
        await world.namespace.until_gone(pod)
    assert one_of_each_rank(await world.step(lambda driver: driver.ensure_pods(world.job, "a-generation", Places())))
    assert await world.recovery() == "on"


@pytest.mark.parametrize(("lost", "marked"), [("demo-master-0", OLD), (OLD, "demo-master-0")], ids=["rank 0", "another"])
async def test_a_pod_of_a_lost_node_ends_at_once(world: World, lost: str, marked: str) -> None:
    """The driver deletes a pod of a lost node, because its node would not report its end. The mark that makes Volcano stop the
    others is on a pod that stays until then."""
    world.operator.deaf = world.volcano.deaf = True
    elsewhere = {**world.first[lost], "spec": {"nodeName": "lost"}}  # the pods of these tests share a node
    await world.driver.ensure_stopped(world.job, [elsewhere, world.first[marked]], 5, {"lost"})
    await world.namespace.until_gone(world.first[lost])
    assert [write for write in world.api.writes if write.startswith("DELETE")] == [f"DELETE {lost}"]
    assert labels_of(await world.pod(marked))["fault-type"] == "Separate"


async def test_without_a_pod_that_volcano_could_look_at_all_are_ended_by_us(world: World) -> None:
    """The driver deletes all pods when every node of the job is lost, because no pod is left for Volcano."""
    world.operator.deaf = world.volcano.deaf = True
    nodes = {pod["spec"]["nodeName"] for pod in world.first.values()}
    await world.driver.ensure_stopped(world.job, await world.pods(), 5, nodes)
    for pod in world.first.values():
        await world.namespace.until_gone(pod)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {"fault-scheduling": None}},
        {"annotations": {"huawei.com/recover_policy_path": "pod"}},
        {"annotations": {"ProcessRecoverStrategy": ""}},
    ],
    ids=["it does not act", "it may delete faulty pods only", "it waits for a platform"],
)
async def test_what_volcano_would_not_stop_is_stopped_by_us(world: World, change: dict[str, dict[str, str | None]]) -> None:
    """The driver stops at once what Volcano would not stop, with the requested grace period."""
    await world.namespace.api.patch(world.group, {"metadata": change})
    await world.driver.ensure_stopped(world.job, await world.pods(), 5)
    for pod in world.first.values():
        await world.namespace.until_gone(pod)
    assert one_of_each_rank(await world.driver.ensure_pods(world.job, "a-generation", Places()))


async def test_pods_that_are_not_there_are_counted(world: World, impatient: None) -> None:
    """A Conflict states how many pods exist, and process-level recovery stays as it is."""
    world.operator.deaf = True
    await world.driver.ensure_deleted(world.job, world.first[OLD], 0)
    with pytest.raises(Conflict, match="1 of 2 pods of AscendJob demo are there"):
        await world.driver.ensure_pods(world.job, "a-generation", Places())


# ---- metadata


async def test_metadata_is_written_where_volcano_reads_it(world: World) -> None:
    """Metadata is written on the job and on its PodGroup. A job that has no PodGroup yet is no error."""
    labels: dict[str, str | None] = {"subHealthyStrategy": "ignore", "fault-scheduling": None}
    await world.driver.ensure_metadata(world.job, labels, {"why": "no spare"})
    group = await world.api.get(world.group)
    job = await world.api.get(world.job.path)
    for changed in (group, job):
        assert labels_of(changed)["subHealthyStrategy"] == "ignore"
        assert "fault-scheduling" not in labels_of(changed)
        assert annotations_of(changed)["why"] == "no spare"
    world.operator.deaf = True
    young = Workload(ASCEND_JOB, await submit_ascend_job(world.namespace, "young"))
    await world.driver.ensure_metadata(young, labels, {})
    assert labels_of(await world.api.get(young.path))["subHealthyStrategy"] == "ignore"
