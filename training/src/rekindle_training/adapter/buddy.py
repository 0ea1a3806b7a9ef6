"""What only one rank has, in the keeping of a rank of another pod: with a pod its launcher's memory is lost as well.

All ranks exchange it before they agree to an update, and when they have joined a generation. So whoever has updated knows that
what belongs to the next boundary is kept elsewhere.
"""

import struct

from rekindle_training.adapter.communicator import Communicator
from rekindle_training.environment import RankEnvironment
from rekindle_wire.training_pb2 import Kept

_STEP = struct.Struct("!q")
_KEPT = 2
"""Steps: training goes on behind the last one, or the one before."""


class Buddy:
    """Of one rank. In a job of one pod there is nobody to keep anything."""

    def __init__(self, environment: RankEnvironment, communicator: Communicator) -> None:
        self._communicator = communicator
        self._is_needed = environment.world_size > environment.ranks_per_pod
        self._ward = (environment.rank - environment.ranks_per_pod) % environment.world_size
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
        theirs = self._communicator.exchange(_STEP.pack(step) + own)
        (at,) = _STEP.unpack_from(theirs)
        self._kept.pop(at, None)
        self._kept[at] = theirs[_STEP.size :]
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    def kept(self) -> list[Kept]:
        return [Kept(rank=self._ward, step=step, own_state=own) for step, own in self._kept.items()]
