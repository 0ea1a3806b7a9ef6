"""A lost workflow of a job (one that was terminated) is registered again and goes on. One that is cancelled ignores that."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from activities.jobs import JobActivities
from rekindle import ids
from rekindle.model.attachment import Progress
from rekindle.model.cluster import JobObject, JobView
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.keys import DOWNGRADED, MEMORY, SUB_HEALTHY_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import Registration, Remembered
from rekindle.policy.detection import watcher_updates
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import RESUMES, Harness, a_job, harness, node_fault, sub_health
from tests.workflows.support.modes import DeafHotSwitch
from tests.workflows.test_elastic_training import elastic, lose
from workers.watcher.job_workflows import register
from workflows.in_place import InPlaceRecovery
from workflows.job_rescheduling import JobRescheduling

OFTEN = 0.2
"""Seconds in which the gateway offers its attachment again."""


@asynccontextmanager
async def _training(
    env: WorkflowEnvironment, job: Job, script: Script | None = None, cluster: ScriptedCluster | None = None
) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    """A job that trains; its gateway knows of its first step, and offers its attachment again and again."""
    async with harness(env, job, cluster, offer_again=OFTEN) as world, world.peer(script) as peer:
        assert await peer.report_progress(Progress(incarnation="life-1", step=1)) == 0
        yield world, peer
        assert not peer.exited, peer.exited


def _remembered(cluster: ScriptedCluster) -> Remembered:
    """Returns the memory that is written on the job's object."""
    return Remembered.model_validate_json(cluster.labels.get(MEMORY) or "{}")


async def _noted(world: Harness, condition: Callable[[Remembered], bool]) -> Remembered:
    """Waits until the job's object says what must be found again."""
    async with asyncio.timeout(60):
        while not condition(_remembered(world.cluster)):
            await asyncio.sleep(0.03)
    return _remembered(world.cluster)


async def _lost_and_registered_again(world: Harness) -> None:
    """Terminates the job's workflow, and registers the job again as the watcher does. Returns when the gateway has offered its
    stream to the new workflow."""
    await world.entity.terminate("by mistake")
    await _register(world)
    await world.settled(lambda status: status.state.attachment is not None and status.state.progress is not None)


async def _register(world: Harness, *, observe: bool = False) -> None:
    """Registers the job as the watcher does, with the annotations that its object has now."""
    written = {key: text for key, text in world.cluster.labels.items() if text is not None}
    found = await world.cluster.job(world.job.id)
    shown = _shown(world, found.model_copy(update={"metadata": found.metadata.model_copy(update={"annotations": written})}))
    policy = SubHealthStrategy(written.get(SUB_HEALTHY_STRATEGY, world.job.sub_health))
    job = world.job.model_copy(update={"sub_health": policy, "annotations": written, "observe": observe})
    registration = Registration(job=job, sighting=shown.sighting, remembered=shown.remembered)
    await register(world.client, registration, uuid.uuid4().hex)


# ---- lost while nothing runs


async def test_a_job_whose_workflow_was_lost_is_recovered_as_before(temporal: WorkflowEnvironment) -> None:
    """The gateway offers stream and first step again. Incidents are counted on, and the next fault is recovered."""
    async with _training(temporal, a_job()) as (world, peer):
        await world.fault(sub_health())
        await world.incident(1)
        await _noted(world, lambda known: known.incidents == 1 and not known.recovery)
        await _lost_and_registered_again(world)
        status = await world.settled(lambda status: not status.state.lost_recovery)
        assert (status.state.incidents, status.running) == (1, None)
        await world.fault(sub_health(node="node-2", name="again"))
        assert (await world.incident(2)).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "new pod running", "migration"] * 2


def _without_a_spare() -> tuple[Job, ScriptedCluster]:
    job = a_job(limits=Limits(backup_scheduled=timedelta(seconds=0.3)))
    cluster = ScriptedCluster(job)
    cluster.spare = False
    return job, cluster


async def _downgraded(world: Harness) -> str:
    """Returns the reason of a downgrade, as the job's object has it: a hot switch finds no spare and lowers the policy."""
    await world.fault(sub_health())
    await world.incident(1)
    return (await _noted(world, lambda known: bool(known.downgrade) and not known.recovery)).downgrade


