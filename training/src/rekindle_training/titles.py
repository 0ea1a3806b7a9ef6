"""Command lines of the pod's processes, by which `ps` shows their roles: `rekindle-train: rank 3 train.py`.

`ps` reads the memory where the kernel put the command line. The process may overwrite that memory. Its size was decided when the
program was started, and forked processes have a copy.
"""

import contextlib
import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_ARG_START, _ARG_END = 45, 46
"""Numbers of the fields of /proc/PID/stat after the name of the program."""


def show(role: str, command: Sequence[str] = ()) -> None:
    """Sets the command line of this process, as far as there is space. Does nothing if the memory's place is unknown.

    Args:
        role: what the process is, such as `rank 3`.
        command: the training script and its arguments.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        start, size = _place()
        title = " ".join([f"rekindle-train: {role}", *command]).encode(errors="surrogateescape")[: size - 1]
        ctypes.memmove(start, title.ljust(size, b"\0"), size)


def show_rank(rank: str, command: Sequence[str]) -> None:
    """Shows this process as a rank in `ps`, and each process that it forks, such as a data loader's, as a worker of the rank."""
    show(f"rank {rank}", command)
    os.register_at_fork(after_in_child=lambda: show(f"rank {rank} worker", command))


@cache
def _place() -> tuple[int, int]:
    """Returns address and size of the command line in memory.

    Raises:
        OSError, ValueError, IndexError: it is not known, or not memory that can be written.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    if not 0 < start < end or not _is_writable(start, end):
        raise ValueError(f"{start:x}-{end:x} is no memory of this process's")
    return start, end - start


def _is_writable(start: int, end: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        low, high = (int(address, 16) for address in span.split("-"))
        if low <= start and end <= high:
            return rights.startswith("rw")
    return False
