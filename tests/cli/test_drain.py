"""The command line shows a node that is drained: typed beside a real control plane and a scripted peer."""

import asyncio
import json
import signal
from unittest.mock import AsyncMock, Mock

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.cli import drain as command
from rekindle.cli.terminal import problems
from rekindle.client import Rekindle
from rekindle.drains import Drains
from rekindle.errors import Unavailable
from rekindle.model.draining import Draining, PodRow, Where
from rekindle.model.explained import PodThere
from rekindle.model.job import Job, SubHealthStrategy
from tests.cli.test_recover import ended, typed, until_said
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, training
from tests.workflows.test_drains import a_drained_job


async def seen(world: Harness) -> None:
    """Reports the node as the watcher does, as soon as it is cordoned."""
    async with asyncio.timeout(60):
        while not world.cluster.cordoned.get("node-1"):
            await asyncio.sleep(0.02)
    await world.look("node-1")


async def test_a_node_is_drained_pod_by_pod_and_taken_back(temporal: WorkflowEnvironment) -> None:
    """The dry run shows the plan, the drain its progress, with the phases of each move of a pod. An undo restores the state
    before."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        name = f"default/{world.job.name}"
        await world.look()
        code, said = await ended(await typed(world, "drain", "node-1", "--dry-run"))
        assert code == 0, said
        assert "moves" in said.splitlines()[1]
        assert "by a hot switch; where no node is free for it, it waits and is tried again" in said
        assert not world.cluster.cordoned
        command = await typed(world, "drain", "node-1")
        await seen(world)
        await until_said(command, f"{name}: … hot switch: backup loads, training pauses")
        await peer.pause()
        code, said = await ended(command)
        assert code == 0, said
        assert f"{name}: {world.job.name}-worker-1 moved: to node-2 by a hot switch, steps lost: 0" in said
        assert "node-1 is drained: no rank is there any more" in said
        code, said = await ended(await typed(world, "drain", "node-1", "--undo"))
        assert (code, said, world.cluster.cordoned["node-1"]) == (0, "node-1 takes pods again\n", False)
        code, said = await ended(await typed(world, "drain", "node-1", "--undo"))
        assert (code, "nothing to undo" in said) == (0, True)


async def test_without_a_spare_the_command_ends_and_the_drain_waits(temporal: WorkflowEnvironment) -> None:
    """A drain without a spare waits, and the command ends with exit code 1 and the reason. With `--wait` it stays, and an
    interrupt reports what continues."""
    cluster = ScriptedCluster(job := a_drained_job())
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.look()
        command = await typed(world, "drain", "node-1", "--output", "json")
        await seen(world)
        code, said = await ended(command)
        (row,) = json.loads(said.splitlines()[0])["rows"]
        assert (code, row["where"], row["pod"]["pod_rank"]) == (1, "waits", 1)
        assert row["why"].startswith("ignored: the drain waits: no spare: ")
        command = await typed(world, "drain", "node-1", "--wait")
        await until_said(command, "waits: ignored: the drain waits")
        command.send_signal(signal.SIGINT)
        code, said = await ended(command)
        assert code == 130
        assert "node-1 stays cordoned, and its ranks go on to leave it" in said
        assert cluster.cordoned["node-1"]


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (a_job(sub_health=SubHealthStrategy.IGNORE), "the job's policy is ignore"),
        (a_job(annotations={"rekindle.io/ignore-rules": "plain/cordoned"}), "its job ignores rule plain/cordoned"),
        (a_job(observe=True), "only observes"),
    ],
    ids=["policy", "rule", "observed"],
)
async def test_a_drain_that_would_not_come_to_its_end_is_refused(temporal: WorkflowEnvironment, job: Job, why: str) -> None:
    """A drain that could not complete is refused with every reason, which the dry run gives as well. Nothing is changed."""
    async with training(temporal, job, cluster=(cluster := ScriptedCluster(job))) as (world, _peer):
        code, judged = await ended(await typed(world, "drain", "node-1", "--dry-run", "--output", "json"))
        (reason,) = json.loads(judged)["refused"]
        assert (code, why in reason) == (4, True), judged
        code, said = await ended(await typed(world, "drain", "node-1"))
        assert (code, said) == (4, f"error: {reason}\n")
        code, said = await ended(await typed(world, "drain", "node-1", "--output", "json"))
        assert (code, json.loads(said)["refused"]) == (4, [reason])
        assert not cluster.cordoned


async def test_a_drain_that_somebody_takes_back_ends(temporal: WorkflowEnvironment) -> None:
    """A drain that is taken back ends, because no job has to leave the node any more. A dry run meanwhile shows the decision."""
    cluster = ScriptedCluster(job := a_drained_job())
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.look()
        drains = Drains(Rekindle(world.client), again=0)
        await drains.begin("node-1")
        await world.look("node-1")
        await world.judged()
        (row,) = (await drains.forecast("node-1")).rows
        assert (row.where, row.why) == (Where.WAITS, await world.judged())
        assert (await drains.look("node-1")).cordoned
        await drains.undo("node-1")
        await world.look("node-1")
        now = await drains.look("node-1")
        assert (now.cordoned, now.drained, [row.where for row in now.rows]) == (False, False, [Where.STAYS])
        cluster.node_names.remove("node-1")
        assert not (await drains.look("node-1")).drained


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("drain", "node-99"), "node-99"),
        (("drain", ""), "can be no node"),
        (("drain", "a" * 300, "--undo"), "can be no node"),
        (("drain", "node-1", "--undo", "--dry-run"), "--undo: use it alone"),
        (("drain", "node-1", "--wait", "--dry-run"), "--dry-run, --wait: use one of them"),
        (("nodes", "mark", "node-1", "none", "--reason", "fan 3"), "--reason: none takes back"),
    ],
)
async def test_what_cannot_be_meant_is_said(temporal: WorkflowEnvironment, arguments: tuple[str, ...], words: str) -> None:
    """A node that does not exist, and options that contradict each other, are refused."""
    async with training(temporal, a_job()) as (world, _peer):
        code, said = await ended(await typed(world, *arguments))
        assert (code, words in said) == (2, True), said


@pytest.mark.parametrize(
    ("fails", "error", "words"),
    [
        ("look", Unavailable("Temporal is away"), "node-1 stays cordoned, and its ranks go on to leave it"),
        ("begin", asyncio.CancelledError(), "node-1 may be cordoned by now"),
        ("look", asyncio.CancelledError(), "node-1 stays cordoned, and its ranks go on to leave it"),
    ],
)
async def test_who_loses_sight_of_a_drain_is_told_how_it_stands(
    monkeypatch: pytest.MonkeyPatch, fails: str, error: BaseException, words: str
) -> None:
    """The message says whether the node is cordoned or may be, when the control plane goes away or an interrupt comes."""
    drains = Mock(begin=AsyncMock(), look=AsyncMock(), **{f"{fails}.side_effect": error})
    monkeypatch.setattr(command, "control_plane", AsyncMock())
    monkeypatch.setattr(command, "Drains", Mock(return_value=drains))
    monkeypatch.setattr(command, "PATIENCE", 0)
    with problems.capture() as page, pytest.raises(type(error)) as raised:
        await command.drain("node-1")
    assert words in f"{page.get()}{raised.value}"


async def test_who_follows_a_drain_that_is_taken_back_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command would otherwise look for ever: a rank that has to leave never does."""
    row = PodRow(
        pod=PodThere(name="demo-1", uid="u", job_id="j", pod_rank=1), job="n/demo", where=Where.MOVES, why="by a hot switch"
    )
    looks = AsyncMock(return_value=Draining(node="node-1", cordoned=False, rows=(row,)))
    monkeypatch.setattr(command, "control_plane", AsyncMock())
    monkeypatch.setattr(command, "Drains", Mock(return_value=Mock(begin=AsyncMock(), look=looks)))
    monkeypatch.setattr(command, "_tell_news", AsyncMock())
    monkeypatch.setattr(command, "LOOK", 0)
    async with asyncio.timeout(60):
        assert await command.drain("node-1") == 1
    assert looks.await_count == 1