async def test_a_downgrade_outlives_the_jobs_workflow_and_is_lifted_afterwards(temporal: WorkflowEnvironment) -> None:
    """The downgrade keeps its reason and the policy before it. Sub-health stays ignored until an operator lifts it, and then the
    pod moves."""
    job, cluster = _without_a_spare()
    async with _training(temporal, job, cluster=cluster) as (world, _peer):
        reason = await _downgraded(world)
        await _lost_and_registered_again(world)
        downgrade = (await world.status()).state.downgrade
        assert downgrade
        assert (downgrade.reason, downgrade.before) == (reason, SubHealthStrategy.HOT_SWITCH)
        await world.fault(sub_health())
        assert f"the policy was downgraded to ignore: {reason}" in await world.judged()
        cluster.spare = True
        assert (await world.tell(ids.Updates.LIFT)).info == "the sub-health policy is hotSwitch again"
        assert (cluster.labels[SUB_HEALTHY_STRATEGY], cluster.labels[DOWNGRADED]) == ("hotSwitch", None)
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


async def test_a_downgrade_is_found_on_the_jobs_object_also_without_its_memory(temporal: WorkflowEnvironment) -> None:
    """The annotation with the reason of a downgrade is enough to lift it: only `hotSwitch` is ever lowered."""
    job, cluster = _without_a_spare()
    async with _training(temporal, job, cluster=cluster) as (world, _peer):
        reason = await _downgraded(world)
        cluster.labels[MEMORY] = "nothing that can be read"
        await _lost_and_registered_again(world)
        downgrade = (await world.status()).state.downgrade
        assert downgrade
        assert downgrade.reason == reason
        assert (await world.tell(ids.Updates.LIFT)).info == "the sub-health policy is hotSwitch again"


async def test_restarts_are_counted_on(temporal: WorkflowEnvironment) -> None:
    """A workflow that is lost between them does not make the sixth restart of an hour the first."""
    async with _training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        (restarted,) = (await world.restarted()).ladder
        await _noted(world, lambda known: known.restarts == (restarted.restarted_at,))
        await _lost_and_registered_again(world)
        assert (await world.status()).state.restarts == (restarted.restarted_at,)


async def test_a_job_that_was_restarted_too_often_stays_so(temporal: WorkflowEnvironment) -> None:
    """Five restarts within the hour that its object remembers: the next fault is given up, and nothing is touched."""
    async with _training(temporal, a_job()) as (world, _peer):
        restarts = (datetime.now(UTC) - timedelta(minutes=1),) * 5
        world.cluster.labels[MEMORY] = Remembered(job=world.job.id, incidents=5, restarts=restarts).model_dump_json()
        await _lost_and_registered_again(world)
        await world.fault(node_fault("node-0"))
        incident = await world.incident(6)
        assert (incident.verdict, world.cluster.writes) == (Outcome.GIVEN_UP, [])


# ---- lost while a recovery runs


async def _runs(world: Harness) -> WorkflowHandle[Any, Any]:
    """The recovery that runs, once the job's object says so."""
    recovery = await world.running()
    await _noted(world, lambda known: known.recovery == recovery.id)
    return recovery


async def _found(world: Harness, recovery: WorkflowHandle[Any, Any], words: str) -> None:
    """Waits until the job's new workflow says what became of the recovery that the old one had started."""
    message = (await world.event("RecoveryFound")).message
    assert message.startswith(f"{recovery.id} ran when the job's workflow was lost; {words}"), message
    await world.settled(lambda status: not status.state.lost_recovery)


async def _is_told_what_the_watcher_sees(world: Harness) -> None:
    """Sends the current sighting of the job twice, as the watcher does. It contains no fault."""
    shown = _shown(world, await world.cluster.job(world.job.id))
    for _ in range(2):
        await world.tell(ids.Updates.SIGHTING, shown.sighting)
    status = await world.settled(lambda status: status.running is None)
    assert status.state.faults == ()


def _shown(world: Harness, job: JobObject) -> watcher_updates.Shown:
    return watcher_updates.shown(JobView(job=job, pods=tuple(world.cluster.pods_by_name.values())), Limits())


async def test_the_last_note_of_an_incident_names_the_recovery_that_has_followed(temporal: WorkflowEnvironment) -> None:
    """A cluster that accepts notes late receives the current state. A recovery that no note names would never be found again."""
    async with _training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        world.cluster.takes_notes.clear()
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.fault(sub_health(pod_rank=0, node="node-0", name="e0"))
        await peer.pause()
        await world.incident(1)
        await peer.until(lambda: peer.orders.count("new pod running") == 2)
        second = await world.running()
        world.cluster.takes_notes.set()
        await _noted(world, lambda known: known.incidents == 2)
        assert _remembered(world.cluster).recovery == second.id
        await peer.pause()
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


