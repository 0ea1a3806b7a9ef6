"""The pods of a job that was given up are kept for inspection, and end after a limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.approval import Unanswered
from rekindle.model.fault import FaultReport
from rekindle.model.job import Job
from rekindle.model.keys import GIVEN_UP
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import Again, GivenUp, JobState, Registration
from rekindle.policy.modes import cases, given_up_pods
from rekindle.policy.modes.job_phase import phase
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import NOW, RESUMES, Harness, a_job, a_mindio_job, node_fault, training
from workflows import job_reducers

SOON = timedelta(seconds=0.4)
DAY = timedelta(days=1)


@asynccontextmanager
async def _given_up(env: WorkflowEnvironment, job: Job, cluster: ScriptedCluster | None = None) -> AsyncIterator[Harness]:
    """A job whose restart was given up, as its new pods complete no step. They run."""
    async with training(env, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        await world.skip(timedelta(minutes=16))
        assert (await world.incident()).verdict is Outcome.GIVEN_UP
        yield world


def _creations(cluster: ScriptedCluster) -> int:
    return len([write for write in cluster.writes if write.startswith("create")])


async def test_pods_are_kept_for_a_day_and_then_end(temporal: WorkflowEnvironment) -> None:
    """Phase, annotation and event say so. Nothing creates other pods, though all pods are missing from then on."""
    async with _given_up(temporal, a_job()) as world:
        made = _creations(world.cluster)
        await world.skip(DAY - timedelta(minutes=1), of=world.entity)
        assert len(world.cluster.pods_by_name) == 2
        assert phase((await world.status()).state, None) == "given up"
        await world.skip(timedelta(minutes=2), of=world.entity)
        state = (await world.settled(lambda status: bool(status.state.given_up and status.state.given_up.pods_ended))).state
        assert not world.cluster.pods_by_name
        assert phase(state, None) == "given up, pods ended"
        assert "after the limit `givenUpPods`" in (await world.event("GivenUpPodsEnded")).message
        await world.noted(GIVEN_UP, "its pods were ended")
        await world.look()
        await world.skip(timedelta(hours=3), of=world.entity)
        assert (await world.status()).state.incidents == 1
        assert _creations(world.cluster) == made


async def test_a_job_whose_pods_were_ended_is_tried_again_by_a_person(temporal: WorkflowEnvironment) -> None:
    """The retry creates all pods again, and the job trains."""
    async with _given_up(temporal, a_job(limits=Limits(given_up_pods=SOON))) as world:
        await world.event("GivenUpPodsEnded")
        await world.look()
        await world.tell(Updates.RETRY, "Ada")
        assert (await world.restarted(2, "life-3")).verdict is Outcome.RECOVERED
        assert len(world.cluster.pods_by_name) == 2
        assert (await world.status()).state.given_up is None


async def test_pods_that_do_not_end_by_themselves_are_killed(temporal: WorkflowEnvironment) -> None:
    """A stubborn pod is deleted without a grace period after the limit for stopping."""
    job = a_job(limits=Limits(given_up_pods=SOON, pods_stopped=SOON))
    cluster = ScriptedCluster(job)
    async with _given_up(temporal, job, cluster) as world:
        cluster.ends_only_by_force.add(stubborn := cluster.holder(1).metadata.name)
        await world.event("GivenUpPodsEnded")
        assert f"kill {stubborn}" in cluster.writes
        assert not cluster.pods_by_name


async def test_pods_that_have_not_ended_are_ended_later(temporal: WorkflowEnvironment) -> None:
    """The pods are not taken to be ended because their deletion was accepted."""
    job = a_job(limits=Limits(given_up_pods=SOON, pods_stopped=SOON))
    cluster = ScriptedCluster(job)
    async with _given_up(temporal, job, cluster) as world:
        cluster.terminating_for_ever.add(stuck := cluster.holder(1).metadata.name)
        while f"kill {stuck}" not in cluster.writes:
            await asyncio.sleep(0.03)
        await world.skip(timedelta(seconds=50), of=world.entity)
        state = (await world.status()).state
        assert state.given_up
        assert not state.given_up.pods
        cluster.terminating_for_ever.clear()
        await world.skip(timedelta(seconds=20), of=world.entity)
        await world.event("GivenUpPodsEnded")
        assert not cluster.pods_by_name


async def test_pods_whose_successors_would_be_refused_stay(temporal: WorkflowEnvironment) -> None:
    """A retry could not create them. The reason is shown, and the pods are not touched."""
    async with _given_up(temporal, a_job(limits=Limits(given_up_pods=SOON))) as world:
        world.cluster.refuses_stops = "the image is not allowed"
        assert "the image is not allowed" in (await world.event("GivenUpPodsKept")).message
        assert len(world.cluster.pods_by_name) == 2


async def test_pods_that_may_train_are_not_ended(temporal: WorkflowEnvironment) -> None:
    """A person denies the restart of a job whose node is not ready, as training goes on. So it does after the limit."""
    job = a_job(approvals={Mode.JOB_RESCHEDULING: Unanswered.DENY}, limits=Limits(given_up_pods=SOON))
    async with training(temporal, job) as (world, _peer):
        await world.fault(node_fault("node-0"))
        while (await world.status()).state.question is None:
            await asyncio.sleep(0.02)
        await world.tell(Updates.ANSWER, {"approved": False, "by": "Ada"})
        assert (await world.incident()).verdict is Outcome.GIVEN_UP
        await world.skip(DAY, of=world.entity)
        state = (await world.status()).state
        assert state.given_up
        assert not state.given_up.limited
        assert len(world.cluster.pods_by_name) == 2
        assert not [write for write in world.cluster.writes if write.startswith("delete")]


async def test_pods_that_a_controller_would_create_again_stay(temporal: WorkflowEnvironment) -> None:
    """The Ascend Operator cannot be told to create no pods, so that their deletion would start the job."""
    job = a_mindio_job(limits=Limits(given_up_pods=SOON, pods_running=SOON))
    cluster = ScriptedCluster(job)
    cluster.pods_start = False
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        assert (await world.incident()).verdict is Outcome.GIVEN_UP
        event = await world.event("GivenUpPodsKept")
        assert "the controller of this AscendJob would create them again" in event.message
        assert len(cluster.pods_by_name) == 2


# ---- when


GONE = GivenUp(since=NOW, incident=1, mode=Mode.JOB_RESCHEDULING, reason="no node", limited=True)


def _state(job: Job | None = None, **changes: Any) -> JobState:
    return JobState.of(job or a_job()).with_(given_up=GONE).model_copy(update=changes)


def _gone(**changes: Any) -> JobState:
    return _state(given_up=GONE.model_copy(update=changes))


@pytest.mark.parametrize(
    "state",
    [
        _state(given_up=None),
        _gone(limited=False),
        _gone(aborted=True),
        _gone(pods="its pods were ended", pods_ended=True),
        _state(a_job(limits=Limits(given_up_pods=timedelta(0)))),
        _state(a_job(observe=True)),
        _state(again=Again(at=NOW, judges=True)),
    ],
    ids=["not given up", "of an earlier version", "aborted by a person", "done", "no limit", "only observed", "tried again"],
)
def test_pods_are_kept_without_limit(state: JobState) -> None:
    """A person decides about the pods of an aborted recovery, and a restart that is repeated by itself about its own."""
    assert given_up_pods.due(state) is None
    assert given_up_pods.due(_state()) == NOW + DAY


def test_a_job_whose_pods_were_ended_stays_so_when_its_workflow_is_lost() -> None:
    """The next workflow sees no pods, and must not start them."""
    state = _gone(pods="its pods were ended", pods_ended=True)
    registration = Registration(job=state.job, remembered=job_reducers.to_remember(state, ""))
    again = job_reducers.registered(JobState.of(state.job), registration, NOW).with_(lost_recovery="")
    broken = job_reducers.reported(again, FaultReport(faults=(node_fault("node-0"),)), NOW)
    assert again.given_up == state.given_up
    assert cases.next_case(broken, datetime.now(UTC)) is None
