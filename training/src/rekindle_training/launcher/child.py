"""Creates processes by fork. The kernel ends them when their parent ends, for whatever reason.

Used by the zygote only, and to make the zygote itself: a process that forks has only one thread.
"""

import atexit
import contextlib
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rekindle_training import logs
from rekindle_training.launcher import linux

CANNOT_START = 127
"""Exit code for a program that could not be executed, as in shells."""


Handlers = Mapping[int, Any]
"""Signal handlers of a process, by signal number, as `signal.signal` takes them."""


def fork(run: Callable[[], int], handlers: Handlers) -> int:
    """Forks a process that calls a function and ends with the exit code that it returns. Returns the pid.

    A signal that arrives before the process has set its handlers is held back until then.
    """
    maker = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    code = 1
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        linux.die_with(maker)
        code = run()
    except BaseException:  # noqa: BLE001  # this is the top of a process
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def redirect(redirects: Mapping[int, Path]) -> None:
    """Redirects descriptors of this process to the ends of files. The process ends if that fails."""
    for descriptor, path in redirects.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            logs.say(f"rekindle-train: cannot write to {path}: {error.strerror}")
            os._exit(CANNOT_START)
        os.dup2(file, descriptor)
        os.close(file)


def execute(command: Sequence[str], environment: Mapping[str, str], keep: Sequence[int]) -> int:
    """Replaces this process by a program; descriptors in `keep` stay open. Returns only if the program cannot be executed."""
    for descriptor in keep:
        os.set_inheritable(descriptor, True)
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606  # the user's own command
    except OSError as error:
        logs.say(f"rekindle-train: cannot start {command[0]}: {error.strerror}")
    return CANNOT_START


def interpret(command: Sequence[str], *, as_module: bool) -> int:
    """Runs a command as `python script.py` or `python -m module` would, with the modules that this process has already loaded."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # otherwise all that are forked draw the same; `random` sees to it itself
    sys.argv = list(command)
    logs.forget()
    run: Callable[[], object]
    if as_module:
        sys.path.insert(0, str(Path.cwd()))
        run = lambda: runpy.run_module(command[0], run_name="__main__", alter_sys=True)  # noqa: E731
    else:
        sys.path.insert(0, str(Path(command[0]).resolve().parent))
        run = lambda: runpy.run_path(command[0], run_name="__main__")  # noqa: E731
    try:
        run()
    except SystemExit as end:
        return _exit_code(end)
    except BaseException as error:  # noqa: BLE001  # this is the top of a process
        traceback = _of_the_script(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        _finish()
    return 0


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the frames that ran the script, as the interpreter shows it."""
    ours = (__file__, runpy.run_path.__code__.co_filename)
    inner = traceback
    while inner is not None and inner.tb_frame.f_code.co_filename in ours:
        inner = inner.tb_next
    return inner or traceback


def _finish() -> None:
    """Does the work at the interpreter's end that `os._exit` leaves out: waits for threads and finishes executors' work."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # it has no other name
    atexit._run_exitfuncs()  # noqa: SLF001


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
    return 1