async def test_recoveries_of_which_the_cluster_took_no_note_are_found_one_after_the_other(
    temporal: WorkflowEnvironment,
) -> None:
    """Two began since the last note, and the second one runs: no other one begins beside it, and what both moved is known."""
    job = a_job()
    async with _training(temporal, job, cluster=ScriptedCluster(job, nodes=5)) as (world, peer):
        await world.fault(sub_health())
        await world.incident(1)
        await _noted(world, lambda known: known.incidents == 1 and not known.recovery)
        world.cluster.takes_notes.clear()
        await world.fault(sub_health(node="node-2", name="again"))
        await world.incident(2)
        peer.script.resumes = False
        await world.fault(sub_health(pod_rank=0, node="node-0", name="third"))
        await peer.until(lambda: peer.orders.count("migration") == 3)
        third = await world.running()
        await _lost_and_registered_again(world)
        await world.settled(lambda status: status.recovery == third.id)
        await peer.resume()
        await world.settled(lambda status: not status.state.lost_recovery)
        world.cluster.takes_notes.set()
        await _found(world, third, "it is settled: recovered: pod rank 0 moved")
        await _is_told_what_the_watcher_sees(world)
        assert (await world.status()).state.incidents == 3


async def test_a_hot_switch_that_is_lost_before_the_pause_is_undone(temporal: WorkflowEnvironment) -> None:
    """The hot switch is cancelled with the job's workflow, which could not take its verdict. Training was never touched, and the
    sub-health is recovered when it is reported again."""
    async with _training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        before = dict(world.cluster.pods_by_name)
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        recovery = await _runs(world)
        await _lost_and_registered_again(world)
        await _found(world, recovery, "it is settled")
        assert world.cluster.pods_by_name == before
        assert peer.carried_out == ["hot switch", "new pod running", "stop switch"]
        await _noted(world, lambda known: known.incidents == 1 and not known.recovery)
        peer.script.pauses = True
        await world.fault(sub_health())
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


async def test_a_hot_switch_that_is_lost_behind_the_pause_goes_to_its_end(temporal: WorkflowEnvironment) -> None:
    """Training waits for it. What it did is found again: the rank has another holder, and no fault comes of that."""
    async with _training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        recovery = await _runs(world)
        await _lost_and_registered_again(world)
        await peer.resume()
        await _found(world, recovery, "it is settled: recovered: pod rank 1 moved from node-1 to node-2")
        assert (await world.incident(1)).ladder[0].switched[0].pod_rank == 1
        await _is_told_what_the_watcher_sees(world)
        assert (await world.status()).state.incidents == 1
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]


async def test_moved_links_are_unknown_until_a_lost_recovery_has_ended(temporal: WorkflowEnvironment) -> None:
    """Asking for them fails until then, and is tried again: the recovery may have moved some."""
    async with _training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        await _lost_and_registered_again(world)
        asked = ActivityEnvironment().run(JobActivities(world.client).links_now, world.job.id)
        with pytest.raises(ApplicationError, match=r"the end of recovery/.* is not known yet") as unknown:
            await asked
        assert not unknown.value.non_retryable
        await peer.resume()
        await world.incident(1)
        assert await ActivityEnvironment().run(JobActivities(world.client).links_now, world.job.id) == ()


async def test_a_lost_hot_switch_that_fails_is_swept(temporal: WorkflowEnvironment) -> None:
    """The incident that would start the next mode is lost. The last mode runs instead, and nothing remains of the hot switch."""
    async with _training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        recovery = await _runs(world)
        await _lost_and_registered_again(world)
        await peer.resume(406)
        await _is_swept(world, recovery)


async def test_a_recovery_that_was_terminated_with_its_job_is_swept(temporal: WorkflowEnvironment) -> None:
    """No undo of the recovery ran, so training may be stopped. All pods start again."""
    async with _training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        recovery = await _runs(world)
        await world.control.stop()
        await recovery.terminate("by mistake")
        await world.entity.terminate("by mistake")
        await world.control.start()
        await _register(world)
        await _is_swept(world, recovery)


