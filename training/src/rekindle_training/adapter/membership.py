"""Membership of a rank in a generation, with the state that training has there. Used by the session's loop.

At the start of a job that state comes from the newest checkpoint. A replacement, or a rank that failed in the middle of an
update, takes the state of a replica. Each other rank has the state, or goes back to the beginning of the failed step.
"""

import logging
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from rekindle_training import names
from rekindle_training.adapter import communicator, copying, own
from rekindle_training.adapter.checkpoint import Checkpoints, CheckpointStore, CheckpointUnreadable
from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.failure_text import FAILURES, in_words
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.playing import shared_out
from rekindle_training.adapter.rank import Rank
from rekindle_training.adapter.sharding import refuse_contradiction
from rekindle_training.adapter.state import StateMismatch
from rekindle_training.adapter.step import Attempts
from rekindle_training.adapter.step_log import StepLog
from rekindle_training.adapter.tampering import Tampering
from rekindle_training.processor.gate import Join
from rekindle_wire.training_pb2 import Interval

log = logging.getLogger(__name__)


def _shares(wish: Join) -> dict[int, Own]:
    """Returns the state of the shares that a rank is sent, by share. One that its holder does not have is left out."""
    held: dict[int, Own] = {one.holder: pickle.loads(one.own_state) for one in wish.rebuild.shares if one.own_state}
    found = {one.share: held[one.holder].of_share(one.share, one.holder) for one in wish.rebuild.shares}
    return {share: own for share, own in found.items() if own is not None}


