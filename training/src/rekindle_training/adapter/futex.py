"""Waits for a word of shared memory to change, and wakes the processes that wait for it, by a system call of Linux."""

import ctypes
import errno
import os
import platform
from typing import Any

_NUMBER = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
"""Number of the system call."""
IS_KNOWN = _NUMBER is not None
"""True if this module can be used on this machine."""

_WAIT, _WAKE = 0, 1
_ALL = 2**31 - 1
_ENDS_THE_WAIT = frozenset({errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_ARGUMENTS = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)


def _system_call(library: Any) -> Any:
    library.syscall.argtypes, library.syscall.restype = _ARGUMENTS, ctypes.c_long
    return library.syscall


_wait = _system_call(ctypes.CDLL(None, use_errno=True))
_wake = _system_call(ctypes.PyDLL(None))  # it does not block: the interpreter's lock is kept


def wait(address: int, seen: int, seconds: float) -> None:
    """Waits until a process wakes the word at `address`. Returns at once if its value is not `seen`, and may return early."""
    limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    if _wait(_NUMBER, address, _WAIT, seen, ctypes.addressof(limit), None, 0) and ctypes.get_errno() not in _ENDS_THE_WAIT:
        raise OSError(ctypes.get_errno(), f"futex: {os.strerror(ctypes.get_errno())}")


def wake(address: int) -> None:
    """Wakes all threads of all processes that wait for the word at `address`."""
    _wake(_NUMBER, address, _WAKE, _ALL, None, None, 0)
