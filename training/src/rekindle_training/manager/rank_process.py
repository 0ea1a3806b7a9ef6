"""One process of a rank, as the manager sees it: its stream, what it was asked, and whether it is still there."""

import asyncio
import logging
from collections.abc import Callable

from rekindle_wire.training_pb2 import Hello, Leave, Leaving, ManagerMessage, RankMessage, Standing

log = logging.getLogger(__name__)

LOST_SECONDS = 1.0
"""A process whose stream broke and that has not come back by then is lost; a living one comes back within 0.5 s."""

LOST_OTHERS = "lost the other ranks"

Outbox = asyncio.Queue[ManagerMessage | None]


class RankLost(Exception):
    """A process ended, or lost its connection for good, while something was expected of it."""


class RebuildFailed(Exception):
    """A process could not join the new generation."""


class StepFailed(Exception):
    """A step failed on a process that was to complete one; it stands, and waits."""


def launcher_of(identity: str) -> str:
    """Of the pod of this process; a part of its name."""
    return identity.partition("/")[0]


class RankProcess:
    """Known from its first hello to its end, over any number of streams."""

    def __init__(self, hello: Hello, on_lost: Callable[["RankProcess"], None], lives: Callable[[str], bool]) -> None:
        """`lives` is asked when the process is silent, with its name: its launcher may know better."""
        self.rank = hello.rank
        self.identity = hello.process
        self.role = hello.role
        self.generation = 0
        self.step = hello.step
        self.begun = 0
        """The step that it executes, or the last completed one."""
        self.collectives = 0
        """Begun in this generation."""
        self.votes = False
        """It waits for others in a vote."""
        self.groups: dict[str, int] = {}
        """Collectives by their group, without votes."""
        self.leaving: Leaving | None = None
        """What it said in this generation at the end of its loop."""
        self.paused = hello.paused
        self.maintenance: str | None = None
        """For which attempt of one it is paused; None: it is not, or for a hot switch."""
        self.said_backup_link = hello.backup_link
        self.stepped = 0
        """The first step that it completed in this generation, or under this manager; 0 before that."""
        self.steps_lost = 0
        self.stands = False
        """Its step failed, or what follows one: it waits for another generation."""
        self.stranded = False
        """It could not join a generation of which only an earlier manager knows, and has left its own."""
        self.standing: Standing | None = None
        """What it said then."""
        self.stood_unasked = False
        self.finished = False
        """It said goodbye."""
        self.dismissed = False
        """It was told to leave."""
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
        """Something that it has not answered."""
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
        self.lost = False
        self._outbox = asyncio.Queue()
        for message in self._unanswered.values():
            self._outbox.put_nowait(message)
        return self._outbox

    def detach(self, outbox: Outbox) -> None:
        """This stream is over. Whether the process is, turns out soon."""
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
        """The process is no more."""
        self.lost = True
        for future in self._waiting():
            future.set_exception(RankLost(f"rank {self.rank} is gone"))
        if not self.finished and not self.dismissed:
            self._on_lost(self)

    # What is said and heard.

    def ask(self, message: ManagerMessage, answer: str) -> asyncio.Future[RankMessage]:
        """Says something until it was answered, also on a later stream; it supersedes what was asked before."""
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

    def hear(self, kind: str, message: RankMessage) -> None:
        self._note(kind, message)
        for answer in (kind, "stepped") if kind == "goodbye" else (kind,):  # who has done all steps completes no further one
            self._unanswered.pop(answer, None)
            for future in self._expected.pop(answer, []):
                if not future.done():
                    future.set_result(message)

    def _note(self, kind: str, message: RankMessage) -> None:
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
                asked = "standing" in self._unanswered
                self.stood_unasked = self.stood_unasked if self.stands else not asked  # it may say so twice
                self.step, self.paused, self.stands = message.standing.step, False, True
                self.standing = message.standing
                self._fail(StepFailed(f"rank {self.rank}: {message.standing.reason or LOST_OTHERS}"))
            case "failed":
                log.warning("a rank could not join", extra={"rank": self.rank, "reason": message.failed.reason})
                self._fail(RebuildFailed(message.failed.reason))

    def completes_no_step(self, error: Exception) -> None:
        """Another rank of its generation stands, so that no step is completed any more."""
        self._unanswered.pop("stepped", None)
        for future in self._expected.pop("stepped", []):
            if not future.done():
                future.set_exception(error)

    def _fail(self, error: Exception) -> None:
        """Whatever it fails in, it can still say where it stands."""
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
    """A procedure that failed because of one rank does not look at the others any more."""
    if not future.cancelled():
        future.exception()
