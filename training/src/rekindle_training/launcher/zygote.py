"""Process of a pod that makes all other processes. It never has a second thread, so that a fork copies a complete process.

The launcher forks it before anything else and speaks to it through a pair of sockets. All processes of the pod are its
children: it learns of their ends and stops, and the kernel ends them with it. Processes that a rank has started are ended
here if the rank was killed or has failed. All processes are ended when the launcher ends.
"""

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from rekindle_training import last_words, logs, names, titles
from rekindle_training.launcher import child, linux, spare
from rekindle_training.launcher.child import CANNOT_START
from rekindle_training.launcher.rank_environment import BEFORE_TORCH, Place

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the launcher passes on. A terminal sends them to all processes."""
SPARE_SECONDS = 2.0
"""Seconds that a spare has to end if it was not needed."""


@dataclass(frozen=True)
class Program:
    command: tuple[str, ...]
    interpreted: bool = False
    """True if the command is a script or module, which runs with the modules that the zygote has loaded.

    Otherwise it is executed.
    """
    as_module: bool = False
    own_group: bool = False
    """True if the command may create processes. They get its signals and end with it."""


@dataclass(frozen=True)
class Start:
    """Starts a process with this name."""

    name: str
    program: Program
    environment: Mapping[str, str]
    redirects: Mapping[int, Path] = field(default_factory=dict)
    keep: Sequence[int] = ()
    is_spare: bool = False
    """True if the process waits for a rank as soon as it needs one."""
    interruptible: bool = True
    """False if only the launcher ends the process. SIGINT of a terminal, which goes to all processes, is then ignored."""


@dataclass(frozen=True)
class Bind:
    """Makes a spare a rank, with another name."""

    spare: str
    name: str
    place: Place


@dataclass(frozen=True)
class Signal:
    name: str
    number: int


@dataclass(frozen=True)
class End:
    """Ends all processes. If `well` is true, processes that successful ranks have left behind are kept."""

    well: bool = False


Command = Start | Bind | Signal | End


@dataclass(frozen=True)
class Ended:
    name: str
    code: int
    """Exit code. Negative: the number of the signal that killed the process."""


@dataclass(frozen=True)
class Stopped:
    """A process was stopped, for example by SIGSTOP, or continued."""

    name: str
    stopped: bool


@dataclass(frozen=True)
class Waits:
    """A spare waits: it has reached the point where it needs a rank."""

    name: str


Event = Ended | Stopped | Waits


def start(*, preload: bool, signals: Collection[int] = PASSED_ON) -> tuple[int, Connection]:
    """Forks a zygote. Returns its pid and the connection for `Command`s and `Event`s. When it ends, all its children end.

    Args:
        preload: True if it loads torch, so that its children do not have to.
        signals: signals that the launcher passes on.
    """
    mine, its = Pipe()
    usual = usual_handlers(signals)

    def run() -> int:
        mine.close()
        return _Zygote(its, usual).run(preload=preload)

    pid = child.fork(run, dict.fromkeys(usual, signal.SIG_IGN))
    its.close()
    return pid, mine


def usual_handlers(signals: Collection[int]) -> child.Handlers:
    """Returns the handlers of these signals in a Python process that was started in the same way as this one."""
    python: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    ignored = {number for number in signals if signal.getsignal(number) is signal.SIG_IGN}
    return {number: signal.SIG_IGN if number in ignored else python.get(number, signal.SIG_DFL) for number in signals}


def start_another(*, preload: bool, signals: Collection[int], inherited: Collection[int]) -> tuple[int, Connection]:
    """Starts a zygote as a separate program. It replaces `start` in a launcher that has other threads and cannot fork.

    Args:
        inherited: descriptors that its children need.
    """
    mine, its = Pipe()
    descriptors = (its.fileno(), *inherited)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    said = f"{descriptors}, {os.getpid()}, {[int(number) for number in signals]}, preload={preload}"
    program = f"from rekindle_training.launcher import zygote; zygote.serve({said})"
    try:
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], os.environ, setsigmask=signals)
    finally:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
    its.close()
    return pid, mine


def serve(descriptors: Sequence[int], launcher: int, signals: Collection[int], *, preload: bool) -> None:
    """Runs a zygote in that program. The first descriptor is the connection to the launcher."""
    usual = usual_handlers(signals)
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    linux.die_with(launcher)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    os._exit(_Zygote(Connection(descriptors[0]), usual).run(preload=preload))


@dataclass
class _Zygote:
    launcher: Connection
    usual: child.Handlers = field(default_factory=lambda: usual_handlers(PASSED_ON))
    """Handlers that its children get for the signals that the zygote itself ignores."""
    _names: dict[int, str] = field(default_factory=dict)
    """Names of its children, by pid."""
    _spares: dict[str, Connection] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    """Names of the spares that wait for a rank."""
    _groups: set[int] = field(default_factory=set)
    """Pids of the children that lead a process group."""
    _orphans: set[int] = field(default_factory=set)
    """Pids of processes that a failed rank left behind, and that were killed."""
    _ends: End | None = None

    def run(self, *, preload: bool) -> int:
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)
        self._inner = (woken, wake)
        linux.adopt_orphans()
        titles.show("zygote")
        launcher = os.getppid()
        if preload:
            load_ahead()
        linux.die_with(launcher, signal.SIGCONT)  # not before it has ended all others; the end of the way there wakes it
        with contextlib.suppress(EOFError, OSError):  # the launcher has ended
            while self._ends is None:
                for ready in wait([self.launcher, woken, *self._spares.values()]):
                    self._handle(ready)
            self._end_spares()
        for group in self._groups:
            self._signal(group, signal.SIGKILL)
        well = self._ends is not None and self._ends.well
        linux.end_children(besides=linux.children() - self._names.keys() if well else ())
        return 0

    def _handle(self, ready: object) -> None:
        if ready is self.launcher:
            self._obey(self.launcher.recv())
        elif isinstance(ready, Connection):
            self._hear(ready)
        else:
            with contextlib.suppress(BlockingIOError):
                os.read(self._inner[0], 4096)
            self._look_after_children()

    # What the launcher wants.

    def _obey(self, command: Command) -> None:
        match command:
            case Start():
                self._start(command)
            case Bind():
                self._bind(command)
            case Signal(name, number):
                for pid in [pid for pid, known in self._names.items() if known == name]:
                    self._signal(pid, number)
            case End():
                self._ends = command

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
            if pid in self._groups:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)

    def _bind(self, command: Bind) -> None:
        if (binding := self._spares.pop(command.spare, None)) is None:  # it has ended in this moment
            self.launcher.send(Ended(command.name, CANNOT_START))
            return
        self._names = {pid: command.name if known == command.spare else known for pid, known in self._names.items()}
        with contextlib.suppress(OSError):  # it has ended, which is reported under its new name
            binding.send(command.place)
        binding.close()

    def _start(self, command: Start) -> None:
        binding = its = None
        if command.is_spare:
            binding, its = Pipe()
        try:
            handlers = {**self.usual, signal.SIGCHLD: signal.SIG_DFL}
            if not command.interruptible:
                handlers[signal.SIGINT] = signal.SIG_IGN
            pid = child.fork(partial(self._become, command, binding, its), handlers)
        except OSError as error:  # no memory, or too many processes
            logs.say(f"rekindle-train: cannot start {command.name}: {error.strerror}")
            self.launcher.send(Ended(command.name, CANNOT_START))
            return
        self._names[pid] = command.name
        if command.program.own_group:
            self._groups.add(pid)
            with contextlib.suppress(OSError):  # it has done so itself
                os.setpgid(pid, pid)
        if binding is not None and its is not None:
            its.close()
            self._spares[command.name] = binding

    # In the child.

    def _become(self, command: Start, zygotes: Connection | None, binding: Connection | None) -> int:
        signal.set_wakeup_fd(-1)
        for descriptor in self._inner:
            os.close(descriptor)
        for connection in (self.launcher, *self._spares.values(), *([zygotes] if zygotes else [])):
            connection.close()
        linux.adopt_orphans()
        child.redirect(command.redirects)
        program = command.program
        if program.own_group:
            os.setpgid(0, 0)
        if not program.interpreted:
            return child.execute(program.command, command.environment, command.keep)
        os.environ.clear()
        os.environ.update(command.environment)
        if binding is not None:
            titles.show(command.name.replace("-", " "), program.command)
            spare.wait_for_rank(binding, program.command)
        elif names.RANK in command.environment:
            last_words.watch()
            titles.show_rank(command.environment[names.RANK], program.command)
        else:
            titles.show(command.name)
        return child.interpret(program.command, as_module=program.as_module)

    # What becomes of the children.

    def _end_spares(self) -> None:
        """Ends all spares.

        Those that wait end by themselves, as the script would. Those that still load get SIGTERM, as ranks do.
        """
        ending = {pid: self._spares[name] for pid, name in self._names.items() if name in self._spares}
        for pid, binding in ending.items():
            binding.close()
            if self._names[pid] not in self._waiting:
                os.kill(pid, signal.SIGTERM)
        over = time.monotonic() + SPARE_SECONDS
        while ending and (left := over - time.monotonic()) > 0:
            wait([self._inner[0]], left)
            with contextlib.suppress(BlockingIOError):
                os.read(self._inner[0], 4096)
            for pid in [pid for pid in ending if os.waitpid(pid, os.WNOHANG)[0]]:
                del ending[pid], self._names[pid]

    def _look_after_children(self) -> None:
        leave_orphans = False
        with contextlib.suppress(ChildProcessError):  # there is none any more
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG)) is not None:
                if found.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
                    code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                    leave_orphans |= self._ended(found.si_pid, code)
                elif found.si_pid in self._names:
                    self.launcher.send(Stopped(self._names[found.si_pid], found.si_code == os.CLD_STOPPED))
        if leave_orphans:
            self._end_orphans()

    def _ended(self, pid: int, code: int) -> bool:
        """Notes the end of a process. Returns whether the processes that it left behind are to be killed as well."""
        self._signal_rest(pid)
        if (name := self._names.pop(pid, None)) is None:
            was_killed = pid in self._orphans
            self._orphans.discard(pid)
            return was_killed
        if (binding := self._spares.pop(name, None)) is not None:
            binding.close()
        self.launcher.send(Ended(name, code))
        return code != 0

    def _end_orphans(self) -> None:
        """Kills orphans: processes that ended processes have left behind.

        Processes of a live rank belong to it. Processes that the killed ones leave behind are found when those end.
        """
        for pid in linux.children() - self._names.keys() - self._orphans:
            self._orphans.add(pid)
            self._signal(pid, signal.SIGKILL)

    def _signal_rest(self, pid: int) -> None:
        """Kills the process group that an ended program leaves behind."""
        if pid in self._groups:
            self._signal(pid, signal.SIGKILL)
            self._groups.remove(pid)

    def _hear(self, binding: Connection) -> None:
        name = next((name for name, known in self._spares.items() if known is binding), None)
        if name is None:
            return  # it has ended since `wait` returned
        try:
            binding.recv_bytes()
        except (EOFError, OSError):
            del self._spares[name]  # its end is reported as that of any other process
            binding.close()
        else:
            self._waiting.add(name)
            self.launcher.send(Waits(name))


def load_ahead() -> None:
    """Loads all that every rank would spend seconds on: torch, and the modules that the first optimizer imports."""
    for name, value in BEFORE_TORCH.items():
        os.environ.setdefault(name, value)
    import torch._dynamo
    import torch.distributed.checkpoint  # noqa: F401

    import rekindle_training.adapter.session  # noqa: F401
    from rekindle_training.adapter.entry import warm

    spare.paid_ahead.append(warm)
    gc.collect()
    gc.freeze()  # no collection of a child walks over all of this
