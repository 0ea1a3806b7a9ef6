"""Storms: modes that move pods are held until the storm is over, a person says go, or the limit ends. All others run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateStage
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from activities.pods import PodActivities
from rekindle.ids import Updates
from rekindle.model.activities.jobs import SurveyRequest
from rekindle.model.approval import Question, Unanswered
from rekindle.model.cluster import Condition
from rekindle.model.fault import WATCHER, Sighting
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.modes import job_phase
from tests.fakes.peer import ScriptedPeer
from tests.support.harness import Harness, a_job, a_mindio_job, node_fault, pod_fault, sub_health, training
from workers.gateway.job_workflows import Jobs

STORM = "30 of 100 nodes are unhealthy, the mark is 20%"
SICK = (Condition(type="SubHealthy", status="True", reason="slow"),)
NO_SPARE = {"replacement_scheduled": timedelta(seconds=1)}


async def sees(world: Harness, storm: str = "", *nodes: str) -> None:
    """Sends what the cluster shows of the job, as the watcher does in a storm or without one."""
    request = SurveyRequest(job_id=world.job.id, nodes=nodes)
    survey = await ActivityEnvironment().run(PodActivities(world.cluster).survey, request)
    await world.tell(Updates.SIGHTING, survey.sighting.model_copy(update={"storm": storm}))


async def held(world: Harness) -> Question:
    """Waits until a storm holds a mode, and returns the question to people."""
    question = (await world.settled(lambda status: status.state.question is not None)).state.question
    assert question
    assert question.storm == STORM
    return question


@asynccontextmanager
async def slow(temporal: WorkflowEnvironment, job: Job) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    """Runs a job with a slow node in a storm, until its hot switch is held."""
    async with training(temporal, job) as (world, peer):
        world.cluster.conditions["node-1"] = SICK
        await sees(world, STORM, "node-1")
        await held(world)
        yield world, peer


@asynccontextmanager
async def broken(temporal: WorkflowEnvironment, job: Job) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    """Runs a job of which a pod fails in a storm, until a mode is held."""
    async with training(temporal, job) as (world, peer):
        world.cluster.fail(world.cluster.holder(1).metadata.name)
        await sees(world, STORM)
        await held(world)
        yield world, peer


def tried(incident: Incident) -> list[Mode]:
    return [verdict.mode for verdict in incident.ladder]


async def test_a_hot_switch_is_held_until_the_storm_is_over(temporal: WorkflowEnvironment) -> None:
    """Training runs on meanwhile. People see the reason, and the verdict says that the mode was held."""
    async with slow(temporal, a_job()) as (world, peer):
        assert not peer.orders
        said = (await world.event("StormHeld")).message
        assert said.startswith("the hot switch is held until the storm is over, or ")
        assert STORM in said
        status = await world.status()
        assert job_phase.phase(status.state, status.running) == job_phase.HELD
        await sees(world, "", "node-1")
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert incident.ladder[0].reason.endswith(" s, until a storm was over")
        assert [event.reason for event in world.cluster.events].count("StormHeld") == 1


async def test_a_gateway_that_starts_knows_a_job_that_is_held(temporal: WorkflowEnvironment) -> None:
    """The job trains, and its client is let in without a question."""
    async with slow(temporal, a_job()) as (world, _peer), asyncio.timeout(60):
        while world.job.id not in await Jobs(world.client).training():  # the list is late
            await asyncio.sleep(0)
        assert (await world.status()).state.question


async def test_a_restart_is_held_after_a_look_at_the_cluster(temporal: WorkflowEnvironment) -> None:
    """The look of the job's own workflow sees no other nodes, so that it does not end the storm."""
    async with broken(temporal, a_job()) as (world, _peer):
        assert world.cluster.writes == []
        await sees(world)
        incident = await world.restarted()
        assert tried(incident) == [Mode.JOB_RESCHEDULING]


async def test_nothing_is_moved_for_a_fault_that_ends_in_the_storm(temporal: WorkflowEnvironment) -> None:
    """The node is back before the storm is over: the job trains on where it is."""
    async with slow(temporal, a_job()) as (world, peer):
        world.cluster.conditions.clear()
        await sees(world, STORM, "node-1")
        incident = await world.incident()
        assert (incident.verdict, incident.ladder[0].reason) == (Outcome.CANCELLED, "the fault was over while a storm held it")
        assert not peer.orders


