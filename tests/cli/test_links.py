"""The command line shows links that are failed over and switched back: typed beside a real control plane and a scripted peer."""

import asyncio
import json
import signal

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.links import NodeLinks
from tests.cli.test_recover import ended, typed
from tests.fakes.peer import Script
from tests.support.harness import a_job, training

NODE = ("--node", "node-1")


async def test_a_maintenance_is_begun_shown_and_ended(temporal: WorkflowEnvironment) -> None:
    """Each command shows the state of the links, and the next command."""
    async with training(temporal, a_job()) as (world, peer):
        await peer.with_links()
        name = world.job.name
        code, said = await ended(await typed(world, "failover", name, *NODE, "--devices", "0,1"))
        assert code == 0, said
        assert f"{name}: on the backup link, node-1 devices 0,1" in said
        assert f"rekindle switchback {name}" in said
        assert peer.on_backup == {2, 3}
        code, said = await ended(await typed(world, "show", name))
        assert f"on the backup link: ranks 2, 3, moved by link-failover/default.{name}/node-1.0+1/" in said
        code, said = await ended(await typed(world, "maintenances", "--output", "json"))
        (row,) = [row for row in json.loads(said) if name in row["id"]]
        assert (code, row["state"]) == (0, "on the backup link")
        code, said = await ended(await typed(world, "switchback", name, *NODE, "--devices", "0"))
        assert (code, peer.on_backup) == (0, {3}), said
        code, said = await ended(await typed(world, "switchback", row["id"]))
        assert code == 0, said
        assert f"{row['id']}: over, all devices on their first links" in said
        assert peer.on_backup == set()


async def test_devices_whose_maintenance_was_ended_by_somebody_return_all_the_same(temporal: WorkflowEnvironment) -> None:
    """Devices whose maintenance was terminated return all the same, if they are named: only the job remembers them, as ranks."""
    async with training(temporal, a_job()) as (world, peer):
        await peer.with_links()
        name = world.job.name
        await ended(await typed(world, "failover", name, *NODE, "--devices", "0,1"))
        (link,) = (await world.status()).state.links
        await world.client.get_workflow_handle(link.maintenance).terminate("by mistake")
        code, said = await ended(await typed(world, "switchback", name))
        assert (code, "has none" in said) == (2, True)
        code, said = await ended(await typed(world, "switchback", name, *NODE, "--devices", "0,1"))
        assert (code, peer.on_backup) == (0, set()), said
        assert (await world.status()).state.links == ()


async def test_all_jobs_of_a_selector_are_moved_each_with_its_line(temporal: WorkflowEnvironment) -> None:
    """All jobs of a selector are moved, each with its line of output. Jobs without the label are left alone."""
    async with training(temporal, a_job(labels={"team": "vision"})) as (world, peer):
        await peer.with_links()
        selector = ("--selector", "team=vision", "--output", "json")
        code, said = await ended(await typed(world, "failover", *selector, *NODE, "--devices", "0"))
        (row,) = json.loads(said.splitlines()[0])
        assert (code, row["job"], row["moved"], peer.on_backup) == (0, world.job.name, True, {2})
        code, said = await ended(await typed(world, "failover", "--selector", "team=none", *NODE, "--devices", "0"))
        assert (code, "no job has the labels team=none" in said) == (2, True)


