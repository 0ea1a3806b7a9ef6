"""One step of training as the scope of its faults: `with step:`. The session makes one for each turn of its loop.

A step that fails on a rank is repeated by all, and nobody has updated parameters in it. What makes that possible is an agreement
before the first update: nobody begins to update before all ranks have all gradients. A rank that cannot tell whether they agreed
asks, and waits: if one has updated, all had their gradients, so this rank goes on and updates as well.
"""

import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Self, cast

import torch

from rekindle_training.adapter import agreement, communicator
from rekindle_training.adapter.agreement import Kind, RanksDiffer
from rekindle_training.adapter.boundary import Boundary, CannotGoBack
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.rank import Rank
from rekindle_training.adapter.state import StateMismatch
from rekindle_training.adapter.vote import Disagreement
from rekindle_training.adapter.words import FAILURES, fault_of, in_words
from rekindle_training.processor.gate import Join, Stand
from rekindle_wire.training_pb2 import Leave, Standing

log = logging.getLogger(__name__)


class StepRepeated(RuntimeError):
    """The step that is being executed is given up: training begins it anew. Ends at `with step:`."""


class Step(int):
    """The number of a step, from 1, and the scope in which it may fail: `with step:`. A step that failed is yielded again."""

    def __new__(cls, number: int, _attempts: "Attempts") -> Self:
        return super().__new__(cls, number)

    def __init__(self, _number: int, attempts: "Attempts") -> None:
        self._attempts = attempts

    def __enter__(self) -> Self:
        self._attempts.enter(int(self))
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return self._attempts.leave(error)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """It travels as its number, such as to a data loader's worker or into a file."""
        return int, (int(self),)


@dataclass
class _Attempt:
    number: int
    remembered: bool = False
    entered: bool = False
    inside: bool = False
    agreed: bool = False
    """All ranks have all gradients, and the update may have begun."""
    given_up: bool = False
    failed: bool = False
    interrupted: bool = False
    refused: RanksDiffer | None = None
    own_before_update: Own | None = None
    reason: str = ""
    fault: "Standing.Fault.ValueType" = Standing.OTHER
    """Of what kind that is."""


