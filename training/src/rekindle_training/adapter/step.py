"""Step of training as the scope of its faults: `with step:`. The session creates one for each turn of its loop.

If a step fails on a rank, all ranks repeat it, and none has updated parameters in it. An agreement before the first update
makes that possible: no rank begins its update before all ranks have all gradients. A rank that does not know whether they
agreed asks the manager, and waits. If another rank has updated, all had their gradients, so this rank goes on and updates as
well.
"""

import logging
import pickle
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Self, cast

import torch

from rekindle_training.adapter import agreement, communicator
from rekindle_training.adapter.agreement import Kind
from rekindle_training.adapter.between_steps import BetweenSteps
from rekindle_training.adapter.boundary import Boundary, parameters_of
from rekindle_training.adapter.comparison import Comparison, ReplicasDiffer
from rekindle_training.adapter.elasticity import fixed_size
from rekindle_training.adapter.failure_text import FAILURES, fault_of, in_words
from rekindle_training.adapter.generators import Generators
from rekindle_training.adapter.gradients import CannotGoBack
from rekindle_training.adapter.hooks import call_before, call_before_of
from rekindle_training.adapter.number import Number
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.places import LATE, UNREPEATABLE, Place, Refused, line_of_script
from rekindle_training.adapter.rank import Rank
from rekindle_training.adapter.rehearsal import Rehearsal, differing, own_parts
from rekindle_training.adapter.sharding import has_scaled_shards
from rekindle_training.adapter.state import Stateful, StateMismatch
from rekindle_training.adapter.vote import Disagreement
from rekindle_training.processor.gate import Join, Stand, WriteLast
from rekindle_wire.training_pb2 import Leave, Standing

log = logging.getLogger(__name__)

ONE_SCOPE = "put all backward passes of one update into one `with step:`"


class StepRepeated(RuntimeError):
    """The current step is given up and repeated. Ends at `with step:`."""


class Step(Number):
    """Number of a step, from 1, and the scope in which it may fail: `with step:`. A step that failed is yielded again."""

    def __new__(cls, number: int, _attempts: "Attempts") -> Self:
        return super().__new__(cls, number)

    def __init__(self, _number: int, attempts: "Attempts") -> None:
        self._attempts = attempts

    def __enter__(self) -> Self:
        self._attempts.enter(int(self))
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return self._attempts.leave(error)


@dataclass
class _Attempt:
    number: int
    remembered: bool = False
    entered: bool = False
    inside: bool = False
    agreed: bool = False
    """True if all ranks have all gradients, so that the update may have begun."""
    given_up: bool = False
    failed: bool = False
    interrupted: bool = False
    gathers: bool = False
    """True if this step has added to gradients, unlike the steps before it."""
    rehearsed: bool = False
    """True if this was the first of its two passes."""
    own_before_update: Own | None = None
    reason: str = ""
    fault: "Standing.Fault.ValueType" = Standing.OTHER
    """Type of the fault that `reason` describes."""


