"""State that only one rank has, kept by a rank of another pod, because the launcher's memory is lost together with its pod.

All ranks exchange it before they agree to an update, and when they have joined a generation. So when a rank has updated, its
state for the next boundary is kept elsewhere.
"""

import struct

from rekindle_training.adapter.communicator import Communicator
from rekindle_training.environment import RankEnvironment
from rekindle_wire.training_pb2 import Kept

_STEP = struct.Struct("!q")
_KEPT = 2
"""Number of steps that are kept: training goes on after the last one, or the one before."""


class PeerBackup:
    """Keeps the state of one other rank, the ward. In a job of one pod no state is kept."""

    def __init__(self, environment: RankEnvironment, communicator: Communicator) -> None:
        self._communicator = communicator
        self._is_needed = environment.world_size > environment.ranks_per_pod
        self._ward = (environment.rank - environment.ranks_per_pod) % environment.world_size
        self._kept: dict[int, bytes] = {}
        """State of the ward, by step number."""

    def exchange(self, step: int, own: bytes) -> None:
        """Sends this rank's own state and stores that of the ward. Called by all ranks together.

        Args:
            own: state after `step` that only this rank has.

        Raises:
            RuntimeError: the other ranks could not be reached.
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
