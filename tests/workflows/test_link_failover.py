"""A maintenance of links, from the failover to the switchback days later, asked for on the wire, by a client or by a signal."""

import asyncio
import gc
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.errors import BadInput, Busy, NotMoved, Refused
from rekindle.maintenances import Maintenances
from rekindle.model.attachment import Attachment
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.links import NodeLinks, OnBackup
from rekindle.model.maintenance import Maintenance, Stage
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, JobStatus, Registration, Remembered
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, a_mindio_job, register, sub_health, training
from tests.workflows.test_elastic_training import OFFERS, elastic, lose, without_spare
from workflows import link_failover

OVER = (NodeLinks(node="node-1", devices=("0", "1"), backup=True),)


@asynccontextmanager
async def linked(
    env: WorkflowEnvironment, job: Job, script: Script | None = None, cluster: ScriptedCluster | None = None
) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    async with training(env, job, script, cluster) as (world, peer):
        await peer.with_links()
        yield world, peer


def of(world: Harness) -> Maintenances:
    return Maintenances(Rekindle(world.client))


async def nic_ops(world: Harness, *devices: tuple[str, bool], node: str = "node-1") -> wire.Status:
    """Asks for a switch of links, as a platform does."""
    message = wire.SwitchNics(jobID=world.job.id)
    message.nicOps[node].dev.extend(device for device, _ in devices)
    message.nicOps[node].op.extend(op for _, op in devices)
    async with grpc.aio.insecure_channel(world.gateway.address) as channel:
        status: wire.Status = await RecoverStub(channel).SwitchNicTrack(message)
    return status


async def told(world: Harness) -> str:
    """Returns the one message of the platform's stream."""
    async with grpc.aio.insecure_channel(world.gateway.address) as channel:
        stream = RecoverStub(channel).SubscribeSwitchNicSignal(wire.SwitchNicRequest(jobID=world.job.id))
        (words,) = [message.msg async for message in stream]
        return str(words)


async def test_a_maintenance_moves_links_waits_and_moves_them_back(temporal: WorkflowEnvironment) -> None:
    """One workflow, under an id that says which job and which links; the job is free in between."""
    async with linked(temporal, a_job()) as (world, peer):
        maintenances = of(world)
        maintenance = await maintenances.fail_over(world.job.id, OVER, requested_by="ada")
        assert maintenance == f"link-failover/default.{world.job.name}/node-1.0+1/{world.job.id[:8]}"
        known = await maintenances.settled(maintenance)
        (there,) = known.on_backup
        assert (known.stage, there.node, there.devices, peer.on_backup) == (Stage.ON_BACKUP, "node-1", ("0", "1"), {2, 3})
        (link,) = (await world.status()).state.links
        assert (link.maintenance, link.ranks) == (maintenance, (2, 3))
        assert await maintenances.find(world.job.id) == maintenance
        assert "node-1 devices 0,1 to the first link: " in await maintenances.switch_back(world.job.id)
        assert peer.on_backup == set()
        handle: WorkflowHandle[object, Maintenance] = world.client.get_workflow_handle(maintenance, result_type=Maintenance)
        ended = await handle.result()
        assert (ended.stage, ended.on_backup, [move.outcome for move in ended.moves]) == (
            Stage.OVER,
            (),
            [Outcome.RECOVERED, Outcome.RECOVERED],
        )


async def test_a_platform_hears_of_a_failure_before_its_job_trains_again(temporal: WorkflowEnvironment) -> None:
    """The platform is notified before the job trains again. The maintenance does not retry a switch that was reported as
    failed."""
    async with linked(temporal, a_mindio_job(), Script(switch_results=[False])) as (world, peer):
        world.cluster.pods_start = False
        assert (await nic_ops(world, ("0", True))).code == 0
        words = "switch nic failed, the links were not switched, and training has stopped: rank 3: eth1 is down"
        assert await told(world) == words
        status = await world.settled(lambda now: now.running is not Mode.LINK_SWITCH)
        assert status.state.history == ()
        assert len(peer.lists) == 1


