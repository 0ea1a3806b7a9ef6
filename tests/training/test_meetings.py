"""Meeting of ranks in a store, without a process group, and the checkpoint that they write in it."""

import copy
import errno
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import rekindle_training
from rekindle_training.adapter import checkpoint, meeting
from rekindle_training.adapter.checkpoint import CheckpointNotWritten, Checkpoints, _Writer, name_of, own_name
from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.launcher_memory import LauncherMemory
from rekindle_training.adapter.meeting import Meeting, MeetingFailed, MeetingOver, nothing
from rekindle_training.adapter.skeleton import slot_of, taken_apart
from rekindle_training.adapter.state import StateMismatch
from rekindle_training.adapter.trained import Trained
from rekindle_training.adapter.wards import Ward

Work = Callable[[int, Meeting], Any]
"""Work that a rank does in its meeting."""


class Ranks:
    """Ranks as threads of this process, which meet in one store. A rank of `called_off` has to leave each meeting."""

    def __init__(self) -> None:
        self.called_off: set[int] = set()
        self._tries = 0
        one = dist.HashStore()
        self.connect: Callable[[], dist.Store] = lambda: one
        """Returns a rank's connection to the store."""

    def begin(self, members: Sequence[int], work: Work, seconds: float = 60) -> dict[int, Future[Any]]:
        """Calls `work` on each member, with its rank and its meeting."""
        self._tries += 1
        name = f"{self._tries}"
        threads = ThreadPoolExecutor(len(members))

        def met(rank: int) -> Meeting:
            return Meeting(dist.PrefixStore(name, self.connect()), members, rank, seconds, lambda: rank in self.called_off)

        return {rank: threads.submit(work, rank, met(rank)) for rank in members}

    def meet(self, members: Sequence[int], work: Work, seconds: float = 60) -> dict[int, Any]:
        """Returns what `work` returns on each member, or the exception that it raises there."""
        return {rank: done.exception() or done.result() for rank, done in self.begin(members, work, seconds).items()}


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_each_rank_of_a_hundred_gets_its_part_of_what_all_have_done(ranks: Ranks) -> None:
    """The first rank combines the results of all in the order of the ranks, in each of several rounds."""
    members = range(3, 203, 2)

    def work(rank: int, met: Meeting) -> list[int]:
        others = met.hold(lambda: rank, lambda done: [sum(done) - one for one in done])
        return [others, met.hold(lambda: 2 * rank, lambda done: [sum(done) - one for one in done])]

    assert ranks.meet(members, work) == {rank: [sum(members) - rank, 2 * (sum(members) - rank)] for rank in members}


@pytest.mark.parametrize("fails", ["the work of a rank", "the combination"])
def test_a_failure_of_one_rank_ends_the_meeting_of_all(fails: str, ranks: Ranks) -> None:
    """No rank waits for one that has failed. All name the rank and the error of the operating system."""

    def work(rank: int, met: Meeting) -> None:
        def failed(where: str, guilty: int) -> None:
            if (fails, rank) == (where, guilty):
                raise RuntimeError("torch's words") from OSError(errno.ENOSPC, "No space left on device")

        def combined(done: list[None]) -> list[None]:
            failed("the combination", 1)
            return done

        met.hold(lambda: failed("the work of a rank", 4), combined)

    guilty = 1 if fails == "the combination" else 4
    for error in ranks.meet((1, 4, 5), work).values():
        assert isinstance(error, MeetingFailed)
        assert f"{error}" == f"rank {guilty}: OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_is_called_off_leaves_a_meeting_to_which_another_does_not_come(absent: int, ranks: Ranks) -> None:
    """Neither the first rank nor another one is waited for when the manager asks for something else."""
    here = {rank for rank in (0, 1, 2) if rank != absent}
    met = ranks.begin((0, 1, 2), lambda rank, met: met.hold(lambda: None, lambda done: done) if rank in here else None)
    met[absent].result()
    ranks.called_off = here
    assert {rank: type(met[rank].exception()) for rank in here} == dict.fromkeys(here, MeetingOver)


