"""Last checkpoint, which the ranks that are left write before the job is restarted."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import pytest_asyncio
import torch
import torch.distributed.checkpoint as dcp

import rekindle_training
from rekindle_training.adapter.digest import digest
from rekindle_training.manager.last_checkpoint import Written
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.recovery import Recovery
from rekindle_training.manager.replacements import CannotRepair
from rekindle_wire.training_pb2 import Held, Hello, Kept, ManagerMessage, RankMessage, Save, Saved, Standing
from tests.training.dialogue import all_lost, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import WORLD, Job
from tests.training.loaded import CONTEXT
from tests.training.ranks import ScriptedRank
from tests.training.scripts.plain import final
from tests.training.standalone import Standalone, last_words
from tests.training.test_dead_managers import replaced_manager
from tests.training.test_repair import at_places


def script(name: str) -> str:
    return str(Path(__file__).with_name("scripts").joinpath(name))


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
            at_the_end_of_the_last_step="1:12:ending",
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
    assert {*last_words(recovered.outputs())} == {*undisturbed}, "ranks that were left at the end of the loop had said so"


async def killed(job: Job, gateway: GatewayPeer, *ranks: int) -> list[str]:
    """Starts a job in which these ranks are killed. Returns what is offered when they are announced."""
    job.environment["KIND"] = job.environment.get("KIND", "kill")
    await job.start()
    await all_lost(gateway, *ranks)
    return await opened(gateway, *ranks)


def read_in_both_ways(folder: str) -> tuple[int, bool]:
    """Returns the step of the newest checkpoint, and whether torch reads the model that Rekindle reads, in another process."""
    found = rekindle_training.load(folder)
    (newest,) = Path(folder, "checkpoints").iterdir()
    by_torch = {"model": {name: torch.zeros_like(tensor) for name, tensor in found["model"].items()}}
    dcp.load(by_torch, checkpoint_id=newest)
    return found["step"], digest(by_torch["model"]) == digest(found["model"])


async def test_shards_of_a_lost_pod_are_saved_by_ranks_that_have_the_same(
    job: Job, gateway: GatewayPeer, beside: Standalone
) -> None:
    """A sharded model is restarted with the bits of an undisturbed run. Other processes read the checkpoint as any other."""
    job.script, job.arguments = script("sharded.py"), []
    job.environment["FAULTS"] = "2:5:behind,3:5:behind"
    assert await killed(job, gateway, 2, 3) == ["recover", "dump", "exit"]
    await gateway.dump()
    assert (await status(gateway))[:2] == ("dump", 0)
    with CONTEXT.Pool(1) as plain:
        assert plain.apply(read_in_both_ways, (str(job.folder),)) == (4, True)
    await restarted(job)
    assert await job.codes() <= {0, -signal.SIGKILL}
    assert last_words(job.outputs()) == last_words(await beside.run(script=job.script))


async def test_parts_of_the_state_are_saved_by_another_rank_that_has_them(
    job: Job, gateway: GatewayPeer, beside: Standalone
) -> None:
    """The lowest rank of a part, which writes it otherwise, is lost. The part is read under that rank as before."""
    job.script, job.arguments = script("struck.py"), [script("exported.py")]
    job.environment |= {"FAULTS": "0:4:kill", "KIND": "parts"}
    assert await killed(job, gateway, 0) == ["recover", "dump", "exit"]
    await gateway.dump()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("dump", 0), info
    assert info.endswith("is saved by 3 of 4 ranks: 1 steps more than the last checkpoint has")
    found = rekindle_training.load(job.folder)
    assert (found["step"], sorted(found["ranks"])) == (3, [0, 2])
    await restarted(job)
    assert await job.codes() <= {0, -signal.SIGKILL}
    ends = re.compile(r"(?:evaluated|moment) .+")
    undisturbed = await beside.run(script=script("exported.py"), KIND="parts")
    assert sorted(ends.findall(job.outputs())) == sorted(ends.findall(undisturbed))


@pytest.mark.same_path("a rank is lost while the others write the last checkpoint")
@pytest.mark.parametrize("second", ["kill 0:5:saving", "stop 2:5:saving", "kill 0:5:published"])
async def test_a_rank_that_is_lost_while_they_write_is_left_out(
    second: str, recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The first rank dies before or after the checkpoint has its name, or another one is frozen. The rest ends the checkpoint."""
    kind, place = second.split()
    recovered.environment |= {"KIND": kind, "FAULTS": f"3:5:backward,{place}"}
    assert await killed(recovered, gateway, 3) == ["recover", "dump", "exit"]
    await gateway.dump()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("dump", 0), info
    assert saved_step(info) == 4
    assert [path.name for path in (recovered.folder / "checkpoints").iterdir()] == ["step-00000004"]
    await restarted(recovered)
    assert await recovered.codes() <= {0, -signal.SIGKILL}
    assert last_words(recovered.outputs()) == undisturbed


