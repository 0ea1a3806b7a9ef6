"""Unconditional retries: restarts for which no cause is known, as many as the owner of the job allows."""

import pytest
from temporalio.client import WorkflowUpdateStage
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job
from rekindle.model.keys import FAULT_RETRY_TIMES, RECOVER_STRATEGY
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, Registration
from rekindle.policy.modes import retries
from tests.support.harness import NOW, Harness, a_job, node_fault, pod_fault, training
from workflows import job_reducers


def with_retries(times: str) -> Job:
    """Returns a job that is restarted for each fault, with this label."""
    return a_job(annotations={RECOVER_STRATEGY: "exit"}, labels={FAULT_RETRY_TIMES: times})


async def _fails(world: Harness, pod_rank: int = 1) -> None:
    """Lets a pod of the job fail. Nothing else is known to be wrong."""
    pod = world.cluster.fail(world.cluster.holder(pod_rank).metadata.name)
    await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))


async def test_a_budget_that_is_used_up_gives_the_job_up(temporal: WorkflowEnvironment) -> None:
    """Restarts that succeed use one retry each. The next failed pod leads to nothing, and the verdict says why."""
    async with training(temporal, with_retries("1")) as (world, _peer):
        await _fails(world)
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        assert (await world.status()).state.retried == 1
        await _fails(world)
        incident = await world.incident(2)
        assert incident.verdict is Outcome.GIVEN_UP
        assert incident.ladder[-1].reason == (
            "a pod failed, no fault of a node or device is known, and fault-retry-times=1 is used up"
        )
        assert not [verdict.restarted_at for verdict in incident.ladder if verdict.restarted_at]


async def test_a_fault_of_a_node_uses_no_retry(temporal: WorkflowEnvironment) -> None:
    """The cause is known, so the job is restarted whatever is left of the budget."""
    async with training(temporal, with_retries("0")) as (world, _peer):
        await world.fault(node_fault("node-0"))
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        assert (await world.status()).state.retried == 0


async def test_a_restart_on_request_uses_no_retry(temporal: WorkflowEnvironment) -> None:
    """A person may restart a job whose budget is used up."""
    async with training(temporal, with_retries("0")) as (world, _peer):
        request = ModeRequest(mode=Mode.JOB_RESCHEDULING, requested_by="an operator")
        await world.entity.start_update(Updates.RECOVER, request, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        assert (await world.status()).state.retried == 0


async def test_a_person_may_want_another_try_of_a_job_without_retries(temporal: WorkflowEnvironment) -> None:
    """The budget of zero holds for the next fault again."""
    async with training(temporal, with_retries("0")) as (world, _peer):
        await _fails(world)
        assert (await world.incident()).verdict is Outcome.GIVEN_UP
        await world.tell(Updates.RETRY, "Ada")
        assert (await world.restarted(2)).verdict is Outcome.RECOVERED
        await _fails(world, 0)
        assert (await world.incident(3)).verdict is Outcome.GIVEN_UP


async def test_a_budget_outlives_the_workflow_of_the_job(temporal: WorkflowEnvironment) -> None:
    """The number of retries is written on the job's object. A workflow that reads it there goes on counting."""
    async with training(temporal, with_retries("1")) as (world, _peer):
        await _fails(world)
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        state = (await world.status()).state
        remembered = job_reducers.to_remember(state, "")
        registered = job_reducers.registered(JobState.of(world.job), Registration(job=world.job, remembered=remembered), NOW)
        assert retries.left(registered) == 0


@pytest.mark.parametrize(("label", "left"), [({}, None), ({FAULT_RETRY_TIMES: "3"}, 2)])
def test_retries_are_limited_where_the_owner_says_so(label: dict[str, str], left: int | None) -> None:
    """Restarts without the label are limited in their frequency only."""
    assert retries.left(JobState.of(a_job(labels=label)).with_(retried=1)) == left
