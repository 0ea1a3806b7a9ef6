"""Runs pods as process groups of this machine. Only this module starts, signals and reaps them; called by `pods.py`.

A pod's first process leads its own session and dies with the cluster (PR_SET_PDEATHSIG). Its descendants are found by their
environment in any session; orphans become the cluster's children and are reaped here. If the cluster itself is killed, the
guardian kills what it leaves behind.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rekindle.model.keys import ENV_POD_UID
from simulators.local_cluster import guardian, namespaces

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ENV_CLUSTER = "REKINDLE_LOCAL_CLUSTER"
"""Environment variable that names the local cluster of a process; the guardian finds processes by it. No setting has this name: a
pod may run a process of ours."""

NICE = 10
"""Nice value of a job's pods, so that they yield to the control plane, which has its own machines on a real cluster."""

SWEEP_AGAIN = 0.002
"""Seconds between two scans for processes that a pod left behind; killed processes need a moment to vanish."""

logger = logging.getLogger("cluster")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Place:
    """Network and priority of a pod's processes."""

    network: int | None = None
    """Descriptor of the network namespace. None: that of the cluster."""
    nice: int = NICE


class Processes:
    """Starts, signals and reaps processes. Use it in the main thread: a parent's death signal is tied to the thread that
    forked."""

    def __init__(self, instance: str, ended: Callable[[str, int], None]) -> None:
        """Args:
        instance: a value that no other cluster of this machine has.
        ended: called with a pod's UID and return code (negative: the signal) when none of its processes is left.
        """
        self._mark = f"{ENV_CLUSTER}={instance}"
        self._ended = ended
        self._leaders: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self._pids: dict[str, int] = {}
        self._burials: set[asyncio.Task[None]] = set()
        self._guardian: subprocess.Popen[bytes] | None = None
        self._closing = False
        self._guardian_ended = asyncio.Event()

    def start(self) -> None:
        if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        self._start_guardian()

    def _start_guardian(self) -> None:
        command = [sys.executable, "-I", "-S", guardian.__file__, self._mark]
        quiet = subprocess.DEVNULL
        self._guardian = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)

    async def close(self) -> None:
        """Waits for the pods that are ending; then closes the guardian's stdin and waits for its last scan and its end."""
        self._closing = True
        while self._burials:
            await asyncio.gather(*self._burials)
        if self._guardian and self._guardian.stdin:
            self._guardian.stdin.close()
            await self._guardian_ended.wait()

    def spawn(self, uid: str, command: Sequence[str], environment: Mapping[str, str], log: Path, place: Place = Place()) -> int:
        """Starts a pod's first process.

        Raises:
            OSError: the command cannot be started.
        """
        parent = os.getpid()
        name, _, value = self._mark.partition("=")
        marked = {**environment, name: value, ENV_POD_UID: uid}
        with log.open("ab") as output:
            leader = subprocess.Popen(
                command,
                env=marked,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: _settle(parent, place),  # noqa: PLW1509  (no other thread runs Python here)
            )
        self._leaders[leader.pid] = (uid, leader)
        self._pids[uid] = leader.pid
        return leader.pid

    def running(self, uid: str) -> bool:
        """Returns whether the pod has processes, or had until a moment ago and `ended` was not yet called."""
        return uid in self._pids

    def signal(self, uid: str, number: signal.Signals) -> None:
        """Sends a signal to the pod's process group, if it still exists."""
        pid = self._pids.get(uid)
        if pid in self._leaders:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def _reap(self) -> None:
        """Reaps all children that have ended. A leader's group is killed before its process id can be reused."""
        while (peeked := _peek()) is not None:
            if peeked in self._leaders:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(peeked, signal.SIGKILL)
            _, status = os.waitpid(peeked, 0)
            code = os.waitstatus_to_exitcode(status)
            if peeked in self._leaders:
                uid, leader = self._leaders.pop(peeked)
                leader.returncode = code
                burial = asyncio.create_task(self._bury(uid, code))
                self._burials.add(burial)
                burial.add_done_callback(self._burials.discard)
            elif self._guardian and peeked == self._guardian.pid:
                self._guardian.returncode = code
                self._guardian_is_gone()

    def _guardian_is_gone(self) -> None:
        if self._closing:
            self._guardian_ended.set()
        else:
            logger.warning("guardian lost, starting another")
            self._start_guardian()

    async def _bury(self, uid: str, code: int) -> None:
        """Kills all processes that a pod left behind, in other sessions too: a pod ends with its first process."""
        while guardian.kill_carriers(f"{ENV_POD_UID}={uid}"):  # noqa: ASYNC110  (strangers' deaths send no event)
            await asyncio.sleep(SWEEP_AGAIN)
        del self._pids[uid]
        self._ended(uid, code)


def _peek() -> int | None:
    """Returns the id of a child that has ended and was not reaped yet; None: there is none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def _settle(parent: int, place: Place) -> None:
    """Prepares the child process before its program starts."""
    if place.network is not None:
        namespaces.enter(place.network)
    os.nice(place.nice)
    with contextlib.suppress(OSError):  # a kernel that groups sessions compares these first, and may have none
        Path("/proc/self/autogroup").write_text(str(place.nice))
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
