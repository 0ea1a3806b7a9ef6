"""Last checkpoint of a job, written by the ranks that are left: others are gone, and no process replaces them.

The ranks stand, and stay where they are. Their process group is gone, so they meet in the manager's store. What ranks have in
common is written by those that have the state after the step. State that only one rank has is written by that rank, or by the
one that keeps it.
"""

import logging
import pickle
from collections.abc import Mapping, Sequence

import torch.distributed as dist

from rekindle_training.adapter.checkpoint import CheckpointNotWritten, Checkpoints, CheckpointStore
from rekindle_training.adapter.communicator import connected_store
from rekindle_training.adapter.failure_text import FAILURES, in_words
from rekindle_training.adapter.meeting import Meeting, MeetingOver
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.rank import Rank
from rekindle_training.adapter.state import StateMismatch
from rekindle_training.adapter.step import Attempts
from rekindle_training.adapter.wards import Ward
from rekindle_wire.training_pb2 import Save, Saved

log = logging.getLogger(__name__)


class LastCheckpoint:
    """Last checkpoint, as one rank takes part in it."""

    def __init__(self, rank: Rank, attempts: Attempts, checkpoints: CheckpointStore) -> None:
        self._rank, self._attempts, self._checkpoints = rank, attempts, checkpoints
        self._answered = Saved()
        """Last answer. The manager repeats an order whose answer was lost."""

    def write(self, order: Save) -> None:
        """Writes the checkpoint together with the other ranks of the order, and reports the result.

        No result is reported if the manager has asked for something else meanwhile.
        """
        if order.id != self._answered.id:
            try:
                before = self._write(order)
            except MeetingOver as error:
                log.info("last checkpoint given up", extra={"reason": error})
                return
            except FAILURES as error:
                log.error("last checkpoint not written", exc_info=error)  # noqa: TRY400  # its type is in the traceback
                self._answered = Saved(id=order.id, problem=in_words(error))
            else:
                self._answered = Saved(id=order.id, before=before)
        self._rank.processor.saved(self._answered)

    def _write(self, order: Save) -> int:
        """Writes the checkpoint. Returns what `Checkpoints.write_last` returns."""
        if not isinstance(self._checkpoints, Checkpoints):
            raise CheckpointNotWritten(
                "the script keeps its own checkpoints, session(checkpoints=...), and only all ranks together write them"
            )
        return self._checkpoints.write_last(order.step, self._meeting(order), tuple(order.whole), lambda: self._state(order))

    def _state(self, order: Save) -> tuple[Mapping[int, bytes], Sequence[Ward]]:
        """Returns what only single ranks have, and the state of ranks that are gone, as far as this rank writes it."""
        if not order.from_snapshots:
            return {**self._kept(order), **self._mine(order)}, ()
        rank = self._rank
        rank.sharded.reshard()
        rank.snapshots.go_back_alone(order.step)
        rank.gate.complete(order.step)
        self._attempts.forget()
        self._attempts.leave_own(order.step)
        here = rank.environment.rank
        wards = [rank.snapshots.ward(one.target, order.step) for one in order.snapshots if one.source == here]
        owns = {here: rank.trained.take_own(), **{ward.rank: ward.own for ward in wards}}
        return {share: own.pickled for one, mine in owns.items() for share, own in mine.apart(one).items()}, wards

    def _mine(self, order: Save) -> dict[int, bytes]:
        """Returns the state after the step that only this rank has, by share."""
        return {rank: own.pickled for rank, own in self._own(order).apart(self._rank.environment.rank).items()}

    def _own(self, order: Save) -> Own:
        """Returns the state after the step that only this rank has. A rank that has its whole state goes back there."""
        if self._rank.environment.rank not in order.whole:
            left = self._attempts.own_behind(order.step)
            if left is None:
                raise StateMismatch(f"neither random numbers nor data position are left after step {order.step}")
            return left
        if order.step != self._rank.gate.completed:
            raise StateMismatch(f"the state after step {order.step} is to be written, here is step {self._rank.gate.completed}")
        self._attempts.go_back()
        self._rank.sharded.reshard()
        return self._attempts.own_here()

    def _kept(self, order: Save) -> dict[int, bytes]:
        """Returns the state of the rank that this one keeps, if that rank is gone, by share."""
        kept = self._rank.peer_backup.kept()
        there = [one for one in kept if one.rank in order.gone and one.step == order.step]
        found: dict[int, bytes] = {}
        for one in there:
            mine: Own = pickle.loads(one.own_state)  # written by a rank of the same job
            found |= {rank: own.pickled for rank, own in mine.apart(one.rank).items()}
        return found

    def _meeting(self, order: Save) -> Meeting:
        here = self._rank.environment
        store = dist.PrefixStore(f"save/{order.id}", connected_store(here.master_addr, order.store_port))
        return Meeting(store, order.members, here.rank, order.timeout_seconds, lambda: self._rank.gate.is_asked_by_manager)
