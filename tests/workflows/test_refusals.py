"""A hot switch that is impossible is refused before anything is touched, and judged again when something changes."""

from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import ErrorTypes
from rekindle.model.job import Capability, Framework, Job, SubHealthStrategy
from rekindle.model.mode import Outcome
from tests.support.harness import a_job, a_mindio_job, harness, register, sub_health, training

C = Capability

IMPOSSIBLE: dict[str, tuple[Any, dict[str, Any], int, str]] = {
    "rank 0": (a_job, {"capabilities": ()}, 0, "pod rank 0 cannot be replaced"),
    "watchdog": (a_job, {"capabilities": (C.WATCHDOG,)}, 1, "the watchdog is on"),
    "multimodal": (a_job, {"capabilities": (C.MULTIMODAL,)}, 1, "multimodal models are not supported"),
    "mindio, no single operator": (a_mindio_job, {"capabilities": (C.MEGATRON,)}, 1, "single-operator mode"),
    "mindio, no megatron": (a_mindio_job, {"capabilities": (C.SINGLE_OPERATOR,)}, 1, "Megatron-based model"),
    "mindio, no AscendJob": (a_mindio_job, {"kind": "Job"}, 1, "AscendJob"),
    "framework": (a_job, {"framework": Framework.TENSORFLOW}, 1, "framework tensorflow is not supported"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
async def test_what_cannot_be_hot_switched_is_refused_with_its_reason(temporal: WorkflowEnvironment, case: str) -> None:
    """The reason is kept and reported as an event. No order is sent, no pod is created, and the policy stays hotSwitch."""
    build, changes, pod_rank, reason = IMPOSSIBLE[case]
    job: Job = build(**changes)
    async with training(temporal, job) as (world, peer):
        await world.fault(sub_health(pod_rank))
        judged = await world.judged(pod_rank)
        assert judged.startswith("refused: ")
        assert reason in judged
        assert reason in (await world.event("RecoveryRefused")).message
        status = await world.status()
        assert status.state.policy is SubHealthStrategy.HOT_SWITCH
        assert (status.state.downgrade, status.state.history, status.running) == (None, (), None)
        assert (peer.orders, world.cluster.writes) == ([], [])


async def test_a_sub_health_that_names_no_pod_rank_moves_no_pod(temporal: WorkflowEnvironment) -> None:
    """A platform sent no pod ranks. The error names the missing field, and pod rank 0 stays where it is."""
    async with training(temporal, a_job()) as (world, peer):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await world.fault(sub_health().model_copy(update={"pod_ranks": ()}))
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == ErrorTypes.REQUEST_INVALID
        assert "pod_ranks: missing" in refused.value.cause.message
        assert (peer.orders, (await world.status()).state.faults) == ([], ())


async def test_before_the_first_step_it_is_refused_and_judged_again_at_it(temporal: WorkflowEnvironment) -> None:
    """A sub-health that comes before the first step is hot-switched as soon as that step is done."""
    async with harness(temporal, a_job()) as world, world.peer() as peer:
        await world.fault(sub_health())
        assert "no training step was completed yet" in await world.judged()
        assert peer.orders == []
        await world.first_step()
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_another_policy_counts_from_its_registration_on(temporal: WorkflowEnvironment) -> None:
    """A sub-health that its owner ignored is hot-switched as soon as the owner says so; the next one is ignored again."""
    job = a_job(sub_health=SubHealthStrategy.IGNORE)
    async with training(temporal, job) as (world, peer):
        await world.fault(sub_health())
        assert (await world.judged()).startswith("ignored: ")
        assert peer.orders == []
        await register(world.client, job.model_copy(update={"sub_health": SubHealthStrategy.HOT_SWITCH}))
        assert (await world.incident()).verdict is Outcome.RECOVERED
        await register(world.client, job)
        await world.fault(sub_health(0, "node-0", "another"))
        assert (await world.judged(0)).startswith("ignored: ")
        assert (await world.status()).state.incidents == 1


async def test_without_a_stream_it_is_refused_and_judged_again_at_the_attach(temporal: WorkflowEnvironment) -> None:
    """A sub-health of a job whose training side is away is hot-switched as soon as it is back."""
    async with harness(temporal, a_job()) as world:
        await world.first_step()
        await world.fault(sub_health())
        assert "the training side is not attached" in await world.judged()
        async with world.peer():
            assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_a_new_description_of_the_job_is_a_reason_to_judge_again(temporal: WorkflowEnvironment) -> None:
    """A job whose owner turns the watchdog off is hot-switched without another fault."""
    job = a_job(capabilities=(C.WATCHDOG,))
    async with training(temporal, job) as (world, _peer):
        await world.fault(sub_health())
        assert "watchdog" in await world.judged()
        await register(world.client, job.model_copy(update={"capabilities": ()}))
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_another_policy_leaves_the_sub_health_alone(temporal: WorkflowEnvironment) -> None:
    """The policy `ignore` gives no order. The judgement names the policy."""
    async with training(temporal, a_job(sub_health=SubHealthStrategy.IGNORE)) as (world, peer):
        await world.fault(sub_health())
        assert (await world.judged()).startswith("ignored: the job's policy is ignore")
        await world.event("RecoveryIgnored")
        assert (peer.orders, world.cluster.writes) == ([], [])
