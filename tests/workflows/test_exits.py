"""Policies by which a job leaves a sub-healthy node: `graceExit` saves the state first, `forceExit` does not."""

from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.approval import Unanswered
from rekindle.model.incident import Incident
from rekindle.model.job import Job, SubHealthStrategy, Trait
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import ladder
from tests.support.harness import NOW, a_job, sub_health, training

GRACE, FORCE = SubHealthStrategy.GRACE_EXIT, SubHealthStrategy.FORCE_EXIT


def leaving(policy: SubHealthStrategy, *traits: Trait) -> Job:
    return a_job(sub_health=policy, annotations={}, traits=traits)


@pytest.mark.parametrize(
    ("policy", "modes", "orders"),
    [
        (GRACE, [Mode.DYING_GASP, Mode.JOB_RESCHEDULING], ["stop_train", "on_global_rank", "dump"]),
        (FORCE, [Mode.JOB_RESCHEDULING], []),
    ],
)
async def test_a_job_leaves_a_slow_node_as_its_policy_says(
    temporal: WorkflowEnvironment, policy: SubHealthStrategy, modes: list[Mode], orders: list[str]
) -> None:
    """The pods start again elsewhere. Only `graceExit` saves the step at which training stands."""
    async with training(temporal, leaving(policy)) as (world, peer):
        await world.fault(sub_health())
        incident = await world.restarted()
        assert [verdict.mode for verdict in incident.ladder] == modes
        assert peer.carried_out == orders
        assert "node-1" not in {pod.spec.node_name for pod in world.cluster.pods_by_name.values()}
        assert (await world.status()).state.policy is policy


async def test_a_job_is_restarted_once_for_a_slow_node(temporal: WorkflowEnvironment) -> None:
    """A node that is still slow after the restart was the only one that was free. Training goes on there."""
    async with training(temporal, leaving(FORCE)) as (world, _peer):
        await world.fault(sub_health(name="first"))
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        await world.fault(sub_health(name="again"))
        assert "the job was restarted for it less than a day ago (policy forceExit)" in await world.judged()
        assert (await world.status()).state.incidents == 1


async def test_a_person_may_be_asked_before_a_job_leaves_a_slow_node(temporal: WorkflowEnvironment) -> None:
    """Training runs on while the question waits, although nothing is broken."""
    approvals = {Mode.JOB_RESCHEDULING: Unanswered.DENY}
    async with training(temporal, leaving(FORCE).model_copy(update={"approvals": approvals})) as (world, peer):
        await world.fault(sub_health())
        await world.settled(lambda status: status.state.question is not None)
        assert not peer.orders
        await world.tell(Updates.ANSWER, {"approved": True, "by": "Ada"})
        assert (await world.restarted()).verdict is Outcome.RECOVERED


def test_a_node_that_is_slow_again_weeks_later_leads_to_another_restart() -> None:
    """Fault was repaired meanwhile. The restart of that time says nothing about it."""
    verdict = Verdict(mode=Mode.JOB_RESCHEDULING, outcome=Outcome.RECOVERED, reason="x")
    restart = Incident(
        number=1,
        summary="x",
        started_at=NOW,
        seconds=1.0,
        verdict=verdict.outcome,
        ladder=(verdict,),
        policy_after=FORCE,
        faults=(sub_health(),),
    )
    state = JobState.of(leaving(FORCE)).with_(history=(restart,))
    for later, modes in ((timedelta(hours=20), ()), (timedelta(days=20), (Mode.JOB_RESCHEDULING,))):
        fault = sub_health().model_copy(update={"accepted_at": NOW + later})
        assert ladder.for_exit(state, fault).modes == modes


async def test_a_scheduler_that_knows_the_policy_carries_it_out(temporal: WorkflowEnvironment) -> None:
    """Volcano deletes the pods itself. Nothing is done twice."""
    async with training(temporal, leaving(GRACE, Trait.CONTROLLER_RECREATES)) as (world, peer):
        await world.fault(sub_health())
        assert "the job's policy is graceExit, which its scheduler carries out" in await world.judged()
        assert not peer.orders