async def test_a_lost_recovery_that_outlives_its_deadline_is_ended_and_swept(temporal: WorkflowEnvironment) -> None:
    """The recovery does not even cancel: the job would be without protection for ever."""
    names = ("order", "absence", "backup_scheduled", "backup_start", "pause", "resume", "migration_delivered", "clean_up")
    limits = Limits(**dict.fromkeys(names, timedelta(seconds=0.2)), old_pod_deleted=timedelta(seconds=0.1))
    modes = (DeafHotSwitch, JobRescheduling)
    async with harness(temporal, a_job(limits=limits), modes=modes, offer_again=OFTEN) as world, world.peer():
        await world.first_step()
        await world.fault(sub_health())
        recovery = await world.running()
        await _noted(world, lambda known: known.recovery == recovery.id)
        await world.control.stop()  # its parent would end it
        await world.entity.terminate("by mistake")
        await world.control.start()
        await _register(world)
        message = (await world.event("RecoveryFound")).message
        assert "what it left behind is swept" in message
        assert (await recovery.describe()).status is WorkflowExecutionStatus.TERMINATED


async def test_the_last_mode_of_a_lost_incident_is_found_whatever_its_place_in_the_ladder(temporal: WorkflowEnvironment) -> None:
    """Elastic training was noted, and could not go on without a second pod. New pods took both ranks before the next note."""
    job = elastic(least=3)
    script = Script(repairs=("recover", "downgrade"), statuses=[406])
    async with _training(temporal, job, script, ScriptedCluster(job, nodes=6)) as (world, peer):

        async def strike(strategy: str) -> None:
            if strategy == "downgrade":
                await peer.report_fault(2)

        script.before_status = strike
        await lose(world, 3)
        ladder = (await world.incident()).ladder
        assert [verdict.mode for verdict in ladder] == [Mode.ELASTIC_TRAINING, Mode.PROCESS_RESCHEDULING]
        first, last = (ids.recovery_workflow(world.job, 1, verdict.mode) for verdict in ladder)
        world.cluster.labels[MEMORY] = Remembered(job=world.job.id, recovery=first).model_dump_json()
        await world.entity.terminate("by mistake")
        await _register(world)
        await _found(world, world.client.get_workflow_handle(last), "it is settled: recovered")


async def _is_swept(world: Harness, recovery: WorkflowHandle[Any, Any]) -> None:
    incident = await world.restarted(2)
    assert [(verdict.mode, verdict.outcome) for verdict in incident.ladder] == [(Mode.JOB_RESCHEDULING, Outcome.RECOVERED)]
    assert incident.summary == f"recovery {recovery.id} was lost with the job's workflow"
    await _found(world, recovery, "what it left behind is swept")
    name = world.job.name
    assert sorted(world.cluster.pods_by_name) == [f"{name}-worker-0", f"{name}-worker-1"]
    await _noted(world, lambda known: known.incidents == 2 and not known.recovery)
    await _is_told_what_the_watcher_sees(world)


async def test_a_job_rescheduling_that_is_lost_goes_to_its_end(temporal: WorkflowEnvironment) -> None:
    """The restart goes on, and no second one begins. It receives the first step of the new life, and not the one of the life
    before. It counts as a restart."""
    job = a_job()
    cluster = ScriptedCluster(job)
    cluster.pods_are_placed = False
    before = {pod.metadata.uid for pod in cluster.pods_by_name.values()}
    async with _training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase("pods start on healthy nodes")
        await world.settled(lambda _: len({pod.metadata.uid for pod in cluster.pods_by_name.values()} - before) == job.pods)
        recovery = await _runs(world)
        await _lost_and_registered_again(world)
        for name in list(cluster.pods_by_name):
            cluster.run(name)
        await world.phase(RESUMES)
        assert (await world.status()).recovery == recovery.id
        await world.first_step("life-2", steps_lost=3)
        await _found(world, recovery, "it is settled: recovered: the job runs again")
        verdict = (await world.incident(1)).ladder[0]
        assert verdict.steps_lost == 3
        assert (await world.status()).state.restarts == (verdict.restarted_at,)
        await _is_told_what_the_watcher_sees(world)
        assert (await world.status()).state.incidents == 1


async def test_a_lost_job_rescheduling_that_ended_cancelled_is_swept(temporal: WorkflowEnvironment) -> None:
    """The restart was cancelled with the job's workflow while the cluster did not answer: the job may be without pods."""
    async with _training(temporal, a_job()) as (world, _peer):
        world.cluster.unreachable = True
        await world.fault(node_fault("node-0"))
        recovery = await _runs(world)
        await world.entity.terminate("by mistake")
        with pytest.raises(WorkflowFailureError):
            await recovery.result()
        world.cluster.unreachable = False
        await _register(world)
        await _is_swept(world, recovery)