async def test_a_rank_that_is_lost_while_a_periodic_checkpoint_is_written_costs_no_step(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The half written checkpoint is cleared, and the one before it stays."""
    recovered.environment |= {"EVERY": "3", "FAULTS": "1:6:checkpoint"}
    await killed(recovered, gateway, 1)
    await gateway.dump()
    said = "the state after step 6 is saved by 3 of 4 ranks: 3 steps more than the last checkpoint has"
    assert await status(gateway) == ("dump", 0, said)
    names = sorted(path.name for path in (recovered.folder / "checkpoints").iterdir())
    assert names == ["step-00000003", "step-00000006"]
    await restarted(recovered)
    assert await recovered.codes() <= {0, -signal.SIGKILL}
    assert last_words(recovered.outputs()) == undisturbed


async def test_gradients_of_the_turn_before_are_saved(recovered: Job, gateway: GatewayPeer, beside: Standalone) -> None:
    """A loop whose turns are parts of a batch goes on between two updates with the gradients that it had."""
    recovered.environment |= {"GATHER": "2", "WRAP": "", "FAULTS": "2:6:backward"}
    await killed(recovered, gateway, 2)
    await gateway.dump()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("dump", 0), info
    assert saved_step(info) == 5
    await restarted(recovered)
    assert await recovered.codes() <= {0, -signal.SIGKILL}
    assert last_words(recovered.outputs()) == last_words(await beside.run(GATHER="2", WRAP=""))


async def test_an_update_that_ranks_had_not_told_each_other_is_told_after_the_restart(
    job: Job, gateway: GatewayPeer, beside: Standalone
) -> None:
    """The ranks that are left have updated only their own parts of the parameters, and no group to gather the others."""
    job.script, job.arguments = script("struck_megatron.py"), []
    job.environment["FAULTS"] = "1:7:telling"
    await killed(job, gateway, 1)
    await gateway.dump()
    said = "the state after step 7 is saved by 3 of 4 ranks: 2 steps more than the last checkpoint has"
    assert await status(gateway) == ("dump", 0, said)
    await restarted(job)
    assert await job.codes() <= {0, -signal.SIGKILL}
    await beside.run(script=job.script)
    assert job.final() == final(beside.folder, WORLD)


async def test_a_shard_that_nobody_has_any_more_cannot_be_saved(job: Job, gateway: GatewayPeer) -> None:
    """Both ranks that had the shard are lost, so that only the restart from the periodic checkpoint is left. The log says why."""
    job.script, job.arguments = script("sharded.py"), []
    job.environment["FAULTS"] = "1:5:behind,3:5:behind"
    assert await killed(job, gateway, 1, 3) == ["exit"]
    assert re.search(r"repair not offered.*no rank that is left holds the shard of rank", job.outputs())


async def test_a_script_that_keeps_its_own_checkpoints_writes_no_last_one(job: Job, gateway: GatewayPeer) -> None:
    """The report says why, since the session cannot know how such a checkpoint is written by some of the ranks."""
    job.script, job.arguments = script("struck.py"), [script("protected.py")]
    job.environment |= {"FAULTS": "1:3:kill", "STORE": "yes", "EVERY": "4"}
    await killed(job, gateway, 1)
    await gateway.dump()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("dump", 406)
    assert "the script keeps its own checkpoints, session(checkpoints=...), and only all ranks together write them" in info


async def test_a_last_checkpoint_for_which_a_rank_has_no_room_leaves_nothing(job: Job, gateway: GatewayPeer) -> None:
    """The report has the rank and the error of the operating system, as where a disk is full."""
    job.script, job.arguments = script("struck.py"), [script("protected.py")]
    job.environment |= {"FAULTS": "2:3:kill", "QUOTA": "1", "EVERY": "0"}
    assert "dump" in await killed(job, gateway, 2)
    await gateway.dump()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("dump", 406), info
    assert info.endswith("rank 1: OSError: [Errno 27] File too large")
    assert not [*(job.folder / "checkpoints").iterdir()]


async def test_training_can_go_on_after_a_last_checkpoint_whether_it_was_written_or_not(
    recovered: Job, gateway: GatewayPeer, undisturbed: list[str]
) -> None:
    """The ranks stand as before. The error names the rank that found no folder, and the others do not wait for it."""
    recovered.environment["FAULTS"] = "1:5:backward"
    recovered.flags = ["--spares=1"]
    await killed(recovered, gateway, 1)
    (folder := recovered.folder / "checkpoints").touch()
    await gateway.dump()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("dump", 406)
    assert info.startswith(f"CheckpointNotWritten: checkpoint {folder}/step-00000004: rank 0: NotADirectoryError: [Errno 20]")
    folder.unlink()
    await gateway.dump("attempt-2")
    assert (await status(gateway, 2))[:2] == ("dump", 0)
    await gateway.in_place(1, uuid="attempt-3")
    assert await status(gateway, 3) == ("recover", 0, "training goes on after step 4")
    assert await recovered.codes() == {0}
    assert last_words(recovered.outputs()) == undisturbed
    assert [path.name for path in folder.iterdir()] == ["step-00000004"]


# Orders that a manager carries out with ranks that a test plays.

Answer = Callable[[int, Save, int], Saved | Standing | None]
"""Answer of a rank to its order to save; the last argument counts its orders. None: it writes, and does not come to an end."""


class Played:
    """Ranks of two pods that have done five steps, of which rank 3 is gone. Each keeps the state of a rank of the other pod."""

    def __init__(self, channel: Any, answer: Answer) -> None:
        self.saves: dict[int, list[Save]] = {rank: [] for rank in range(3)}
        self.standing = {
            rank: Standing(step=5, kept=[Kept(rank=(rank + 2) % 4, step=5, own_state=b"own")]) for rank in self.saves
        }
        """Where each rank says that it stands."""
        self._answer = answer
        self.ranks = {
            rank: ScriptedRank(channel, rank, "worker", partial(self._say, rank), generation=3, step=5) for rank in self.saves
        }

    def _say(self, rank: int, message: ManagerMessage) -> RankMessage | None:
        match message.WhichOneof("kind"):
            case "hold":
                return RankMessage(held=Held(step=5, total=9))
            case "stand":
                return RankMessage(standing=self.standing[rank])
            case "save":
                self.saves[rank].append(message.save)
                said = self._answer(rank, message.save, len(self.saves[rank]))
                if isinstance(said, Standing):
                    return RankMessage(standing=said)
                return None if said is None else RankMessage(saved=said)
        return None

    async def ordered(self, rank: int) -> None:
        """Waits until the rank is ordered to save."""
        async with asyncio.timeout(60):
            while not self.saves[rank]:
                await asyncio.sleep(0.01)


def writes(_: int, save: Save, __: int) -> Saved:
    return Saved(id=save.id, before=2)


Play = Callable[[Answer], Played]


@pytest_asyncio.fixture
async def play(job: Job) -> AsyncIterator[Play]:
    """Yields what begins ranks that give these answers, and that have met a manager before this one."""
    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        yield lambda answer: Played(channel, answer)


async def test_ranks_that_are_left_are_ordered_to_write_once_for_each_attempt(play: Play, gateway: GatewayPeer) -> None:
    """A rank that failed in its update takes part, and writes only state of its own. The report says how much is gained."""
    played = play(writes)
    played.standing[0] = Standing(step=4, place=Standing.SPOILT)
    played.standing[1].place = Standing.VOTES
    assert await opened(gateway, 3) == ["recover", "dump", "exit"]
    await gateway.dump()
    said = "the state after step 5 is saved by 3 of 4 ranks: 3 steps more than the last checkpoint has"
    assert await status(gateway) == ("dump", 0, said)
    await gateway.dump()  # as on another stream
    await gateway.dump("attempt-2")
    assert await status(gateway, 2) == ("dump", 0, said)
    for rank, orders in played.saves.items():
        assert len({order.id for order in orders}) == len(orders) == 2, rank
        for order in orders:
            assert (order.step, list(order.members), list(order.whole), list(order.gone)) == (5, [0, 1, 2], [1, 2], [3])


async def test_ranks_begin_again_without_one_that_is_lost_while_they_write(play: Play, gateway: GatewayPeer) -> None:
    """The others are called off their meeting, and write what only the lost rank had as well."""
    played = play(lambda rank, save, number: writes(rank, save, number) if number > 1 else None)
    await opened(gateway, 3)
    await gateway.dump()
    await played.ordered(2)
    played.ranks[2].end()
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("dump", 0), info
    assert [list(order.gone) for order in played.saves[0]] == [[3], [2, 3]]
    assert [list(order.members) for order in played.saves[1]] == [[0, 1, 2], [0, 1]]
    assert played.ranks[1].told[-3:] == ["save", "stand", "save"]


async def test_a_rank_that_gives_up_its_step_before_it_writes_uses_up_no_try(play: Play, gateway: GatewayPeer) -> None:
    """Ranks that waited in a vote say again where they stand, one after the other. None of them is lost."""
    gives_up = Standing(step=5)
    played = play(lambda rank, save, number: gives_up if rank == 0 and number < 6 else writes(rank, save, number))
    await opened(gateway, 3)
    await gateway.dump()
    assert (await status(gateway))[:2] == ("dump", 0)
    assert len(played.saves[0]) == 6


async def test_a_rank_that_cannot_write_keeps_nobody_waiting_for_the_report(play: Play, gateway: GatewayPeer) -> None:
    """Other ranks may wait for that rank in the meeting. They are called off before the report."""
    problem = "ConnectionRefusedError: [Errno 111] Connection refused"
    played = play(lambda rank, save, _: Saved(id=save.id, problem=problem) if rank == 1 else None)
    await opened(gateway, 3)
    await gateway.dump()
    assert await status(gateway) == ("dump", 406, problem)
    assert [rank.told[-2:] for rank in played.ranks.values()] == 3 * [["save", "stand"]]


@pytest.mark.parametrize(
    ("standing", "reason"),
    [
        (Standing(step=0), "no step is completed, so there is nothing to save"),
        (Standing(step=5), "no rank that is left keeps the random numbers and the data position of rank 3"),
        (
            Standing(step=5, replicas=[0, 1, 2]),
            "no rank that is left holds the shard of rank 3, and no snapshot of rank 3 is left",
        ),
    ],
    ids=["no step yet", "state of one rank alone", "shard"],
)
async def test_a_last_checkpoint_that_would_lack_something_is_neither_offered_nor_written(
    standing: Standing, reason: str, play: Play, gateway: GatewayPeer
) -> None:
    """An order that comes all the same is refused with the reason, and no rank is asked."""
    played = play(writes)
    for rank in played.standing:
        played.standing[rank] = standing
    assert "dump" not in await opened(gateway, 3)
    await gateway.dump()
    assert await status(gateway) == ("dump", 406, reason)
    assert not any(played.saves.values())


async def test_ranks_end_where_nothing_follows_their_last_checkpoint() -> None:
    """Training does not go on by itself: the restart that is due would lose the steps that it does meanwhile."""
    membership = Membership(1)
    membership.enroll(Hello(rank=0, process="0/0"), 1)
    means = SimpleNamespace(reports=None, order_timeout=0, decides_without_orders=True, membership=membership)
    recovery = Recovery(means, lambda: asyncio.sleep(0), None)  # type: ignore[arg-type]
    recovery._written = Written(step=5, ranks=3, world_size=4, before=2)
    with pytest.raises(CannotRepair, match="the state after step 5 is saved, and no order has followed"):
        await recovery._wait_for_orders()


async def test_a_manager_that_follows_one_which_died_while_ranks_wrote_has_them_write_again(
    job: Job, play: Play, gateway: GatewayPeer
) -> None:
    """The order is sent again to the next manager. The meeting in the store of the first one is over."""
    played = play(lambda *_: None)
    await opened(gateway, 3)
    await gateway.dump()
    await played.ordered(0)
    (first,) = played.saves[0]
    for rank in played.ranks.values():
        rank.end()
    await replaced_manager(job)
    await gateway.until(lambda: gateway.subscriptions == 2)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        played = Played(channel, writes)
        await gateway.dump()
        strategy, code, info = await status(gateway)
        assert (strategy, code) == ("dump", 0), info
        (second,) = played.saves[0]
        assert (second.id == first.id, second.step) == (False, first.step)
