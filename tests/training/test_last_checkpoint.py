"""Last checkpoint, which the ranks that are left write before the job is restarted."""

import signal

from tests.training.dialogue import all_lost, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job


async def restarted(job: Job) -> None:
    """Ends all pods of the job, and starts them again."""
    await job.end()
    job.generation += 1
    await job.start()


def saved_step(info: str) -> int:
    """Returns the step of the last checkpoint, from the report about it."""
    return int(info.removeprefix("the state after step ").split()[0])


async def test_the_ranks_of_the_pods_that_are_left_save_the_step_at_which_training_stands(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """A job of which a pod was lost is restarted from the step at which training stood, without a periodic checkpoint."""
    job.slow_down()
    await job.start()
    await job.reached(3)
    await job.lose("worker-1")
    await all_lost(gateway, 2, 3)
    assert await opened(gateway, 2, 3) == ["recover", "dump", "exit"]
    await gateway.dump()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("dump", 0), info
    assert info == f"the state after step {saved_step(info)} is saved by 2 of 4 ranks: there was no checkpoint"
    assert saved_step(info) == job.steps(0)[-1]["step"]
    await restarted(job)
    assert (await gateway.report("ReportProgress", 2)).steps_lost == 0
    assert await job.codes() == {0, -signal.SIGKILL}
    assert job.final() == reference
    assert job.executed_once(0, 1)
