"""Maintenances of links that meet the unexpected: other moves of links, messages that cross, and lost workflows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.model.attachment import Progress
from rekindle.model.links import LinksReset, NodeLinks
from rekindle.model.maintenance import Maintenance, Stage, SwitchBack
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.harness import GatewayProcess, Harness, a_job, harness
from tests.workflows.test_link_failover import OVER, linked, nic_ops, of, told
from tests.workflows.test_lost_jobs import _noted, _register
from workers.gateway import operations


def device(name: str, *, backup: bool = False, node: str = "node-1") -> NodeLinks:
    return NodeLinks(node=node, devices=(name,), backup=backup)


def handle_of(world: Harness, maintenance: str) -> WorkflowHandle[object, Maintenance]:
    return world.client.get_workflow_handle(maintenance, result_type=Maintenance)


async def until(world: Harness, maintenance: str, condition: Callable[[Maintenance], bool]) -> Maintenance:
    async with asyncio.timeout(60):
        while not condition(known := await of(world).status(maintenance)):
            await asyncio.sleep(0.03)
        return known


async def ended(world: Harness, maintenance: str) -> Maintenance:
    return await asyncio.wait_for(handle_of(world, maintenance).result(), 30)


# ---- others move the same links


async def test_a_maintenance_whose_links_somebody_else_has_moved_back_is_over(temporal: WorkflowEnvironment) -> None:
    """A client that moves links without a maintenance: there is nothing left to switch back."""
    async with linked(temporal, a_job()) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        await Rekindle(world.client).move_links(world.job.id, (device("0"),))
        known = await until(world, maintenance, lambda known: bool(known.on_backup) and known.on_backup[0].devices == ("1",))
        assert (known.stage, peer.on_backup) == (Stage.ON_BACKUP, {3})
        await Rekindle(world.client).move_links(world.job.id, (device("1"),))
        assert (await ended(world, maintenance)).stage is Stage.OVER


async def test_a_platform_that_moves_some_devices_over_and_others_back_ends_the_maintenance_of_these(
    temporal: WorkflowEnvironment,
) -> None:
    """One call of the contract may say both."""
    async with linked(temporal, a_job()) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, (device("0", backup=True),))
        await of(world).settled(maintenance)
        assert (await nic_ops(world, ("0", False), ("1", True))).code == 0
        assert await told(world) == "switch nic finish"
        assert peer.on_backup == {3}
        assert (await ended(world, maintenance)).stage is Stage.OVER


async def test_a_platform_switches_back_beside_links_that_a_client_has_moved(temporal: WorkflowEnvironment) -> None:
    """Links that a client has moved without a maintenance are not asked for."""
    async with linked(temporal, a_job()) as (world, peer):
        await Rekindle(world.client).move_links(world.job.id, (device("0", backup=True, node="node-0"),))
        await of(world).settled(await of(world).fail_over(world.job.id, OVER))
        status = await nic_ops(world, ("0", False), ("1", False))
        assert status.code == 0, status.info
        assert await told(world) == "switch nic finish"
        assert peer.on_backup == {0}
        status = await nic_ops(world, ("0", False), node="node-0")
        assert (status.code, "device 0 of node-0 was moved by no maintenance" in status.info) == (413, True), status.info


async def test_a_maintenance_under_an_id_of_its_own_is_found(temporal: WorkflowEnvironment) -> None:
    """Any client of Temporal may begin one; the command and the platform end it like any other."""
    async with linked(temporal, a_job()) as (world, peer):
        for end in ("by its job", "by its id", "by a platform"):
            written = {"job": world.job.id, "links": [{"node": "node-1", "devices": ["0"], "backup": True}]}
            own = f"maintain-{world.job.name}"
            await world.client.start_workflow(ids.Workflows.LINK_FAILOVER, written, id=own, task_queue=ids.CONTROL_QUEUE)
            await until(world, own, lambda known: known.stage is Stage.ON_BACKUP)
            assert peer.on_backup == {2}
            if end == "by a platform":
                status = await nic_ops(world, ("0", False))
                assert status.code == 0, status.info
            else:
                await of(world).switch_back(world.job.id if end == "by its job" else own)
            assert (await ended(world, own)).stage is Stage.OVER
            assert peer.on_backup == set()


# ---- messages that cross


async def test_each_device_that_a_signal_names_returns(temporal: WorkflowEnvironment) -> None:
    """Also if the second signal comes while the device of the first one is being moved."""
    async with linked(temporal, a_job()) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        peer.script.switches = False
        await handle_of(world, maintenance).signal(ids.Signals.SWITCHBACK, SwitchBack(links=(device("0"),)))
        await peer.until(lambda: len(peer.lists) == 2)
        await handle_of(world, maintenance).signal(ids.Signals.SWITCHBACK, SwitchBack(links=(device("1"),)))
        peer.script.switches = True
        await peer.report_switched()
        assert (await ended(world, maintenance)).stage is Stage.OVER
        assert [list(ranks.rankID) for ranks in peer.lists[1:]] == [["2"], ["3"]]


async def test_pods_that_are_replaced_before_the_maintenance_hears_that_it_moved_them_are_not_on_backup_links(
    temporal: WorkflowEnvironment,
) -> None:
    """The job reports both events, by two ways."""
    async with linked(temporal, a_job(), Script(switches=False)) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await peer.until(lambda: bool(peer.lists))
        await handle_of(world, maintenance).signal(ids.Signals.LINKS_RESET, LinksReset(ranks=(2, 3), why="in new pods"))
        await peer.report_switched()
        assert (await ended(world, maintenance)).stage is Stage.OVER


async def test_a_failover_that_is_cancelled_is_not_tried_again(temporal: WorkflowEnvironment) -> None:
    """A fault has interrupted it: nothing was moved, and nothing has to be."""
    async with linked(temporal, a_job(annotations={}), Script(switches=False)) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await peer.until(lambda: bool(peer.lists))
        await handle_of(world, maintenance).cancel()
        await world.recorded(handle_of(world, maintenance), "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
        peer.script.switches = True
        peer.paused_by = ""
        await peer.report_fault(3)
        with pytest.raises(WorkflowFailureError):
            await ended(world, maintenance)
        assert (len(peer.lists), peer.on_backup) == (1, set())


async def test_a_platform_hears_of_a_switchback_that_failed_whatever_was_noted_since(temporal: WorkflowEnvironment) -> None:
    """Such as a signal that means nothing."""
    async with linked(temporal, a_job(), Script(switch_results=[True, False])) as (world, peer):
        assert (await nic_ops(world, ("0", True), ("1", True))).code == 0
        assert await told(world) == "switch nic finish"
        assert (await nic_ops(world, ("0", False), ("1", False))).code == 0
        assert "eth1 is down" in await told(world)
        maintenance = await of(world).find(world.job.id)
        await handle_of(world, maintenance).signal(ids.Signals.SWITCHBACK, SwitchBack(links=(device("7"),)))
        await until(world, maintenance, lambda known: "refused" in known.moves[-1].what)
        assert "eth1 is down" in await told(world)
        assert peer.on_backup == {2, 3}


async def test_a_platform_that_switches_two_maintenances_back_at_once_hears_of_both(temporal: WorkflowEnvironment) -> None:
    """The first one fails, and the second one does not."""
    async with linked(temporal, a_job(), Script(switch_results=[True, True, False])) as (world, peer):
        for name in ("0", "1"):
            assert (await nic_ops(world, (name, True))).code == 0
            assert await told(world) == "switch nic finish"
        assert (await nic_ops(world, ("0", False), ("1", False))).code == 0
        assert "eth1 is down" in await told(world)
        assert (len(peer.lists), peer.on_backup) == (4, {2})


async def test_a_platform_whose_switch_takes_too_long_is_told_so(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has the contract's text."""
    monkeypatch.setattr(operations, "ANSWER", timedelta(seconds=0.3))  # which is real time: the gateway skips none
    async with linked(temporal, a_job(), Script(switches=False)) as (world, peer):
        assert (await nic_ops(world, ("0", True))).code == 0
        await peer.until(lambda: bool(peer.lists))
        assert await told(world) == "report switch nic result timeout, please check manually"
        await peer.report_switched()


