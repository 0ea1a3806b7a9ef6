"""Child processes that cannot outlive their launcher: the kernel kills them when it dies, however it dies."""

import atexit
import contextlib
import ctypes
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

NO_REDIRECTS: Mapping[int, Path] = MappingProxyType({})


class Child(Protocol):
    """What the launcher needs of a process, spawned or forked."""

    pid: int

    def wait(self) -> int:
        """Blocks until it ends; the exit code, negative for a signal."""

    def send_signal(self, number: int, /) -> None: ...


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    redirects: Mapping[int, Path] = NO_REDIRECTS,
    keep: Sequence[int] = (),
) -> Child:
    """A fresh program. `redirects` maps file descriptors to files; those in `keep` stay open."""
    launcher = os.getpid()

    def prepare() -> None:
        _die_with(launcher)
        _redirect(redirects)

    return subprocess.Popen(command, env=dict(environment), pass_fds=keep, preexec_fn=prepare)  # noqa: PLW1509  # no thread runs yet


def fork(command: Sequence[str], as_module: bool, environment: Mapping[str, str], redirects: Mapping[int, Path]) -> Child:
    """A copy of the launcher that runs a Python script; whatever the launcher has imported is there already."""
    launcher = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return _Forked(pid)
    code = 1
    try:
        _die_with(launcher)
        _redirect(redirects)
        os.environ.clear()
        os.environ.update(environment)
        code = _run(command, as_module)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class _Forked:
    """The part of `subprocess.Popen` that the launcher uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lock = threading.Lock()
        self._ended = False

    def wait(self) -> int:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._ended = True
            _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def send_signal(self, number: int, /) -> None:
        with self._lock:
            if not self._ended:
                os.kill(self.pid, number)


def _die_with(parent: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _redirect(redirects: Mapping[int, Path]) -> None:
    for descriptor, path in redirects.items():
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)


def _run(command: Sequence[str], as_module: bool) -> int:
    """As `python script.py` and `python -m module` would."""
    sys.argv = list(command)
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
    except BaseException:  # noqa: BLE001  # this is the top of a process
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001  # `os._exit` follows, which runs none of them
    return 0


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
    return 1
