"""Our own training side of the model in operations: it pauses with its state, carries out orders, and continues.

There is one object for each life of a manager, and a `Pause` for each attempt, as in `manager/maintenance.py` of the training
side, but without ranks. If no order comes, training continues by itself.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.model.world.messages import TICK, Message, Operation, Teller

if TYPE_CHECKING:
    from tests.model.world.training import Training

PAUSE, LINKS, TEST, CONTINUE = "pause_train", "switch links", "stress test", "continue"
HOLD, RELEASE = "pause_start_agent", "continue_start_agent"
OPERATIONS = (PAUSE, LINKS, TEST, CONTINUE, HOLD, RELEASE)

FAILED = 406
MERGE = 0.02
"""Seconds from the report of a fault until the pause that yielded to it is answered."""
LATER = 1.1
"""The same delay where processes are not recovered, and faults are reported whenever they are noticed."""
PATIENCE = 60.0
"""Seconds that a pause waits for its next order."""
MEETS = 2.0
"""Seconds within which a manager that follows another one has met all living ranks."""
FAULT_FIRST, NOT_PAUSED = "a fault is being recovered", "training is not paused: pause_train comes first, and is answered"

OK, NOT_RUN, FAULT, TIMED_OUT = "0", "1", "2", "3"


def results_of(operation: Operation, finds: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Returns the codes of all ranks and checks: the first check of the first rank has the result `finds`."""
    found = {"fault": FAULT, "silent": TIMED_OUT, "untested": NOT_RUN}.get(finds, OK)
    rows = [(rank, tuple(OK for _ in ops)) for rank, ops in operation.ops]
    return () if finds == "nothing" else ((rows[0][0], (found, *rows[0][1][1:])), *rows[1:])


class Pauses:
    def __init__(self, training: "Training", *, follows: bool) -> None:
        self.training, self.clock, self.world = training, training.clock, training.world
        self.over, self.met, self._follows = False, not follows, follows
        self.teller = Teller(training, lambda: self.over)
        self.active: Pause | None = None
        self._known: dict[str, Pause] = {}
        """Operations by attempt, for the whole life of this manager, as they may be requested again."""
        if follows:
            self.clock.after(MEETS, self._take_over)

    def _take_over(self) -> None:
        """Continues the attempt for which a paused training side is held."""
        self.met = True
        if not self.over and self.training.state == "held" and self.active is None:
            self._maintain(self.training.held_for)

    def tell(self, message: Message) -> None:
        (self.training.boss or self).teller.tell(message)

    def order(self, operation: Operation) -> None:
        if operation.name == PAUSE:
            if operation.uuid not in self._known:
                self._maintain(operation.uuid)
            self._known[operation.uuid].pause()
        elif operation.name in (LINKS, TEST):
            self._behind_takeover(lambda: self._carry_out(operation))
        elif operation.name == CONTINUE and operation.uuid in self._known:
            self._known[operation.uuid].go_on()
        elif operation.name == CONTINUE:
            self._behind_takeover(lambda: self._go_on_unknown(operation.uuid))

    def _behind_takeover(self, work: Callable[[], None]) -> None:
        if self.over or self.training.state == "gone":
            return
        if self.met:
            work()
        else:
            self.clock.after(TICK, lambda: self._behind_takeover(work))

    def _carry_out(self, operation: Operation) -> None:
        if self.active:
            self.active.carry_out(operation)
        else:
            self.answer(operation, "", done=False, words=NOT_PAUSED)

    def _go_on_unknown(self, attempt: str) -> None:
        if attempt in self._known:
            self._known[attempt].go_on()
        elif self.training.is_mending():
            self.went_on(attempt, FAILED, FAULT_FIRST)
        elif self.active:
            self.went_on(attempt, FAILED, "training is paused for another attempt")
        else:
            self.went_on(attempt, 0, "training goes on")

    def _maintain(self, attempt: str) -> None:
        pause = self._known[attempt] = Pause(self, attempt)
        active = self.active
        if self.training.is_mending():
            pause.fail(FAULT_FIRST)
        elif self.training.switching:
            pause.refuse("a hot switch is under way")
        elif active and active.busy:
            pause.refuse("another maintenance is under way")
        else:
            if active:
                active.refuse("another maintenance has followed")
            self.active = pause
            pause.begin()

    def give_way(self) -> None:
        """Ends the operation because of a fault, which is then recovered."""
        if pause := self.active:
            self.active = None
            told = 2 * MERGE if self.training.boss else LATER
            self.clock.after(told, lambda: pause.fail(FAULT_FIRST))

    def stop(self, reason: str) -> None:
        """Ends the current operation, after which training continues."""
        if self.active:
            self.active.stop(reason)

    # ---- what it says

    def stood(self, attempt: str, code: int, words: str) -> None:
        self.tell(Message("stood", code=code, words=words, answers=(attempt, PAUSE)))

    def went_on(self, attempt: str, code: int, words: str) -> None:
        self.tell(Message("went on", code=code, words=words, strategy=CONTINUE, answers=(attempt, CONTINUE)))

    def answer(self, operation: Operation, attempt: str, *, done: bool, words: str) -> None:
        if operation.name == LINKS:
            self.tell(Message("switched", code=0 if done else 1, words=words, answers=(attempt, LINKS)))
            return
        finds = self.world.knobs.finds if done else "untested"
        self.tell(Message("tested", words=words, codes=results_of(operation, finds), answers=(attempt, TEST)))


