"""Ends processes that use Temporal's client safely.

A thread of Temporal's core that has delivered an answer needs the interpreter's lock once more. CPython aborts or crashes if that
happens while the interpreter shuts down: in 5 to 20 of 100 short programs, whatever they had done. Both functions can be removed
with CPython 3.14, which lets such a thread hang, or when temporalio waits for its threads.
"""

import atexit
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import NoReturn

FLUSH_FAILED = 120
"""Exit code when buffered output could not be written; the same as the interpreter's."""


PATIENCE = 5.0
"""Maximum seconds by which the exit of a third-party program is delayed. An answer takes milliseconds."""


def run_and_end(main: Callable[[], object]) -> NoReturn:
    """Runs `main` and ends our own process with the interpreter's exit code, without shutting the interpreter down.

    A thread may still be about to deliver the result of a cancelled call, and the shutdown could crash it.
    """
    code = 1
    try:
        code = _exit_code_of(main)
        atexit._run_exitfuncs()  # noqa: SLF001  # `os._exit` runs none of them
        code = _flushed() or code
    finally:
        os._exit(code)


@cache
def let_answers_arrive() -> None:
    """Delays the exit of third-party programs until threads that deliver an answer have ended.

    Such a thread wakes the event loop, loses the interpreter lock while it does so, and lives until it has the lock back.
    """
    atexit.register(_wait_for_answers)


def _wait_for_answers() -> None:
    """Waits until no thread delivers an answer, at most `PATIENCE` seconds.

    It polls, as these threads are not Python's own and cannot be joined.
    """
    latest = time.monotonic() + PATIENCE
    while time.monotonic() < latest and any(map(_brings_an_answer, sys._current_frames().values())):  # noqa: SLF001
        time.sleep(0.001)


def _brings_an_answer(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_write_to_self" and frame.f_globals.get("__name__", "").startswith("asyncio.")


def _exit_code_of(main: Callable[[], object]) -> int:
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
        return 1
    except BaseException:  # noqa: BLE001  # this is the top of a process
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _flushed() -> int:
    code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # ValueError: it is closed
            code = FLUSH_FAILED
    return code
