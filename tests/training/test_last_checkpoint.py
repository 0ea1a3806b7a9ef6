"""Last checkpoint, which the ranks that are left write before the job is restarted."""

import signal

import pytest

from tests.training.dialogue import all_lost, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.standalone import last_words
from tests.training.test_repair import at_places


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


@pytest.mark.parametrize(
    "faults",
    [
        *at_places(
            "a rank is lost before the update, and the others save the step before",
            in_the_first_collective_of_a_step="2:5:communicating",
            behind_its_backward_pass="3:5:backward",
            where_the_others_wait_in_the_vote="1:5:voting",
        ),
        *at_places(
            "a rank is lost in the update, and the others finish the step and save it",
            where_some_wait_in_the_vote_and_others_have_updated="0:5:deciding",
            in_its_own_update="2:5:updating",
            behind_its_update="0:5:updated",
        ),
    ],
)
async def test_a_restart_behind_a_last_checkpoint_ends_as_an_undisturbed_run(
    faults: str, recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """A rank may be killed at any place of a step. No completed step is done again, whatever the other ranks wait for."""
    recovered.environment |= {"KIND": "kill", "FAULTS": faults}
    await recovered.start()
    lost, number, place = faults.split(":")
    await all_lost(gateway, int(lost))
    assert await opened(gateway, int(lost)) == ["recover", "dump", "exit"]
    await gateway.dump()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("dump", 0), info
    assert saved_step(info) == int(number) - (place in ("communicating", "backward", "voting"))
    await restarted(recovered)
    assert await recovered.codes() <= {0, -signal.SIGKILL}
    assert last_words(recovered.outputs()) == undisturbed
