"""MindIO in the model, apart from its hot switches: operations, and the question whether it trains.

It sends each message once, obeys the expected order, and exits if none comes. Unexpected orders are recorded as wrong.
"""

from typing import TYPE_CHECKING

from tests.model.world.messages import Message, Operation
from tests.model.world.operations import CONTINUE, HOLD, LINKS, PAUSE, RELEASE, TEST, results_of

if TYPE_CHECKING:
    from tests.model.world.training import Training

STOP, ANNOUNCE, RETRY = "stop_train", "on_global_rank", "retry"
QUESTIONS = (STOP, ANNOUNCE, RETRY)
"""Orders that ask whether it trains."""

PATIENCE, QUESTION_PATIENCE = 900.0, 30.0
"""Seconds that it waits for an order in a pause, and after an answer to a question."""


class Mindio:
    """Life of MindIO's manager."""

    def __init__(self, training: "Training") -> None:
        self.training, self.clock, self.world = training, training.clock, training.world
        self.over, self.agents_held = False, False
        self._waits = object()
        self._question = ""
        """Last question that it has answered."""

    def give_way(self) -> None:
        """Ends the pause because of a fault."""

    def stop(self, reason: str) -> None:
        """Does nothing: MindIO knows no hot switch in a pause."""

    def order(self, operation: Operation) -> None:
        if operation.name in (HOLD, RELEASE):
            self.agents_held = operation.name == HOLD
        elif operation.name in QUESTIONS:
            self._answer_question(operation.name)
        elif operation.name == PAUSE:
            if self.training.state == "training" and not self.training.switching:
                self._after((0.05, 2.0), "training", lambda: self._stand(operation.uuid))
        elif self.training.state != "held":
            if self.training.state in ("starting", "training"):
                self.world.moment(f"wrong order: {operation.name} while {self.training.state}")
        elif operation.name == CONTINUE:
            self._after((0.05, 2.0), "held", lambda: self._go_on(operation.uuid))
        else:
            self._after((0.05, 3.0), "held", lambda: self._work(operation))

    def _after(self, seconds: tuple[float, ...], state: str, work: object) -> None:
        """Does the work after a random delay, unless training has another state by then."""
        self._waits = object()

        def do() -> None:
            if not self.over and self.training.state == state:
                work()  # type: ignore[operator]

        self.clock.after(self.clock.random.choice(seconds), do)

    def _wait(self, state: str, seconds: float) -> None:
        waits = self._waits = object()

        def leave() -> None:
            if not self.over and self._waits is waits and self.training.state == state:
                self.training.end("no order came")

        self.clock.after(seconds, leave)

    def _tell(self, message: Message) -> None:
        self.training.send(message)

    # ---- operations

    def _stand(self, attempt: str) -> None:
        if self.training.switching:
            return
        if self.world.knobs.holds == "never":  # a rank hangs
            self.training.stop_for_good()
            return
        if self.world.knobs.holds == "no":
            self._tell(Message("stood", code=499, words="pause failed", answers=(attempt, PAUSE), once=True))
            self.training.stop_for_good()
            return
        self.training.hold(attempt)
        self._tell(Message("stood", answers=(attempt, PAUSE), once=True))
        self._wait("held", PATIENCE)

    def _work(self, operation: Operation) -> None:
        knobs = self.world.knobs
        if operation.name == LINKS:
            done = knobs.switches == "yes"
            if done:
                self.training.move(operation.links)
            self._tell(Message("switched", code=0 if done else 1, answers=(operation.uuid, LINKS), once=True))
        else:
            done = knobs.finds != "nothing"
            codes = results_of(operation, knobs.finds)
            self._tell(Message("tested", codes=codes, answers=(operation.uuid, TEST), once=True))
        if done:
            self._wait("held", PATIENCE)
        else:
            self.training.stop_for_good()

    def _go_on(self, attempt: str) -> None:
        if self.world.knobs.goes_on != "yes":
            self._tell(Message("went on", code=499, strategy=CONTINUE, answers=(attempt, CONTINUE), once=True))
            self.training.stop_for_good()
            return
        self.training.state = "training"
        self.world.moment("went on")
        self._tell(Message("went on", strategy=CONTINUE, answers=(attempt, CONTINUE), once=True))
        self.training.look()

    # ---- whether it trains

    def _answer_question(self, name: str) -> None:
        """Answers a question whether it trains. Training that has stopped for good does not answer."""
        if name == STOP and self.training.state in ("training", "held") and self.training.whole():
            self.training.state, self.training.switching = "asked", None
        elif name == STOP or self.training.state != "asked":
            return
        self._after((0.05, 1.0), "asked", lambda: self._answered(name))

    def _answered(self, name: str) -> None:
        if name == STOP:
            self._tell(Message("stopped", once=True))
        elif name == ANNOUNCE:
            self._tell(Message("offers", offers=(RETRY, "exit"), once=True))
        else:
            self.training.state = "training"
            self.world.moment("repaired")
            self.world.moment("resumed")
            self.world.moment("went on")
            self._tell(Message("status", strategy=RETRY, once=True))
            self.training.look()
            return
        self._wait("asked", QUESTION_PATIENCE)
