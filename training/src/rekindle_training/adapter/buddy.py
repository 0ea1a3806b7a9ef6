"""What only one rank has, in the keeping of a rank of another pod: with a pod its launcher's memory is lost as well.

All ranks exchange it before they agree to an update, and when they have joined a generation. So whoever has updated knows that
what belongs to the next boundary is kept elsewhere.
"""

import struct

import torch
import torch.distributed as dist

from rekindle_wire.training_pb2 import Kept

_HEADER = struct.Struct("<qQ")
"""Step, length."""
_FIRST = 16 * 1024
"""Bytes of the first message, which as a rule is the only one."""
_KEPT = 2
"""Steps: training goes on behind the last one, or the one before."""
_TAG = 0x6B70
"""Of its own, so that a script's messages between the same two ranks are not taken for these."""


class Buddy:
    """Of one rank. In a job of one pod there is nobody to keep anything."""

    def __init__(self, rank: int, ranks: int, ranks_per_pod: int) -> None:
        self._keeper, self._ward = (rank + ranks_per_pod) % ranks, (rank - ranks_per_pod) % ranks
        self._is_needed = ranks > ranks_per_pod
        self._kept: dict[int, bytes] = {}
        """Of the ward, by step."""

    def exchange(self, step: int, own: bytes) -> None:
        """Called by all ranks together.

        Args:
            own: what this rank has for itself behind `step`.

        Raises:
            RuntimeError: the other ranks were not to be reached.
        """
        if not self._is_needed:
            return
        mine = _HEADER.pack(step, len(own)) + own
        theirs = self._swap(mine[:_FIRST].ljust(_FIRST, b"\0"), _FIRST)
        at, length = _HEADER.unpack(theirs[: _HEADER.size])
        end = _HEADER.size + length
        theirs += self._swap(mine[_FIRST:], max(end - _FIRST, 0))
        self._kept.pop(at, None)
        self._kept[at] = theirs[_HEADER.size : end]
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    def kept(self) -> list[Kept]:
        return [Kept(rank=self._ward, step=step, own_state=own) for step, own in self._kept.items()]

    def _swap(self, mine: bytes, expected: int) -> bytes:
        theirs = torch.empty(expected, dtype=torch.uint8, device="cpu")
        works = []
        if mine:
            works.append(dist.isend(torch.frombuffer(bytearray(mine), dtype=torch.uint8), self._keeper, tag=_TAG))
        if expected:
            works.append(dist.irecv(theirs, self._ward, tag=_TAG))
        for work in works:
            assert work is not None
            work.wait()
        return theirs.numpy().tobytes()