async def test_a_person_lets_the_whole_incident_go(temporal: WorkflowEnvironment) -> None:
    """The mode that is held runs, and so does the next one, without another question."""
    job = a_job(annotations={RECOVER_STRATEGY: "recover"}, limits=Limits(**NO_SPARE))
    async with broken(temporal, job) as (world, _peer):
        world.cluster.spare = False
        await world.tell(Updates.ANSWER, {"approved": True, "by": "Ada", "mode": "process-rescheduling"})
        incident = await world.restarted()
        assert tried(incident) == [Mode.PROCESS_RESCHEDULING, Mode.JOB_RESCHEDULING]
        assert incident.ladder[0].reason.endswith("; approved by Ada")


async def test_a_denied_mode_is_left_out_and_the_next_one_is_held(temporal: WorkflowEnvironment) -> None:
    """A person who denies one mode has not said go for another."""
    job = a_job(annotations={RECOVER_STRATEGY: "recover"})
    async with broken(temporal, job) as (world, _peer):
        await world.tell(Updates.ANSWER, {"approved": False, "by": "Ada"})
        status = await world.settled(
            lambda status: bool(status.state.question and status.state.question.mode is Mode.JOB_RESCHEDULING)
        )
        assert status.state.question
        await world.tell(Updates.ANSWER, {"approved": True, "by": "Ada"})
        assert tried(await world.restarted()) == [Mode.PROCESS_RESCHEDULING, Mode.JOB_RESCHEDULING]


async def test_the_limit_ends_the_hold_once_for_all_modes(temporal: WorkflowEnvironment) -> None:
    """A watcher that died in the storm would otherwise hold its jobs for ever."""
    job = a_job(annotations={RECOVER_STRATEGY: "recover"}, limits=Limits(storm=timedelta(seconds=1), **NO_SPARE))
    async with broken(temporal, job) as (world, _peer):
        world.cluster.spare = False
        incident = await world.restarted()
        assert tried(incident) == [Mode.PROCESS_RESCHEDULING, Mode.JOB_RESCHEDULING]
        assert incident.ladder[0].reason.endswith("; held by a storm for 0:00:01")
        assert [event.reason for event in world.cluster.events].count("StormHeld") == 1


async def test_a_requested_mode_is_not_held(temporal: WorkflowEnvironment) -> None:
    """The person who requests it has decided already."""
    async with training(temporal, a_job()) as (world, _peer):
        await sees(world, STORM)
        request = ModeRequest(mode=Mode.JOB_RESCHEDULING, requested_by="Ada")
        await world.entity.start_update(Updates.RECOVER, request, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_another_try_that_a_person_wants_is_not_held(temporal: WorkflowEnvironment) -> None:
    """The person decides about the faults that are known, and not about later ones."""
    async with broken(temporal, a_job()) as (world, _peer):
        await world.tell(Updates.ABORT, {"by": "Ada"})
        await world.settled(lambda status: status.state.given_up is not None)
        await world.tell(Updates.RETRY, "Ada")
        assert (await world.restarted(2)).verdict is Outcome.RECOVERED


async def test_processes_start_again_in_their_pods_in_a_storm(temporal: WorkflowEnvironment) -> None:
    """An in-place recovery moves no pod."""
    async with training(temporal, a_job(annotations={})) as (world, peer):
        await sees(world, STORM)
        await peer.report_fault(3)
        incident = await world.incident()
        assert (tried(incident), incident.verdict) == ([Mode.IN_PLACE], Outcome.RECOVERED)


async def test_a_real_fault_ends_the_hold_of_a_hot_switch(temporal: WorkflowEnvironment) -> None:
    """The recovery of the real fault is held in turn."""
    async with slow(temporal, a_job()) as (world, _peer):
        pod = world.cluster.fail(world.cluster.holder(0).metadata.name)
        await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))
        await world.settled(lambda status: bool(status.state.question and status.state.question.mode is Mode.JOB_RESCHEDULING))
        await sees(world, "", "node-1")
        incident = await world.restarted()
        assert tried(incident) == [Mode.HOT_SWITCH, Mode.JOB_RESCHEDULING]
        assert incident.ladder[0].reason == "a real fault came while a storm held it"


