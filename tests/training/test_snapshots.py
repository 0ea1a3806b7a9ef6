"""Snapshots in memory of shards that one rank alone holds: a rank that is lost costs a few steps, and not those since the
checkpoint."""

import asyncio
import mmap
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from rekindle_training import load
from rekindle_training.adapter.checkpoint import complete
from rekindle_training.adapter.host_memory import GIB, Need, TooLarge, refuse_too_large
from rekindle_training.adapter.keepers import Domain, SameDomain, keepers
from rekindle_training.adapter.snapshot_lines import SnapshotLines
from rekindle_training.manager.repair import can_go_back, plan_of_snapshots
from rekindle_training.manager.replacements import CannotRepair
from rekindle_training.manager.reports import FAILED
from rekindle_training.snapshot_memory import Copy, Kind, SnapshotMemory
from rekindle_wire.training_pb2 import Snapshot, Standing
from tests.support.elsewhere import Elsewhere
from tests.training.dialogue import all_lost, opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import PODS, RANKS_PER_POD, WORLD, Job
from tests.training.standalone import Standalone, last_words
from tests.training.test_dead_managers import replaced_manager
from tests.training.test_last_checkpoint import restarted

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("sharded.py"))
UNIQUE: dict[str, Any] = {"UNIQUE": "accepted"}
EVERY: dict[str, Any] = {"REKINDLE_SNAPSHOT_EVERY": "3", "FAST": "3", "PACE_MS": "300"}
"""The steps after the first snapshot take so long that it is kept before a fault."""


@pytest.fixture
def sharded(job: Job) -> Job:
    """Prepares a job of two pods whose four ranks have a shard each."""
    job.script, job.arguments = SCRIPT, []
    job.environment |= UNIQUE | EVERY | {"PACE_MS": "800"}
    return job


async def kept(job: Job, step: int) -> None:
    """Waits until each rank has its snapshot of a step and that of another rank."""
    memories = [memory_of(job, rank) for rank in range(WORLD)]
    steps: list[list[int]] = []
    for _ in range(6000):
        steps = [[copy.step for copy in memory.copies(kind)] for memory in memories for kind in (Kind.OWN, Kind.KEPT)]
        if all(step in of_rank for of_rank in steps):
            return
        await asyncio.sleep(0.01)  # polling, as the memory is that of other processes
    raise AssertionError(f"steps of the copies, own and kept, by rank: {steps}")


async def finals(beside: Standalone) -> list[str]:
    """Returns the output of an undisturbed run."""
    return last_words(await beside.run(script=SCRIPT, **UNIQUE))


def behind(printed: str) -> list[int]:
    """Returns the steps after which training went on."""
    return [int(step) for step in re.findall(r"training goes on behind=(\d+)", printed)]