# ---- several gateways


async def _signal_stream(gateway: GatewayProcess, job_id: str) -> str:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stream = RecoverStub(channel).SubscribeSwitchNicSignal(wire.SwitchNicRequest(jobID=job_id))
        (words,) = [message.msg async for message in stream]
        return str(words)


async def test_a_platform_hears_of_the_last_switch_at_whatever_gateway_it_asks(temporal: WorkflowEnvironment) -> None:
    """The one that was asked for at this gateway before is over long ago."""
    async with harness(temporal, a_job(), gateways=2) as world, world.peer() as peer:
        await world.first_step()
        await peer.with_links()
        assert (await nic_ops(world, ("0", True))).code == 0
        assert await told(world) == "switch nic finish"
        assert (await nic_ops(world, ("0", False))).code == 0
        assert await told(world) == "switch nic finish"
        message = wire.SwitchNics(jobID=world.job.id)
        message.nicOps["node-1"].dev.append("1")
        message.nicOps["node-1"].op.append(True)
        peer.script.switches = False
        async with grpc.aio.insecure_channel(world.gateways[1].address) as channel:
            assert (await RecoverStub(channel).SwitchNicTrack(message)).code == 0
        await peer.until(lambda: len(peer.lists) == 3)
        hearing = asyncio.create_task(_signal_stream(world.gateways[0], world.job.id))
        done, _ = await asyncio.wait({hearing}, timeout=1)
        assert not done, hearing.result()
        await peer.report_switched(result=False, info="eth1 is down")
        assert "eth1 is down" in await hearing


