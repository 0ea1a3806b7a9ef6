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
    """Keeps the state of one other rank, the ward, and of a share that this rank has just given up. In a job of one pod no state
    of a ward is kept."""

    def __init__(self, environment: RankEnvironment, communicator: Communicator) -> None:
        self._communicator, self._environment = communicator, environment
        self._kept: dict[tuple[int, int], bytes] = {}
        """State by rank and step, or by the share that this rank has given up."""
        self.keeps_own = False
        """True if this rank also says its own state. Its pod may leave with the pod that keeps it."""

    def exchange(self, step: int, own: bytes) -> None:
        """Sends this rank's own state and stores that of the ward. Called by all ranks together.

        Args:
            own: state after `step` that only this rank has.

        Raises:
            RuntimeError: the other ranks could not be reached.
        """
        team, here = self._communicator.team, self._environment
        if self.keeps_own:
            self.keep(here.rank, step, own)
        if team.size <= here.ranks_per_pod:
            return
        theirs = self._communicator.exchange(_STEP.pack(step) + own)
        (at,) = _STEP.unpack_from(theirs)
        ward = team.members[(team.index(here.rank) - here.ranks_per_pod) % team.size]
        self.keep(ward, at, theirs[_STEP.size :])

    def keep(self, rank: int, step: int, own: bytes) -> None:
        """Stores state of another rank, or of a share, and drops that of steps after which training goes on no more."""
        self._kept[rank, step] = own
        self._kept = {(kept, at): content for (kept, at), content in self._kept.items() if step - _KEPT < at <= step}

    def kept(self) -> list[Kept]:
        return [Kept(rank=rank, step=step, own_state=own) for (rank, step), own in self._kept.items()]
