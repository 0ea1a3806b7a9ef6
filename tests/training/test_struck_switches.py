"""Faults after the pause of a hot switch, with real processes: none of them costs more than a step, or a bit of the result."""

import grpc
import pytest

from rekindle_wire.training_pb2 import Held, ManagerMessage, Paused, RankMessage
from tests.training.dialogue import all_lost, fault, kill_rank, offers, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import WORLD, Job
from tests.training.ranks import ScriptedRank
from tests.training.standalone import last_words

STEPS = 12
"""Steps of the script on which faults act."""


def at_any_step(rank: int, place: str) -> str:
    """Returns a fault at the first step at which the process of this rank comes to this place."""
    return ",".join(f"{rank}:{step}:{place}" for step in range(1, STEPS + 1))


async def switching(job: Job, gateway: GatewayPeer) -> None:
    """Starts a job and brings it to the pause, somewhere in training."""
    job.slow_down()
    await job.start(1)
    await job.reached(2)
    await gateway.hot_switch(2, 3)
    assert await offers(gateway) == ["migration"]


async def paused(job: Job, gateway: GatewayPeer, *, of_old: str = "", of_new: str = "") -> None:
    """Brings a job to the pause for which training waits; from then on its steps are short. The old pods and the new one are
    affected."""
    job.environment |= {"KIND": "kill", "FAULTS": of_old, "PACE_MS": "2000"}
    await job.start()
    job.environment["FAULTS"] = of_new
    await job.backup(1)
    await gateway.hot_switch(2, 3)
    assert await offers(gateway) == ["migration"]
    job.hurry()


async def ends_on_old_pods(job: Job) -> None:
    job.hurry()
    assert {await job.started[f"worker-{pod}"].code() for pod in (0, 1)} == {0}


async def is_recovered_in_place(gateway: GatewayPeer, *ranks: int, statuses: int = 1) -> None:
    assert await opened(gateway, *ranks, uuid="attempt-2", number=1) == ["migration"]
    assert await offers(gateway, 2) == ["recover", "dump", "exit"]
    await gateway.in_place(*ranks, uuid="attempt-2")
    assert (await status(gateway, statuses + 1))[:2] == ("recover", 0)


async def test_a_rank_that_is_lost_behind_the_pause_and_was_to_stay_is_a_fault(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The fault is reported at once, the backups leave, the order to migrate fails, and the rank is replaced in its pod."""
    await switching(job, gateway)
    kill_rank(job, 0)
    assert await fault(gateway) == {"0": "1"}
    assert await job.started["backup-1"].code() == 0
    await gateway.migrate()
    assert await status(gateway) == ("migration", 406, "a fault is being recovered")
    await is_recovered_in_place(gateway, 0)
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_ranks_that_were_to_be_replaced_and_are_lost_in_the_pause_are_faults_when_the_switch_gives_way(
    job: Job, gateway: GatewayPeer
) -> None:
    """The end of these ranks was tolerated as long as backups were to take them. They are faults now, since no backup replaces
    them."""

    def answer(message: ManagerMessage) -> RankMessage | None:
        if message.HasField("hold"):
            return RankMessage(held=Held(step=1, total=9))
        return RankMessage(paused=Paused(step=1)) if message.HasField("pause_at") else None

    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        ranks = [ScriptedRank(channel, rank, "worker", answer) for rank in range(WORLD)]
        backups = [ScriptedRank(channel, rank, "backup", answer) for rank in (2, 3)]
        await gateway.report("ReportProgress")
        await gateway.hot_switch(2, 3)
        assert await offers(gateway) == ["migration"]
        for gone in (3, 0):
            ranks[gone].end()
        await all_lost(gateway, 0, 3)
        for process in (*ranks, *backups):
            process.end()


async def test_a_manager_that_follows_in_the_pause_finds_who_was_lost_with_the_one_before(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """A manager does not take up a switch that has lost a rank which was to stay."""
    await switching(job, gateway)
    job.started["manager"].kill()
    kill_rank(job, 0)
    await job.started["manager"].code()
    await job.manager()
    assert await fault(gateway) == {"0": "1"}
    await gateway.migrate()
    assert await status(gateway) == ("migration", 406, "a fault is being recovered")
    await is_recovered_in_place(gateway, 0)
    assert await job.codes() == {0, -9}
    assert job.final() == reference


async def test_an_order_to_migrate_that_comes_when_the_fault_is_recovered_fails_too(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The order fails so that the backup does not pass for the holder of the rank, since the old pod would then be deleted."""
    await switching(job, gateway)
    kill_rank(job, 0)
    await fault(gateway)
    await gateway.stop_train("attempt-2")
    await gateway.announce(0, uuid="attempt-2")
    assert await offers(gateway, 2) == ["recover", "dump", "exit"]
    await gateway.in_place(0, uuid="attempt-2")
    assert (await status(gateway))[:2] == ("recover", 0)
    await gateway.migrate()
    assert (await status(gateway, 2))[:2] == ("migration", 406)
    assert await job.codes() == {0}
    assert job.final() == reference


@pytest.mark.same_path("a backup dies in the rebuild")
@pytest.mark.parametrize("place", ["beginning", "agreed"])
async def test_a_backup_that_dies_in_the_rebuild_gives_the_ranks_back_to_the_old_processes(
    place: str, recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """Old processes take the state of the others also where those have done the step by then, and what a neighbour keeps of
    them."""
    await paused(recovered, gateway, of_new=at_any_step(2, place))
    old = recovered.children("worker-1")
    await gateway.migrate()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("continue", 0)
    assert "on the old pod" in info
    assert recovered.children("worker-1") == old
    await ends_on_old_pods(recovered)
    assert last_words(recovered.outputs()) == undisturbed
    assert not gateway.all("ReportProcessFault")
    assert await recovered.started["backup-1"].code() != 0


async def test_a_rank_that_stays_and_dies_in_the_rebuild_is_a_fault(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The lost rank was to hand its state over. The old processes have their ranks again, and the fault is reported before the
    order is answered. The rank is replaced in its pod."""
    await paused(recovered, gateway, of_old=at_any_step(0, "sending"))
    recovered.environment["FAULTS"] = ""
    await gateway.migrate()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("migration", 406)
    assert info.endswith("on the old pod: rank 0 is gone")
    assert await fault(gateway) == {"0": "1"}
    told = [name for name, _ in gateway.heard]
    assert told.index("ReportProcessFault") < told.index("ReportRecoverStatus")
    await is_recovered_in_place(gateway, 0)
    await ends_on_old_pods(recovered)
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_backup_that_is_lost_when_it_has_taken_over_is_followed_by_the_old_processes(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """Old processes remain as long as their pod is not deleted. They take the ranks in place, with the state of the others."""
    await switching(job, gateway)
    await gateway.migrate()
    assert (await status(gateway))[:2] == ("migration", 0)
    old = job.children("worker-1")
    await job.lose("backup-1")
    await all_lost(gateway, 2, 3)
    await is_recovered_in_place(gateway, 2, 3)
    assert job.children("worker-1") == old
    await ends_on_old_pods(job)
    assert job.final() == reference
