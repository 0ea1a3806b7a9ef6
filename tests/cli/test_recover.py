"""The command line shows a job and a requested recovery: typed beside a real control plane and a scripted peer."""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Collection

import grpc
import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.errors import Invalid
from rekindle.ids import CONTROL_QUEUE, Updates, Workflows
from rekindle.model.cluster import Pod
from rekindle.model.incident import ModeRequest
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.policy.modes.requests import LONGEST_ID
from tests.fakes.peer import Script
from tests.fakes.proxy import Proxy
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.commands import Command, begun
from tests.support.harness import Harness, a_job, node_fault, sub_health, training

FORCED = ("--pod-rank", "1", "--force")
NAMELESS = (sys.executable, "-c", "import os; os.getuid = lambda: 2**31; from rekindle.cli.app import main; main()")
"""The command, run by a user id without a name."""


class Deaf:
    """Forwards every call."""

    async def before(self, caller: str, method: str, request: bytes) -> None: ...

    async def after(self, caller: str, method: str, noted: object, response: bytes) -> None: ...


class Denies(Deaf):
    """Refuses every request for versions, as an older server or one with fewer rights does."""

    async def before(self, caller: str, method: str, request: bytes) -> None:
        if method == "DescribeWorkerDeployment":
            raise grpc.aio.AioRpcError(grpc.StatusCode.PERMISSION_DENIED, grpc.aio.Metadata(), grpc.aio.Metadata(), "not for you")


class Late(Deaf):
    """Returns empty lists, as a server whose lists are late."""

    async def before(self, caller: str, method: str, request: bytes) -> None:
        if method == "ListWorkflowExecutions":
            raise grpc.aio.AioRpcError(grpc.StatusCode.PERMISSION_DENIED, grpc.aio.Metadata(), grpc.aio.Metadata(), "no list yet")


def environment(world: Harness, address: str = "", namespace: str = "default") -> dict[str, str]:
    """Returns the environment of a command at this control plane, or at another address of it, without a local cluster."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "REKINDLE_"))}
    address = address or world.client.service_client.config.target_host
    return {**plain, "TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": namespace, "REKINDLE_STATE_DIR": "/nowhere"}


async def typed(world: Harness, *arguments: str, address: str = "", namespace: str = "default") -> Command:
    return await begun(arguments, environment(world, address, namespace))


async def ended(command: Command | Process) -> tuple[int, str]:
    """Returns exit code and whole output of a command."""
    output, errors = await command.communicate()
    assert command.returncode is not None
    return command.returncode, (output + errors).decode()


async def until_said(command: Command, words: str) -> None:
    """Reads the output until this text appears."""
    async with asyncio.timeout(60):
        while words not in (line := (await command.stderr.readline()).decode()):
            assert line, f"it ended without {words!r}"


async def test_a_switch_that_ended_as_a_restart_is_not_just_recovered(temporal: WorkflowEnvironment) -> None:
    """The hot switch fails, the job is restarted and recovers: both modes and the downgrade are shown, and the exit code is 1."""
    async with training(temporal, a_job(), Script(status=406)) as (world, _peer):
        command = await typed(world, "hot-switch", world.job.id, *FORCED)
        await world.restarted()
        code, words = await ended(command)
        assert code == 1, words
        assert "hot switch: escalate, resuming fails" in words
        assert "job rescheduling: recovered" in words
        assert "to ignore: resuming fails" in words
        assert f"rekindle policy lift {world.job.name}" in words


async def test_the_phases_of_a_recovery_are_said_as_they_are_ticked_off(temporal: WorkflowEnvironment) -> None:
    """The phases before the running one are ticked, while training has not paused yet. The output ends with a post-mortem, in
    which the node of a pod moved by force is no suspect."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        command = await typed(world, "hot-switch", world.job.id, *FORCED)
        await until_said(command, "✓ hot switch: backup pod runs")
        await until_said(command, "… hot switch: backup loads, training pauses")
        await peer.pause()
        code, words = await ended(command)
        assert code == 0, words
        assert "hot switch: recovered" in words
        assert "look at" not in words


async def test_the_node_of_a_fault_is_worth_a_look(temporal: WorkflowEnvironment) -> None:
    """The post-mortem of a switch that a sub-health caused names the node to look at."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(sub_health())
        await world.incident()
        assert "look at: node node-1" in (await ended(await typed(world, "show", world.job.id)))[1]


async def test_an_interrupted_command_says_that_the_recovery_goes_on(temporal: WorkflowEnvironment) -> None:
    """Ctrl-C ends the command and not the recovery; the output says how to look at it and how to cancel it, and `cancel`
    works."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, _peer):
        command = await typed(world, "hot-switch", world.job.id, *FORCED)
        await until_said(command, "… hot switch: backup loads, training pauses")
        command.send_signal(signal.SIGINT)
        code, words = await ended(command)
        assert code == 130, words
        assert f"rekindle show {world.job.id}" in words
        assert f"rekindle cancel {world.job.id}" in words
        assert (await world.status()).running is Mode.HOT_SWITCH
        code, words = await ended(await typed(world, "cancel", world.job.id))
        assert (code, "cancelled: request/" in words) == (0, True), words
        assert (await world.incident()).verdict is Outcome.CANCELLED
        assert (await ended(await typed(world, "cancel", world.job.id)))[0] == 4


