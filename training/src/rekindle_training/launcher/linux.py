"""Linux system calls for processes whose parent ends: they are ended too, or get another parent, which can end them.

A process that adopts orphans becomes the parent of all processes that its descendants leave behind. The zygote does so, and
so does each process that it makes. Processes that a rank leaves behind belong to the rank while it lives, and then to the
zygote.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Requests that this process gets the signal when its parent ends.

    If the parent has already ended, this process ends now.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def adopt_orphans() -> None:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Returns the processes whose parent is this one."""
    try:
        return {int(child) for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()}
    except (FileNotFoundError, ProcessLookupError):  # a kernel without these lists, or a thread that has ended
        return {int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _parent(entry) == os.getpid()}


def _parent(process: Path) -> int:
    with contextlib.suppress(OSError):  # it has ended
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def end_children(besides: Collection[int] = ()) -> None:
    """Kills all children of this process, and the processes that they leave to it. Returns when none is left.

    Processes that it may not kill are left alone, for example those that a script has started with `sudo`.

    Args:
        besides: children that are left alone.
    """
    spared = set(besides)
    while left := children() - spared:
        for child in left:
            try:
                os.kill(child, signal.SIGKILL)
            except PermissionError:
                spared.add(child)
        for child in left - spared:
            os.waitpid(child, 0)