async def test_a_maintenance_whose_switch_failed_is_over_also_where_training_goes_on(temporal: WorkflowEnvironment) -> None:
    """The platform was notified of the failure. The devices must therefore not remain on their backup links."""
    job = a_mindio_job(annotations={RECOVER_STRATEGY: "retry"})
    async with linked(temporal, job, Script(switch_results=[False])) as (world, peer):
        maintenances = of(world)
        maintenance = await maintenances.fail_over(world.job.id, OVER)
        with pytest.raises(
            NotMoved, match="training has stopped: rank 3: eth1 is down; online retry recovered: the step was repeated"
        ):
            await maintenances.settled(maintenance)
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert len(peer.lists) == 1


async def test_a_fault_in_the_days_between_is_recovered_as_always(temporal: WorkflowEnvironment) -> None:
    """The pod that replaces the faulty one begins on its first links. The maintenance learns of it, and is over."""
    async with linked(temporal, a_job()) as (world, _):
        await world.look()
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        await world.fault(sub_health())
        assert (await world.incident(2)).ladder[0].mode is Mode.HOT_SWITCH
        handle: WorkflowHandle[object, Maintenance] = world.client.get_workflow_handle(maintenance, result_type=Maintenance)
        ended = await handle.result()
        assert ended.stage is Stage.OVER
        assert "on their first links, in new pods: node-1 devices 0,1" in ended.moves[-1].what
        assert (await world.status()).state.links == ()
        assert "ranks 2, 3" in (await world.event("LinksReset")).message


