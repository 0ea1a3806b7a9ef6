"""Messages of the model's training side, and how a manager of ours sends them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.model_training import Training

CALL = 10.0
"""Seconds of one call: a message that has no answer by then is sent again, as the same message."""
TICK = 0.2


@dataclass(frozen=True)
class Message:
    """Attach, detach, pause, resumed, fault, first step; in a recovery of processes: stopped, offers, status; in an operation:
    stood, switched, tested, went on."""

    kind: str
    session: str = ""
    queue: str = ""
    offers: tuple[str, ...] = ()
    code: int = 0
    strategy: str = ""
    words: str = ""
    ranks: tuple[int, ...] = ()
    """Pod ranks."""
    faulty: tuple[tuple[int, str], ...] = ()
    """Ranks, each with the type of its fault."""
    codes: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Results of a stress test: ranks, each with the codes of its checks."""
    answers: tuple[str, str] = ("", "")
    """The attempt and the name of the order."""
    life: str = ""
    client: str = ""
    """Which process speaks, where that matters."""
    once: bool = False
    """Nobody sends it again where it is lost."""
    id: str = ""
    """Id of its own, however often it is sent; empty: each time it is another one."""


@dataclass(frozen=True)
class Operation:
    """An order of an operation on a job that trains, as MindIO and our own training side get it."""

    name: str
    uuid: str
    links: tuple[tuple[int, bool], ...] = ()
    """Ranks, and whether they are to use their backup links."""
    ops: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Ranks, each with its checks."""


class Teller:
    """Outbox of one life of a manager: one message after the other, each until it is answered."""

    def __init__(self, training: "Training", is_over: Callable[[], bool]) -> None:
        """Args:
        is_over: tells whether another process is the manager.
        """
        self._training, self._clock, self._world = training, training.clock, training.world
        self._is_over = is_over
        self._waiting: deque[Message] = deque()
        self._again = False

    def tell(self, message: Message) -> None:
        self._waiting.append(replace(message, id=f"message-{self._world.number()}"))
        if len(self._waiting) == 1:
            self._send()

    def _send(self) -> None:
        message = self._waiting[0]
        self._clock.after(self._training.pace(message.kind), lambda: self._speak(message))

    def _speak(self, message: Message) -> None:
        """Says it on the stream; a client without one is coming back, and tells it then."""
        if self._is_over() or self._training.state == "gone" or not self._waiting or self._waiting[0].id != message.id:
            return
        if not self._training.session:
            self._clock.after(TICK, lambda: self._speak(message))
            return
        told = self._waiting[0] = replace(message, session=self._training.session)
        self._again = self._world.knobs.doubled
        self._clock.after(CALL, lambda: self._speak(told))
        self._world.receive(told, self._training)

    def heard(self, message: Message) -> None:
        """The control plane answered, whatever it was. Where the answer was lost, it is told again before anything else."""
        if self._waiting and self._waiting[0].id == message.id:
            if self._again:
                self._again = False
                self._world.receive(message, self._training)
                return
            self._waiting.popleft()
            if self._waiting:
                self._send()