class Pause:
    """State of the operation of one attempt."""

    def __init__(self, pauses: Pauses, attempt: str) -> None:
        self.pauses, self.attempt = pauses, attempt
        self.training, self.clock, self.knobs = pauses.training, pauses.clock, pauses.world.knobs
        self._asked = self._told = False
        self._stopped: tuple[int, str] | None = None
        self._went_on: tuple[int, str] | None = None
        self._task: Operation | None = None
        self._answer: tuple[bool, str] | None = None
        self._orders: deque[Operation | None] = deque()
        self._works = False
        self._waits = object()

    @property
    def busy(self) -> bool:
        """Returns whether the operation does more than keep training paused."""
        stands = self._stopped is not None and not self._stopped[0] and self._went_on is None
        return self._went_on is None and not (stands and not self._orders and not self._works and not self._told)

    @property
    def _goes_on(self) -> bool:
        return self.pauses.active is self and not self.pauses.over and self.training.state != "gone"

    # ---- orders

    def pause(self) -> None:
        self._asked = True
        self._waits = object()
        if self._stopped is not None:
            self.pauses.stood(self.attempt, *self._stopped)
        if not self._works:
            self._next()

    def carry_out(self, operation: Operation) -> None:
        if self._task == operation:
            if self._answer:
                self.pauses.answer(operation, self.attempt, done=self._answer[0], words=self._answer[1])
        elif self._went_on or self._told:
            self.pauses.answer(operation, self.attempt, done=False, words=NOT_PAUSED)
        else:
            self._task, self._answer = operation, None
            self._orders.append(operation)
            self._next()

    def go_on(self) -> None:
        if self._went_on is not None:
            self.pauses.went_on(self.attempt, *self._went_on)
        elif not self._told:
            self._orders.append(None)
        self._told = True
        self._next()

    # ---- ends

    def refuse(self, reason: str) -> None:
        self._end(0, f"training goes on: {reason}", reason)

    def stop(self, reason: str) -> None:
        if self.training.state == "held":
            self.training.state = "training"
            self.pauses.world.moment("went on")
        self.refuse(reason)
        self.training.look()

    def fail(self, reason: str) -> None:
        self._end(FAILED, reason, reason)

    def _end(self, code: int, info: str, reason: str) -> None:
        """Ends the operation: training is no longer paused, and the order to continue is answered with this code and text."""
        if self.pauses.active is self:
            self.pauses.active = None
        if self._went_on or self.pauses.over or self.training.state == "gone":
            return
        was_paused, self._went_on = self._stopped is not None, (code, info)
        self._stopped = (FAILED, reason)
        if self._asked and not was_paused:
            self.pauses.stood(self.attempt, *self._stopped)
        if self._task and not self._answer:
            self._answered(self._task, done=False, words=reason)
        if self._told:
            self.pauses.went_on(self.attempt, *self._went_on)

    def _answered(self, operation: Operation, *, done: bool, words: str) -> None:
        self._answer = (done, words)
        self.pauses.answer(operation, self.attempt, done=done, words=words)

    # ---- the procedure

    def begin(self) -> None:
        if not self._goes_on:
            return
        if not self.pauses.met or (self.training.boss and not self.training.boss.met):
            self.clock.after(TICK, self.begin)
        elif self.training.state not in ("training", "held") or not self.training.whole():
            self.refuse("not all ranks are there")
        else:
            self.clock.after(self.clock.random.choice((0.02, 1.0)), self._stand)

    def _stand(self) -> None:
        if not self._goes_on or self.training.state not in ("training", "held"):
            return
        if self.knobs.holds != "yes":
            self.stop("training could not pause: a rank completes no step")
            return
        self.training.hold(self.attempt)
        self._stopped = (0, "training stands")
        if self._asked:
            self.pauses.stood(self.attempt, *self._stopped)
        self._next()

    def _next(self) -> None:
        if not self._goes_on or self.training.state != "held" or self._works or self._stopped is None:
            return
        if not self._orders:
            self._wait()
            return
        self._works, order = True, self._orders.popleft()
        took = self.clock.random.choice((0.05, 0.5, 3.0)) if order else 0.1
        self.clock.after(took, lambda: self._work(order))

    def _wait(self) -> None:
        waits = self._waits = object()

        def alone() -> None:
            if self._goes_on and self._waits is waits and not self._works and self.training.state == "held":
                self.stop("no order came")

        self.clock.after(PATIENCE, alone)

    def _work(self, order: Operation | None) -> None:
        self._works = False
        if not self._goes_on or self.training.state != "held":
            return
        if order is None:
            self._resume()
        elif order.name == LINKS:
            self._switch(order)
        else:
            self._answered(order, done=True, words="tested")
        self._next()

    def _switch(self, order: Operation) -> None:
        if self.knobs.switches == "torn" and self.training.boss:  # neither link works: no process ended
            self.training.blame()
        elif self.knobs.switches != "yes":
            self._answered(order, done=False, words="rank 3: eth1 is down; all ranks are on the links of before")
        else:
            self.training.move(order.links)
            self._answered(order, done=True, words="switched")

    def _resume(self) -> None:
        if self.knobs.goes_on != "yes" and self.training.boss:
            self.training.blame()
            return
        self.training.state = "training"
        self.pauses.world.moment("went on")
        self._end(0, "training goes on", "it was ordered to go on")
        self.training.look()