def test_a_meeting_ends_with_its_limit(ranks: Ranks) -> None:
    """A rank that its manager has forgotten does not wait for ever."""
    found = ranks.meet((0, 1), lambda rank, met: met.hold(lambda: None, lambda done: done) if rank else None, seconds=0)
    assert f"{found[1]}" == "not all ranks have done their part in time"


@pytest.mark.parametrize(("members", "looks"), [(2, 100), (10_000, 5000)])
def test_many_ranks_that_wait_leave_the_store_time_for_its_answers(
    members: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks look at most 5,000 times in a second. The first rank, for which all wait, looks as often as in a small job."""
    pauses: list[float] = []
    monkeypatch.setattr("rekindle_training.adapter.meeting.time.sleep", pauses.append)

    def pause_of(rank: int) -> float:
        met, before = Meeting(dist.HashStore(), range(members), rank, 60, lambda: len(pauses) > before), len(pauses)
        with pytest.raises(MeetingOver):
            met.hold(lambda: None, lambda done: done)
        return pauses[-1]

    assert pause_of(0) == meeting.LOOK_SECONDS
    assert members / pause_of(1) == pytest.approx(looks)


# Checkpoints.

WORLD, STEP = 4, 3


class Writers:
    """Ranks of a job that write a checkpoint. The highest one keeps what only lost ranks had."""

    def __init__(self, ranks: Ranks, folder: Path) -> None:
        self.ranks, self.folder, self.checkpoints_folder = ranks, folder, folder / "checkpoints"
        torch.manual_seed(0)
        self.model = torch.nn.Linear(2, 2)
        trained = [self._copied() for _ in range(WORLD)]
        self.begins: Callable[[], None] = lambda: None
        """Called on each rank when it begins to write."""
        self.here = threading.local()
        """`rank` is that of the thread."""
        self.checkpoints = [Checkpoints(folder, rank, WORLD, one, None, LauncherMemory(None)) for rank, one in enumerate(trained)]

    def _copied(self) -> Trained:
        model = copy.deepcopy(self.model)
        return Trained(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def begin(self, members: Sequence[int], whole: Sequence[int] = (), keeps: bool = True) -> dict[int, Future[Any]]:
        gone = set(range(WORLD)) - set(members) if keeps else set()

        def own(rank: int) -> dict[int, bytes]:
            self.here.rank = rank
            self.begins()
            return {one: f"state of rank {one}".encode() for one in ({rank, *gone} if rank == members[-1] else {rank})}

        def write(rank: int, met: Meeting) -> int:
            return self.checkpoints[rank].write_last(STEP, met, whole or members, lambda: (own(rank), ()))

        return self.ranks.begin(members, write)

    def write(self, members: Sequence[int], whole: Sequence[int] = (), keeps: bool = True) -> dict[int, Any]:
        return {rank: done.exception() or done.result() for rank, done in self.begin(members, whole, keeps).items()}

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints_folder.glob("*"))

    def assert_whole(self) -> None:
        """Asserts that the checkpoint has all that the ranks had."""
        written = self.checkpoints_folder / name_of(STEP)
        for rank in range(WORLD):
            assert (written / own_name(rank)).read_bytes() == f"state of rank {rank}".encode()
        found = rekindle_training.load(self.folder)["model"]
        assert digest({name: found[name] for name in self.model.state_dict()}) == digest(self.model.state_dict())


@pytest.fixture
def writers(ranks: Ranks, tmp_path: Path) -> Writers:
    return Writers(ranks, tmp_path)


@pytest.mark.parametrize(
    ("members", "whole"),
    [((0, 2), (0, 2)), ((1, 3), (1, 3)), ((0, 1, 2), (1, 2))],
    ids=["one pod", "without rank 0", "led by a broken rank"],
)
def test_the_ranks_that_are_left_write_the_state_of_all(members: Sequence[int], whole: Sequence[int], writers: Writers) -> None:
    """A rank leads also where it has failed in its update, so that it has only state of its own."""
    assert writers.write(members, whole) == dict.fromkeys(members, 0)
    assert writers.names == [name_of(STEP)]
    writers.assert_whole()


def test_a_checkpoint_without_the_state_of_a_rank_is_not_published(writers: Writers) -> None:
    """Ranks name the rank whose state nobody keeps, and nothing is left in the folder."""
    for error in writers.write((0, 2), keeps=False).values():
        assert isinstance(error, CheckpointNotWritten)
        assert f"{error}".endswith("rank 0: ValueError: the state that only rank 1 has is missing")
    assert writers.names == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_lacks_the_state_keeps_no_other_one_waiting(rank: int, writers: Writers) -> None:
    """A rank that cannot begin to write fails in the meeting, and not before it."""
    writers.begins = lambda: raised(StateMismatch("not here")) if writers.here.rank == rank else None
    for error in writers.write((0, 1)).values():
        assert f"{error}".endswith(f"rank {rank}: StateMismatch: not here")
    assert writers.names == []


def test_a_file_in_the_place_of_the_folder_keeps_no_rank_waiting(writers: Writers) -> None:
    """The first rank alone looks into the folder. The others learn from it that there is none."""
    writers.checkpoints_folder.touch()
    for error in writers.write((0, 1)).values():
        assert isinstance(error, CheckpointNotWritten)
        assert f": rank 0: NotADirectoryError: [Errno {errno.ENOTDIR}]" in f"{error}"
    assert writers.checkpoints_folder.read_bytes() == b""


def test_a_store_that_ends_with_its_manager_ends_the_meeting(ranks: Ranks, writers: Writers) -> None:
    """No rank waits for ever, and the first one removes what was written. The next manager asks again."""
    server = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    ranks.connect = partial(dist.TCPStore, "127.0.0.1", server[0].port, wait_for_workers=False)
    ready = threading.Barrier(3)

    def begins() -> None:
        ready.wait()
        if writers.here.rank == 1:
            raise SystemExit

    writers.begins = begins
    met = writers.begin((0, 1, 2))
    assert isinstance(met[1].exception(), SystemExit)  # the manager waits for a rank that is gone
    server.clear()
    for rank in (0, 2):
        assert isinstance(met[rank].exception(), dist.DistError), rank
    assert writers.names == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("part", ["tensors", "others"])
def test_a_checkpoint_for_which_there_is_no_room_leaves_nothing(
    part: str, rank: int, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before it is untouched, and leftovers of killed ranks are cleared. The error names the rank."""
    place = {"tensors": (_Writer, "write_data"), "others": (checkpoint, "_write_durably")}[part]
    written: Any = getattr(*place)

    def write(*arguments: Any) -> Any:
        is_full = writers.here.rank == rank
        return raised(OSError(errno.ENOSPC, "No space left on device")) if is_full else written(*arguments)

    monkeypatch.setattr(*place, write)
    for leftover in (".step-00000002", ".step-00000003", ".step-00000001.removed"):
        (writers.checkpoints_folder / leftover / "file").mkdir(parents=True)
    (writers.checkpoints_folder / name_of(2)).mkdir()
    for error in writers.write((0, 1)).values():
        assert f"{error}".endswith(f": rank {rank}: OSError: [Errno 28] No space left on device")
    assert writers.names == [name_of(2)]


def test_a_checkpoint_of_the_same_step_is_left_as_it_is(writers: Writers) -> None:
    """A rank that dies while a checkpoint is replaced by an equal one would leave none."""
    assert writers.write((0, 1)) == {0: 0, 1: 0}
    before = (writers.checkpoints_folder / name_of(STEP)).stat()
    assert writers.write((1, 2)) == {1: STEP, 2: STEP}
    assert (writers.checkpoints_folder / name_of(STEP)).stat() == before
    assert writers.names == [name_of(STEP)]


def test_a_checkpoint_of_the_same_step_that_lacks_a_part_is_replaced(writers: Writers) -> None:
    """A checkpoint that fewer ranks have written, or that has lost a file, cannot be read."""
    writers.write((0, 1))
    (writers.checkpoints_folder / name_of(STEP) / own_name(3)).unlink()
    assert writers.write((0, 1)) == {0: 0, 1: 0}
    writers.assert_whole()


def test_a_rank_that_is_given_up_while_it_writes_spoils_nothing(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of a pod that lost its network goes on writing when the others have begun again, in another folder."""
    frozen, thawed = threading.Event(), threading.Event()
    write_data, publish = _Writer.write_data, Checkpoints._publish
    late: list[Future[Any]] = []

    def write(writer: _Writer, plan: Any, planner: Any) -> Any:
        if writers.here.rank == 0:
            frozen.set()
            thawed.wait()
        return write_data(writer, plan, planner)

    monkeypatch.setattr(_Writer, "write_data", write)

    def published(checkpoints: Checkpoints, scratch: Path, number: int) -> None:
        thawed.set()
        late[0].exception()
        publish(checkpoints, scratch, number)

    monkeypatch.setattr(Checkpoints, "_publish", published)
    first = writers.begin((0, 1, 2))
    frozen.wait()
    late.append(first[0])
    writers.ranks.called_off = {1, 2}
    assert {type(first[rank].exception()) for rank in (1, 2)} == {MeetingOver}
    writers.ranks.called_off = {0}
    assert writers.write((1, 2)) == {1: 0, 2: 0}
    writers.assert_whole()
    assert writers.names == [name_of(STEP)]


@pytest.mark.parametrize("apart", [False, True], ids=["replicas", "ranks with state of their own"])
def test_snapshots_are_written_as_a_checkpoint(apart: bool, ranks: Ranks, tmp_path: Path) -> None:
    """State that all ranks have is written once. State that a rank alone has is written under its name."""
    stored, models = [], []
    for rank in (0, 1):
        torch.manual_seed(rank if apart else 0)
        models.append(torch.nn.Linear(2, 2))
        trained = Trained(models[rank], torch.optim.AdamW(models[rank].parameters()))
        declared = frozenset({rank}) if apart else None
        stored.append((Checkpoints(tmp_path, rank, 2, trained, declared, LauncherMemory(None)), trained))

    def write(rank: int, met: Meeting) -> None:
        checkpoints, trained = stored[rank]
        skeleton, tensors = taken_apart(trained.collect())
        snapshot = Ward(rank, skeleton, [slot_of(tensor) for tensor in tensors], tensors, trained.take_own())
        checkpoints.write_snapshot(STEP, met, lambda: snapshot)

    assert ranks.meet((0, 1), write) == {0: None, 1: None}
    found = rekindle_training.load(tmp_path)
    assert found["step"] == STEP
    for rank, model in enumerate(models):
        assert digest((found["ranks"][rank] if apart else found)["model"]) == digest(model.state_dict())


def test_a_rank_that_is_called_off_while_it_reads_says_nothing(ranks: Ranks) -> None:
    """A snapshot may be written over while it is read. The other ranks wait until they are called off as well."""

    def work(rank: int, met: Meeting) -> None:
        met.hold(lambda: ranks.called_off.update({0, 1}) if rank else None, nothing)

    assert {type(error) for error in ranks.meet((0, 1), work).values()} == {MeetingOver}


def test_a_meeting_leaves_nothing_in_its_store(ranks: Ranks) -> None:
    """The store of a manager lives as long as the job, and many checkpoints are written meanwhile."""
    ranks.meet((0, 1, 2), lambda _, met: met.hold(lambda: b"much", nothing))
    assert ranks.connect().num_keys() == 0


def raised(error: Exception) -> Any:
    raise error