class Attempts:
    """Of one rank: at most one is going on."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._boundary = Boundary(rank.trained)
        self._now = _Attempt(0)
        self.on_repeat: list[Callable[[], None]] = []
        for thing in (rank.trained.optimizer, *rank.trained.shared.values()):
            if isinstance(thing, torch.optim.Optimizer):
                thing.register_step_pre_hook(self.before_update)
            elif isinstance(thing, torch.amp.GradScaler):  # which may leave the optimizer's step out
                _call_before(thing, "step", self.before_update)

    # The loop's side.

    def begin(self, number: int) -> Step:
        scoped = self._now.entered or self._now.number == 0  # a loop without the scope pays nothing for it
        self._now = _Attempt(number)
        if scoped:
            self._remember()
        return Step(number, self)

    @property
    def failed(self) -> bool:
        """The step that was yielded last is not done."""
        return self._now.failed

    @property
    def inside(self) -> int:
        """The step in whose scope the script is; 0: in none."""
        return self._now.number if self._now.inside else 0

    @property
    def guarded(self) -> bool:
        """The loop says `with step:`, or may say it in its first turn."""
        return self._now.entered or self._now.number == 0

    @property
    def interrupted(self) -> bool:
        """The script caught what ends a process, behind the scope that it left in its middle."""
        return self._now.interrupted

    @property
    def place(self) -> "Standing.Place.ValueType":
        """Where this rank stands at its boundary."""
        return Standing.SPOILT if self._now.failed and self._now.agreed else Standing.BOUNDARY

    def say(self, place: "Standing.Place.ValueType") -> None:
        """Tells the manager where this rank stands."""
        gate = self._rank.gate
        standing = Standing(
            step=gate.completed,
            place=place,
            reason=self._now.reason,
            fault=self._now.fault,
            replicas=self._rank.replicas,
            kept=self._rank.buddy.kept(),
        )
        self._rank.processor.standing(standing, gate.broken_in)

    def go_back(self) -> None:
        """To the boundary at which the step began that failed, if one did.

        Raises:
            CannotGoBack: it cannot be; the message says why.
        """
        if self._now.failed:
            if self._now.agreed:
                raise CannotGoBack("the update had begun")
            self._boundary.go_back()
        self._now.failed = False

    def own_behind(self, step: int) -> Own | None:
        """What only this rank has, as it is behind a step that failed here: its update changes nothing of it. A process that has
        just begun has what the one before it left; None: as the script begins, since that one had not come to its first step.

        Raises:
            StateMismatch: that one left nothing of this step.
        """
        here = {self._now.number: self._now.own_before_update, self._now.number - 1: self._boundary.own}
        if (own := here.get(step)) is not None:
            return own
        if (left := self._rank.legacy.behind(step)) is None:
            if step == 0:
                return None
            raise StateMismatch(
                f"the process that had this rank left neither random numbers nor data position behind step {step}"
            )
        return cast(Own, pickle.loads(left))  # written by a process of this rank

    def forget(self) -> None:
        """The state has become a replica's."""
        self._boundary.forget()
        self._now.failed = False

    def failed_behind_step(self, error: BaseException) -> None:
        """What all ranks do at the boundary, such as a checkpoint, has failed here."""
        self._note(f"what follows step {self._now.number}", error)
        self._break_off()

    # The scope's side.

    def enter(self, number: int) -> None:
        if number != self._now.number or self._now.entered:
            raise RuntimeError(f"with step: step {number} is entered once, in its own turn of the loop")
        if not self._now.remembered:
            self._remember()
        self._now.entered = self._now.inside = True

    def leave(self, error: BaseException | None) -> bool:
        """Whether the error ends here."""
        if error is not None and not isinstance(error, FAILURES):
            self._interrupt(error)
            return False
        done = error is None and (self._now.agreed or self._agree(Kind.END))
        if self._now.refused is not None:  # also where the script caught it
            self._interrupt(self._now.refused)
            raise self._now.refused
        self._now.inside = False
        if done:
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
        return error is not None

    def _interrupt(self, error: BaseException) -> None:
        """As a rule the process ends now, which is told soon enough. Where the script catches it, this step is not done."""
        self._now.inside, self._now.failed, self._now.interrupted = False, True, True
        self._now.reason = in_words(error)
        self._break_off()

    def _remember(self) -> None:
        self._rank.sharded.reshard()
        own = self._boundary.remember()
        self._rank.legacy.leave(self._now.number - 1, own.pickled)
        self._now.remembered = True

    def leave_own(self, step: int) -> None:
        """Of a rank that begins behind this step, for the process that follows it before the next one."""
        self._rank.legacy.leave(step, self._rank.trained.take_own().pickled)

    # Before the update.

    def before_update(self, *_: object) -> None:
        """Returns when all ranks have all gradients of this step; raises StepRepeated where they have not, and RanksDiffer where
        some do not update."""
        if self._now.inside and not self._now.agreed and not self._agree(Kind.UPDATE):
            if self._now.refused is not None:
                raise self._now.refused
            raise StepRepeated(f"step {self._now.number} is repeated")

    def _agree(self, kind: Kind) -> bool:
        """Whether all ranks have all gradients of this step; waits for the manager's word where this rank cannot tell."""
        if not self._now.given_up:
            self._boundary.notice_gradients()
            self._now.own_before_update = self._rank.trained.take_own()
            left = self._now.own_before_update.pickled
            self._rank.legacy.leave(self._now.number, left)
            self._now.agreed = self._all_say_so(kind, left) or (self._now.refused is None and self._manager_says_so())
            self._now.given_up = not self._now.agreed
            if self._now.agreed:
                self._rank.wrappers.agreed()
        return self._now.agreed

    def _all_say_so(self, kind: Kind, own: bytes) -> bool:
        if self._rank.gate.broken:
            return False
        try:
            self._rank.wrappers.settle()
            self._rank.buddy.exchange(self._now.number, own)
            self._rank.communicator.agree(agreement.word(self._now.number, kind))
        except Disagreement as found:
            self._now.refused = agreement.explained(found)
            return False
        except RuntimeError as error:
            self._note(f"step {self._now.number}", error)
            return False
        return True

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

    def _tell_update(self) -> None:
        """A rank that cannot has its update all the same; who joins the next generation tells it there."""
        if self._rank.gate.broken:
            return
        try:
            self._rank.tell_update()
        except FAILURES as error:
            self.failed_behind_step(error)

    # Failures.

    def _break_off(self) -> None:
        self._rank.gate.break_off(self._rank.processor.generation)

    def _note(self, where: str, error: BaseException) -> None:
        """What other ranks' failures lead to here is no failure of this one."""
        if self._rank.gate.broken or communicator.is_loss(error):
            log.info("lost the other ranks in %s", where)
        else:
            self._now.reason, self._now.fault = in_words(error), fault_of(error)
            log.error("failed in %s", where, exc_info=error)


def _call_before(thing: Any, method: str, hook: Callable[[], None]) -> None:
    called = getattr(thing, method)

    @wraps(called)
    def hooked(*args: Any, **keywords: Any) -> Any:
        hook()
        return called(*args, **keywords)

    setattr(thing, method, hooked)
