"""The processes of one pod, from their start to the end of the last one. Used by `main`.

The exit code of the pod is that of the first rank that failed; then the others are ended, and killed if they do not react.
"""

import logging
import queue
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType

from rekindle_training.launcher.child import Child

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long a rank may take to end after SIGTERM. A frozen process ignores it, so SIGKILL follows."""

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class _Ended:
    name: str
    code: int


@dataclass(frozen=True)
class _Signalled:
    number: int


@dataclass(frozen=True)
class _GraceOver:
    """Whoever is still there is killed."""


class Pod:
    """Children by name. `run` returns the exit code of the pod."""

    def __init__(self, children: Mapping[str, Child]) -> None:
        self._children = dict(children)
        self._events: queue.SimpleQueue[_Ended | _Signalled | _GraceOver] = queue.SimpleQueue()
        self._code = 0
        self._ending = False

    def run(self) -> int:
        for name, child in self._children.items():
            threading.Thread(target=self._watch, args=(name, child), daemon=True).start()
        with _signals_to(lambda number: self._events.put(_Signalled(number))):
            while self._children:
                self._handle(self._events.get())
        return self._code

    def _watch(self, name: str, child: Child) -> None:
        self._events.put(_Ended(name, child.wait()))

    def _handle(self, event: _Ended | _Signalled | _GraceOver) -> None:
        match event:
            case _Ended(name, code):
                del self._children[name]
                if code and not self._ending:
                    log.error("a rank failed, ending the others", extra={"rank": name, "code": code})
                    self._end(_exit_code(code), signal.SIGTERM)
            case _Signalled(number):
                self._end(128 + number, number)
            case _GraceOver():
                self._send(signal.SIGKILL)

    def _end(self, code: int, number: int) -> None:
        if not self._ending:
            self._ending, self._code = True, code
            timer = threading.Timer(GRACE_SECONDS, self._events.put, [_GraceOver()])
            timer.daemon = True
            timer.start()
        self._send(number)

    def _send(self, number: int) -> None:
        for child in self._children.values():
            child.send_signal(number)


def _exit_code(code: int) -> int:
    """A process that a signal ended counts as shells count it."""
    return code if code > 0 else 128 - code


class _signals_to:  # noqa: N801  # reads as a `with` clause
    """Hands signals to a function while it is open."""

    def __init__(self, receive: Callable[[int], None]) -> None:
        self._receive = receive
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        for number in PASSED_ON:
            self._before[number] = signal.signal(number, self._caught)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # what `signal` returned it takes again

    def _caught(self, number: int, _: FrameType | None) -> None:
        self._receive(number)
