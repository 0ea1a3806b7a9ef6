"""Approval of modes: a person is asked before a mode begins, with a limit, a safe default, and a way to say no."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.approval import Question, Unanswered
from rekindle.model.fault import WATCHER, FaultReport, Sighting
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job, NoSpare
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, Registration
from rekindle.policy.modes import cases
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.harness import (
    NOW,
    RESUMES,
    Harness,
    a_job,
    a_mindio_job,
    node_fault,
    pod_fault,
    register,
    sub_health,
    training,
)
from workflows import job_reducers

SHORT = Limits(backup_scheduled=timedelta(seconds=0.5))
DENY, APPROVE = Unanswered.DENY, Unanswered.APPROVE


def asking(*modes: Mode, unanswered: Unanswered = DENY, **changes: Any) -> Job:
    """Returns a job whose owner wants to be asked before these modes."""
    return a_job(approvals=dict.fromkeys(modes, unanswered), **changes)


@asynccontextmanager
async def questioned(temporal: WorkflowEnvironment, job: Job) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    """Runs a job of which a pod is sub-healthy, until a person is asked."""
    async with training(temporal, job) as (world, peer):
        await world.fault(sub_health())
        await asked(world)
        yield world, peer


async def asked(world: Harness) -> Question:
    """Waits until a person is asked, and returns the question."""
    status = await world.settled(lambda status: status.state.question is not None)
    assert status.state.question
    return status.state.question


async def refusal(world: Harness, update: str, argument: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await world.tell(update, argument)
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    return cause.message


async def test_an_approved_mode_runs_and_its_verdict_names_the_person(temporal: WorkflowEnvironment) -> None:
    """Training runs on while the question waits, and nothing is ordered before the answer."""
    async with questioned(temporal, asking(Mode.HOT_SWITCH)) as (world, peer):
        assert not peer.orders
        assert (await world.event("ApprovalAsked")).message.startswith("the hot switch waits for approval until")
        receipt = await world.tell(Updates.ANSWER, {"approved": True, "by": "Ada", "mode": "hot-switch"})
        assert receipt.info == "the hot switch is approved"
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert incident.ladder[0].reason.endswith("; approved by Ada")
        assert (await world.status()).state.question is None


async def test_a_denied_hot_switch_leaves_the_sub_health_alone(temporal: WorkflowEnvironment) -> None:
    """The job trains on where it is. It is not restarted, although a restart would follow a hot switch that failed."""
    async with questioned(temporal, asking(Mode.HOT_SWITCH)) as (world, peer):
        await world.tell(Updates.ANSWER, {"approved": False, "by": "Ada", "reason": "the run ends in an hour"})
        incident = await world.incident()
        assert [verdict.mode for verdict in incident.ladder] == [Mode.HOT_SWITCH]
        assert (incident.verdict, incident.ladder[0].reason) == (Outcome.IGNORED, "denied by Ada: the run ends in an hour")
        assert not peer.orders


@pytest.mark.parametrize(("default", "outcome"), [(DENY, Outcome.IGNORED), (APPROVE, Outcome.RECOVERED)])
async def test_the_owners_default_holds_when_nobody_answers(
    temporal: WorkflowEnvironment, default: Unanswered, outcome: Outcome
) -> None:
    """The mode counts as denied after the limit `approval`, or as approved where the owner says so."""
    limits = Limits(approval=timedelta(seconds=1))
    job = asking(Mode.HOT_SWITCH, unanswered=default, limits=limits)
    async with training(temporal, job) as (world, _peer):
        await world.fault(sub_health())
        incident = await world.incident()
        assert incident.verdict is outcome
        assert "by default, answered by nobody within 0:00:01" in incident.ladder[0].reason


async def test_an_answer_is_taken_once_and_only_for_what_waits(temporal: WorkflowEnvironment) -> None:
    """Answers for another mode, of unknown words, a second time, or without a question are refused with what is accepted."""
    async with questioned(temporal, asking(Mode.HOT_SWITCH)) as (world, _peer):
        other = await refusal(world, Updates.ANSWER, {"approved": True, "mode": "job-rescheduling"})
        assert other == "mode: job-rescheduling does not wait for approval, accepted is hot-switch, which does"
        assert "is no mode" in await refusal(world, Updates.ANSWER, {"approved": True, "mode": "hot-swich"})
        assert "approved" in await refusal(world, Updates.ANSWER, {"by": "Ada"})
        await world.tell(Updates.ANSWER, {"approved": False, "by": "Ada"})
        again = await refusal(world, Updates.ANSWER, {"approved": True})
        assert again.startswith(f"no mode of job {world.job.name} waits for approval")
        await world.incident()
        assert "the last decision: hot switch of incident 1, denied by Ada" in await refusal(
            world, Updates.ANSWER, {"approved": True}
        )


async def test_a_switch_that_waits_for_a_spare_is_asked_about_once(temporal: WorkflowEnvironment) -> None:
    """It is tried again every minute, which the person who approved it wanted."""
    async with questioned(temporal, asking(Mode.HOT_SWITCH, no_spare=NoSpare.WAIT, limits=SHORT)) as (world, _peer):
        world.cluster.spare = False
        await world.tell(Updates.ANSWER, {"approved": True, "by": "Ada"})
        assert (await world.incident()).ladder[0].approved == "approved by Ada"
        world.cluster.spare = True
        await world.skip(timedelta(minutes=1), of=world.entity)
        incident = await world.incident(2)
        assert (incident.verdict, incident.ladder[0].approved) == (Outcome.RECOVERED, "")


async def test_a_real_fault_ends_the_question_about_a_hot_switch(temporal: WorkflowEnvironment) -> None:
    """A lost pod is recovered at once, whatever was asked about a slow node."""
    async with questioned(temporal, asking(Mode.HOT_SWITCH)) as (world, _peer):
        pod = world.cluster.fail(world.cluster.holder(0).metadata.name)
        await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))
        incident = await world.restarted()
        assert [verdict.mode for verdict in incident.ladder] == [Mode.HOT_SWITCH, Mode.JOB_RESCHEDULING]
        assert incident.ladder[0].reason == "a real fault came before it was approved"


async def test_a_question_ends_if_the_job_is_only_observed(temporal: WorkflowEnvironment) -> None:
    """An observed job is not touched, whoever approves a mode."""
    async with questioned(temporal, asking(Mode.HOT_SWITCH)) as (world, peer):
        await register(world.client, world.job.model_copy(update={"observe": True}))
        incident = await world.incident()
        assert (incident.verdict, incident.ladder[0].outcome) == (Outcome.CANCELLED, Outcome.CANCELLED)
        assert not peer.orders


async def test_a_question_ends_with_its_fault(temporal: WorkflowEnvironment) -> None:
    """A node that is well again needs no answer: nothing is done."""
    async with training(temporal, asking(Mode.HOT_SWITCH)) as (world, _peer):
        seen = sub_health().model_copy(update={"source": WATCHER})
        await world.tell(Updates.SIGHTING, Sighting(faults=(seen,)))
        await asked(world)
        await world.tell(Updates.SIGHTING, Sighting())
        incident = await world.incident()
        assert (incident.verdict, incident.ladder[0].reason) == (
            Outcome.CANCELLED,
            "the fault was over before it was approved",
        )


async def test_a_denied_restart_is_given_up_and_may_be_tried_again(temporal: WorkflowEnvironment) -> None:
    """The pods stay as they are. A person who changes the mind begins the ladder again, and is asked again."""
    async with training(temporal, asking(Mode.JOB_RESCHEDULING)) as (world, _peer):
        pod = world.cluster.fail(world.cluster.holder(1).metadata.name)
        await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))
        await asked(world)
        await world.tell(Updates.ANSWER, {"approved": False, "by": "Ada"})
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert (await world.status()).state.given_up is not None
        await world.tell(Updates.RETRY, "Ada")
        assert (await asked(world)).incident == 2
        await world.tell(Updates.ANSWER, {"approved": True, "by": "Ada"})
        assert (await world.restarted(2)).verdict is Outcome.RECOVERED
        assert (await world.status()).state.given_up is None


async def test_a_state_is_saved_only_for_a_restart_that_is_approved(temporal: WorkflowEnvironment) -> None:
    """The ranks leave after they have saved their state, so that the restart is asked about first."""
    job = asking(Mode.JOB_RESCHEDULING, annotations={RECOVER_STRATEGY: "dump"})
    async with training(temporal, job) as (world, peer):
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        assert (await asked(world)).mode is Mode.JOB_RESCHEDULING
        assert not peer.orders
        await world.tell(Updates.ANSWER, {"approved": True, "by": "Ada"})
        incident = await world.restarted()
        assert [verdict.mode for verdict in incident.ladder] == [Mode.DYING_GASP, Mode.JOB_RESCHEDULING]
        assert "; approved by Ada" in incident.ladder[-1].reason


async def test_a_denied_mode_is_followed_by_the_next_one(temporal: WorkflowEnvironment) -> None:
    """The job is restarted instead, which nobody has to approve."""
    job = asking(Mode.PROCESS_RESCHEDULING, annotations={RECOVER_STRATEGY: "recover"})
    async with training(temporal, job) as (world, peer):
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        await asked(world)
        await world.tell(Updates.ANSWER, {"approved": False, "by": "Ada"})
        incident = await world.restarted()
        assert [verdict.mode for verdict in incident.ladder] == [Mode.PROCESS_RESCHEDULING, Mode.JOB_RESCHEDULING]
        assert (incident.verdict, incident.ladder[0].reason) == (Outcome.RECOVERED, "denied by Ada")
        assert not peer.orders


async def test_a_requested_mode_needs_no_approval(temporal: WorkflowEnvironment) -> None:
    """The person who requests it has decided already."""
    async with training(temporal, asking(Mode.JOB_RESCHEDULING)) as (world, _peer):
        request = ModeRequest(mode=Mode.JOB_RESCHEDULING, requested_by="Ada")
        await world.entity.start_update(Updates.RECOVER, request, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_a_requested_restart_needs_no_approval_to_save_the_state(temporal: WorkflowEnvironment) -> None:
    """The dying gasp belongs to the restart that the person wants."""
    job = asking(Mode.JOB_RESCHEDULING, Mode.DYING_GASP, annotations={})
    async with training(temporal, job) as (world, _peer):
        request = ModeRequest(mode=Mode.JOB_RESCHEDULING, requested_by="Ada")
        await world.entity.start_update(Updates.RECOVER, request, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        incident = await world.restarted()
        assert [verdict.mode for verdict in incident.ladder] == [Mode.DYING_GASP, Mode.JOB_RESCHEDULING]


async def test_a_training_side_that_leaves_is_not_kept_waiting(temporal: WorkflowEnvironment) -> None:
    """A MindIO client exits if no order comes within `nextOrder`, so that the question waits for less."""
    job = a_mindio_job(approvals={Mode.JOB_RESCHEDULING: DENY})
    async with training(temporal, job) as (world, _peer):
        pod = world.cluster.fail(world.cluster.holder(1).metadata.name)
        await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))
        question = await asked(world)
        assert question.until - question.since < job.limits.next_order


async def test_two_questions_wait_no_longer_than_one(temporal: WorkflowEnvironment) -> None:
    """A MindIO client that stands counts from its report, whatever is asked about what follows."""
    approvals = dict.fromkeys((Mode.DYING_GASP, Mode.JOB_RESCHEDULING), DENY)
    job = a_mindio_job(approvals=approvals, annotations={RECOVER_STRATEGY: "dump"})
    async with training(temporal, job) as (world, _peer):
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        first = await asked(world)
        await world.tell(Updates.ANSWER, {"approved": True})
        second = (
            await world.settled(lambda status: bool(status.state.question and status.state.question != first))
        ).state.question
        assert second
        assert (first.mode, second.mode) == (Mode.DYING_GASP, Mode.JOB_RESCHEDULING)
        assert second.until == first.until


async def test_an_aborted_incident_ends_and_nothing_follows(temporal: WorkflowEnvironment) -> None:
    """The person who aborts is named, and the job waits for a new try."""
    async with training(temporal, asking(Mode.JOB_RESCHEDULING)) as (world, _peer):
        pod = world.cluster.fail(world.cluster.holder(1).metadata.name)
        await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))
        await asked(world)
        await world.tell(Updates.ABORT, {"by": "Ada", "reason": "maintenance"})
        incident = await world.incident()
        assert (incident.verdict, incident.ladder[-1].reason) == (Outcome.CANCELLED, "aborted by Ada: maintenance")
        state = (await world.settled(lambda status: status.state.given_up is not None)).state
        assert [one.judged for one in state.faults] == ["cancelled: aborted by Ada: maintenance"]
        assert state.incidents == 1


async def test_an_aborted_job_is_left_alone_until_a_person_wants_it(temporal: WorkflowEnvironment) -> None:
    """Further faults, and the loss of its workflow, begin nothing. A retry recovers all of them."""
    async with training(temporal, asking(Mode.JOB_RESCHEDULING)) as (world, _peer):
        pod = world.cluster.fail(world.cluster.holder(1).metadata.name)
        await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))
        await asked(world)
        await world.tell(Updates.ABORT, {"by": "Ada"})
        await world.incident()
        await world.fault(node_fault("node-0"))
        state = (await world.status()).state
        assert (state.incidents, state.question) == (1, None)
        remembered = job_reducers.to_remember(state, "")
        registration = Registration(job=world.job, remembered=remembered)
        again = job_reducers.registered(JobState.of(world.job), registration, NOW).with_(lost_recovery="", faults=state.faults)
        assert again.given_up == state.given_up
        assert cases.next_case(again, datetime.now(UTC)) is None
        await world.tell(Updates.RETRY, "Ada")
        assert (await asked(world)).incident == 2


async def test_an_abort_holds_after_a_mode_was_terminated(temporal: WorkflowEnvironment) -> None:
    """The faults of a terminated mode would be judged again, which the person does not want."""
    job = asking(Mode.JOB_RESCHEDULING, annotations={RECOVER_STRATEGY: "recover"})
    async with training(temporal, job, Script(offers=())) as (world, _peer):
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        await (await world.running()).terminate("by hand")
        await asked(world)
        await world.tell(Updates.ABORT, {"by": "Ada"})
        await world.incident()
        state = (await world.settled(lambda status: status.state.given_up is not None)).state
        assert {one.judged for one in state.faults} == {"cancelled: aborted by Ada"}


async def test_a_question_after_a_denial_ends_with_its_fault(temporal: WorkflowEnvironment) -> None:
    """A denied mode has touched nothing, so that a job whose node is back is not restarted."""
    approvals = {Mode.PROCESS_RESCHEDULING: DENY, Mode.JOB_RESCHEDULING: APPROVE}
    async with training(temporal, a_job(approvals=approvals, annotations={RECOVER_STRATEGY: "recover"})) as (world, peer):
        fault = node_fault("node-1").model_copy(update={"pod_ranks": (1,)})
        await world.fault(fault)
        first = await asked(world)
        await world.tell(Updates.ANSWER, {"approved": False})
        await world.settled(lambda status: status.state.question not in (None, first))
        await world.tell(Updates.REPORT_FAULTS, FaultReport(cleared=(fault.id,)))
        incident = await world.incident()
        assert (incident.verdict, incident.ladder[-1].reason) == (
            Outcome.CANCELLED,
            "the fault was over before it was approved",
        )
        assert not peer.orders


async def test_an_abort_does_not_wait_for_a_cluster(temporal: WorkflowEnvironment) -> None:
    """The fault that interrupted a hot switch is not looked at again, as nothing follows."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, _peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        world.cluster.unreachable = True
        pod = world.cluster.holder(0)
        fault = pod_fault(pod.metadata.name, pod.metadata.uid).model_copy(update={"source": WATCHER, "pod_ranks": (0,)})
        await world.tell(Updates.SIGHTING, Sighting(faults=(fault,)))
        await world.settled(lambda status: status.running is None)
        await world.tell(Updates.ABORT, {"by": "Ada"})
        assert (await world.incident()).verdict is Outcome.CANCELLED