@pytest.mark.parametrize("faults", ["1:6:behind", "0:5:beginning", "3:7:updated"])
async def test_a_killed_rank_goes_back_to_a_snapshot(faults: str, alone: Standalone, beside: Standalone) -> None:
    """All ranks go back to the newest step of which each has a snapshot, and end like an undisturbed run."""
    printed = await alone.run(script=SCRIPT, KIND="kill", FAULTS=faults, **UNIQUE, **EVERY)
    step = int(faults.split(":")[1])
    assert behind(printed) == [(step - 1) // 3 * 3]
    assert last_words(printed) == await finals(beside)


async def test_an_update_that_failed_in_the_middle_goes_back_to_a_snapshot(alone: Standalone, beside: Standalone) -> None:
    """No process is lost. The rank can go neither on nor back by itself, and no other one has its shard."""
    printed = await alone.run(script=SCRIPT, KIND="raise", FAULTS="2:5:updated", **UNIQUE, **EVERY)
    assert behind(printed) == [3]
    assert last_words(printed) == await finals(beside)


async def test_ranks_of_a_lost_pod_are_given_what_another_node_keeps(
    sharded: Job, gateway: GatewayPeer, beside: Standalone
) -> None:
    """A backup pod takes the ranks, and has their snapshots from the ranks of the other pod. The report names the step."""
    await sharded.start()
    await sharded.reached(7)
    await kept(sharded, 6)
    await sharded.lose("worker-1")
    await all_lost(gateway, 2, 3)
    assert "recover" in await opened(gateway, 2, 3)
    await gateway.elsewhere(1)
    await sharded.backup(1)
    assert await status(gateway) == ("recover", 0, "training goes on after step 6, from snapshots in memory")
    assert await sharded.codes() == {0, -signal.SIGKILL}
    assert last_words(sharded.outputs()) == await finals(beside)


async def test_processes_that_start_again_in_their_pods_begin_at_a_snapshot(
    sharded: Job, gateway: GatewayPeer, beside: Standalone
) -> None:
    """The memory of the pod that is left outlives its processes, and has the snapshots of the lost pod. No checkpoint is read."""
    await sharded.start()
    await sharded.reached(7)
    await kept(sharded, 6)
    await sharded.lose("worker-1")
    await all_lost(gateway, 2, 3)
    await opened(gateway, 2, 3)
    done = max(sharded.steps(rank)[-1]["step"] for rank in range(WORLD))
    await gateway.again(1)
    await sharded.backup(1)
    assert (await status(gateway))[:2] == ("exit", 0)
    first = await gateway.report("ReportProgress", 2)
    assert (first.step, first.steps_lost) == (7, done - 6)
    assert await sharded.codes() == {0, -signal.SIGKILL}
    assert last_words(sharded.outputs()) == await finals(beside)


async def test_a_pod_that_is_lost_with_the_one_that_keeps_its_snapshots_leads_to_the_next_mode(
    sharded: Job, gateway: GatewayPeer
) -> None:
    """The order is answered with the rank of which no snapshot is left. Nothing is waited for."""
    sharded.pods = WORLD
    await sharded.start()
    await sharded.reached(4)
    await sharded.lose("worker-1")
    await sharded.lose("worker-2")
    await all_lost(gateway, 1, 2)
    assert "dump" not in await opened(gateway, 1, 2)
    await gateway.elsewhere(1, 2)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("recover", FAILED)
    assert info == "no rank that is left holds the shard of rank 1, and no snapshot of rank 1 is left"


async def test_a_loop_over_epochs_begins_again_at_a_snapshot(alone: Standalone, beside: Standalone) -> None:
    """The snapshot is of an epoch before, where the script's loop cannot go back to. Its processes start again."""
    faults: dict[str, Any] = {"KIND": "kill", "FAULTS": "1:6:behind"}
    printed = await alone.run("--max-restarts=1", script=SCRIPT, EPOCHS="yes", **faults, **UNIQUE, **EVERY)
    assert "and the loop of rank 0 can go back to no snapshot restart=1" in printed
    log = (alone.folder / "steps" / "rank-00000.jsonl").read_text()
    assert [log.count(f'"step": {step},') for step in (3, 4, 6)] == [1, 2, 1]
    assert last_words(printed) == await finals(beside)


async def test_a_spare_takes_the_rank_with_its_snapshot(alone: Standalone, beside: Standalone) -> None:
    """The spare learns of the rank's memory when it is given the rank."""
    printed = await alone.run("--spares=1", script=SCRIPT, KIND="kill", FAULTS="1:6:backward", **UNIQUE, **EVERY)
    assert "spare assigned to a rank" in printed
    assert behind(printed) == [3]
    assert last_words(printed) == await finals(beside)


async def test_a_last_checkpoint_is_written_from_snapshots(sharded: Job, gateway: GatewayPeer, beside: Standalone) -> None:
    """The ranks that are left go back to their snapshots, and write those that they keep of the lost pod. The job that is
    restarted reads the checkpoint, and has no pod that was there before."""
    await sharded.start()
    await sharded.reached(7)
    await kept(sharded, 6)
    await sharded.lose("worker-1")
    await all_lost(gateway, 2, 3)
    assert await opened(gateway, 2, 3) == ["recover", "dump", "exit"]
    await gateway.dump()
    assert await status(gateway) == ("dump", 0, "the state after step 6 is saved by 2 of 4 ranks: there was no checkpoint")
    await restarted(sharded)
    assert (await gateway.report("ReportProgress", 2)).step == 7
    assert await sharded.codes() == {0, -signal.SIGKILL}
    assert last_words(sharded.outputs()) == await finals(beside)


async def test_a_new_manager_goes_back_to_a_snapshot(sharded: Job, gateway: GatewayPeer, beside: Standalone) -> None:
    """The new manager learns of the snapshots from the ranks, and needs nothing of the manager before it."""
    gateway.recovers = "in place"
    sharded.environment |= {"KIND": "kill", "FAULTS": "1:8:behind", "FAST": "2"}
    await sharded.start()
    await sharded.reached(3)
    await replaced_manager(sharded)
    await kept(sharded, 6)
    assert (await status(gateway))[2] == "training goes on after step 6, from snapshots in memory"
    await sharded.codes()
    assert last_words(sharded.outputs()) == await finals(beside)


@pytest.mark.parametrize(("damaged", "goes_back_to"), [((1,), [6]), ((1, 3), [6, 3])], ids=["own", "own and kept"])
async def test_a_damaged_snapshot_is_never_used(
    damaged: tuple[int, ...], goes_back_to: list[int], sharded: Job, gateway: GatewayPeer, beside: Standalone
) -> None:
    """The digest differs. The rank is given what another one keeps; if that is damaged too, all go back to the one before."""
    gateway.recovers = "in place"
    sharded.environment |= {"KIND": "kill", "FAULTS": "1:9:behind"}
    await sharded.start()
    await sharded.reached(6)
    await kept(sharded, 6)
    for holder in damaged:
        damage(memory_of(sharded, holder), rank=1, step=6)
    sharded.hurry()
    assert (await status(gateway))[:2] == ("recover", 0)
    assert await sharded.codes() == {0}
    assert "snapshot of rank 1 after step 6 dropped: its digest differs" in sharded.outputs()
    assert behind(sharded.outputs()) == goes_back_to
    assert last_words(sharded.outputs()) == await finals(beside)


async def test_a_rank_that_cannot_take_a_snapshot_leaves_all_the_one_before(sharded: Job) -> None:
    """The other ranks write over the one that it does not have. Otherwise no step would be left that all have, until the next
    snapshot is complete."""
    sharded.environment |= {"WITHOUT_THREAD": "2"}
    await sharded.start()
    await sharded.reached(9)
    while [steps_of(sharded, rank) for rank in range(WORLD)] != [[9, 3]] * WORLD:
        await asyncio.sleep(0.01)  # polling, as the memory is that of other processes
    assert await sharded.codes() == {0}
    assert "snapshot after step 6 not taken: RuntimeError: can't start new thread" in sharded.outputs()


def steps_of(job: Job, rank: int) -> list[int]:
    return [copy.step for copy in memory_of(job, rank).copies(Kind.OWN)]


async def test_training_goes_on_while_a_checkpoint_is_written(sharded: Job, gateway: GatewayPeer, beside: Standalone) -> None:
    """Ranks write the snapshots. The next checkpoint is left out if it is due meanwhile. A restarted job begins at the first."""
    sharded.environment |= {"EVERY": "3", "WRITES_FROM": "7"}
    await sharded.start()
    await sharded.reached(7)  # where tensors may be written
    while not (written := complete(sharded.folder / "checkpoints")):
        await asyncio.sleep(0.01)  # polling, as another process writes it
    assert 3 in written
    assert load(sharded.folder)["model"]["0.weight"].shape == (33, 16)
    assert "checkpoint after step 6 left out, the one before is still being written" in sharded.outputs()
    await restarted(sharded)
    assert (await gateway.report("ReportProgress", 2)).step in {4, 10}
    assert await sharded.codes() == {0, -signal.SIGKILL}
    assert last_words(sharded.outputs()) == await finals(beside)


async def test_checkpoints_are_written_after_the_manager_was_replaced(sharded: Job, gateway: GatewayPeer) -> None:
    """Training goes on in the same generation, and the store of the manager that is gone is not needed."""
    sharded.environment |= {"EVERY": "9"}
    await sharded.start()
    await sharded.reached(3)
    await replaced_manager(sharded)
    assert 0 in await sharded.codes()
    assert complete(sharded.folder / "checkpoints") == {9}


async def test_a_checkpoint_that_a_fault_interrupts_is_written_from_the_next_snapshot(
    alone: Standalone, beside: Standalone
) -> None:
    """A rank is killed before it has written its part of the state after step 4. All go back to step 6, and write that one."""
    environment = UNIQUE | EVERY | {"REKINDLE_SNAPSHOT_EVERY": "2", "EVERY": "4", "WRITES_FROM": "8", "HELD": "1"}
    printed = await alone.run(script=SCRIPT, KIND="kill", FAULTS="1:8:beginning", **environment)
    assert behind(printed) == [6]
    assert 6 in complete(alone.folder / "checkpoints")
    assert list((alone.folder / "checkpoints").glob(".*")) == []
    assert last_words(printed) == await finals(beside)


async def test_a_checkpoint_that_a_fault_interrupts_may_be_written_of_the_same_step(alone: Standalone) -> None:
    """The rank that is killed has not written its part. All go back to that step, and nothing is left of the first try."""
    environment = UNIQUE | EVERY | {"EVERY": "4", "WRITES_FROM": "6", "HELD": "1"}
    await alone.run(script=SCRIPT, KIND="kill", FAULTS="1:6:beginning", **environment)
    assert 4 in complete(alone.folder / "checkpoints")


async def test_the_checkpoint_of_the_last_step_is_there_when_training_has_ended(alone: Standalone) -> None:
    """Ranks end when it is written, although the loop goes on while others are written."""
    await alone.run(script=SCRIPT, EVERY="10", HOLDS_SNAPSHOT="10", **UNIQUE, **EVERY)
    assert complete(alone.folder / "checkpoints") == {10}


async def test_a_checkpoint_for_which_there_is_no_room_does_not_stop_training(alone: Standalone, beside: Standalone) -> None:
    """The message names the rank and the reason, and nothing of the checkpoint is left."""
    printed = await alone.run(script=SCRIPT, EVERY="4", FULL="1", **UNIQUE, **EVERY)
    assert re.search(
        r"checkpoint after step 4 not written, training goes on; reason: .*step-00000004: rank 1: OSError: .* No space", printed
    )
    assert list((alone.folder / "checkpoints").iterdir()) == []
    assert last_words(printed) == await finals(beside)


async def test_where_replicas_hold_each_shard_no_snapshot_is_taken(alone: Standalone) -> None:
    """Nothing is copied, and a killed rank costs no step."""
    printed = await alone.run(script=SCRIPT, KIND="kill", FAULTS="1:5:behind", **EVERY)
    assert "snapshot" not in printed
    assert behind(printed) == [4]


async def test_an_interval_of_0_is_refused(alone: Standalone) -> None:
    """The message names the variable and what is accepted."""
    printed = await alone.run(code=1, script=SCRIPT, REKINDLE_SNAPSHOT_EVERY="0", **UNIQUE)
    assert "REKINDLE_SNAPSHOT_EVERY=0 is not accepted: it is a number of steps, 1 or more" in printed


async def test_sizes_are_stated_at_the_start(alone: Standalone) -> None:
    """The log says that a loss of the node is not covered if all ranks are on it."""
    printed = await alone.run(script=SCRIPT, **UNIQUE, **EVERY)
    assert re.search(
        r"snapshots in memory every 3 steps: \d\.\d+ GiB of rank \d, \d\.\d+ GiB of all ranks, 2 copies of each", printed
    )
    assert "snapshots in the memory of one node only, where all ranks are" in printed


async def test_pods_of_one_rack_are_refused(sharded: Job) -> None:
    """A job whose racks are told keeps no snapshot in the rack of its rank. Training does not begin."""
    sharded.environment["REKINDLE_RACK"] = "r1"
    await sharded.start()
    assert 0 not in {await sharded.started[f"worker-{pod}"].code() for pod in range(PODS)}
    assert (
        "4 of 4 ranks are in rack r1, so that not each of them can have its snapshots kept in another rack" in sharded.outputs()
    )
    assert not sharded.steps(0)


async def test_an_interval_that_differs_between_pods_is_refused(sharded: Job) -> None:
    """The message names both ranks. None waits for the snapshots of another one."""
    await sharded.manager()
    await sharded.worker(0)
    sharded.environment["REKINDLE_SNAPSHOT_EVERY"] = "5"
    await sharded.worker(1)
    assert 0 not in {await sharded.started[f"worker-{pod}"].code() for pod in range(PODS)}
    assert "REKINDLE_SNAPSHOT_EVERY is 3 for rank 1 and 5 for rank 3: set the same in all pods" in sharded.outputs()


def test_each_rank_has_its_snapshots_kept_in_another_rack() -> None:
    """Racks may have different numbers of nodes, as long as none has more than half of the ranks."""
    racks = ["a", "b", "a", "c", "a", "b"]
    kept = keepers([Domain(rank, f"node-{rank}", rack) for rank, rack in enumerate(racks)])
    assert sorted(kept) == sorted(kept.values()) == list(range(6))
    assert all(racks[rank] != racks[keeper] for rank, keeper in kept.items())


def test_a_node_with_more_than_half_of_the_ranks_is_refused() -> None:
    """Each rank keeps the snapshots of one other rank, so the ranks elsewhere are too few."""
    nodes = ["a", "a", "a", "b"]
    with pytest.raises(SameDomain, match=r"3 of 4 ranks are in node a, .* accepted are at most 2 ranks in one node"):
        keepers([Domain(rank, node, "") for rank, node in enumerate(nodes)])


def test_racks_are_told_for_all_pods_or_for_none() -> None:
    """A rank without a rack is named."""
    with pytest.raises(SameDomain, match=r"REKINDLE_RACK is set for rank 0 and not for rank 1"):
        keepers([Domain(0, "a", "r1"), Domain(1, "b", "")])


def test_snapshots_that_do_not_fit_are_refused_with_numbers() -> None:
    """Two copies of each rank's state and two of those that are kept are compared with what is free on the node."""
    needs = [Need(rank, "a", f"pod-{rank}", GIB, GIB, 0, 7 * GIB, None) for rank in range(2)]
    with pytest.raises(TooLarge, match=r"ranks \[0, 1\] take 8.00 GiB more in the memory of node a, where 7.00 GiB are free"):
        refuse_too_large(needs)
    refuse_too_large(need._replace(has=GIB) for need in needs)


def test_snapshots_that_exceed_the_limit_of_a_pod_are_refused() -> None:
    """The node has enough memory, and the container of one rank has not."""
    need = Need(3, "a", "pod-3", GIB, 0, 0, 100 * GIB, GIB)
    with pytest.raises(TooLarge, match=r"the pod of rank 3, where 1.00 GiB are free"):
        refuse_too_large([need])


def test_a_rank_that_is_lost_with_its_keeper_leads_to_the_next_mode() -> None:
    """The reason names the rank of which no snapshot is left."""
    standing = {
        0: Standing(step=7, snapshots=[Snapshot(rank=0, step=6), Snapshot(rank=3, step=6)]),
        1: Standing(place=Standing.LOST),
        2: Standing(place=Standing.LOST),
        3: Standing(step=7, snapshots=[Snapshot(rank=3, step=6), Snapshot(rank=2, step=6)]),
    }
    with pytest.raises(CannotRepair, match=r"no rank that is left holds the shard of rank 1, and no snapshot of rank 1 is left"):
        plan_of_snapshots(standing, {}, "no rank that is left holds the shard of rank 1")


def test_where_no_rank_has_snapshots_nobody_goes_back() -> None:
    """All processes of a job without snapshots may be gone: no other ones are started to look for them."""
    gone = {rank: Standing(place=Standing.LOST) for rank in range(2)}
    assert not can_go_back(gone, gone.keys())
    has = {**gone, 0: Standing(step=7, snapshots=[Snapshot(rank=0, step=6)])}
    assert can_go_back(has, {1})
    assert not can_go_back(has, {})


def test_a_loop_that_has_left_a_step_behind_is_not_taken_back_there() -> None:
    """A rank in its second epoch cannot go back to a step of the first one."""
    ranks = [Standing(step=8, earliest=6, snapshots=[Snapshot(rank=rank, step=step) for step in (5, 7)]) for rank in range(2)]
    assert plan_of_snapshots(dict(enumerate(ranks)), {}, "").step == 7
    ranks[1].earliest = 8
    with pytest.raises(CannotRepair, match="the loop of rank 1 can go back to no snapshot"):
        plan_of_snapshots(dict(enumerate(ranks)), {}, "")


def test_a_copy_whose_writer_was_killed_does_not_count() -> None:
    """The copy before it does. Two copies have a place each, and the older one is written over."""
    memory = SnapshotMemory(os.memfd_create("rekindle-snapshots-of-a-test"))
    for step in (3, 6):
        place, content = memory.begin(Kind.OWN, 0, 100)
        content[:] = bytes([step]) * 100
        memory.seal(place, 0, step, 100)
    _, content = memory.begin(Kind.OWN, 0, 100)
    content[:50] = bytes(50)
    assert [(copy.step, bytes(memory.read(copy) or b"")) for copy in memory.copies(Kind.OWN)] == [(6, b"\6" * 100)]
    memory.forget(after=5)
    assert memory.copies(Kind.OWN) == []


def test_memory_that_is_reserved_is_there_before_the_first_copy() -> None:
    """Memory that is first used while training goes on makes its steps several times as long."""
    memory = SnapshotMemory(os.memfd_create("rekindle-snapshots-of-a-test"))
    memory.reserve(Kind.OWN, 1 << 20)
    assert memory.capacity == 2 << 20
    copy_of(memory, 3)
    assert memory.capacity == (2 << 20) + mmap.PAGESIZE  # that of its header
    assert [copy.step for copy in memory.copies(Kind.OWN)] == [3]


async def test_a_keeper_drops_a_copy_that_not_all_ranks_have_when_the_next_one_is_offered() -> None:
    """Keepers may receive the next one before they take their own snapshot of that step, and must not drop it then."""
    ours, theirs = (SnapshotMemory(os.memfd_create("rekindle-snapshots-of-a-test")) for _ in range(2))
    lines, keeper = SnapshotLines(ours, 0, "127.0.0.1"), SnapshotLines(theirs, 1, "127.0.0.1")
    keeper.begin(None)
    lines.begin(keeper.address)
    try:
        for step, common in ((3, -1), (6, 3), (9, 3)):
            assert await asyncio.to_thread(lines.send, copy_of(ours, step), common)
            theirs.forget(common, (Kind.OWN,))
            assert theirs.copies(Kind.KEPT)[0].step == step
        assert [copy.step for copy in theirs.copies(Kind.KEPT)] == [9, 3]
    finally:
        lines.close()
        keeper.close()


async def test_a_connection_that_was_cut_is_made_again_for_the_next_copy() -> None:
    """A firewall may cut it while nothing is sent. Snapshots are kept by the other rank as before."""
    ours, theirs = (SnapshotMemory(os.memfd_create("rekindle-snapshots-of-a-test")) for _ in range(2))
    lines, keeper = SnapshotLines(ours, 0, "127.0.0.1"), SnapshotLines(theirs, 1, "127.0.0.1")
    relay = Elsewhere(f"127.0.0.1:{keeper.address.port}")
    address = await relay.start()
    keeper.begin(None)
    lines.begin(keeper.address._replace(port=int(address.rpartition(":")[2])))
    try:
        for step in (3, 6, 9):
            assert await asyncio.to_thread(lines.send, copy_of(ours, step))
            relay.cut()
        assert [copy.step for copy in theirs.copies(Kind.KEPT)] == [9, 6]
    finally:
        lines.close()
        keeper.close()
        await relay.stop()


def copy_of(memory: SnapshotMemory, step: int) -> Copy:
    """Returns a snapshot of rank 0 after a step."""
    place, content = memory.begin(Kind.OWN, 0, 100)
    content[:] = bytes([step]) * 100
    return memory.seal(place, 0, step, 100)


def memory_of(job: Job, rank: int) -> SnapshotMemory:
    """Returns the memory that the launcher of this rank holds."""
    pod, local = divmod(rank, RANKS_PER_POD)
    folder = Path(f"/proc/{job.started[f'worker-{pod}'].pid}/fd")
    memory = next(link for link in folder.iterdir() if str(link.readlink()).startswith(f"/memfd:rekindle-snapshots-{local}"))
    return SnapshotMemory(os.open(memory, os.O_RDWR))


def damage(memory: SnapshotMemory, rank: int, step: int) -> None:
    """Changes a byte of a snapshot."""
    copy = next(found for kind in Kind if (found := memory.find(kind, rank, step)) is not None)
    at = copy.offset + copy.length // 2
    os.pwrite(memory.descriptor, bytes([os.pread(memory.descriptor, 1, at)[0] ^ 1]), at)
