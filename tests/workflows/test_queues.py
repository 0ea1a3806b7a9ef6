"""A job whose pods are admitted by a queue such as Kueue: it is not restarted, and all other modes work."""

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.client import Rekindle
from rekindle.errors import Refused
from rekindle.model.mode import Mode, Outcome
from tests.support.harness import a_job, node_fault, sub_health, training

QUEUE = "Kueue, queue 'gpus'"


async def test_a_job_of_a_queue_is_not_restarted_and_a_person_is_told_why(temporal: WorkflowEnvironment) -> None:
    """No pod is touched: what is suspended comes back at once, on the same node."""
    async with training(temporal, a_job(queue=QUEUE)) as (world, _):
        await world.fault(node_fault("node-0"))
        incident = await world.incident()
        assert [(one.mode, one.outcome) for one in incident.ladder] == [(Mode.JOB_RESCHEDULING, Outcome.GIVEN_UP)]
        assert QUEUE in incident.ladder[-1].reason
        assert "a hot switch works" in (await world.event("RecoveryGivenUp")).message
        assert world.cluster.writes == []
        assert QUEUE in await Rekindle(world.client).details(f"job/{world.job.id}")


async def test_whoever_asks_for_a_restart_of_such_a_job_is_refused(temporal: WorkflowEnvironment) -> None:
    """The refusal has the same text."""
    async with training(temporal, a_job(queue=QUEUE)) as (world, _):
        with pytest.raises(Refused, match=QUEUE):
            await Rekindle(world.client).reschedule(world.job.id)
        assert world.cluster.writes == []


async def test_a_pod_of_such_a_job_is_hot_switched(temporal: WorkflowEnvironment) -> None:
    """An additional pod is no restart."""
    async with training(temporal, a_job(queue=QUEUE)) as (world, _):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_a_hot_switch_that_fails_behind_the_pause_is_followed_by_no_restart(temporal: WorkflowEnvironment) -> None:
    """Training stands then, and a person has to know that."""
    async with training(temporal, a_job(queue=QUEUE)) as (world, _):
        world.cluster.backup_starts = False
        await world.fault(sub_health())
        await world.phase("backup pod runs")
        world.cluster.fail(world.cluster.backup().metadata.name)
        incident = await world.incident()
        assert [one.mode for one in incident.ladder] == [Mode.HOT_SWITCH, Mode.JOB_RESCHEDULING]
        assert (incident.verdict, QUEUE in incident.ladder[-1].reason) == (Outcome.GIVEN_UP, True)


async def test_a_job_whose_pods_cannot_be_moved_keeps_its_policy(temporal: WorkflowEnvironment) -> None:
    """Nothing is tried, and the reason is the cluster's: a spare would not help."""
    async with training(temporal, a_job(unmovable="they are placed exclusively")) as (world, _):
        await world.fault(sub_health())
        assert "its pods cannot be moved: they are placed exclusively" in await world.judged()
        assert (await world.status()).state.downgrade is None
        assert world.cluster.writes == []
