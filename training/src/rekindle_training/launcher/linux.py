"""What Linux does about processes whose parent ends: it ends them, or gives them another parent, which can end them.

Who adopts orphans is the parent of whatever its descendants leave behind. The zygote does, and so does each process that it
makes: what a rank leaves behind while it lives is its own, and comes to the zygote when the rank ends.
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
    """This process gets that signal when its parent ends; it ends now where that has happened."""
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
    """Kills what this process has made or adopted, and what they leave to it; returns when none of them is left, but for those
    that it may not kill, as where a script has started them with `sudo`.

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
