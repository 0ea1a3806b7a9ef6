"""Votes of the ranks of one pod, in memory that they share and that their launcher made. Used by `vote.py`.

Each rank has two slots that only it writes, for alternate votes. A slot is written again when all ranks have read it. A slot
names its vote by generation and number, so that remains of an earlier generation never count as a vote of this one.
"""

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from rekindle_training.adapter import ballot, futex
from rekindle_training.adapter.ballot import Ballot
from rekindle_training.environment import RankEnvironment

YIELD_SECONDS = 5e-6
"""Seconds for which a rank yields the processor and checks again, before it sleeps."""
VOTE_SECONDS = dist.default_pg_timeout.total_seconds()
"""Seconds for which a rank waits for others, as in a collective of torch.

A rank that does not come may be in a collective of a step that this rank has left.
"""
LOOK_SECONDS = 0.1
"""Seconds after which a sleeping rank checks again, even if it was not woken."""

_BELLS = 2 * 64
"""Bytes of the two words that change when all ranks have voted, and when the vote was decided."""
_GENERATION = struct.Struct("Q")
_SLOT = struct.Struct("QQQ")
"""Slot of a rank: vote, word, and both combined. A half written slot does not count."""

_APART = "ranks that share no memory with their pod"
_Found = TypeVar("_Found")


class RankLeft(RuntimeError):
    """A rank of the pod no longer takes part in this generation."""


def shared(environment: RankEnvironment, generation: int, store: dist.Store) -> "SharedVote | None":
    """Returns this rank's part in the votes of its pod. Called by all ranks before they meet in the store of a generation.

    A rank may be replaced by a process of another pod, beside others that stay. Then no pod votes in memory.
    """
    if environment.ranks_per_pod == 1:
        return None
    first = environment.rank - environment.rank % environment.ranks_per_pod
    pod = range(first, first + environment.ranks_per_pod)
    launcher = store.compare_set(f"launcher of {first}", "", environment.launcher).decode()
    if environment.pod_memory is None or not futex.IS_KNOWN or launcher != environment.launcher:
        store.add(_APART, 1)
        return None
    return SharedVote(environment.pod_memory, generation, pod, environment.rank)


def is_shared(store: dist.Store) -> bool:
    """Returns whether the ranks of each pod share memory. Called when all ranks have met."""
    return store.add(_APART, 0) == 0


class SharedVote:
    """Votes of one rank in one generation. `leave` may be called from any thread."""

    def __init__(self, memory: int, generation: int, pod: range, rank: int) -> None:
        """Args:
        memory: descriptor of the pod's memory.
        generation: number of a generation in which no rank votes before all ranks have made this object.
        pod: ranks of the pod.
        """
        self._generation, self._pod, self._place = generation, pod, pod.index(rank)
        self.ranks = len(pod)
        self._slots = _BELLS + self.ranks * _GENERATION.size
        self._decision = self._slots + 2 * self.ranks * _SLOT.size
        size = self._decision + ballot.SIZE
        if os.fstat(memory).st_size < size:
            os.ftruncate(memory, size)  # to the same size, whichever rank does it
        self._memory = mmap.mmap(memory, size)
        self._words = (ctypes.c_uint32 * (_BELLS // 4)).from_buffer(self._memory)
        self._spoken, self._decided = 0, _BELLS // 8
        """Places of the bells in `_words`."""
        self._write(self._slot(0), bytes(_SLOT.size))
        self._write(self._slot(1), bytes(_SLOT.size))
        if self._place == 0:
            self._write(self._decision, bytes(ballot.SIZE))
        self._leave(generation - 1)

    def say(self, vote: int, word: int) -> None:
        """Writes this rank's word. The last one wakes the ranks that wait for it."""
        self._write(self._slot(vote), _SLOT.pack(vote, word, vote ^ word))
        if self._all_say(vote, word):
            self._ring(self._spoken)

    def gathered(self, vote: int, word: int) -> Ballot:
        """Waits until all ranks of the pod have written their words. `word` is that of this rank.

        Raises:
            RankLeft: one of them does not come any more, or `leave` was called.
        """
        return self._awaited(self._spoken, lambda: self._gathered(vote, word))

    def decide(self, vote: int, found: Ballot) -> None:
        """Passes the result of all ranks of the job to the other ranks of the pod. Called by the first rank."""
        self._write(self._decision, found.packed(vote))
        self._ring(self._decided)

    def decided(self, vote: int) -> Ballot:
        """Waits until the first rank of the pod has decided. Raises as `gathered`."""
        end = self._decision + ballot.SIZE
        return self._awaited(self._decided, lambda: Ballot.unpacked(self._memory[self._decision : end], vote))

    def leave(self) -> None:
        """Ends the wait of every rank of the pod in this generation, this one among them."""
        self._leave(self._generation)

    def _leave(self, generation: int) -> None:
        self._write(_BELLS + self._place * _GENERATION.size, _GENERATION.pack(generation))
        self._ring(self._spoken)
        self._ring(self._decided)

    def _refuse_lost(self) -> None:
        left = struct.unpack_from(f"{self.ranks}Q", self._memory, _BELLS)
        if gone := [rank for rank, generation in zip(self._pod, left, strict=True) if generation >= self._generation]:
            raise RankLeft(f"rank {gone[0]} has left generation {self._generation}")

    def _gathered(self, vote: int, word: int) -> Ballot | None:
        if self._all_say(vote, word):
            return Ballot(self._pod[0], word)
        slots = list(_SLOT.iter_unpack(self._memory[self._slots_of(vote)]))
        if any(at != vote or check != vote ^ said for at, said, check in slots):
            return None
        return Ballot.of({rank: said for rank, (_, said, _) in zip(self._pod, slots, strict=True)})

    def _all_say(self, vote: int, word: int) -> bool:
        return self._memory[self._slots_of(vote)] == _SLOT.pack(vote, word, vote ^ word) * self.ranks

    def _slots_of(self, vote: int) -> slice:
        start = self._slots + vote % 2 * self.ranks * _SLOT.size
        return slice(start, start + self.ranks * _SLOT.size)

    def _slot(self, vote: int) -> int:
        return self._slots + (vote % 2 * self.ranks + self._place) * _SLOT.size

    def _write(self, place: int, content: bytes) -> None:
        self._memory[place : place + len(content)] = content

    def _ring(self, bell: int) -> None:
        self._words[bell] = time.monotonic_ns() & 0xFFFFFFFF  # no two values are alike, whichever process writes
        futex.wake(ctypes.addressof(self._words) + 4 * bell)

    def _awaited(self, bell: int, look: Callable[[], _Found | None]) -> _Found:
        """Waits until a result is there.

        If a wake-up is missed, for example of a killed rank, the wait takes `LOOK_SECONDS` longer.
        """
        began = time.perf_counter()
        while time.perf_counter() - began < YIELD_SECONDS:
            if (found := look()) is not None:
                return found
            os.sched_yield()
        limit = began + VOTE_SECONDS
        while True:
            seen = self._words[bell]
            if (found := look()) is not None:
                return found
            self._refuse_lost()
            if time.perf_counter() > limit:
                raise RankLeft(f"not all ranks have come to a vote within {VOTE_SECONDS:g} s")
            futex.wait(ctypes.addressof(self._words) + 4 * bell, seen, LOOK_SECONDS)