async def test_a_maintenance_is_over_when_the_pod_whose_links_it_has_moved_leaves_the_job(temporal: WorkflowEnvironment) -> None:
    """Training goes on without the pod. Its node has no pod of the job any more, whose links could be moved back."""
    job = elastic()
    async with linked(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        await lose(world, 1)
        assert (await world.incident(2)).ladder[-1].mode is Mode.ELASTIC_TRAINING
        handle: WorkflowHandle[object, Maintenance] = world.client.get_workflow_handle(maintenance, result_type=Maintenance)
        ended = await handle.result()
        assert (ended.stage, (await world.status()).state.links) == (Stage.OVER, ())
        assert "their pods have left the job: node-1 devices 0,1" in ended.moves[-1].what


async def test_three_days_two_workers_and_a_fault_later_the_links_are_moved_back(temporal: WorkflowEnvironment) -> None:
    """A signal from any client of Temporal is enough."""
    async with linked(temporal, a_job(annotations={})) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        handle: WorkflowHandle[object, Maintenance] = world.client.get_workflow_handle(maintenance, result_type=Maintenance)
        for _ in range(2):
            await world.skip(timedelta(days=1.5), of=handle)
            await world.control.stop()
            await world.control.start()
        await peer.report_fault(3)
        assert (await world.incident(2)).ladder[-1].mode is Mode.IN_PLACE
        await handle.signal(ids.Signals.SWITCHBACK)
        assert (await handle.result()).stage is Stage.OVER
        assert peer.on_backup == set()


async def test_devices_return_one_after_the_other(temporal: WorkflowEnvironment) -> None:
    """Devices that are still on their backup links are waited for."""
    async with linked(temporal, a_job()) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        await of(world).switch_back(maintenance, (NodeLinks(node="node-1", devices=("0",), backup=False),))
        known = await of(world).status(maintenance)
        assert (known.stage, peer.on_backup) == (Stage.ON_BACKUP, {3})
        with pytest.raises(BadInput, match="device: 0 of node-1 is not on its backup link"):
            await of(world).switch_back(maintenance, (NodeLinks(node="node-1", devices=("0",), backup=False),))
        await of(world).switch_back(maintenance)
        assert peer.on_backup == set()


async def test_the_same_links_are_not_failed_over_twice(temporal: WorkflowEnvironment) -> None:
    """Neither under the same list nor under another one that has some of them."""
    async with linked(temporal, a_job()) as (world, _):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        with pytest.raises(Busy, match="failed over already, by link-failover"):
            await of(world).fail_over(world.job.id, OVER)
        other = await of(world).fail_over(world.job.id, (NodeLinks(node="node-1", devices=("1",), backup=True),))
        with pytest.raises(Refused, match=re.escape(f"on the backup link already: rank 3, moved by {maintenance}")):
            await of(world).settled(other)


async def test_who_is_refused_hears_it_once(temporal: WorkflowEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    """The error is shown once: the SDK reports the same failure a second time, and would print it below the command's own
    error."""
    async with linked(temporal, a_job()) as (world, _):
        await of(world).fail_over(world.job.id, OVER)
        with pytest.raises(Busy):
            await of(world).fail_over(world.job.id, OVER)
        gc.collect()
        assert "never retrieved" not in caplog.text


async def test_a_job_that_is_being_recovered_is_not_failed_over(temporal: WorkflowEnvironment) -> None:
    """The refusal names the running mode, and no maintenance remains."""
    async with linked(temporal, a_job(), Script(pauses=False)) as (world, _):
        await world.fault(sub_health())
        await world.running()
        with pytest.raises(Busy, match="is busy with hot switch"):
            await of(world).fail_over(world.job.id, OVER)
        assert (await nic_ops(world, ("0", True))).code == 411


async def test_a_maintenance_whose_links_cannot_be_moved_has_failed_with_the_reason(temporal: WorkflowEnvironment) -> None:
    """Training goes on, on the links of before."""
    async with linked(temporal, a_job(), Script(switch_results=[False])) as (world, _):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        with pytest.raises(NotMoved, match="rank 3: eth1 is down"):
            await of(world).settled(maintenance)
        with pytest.raises(WorkflowFailureError):
            await world.client.get_workflow_handle(maintenance).result()


async def test_a_fault_that_interrupts_a_failover_is_mended_and_it_is_tried_again(temporal: WorkflowEnvironment) -> None:
    """The fault is recovered first, and the failover is then retried without another request."""
    async with linked(temporal, a_job(annotations={}), Script(switches=False)) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await peer.until(lambda: bool(peer.lists))
        peer.script.switches = True
        peer.paused_by = ""
        await peer.report_fault(3)
        known = await of(world).settled(maintenance)
        assert (known.stage, peer.on_backup) == (Stage.ON_BACKUP, {2, 3})
        assert (await world.incident(1)).ladder[-1].mode is Mode.IN_PLACE


async def test_a_switchback_that_fails_can_be_asked_for_again(temporal: WorkflowEnvironment) -> None:
    """The devices stay where they are, and the maintenance stands."""
    async with linked(temporal, a_job(), Script(switch_results=[True, False])) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        with pytest.raises(NotMoved, match="eth1 is down"):
            await of(world).switch_back(maintenance)
        assert peer.on_backup == {2, 3}
        await of(world).switch_back(maintenance)
        assert peer.on_backup == set()


async def test_a_switchback_waits_for_a_training_side_that_is_away_for_a_moment(temporal: WorkflowEnvironment) -> None:
    """The manager or the gateway has just been restarted. The switchback waits for it, and does not get lost."""
    async with linked(temporal, a_job()) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        handle = world.client.get_workflow_handle(maintenance)
        await handle.signal(ids.Signals.SWITCHBACK)
        await _waits(handle)
        await peer.attach()
        await handle.result()
        assert peer.on_backup == set()
        moves = (await of(world).status(maintenance)).moves
        assert [move.what for move in moves].count("waits for the job") == 1
        assert "not attached" in next(move.reason for move in moves if move.what == "waits for the job")


async def _waits(handle: WorkflowHandle[object, object]) -> None:
    """Waits until the maintenance has asked twice without success."""
    asked = 0
    async for event in handle.fetch_history_events(wait_new_event=True):
        asked += event.HasField("timer_started_event_attributes")
        if asked == 2:
            return


async def test_a_switchback_that_is_refused_again_and_again_ends(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit begins with the request and not with each try. Each try is an incident, and they would push out all others."""
    monkeypatch.setattr(link_failover, "ABSENCE", timedelta(seconds=6))
    async with linked(temporal, a_job()) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        await register(world.client, world.job.model_copy(update={"limits": Limits(order=timedelta(seconds=0.6))}))
        await peer.cut()
        await world.tell(ids.Updates.ATTACH, Attachment(queue="gateway/killed", session="s", since=datetime.now(UTC)))
        with pytest.raises(Refused, match="could not be reached; nothing was touched"):
            await of(world).switch_back(maintenance)
        assert 2 < (await world.status()).state.incidents < 12
        assert (await of(world).status(maintenance)).on_backup


async def test_a_refusal_that_waiting_does_not_mend_is_said_at_once(temporal: WorkflowEnvironment) -> None:
    """The device is the job's no more: no further incident follows."""
    async with linked(temporal, a_job()) as (world, _):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        world.cluster.pods_by_name.pop(world.cluster.holder(1).metadata.name)
        with pytest.raises((Refused, NotMoved)):
            await of(world).switch_back(maintenance)
        assert (await world.status()).state.incidents == 2


async def test_a_switchback_while_links_are_failed_over_is_refused(temporal: WorkflowEnvironment) -> None:
    """A switchback without a maintenance, and one for a maintenance that is over, are refused as well."""
    async with linked(temporal, a_job(), Script(switches=False)) as (world, peer):
        with pytest.raises(BadInput, match="has none"):
            await of(world).switch_back(world.job.id)
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await peer.until(lambda: bool(peer.lists))
        with pytest.raises(Busy, match="are being failed over"):
            await of(world).switch_back(maintenance)
        await peer.report_switched()
        await of(world).settled(maintenance)
        peer.script.switches = True
        await of(world).switch_back(maintenance)
        with pytest.raises((Refused, BadInput), match=r"over|first link"):
            await of(world).switch_back(maintenance)


async def test_a_maintenance_that_is_cancelled_moves_its_links_back(temporal: WorkflowEnvironment) -> None:
    """The links are moved back, since no workflow would wait for the switchback."""
    async with linked(temporal, a_job()) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        handle = world.client.get_workflow_handle(maintenance)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert peer.on_backup == set()


async def test_a_maintenance_ends_with_its_job(temporal: WorkflowEnvironment) -> None:
    """There is nothing to move back."""
    async with linked(temporal, a_job()) as (world, _):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        await world.tell(ids.Updates.END, "the job succeeded")
        handle: WorkflowHandle[object, Maintenance] = world.client.get_workflow_handle(maintenance, result_type=Maintenance)
        assert (await asyncio.wait_for(handle.result(), 20)).stage is Stage.OVER


# ---- on the wire


async def test_a_platform_moves_links_and_hears_that_they_are_moved(temporal: WorkflowEnvironment) -> None:
    """Both directions have the codes and texts of the contract."""
    async with linked(temporal, a_job()) as (world, peer):
        status = await nic_ops(world, ("0", True), ("1", True))
        assert (status.code, status.info) == (0, "switching operation was successfully distributed")
        assert await told(world) == "switch nic finish"
        assert peer.on_backup == {2, 3}
        status = await nic_ops(world, ("0", False), ("1", False))
        assert status.code == 0, status.info
        assert await told(world) == "switch nic finish"
        assert peer.on_backup == set()


@pytest.mark.parametrize(
    ("dev", "op", "node", "words"),
    [
        ((), (), "node-1", "nicOps['node-1'].dev: empty"),
        (("0", "1"), (True,), "node-1", "nicOps['node-1'].op: 1 entries for 2 devices"),
        (("9",), (True,), "node-1", "device: 9 of node-1 is none of the job's"),
        (("0",), (True,), "node-8", "node: node-8 has no pod of the job"),
        (("0",), (False,), "node-1", "device 0 of node-1 is on its first link already"),
    ],
)
async def test_a_platform_that_names_no_device_of_the_job_gets_413(
    temporal: WorkflowEnvironment, dev: tuple[str, ...], op: tuple[bool, ...], node: str, words: str
) -> None:
    """The answer names the field, and nothing is touched."""
    async with linked(temporal, a_job()) as (world, peer):
        message = wire.SwitchNics(jobID=world.job.id)
        message.nicOps[node].dev.extend(dev)
        message.nicOps[node].op.extend(op)
        async with grpc.aio.insecure_channel(world.gateway.address) as channel:
            status = await RecoverStub(channel).SwitchNicTrack(message)
        assert status.code == 413
        assert words in status.info
        assert peer.received == []


async def test_a_device_that_another_request_moves_back_is_free_for_the_next_maintenance(temporal: WorkflowEnvironment) -> None:
    """A platform may name both directions in one call. The maintenance that had moved the device learns of it, and is over."""
    async with linked(temporal, a_job()) as (world, peer):
        assert (await nic_ops(world, ("0", True))).code == 0
        assert await told(world) == "switch nic finish"
        (first,) = (await world.status()).state.links
        assert (await nic_ops(world, ("1", True), ("0", False))).code == 0
        assert await told(world) == "switch nic finish"
        handle: WorkflowHandle[object, Maintenance] = world.client.get_workflow_handle(first.maintenance, result_type=Maintenance)
        ended = await asyncio.wait_for(handle.result(), 20)
        assert (ended.stage, ended.moves[-1].what) == (Stage.OVER, "moved by another request: node-1 device 0")
        assert (await nic_ops(world, ("0", True))).code == 0
        assert await told(world) == "switch nic finish"
        await peer.until(lambda: peer.on_backup == {2, 3})


async def test_a_job_ends_no_maintenance_of_another_one(temporal: WorkflowEnvironment) -> None:
    """A tenant may write into the memory of its own job that another job's maintenance has moved its ranks. That maintenance goes
    on."""
    async with linked(temporal, a_job()) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await of(world).settled(maintenance)
        forged = OnBackup(ranks=tuple(range(4)), maintenance=maintenance)
        stranger = a_job()
        registration = Registration(job=stranger, remembered=Remembered(job=stranger.id, links=(forged,)))
        entity = await world.client.start_workflow(
            ids.Workflows.TRAINING_JOB, JobState.of(stranger), id=ids.job_workflow(stranger.id), task_queue=ids.CONTROL_QUEUE
        )
        await entity.execute_update(ids.Updates.REGISTER, registration)
        assert (await entity.query(ids.Queries.STATUS, result_type=JobStatus)).state.links == (forged,)
        await entity.execute_update(ids.Updates.END, "Succeeded")
        await entity.result()
        known = await of(world).status(maintenance)
        assert (known.stage, [one.devices for one in known.on_backup]) == (Stage.ON_BACKUP, [("0", "1")])
        assert "to the first link" in await of(world).switch_back(maintenance)
        assert peer.on_backup == set()


async def test_a_platform_that_asks_for_no_switch_hears_of_none(temporal: WorkflowEnvironment) -> None:
    """The answer is a gRPC error, as in the contract."""
    async with linked(temporal, a_job()) as (world, _):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await told(world)
        assert "is not swtiching nic" in str(refused.value.details())


async def test_an_input_that_means_nothing_fails_with_the_field(temporal: WorkflowEnvironment) -> None:
    """The input comes from a client that starts the workflow by itself."""
    async with linked(temporal, a_job()) as (world, _):
        handle = await world.client.start_workflow(
            ids.Workflows.LINK_FAILOVER, {"job": world.job.id}, id=f"failover-{world.job.id}", task_queue=ids.CONTROL_QUEUE
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert isinstance(failed.value.cause, ApplicationError)
        assert "links: missing" in failed.value.cause.message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"job": 5}, "job: must be a string"),
        ({"job": "x", "links": "all"}, "links: "),
        ({"job": "x", "links": [{"node": "node-1", "devices": [], "backup": True}]}, "links.0.devices: "),
        ("gpt", "must be one JSON object"),
        (None, "must be one JSON object"),
        ({"job": "x", "links": [1] * 600_000}, "the input has more than 20000 values"),
        ({"job": "x", "links": [1] * 600}, "600, among them links.0: must be a mapping"),
        (
            {"job": "x", "name": "ä" * 900, "links": [{"node": "n", "devices": ["0"], "backup": True}]},
            "job: 'x' is not registered",
        ),
    ],
)
async def test_an_input_of_another_shape_fails_with_the_field(temporal: WorkflowEnvironment, given: object, words: str) -> None:
    """The workflow fails instead of waiting for ever."""
    async with linked(temporal, a_job()) as (world, _):
        handle = await world.client.start_workflow(
            ids.Workflows.LINK_FAILOVER, given, id=f"failover-{world.job.id}", task_queue=ids.CONTROL_QUEUE
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(handle.result(), 10)
        assert isinstance(failed.value.cause, ApplicationError)
        assert words in failed.value.cause.message
        assert failed.value.cause.type in (ids.ErrorTypes.REQUEST_INVALID, ids.ErrorTypes.JOB_UNKNOWN)


async def test_a_worker_that_dies_while_links_are_moved_costs_nothing(temporal: WorkflowEnvironment) -> None:
    """The next worker finds the accepted request, and the answer that came meanwhile."""
    async with linked(temporal, a_job(), Script(switches=False)) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        await peer.until(lambda: bool(peer.lists))
        await world.control.stop()
        reported = asyncio.create_task(peer.report_switched())
        await world.control.start()
        await reported
        known = await of(world).settled(maintenance)
        assert (known.stage, peer.carried_out) == (Stage.ON_BACKUP, ["pause_train", "continue"])
