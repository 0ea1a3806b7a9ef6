"""Events of the same moment: a cancellation and the pause, updates and continue-as-new, a stream that never stays."""

import asyncio
import gc
from datetime import timedelta
from types import CoroutineType
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.cluster import Condition
from rekindle.model.dialogue import Receipt
from rekindle.model.fault import WATCHER, Fault, FaultReport, Sighting
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script
from tests.support.harness import Harness, a_job, harness, node_fault, sub_health, training
from workers.gateway.job_workflows import Jobs
from workflows.hot_switch import HotSwitch
from workflows.job_rescheduling import JobRescheduling
from workflows.training_job import TrainingJob

LOST_NODE = node_fault("node-0").model_copy(update={"source": WATCHER})
"""Lost node as the watcher reports it, which may come back."""


async def test_a_cancellation_that_crosses_the_report_of_the_pause_goes_forward(temporal: WorkflowEnvironment) -> None:
    """Both reach the workflow in one task: training is paused and waits for its order, so the hot switch is finished."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.phase("backup loads, training pauses")
        recovery = await world.running()
        await world.control.stop()
        pausing = asyncio.create_task(peer.pause())
        async with asyncio.timeout(60):
            while not world.gateway.storing:
                await asyncio.sleep(0.01)
        await recovery.cancel()
        await world.control.start()
        await pausing
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]


async def test_a_switch_that_is_cancelled_while_its_backup_is_made_leaves_none(temporal: WorkflowEnvironment) -> None:
    """A large cluster looks for a place for seconds. A backup that came after the undo would hold a node until the job ends."""
    async with training(temporal, a_job()) as (world, _peer):
        world.cluster.making.may_be.clear()
        await world.fault(sub_health())
        await world.cluster.making.is_asked.wait()
        recovery = await world.running()
        await recovery.cancel()
        async with asyncio.timeout(60):
            while not await _has_heard_of_its_cancellation(recovery):
                await asyncio.sleep(0.01)
        begun = [
            event.activity_task_scheduled_event_attributes.activity_type.name async for event in recovery.fetch_history_events()
        ]
        assert "delete_backups" not in begun
        world.cluster.making.may_be.set()
        assert (await world.incident()).verdict is Outcome.CANCELLED
        assert len(world.cluster.pods_by_name) == world.job.pods
        assert [write for write in world.cluster.writes if "-hot-" in write][-1].startswith("kill")


async def _has_heard_of_its_cancellation(recovery: WorkflowHandle[Any, Any]) -> bool:
    events = [event.event_type async for event in recovery.fetch_history_events()]
    asked = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
    return asked in events and EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in events[events.index(asked) :]


RUNS = {workflow.run.__qualname__ for workflow in (TrainingJob, HotSwitch, JobRescheduling)}


@pytest.mark.parametrize(
    ("fault", "phase"),
    [(sub_health(), "backup loads, training pauses"), (node_fault("node-0"), "pods start on healthy nodes")],
    ids=["hot switch", "job rescheduling"],
)
async def test_a_worker_that_stops_drops_its_workflows_without_a_word(
    temporal: WorkflowEnvironment, fault: Fault, phase: str
) -> None:
    """A worker that stopped leaves its coroutines to the garbage collector, which closes them outside their loop. They must not
    raise there, as no caller catches the exception. The next worker continues."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, _peer):
        world.cluster.pods_are_placed = False
        await world.fault(fault)
        await world.phase(phase)
        runs = [thing for thing in gc.get_objects() if type(thing) is CoroutineType and thing.__qualname__ in RUNS]
        await world.control.stop()
        assert runs
        for run in runs:
            run.close()
        await world.control.start()
        await world.phase(phase)


@pytest.mark.parametrize("senders", [6])
async def test_no_update_is_lost_when_the_job_continues_as_new(temporal: WorkflowEnvironment, senders: int) -> None:
    """Messages that arrive without pause while incidents end and runs change are all taken, none is refused."""
    async with training(temporal, a_job()) as (world, _peer):
        jobs, over = Jobs(world.client), asyncio.Event()

        async def send() -> int:
            sent = 0
            while not over.is_set():
                receipt = await jobs.ask(world.job.id, ids.Updates.REPORT_FAULTS, FaultReport(cleared=("nothing",)))
                assert receipt.info == "taken"
                sent += 1
            return sent

        sending = [asyncio.create_task(send()) for _ in range(senders)]
        first_run = (await world.entity.describe()).run_id
        for number in (1, 2, 3):
            assert (await (await world.front(force=True)).result()).outcome is Outcome.RECOVERED
            await world.incident(number)
        over.set()
        assert sum(await asyncio.gather(*sending)) > senders
        assert (await world.entity.describe()).run_id != first_run


