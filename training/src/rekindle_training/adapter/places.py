"""Position of the script, as seen from the session, and the collectives that the script may make there.

A collective that a recovery cannot repeat is refused when the script first makes it, with its line, and not at the first fault.
Collectives are noticed in torch's functions that pass them to a process group. Wrappers such as DistributedDataParallel call
theirs in C++, so they are not noticed.
"""

import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist

COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "scatter", "gather", "barrier", "monitored_barrier"),
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base"),
    *("send", "recv", "recv_anysource"),
)
"""Methods of a process group that communicate with other ranks."""

EARLY, LATE = "early-collectives", "late-collectives"
DRAWS, UNREPEATABLE, CARRIED = "late-draws", "unrepeatable", "carried-variables"
ACCEPTABLE = (EARLY, LATE, DRAWS, UNREPEATABLE, CARRIED)
"""Words for rules that a script may break on its own account."""


class Refused(RuntimeError):
    """The script breaks a rule, so that a recovery would not be exact. No repair helps."""


class Place(Enum):
    """Part of the script that is being executed."""

    ELSEWHERE = "elsewhere"
    """The session's own code, and all before and after the session: nothing is refused."""
    ALONE = "alone"
    """The process replaces another one, and is between the session and its loop."""
    BEFORE = "before the loop"
    BETWEEN = "between two steps"
    IN_STEP = "in a step"
    UPDATED = "after the update"


class Places:
    """Place of one rank's training loop. Other threads of the process are not looked at, but for those of backward passes."""

    def __init__(self) -> None:
        self.now = Place.ELSEWHERE
        self._accepted: Collection[str] | None = None
        """Words of `session(accept=...)`. None: the session has not begun."""
        self._early = ""
        """Message about a collective before the session. Empty: there was none."""
        self.guarded = False
        """True if the loop has a `with step:`."""
        self._unguarded = ""
        """Message about a collective between two steps, before it is known whether the loop has a `with step:`."""
        self.refuse: Callable[[str], None] = _raise
        self.in_step: Callable[[object], None] | None = None
        """Called with the process group of each collective that the script makes in a step. None: it does not matter."""
        self._loop = threading.get_ident()
        self.of_threads: set[str] = set()
        """Names of the groups to which other threads of this process have handed collectives, as an asynchronous save does."""

    def watch(self) -> None:
        """Wraps torch's functions that pass collectives to a process group."""
        for name in COLLECTIVES:
            if (method := getattr(dist.ProcessGroup, name, None)) is not None:
                setattr(dist.ProcessGroup, name, self._watched(name.strip("_"), method))

    def begin_alone(self, *, replaces: bool) -> None:
        """Notes that the script begins to build what it trains. A process that replaces another one is alone there."""
        self.now = Place.ALONE if replaces else Place.BEFORE

    def accept(self, accepted: Collection[str]) -> None:
        """Stores the rules that the script may break. Called by the session, whose own code follows."""
        self._accepted, self.now = accepted, Place.ELSEWHERE
        if self._early and EARLY not in accepted:
            self.refuse(self._early)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Marks a block in which the session itself communicates with other ranks."""
        before, self.now = self.now, Place.ELSEWHERE
        try:
            yield
        finally:
            self.now = before

    def enter_step(self) -> None:
        self.guarded, self.now = True, Place.IN_STEP
        if self._unguarded:
            self.refuse(self._unguarded)

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def watched(*args: Any, **keywords: Any) -> Any:
            if threading.get_ident() != self._loop and not _is_in_pass():
                self.of_threads.add(args[0].group_name)
            elif self.now is Place.IN_STEP:
                if self.in_step is not None:
                    self.in_step(args[0])
            elif self.now is not Place.ELSEWHERE:
                self._notice(name)
            return method(*args, **keywords)

        return watched

    def _notice(self, name: str) -> None:
        where = f"{name} at {line_of_script()}"
        match self.now:
            case Place.ALONE:
                raise Refused(
                    f"{where}: this process replaces another one and is alone before its loop, so no rank answers; make "
                    "collectives inside `with step:`"
                )
            case Place.BEFORE if not self.accepts(EARLY):
                self._before(
                    f"{where} speaks to other ranks before the loop, where a replacement is alone; compute it on each rank, or "
                    f'make the collective inside `with step:`. session(accept=["{EARLY}"]) accepts that the script leaves it out '
                    "where `training.generation` is not 1"
                )
            case Place.UPDATED if not self.accepts(LATE):
                self.refuse(
                    f"{where} speaks to other ranks after the update, where a step cannot be repeated; make it before "
                    "`optimizer.step()`, register it by training.every(steps, function), or keep copies: "
                    f'session(repeat_updates=True). session(accept=["{LATE}"]) accepts a restart from the checkpoint'
                )
            case Place.BETWEEN if not self.accepts(LATE):
                self._between(
                    f"{where} speaks to other ranks outside `with step:`, where a failure ends the process; make it inside, or "
                    f'register it by training.every(steps, function). session(accept=["{LATE}"]) accepts that the process ends'
                )

    def accepts(self, what: str) -> bool:
        return what in (self._accepted or ())

    def _before(self, words: str) -> None:
        if self._accepted is not None:
            self.refuse(words)
        self._early = self._early or words

    def _between(self, words: str) -> None:
        if self.guarded:
            self.refuse(words)
        self._unguarded = self._unguarded or words


def _is_in_pass() -> bool:
    """Returns whether this thread is in a backward pass. For an accelerator, torch has a thread for it, and the loop waits."""
    return torch._C._current_graph_task_id() != -1


def check_accepted(accept: Collection[str]) -> None:
    """Raises ValueError or TypeError where something else is to be accepted than what there is."""
    if isinstance(accept, str) or not all(isinstance(word, str) for word in accept):
        raise TypeError(f"session(accept): {accept!r} is not accepted; give a list of {', '.join(ACCEPTABLE)}")
    if unknown := sorted(set(accept) - set(ACCEPTABLE)):
        raise ValueError(f"session(accept): {', '.join(unknown)} is not known; accepted are {', '.join(ACCEPTABLE)}")


_PACKAGE = Path(__file__).parents[1]
_NOT_THE_SCRIPT = (str(Path(torch.__file__).parent), str(_PACKAGE))
_EXAMPLES = str(_PACKAGE / "examples")


def line_of_script() -> str:
    """Returns `train.py:31`, of the innermost frame that belongs to neither torch nor this package. Where that is a library's,
    the line of the script that has called it follows: `ddp.py:311, called at train.py:40`."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1)) if _is_outside(frame.f_code.co_filename)]
    if not frames:
        return "an unknown line"
    own = next((frame for frame in frames if not _is_of_library(frame.f_code.co_filename)), frames[0])
    return _line(frames[0]) if own is frames[0] else f"{_line(frames[0])}, called at {_line(own)}"


