"""Runs the training script in advance, in a process that has no rank yet, as far as the script gets without its rank.

If the script or the session reads the rank from the environment, the process waits there until it is given one. It also waits
before it makes another process, which would inherit that environment. So every value that is read is right, and all work
before it (imports, often the model) is done in advance.
"""

import _posixsubprocess
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from rekindle_training import last_words, names, titles
from rekindle_training.launcher import child
from rekindle_training.launcher.rank_environment import OF_ONE_POD, OF_ONE_RANK, Place

MAKES_A_PROCESS = frozenset({"os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"})
"""Events of `sys.addaudithook` that make a process."""


paid_ahead: list[Callable[[], None]] = []
"""Functions that every rank calls once, whichever rank it is, and that a spare calls before it waits.

Filled by the code that loads torch.
"""


def wait_for_rank(binding: Connection, command: Sequence[str]) -> None:
    """Makes this process a spare.

    Args:
        binding: gets a message when the spare waits, and delivers the rank's `Place`. If it is closed, the process ends normally.
        command: command that the spare runs.
    """
    global _spare  # of one process, as its environment is
    _spare = _Spare(binding, command)
    os.environ.__class__ = os.environb.__class__ = _Unbound
    signal.signal(signal.SIGINT, _spare.interrupted)
    sys.addaudithook(lambda event, _: _spare.bind() if event in MAKES_A_PROCESS else None)
    make = _posixsubprocess.fork_exec  # which `multiprocessing` calls, and which says nothing to hooks

    @wraps(make)
    def bound(*args: Any) -> Any:
        _spare.bind()
        return make(*args)

    _posixsubprocess.fork_exec = bound


_Environ: Any = os.environ.__class__  # the standard library gives it no public name


class _Spare:
    def __init__(self, binding: Connection, command: Sequence[str]) -> None:
        self._binding, self._command = binding, command
        self._lock = threading.RLock()  # a signal's handler may ask as well

    def bind(self) -> None:
        with self._lock:
            if not self._is_bound():
                for pay in paid_ahead:
                    pay()
            if self._is_bound():  # by what asked meanwhile, too
                return
            with contextlib.suppress(OSError):  # it was given a rank before it needed one
                self._binding.send_bytes(b"waits")
            try:
                place: Place = self._binding.recv()
            except EOFError:
                if self._is_bound():  # by a handler, meanwhile
                    return
                raise SystemExit(0) from None
            child.redirect(place.redirects)
            os.environ.update(place.environment)
            os.environ.__class__ = os.environb.__class__ = _Environ
            last_words.watch()
            titles.show_rank(os.environ[names.RANK], self._command)

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        """Ignores SIGINT while the process has no rank: a terminal's Ctrl-C goes to all processes, and a spare has nothing to
        report.
        """
        if self._is_bound():
            signal.default_int_handler(number, frame)

    def _is_bound(self) -> bool:
        return not isinstance(os.environ, _Unbound)


_spare: _Spare


class _Unbound(_Environ):  # type: ignore[misc]
    """Environment of a spare without a rank, in its form for text or for bytes."""

    def __getitem__(self, key: Any) -> Any:
        name = os.fsdecode(key) if isinstance(key, str | bytes) else key
        if name in OF_ONE_RANK or (name in OF_ONE_POD and self.encodekey(key) not in self._data):
            _spare.bind()
        return _Environ.__getitem__(self, key)  # it may have become one of these

    def __len__(self) -> int:
        _spare.bind()
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        _spare.bind()
        yield from _Environ.__iter__(self)
