"""Votes of real processes: all send the same value, or all learn which does not. A lost rank keeps no other waiting."""

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rekindle_training.adapter.ballot import Ballot
from rekindle_training.adapter.communicator import Communicator
from rekindle_training.adapter.lines import Lines
from rekindle_training.adapter.vote import Disagreement
from rekindle_training.environment import RankEnvironment
from rekindle_training.processor.gate import Gate, Join
from rekindle_wire.training_pb2 import Rebuild
from tests.training.loaded import CONTEXT
from tests.training.standalone import Standalone

LIMIT = 60
SCRIPT = str(Path(__file__).with_name("scripts").joinpath("leaves_out.py"))


@dataclass
class Member:
    """A process of a rank. Its first thread does what `loop` says, another one what `aside` says, as that of the manager does."""

    process: BaseProcess
    loop: Connection
    aside: Connection

    def answer(self) -> Any:
        assert self.loop.poll(LIMIT), "a rank says nothing"
        return self.loop.recv()

    def asked(self, *order: Any) -> Any:
        self.aside.send(order)
        assert self.aside.poll(LIMIT), "a rank says nothing"
        return self.aside.recv()


@dataclass
class Voters:
    """Ranks of several pods, each of which shares memory."""

    pods: int
    ranks_per_pod: int
    shares: bool = True
    members: list[Member] = field(init=False)

    def __post_init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.memories = [os.memfd_create(f"pod-{pod}") for pod in range(self.pods)]
        self.members = [self.started(rank) for rank in range(self.pods * self.ranks_per_pod)]

    def started(self, rank: int, pod: int | None = None) -> Member:
        """Starts a member. `pod` is the one in which its process is; by default that of the rank."""
        pod = rank // self.ranks_per_pod if pod is None else pod
        (loop, mine), (aside, its) = CONTEXT.Pipe(), CONTEXT.Pipe()
        environment = {
            "REKINDLE_PROCESS": f"pod-{pod}/{rank}",
            "RANK": f"{rank}",
            "WORLD_SIZE": f"{self.pods * self.ranks_per_pod}",
            "LOCAL_WORLD_SIZE": f"{self.ranks_per_pod}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
        }
        memory = f"/proc/{os.getpid()}/fd/{self.memories[pod]}" if self.shares else None
        process = CONTEXT.Process(target=_rank, args=(environment, memory, self.store.port, mine, its), daemon=True)
        process.start()
        return Member(process, loop, aside)

    def joined(self, generation: int) -> "Voters":
        assert self.all_answer("join", generation) == ["joined"] * len(self.members)
        return self

    def all_answer(self, *order: Any) -> list[Any]:
        self.tell(range(len(self.members)), *order)
        return [member.answer() for member in self.members]

    def tell(self, ranks: Any, *order: Any) -> None:
        for rank in ranks:
            self.members[rank].loop.send(order)

    def wait_in_vote(self, *ranks: int, votes: int) -> None:
        """Waits until these ranks have begun so many votes."""
        limit = monotonic() + LIMIT
        while any(self.members[rank].asked("begun") < votes for rank in ranks):
            assert monotonic() < limit, "a rank does not vote"
            sleep(0.005)

    def kill(self, rank: int) -> None:
        self.members[rank].process.kill()
        self.members[rank].process.join()

    def end(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.join()
        for memory in self.memories:
            os.close(memory)


def _rank(environment: dict[str, str], memory: str | None, port: int, loop: Connection, aside: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if memory is not None:
        environment["REKINDLE_POD_MEMORY"] = f"{os.open(memory, os.O_RDWR)}"
    communicator = Communicator(RankEnvironment.read(environment), Gate())
    communicator.watch()
    threading.Thread(target=_aside, args=(communicator, aside), daemon=True).start()
    with suppress(EOFError):
        while True:
            name, *values = loop.recv()
            try:
                loop.send(_LOOP[name](communicator, port, *values))
            except Disagreement as found:
                loop.send(found.words)
            except RuntimeError as error:
                loop.send("lost" if communicator.is_loss_now(error) else f"{error}")


def _aside(communicator: Communicator, orders: Connection) -> None:
    with suppress(EOFError):
        while True:
            match orders.recv():
                case ("begun",):
                    orders.send(sum(communicator.counted().values()))
                case ("cut", generation):
                    communicator.cut(generation)
                    orders.send("cut")
                case ("fork",):
                    if (worker := os.fork()) == 0:
                        signal.pause()
                    orders.send(worker)


def _join(communicator: Communicator, port: int, generation: int) -> str:
    size = communicator._environment.world_size
    rebuild = Rebuild(store_port=port, store_prefix=f"{generation}", world_size=size, timeout_seconds=LIMIT)
    communicator.join(Join(generation, rebuild))
    return "joined"


def _vote(communicator: Communicator, _: int, word: int) -> str:
    communicator.agree(word)
    return "agreed"


def _vote_often(communicator: Communicator, _: int, votes: int) -> str:
    for word in range(votes):
        communicator.agree(word)
        if word % 10 == communicator._environment.rank:
            sleep(0)
        if word % 100 == 0:
            dist.all_reduce(torch.ones(1))
    return "agreed"


def _reduce(*_: Any) -> str:
    dist.all_reduce(torch.ones(1))
    return "reduced"


def _exchange(communicator: Communicator, _: int, sizes: list[int]) -> str:
    rank, ranks = communicator._environment.rank, len(sizes)
    theirs = communicator.exchange(bytes([rank]) * sizes[rank])
    before = (rank - communicator._environment.ranks_per_pod) % ranks
    return "exchanged" if theirs == bytes([before]) * sizes[before] else f"{len(theirs)} bytes of another rank"


_LOOP: dict[str, Callable[..., str]] = {
    "join": _join,
    "vote": _vote,
    "vote often": _vote_often,
    "reduce": _reduce,
    "exchange": _exchange,
}


Make = Callable[..., Voters]


@pytest.fixture
def voters() -> Iterator[Make]:
    made: list[Voters] = []

    def make(pods: int, ranks_per_pod: int, *, shares: bool = True) -> Voters:
        made.append(Voters(pods, ranks_per_pod, shares))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.parametrize(("pods", "ranks_per_pod"), [(1, 1), (1, 2), (1, 5), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (5, 1)])
def test_all_ranks_agree_or_all_hear_who_does_not(pods: int, ranks_per_pod: int, voters: Make) -> None:
    """All ranks agree in any number of pods. A different answer names the lowest rank, and the lowest rank that says something
    else."""
    ranks = voters(pods, ranks_per_pod).joined(1)
    count = len(ranks.members)
    assert ranks.all_answer("vote often", 20) == ["agreed"] * count
    for different in {0, count // 2, count - 1} if count > 1 else ():
        ranks.tell({*range(count)} - {different}, "vote", 2**64 - 1)
        ranks.tell({different}, "vote", 7)
        words = {0: 7, 1: 2**64 - 1} if different == 0 else {0: 2**64 - 1, different: 7}
        assert [member.answer() for member in ranks.members] == [words] * count
    assert ranks.all_answer("vote", 1) == ["agreed"] * count


def test_ranks_that_share_no_memory_agree(voters: Make) -> None:
    """A rank that shares no memory is like a pod of its own."""
    ranks = voters(2, 2, shares=False).joined(1)
    assert ranks.all_answer("vote often", 20) == ["agreed"] * 4


def test_a_rank_whose_process_is_in_another_pod_takes_part(voters: Make) -> None:
    """A backup pod may have a process for a rank that is lost, while the other ranks of its pod live."""
    ranks = voters(2, 2).joined(1)
    assert ranks.all_answer("vote", 1) == ["agreed"] * 4
    ranks.kill(1)
    ranks.memories.append(os.memfd_create("backup"))
    ranks.members[1] = ranks.started(1, pod=2)
    assert ranks.joined(2).all_answer("vote often", 20) == ["agreed"] * 4
    ranks.kill(0)
    ranks.members[0] = ranks.started(0, pod=2)
    assert ranks.joined(3).all_answer("vote often", 20) == ["agreed"] * 4


@pytest.mark.parametrize(("pods", "ranks_per_pod"), [(1, 4), (2, 2), (3, 1)])
def test_a_thousand_votes_are_not_mixed_up(pods: int, ranks_per_pod: int, voters: Make) -> None:
    """A rank that is ahead sends its next value before others have read its last one."""
    ranks = voters(pods, ranks_per_pod).joined(1)
    assert ranks.all_answer("vote often", 1000) == ["agreed"] * len(ranks.members)


@pytest.mark.parametrize(("killed", "noticed"), [(0, [2, 3, 4, 5]), (1, [])], ids=["the first of a pod", "another of a pod"])
def test_a_rank_that_is_killed_keeps_nobody_waiting(killed: int, noticed: list[int], voters: Make) -> None:
    """The ranks that wait for the first rank of another pod hear of it at once, and all others by the cut. The next generation
    votes as before, with a process that follows the killed one in its memory."""
    ranks = voters(3, 2).joined(1)
    assert ranks.all_answer("vote", 1) == ["agreed"] * 6
    late = {killed, 5}
    living = [rank for rank in range(6) if rank != killed]
    before = ranks.members[killed].asked("begun")
    waiting = [rank for rank in range(6) if rank not in late]
    ranks.tell(waiting, "vote", 2)
    ranks.wait_in_vote(*waiting, votes=before + 1)
    ranks.kill(killed)
    ranks.tell({5}, "vote", 2)
    for rank in noticed:
        assert ranks.members[rank].answer() == "lost"
    for rank in living:
        ranks.members[rank].asked("cut", 1)
    assert [ranks.members[rank].answer() for rank in living if rank not in noticed] == ["lost"] * (5 - len(noticed))

    ranks.members[killed] = ranks.started(killed)
    ranks.joined(2)
    ranks.tell(living, "vote", 2)
    ranks.wait_in_vote(*living, votes=1)
    assert not any(ranks.members[rank].loop.poll(0.05) for rank in living), "what was said in the generation before counts"
    ranks.tell({killed}, "vote", 2)
    assert [member.answer() for member in ranks.members] == ["agreed"] * 6
    assert ranks.all_answer("vote often", 20) == ["agreed"] * 6


def test_a_cut_ends_a_vote_in_shared_memory(voters: Make) -> None:
    """A cut from another thread ends the vote for all ranks of the pod. A cut of an earlier generation does nothing."""
    ranks = voters(1, 3).joined(2)
    ranks.tell({1, 2}, "vote", 1)
    ranks.wait_in_vote(1, 2, votes=1)
    ranks.members[1].asked("cut", 1)
    assert not ranks.members[1].loop.poll(0.2)
    ranks.members[1].asked("cut", 2)
    assert [ranks.members[rank].answer() for rank in (1, 2)] == ["lost", "lost"]
    assert ranks.joined(3).all_answer("vote", 2) == ["agreed"] * 3


def test_a_cut_ends_a_vote_between_pods(voters: Make) -> None:
    """The rank that is cut closes its connections, so that those that wait for it notice it too."""
    ranks = voters(2, 1).joined(1)
    ranks.tell({1}, "vote", 1)
    ranks.wait_in_vote(1, votes=1)
    ranks.members[0].asked("cut", 1)
    assert ranks.members[1].answer() == "lost"
    assert ranks.joined(2).all_answer("vote", 1) == ["agreed"] * 2


@pytest.mark.parametrize(("pods", "ranks_per_pod"), [(1, 2), (2, 1)])
def test_another_collective_is_not_taken_for_a_vote(pods: int, ranks_per_pod: int, voters: Make) -> None:
    """A rank in a vote and another one in a collective of the script both wait until they are cut."""
    ranks = voters(pods, ranks_per_pod).joined(1)
    ranks.tell({0}, "vote", 1)
    ranks.tell({1}, "reduce")
    ranks.wait_in_vote(0, votes=1)
    assert not any(member.loop.poll(0.1) for member in ranks.members)
    assert [member.asked("cut", 1) for member in ranks.members] == ["cut", "cut"]
    assert [member.answer() for member in ranks.members] == ["lost", "lost"]


def test_ranks_that_wait_for_a_vote_have_begun_more_than_the_rank_that_does_not_come(voters: Make) -> None:
    """A stuck rank has begun fewer collectives than the ranks that wait for it, wherever in the vote they wait."""
    ranks = voters(3, 2).joined(1)
    assert ranks.all_answer("vote", 1) == ["agreed"] * 6
    before = {member.asked("begun") for member in ranks.members}
    ranks.tell(range(5), "vote", 2)
    ranks.wait_in_vote(*range(5), votes=max(before) + 1)
    assert len(before) == 1
    assert [member.asked("begun") - max(before) for member in ranks.members] == [1, 1, 1, 1, 1, 0]


def test_a_worker_that_a_rank_forks_keeps_no_connection_open(voters: Make) -> None:
    """Other ranks notice a lost rank at once, and not only when its workers have ended."""
    ranks = voters(2, 1).joined(1)
    worker = ranks.members[0].asked("fork")
    try:
        ranks.tell({1}, "vote", 1)
        ranks.wait_in_vote(1, votes=1)
        ranks.kill(0)
        assert ranks.members[1].answer() == "lost"
    finally:
        os.kill(worker, signal.SIGKILL)


def test_ranks_of_neighbouring_pods_exchange_messages_of_any_size(voters: Make) -> None:
    """Ranks send before any of them reads, more than their connections hold."""
    ranks = voters(3, 2).joined(1)
    for sizes in ([0, 1, 16 * 1024, 20_000_000, 3, 16 * 1024 - 8], [20_000_000] * 6, [100] * 6):
        assert ranks.all_answer("exchange", sizes) == ["exchanged"] * 6


def test_a_stranger_that_calls_is_not_taken_for_a_rank() -> None:
    """One that says nothing, and one that says what it does not know."""
    store = dist.HashStore()
    strangers: list[socket.socket] = []

    class Called(dist.HashStore):
        """Called by strangers as soon as it knows an address."""

        def get(self, key: str) -> bytes:
            host, port, _ = store.get(key).decode().split()
            strangers.extend(socket.create_connection((host, int(port))) for _ in range(2))
            strangers[0].sendall(bytes(24))
            return store.get(key)

        def set(self, key: str, value: str) -> None:
            store.set(key, value)

    lines = Lines(0, 2, [2])
    lines.listen("127.0.0.1", Called())
    lines.connect()
    assert lines.exchange(2, b"to itself, which is two places ahead of it") == b"to itself, which is two places ahead of it"
    lines.close()
    for stranger in strangers:
        stranger.close()


def test_ballots_are_counted_in_any_order() -> None:
    """Pods learn of each other in several ways, and of some of them twice."""
    words = {0: 5, 1: 5, 2: 4, 3: 5, 4: 3}
    single = [Ballot(rank, word) for rank, word in words.items()]
    for turn in range(5):
        found = single[turn]
        for ballot in single[turn:] + single[:turn]:
            found = found.merged(ballot)
        assert found == Ballot(0, 5, 2, 4)


def test_a_ballot_that_is_half_written_does_not_count() -> None:
    """A rank may be killed in the middle of writing it, and be read meanwhile."""
    old, new = Ballot(0, 1, 2, 3).packed(1), Ballot(0, 5).packed(2)
    assert Ballot.unpacked(new, 2) == Ballot(0, 5)
    assert [Ballot.unpacked(new[:end] + old[end:], 2) for end in range(0, len(new), 8)] == [None] * (len(new) // 8)
    assert Ballot.unpacked(old, 2) is None


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
async def test_ranks_of_a_pod_share_memory(start_method: str, alone: Standalone) -> None:
    """Ranks of a pod share memory however they are started."""
    printed = await alone.run(f"--start-method={start_method}", "--spares=1", script=SCRIPT, ranks=2)
    assert len(set(re.findall(r"rank \d shares memory (\d+)", printed))) == 1
    assert len(re.findall(r"rank \d shares memory", printed)) == 2


async def test_a_rank_that_leaves_out_its_update_ends_training(alone: Standalone) -> None:
    """Training ends, since the parameters of the rank would differ from those of the others. The script may catch any error."""
    printed = await alone.run(code=1, script=SCRIPT, ranks=3, RANK_THAT_LEAVES_OUT="1")
    assert "training given up reason=rank 1 leaves out its update in step 3, and rank 0 updates" in printed
    assert "repaired" not in printed