async def test_a_fault_that_is_given_time_counts_while_the_last_note_is_not_taken(temporal: WorkflowEnvironment) -> None:
    """A cluster that takes no annotation must not keep a job from being recovered: the next run of its workflow can wait."""
    async with training(temporal, a_job(limits=Limits(node_lost=timedelta(seconds=0.5)))) as (world, _peer):
        world.cluster.takes_notes.clear()
        await world.fault(sub_health())
        await world.incident(1)
        gone = Condition(type="Ready", status="False", message="no word of its kubelet")
        world.cluster.conditions["node-0"] = (gone,)
        await world.tell(ids.Updates.SIGHTING, Sighting(faults=(LOST_NODE,)))
        await world.settled(lambda status: status.running is Mode.JOB_RESCHEDULING)
        world.cluster.takes_notes.set()
        assert (await world.restarted(2)).verdict is Outcome.RECOVERED


async def test_a_fault_that_is_given_time_counts_also_if_a_word_comes_in_that_moment(temporal: WorkflowEnvironment) -> None:
    """The end of the fault's time and another message reach the workflow in one task. The running hot switch is notified of the
    lost node."""
    async with training(temporal, a_job(limits=Limits(node_lost=timedelta(seconds=1))), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.phase("backup loads, training pauses")
        await world.tell(ids.Updates.SIGHTING, Sighting(faults=(LOST_NODE,)))
        await world.control.stop()
        await _fired(world, "a fault is given time")
        await world.entity.signal(ids.Signals.UPGRADED)
        await world.control.start()
        assert (await world.incident(1)).verdict is Outcome.CANCELLED
        await peer.until(
            lambda: peer.orders.count("new pod running") == 2
        )  # the look before a restart showed the node well again
        await peer.pause()
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


async def _fired(world: Harness, summary: str) -> None:
    """Waits until the last timer of the job's workflow with this summary has fired, which no worker has processed."""
    async with asyncio.timeout(60):
        while True:
            events = (await world.entity.fetch_history()).events
            started = [e.event_id for e in events if summary.encode() in e.user_metadata.summary.data]
            if started[-1] in [e.timer_fired_event_attributes.started_event_id for e in events]:
                return
            await asyncio.sleep(0.03)


async def test_a_stream_that_moves_again_and_again_costs_nothing(temporal: WorkflowEnvironment) -> None:
    """Six moves between two gateways while the pause is awaited: each gets the order again, it is carried out once."""
    async with harness(temporal, a_job(), gateways=2) as world, world.peer(Script(pauses=False)) as peer:
        await world.first_step()
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        for move in range(6):
            await peer.cut()
            peer.address = world.gateways[(move + 1) % 2].address
            await peer.attach()
        await peer.until(lambda: peer.orders.count("new pod running") > 1)
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]
        assert not peer.exited


@pytest.mark.usefixtures("one_incident_a_run")
async def test_a_report_of_faults_that_is_repeated_behind_its_recovery_is_taken_once(temporal: WorkflowEnvironment) -> None:
    """The answer to the report was lost. Another run of the job's workflow receives it again, of which the server knows no
    update."""
    async with training(temporal, a_job()) as (world, _peer):
        report = FaultReport(faults=(sub_health(),))

        async def tell() -> None:
            await world.entity.execute_update(ids.Updates.REPORT_FAULTS, report, id="a report", result_type=Receipt)

        before = (await world.entity.describe()).run_id
        await tell()
        await world.incident()
        async with asyncio.timeout(60):
            while (await world.entity.describe()).run_id == before:
                await asyncio.sleep(0.03)
        await tell()
        status = await world.status()
        assert (status.state.incidents, status.running, status.state.faults) == (1, None, ())
