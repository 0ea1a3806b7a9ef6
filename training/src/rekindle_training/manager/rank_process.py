"""Process of a rank, as the manager sees it: its stream, unanswered messages, and whether it lives."""

import asyncio
import logging
from collections.abc import Callable

from rekindle_wire.training_pb2 import Hello, Leave, Leaving, ManagerMessage, RankMessage, Standing

log = logging.getLogger(__name__)

LOST_SECONDS = 1.0
"""Seconds after which a process whose stream broke is lost. A live one reconnects within 0.5 s."""

LOST_OTHERS = "lost the other ranks"

Outbox = asyncio.Queue[ManagerMessage | None]


class RankLost(Exception):
    """A process ended, or lost its connection for good, while something was expected of it."""


class RebuildFailed(Exception):
    """A process could not join the new generation."""


class StepFailed(Exception):
    """A step failed on a process that was to complete it. The process stands and waits."""


def launcher_of(identity: str) -> str:
    """Returns the name of the launcher of this process's pod, which is a part of the process's name."""
    return identity.partition("/")[0]


class RankProcess:
    """Process of a rank. It exists from its first hello to its end, over any number of streams."""

    snapshots: frozenset[int]
    """Steps of the snapshots of the rank that the memory of the process's pod had when the process said hello."""

    def __init__(self, hello: Hello, on_lost: Callable[["RankProcess"], None], lives: Callable[[str], bool]) -> None:
        """Args:
        hello: first message of the process.
        on_lost: called when the process is lost.
        lives: called with the name of a silent process. Returns whether its launcher says that it lives.
        """
        self.rank, self.identity, self.role = hello.rank, hello.process, hello.role
        self.generation = 0
        self.step = hello.step
        self.begun = 0
        """Step that the process executes, or the last completed one."""
        self.collectives = 0
        """Number of collectives begun in this generation."""
        self.votes = False
        """True while the process waits for others in a vote."""
        self.groups: dict[str, int] = {}
        """Number of collectives by group name, without votes."""
        self.leaving: Leaving | None = None
        """Message that the process sent in this generation at the end of its loop. None: it has sent none."""
        self.paused = hello.paused
        self.maintenance: str | None = None
        """Attempt of the maintenance for which the process is paused.

        None: it is not paused, or it is paused for a hot switch.
        """
        self.said_backup_link = hello.backup_link
        self.carriers: tuple[int, ...] = ()
        """Rank that carries each share in the generation of the process. Empty: all ranks are there."""
        self.stepped = 0
        """First step that the process completed in this generation, or under this manager. 0 before that."""
        self.steps_lost = 0
        self.stands = False
        """True if the process waits for another generation, because its step or what follows it failed."""
        self.stranded = False
        """True if the process left its generation but could not join the next one, of which only an earlier manager knows."""
        self.standing: Standing | None = None
        """Position and reason that the process reported when it began to wait for another generation."""
        self.stood_unasked = False
        self.finished = False
        """True if the process has said goodbye."""
        self.dismissed = False
        """True if the process was ordered to leave."""
        self.lost = False
        self._on_lost, self._lives = on_lost, lives
        self._outbox: Outbox | None = None
        self._unanswered: dict[str, ManagerMessage] = {}
        self._expected: dict[str, list[asyncio.Future[RankMessage]]] = {}
        self._loss: asyncio.TimerHandle | None = None

    @property
    def connected(self) -> bool:
        return self._outbox is not None

    @property
    def is_asked(self) -> bool:
        """Returns whether a message to the process is still unanswered."""
        return bool(self._unanswered)

    # Its stream.

    def attach(self, hello: Hello, generation: int) -> Outbox:
        if self._outbox is not None:
            self._outbox.put_nowait(None)
        if self._loss is not None:
            self._loss.cancel()
        self.generation, self.step, self.paused = generation, hello.step, hello.paused
        self.maintenance = hello.maintenance if hello.HasField("maintenance") else None
        self.said_backup_link = hello.backup_link
        self.carriers = tuple(hello.carriers)
        self.snapshots = frozenset(hello.snapshots)
        self.lost = False
        self._outbox = asyncio.Queue()
        for message in self._unanswered.values():
            self._outbox.put_nowait(message)
        return self._outbox

    def detach(self, outbox: Outbox) -> None:
        """Notes that a stream is closed. It turns out soon whether the process has ended too."""
        if self._outbox is outbox:
            self._outbox = None
            self._await_it()

    def _silent(self) -> None:
        if self._lives(self.identity):
            self._await_it()
        else:
            self.lose()

    def _await_it(self) -> None:
        self._loss = asyncio.get_running_loop().call_later(LOST_SECONDS, self._silent)

    def lose(self) -> None:
        """Marks the process as lost."""
        self.lost = True
        for future in self._waiting():
            future.set_exception(RankLost(f"rank {self.rank} is gone"))
        if not self.finished and not self.dismissed:
            self._on_lost(self)

    # Messages to and from the process.

    def ask(self, message: ManagerMessage, answer: str) -> asyncio.Future[RankMessage]:
        """Sends a message until it is answered, also on a later stream. It replaces any earlier unanswered message."""
        self._unanswered = {answer: message}
        self._say(message)
        return self.expect(answer)

    def expect(self, kind: str) -> asyncio.Future[RankMessage]:
        future: asyncio.Future[RankMessage] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        if self.lost:
            future.set_exception(RankLost(f"rank {self.rank} is gone"))
        else:
            self._expected.setdefault(kind, []).append(future)
        return future

    def leave(self, generation: int, reason: str, exit_code: int = 0) -> None:
        self.dismissed = True
        message = ManagerMessage(generation=generation, leave=Leave(exit_code=exit_code, reason=reason))
        self._unanswered = {"leave": message}
        self._say(message)

    def hear(self, kind: str, message: RankMessage, *, stopped: bool) -> None:
        """Notes a message.

        Args:
            kind: field of the message that is set.
            message: message of the current generation.
            stopped: ranks of this generation were asked to stand. The others lose their connections to those that do.
        """
        self._note(kind, message, stopped)
        for answer in (kind, "stepped") if kind == "goodbye" else (kind,):  # a rank that has done all steps completes no other
            self._unanswered.pop(answer, None)
            for future in self._expected.pop(answer, []):
                if not future.done():
                    future.set_result(message)

    def _note(self, kind: str, message: RankMessage, stopped: bool) -> None:
        match kind:
            case "heartbeat":
                beat = message.heartbeat
                self.step, self.begun, self.collectives, self.votes = beat.step, beat.begun, beat.collectives, beat.votes
                self.groups = dict(beat.groups)
            case "leaving":
                self.leaving = message.leaving
            case "paused":
                self.step, self.paused = message.paused.step, True
            case "stepped":
                self.step, self.paused = message.stepped.step, False
                self.stepped, self.steps_lost = message.stepped.step, message.stepped.steps_lost
            case "goodbye":
                self.finished = True
                self.leaving = self.leaving or Leaving(step=message.goodbye.step, total=message.goodbye.total)
            case "standing":
                self.stood_unasked = self.stood_unasked if self.stands else not stopped  # it may say so twice
                self.step, self.paused, self.stands = message.standing.step, False, True
                self.standing = message.standing
                self._fail(StepFailed(f"rank {self.rank}: {message.standing.reason or LOST_OTHERS}"))
            case "failed":
                log.warning("rank join failed", extra={"rank": self.rank, "reason": message.failed.reason})
                self._fail(RebuildFailed(message.failed.reason))

    def completes_no_step(self, error: Exception) -> None:
        """Fails the wait for a step, because another rank of this generation stands."""
        self._unanswered.pop("stepped", None)
        for future in self._expected.pop("stepped", []):
            if not future.done():
                future.set_exception(error)

    def _fail(self, error: Exception) -> None:
        """Fails all expected answers, except the one that reports where the process stands."""
        asked, expected = self._unanswered.get("standing"), self._expected.pop("standing", [])
        self._unanswered.clear()
        for future in self._waiting():
            future.set_exception(error)
        if asked is not None:
            self._unanswered["standing"] = asked
        if expected:
            self._expected["standing"] = expected

    def _waiting(self) -> list[asyncio.Future[RankMessage]]:
        futures = [future for expected in self._expected.values() for future in expected if not future.done()]
        self._expected.clear()
        return futures

    def _say(self, message: ManagerMessage) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(message)


def _retrieve(future: asyncio.Future[RankMessage]) -> None:
    """Marks the future's error as handled, because a procedure that failed by one rank does not read the others' answers."""
    if not future.cancelled():
        future.exception()