class Attempts:
    """Attempts of one rank at its steps, of which at most one is going on."""

    def __init__(self, rank: Rank, comparison: Comparison, *, repeats_updates: bool) -> None:
        self._rank, self._comparison = rank, comparison
        self._boundary = Boundary(rank.trained, repeats_updates)
        self._repeats_updates = repeats_updates
        self._now = _Attempt(0)
        self.generators = Generators()
        self.rehearsal = Rehearsal(rank.trained, self._boundary)
        self._places = rank.communicator.places
        self._places.refuse = self.refuse
        self._between = BetweenSteps(rank.trained, self._places)
        self._tried: tuple[int, Own] | None = None
        """Step that was given up when this rank had its gradients, and what the rank then had for itself."""
        self._at_end: tuple[int, Own | None] = (0, None)
        """Step with which the loop ended, and the state that only this rank had then."""
        self._begun: Mapping[str, int] = {}
        """Number of collectives begun by the latest agreement, by group."""
        self._after_recovery = 0
        """First step of a generation. Some ranks may have seen in an earlier try that it adds to gradients."""
        self.earliest = 0
        """First step after which the loop can go on where all ranks go back to a snapshot."""
        self.refusal = ""
        """Reason why training cannot go on here. Empty: there is none."""
        self._is_of_script = False
        """True if the script is the cause, so that a restart would be refused as well."""
        self._shown: object = None
        """Failure of which the traceback was printed last."""
        sums = rank.wrappers.sums
        self.on_repeat: list[Callable[[], None]] = [] if sums is None else [sums.give_up]
        reduced = rank.whole_replicas or rank.wrappers
        self.on_done: list[Callable[[], None]] = [] if sums is None else [lambda: sums.is_done(lambda: reduced.parameters)]
        """Functions that are called at the end of each step that is done, after its last update."""
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            call_before_of(kind, "zero_grad", self._boundary.drops_gradients)
            if sums is not None:
                call_before_of(kind, "zero_grad", lambda thing, *_, **__: sums.refuse_drop(parameters_of(thing)))
        for thing in (rank.trained.optimizer, *rank.trained.shared.values()):
            if isinstance(thing, torch.optim.Optimizer):
                thing.register_step_pre_hook(self._before_torchs)
            elif isinstance(thing, torch.amp.GradScaler):  # which may leave the optimizer's step out
                call_before(thing, "step", self._before_scalers)

    # The loop's side.

    def begin(self, number: int) -> Step:
        scoped = self._now.entered or self._now.number == 0  # a loop without the scope pays nothing for it
        self._now = _Attempt(number)
        if scoped:
            self._remember()
            if problem := self._between.problem(number, self._boundary.own):
                self.refuse(problem)
            if self._rank.sharded.keeps_gradients:
                self.refuse(f"gradients are held after step {number - 1} that were not reduced: {ONE_SCOPE}")
        return Step(number, self)

    def joined(self, behind: int, *, begins: bool) -> None:
        """Notes the step after which a new generation goes on. Called when this rank has joined it.

        Checks of the first steps are made only at the beginning of a life of the job.
        """
        if not begins:
            self.rehearsal.is_over = True
            self._between.end_first_steps()
            self._after_recovery = behind + 1

    @property
    def failed(self) -> bool:
        """Returns whether the step that was yielded last has failed."""
        return self._now.failed

    @property
    def inside(self) -> int:
        """Step in whose scope the script is. 0: it is in none."""
        return self._now.number if self._now.inside else 0

    @property
    def gathers(self) -> bool:
        """Returns whether steps add to the gradients of the step before."""
        return self._boundary.gathers

    @property
    def small(self) -> Mapping[str, Stateful]:
        """Small objects of `state`, which are copied in each step."""
        return self._boundary.small

    @property
    def turn(self) -> int:
        """Step of the latest turn of the loop. 0 before the first."""
        return self._now.number

    @property
    def in_turn(self) -> int:
        """Step whose turn of the loop it is, also before its scope and after it. 0: there is none."""
        return self._now.number if self._now.number > self._rank.gate.completed else 0

    @property
    def done(self) -> int:
        """Last step whose scope has ended well, also if the loop was left before the end of its turn."""
        now = self._now
        return now.number if now.agreed and not (now.inside or now.failed) else now.number - 1

    @property
    def guarded(self) -> bool:
        """Returns whether the loop uses `with step:`, or may still do so in its first turn."""
        return self._now.entered or self._now.number == 0

    @property
    def interrupted(self) -> bool:
        """True if a step was left by an exception that ends a process, and the script caught it afterwards."""
        return self._now.interrupted

    @property
    def place(self) -> "Standing.Place.ValueType":
        """Position of this rank at its boundary."""
        return Standing.SPOILT if self._now.failed and self._now.agreed else Standing.BOUNDARY

    def say(self, place: "Standing.Place.ValueType") -> None:
        """Reports the standing of this rank to the manager."""
        gate = self._rank.gate
        standing = Standing(
            step=gate.completed,
            place=Standing.LOST if self.refusal else place,
            reason=self.refusal or self._now.reason,
            final=bool(self.refusal),
            refused=self._is_of_script,
            fault=self._now.fault,
            replicas=self._rank.replicas,
            kept=self._rank.peer_backup.kept(),
            fixed_size=fixed_size(self._rank, self._boundary),
            shares=sorted(self._rank.trained.carried),
            snapshots=self._rank.snapshots.held(),
            earliest=self.earliest,
        )
        self._rank.processor.standing(standing, gate.broken_in)

    def go_back(self) -> None:
        """Returns to the boundary at which the failed step began, if a step failed.

        Raises:
            CannotGoBack: it is not possible; the message says why.
        """
        if self._now.failed:
            if self._now.agreed:
                raise CannotGoBack("the update had begun")
            self._boundary.go_back()
            if moved := self._not_put_back():
                self.refuse(moved)
        self._now.failed = False

    def own_behind(self, step: int) -> Own | None:
        """Returns the state that only this rank has after a step that failed here. The step's update does not change it.

        A process that has just begun uses the state that the process before it left.

        Returns:
            None: the process before it did not reach its first step, so the state is that with which the script begins.

        Raises:
            StateMismatch: the process before it left no state of this step.
        """
        here = {self._now.number: self._now.own_before_update, self._now.number - 1: self._boundary.own}
        if (own := here.get(step)) is not None:
            return own
        if (left := self._rank.launcher_memory.behind(step)) is None:
            if step == 0:
                return None
            raise StateMismatch(f"the process that had this rank left neither random numbers nor data position after step {step}")
        return cast(Own, pickle.loads(left))  # written by a process of this rank

    def forget(self) -> None:
        """Drops the state of the failed step, because this rank has taken that of a replica."""
        self._boundary.forget()
        self._now.failed = False
        self.forget_tries()

    def forget_tries(self) -> None:
        """Drops the state with which this rank compares what follows, because it has other shares now."""
        self._tried = self._between.updated = None

    def failed_behind_step(self, error: BaseException, *, protects: bool = False) -> None:
        """Notes that work of all ranks at the boundary, such as a checkpoint, has failed here.

        Args:
            protects: True if the work is no part of training, which goes on without it.
        """
        self._note(f"what follows step {self._now.number}", error, Standing.PROTECTION if protects else fault_of(error))
        self._break_off()

    # The scope's side.

    def enter(self, number: int) -> None:
        if number != self._now.number or self._now.entered:
            raise RuntimeError(f"with step: step {number} is entered once, in its own turn of the loop")
        if not self._now.remembered:
            self._remember()
        self._now.entered = self._now.inside = True
        self._places.enter_step()

    def leave(self, error: BaseException | None) -> bool:
        """Leaves the scope of a step. Returns whether the error ends here."""
        if error is not None and not isinstance(error, FAILURES):
            self._interrupt(error)
            return False
        if isinstance(error, Refused):
            self._is_of_script = self._is_of_script or not self.refusal
            self.refusal = self.refusal or str(error)
        if self._now.rehearsed or (error is None and not self._now.agreed and self._rehearses()):
            self._go_back_on_purpose()
            return error is not None
        if error is None and self._now.agreed:
            self._refuse_late_passes()
        if done := error is None and (self._now.agreed or self._agree(Kind.END)):
            for callback in self.on_done:
                callback()
        self._now.inside = False
        with self._places.ours():
            self._end(error, done=done)
        if self.refusal:
            raise Refused(self.refusal) from None
        self._places.now = Place.BETWEEN
        return error is not None

    def _end(self, error: BaseException | None, *, done: bool) -> None:
        if done:
            self._rank.trained.own_buffers.leave_late()
            self._tell_update()
        else:
            self._now.failed = True
            self._rank.sharded.give_up_step()
            for callback in self.on_repeat:
                callback()
            if error is not None and not self._now.given_up:
                self._note(f"step {self._now.number}", error)
            self._break_off()
            self.say(self.place)
            self._rank.communicator.cut(self._rank.processor.generation)  # nothing of what follows the scope reaches other ranks

    def _interrupt(self, error: BaseException) -> None:
        """Notes an exception that ends the process. If the script catches it, the step counts as failed."""
        self._now.inside, self._now.failed, self._now.interrupted = False, True, True
        self._now.reason = in_words(error)
        self._break_off()

    def _remember(self) -> None:
        self._rank.sharded.reshard()
        self._rank.begin_shares()
        own = self._boundary.remember()
        self.generators.remember()
        self._rank.launcher_memory.leave(self._now.number - 1, own.pickled)
        self._now.remembered = True

    def end_loop(self) -> None:
        """Notes that the loop has done its last step. The script may draw random numbers from here on."""
        self._at_end = self._rank.gate.completed, self._rank.trained.take_own()
        self.earliest = self._rank.gate.completed + 1  # the script does not enter the loop again

    def own_here(self) -> Own:
        """Returns the state that only this rank has at its boundary, also where the script has left its loop since then."""
        step, own = self._at_end
        return own if own is not None and step == self._rank.gate.completed else self._rank.trained.take_own()

    def leave_own(self, step: int) -> None:
        """Leaves the state of a rank that begins after this step, for a process that follows it before the next one."""
        self._rank.launcher_memory.leave(step, self._rank.trained.take_own().pickled)

    # Rehearsal.

    def _rehearses(self) -> bool:
        """Returns whether the step is repeated as a rehearsal, although nothing failed."""
        number = self._now.number
        if not self.rehearsal.is_first_pass(number) or self._rank.gate.broken:
            return False
        if (not self._rank.wrappers.is_settled or self._boundary.notice_moving()) and self.rehearsal.postpone(number):
            return False
        self.rehearsal.remember()
        self._now.rehearsed = True
        return True

    def _go_back_on_purpose(self) -> None:
        self._now.inside, self._now.failed, self._places.now = False, True, Place.BETWEEN
        self._rank.sharded.give_up_step()
        for callback in self.on_repeat:
            callback()
        try:
            self._boundary.go_back()
        except CannotGoBack as error:
            self._differs(
                f"{error}; only an update changes what the session does not copy. session(repeat_updates=True) copies it"
            )
        else:
            self._differs(self._not_put_back())

    def _differs(self, words: str) -> None:
        """Refuses the script if the rehearsal has found a difference."""
        if not words:
            return
        text = f"step {self._now.number} cannot be repeated: {words}"
        if self._places.accepts(UNREPEATABLE):
            log.warning("exact repair ruled out", extra={"reason": text})
        else:
            self.refuse(f'{text}. session(accept=["{UNREPEATABLE}"]) accepts repairs that are not exact')

    def _not_put_back(self) -> str:
        """Returns what differs from the beginning of the step, in words. Empty: nothing."""
        then = self._boundary.own
        now = self._rank.trained.take_own()
        if then is None or then == now or not (moved := differing(own_parts(then), own_parts(now))):
            return ""
        return (
            f"{moved[0]} ({type(self._rank.trained.data).__name__}) is not put back by `load_state_dict`; use "
            "data=rekindle_training.batches(loader), or an object whose next batch follows the state that was loaded"
        )

    # Refusals.

    def refuse(self, words: str, *, of_script: bool = True) -> None:
        """Ends training: no repair helps.

        Args:
            of_script: a restart does not help either.

        Raises:
            Refused: always.
        """
        self.refusal, self._is_of_script = words, of_script
        self._rank.snapshots.doubt()
        if not self._now.inside:
            self._break_off()
            self.say(self.place)
        raise Refused(words)

    def _refuse_late_passes(self) -> None:
        """Notes a refusal if models communicated with other ranks after the update.

        Collectives of other threads, in other groups, do not count.
        """
        now = self._rank.communicator.counted()
        late = {group for group, begun in now.items() if begun != self._begun.get(group, 0)} - self._places.of_threads
        if not late or self._places.accepts(LATE):
            return
        with suppress(Refused):
            self.refuse(
                f"a model speaks to other ranks after the update of step {self._now.number}, as in a second backward pass; keep "
                f'copies: session(repeat_updates=True). session(accept=["{LATE}"]) accepts a restart from the checkpoint'
            )

    def _refuse_outside(self) -> None:
        if self._places.now is Place.BETWEEN and self._places.guarded:
            self.refuse(
                f"optimizer.step() at {line_of_script()} is outside `with step:`; put it inside, so that all ranks agree on it"
            )

    # Before the update.

    def _before_torchs(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Hook of torch's optimizers. Ranks agree when the closure has made the gradients, if there is one."""
        closure = keywords.get("closure", next(iter(args[1:]), None))
        if closure is None or not self._now.inside or self._now.agreed:
            self.before_update()
            return None
        if self._repeats_updates:
            return None
        if isinstance(optimizer, torch.optim.LBFGS):
            self.refuse("LBFGS evaluates its closure several times in one update; session(repeat_updates=True) repeats its steps")

        @wraps(closure)
        def closed() -> Any:
            result = closure()
            self.before_update()
            return result

        return args[:1], {**keywords, "closure": closed}

    def _before_scalers(
        self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *_args: object, **_keywords: object
    ) -> None:
        """Hook of GradScalers. To unscale shards, ranks tell each other whether they overflow, which they do while a step can be
        repeated."""
        if self._now.inside and not self._now.agreed and has_scaled_shards(scaler, optimizer):
            scaler.unscale_(optimizer)
        self.before_update()

    def before_update(self) -> None:
        """Waits until all ranks have all gradients of this step. Raises StepRepeated if the step is repeated instead."""
        self._rank.snapshots.settle()
        if not self._now.inside:
            self._refuse_outside()
        elif self._repeats_updates:
            self._notice_gradients(is_one_of_several=True)
        elif not self._now.agreed and (self._rehearses() or not self._agree()):
            raise StepRepeated(f"step {self._now.number} is repeated")

    def _agree(self, kind: Kind = Kind.UPDATE) -> bool:
        """Returns whether all ranks have all gradients of this step. Waits for the manager's answer if this rank is unsure."""
        if not (self._now.given_up or self._now.rehearsed):
            with self._places.ours():
                self._take_part(kind)
            if self._now.agreed:
                self._places.now = Place.UPDATED
        return self._now.agreed

    def _take_part(self, kind: Kind) -> None:
        self._rank.snapshots.settle()  # so that each rank has its copy when any of them has updated
        self._between.begin_update(at_end=kind is Kind.END)
        self._notice_gradients(is_one_of_several=False)
        self._rank.trained.own_buffers.notice()
        self.generators.notice(self._now.number)
        own = self._now.own_before_update = self._rank.trained.take_own()
        left = own.pickled
        self._rank.launcher_memory.leave(self._now.number, left)
        said = self._all_say_so(left, kind)
        self._now.agreed = said or (not self.refusal and self._manager_says_so())
        self._now.given_up = not self._now.agreed
        if self._now.agreed:
            self._rank.wrappers.agreed()
            self._between.updated = self._now.number, own
            self._begun = self._rank.communicator.counted()
        elif kind is Kind.UPDATE:  # otherwise the script may have caught the loss of another rank in the middle of a pass
            self._tried = self._now.number, own

    def _notice_gradients(self, *, is_one_of_several: bool) -> None:
        gathered = self._boundary.gathers
        self._boundary.has_gradients(is_one_of_several=is_one_of_several)
        number = self._now.number
        if self._boundary.gathers and not gathered and number != self._after_recovery:
            self._now.gathers = not self.rehearsal.is_second_pass(number)

    def _all_say_so(self, own: bytes, kind: Kind) -> bool:
        if self._rank.gate.broken:
            return False
        word = agreement.word(self._now.number, kind, gathers=self._now.gathers)
        try:
            if self._now.number == self._after_recovery and not self._rank.wrappers.is_settled:
                # A rank that has left a collective out would meet the others in those of the wrappers.
                self._rank.communicator.agree(word)
            self._rank.wrappers.settle()
            if (sums := self._rank.wrappers.sums) is not None:
                sums.before_update(gathers=self._boundary.gathers)
            self._prove_repetition()
            self._rank.peer_backup.exchange(self._now.number, own)
            self._rank.communicator.agree(word)
            if self._now.gathers:
                self._compare_gradients()
        except Disagreement as error:
            self._refuse_disagreement(error)
            return False
        except Refused:
            return False
        except RuntimeError as error:
            self._note(f"step {self._now.number}", error)
            return False
        return True

    def _prove_repetition(self) -> None:
        """Raises Refused where a step that is done again has come to another state than in its first try."""
        number, own = self._now.number, self._now.own_before_update
        if self._boundary.moments_changed and not self._places.accepts(UNREPEATABLE):
            self.refuse(
                f"the state of an optimizer changed in step {number} before its update, which a repeated step would do twice; "
                "change it after `optimizer.step()`, or keep copies: session(repeat_updates=True)"
            )
        if self.rehearsal.is_second_pass(number):
            self._differs(self.rehearsal.conclude())
            self._compare_gradients()
        if self._tried is None or self._tried[0] != number or own is None or self._places.accepts(UNREPEATABLE):
            return
        if own != self._tried[1] and (moved := differing(own_parts(self._tried[1]), own_parts(own))):
            self.refuse(f"{moved[0]} came to another state when step {number} was repeated than in its first try")

    def _compare_gradients(self) -> None:
        try:
            self._comparison.gradients(self._boundary.held_gradients())
        except ReplicasDiffer as error:
            self.refuse(str(error), of_script=False)

    def _refuse_disagreement(self, error: Disagreement) -> None:
        with suppress(Refused):
            self.refuse(agreement.explained(error))

    def _manager_says_so(self) -> bool:
        self._break_off()
        while True:
            match self._rank.gate.wait():
                case Leave() as leave:
                    raise SystemExit(leave.exit_code)
                case Stand():
                    self.say(Standing.VOTES)
                case Join() as join:
                    self._rank.gate.join(join)  # at the boundary: this step is finished or given up first
                    return join.rebuild.step >= self._now.number
                case WriteLast() as last:
                    self._rank.gate.write_last(last)
                    return last.order.step >= self._now.number

    def _tell_update(self) -> None:
        """Sends the update to other ranks.

        If that fails, the update counts, and is sent to the ranks of the next generation.
        """
        if self._rank.gate.broken:
            return
        try:
            self._rank.tell_update()
        except FAILURES as error:
            self.failed_behind_step(error)

    # Failures.

    def _break_off(self) -> None:
        self._rank.gate.break_off(self._rank.processor.generation)

    def _note(self, where: str, error: BaseException, fault: "Standing.Fault.ValueType | None" = None) -> None:
        """Records and logs a failure of this rank. Errors that follow from failures of other ranks do not count."""
        if isinstance(error, Refused):
            return
        if self._rank.gate.broken or self._rank.communicator.is_loss_now(error):
            log.info("other ranks lost in %s", where)
            return
        kept = "kept from before the last recovery: " if communicator.is_loss(error) else ""
        if self.rehearsal.is_second_pass(self._now.number):
            kept += f"step {self._now.number} was done a second time on purpose, as after a fault (the rehearsal): "
        self._now.reason, self._now.fault = kept + in_words(error), fault_of(error) if fault is None else fault
        if (found := (where, type(error), _origin(error))) == self._shown:
            log.error("failed again in %s, as before: %s", where, self._now.reason)
        else:
            self._shown = found
            log.error("failed in %s", where, exc_info=error)


def _origin(error: BaseException) -> tuple[str, int] | None:
    """Returns file and line where an error was raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return (frames[-1][0].f_code.co_filename, frames[-1][1]) if frames else None