@pytest.mark.parametrize("recovery", ["a/workflow/of/somebody", "recovery/elsewhere.gpt/1-hot-switch/job-1"])
async def test_what_is_no_recovery_of_the_job_is_not_waited_for(temporal: WorkflowEnvironment, recovery: str) -> None:
    """Any user may write on a job's object. That must not make one job's workflow wait for another's, or send it a message."""
    async with _training(temporal, a_job()) as (world, _peer):
        world.cluster.labels[MEMORY] = Remembered(job=world.job.id, incidents=1, recovery=recovery).model_dump_json()
        await _lost_and_registered_again(world)
        status = await world.settled(lambda status: not status.state.lost_recovery)
        assert (status.recovery, status.state.history) == ("", ())
        await world.fault(sub_health())
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


async def test_a_job_that_is_only_observed_by_now_is_not_swept(temporal: WorkflowEnvironment) -> None:
    """The decision is shown once, and nothing is written any more."""
    async with _training(temporal, a_job()) as (world, _peer):
        lost = ids.recovery_workflow(world.job, 1, Mode.HOT_SWITCH)
        world.cluster.labels[MEMORY] = Remembered(job=world.job.id, incidents=1, recovery=lost).model_dump_json()
        await world.entity.terminate("by mistake")
        await _register(world, observe=True)
        status = await world.settled(lambda status: not status.state.lost_recovery)
        assert (status.running, world.cluster.writes) == (None, [])
        assert "observed" in (await world.incident(2)).ladder[0].reason


async def test_what_a_lost_recovery_left_half_done_is_swept_when_the_job_may_be_touched_again(
    temporal: WorkflowEnvironment,
) -> None:
    """Training is stopped after a switch that failed while the job was only observed. This is a fault that is shown and kept."""
    async with _training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        recovery = await _runs(world)
        await world.entity.terminate("by mistake")
        await _register(world, observe=True)
        await peer.resume(406)
        assert (await world.incident(2)).verdict is Outcome.REFUSED
        assert recovery.id in (await world.incident(2)).summary
        await _register(world)
        assert recovery.id in (await world.restarted(3)).summary
        assert (await world.status()).state.faults == ()


async def _has(recovery: WorkflowHandle[Any, Any], kind: "EventType.ValueType") -> None:
    """Waits for an event of this type."""
    async with asyncio.timeout(60):
        while kind not in {event.event_type for event in (await recovery.fetch_history()).events}:
            await asyncio.sleep(0.03)


async def test_a_recovery_of_processes_that_is_lost_before_its_first_order_is_carried_out(
    temporal: WorkflowEnvironment,
) -> None:
    """The fault was reported once, to the workflow that is lost. Training would stay stopped until a user looks."""
    async with _training(temporal, a_job(annotations={})) as (world, peer):
        await world.control.stop()
        modes = world.control.modes
        world.control.modes = tuple(mode for mode in modes if mode is not InPlaceRecovery)  # its first task waits
        await world.control.start()
        await peer.report_fault(3)
        recovery = await _runs(world)
        await peer.cut()
        await _has(recovery, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
        await world.entity.terminate("by mistake")
        await world.control.stop()
        world.control.modes = modes
        await world.control.start()
        await _register(world)
        await world.recorded(recovery, "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
        await peer.attach()
        await _found(world, recovery, "it is settled: recovered")
        assert peer.carried_out == ["recover"]
        assert peer.state == "trains"


# ---- cancelled


async def test_a_job_that_is_cancelled_lives_on(temporal: WorkflowEnvironment) -> None:
    """A button in the UI is not the end of a job: an event says so, recoveries go on, and its real end ends it."""
    async with _training(temporal, a_job()) as (world, _peer):
        await world.entity.cancel()
        assert "it ends with its job" in (await world.event("CancellationIgnored")).message
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert (await world.entity.describe()).status is WorkflowExecutionStatus.RUNNING
        await world.tell(ids.Updates.END, "the job was deleted")
        assert (await world.entity.result())["reason"] == "the job was deleted"


async def test_a_job_that_is_cancelled_in_the_middle_of_a_recovery_finishes_it(temporal: WorkflowEnvironment) -> None:
    """The cancellation does not reach the running mode."""
    async with _training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.entity.cancel()
        await world.event("CancellationIgnored")
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        kinds = {event.event_type for event in (await world.recovery.fetch_history()).events}
        assert EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED not in kinds
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]
