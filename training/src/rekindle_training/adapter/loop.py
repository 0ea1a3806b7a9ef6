"""Training loop of one rank: its steps and epochs, and all work at the boundary between two steps. Created by `session`.

A pause, a rebuild and the resumption of a recovery happen inside the boundary, that is between two turns of the loop. The
loop does not notice them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

import torch
import torch.distributed as dist

from rekindle_training.adapter import communicator, given, injected, own, unregistered_state
from rekindle_training.adapter.checkpoint import Checkpoints, CheckpointStore
from rekindle_training.adapter.checkpoint_beside import Beside
from rekindle_training.adapter.comparison import Comparison, LossNotFinite, ReplicasDiffer
from rekindle_training.adapter.failure_text import FAILURES
from rekindle_training.adapter.last_checkpoint import LastCheckpoint
from rekindle_training.adapter.membership import Membership
from rekindle_training.adapter.number import Number
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.periodic import Periodic
from rekindle_training.adapter.places import Place, Refused, frames_of_script
from rekindle_training.adapter.rank import Rank
from rekindle_training.adapter.reported_loss import ReportedLoss
from rekindle_training.adapter.step import Attempts, Step
from rekindle_training.adapter.step_log import StepLog
from rekindle_training.adapter.trace import Trace
from rekindle_training.adapter.unregistered_loaders import Loaders
from rekindle_training.adapter.untouched import Untouched
from rekindle_training.processor.gate import Check, Go, Join, Pause, Stand, Switch, Wish, WriteLast
from rekindle_training.stress.checks import Checks
from rekindle_wire.training_pb2 import Holding, Leave, Standing

log = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Training:
    """Rank of a running job. Created by `session` only."""

    def __init__(
        self, rank: Rank, checkpoints: CheckpointStore, checkpoint_every: int, comparison: Comparison, *, repeats_updates: bool
    ) -> None:
        self._rank = rank
        self._entry, self._environment, self._trained, self._wrappers = rank.entry, rank.environment, rank.trained, rank.wrappers
        self._communicator, self._gate, self._processor = rank.communicator, rank.gate, rank.processor
        self._periodic = Periodic(checkpoints, checkpoint_every, rank.communicator.is_loss_now)
        self._step_log = StepLog(rank.environment)
        self._stretches = rank.processor.stretches
        self._stretches.follow(self._step_log.last_stretch)
        self._attempts = Attempts(rank, comparison, repeats_updates=repeats_updates)
        if isinstance(checkpoints, Checkpoints):
            rank.snapshots.beside = Beside(checkpoints, rank.communicator, rank.gate, rank.environment.rank)
        self._membership = Membership(rank, self._attempts, checkpoints, self._step_log)
        self._last_checkpoint = LastCheckpoint(rank, self._attempts, checkpoints)
        self._checks = Checks(rank.environment, rank.trained.accelerator, rank.processor.tested)
        self._trace = Trace.of(rank, self._attempts)
        self._on_pause: list[Callable[[], None]] = []
        self._trains = self._loops = self._is_finished = self._has_warned = False
        self._checkpoint_due = self._snapshot_due = False
        self._comparison = comparison
        self._proof_due, self._has_recovered = True, False
        """True if ranks are to be compared; and if one of them has taken another one's state since then."""
        self._loss, self._loss_due = ReportedLoss(), False
        """Losses of the script, and True if the next step is the first one after a recovery."""
        self._attempts.on_repeat.append(self._loss.drop)
        if (playing := rank.playing()) is not None:
            self._attempts.on_repeat.append(playing.drop)
        self._playing = playing
        self._total = 0
        self._called: list[tuple[int, Callable[[int], object]]] = []
        self._calls_due = self._calls_unsure = False
        """True if registered functions are to be called; and if some ranks may have called them before a recovery."""
        self._called_at = 0
        """Step after which this rank last called the registered functions."""
        self._places = rank.communicator.places
        self._arrived: tuple[Own, Untouched] | None = None
        """State of a loop that begins in the middle of training. None: it does not."""

    @property
    def rank(self) -> int:
        return self._environment.rank

    @property
    def world_size(self) -> int:
        return self._environment.world_size

    @property
    def generation(self) -> int:
        """Number of the job's current communicator, counted from 1. Each recovery makes a new one."""
        return self._processor.generation

    @property
    def step(self) -> int:
        """Last completed step. 0 before the first one."""
        return self._gate.completed

    def on_rebuild(self, callback: Callable[[], None]) -> None:
        """Registers a function that is called after each rebuild of the default process group.

        It is for code that keeps its own groups. If the function asks for a group by the same call as before, it gets the
        new group.
        """
        self._membership.callbacks.append(callback)

    def on_repeat(self, callback: Callable[[], None]) -> None:
        """Registers a function that is called on every rank when a step is given up, before it is repeated.

        It drops objects of an unfinished step that the script keeps, such as handles of asynchronous collectives. It cannot
        reach other ranks.
        """
        self._attempts.on_repeat.append(callback)

    def on_pause(self, callback: Callable[[], None]) -> None:
        """Registers a function that is called each time before training stands still after a step, for example for a hot switch.

        It cannot reach other ranks. A rebuild, or the next step, follows.
        """
        self._on_pause.append(callback)

    def every(self, steps: int, function: Callable[[int], object]) -> None:
        """Registers a function that all ranks call together after every `steps` steps, such as an evaluation or an average for
        the log.

        It may communicate with other ranks. If that fails, it is called again on all ranks. It must not change what is
        trained. Random numbers that it draws do not affect training.

        Args:
            steps: 1 is after each step.
            function: is given the number of the step that was completed. It is registered before the loop.

        Raises:
            TypeError: what is given is no function of one argument.
            ValueError: less than one step.
        """
        given.count("training.every(steps)", steps)
        given.function("training.every(function)", function, "the number of the step")
        self._called.append((steps, function))

    def finish(self) -> None:
        """Declares that the loop ends here on purpose, before its last step, on all ranks."""
        self._is_finished = True

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Marks a block in which drawn random numbers do not affect training: an evaluation, a sample of the output."""
        numbers = self._trained.take_random_numbers()
        try:
            yield
        finally:
            own.put(numbers, None, self._trained.accelerator)

    def report_loss(self, loss: object) -> None:
        """Reports the loss of the current step. If it is not finite in the first step after a recovery, and was before, the
        recovery does not count, and the next way to recover is tried.

        It costs a copy of one number in each step. Ranks may report it in some steps only, or not at all.

        Args:
            loss: a tensor or a number. Several losses of a step are added up.

        Raises:
            TypeError: it is neither.
        """
        self._loss.report(loss)

    def batches(self) -> Iterator[Any]:
        """Yields the batches of the current step: one for each part of this rank's shares, and while ranks are missing those of
        some of them as well.

        Passes of a batch are made before the next one is drawn. Gradients are summed over all batches of the step in the order of
        the ranks, so that the update is the same whichever rank computes them. It has the mean over all shares: with
        `shares(parts=3)` a rank draws three batches in a step, each of which has a third of the samples that one would have.
        Ranks make no other collectives meanwhile.

        Raises:
            TypeError: the session's `data` are not `rekindle_training.shares(make_loader)`.
            RuntimeError: it is called outside of `with step:`.
        """
        if self._playing is None:
            raise TypeError(
                f"training.batches(): the session's data are {type(self._trained.data).__name__}; accepted is "
                "session(data=rekindle_training.shares(make_loader))"
            )
        if not self._attempts.inside:
            raise RuntimeError("training.batches(): it is called inside `with step:`, since a step that is repeated draws again")
        return self._playing.batches()

    def agree(self) -> None:
        """Waits until all ranks are ready for the update of this step. Needed for an optimizer that is not torch's.

        Every rank calls it inside `with step:` before the first parameter changes. A second call in a step does nothing.

        Raises:
            StepRepeated: the step is given up; ends at `with step:`.
        """
        self._attempts.before_update()

    def steps(self, total: int) -> Iterator[Step]:
        """Yields the steps that are still to be done, counted from 1 over the whole training.

        The end of each turn of the loop is a step boundary. Failures inside `with step:` lead to a repetition of the step.

        Raises:
            RuntimeError: this process has done as many already, as in a loop over epochs, which is for `epochs`.
        """
        given.count("training.steps(total)", total)
        if self._trains and self.step >= total:
            raise RuntimeError(
                f"training.steps({total}): {self.step} steps are done; `steps` counts over the whole training and not over an "
                "epoch: use `for epoch in training.epochs(epochs, steps): for step in epoch:`"
            )
        return self._turns(total, total, earliest=0)

    def epochs(self, count: int, steps: int) -> Iterator["Epoch"]:
        """Yields the epochs that are still to be done, counted from 0 as samplers count them.

        Each epoch yields those of its steps that are still to be done. Code after an epoch's loop, such as an evaluation, is
        not repeated by a process that begins after it.

        Args:
            count: epochs of the whole training.
            steps: steps of each epoch.

        Raises:
            ValueError: less than one of either.
        """
        given.count("training.epochs(count)", count)
        given.count("training.epochs(steps)", steps)
        for number in range(self.step // steps, count):
            yield Epoch(number, self._turns((number + 1) * steps, count * steps, earliest=number * steps))

    def guard(self, train_step: Callable[Parameters, Result], total: int, *, missed: Result) -> Callable[Parameters, Result]:
        """Wraps the function that does one step in `with step:`, for a loop that the script does not control.

        The function is called again with the same arguments if the step is repeated. The wrapper returns when the step is done.

        Args:
            train_step: one step of training, called by a loop that begins after `Training.step`.
            total: steps of the whole training.
            missed: returned if this rank failed in its update and has taken the state of a rank that finished the step.

        Raises:
            RuntimeError: it is called when all steps are done.
        """

        @wraps(train_step)
        def guarded(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
            if self.step >= total:
                raise RuntimeError(f"training.guard: all {total} steps are done; the loop begins after `training.step`")
            result = missed
            for step in self._turns(self.step + 1, total, earliest=self.step):
                with step:
                    result = train_step(*args, **keywords)
            return result

        return guarded

    def _turns(self, end: int, total: int, *, earliest: int) -> Iterator[Step]:
        """Yields steps.

        Args:
            earliest: first step after which this part of the script's loop can go on.
        """
        self._attempts.earliest = earliest
        last = self._environment.drill_steps
        if last and not last == end < total:  # what follows an epoch belongs to it in a drill, too
            end, total = min(end, last), min(total, last)
        self._places.now = Place.ELSEWHERE
        self._loops, self._total = True, total
        self._gate.expect(total)
        self._wrappers.begin_loop()
        self._trained.attributes.begin_loop()
        if not self._trains:
            self._attempts.generators.find(frames_of_script(), [self._trained.data, *self._attempts.small.values()])
            self._refuse_groups()
        if self._arrived is not None:
            self._put_arrived(*self._arrived)
            self._arrived = None
        self._attempts.rehearsal.begin(self.step + 1, total)
        self._cross(end)
        while self.step < end:
            yield from self._turn(end, total)
        if end == total:
            self._attempts.end_loop()
        if last and self.step == last == total:
            self.end()
        if end < total:
            self._places.now = Place.BETWEEN

    def _turn(self, end: int, total: int) -> Iterator[Step]:
        number, start = self.step + 1, time.time()
        self._trains = True
        step = self._attempts.begin(number)
        self._places.now = Place.BETWEEN
        yield step
        self._places.now = Place.ELSEWHERE
        if not self._attempts.failed:
            self._complete(number, start, is_last=number == end < total)
        if self.step < end or end == total:  # what comes between two epochs belongs to the one before
            self._cross(end)

    def _refuse_groups(self) -> None:
        """Raises RuntimeError where groups of the script's own would keep a recovery from ending."""
        if self._membership.renewed:
            try:
                self._communicator.refuse_other_groups()
            except RuntimeError as error:
                if not communicator.is_loss(error):
                    raise
                self._gate.break_off(self.generation)  # with the manager, of which the next one says what follows
        if self._rank.after_update is not None and self._communicator.has_late_groups:
            raise RuntimeError(
                "session(after_update): process groups were made inside the session; make them before it, after "
                "rekindle_training.init_process_group(), so that a replacement has them when `after_update` is called"
            )

    def begin(self) -> None:
        """Registers this process and waits until it is a member of the job, where training is. Called by `session`."""
        self._wrappers.watch()
        attempts, folder = self._attempts, self._environment.job_dir
        injected.arm(self._trained, self.rank, folder, self._gate, lambda: attempts.turn, attempts.on_done)
        self._communicator.in_session = True
        if self._entry.met is None:
            self._entry.begin()
        else:
            self._obey(self._entry.met)
        while self.generation == 0:
            self._obey(self._gate.wait())
        self._wrappers.alone = self._membership.renewed
        self._places.begin_alone(replaces=self._membership.renewed)
        if self.step or self._membership.took_own:
            self._arrived = self._trained.take_own(), Untouched(self._trained, self._attempts.small)
            self._attempts.leave_own(self.step)

    def _put_arrived(self, here: Own, untouched: Untouched) -> None:
        """Restores random numbers and the data position, which the script may have moved between the session and its loop.

        Raises:
            Refused: the script has changed what is trained.
        """
        moved = here.data is not None and here.data != self._trained.take_own().data
        own.put(here, self._trained.data if moved else None, self._trained.accelerator)
        if changed := untouched.changed():
            self._attempts.refuse(
                f"{changed} was changed between session() and the loop of a process that goes on after step {self.step}, which "
                "has the state of training there; change it before the session, or only where `training.step == 0`"
            )

    @contextmanager
    def refusing_others(self, trained: Iterable[object]) -> Iterator[None]:
        """Refuses what trains and is not given: optimizers, schedulers, scalers, averages, loaders. Called by `session`."""
        things = list(trained)
        optimizers, schedulers = (
            unregistered_state.Optimizers(things, lambda: self._attempts.inside),
            unregistered_state.Schedulers(things),
        )
        others = unregistered_state.ScalersAndAverages(things)
        loaders = Loaders(self._trained.data, lambda: self._attempts.in_turn, self._places)
        with optimizers.watched(), schedulers.watched(), others.watched(), loaders.watched():
            yield

    def end(self) -> None:
        """Ends the loop. Called by `session`, unless an exception ends the process. A drill ends the process here."""
        self._places.now = Place.ELSEWHERE
        if self._attempts.failed and not self._attempts.interrupted:
            raise RuntimeError(
                f"the loop was left in step {self.step + 1}, as by `break` inside `with step:`, and that step was to be "
                "repeated: leave the loop after the step"
            )
        if self._attempts.done > self.step:
            self._gate.complete(self._attempts.done)
            self._trace(self._attempts.done)
        self._do_what_is_due()
        self._stretches.end(time.time())
        while not self._has_left():
            self._cross(self.step)
        self._rank.snapshots.close()
        self._refuse_early_end()
        if not self._loops:
            log.warning(
                "the session ends, and nothing was trained by training.steps, epochs or guard: nothing could be recovered"
            )
        self._processor.end()
        self._step_log.close()
        if self._environment.drill_steps:
            raise SystemExit(0)

    def _refuse_early_end(self) -> None:
        if self._loops and self.step < self._total and not (self._is_finished or self._attempts.interrupted):
            raise RuntimeError(
                f"the loop ended after step {self.step} of {self._total}; say training.finish() before a `break` that is meant, "
                "and give `total` as many steps as there are batches"
            )

    def _has_left(self) -> bool:
        self._rank.snapshots.finish(lambda: self._gate.broken)
        try:
            self._processor.leave()
            self._communicator.leave(together=not self._attempts.interrupted)
        except RuntimeError as error:
            if not self._attempts.guarded:
                raise
            self._attempts.failed_behind_step(error)
            return False
        return True

    # Inside the step boundary.

    def _cross(self, end: int) -> None:
        """Carries out the manager's requests until the next step may begin, or all steps are done."""
        while True:
            self._do_what_is_due()
            if self.step >= end and not self._gate.broken:
                return
            wish = self._gate.wait()
            if isinstance(wish, Check):
                self._checks.begin(wish.order)
                continue
            self._checks.stop()
            if isinstance(wish, Go):
                return
            self._stretches.stand()
            self._obey(wish)

    def _obey(self, wish: Wish) -> None:
        match wish:
            case Leave():
                raise SystemExit(wish.exit_code)
            case Pause():
                for callback in self._on_pause:
                    callback()
                self._say_paused()
            case Stand():
                self._attempts.say(Standing.LOST if self._membership.lost else self._attempts.place)
            case WriteLast():
                self._last_checkpoint.write(wish.order)
            case Switch():
                self._processor.link_switched(*self._communicator.links.switch(backup=wish.backup))
            case Join():
                self._join(wish)

    def _join(self, wish: Join) -> None:
        if self._playing is not None:
            self._playing.drop()  # random numbers may be put back
        joined = self._membership.join(wish)
        self._stretches.missing = self._communicator.team.missing_share
        self._periodic.join(self.step)
        self._checkpoint_due = joined and self._periodic.is_due(self.step)
        self._snapshot_due = joined and (wish.rebuild.begins or self._is_snapshot_due())
        self._calls_due = self._calls_unsure = joined and self.step > 0 and not wish.rebuild.begins
        self._proof_due = True
        self._loss_due = not wish.rebuild.begins
        self._has_recovered = self._has_recovered or bool(wish.rebuild.transfers) or wish.rebuild.from_snapshots
        self._attempts.joined(wish.rebuild.step, begins=wish.rebuild.begins)
        if joined and wish.rebuild.stands:
            self._gate.hold()
            self._say_paused()

    def _say_paused(self) -> None:
        self._processor.paused(self.step, self._trained.take_own().pickled, self._rank.replicas)

    def _complete(self, step: int, start: float, *, is_last: bool) -> None:
        """Completes a step.

        Args:
            is_last: True for the last step of an epoch that another one follows. Due work follows the code between the epochs.
        """
        if not self._attempts.guarded:  # `with step:` has done so
            self._warn_once()
            self._wrappers.settle()
            self._wrappers.agreed()
            self._rank.tell_update()
        self._gate.complete(step)
        self._trace(step)
        self._checkpoint_due, self._calls_due = self._periodic.is_due(step), True
        self._snapshot_due = self._is_snapshot_due()
        proved = self._at_boundary(self._prove) if self._proof_due or self._loss_due else True
        self._loss_due = self._loss_due and not proved
        self._loss.step_is_done(counts=proved)
        if not is_last:
            self._do_what_is_due()
        end = time.time()
        self._step_log.record(step, start, end, self.generation, self._stretches.stepped(step, start, end))
        if proved:
            self._processor.stepped(step)

    def _warn_once(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("`with step:` missing in the loop: a step that fails, or a rank that is lost, ends training")

    def _prove(self) -> None:
        """Compares ranks.

        Raises:
            Refused: on all of them, where what they have in common differs, or the first step after a recovery does not count.
        """
        try:
            loss = self._loss.finite() if self._loss_due else None
            self._comparison.run(gradients=self._attempts.gathers, recovered=self._has_recovered, loss=loss)
        except (ReplicasDiffer, LossNotFinite) as error:
            words = str(error)
        else:
            words = ""
        if words:
            self._attempts.refuse(words, of_script=False)
        self._processor.holding = Holding(state_bytes=self._comparison.state_bytes, checkpoint_every=self._periodic.every)
        self._proof_due = self._has_recovered = False

    def _at_boundary(self, work: Callable[[], None], *, protects: bool = False) -> bool:
        """Does some work at a boundary. Returns whether it was done. Failed work is repeated, unless it is refused.

        Args:
            protects: True if the work is no part of training. Then its failure ends no loop, even without `with step:`.
        """
        if self._gate.broken:
            return False
        try:
            work()
        except FAILURES as error:
            if isinstance(error, Refused) or not (self._attempts.guarded or protects):
                raise
            self._attempts.failed_behind_step(error, protects=protects)
            return False
        return True

    def _do_what_is_due(self) -> None:
        """Takes a snapshot, writes a checkpoint and calls the registered functions of the script, if they are due."""
        if self._snapshot_due and self._at_boundary(self._take_snapshot, protects=True):
            self._snapshot_due = False
        if self._checkpoint_due and self._at_boundary(self._write, protects=True):
            self._checkpoint_due = False
        if self._calls_due and self._at_boundary(self._call):
            self._calls_due = False

    def _is_snapshot_due(self) -> bool:
        snapshots = self._rank.snapshots
        return snapshots.is_due(self.step) or (self._checkpoint_due and snapshots.writes_checkpoints)

    def _take_snapshot(self) -> None:
        """Takes a snapshot. A checkpoint that is due is written from it."""
        snapshots = self._rank.snapshots
        if not snapshots.is_on:
            return
        writes = self._checkpoint_due and snapshots.writes_checkpoints
        if writes:
            self._prove()
        self._rank.sharded.reshard()
        snapshots.take(self.step, gathers=self._attempts.gathers, checkpoint=writes)
        self._checkpoint_due = self._checkpoint_due and not writes

    def _write(self) -> None:
        if not self._attempts.guarded:  # `with step:` has done so
            self._attempts.leave_own(self.step)
        self._prove()
        began = time.monotonic()
        self._periodic.write(self.step)
        self._stretches.wrote(time.monotonic() - began)

    def _call(self) -> None:
        due = [function for steps, function in self._called if self.step % steps == 0]
        if due and (not self._calls_unsure or self._is_undone()):
            modes = [(module, module.training) for module in self._trained.model.modules()]
            flags = self._wrappers.flags()  # otherwise whether the next pass sends buffers depends on tries and on processes
            with self.apart():
                try:
                    for function in due:
                        self._call_one(function)
                finally:
                    for module, mode in modes:
                        module.training = mode
                    self._wrappers.put_flags(flags)
        self._called_at, self._calls_unsure = self.step, False

    def _call_one(self, function: Callable[[int], object]) -> None:
        """Raises Refused where the function changes what is trained."""
        self._rank.sharded.reshard()
        untouched = Untouched(self._trained, self._attempts.small)
        function(self.step)
        self._rank.sharded.reshard()  # an evaluation leaves other parameters in the place of the shards
        if changed := untouched.changed():
            name = getattr(function, "__name__", type(function).__name__)
            self._attempts.refuse(
                f"training.every({name}): it has changed {changed} after step {self.step}, and a call may be repeated, or be "
                "left out by a replacement; change what is trained inside `with step:`, behind `optimizer.step()`, by what was "
                "computed before it"
            )

    def _is_undone(self) -> bool:
        """Returns whether a rank that has kept its state has not called the registered functions yet.

        Called by all ranks together.
        """
        called = self._membership.renewed or self._called_at >= self.step
        undone = torch.tensor([not called], dtype=torch.int64, device="cpu")
        dist.all_reduce(undone)
        return bool(undone.item())


class Epoch(Number):
    """Number of an epoch, from 0, and its steps: `for step in epoch`."""

    def __new__(cls, number: int, _steps: Iterator[Step]) -> Self:
        return super().__new__(cls, number)

    def __init__(self, _number: int, steps: Iterator[Step]) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[Step]:
        return self._steps