# ---- the job's workflow is lost


@asynccontextmanager
async def _training(env: WorkflowEnvironment, script: Script | None = None) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    """Yields a job that trains, whose gateway offers its stream again and again."""
    async with harness(env, a_job(), offer_again=0.2) as world, world.peer(script) as peer:
        await world.look()
        assert await peer.report_progress(Progress(incarnation="life-1", step=1)) == 0
        yield world, await peer.with_links()
        assert not peer.exited, peer.exited


async def test_a_maintenance_outlives_the_loss_of_its_jobs_workflow(temporal: WorkflowEnvironment) -> None:
    """A switchback that is asked for in between waits for the next one, which knows of the links."""
    async with _training(temporal) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        await _noted(world, lambda known: bool(known.links) and not known.recovery)
        await world.entity.terminate("by mistake")
        returning = asyncio.create_task(of(world).switch_back(maintenance))
        await until(world, maintenance, lambda known: "waits for the job" in known.moves[-1].what)
        await _register(world)
        assert "to the first link" in await returning
        assert peer.on_backup == set()


async def test_a_maintenance_whose_job_is_gone_for_good_is_over(temporal: WorkflowEnvironment) -> None:
    """The job's workflow was lost, and the cluster has no such job any more: there is nothing to move back."""
    async with linked(temporal, a_job()) as (world, _):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        await world.entity.terminate("by mistake")
        world.cluster.phase = None
        await handle_of(world, maintenance).signal(ids.Signals.SWITCHBACK)
        known = await ended(world, maintenance)
        assert (known.stage, known.on_backup) == (Stage.OVER, ())


async def _moved_while_lost(world: Harness, peer: ScriptedPeer) -> str:
    """Has links moved by a maintenance while the job's workflow is lost and registered again. Returns the maintenance."""
    maintenance = await of(world).fail_over(world.job.id, OVER)
    await peer.until(lambda: bool(peer.lists))
    await _noted(world, lambda known: bool(known.recovery))
    await world.entity.terminate("by mistake")
    await _register(world)
    peer.script.switches = True
    await peer.report_switched()
    return maintenance


async def test_links_that_are_moved_while_the_jobs_workflow_is_lost_belong_to_their_maintenance(
    temporal: WorkflowEnvironment,
) -> None:
    """The link switch goes to its end, and the maintenance that asked for it waits for days, as ever."""
    async with _training(temporal, Script(switches=False)) as (world, peer):
        maintenance = await _moved_while_lost(world, peer)
        status = await world.settled(lambda status: bool(status.state.links))
        assert [(link.maintenance, link.ranks) for link in status.state.links] == [(maintenance, (2, 3))]
        known = await of(world).settled(maintenance)
        assert (known.stage, len(peer.lists)) == (Stage.ON_BACKUP, 1)
        await of(world).switch_back(maintenance)
        assert list(peer.lists[-1].op) == [False, False]


async def test_a_failover_that_was_carried_out_is_known_by_the_jobs_state(temporal: WorkflowEnvironment) -> None:
    """The workflow that had accepted it is lost, and the next one cannot be asked, since the stream is away: nothing failed."""
    async with _training(temporal, Script(switches=False)) as (world, peer):
        maintenance = await _moved_while_lost(world, peer)
        await world.settled(lambda status: bool(status.state.links))
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        known = await until(world, maintenance, lambda known: known.stage is Stage.ON_BACKUP)
        assert "the job has done it" in known.moves[-1].reason
        assert len(peer.lists) == 1