def frames_of_script() -> list[FrameType]:
    """Returns the frames of the script, the innermost first, without those of libraries."""
    files = [(frame, frame.f_code.co_filename) for frame, _ in traceback.walk_stack(sys._getframe(1))]
    return [frame for frame, file in files if is_of_script(file)]


def is_of_script(file: str) -> bool:
    return _is_outside(file) and not _is_of_library(file)


def of_script(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of torch and of this package; all of it where nothing else is left."""
    kept = [entry for entry in _entries(trace) if _is_outside(entry.tb_frame.f_code.co_filename)]
    found: TracebackType | None = None
    for entry in reversed(kept):
        found = TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found or trace


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _line(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_outside(file: str) -> bool:
    """Returns whether a file belongs to neither torch nor this package.

    Files that wrap calls, such as a context manager, do not count.
    """
    return file.startswith(_EXAMPLES) or not (file.startswith((*_NOT_THE_SCRIPT, "<")) or file == _CONTEXTLIB)


def _is_of_library(file: str) -> bool:
    """Returns whether a file was installed: as part of a package, of Python, or as a command."""
    installed = any(folder in Path(file).parts for folder in ("site-packages", "dist-packages"))
    return not file.startswith(_EXAMPLES) and (installed or file.startswith(_INSTALLED))


_INSTALLED = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "scripts"))
_CONTEXTLIB = contextmanager.__code__.co_filename


def _raise(words: str) -> None:
    raise Refused(words)