class Membership:
    """Membership of one rank, in one generation after the other."""

    def __init__(self, rank: Rank, attempts: Attempts, checkpoints: CheckpointStore, step_log: StepLog) -> None:
        self._rank = rank
        self._number = rank.environment.rank
        self._attempts = attempts
        self._checkpoints = checkpoints
        self._step_log = step_log
        self._tampering = Tampering(rank.environment.tamper)
        self.callbacks: list[Callable[[], None]] = []
        self.lost = True
        """True if this rank's state does not belong to any step."""
        self.renewed = False
        """True if it has taken the state of another rank."""
        self.took_own = False
        """True if it has taken the state that an earlier process of this rank left."""
        self._calls = ""
        """Name of the callback that is being called."""
        self._did: list[Interval] = []
        """Intervals of the work of this rank to join the latest generation."""
        self._shown = ""
        """Failure of a callback of which the traceback was printed last."""

    def join(self, wish: Join) -> bool:
        """Joins a generation.

        Returns whether this rank is a member now. Otherwise it has reported that, and waits for another one.
        """
        self._did = []
        failed = self._try(wish)
        if failed is None:
            self._rank.gate.enter(wish.generation)
            self._rank.processor.joined(wish.generation, self._did, wish.rebuild.carriers)
            return True
        # Reported here, after the `except` block: its traceback would hold the old connections open.
        failure, lost = failed
        self._rank.entry.say_failed(failure, wish, lost=lost)
        return False

    def _try(self, wish: Join) -> tuple[str, bool] | None:
        try:
            self._stand_where_it_goes_on(wish)
            if self._rank.entry.met is not wish:
                with self._measured("communicator"):
                    self._rank.communicator.join(wish)
            self._rank.communicator.links.chosen(backup=wish.rebuild.backup_link)
            self._rank.sharded.regroup()
            with self._measured("checkpoint" if wish.rebuild.begins else "state"):
                self._bring_up_to_date(wish)
            if not self._is_new:
                self._rank.communicator.complete()
            self._rank.wrappers.regroup()
            self._call_back()
            if not wish.rebuild.begins or self._rank.gate.completed > 0:  # a last checkpoint had no group in which to send it
                self._rank.tell_update()
        except FAILURES as error:
            lost = self._rank.gate.broken_by(wish.generation) or communicator.is_loss(error)
            return self._told(error, wish, lost=lost), lost
        finally:
            self._calls = ""
        return None

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        began = time.time_ns()
        yield
        self._did.append(Interval(name=name, began=began, ended=time.time_ns()))

    def _told(self, error: BaseException, wish: Join, *, lost: bool) -> str:
        """Logs why this rank is no member, and returns it in words. The traceback of a callback is printed once."""
        words = f"callback {self._calls} of on_rebuild: {in_words(error)}" if self._calls else in_words(error)
        if lost:
            log.info("other ranks lost while joining generation %d", wish.generation)
        elif not self._calls:
            log.error("joining the new generation failed", exc_info=error)
        elif words == self._shown:
            log.error("failed again, as before: %s", words)
        else:
            self._shown = words
            log.error("callback %s of on_rebuild failed", self._calls, exc_info=error)
        return words

    @property
    def _is_new(self) -> bool:
        """Returns whether the script still has to create the objects that it creates in the session."""
        return self._rank.processor.generation == 0

    def _call_back(self) -> None:
        """Calls the script's callbacks, and restores the random numbers afterwards: an undisturbed rank draws none."""
        trained = self._rank.trained
        numbers = trained.take_random_numbers()
        with self._rank.wrappers.wrapped_again(), self._rank.communicator.handing_out():
            for callback in self.callbacks:
                self._calls = getattr(callback, "__qualname__", type(callback).__qualname__)
                callback()
        self._calls = ""
        own.put(numbers, None, trained.accelerator)

    def _stand_where_it_goes_on(self, wish: Join) -> None:
        if wish.rebuild.begins or wish.rebuild.from_snapshots or self._source(wish) is not None:
            return
        if wish.rebuild.step != self._rank.gate.completed:
            raise StateMismatch(
                f"training goes on after step {wish.rebuild.step}, and this rank is after step {self._rank.gate.completed}"
            )
        self.lost = True
        self._attempts.go_back()
        self.lost = False

    def _source(self, wish: Join) -> int | None:
        """Returns the rank from which this one takes its state. None: it keeps its own."""
        return next((transfer.source for transfer in wish.rebuild.transfers if transfer.target == self._number), None)

    def _bring_up_to_date(self, wish: Join) -> None:
        if wish.rebuild.begins:
            self._compare_replicas()
        is_first = wish.rebuild.begins and wish.generation == 1 and self._rank.environment.job_generation == "0"
        self._rank.snapshots.join(is_first=is_first)
        if wish.rebuild.begins:
            self._begin()
            self.lost = False
        elif wish.rebuild.from_snapshots:
            self._go_back_to_snapshot(wish.rebuild.step)
        self._rank.snapshots.send_newest()
        for transfer in wish.rebuild.transfers:
            if transfer.source == self._number:
                copying.send(
                    self._tampering.of_state(self._rank.trained.collect()), self._rank.communicator.team.index(transfer.target)
                )
            elif transfer.target == self._number:
                self._take_over(transfer.source, wish)
        self._share_out(wish)
        if (step := self._rank.gate.completed) > 0:  # before the first step the script has still to say with what it begins
            self._rank.peer_backup.exchange(step, self._rank.trained.take_own().pickled)

    def _share_out(self, wish: Join) -> None:
        """Takes the shares that this rank is to carry, and keeps what it carries no more for ranks that may need it.

        Raises:
            StateMismatch: the state of a share that it is to carry did not arrive.
        """
        rank, trained = self._rank, self._rank.trained
        team = rank.communicator.team
        others = set(team.shares(self._number)) - {self._number}
        given = _shares(wish)
        if others == trained.carried.keys() and not given.keys() & others and (team.is_whole or not others):
            return
        if missing := sorted(others - trained.carried.keys() - given.keys()):
            if team.is_whole and rank.gate.completed == 0:
                return  # its first step begins them
            raise StateMismatch(f"the state of share {missing[0]}, which this rank is to carry, did not arrive")
        for share, then in shared_out(trained, rank.shares, others, given).items():
            rank.peer_backup.keep(share, rank.gate.completed, then.pickled)
        self._attempts.forget_tries()
        self._attempts.leave_own(rank.gate.completed)

    def _take_over(self, source: int, wish: Join) -> None:
        self.lost = True
        received, expected, hashes = copying.receive(self._rank.communicator.team.index(source), self._rank.trained.collect())
        self._rank.trained.place(received)
        if digest(self._tampering.of_state(self._rank.trained.collect()), hashes) != expected:
            raise StateMismatch(f"the state taken from rank {source} is not the state that rank {source} has")
        mine = self._predecessors(wish)
        if mine is not None:
            self._rank.trained.put_own(mine, random_numbers=self._tampering.keeps_random_numbers)
            self.took_own = True
        self._tampering.of_model(self._rank.trained.model)
        self._rank.gate.complete(wish.rebuild.step)
        self._attempts.forget()
        self.lost, self.renewed = False, True

    def _predecessors(self, wish: Join) -> Own | None:
        """Returns the state of the process before this one, or of this rank while another one carried its share."""
        if (carried := _shares(wish).get(self._number)) is not None:
            return carried
        if wish.rebuild.own_state:
            before: Own = pickle.loads(wish.rebuild.own_state)  # pickled by a rank of the same job
            return before
        return self._attempts.own_behind(wish.rebuild.step)

    def _compare_replicas(self) -> None:
        """Raises ValueError where two ranks disagree on whether they hold the same, or on when they take snapshots."""
        here = self._rank.environment
        said: list[tuple[tuple[int, ...], int | None]] = [((), None)] * here.world_size
        dist.all_gather_object(said, (self._rank.replicas, here.snapshot_every))
        refuse_contradiction([held for held, _ in said])
        intervals = {every: rank for rank, (_, every) in enumerate(said)}
        if len(intervals) > 1:
            (one, first), (other, second), *_ = intervals.items()
            raise ValueError(
                f"{names.SNAPSHOT_EVERY} is {one or 'not set'} for rank {first} and {other or 'not set'} for rank {second}: "
                "set the same in all pods, or nothing"
            )

    def _read_newest(self) -> int:
        """Reads the newest readable checkpoint and returns its step. 0: there is none.

        Raises the error of the oldest checkpoint if none can be read.
        """
        step, damaged = self._checkpoints.newest(), []
        while step:
            try:
                self._checkpoints.read(step)
            except CheckpointUnreadable as error:
                if not isinstance(self._checkpoints, Checkpoints) or not (older := self._checkpoints.older(step)):
                    raise
                log.warning("%s; the one after step %d is read", error, older)
                damaged.append(step)
                step = older
            else:
                break
        if isinstance(self._checkpoints, Checkpoints):
            self._checkpoints.set_aside(damaged)
        return step

    def _go_back_to_snapshot(self, step: int) -> None:
        """Raises StateMismatch, on all ranks, where one has no good snapshot."""
        self.lost = True
        self._rank.sharded.reshard()
        if problem := self._rank.snapshots.restore(step):
            raise StateMismatch(problem)
        self._rank.gate.complete(step)
        self._attempts.forget()
        self._attempts.leave_own(step)
        self.lost = False
        self.renewed, self.took_own = self.renewed or self._is_new, self.took_own or self._is_new
        self._note_lost_steps(step)

    def _begin(self) -> None:
        """Restores the newest state that all ranks have: a snapshot that outlived their processes, or a checkpoint."""
        snapshots, newest = self._rank.snapshots, self._checkpoints.newest()
        step = next((step for step in snapshots.common() if step >= newest and self._is_restored(step)), None)
        if step is None:
            snapshots.forget()
            step = self._read_newest()
        else:
            self.took_own = True
            self._attempts.leave_own(step)
        if step:
            self._rank.gate.complete(step)
        self._note_lost_steps(step)

    def _is_restored(self, step: int) -> bool:
        if problem := self._rank.snapshots.restore(step):
            log.warning("%s; an earlier state is taken", problem)
        return not problem

    def _note_lost_steps(self, step: int) -> None:
        furthest = self._step_log.last_step()
        self._rank.processor.stretches.repeat(furthest)
        self._rank.processor.lost_steps(max(furthest - step, 0))
