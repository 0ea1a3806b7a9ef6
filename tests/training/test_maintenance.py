"""The pause of a maintenance, with real processes and a scripted gateway: training stands, and goes on as if nothing had been."""

from tests.training.dialogue import status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import WORLD, Job


async def stopped(gateway: GatewayPeer, number: int = 1) -> tuple[int, str]:
    """Code and words of the answer to the order to pause."""
    report = await gateway.report("ReportStopComplete", number)
    return report.status.code, report.status.info


async def paused(job: Job, gateway: GatewayPeer) -> None:
    """A new job, somewhere in training."""
    await job.start()
    await job.reached(5)
    await gateway.pause()
    code, words = await stopped(gateway)
    assert (code, words[:27]) == (0, "training stands behind step")


async def test_a_paused_job_ends_as_if_nothing_had_happened(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """All ranks stand at one boundary, in the group that they have, and nobody does a step before the order to go on."""
    await paused(job, gateway)
    steps = [job.steps(rank)[-1]["step"] for rank in range(WORLD)]
    assert len(set(steps)) == 1
    await gateway.go_on()
    assert await status(gateway) == ("continue", 0, f"training goes on behind step {steps[0]}")
    assert gateway.metadata["ReportRecoverStatus"] == [{"rekindle-attempt": "attempt-1"}]
    assert await job.codes() == {0}
    assert job.final() == reference
    assert job.executed_once()
    assert {step["generation"] for step in job.steps(0)} == {1}