async def test_an_incident_that_is_held_can_be_aborted(temporal: WorkflowEnvironment) -> None:
    """The job is not moved, and waits for a new try."""
    async with broken(temporal, a_job()) as (world, _peer):
        await world.tell(Updates.ABORT, {"by": "Ada", "reason": "maintenance"})
        incident = await world.incident()
        assert (incident.verdict, incident.ladder[-1].reason) == (Outcome.CANCELLED, "aborted by Ada: maintenance")
        assert world.cluster.writes == []


async def test_a_training_side_that_leaves_is_held_for_less(temporal: WorkflowEnvironment) -> None:
    """A MindIO client exits if no order comes within `nextOrder`. A hot switch, in which it trains, is held as long as others."""
    job = a_mindio_job(annotations={RECOVER_STRATEGY: "recover"})
    async with broken(temporal, job) as (world, _peer):
        question = await held(world)
        assert question.mode is Mode.PROCESS_RESCHEDULING
        assert question.until - question.since < job.limits.next_order
    async with slow(temporal, a_mindio_job()) as (world, _peer):
        question = await held(world)
        assert question.until - question.since == job.limits.storm


async def test_the_state_is_saved_only_when_the_restart_may_follow(temporal: WorkflowEnvironment) -> None:
    """The ranks leave after they have saved their state, so that the restart is held before."""
    job = a_job(annotations={RECOVER_STRATEGY: "dump"})
    async with training(temporal, job) as (world, peer):
        await sees(world, STORM)
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        assert (await held(world)).mode is Mode.JOB_RESCHEDULING
        assert not peer.orders
        await sees(world)
        assert tried(await world.restarted()) == [Mode.DYING_GASP, Mode.JOB_RESCHEDULING]


@pytest.mark.parametrize("by", ["Ada", ""])
async def test_what_the_owner_wants_to_be_asked_about_is_asked_first(temporal: WorkflowEnvironment, by: str) -> None:
    """The word of a person is enough for both. An approval by default is none in a storm."""
    approvals: dict[str, Any] = {"approvals": {Mode.JOB_RESCHEDULING: Unanswered.APPROVE}}
    limits = Limits(approval=timedelta(minutes=5) if by else timedelta(seconds=1))
    async with training(temporal, a_job(**approvals, limits=limits)) as (world, _peer):
        world.cluster.fail(world.cluster.holder(1).metadata.name)
        await sees(world, STORM)
        status = await world.settled(lambda status: status.state.question is not None)
        assert status.state.question
        assert not status.state.question.storm
        if by:
            await world.tell(Updates.ANSWER, {"approved": True, "by": by})
        else:
            await world.settled(lambda status: bool(status.state.question and status.state.question.storm))
            await sees(world)
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_a_training_side_that_leaves_is_not_kept_waiting_twice(temporal: WorkflowEnvironment) -> None:
    """The time of the owner's question counts, since a MindIO client would exit in the hold that follows."""
    approvals: dict[str, Any] = {"approvals": {Mode.PROCESS_RESCHEDULING: Unanswered.APPROVE}}
    async with training(temporal, a_mindio_job(**approvals, annotations={RECOVER_STRATEGY: "recover"})) as (world, _peer):
        world.cluster.fail(world.cluster.holder(1).metadata.name)
        await sees(world, STORM)
        await world.settled(lambda status: status.state.question is not None)
        await world.skip(timedelta(seconds=25), of=world.entity)
        status = await world.settled(lambda status: status.state.question is None or bool(status.state.question.storm))
        assert status.state.question is None
        await world.settled(lambda status: status.running is Mode.PROCESS_RESCHEDULING or bool(status.state.history))


async def test_a_job_whose_owner_wants_no_hold_is_not_held(temporal: WorkflowEnvironment) -> None:
    """The limit 0 switches holds off for a job."""
    async with training(temporal, a_job(limits=Limits(storm=timedelta(0)))) as (world, _peer):
        await world.tell(Updates.SIGHTING, Sighting(faults=(sub_health().model_copy(update={"source": WATCHER}),), storm=STORM))
        assert (await world.incident()).verdict is Outcome.RECOVERED
