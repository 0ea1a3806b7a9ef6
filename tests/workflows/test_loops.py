"""Restarts that end the same way: the third one goes to another node, or the job is given up."""

from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.attachment import Progress
from rekindle.model.incident import Incident
from rekindle.model.mode import Mode, Outcome
from tests.support.harness import RESUMES, Harness, a_job, node_fault, pod_fault, training


async def _fails(world: Harness, pod_rank: int, node: str = "") -> None:
    """Lets a pod of the job fail, on a node that the cluster names."""
    pod = world.cluster.fail(world.cluster.holder(pod_rank).metadata.name)
    fault = pod_fault(pod.metadata.name, pod.metadata.uid)
    await world.fault(fault.model_copy(update={"pod_ranks": (pod_rank,), "node": node}))


async def _restarted(world: Harness, number: int, step: int) -> Incident:
    """Lets a restart complete this step first."""
    await world.settled(lambda status: status.state.incidents == number and status.running is Mode.JOB_RESCHEDULING)
    await world.phase(RESUMES)
    await world.tell(Updates.PROGRESS, Progress(incarnation=f"life-{number + 1}", step=step, steps_lost=3))
    incident = await world.incident(number)
    assert incident.verdict is Outcome.RECOVERED
    return incident


async def test_a_pod_that_fails_at_the_same_step_everywhere_is_not_restarted_a_third_time(
    temporal: WorkflowEnvironment,
) -> None:
    """The verdict has the evidence. A person may want another try all the same."""
    async with training(temporal, a_job()) as (world, _peer):
        for number, node in ((1, "node-1"), (2, "node-2")):
            await _fails(world, 1, node)
            await _restarted(world, number, step=40)
        await _fails(world, 1, "node-1")
        incident = await world.incident(3)
        assert incident.verdict is Outcome.GIVEN_UP
        assert incident.ladder[-1].reason == (
            "the job was restarted 2 times at step 40, and pod rank 1 failed each time, on node-1, node-2: "
            "the cause is in the job"
        )
        await world.tell(Updates.RETRY, "Ada")
        await _restarted(world, 4, step=40)


async def test_a_pod_that_fails_on_one_node_is_restarted_on_another(temporal: WorkflowEnvironment) -> None:
    """The third restart avoids the node on which the pod failed each time."""
    async with training(temporal, a_job()) as (world, _peer):
        for number in (1, 2):
            await _fails(world, 1, "node-1")
            await _restarted(world, number, step=40)
        await _fails(world, 1, "node-1")
        await _restarted(world, 3, step=40)
        assert "node-1" not in {pod.spec.node_name for pod in world.cluster.pods_by_name.values()}


async def test_a_job_that_comes_further_each_time_is_restarted(temporal: WorkflowEnvironment) -> None:
    """A new checkpoint is a new state, and so is another pod that fails, or a node that is lost."""
    async with training(temporal, a_job()) as (world, _peer):
        for number, (pod_rank, step) in enumerate([(1, 40), (1, 60), (0, 60), (1, 60)], 1):
            await _fails(world, pod_rank)
            await _restarted(world, number, step)
        await world.fault(node_fault("node-1"))
        assert (await _restarted(world, 5, step=60)).ladder[-1].resumed_at == 60
