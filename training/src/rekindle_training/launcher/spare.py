"""A process that runs the training script ahead of its need, as far as the script gets without knowing its rank.

Whoever reads the rank from the environment, in the script or in the session, waits there until the process is given one. So what
it reads is always right, and all that comes before it (imports, often the model) is paid in advance.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rekindle_training import names
from rekindle_training.launcher import child
from rekindle_training.launcher.rank_environment import OF_ONE_RANK, Place

NOT_NEEDED = 0
"""Exit code of a spare that nobody needed."""


def wait_for_rank(binding: Connection) -> None:
    """From here on this process is a spare. `binding` is told when it waits, and brings the rank's `Place`.

    Raises, where the rank is read in a process that a spare has forked:
        RuntimeError: it will not have one.
    """
    global _spare  # of one process, as its environment is
    _spare = _Spare(binding, os.getpid())
    os.environ.__class__ = _Unbound


_Environ: Any = os.environ.__class__  # the standard library gives it no public name


@dataclass
class _Spare:
    binding: Connection
    pid: int

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def bind(self) -> None:
        if os.getpid() != self.pid:
            raise RuntimeError(f"a process that a spare has started reads {names.RANK}, which the spare does not have yet")
        with self._lock:
            if not isinstance(os.environ, _Unbound):
                return
            with contextlib.suppress(OSError):  # it was given a rank before it needed one
                self.binding.send_bytes(b"waits")
            try:
                place: Place = self.binding.recv()
            except EOFError:
                os._exit(NOT_NEEDED)
            child.redirect(place.redirects)
            os.environ.__class__ = _Environ
            os.environ.update(place.environment)


_spare: _Spare | None = None


class _Unbound(_Environ):  # type: ignore[misc]
    def __getitem__(self, key: str) -> str:
        if key in OF_ONE_RANK:
            _bind()
        return os.environ[key] if key in OF_ONE_RANK else super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        _bind()
        return iter(os.environ)


def _bind() -> None:
    assert _spare is not None
    _spare.bind()