@pytest.mark.parametrize("how", ["by a workflow under an id of its own", "by an update"])
async def test_what_others_asked_for_is_cancelled_too(temporal: WorkflowEnvironment, how: str) -> None:
    """A platform may start a mode as it likes; the job reports the request, however late the server's lists are."""
    async with (
        training(temporal, a_job(), Script(pauses=False)) as (world, peer),
        Proxy("command", world.client.service_client.config.target_host, Late()) as way,
    ):
        request = ModeRequest(job=world.job.id, mode=Mode.HOT_SWITCH, pod_rank=1, force=True, requested_by="ada")
        if how == "by an update":
            name = f"drain of {world.job.id}'s node".ljust(LONGEST_ID, "!")
            asking = asyncio.create_task(world.entity.execute_update(Updates.RECOVER, request, id=name, result_type=Verdict))
        else:
            name = f"maintenance-{world.job.id}"
            front = await world.client.start_workflow(
                Workflows.HOT_SWITCH, request, id=name, task_queue=CONTROL_QUEUE, result_type=Verdict
            )
            asking = asyncio.create_task(front.result())
        await peer.until(lambda: "new pod running" in peer.orders)
        assert await ended(await typed(world, "cancel", world.job.id, address=way.address)) == (0, f"cancelled: {name}\n")
        assert (await asking).outcome is Outcome.CANCELLED


async def test_the_phases_of_another_recovery_are_not_said(temporal: WorkflowEnvironment) -> None:
    """A request that is refused because another recovery runs shows none of that one's phases."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        code, words = await ended(await typed(world, "hot-switch", world.job.id, *FORCED))
        assert (code, "busy" in words, "backup pod" in words) == (4, True, False), words
        await peer.pause()
        await world.incident()


async def test_a_temporal_that_goes_away_is_said_and_the_recovery_goes_on(temporal: WorkflowEnvironment) -> None:
    """A Temporal service that goes away is reported with exit code 3 and the command to look later. The recovery continues."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        way = Proxy("command", world.client.service_client.config.target_host, Deaf())
        async with way:
            command = await typed(world, "hot-switch", world.job.id, *FORCED, address=way.address)
            await until_said(command, "… hot switch: backup loads, training pauses")
        code, words = await ended(command)
        assert (code, "Traceback" in words) == (3, False), words
        assert f"{way.address}, namespace default" in words
        assert f"rekindle show {world.job.id}" in words
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_an_unknown_namespace_is_named_with_its_variable(temporal: WorkflowEnvironment) -> None:
    """Every command that looks for jobs names the address and namespace it asked."""
    async with training(temporal, a_job()) as (world, _peer):
        for arguments in (["jobs"], ["show", "x"]):
            code, words = await ended(await typed(world, *arguments, namespace="nowhere"))
            assert (code, "Traceback" in words, "nowhere" in words, "TEMPORAL_NAMESPACE" in words) == (3, False, True, True), (
                words
            )


async def test_where_no_control_worker_ever_started_versions_says_so(temporal: WorkflowEnvironment) -> None:
    """An empty table would not show which namespace was asked."""
    async with training(temporal, a_job()) as (world, _peer):
        code, words = await ended(await typed(world, "versions", namespace="nowhere"))
        assert (code, "no control worker has started in namespace nowhere" in words) == (0, True), words


@pytest.mark.parametrize("arguments", [["versions"], ["versions", "use", "1.0"]])
async def test_a_server_that_tells_no_versions_is_named(temporal: WorkflowEnvironment, arguments: list[str]) -> None:
    """A server that refuses to list versions is named with its message and its address, with exit code 3."""
    async with (
        training(temporal, a_job()) as (world, _peer),
        Proxy("command", world.client.service_client.config.target_host, Denies()) as way,
    ):
        code, words = await ended(await typed(world, *arguments, address=way.address))
        assert (code, "Traceback" in words) == (3, False), words
        assert f"{way.address}, namespace default" in words
        assert "not for you" in words