async def test_an_abort_cancels_the_running_mode(temporal: WorkflowEnvironment) -> None:
    """A hot switch is undone, and no restart follows it."""
    async with training(temporal, a_job()) as (world, _peer):
        world.cluster.backup_starts = False
        await world.fault(sub_health())
        await world.running()
        await world.tell(Updates.ABORT, {"by": "Ada"})
        incident = await world.incident()
        assert [verdict.mode for verdict in incident.ladder] == [Mode.HOT_SWITCH]
        assert incident.verdict is Outcome.CANCELLED
        assert (await world.status()).state.given_up is None


async def test_a_slow_node_that_was_left_alone_is_judged_again_on_request(temporal: WorkflowEnvironment) -> None:
    """The job was not given up, as it trains. A person who changes the mind after an abort is asked again."""
    async with questioned(temporal, asking(Mode.HOT_SWITCH)) as (world, _peer):
        receipt = await world.tell(Updates.ABORT, {"by": "Ada"})
        assert f"`rekindle retry {world.job.name}` begins again" in receipt.info
        assert (await world.incident()).verdict is Outcome.CANCELLED
        assert (await world.status()).state.given_up is None
        await world.tell(Updates.RETRY, "Ada")
        assert (await asked(world)).incident == 2
        await world.tell(Updates.ANSWER, {"approved": True})
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


async def test_a_job_that_stands_beside_a_slow_node_is_restarted_on_request(temporal: WorkflowEnvironment) -> None:
    """The slow node is no reason for the job to stand. A hot switch would not start it, and is not tried."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        await world.skip(timedelta(minutes=15, seconds=5))
        assert (await world.incident()).verdict is Outcome.GIVEN_UP
        seen = sub_health().model_copy(update={"source": WATCHER})
        await world.tell(Updates.SIGHTING, Sighting(faults=(seen,)))
        assert (await world.status()).state.incidents == 1
        await world.tell(Updates.RETRY, "Ada")
        assert (await world.restarted(2)).verdict is Outcome.RECOVERED


async def test_nothing_is_aborted_or_tried_again_of_a_job_that_trains(temporal: WorkflowEnvironment) -> None:
    """An abort and a retry are refused, with what a person can do instead."""
    async with training(temporal, a_job()) as (world, _peer):
        assert await refusal(world, Updates.ABORT, {}) == f"no recovery of job {world.job.name} is running"
        assert "no fault of it is left alone" in await refusal(world, Updates.RETRY, "Ada")