async def test_a_dry_run_says_what_would_be_answered(temporal: WorkflowEnvironment) -> None:
    """A dry run shows what would be answered, and changes nothing."""
    async with training(temporal, a_job()) as (world, peer):
        name = world.job.name
        code, said = await ended(await typed(world, "failover", name, *NODE, "--devices", "0", "--dry-run"))
        assert (code, f"{name}: would be accepted: node-1 device 0 to the backup link" in said) == (0, True)
        assert peer.received == []
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        code, said = await ended(await typed(world, "failover", name, *NODE, "--devices", "0", "--dry-run"))
        assert (code, "would be refused: the training side is not attached to a gateway" in said) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("failover", "JOB", *NODE), 2, "--devices: either devices, such as 0,8, or --leaf 1 or 2"),
        (("failover", "JOB", *NODE, "--leaf", "3"), 2, "--leaf: 3 is not a leaf, accepted are 1, 2"),
        (("failover", "JOB", *NODE, "--devices", "0,,1"), 2, "--devices.1: "),
        (("failover", "JOB", *NODE, "--devices", "0,0"), 2, "device 0 of node-1 is named twice"),
        (("failover", *NODE, "--devices", "0"), 2, "either a job, by its name or id, or --selector"),
        (("failover", "--selector", "team", *NODE, "--devices", "0"), 2, "--selector: 'team' is not accepted"),
        (("failover", "JOB", *NODE, "--leaf", "1"), 2, "device: 8 of node-1 is none of the job's, accepted are 0, 1"),
        (("failover", "JOB", "--node", "node-7", "--devices", "0"), 2, "node: node-7 has no pod of the job"),
        (("switchback", "JOB"), 2, "has none: no device of it is on its backup link by a maintenance"),
        (("switchback", "JOB", "--devices", "0"), 2, "--node: missing"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_its_name(
    temporal: WorkflowEnvironment, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """An invalid request is refused by its name, before anything is changed."""
    async with training(temporal, a_job()) as (world, peer):
        found, said = await ended(await typed(world, *(world.job.name if one == "JOB" else one for one in arguments)))
        assert (found, words in said) == (code, True), said
        assert peer.received == []


async def test_a_switch_that_fails_is_said_with_its_reason(temporal: WorkflowEnvironment) -> None:
    """Training continues, and the command fails."""
    async with training(temporal, a_job(), Script(switch_results=[False])) as (world, peer):
        await peer.with_links()
        code, said = await ended(await typed(world, "failover", world.job.name, *NODE, "--devices", "0,1"))
        assert (code, "rank 3: eth1 is down" in said) == (1, True), said


@pytest.mark.parametrize(
    ("devices", "code", "words"),
    [
        (("--node", "node-7", "--devices", "0"), 2, "node: node-7 has no pod of the job"),
        ((*NODE, "--devices", "0,7"), 2, "device: 7 of node-1 is none of the job's, accepted are 0, 1"),
        ((*NODE, "--devices", "0,1"), 4, "these links are failed over already, by link-failover/"),
        ((*NODE, "--devices", "1"), 4, "on the backup link already: rank 3, moved by link-failover/"),
    ],
)
async def test_a_dry_run_says_what_the_command_says(
    temporal: WorkflowEnvironment, devices: tuple[str, ...], code: int, words: str
) -> None:
    """Messages and exit code are the same, also for what only the cluster knows; no maintenance is left in the list."""
    async with training(temporal, a_job()) as (world, peer):
        await peer.with_links()
        name = world.job.name
        await ended(await typed(world, "failover", name, *NODE, "--devices", "0,1"))
        there = await ended(await typed(world, "maintenances", "--all"))
        found, said = await ended(await typed(world, "failover", name, *devices, "--dry-run"))
        assert (found, f"{name}: would be refused: {words}" in said) == (code, True), said
        assert await ended(await typed(world, "maintenances", "--all")) == there
        found, really = await ended(await typed(world, "failover", name, *devices))
        assert (found, really.strip().removeprefix("error: ")) == (code, said.strip().partition("refused: ")[2])


async def test_a_machine_is_told_the_same_exit_codes(temporal: WorkflowEnvironment) -> None:
    """JSON output has the same exit codes as text output."""
    async with training(temporal, a_job(), Script(switch_results=[False])) as (world, peer):
        await peer.with_links()
        name, json_too = world.job.name, ("--output", "json")
        for node, expected in (("node-7", 2), ("node-1", 1)):
            code, said = await ended(await typed(world, "failover", name, "--node", node, "--devices", "0", *json_too))
            assert (code, json.loads(said)[0]["moved"]) == (expected, False), said
        code, said = await ended(await typed(world, "switchback", name, *json_too))
        assert (code, json.loads(said)[0]["moved"]) == (2, False), said


async def test_a_maintenance_of_any_client_is_found_whatever_its_id(temporal: WorkflowEnvironment) -> None:
    """A maintenance of any client is found by its job and by its id. An unknown maintenance is not reported as over."""
    async with training(temporal, a_job()) as (world, peer):
        await peer.with_links()
        name, links = world.job.name, [{"node": "node-1", "devices": ["0", "1"], "backup": True}]
        for job, switched_back in ((name, name), (world.job.id, name), (name, f"mine/{name}")):
            begun = await world.client.start_workflow(
                ids.Workflows.LINK_FAILOVER, {"job": job, "links": links}, id=f"mine/{name}", task_queue=ids.CONTROL_QUEUE
            )
            await begun.execute_update(ids.FailoverUpdates.SETTLED)
            assert peer.on_backup == {2, 3}
            async with asyncio.timeout(60):
                while begun.id not in (await ended(await typed(world, "maintenances")))[1]:
                    await asyncio.sleep(0.1)
            code, said = await ended(await typed(world, "switchback", switched_back))
            assert (code, peer.on_backup) == (0, set()), said
        code, said = await ended(await typed(world, "switchback", "link-failover/none"))
        assert (code, "maintenance: 'link-failover/none' is not known" in said) == (2, True), said


async def test_ctrl_c_ends_the_command_and_not_what_has_begun(temporal: WorkflowEnvironment) -> None:
    """Ctrl-C ends the command and not the operation that has begun. The command says so without a traceback."""
    async with training(temporal, a_job(), Script(switches=False)) as (world, peer):
        await peer.with_links()
        command = await typed(world, "failover", world.job.name, *NODE, "--devices", "0,1")
        await peer.until(lambda: bool(peer.lists))
        command.send_signal(signal.SIGINT)
        code, said = await ended(command)
        assert (code, said.strip()) == (130, "what has begun goes on. Look at it with: rekindle maintenances")
        peer.script.switches = True
        await peer.report_switched()
        moved = ids.failover_workflow(world.job, [NodeLinks(node="node-1", devices=("0", "1"), backup=True)])
        await world.client.get_workflow_handle(moved).execute_update(ids.FailoverUpdates.SETTLED)
        code, said = await ended(await typed(world, "switchback", world.job.name))
        assert code == 0, said