async def test_a_dry_run_says_what_would_be_answered(temporal: WorkflowEnvironment) -> None:
    """A request is accepted with the modes that would be tried, refused with the reason, or bad input; and nothing is
    requested."""
    async with training(temporal, a_job()) as (world, peer):
        job = world.job.id
        code, words = await ended(await typed(world, "hot-switch", job, *FORCED, "--dry-run"))
        assert (code, "would be accepted: hot switch, then, if it fails, job rescheduling" in words) == (0, True), words
        code, words = await ended(await typed(world, "hot-switch", job, "--pod-rank", "1", "--dry-run"))
        assert (code, "would be refused: pod rank 1 is healthy" in words) == (4, True), words
        assert (await ended(await typed(world, "hot-switch", job, "--pod-rank", "9", "--dry-run")))[0] == 2
        assert (await ended(await typed(world, "reschedule", job, "--dry-run")))[0] == 0
    async with training(temporal, a_job(annotations={})) as (world, peer):
        job = world.job.id
        code, words = await ended(await typed(world, "reschedule", job, "--dry-run"))
        assert (code, "would be accepted: dying gasp, then job rescheduling" in words) == (0, True), words
        code, words = await ended(await typed(world, "reschedule", job, "--no-save", "--dry-run"))
        assert (code, "would be accepted: job rescheduling" in words) == (0, True), words
        assert ((await world.status()).state.incidents, peer.orders) == (0, [])


class Stubborn(ScriptedCluster):
    """A cluster that refuses to stop the job at first."""

    refuses = True

    async def ensure_stopped(self, job_id: str, grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        if self.refuses:
            raise Invalid("the job may not be stopped")
        return await super().ensure_stopped(job_id, grace_seconds, lost_nodes)


async def test_what_is_faulty_is_recovered_by_the_cheapest_mode(temporal: WorkflowEnvironment) -> None:
    """A faulty job is recovered by the cheapest mode. A job without a fault is refused with exit code 4. A dry run of a recovery
    that was given up shows the next mode and changes nothing. Then the job is rescheduled, since its owner allows nothing
    cheaper."""
    job = a_job()
    cluster = Stubborn(job)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        for more in ([], ["--dry-run"]):
            code, words = await ended(await typed(world, "recover", job.id, *more))
            assert (code, f"nothing of job {job.name} is known to be faulty" in words) == (4, True), words
        code, words = await ended(await typed(world, "recover", job.id, "--mode", "in-place"))
        assert (code, "nothing of it is known to be faulty" in words) == (4, True), words
        await world.fault(node_fault("node-0"))
        assert (await world.incident()).verdict is Outcome.GIVEN_UP
        code, words = await ended(await typed(world, "recover", job.id, "--dry-run"))
        assert (code, "would be accepted: job rescheduling\n" in words) == (0, True), words
        code, words = await ended(await typed(world, "recover", job.id, "--mode", "process-rescheduling", "--dry-run"))
        assert (code, "its owner does not allow recover" in words) == (4, True), words
        assert (await world.status()).state.incidents == 1
        cluster.refuses = False
        command = await typed(world, "recover", job.id)
        await world.restarted(2)
        code, words = await ended(command)
        assert (code, "job rescheduling: recovered" in words) == (0, True), words


async def test_a_refused_request_is_no_failure(temporal: WorkflowEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    """A request that the job refuses is answered with its reason; the control plane logs nothing about it."""
    async with training(temporal, a_job()) as (world, _peer):
        caplog.clear()
        code, words = await ended(await typed(world, "hot-switch", world.job.id, "--pod-rank", "1"))
        assert (code, "is healthy" in words) == (4, True), words
        assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_the_incidents_of_a_job_survive_it(temporal: WorkflowEnvironment) -> None:
    """A job that has ended is listed by `jobs --all`; `show` points to `history`, which has its post-mortems."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(sub_health())
        await world.incident()
        await world.tell(ids.Updates.END, "the job succeeded")
        await world.entity.result()
        assert world.job.id not in (await ended(await typed(world, "jobs")))[1]
        _, listed = await ended(await typed(world, "jobs", "--all"))
        (row,) = [line for line in listed.splitlines() if world.job.id in line]
        assert "ended" in row
        code, words = await ended(await typed(world, "show", world.job.id))
        assert (code, f"rekindle history {world.job.id}" in words) == (2, True), words
        code, words = await ended(await typed(world, "history", world.job.id))
        assert code == 0, words
        assert "ended, the job succeeded" in words
        assert "incident 1: sub-health node-1" in words
        assert "hot switch: recovered" in words


async def test_a_user_without_a_name_may_ask(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a name may request a recovery, and the output shows the user id. Users in the pods of an installation have
    no name."""
    async with training(temporal, a_job()) as (world, _peer):
        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.delenv(name, raising=False)
        arguments = (*NAMELESS, "hot-switch", world.job.id, *FORCED)
        command = await asyncio.create_subprocess_exec(*arguments, env=environment(world), stdout=PIPE, stderr=PIPE)
        code, words = await ended(command)
        assert (code, f"requested by user {2**31}" in words) == (0, True), words
