"""Messages of the model's training side, and the way in which our manager sends them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.model.world.training import Training

CALL = 10.0
"""Time limit of one call in seconds: a message without an answer is sent again under the same id."""
TICK = 0.2


@dataclass(frozen=True)
class Message:
    """Message of the training side. Kinds: attach, detach, pause, resumed, fault, first step; in a recovery of processes:
    stopped, offers, status; in an operation: stood, switched, tested, went on."""

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
    """Attempt and name of the order that it answers."""
    life: str = ""
    client: str = ""
    """Sending process, where that matters."""
    once: bool = False
    """True if it is not repeated when it is lost."""
    id: str = ""
    """Id that is kept when the message is repeated; empty: each call is another message."""


@dataclass(frozen=True)
class Operation:
    """Order of an operation on a job that trains, for MindIO and our own training side."""

    name: str
    uuid: str
    links: tuple[tuple[int, bool], ...] = ()
    """Ranks, each with True if it is to use its backup link."""
    ops: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Ranks, each with its checks."""


class Teller:
    """Outbox of one life of a manager: sends one message after the other, each until it is answered."""

    def __init__(self, training: "Training", is_over: Callable[[], bool]) -> None:
        """Args:
        is_over: returns whether another process is the manager.
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
        """Sends a message on the stream. A client without a stream sends it after it has reconnected."""
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
        """Removes a message that was answered in any way. If the answer was lost, the message is repeated before all others."""
        if self._waiting and self._waiting[0].id == message.id:
            if self._again:
                self._again = False
                self._world.receive(message, self._training)
                return
            self._waiting.popleft()
            if self._waiting:
                self._send()
