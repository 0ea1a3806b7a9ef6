"""The processes of one pod, from their start to the end of the last one. Used by `main`.

Where no manager decides, the pod ends with the first rank that fails: its exit code is that rank's, the others are ended, and
killed if they do not react. A manager that decides has a rank that ended replaced, by a spare if there is one, and the others
live on. Standalone it may let all begin again at the last checkpoint; beside a control plane the pod ends then, and so it does
when it has heard nothing for too long.

A standby has no ranks: its spares wait until a manager gives it the rank of a pod, and from then on it is that pod's backup.
"""

import logging
import os
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rekindle_training import names
from rekindle_training.launcher import signals
from rekindle_training.launcher.arguments import Arguments
from rekindle_training.launcher.link import Link, Refused
from rekindle_training.launcher.own_manager import MANAGER, Listens, OwnManager
from rekindle_training.launcher.processes import ZYGOTE, Processes
from rekindle_training.launcher.rank_environment import place, pod_environment, redirects
from rekindle_training.launcher.signals import Signalled
from rekindle_training.launcher.spares import Spares
from rekindle_training.launcher.timers import GraceOver, RestartDue, SpareDue, StillStopped, Undecided
from rekindle_training.launcher.zygote import Bind, Ended, Event, Program, Signal, Start, Stopped, Waits
from rekindle_training.processor.processor import REFUSED
from rekindle_wire import PROTOCOL
from rekindle_wire.training_pb2 import PodOrder, PodState, ProcessState, Restart, Standby

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long a rank may take to end after SIGTERM. A frozen process ignores it, so SIGKILL follows."""
SPARE_SECONDS = 3.0
"""How long after a spare was used the next one begins to load: not beside the recovery that used it."""
UNDECIDED_SECONDS = 120.0
"""How long a pod of a job with a control plane waits for a word about a rank that has ended."""
END_SECONDS = 1.0
"""The manager may hear of a loss from other ranks, before the launcher hears of the end."""
STANDBY_STARTS = 3
"""How often a process of a standby that ends before it was needed is followed by another one; then the pod fails."""
UNTRAINED_RESTARTS = 3
"""How often all ranks begin again because one was killed before the first step: nothing is lost, `--max-restarts` is not used."""


_PodEvent = Event | PodOrder | Refused | Listens | Undecided | Signalled | GraceOver | SpareDue | StillStopped | RestartDue


@dataclass
class _Rank:
    """The latest process of a rank."""

    process: str
    own_state: int
    """Descriptor of what the rank leaves to its next process."""
    ended: int | None = None
    stopped: bool = False
    spare: str = ""
    """What the process was called before it had the rank; by this name it may still be told that it was stopped."""

    @property
    def lives(self) -> bool:
        return bool(self.process) and self.ended is None


class Pod:
    """`run` returns the exit code of the pod. Made while the launcher has one thread."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._name = uuid.uuid4().hex[:8]
        self._started = 0
        self._memory = os.memfd_create("rekindle-pod")
        """Descriptor of what the ranks of the pod share."""
        self._ranks = [_Rank("", os.memfd_create(f"rekindle-{rank}")) for rank in range(arguments.nproc_per_node)]
        self._spares = Spares()
        self._useless = 0
        """Processes of a standby that ended before they were needed."""
        self._preloads = arguments.start_method == "fork" or arguments.spares > 0 or arguments.is_standby
        """Torch is loaded once, for all that is forked."""
        self._manager = OwnManager(arguments, forked=self._preloads)
        self._processes = Processes(preload=self._preloads)
        self._events: queue.SimpleQueue[_PodEvent] = queue.SimpleQueue()
        self._port = 0 if arguments.standalone else arguments.master_port
        self._link: Link | None = None
        self._decides = False
        """A manager of a job with a control plane says what follows the end of a rank."""
        self._words = 0
        """That were heard of it, and ends that it is to decide about."""
        self._restarts = 0
        self._restarting = False
        self._untrained = 0
        """Restarts of ranks that had not completed a step."""
        self._failures: list[int] = []
        """Exit codes of ranks that failed and were not replaced, in their order."""
        self._code = 0
        self._seeks_code = False
        """The manager gave up before the end of the rank was known that led to it."""
        self._ending = False

    def run(self) -> int:
        signals.listen(self._events)
        self._processes.listen(self._events)  # type: ignore[arg-type]  # it puts some of what the queue takes
        if self._arguments.standalone:
            self._manager.attend(self._processes, self._events)
            self._manager.start(self._port)
        else:
            self._begin()
        while not self._over:
            self._handle(self._events.get())
        if self._link is not None:
            self._link.end()
        self._processes.end()
        if not self._code and any(self._failures):  # behind the end of training
            self._code = _exit_code(self._failures[0])
        return self._code

    @property
    def _over(self) -> bool:
        waits = self._manager.runs or self._restarting or self._is_undecided or self._waits_for_rank
        return not waits and not any(rank.lives for rank in self._ranks)

    @property
    def _waits_for_rank(self) -> bool:
        return self._arguments.is_standby and not self._ending

    @property
    def _is_undecided(self) -> bool:
        """A rank has ended, and another process may take its place."""
        return self._decides and any(self._failures) and not self._ending

    def _handle(self, event: object) -> None:
        match event:
            case Ended() | Stopped() | Waits():
                self._hear(event)
            case PodOrder():
                self._obey(event)
            case Refused(reason) if self._waits_for_rank:
                log.error("this standby serves no manager of this job", extra={"reason": reason})
                self._end(REFUSED, None)
            case Listens(port):
                self._meet(port)
            case Signalled(number, from_terminal):
                log.info("ending all ranks", extra={"signal": signal.Signals(number).name})
                reached_all = from_terminal and number == signal.SIGINT and self._arguments.runs_as != "program"
                self._end(128 + number, None if reached_all else number)
            case _:
                self._notice_time(event)

    def _notice_time(self, event: object) -> None:
        match event:
            case SpareDue():
                self._load_spares()
            case StillStopped():
                self._manager.end_if_stopped()
            case Undecided(words) if words == self._words and self._is_undecided:
                self._let_go(f"nothing was decided within {UNDECIDED_SECONDS:g} s")
            case RestartDue(order) if order.restarts == self._restarts and not (self._ending or self._restarting):
                self._restart(order)
            case GraceOver(life) if life == self._restarts:
                self._end_grace()

    def _hear(self, event: Event) -> None:
        match event:
            case Ended(name, code):
                self._ended(name, code)
            case Stopped(name, stopped) if name == MANAGER:
                self._manager.is_stopped = stopped
                self._later(GRACE_SECONDS, StillStopped())
            case Stopped(name, stopped):
                self._stopped(name, stopped=stopped)
            case Waits(name):
                self._spares.waits(name)
                self._tell()

    def _stopped(self, name: str, *, stopped: bool) -> None:
        if name in self._spares:
            self._spares.stopped(name, stopped=stopped)
        for rank in self._ranks:
            if name in (rank.process, rank.spare):
                rank.stopped = stopped
        self._tell()

    # The manager of a pod that has no control plane.

    def _meet(self, port: int) -> None:
        if self._link is not None or self._ending:
            return
        self._port = port
        self._begin()

    def _begin(self) -> None:
        self._link = Link(self._arguments.master_addr, self._port, self._events.put)
        if not self._arguments.is_standby:
            self._start_ranks()
        self._load_spares()
        self._tell()
        self._link.start()

    def _manager_ended(self, code: int) -> None:
        self._manager.runs = False
        if self._ending or self._is_complete or (code == 0 and self._link is not None):
            return
        if self._link is None or self._manager.ends_again_and_again:
            log.error("the manager ended, ending the ranks", extra={"code": code})
            self._end(_exit_code(code) if code else 1, signal.SIGTERM)
            return
        log.warning("the manager ended, starting another one; training goes on", extra={"code": code})
        self._manager.start(self._port)
        self._tell()

    @property
    def _is_complete(self) -> bool:
        """All ranks have ended well."""
        return all(rank.ended == 0 for rank in self._ranks) and not self._restarting

    def _tell(self) -> None:
        """The manager, but for that of a pod that ends: it would have to make something of it."""
        if self._link is not None and not (self._ending and self._arguments.standalone):
            state = PodState(
                protocol=PROTOCOL,
                pod=self._name,
                pod_uid=self._arguments.pod_uid,
                restarts=self._restarts,
                succeeds=self._manager.succeeds,
            )
            if self._arguments.is_standby:
                state.standby.CopyFrom(Standby(loaded=self._spares.ready == self._arguments.nproc_per_node))
            else:
                state.processes.extend(self._process_states())
            self._link.say(state)

    def _process_states(self) -> Iterator[ProcessState]:
        for rank in self._ranks:
            yield ProcessState(rank=self._number(rank), process=rank.process, ended=rank.ended, stopped=rank.stopped)

    def _obey(self, order: PodOrder) -> None:
        if self._ending or self._restarting:
            return
        match order.WhichOneof("kind"):
            case "replace":
                self._replace(order.replace.process)
            case "end":
                log.warning("ending a rank", extra={"reason": order.end.reason})
                self._processes.say(Signal(order.end.process, signal.SIGKILL))
            case "decides":
                self._decides = True
                self._wait_for_a_word()
            case "restart":
                self._obey_restart(order.restart)
            case "take" if self._arguments.is_standby:
                self._take(order.take.pod_rank)

    def _obey_restart(self, order: Restart) -> None:
        if not self._arguments.standalone:
            self._let_go(order.reason)
        elif order.restarts == self._restarts:
            if order.untrained and not self._was_killed:
                self._later(END_SECONDS, RestartDue(order))
            else:
                self._restart(order)

    def _wait_for_a_word(self) -> None:
        self._words += 1
        if self._is_undecided:
            self._later(UNDECIDED_SECONDS, Undecided(self._words))

    def _let_go(self, reason: str) -> None:
        """Nobody decides any more: the first rank that fails, or has failed, ends the pod."""
        log.info("this pod is not waited for any more", extra={"reason": reason})
        self._decides = False
        if self._arguments.is_standby:
            self._end(0, None)
        elif any(self._failures):
            self._end(_exit_code(self._failures[0]), signal.SIGTERM)

    @property
    def _was_killed(self) -> bool:
        """A rank, by a signal; a shell says it its own way."""
        lowest = 128 if self._arguments.runs_as == "program" else 255
        return any(code < 0 or code > lowest for code in self._failures)

    def _restart(self, order: Restart) -> None:
        """One that was killed before the first step says nothing against the script, and its death has cost no training."""
        reason = order.reason
        if order.untrained and self._untrained < UNTRAINED_RESTARTS and self._was_killed:
            self._untrained += 1
        elif self._restarts - self._untrained == self._arguments.max_restarts:
            log.error("training ends", extra={"reason": reason, "restarts": self._restarts})
            self._seeks_code = not self._failures
            self._end(_exit_code(self._failures[0]) if self._failures else 1, signal.SIGTERM)
            return
        log.warning(
            "all ranks begin again at the last checkpoint",
            extra={"reason": reason, "restart": self._restarts + 1, "max_restarts": self._arguments.max_restarts},
        )
        self._restarting = True
        self._give_grace()
        self._send(signal.SIGTERM)
        self._when_all_ended()

    # Ranks and spares.

    def _take(self, pod_rank: int) -> None:
        log.info("this standby becomes a backup pod", extra={"pod_rank": pod_rank, "loaded": self._spares.ready})
        self._arguments = replace(self._arguments, role=names.BACKUP, node_rank=pod_rank)
        self._start_ranks()

    def _start_ranks(self) -> None:
        self._failures.clear()
        for local, rank in enumerate(self._ranks):
            os.ftruncate(rank.own_state, 0)  # what an earlier life left there is not what follows its checkpoint
            self._start_rank(local)
        self._tell()

    def _replace(self, process: str) -> None:
        for local, rank in enumerate(self._ranks):
            if rank.process == process and rank.ended is not None:
                if rank.ended in self._failures:
                    self._failures.remove(rank.ended)
                self._start_rank(local)
                self._tell()

    def _start_rank(self, local: int) -> None:
        arguments, rank = self._arguments, self._ranks[local]
        self._started += 1
        rank.process, rank.ended = f"{self._name}/{local}/{self._started}", None
        rank.spare, rank.stopped = "", False
        where = place(arguments, local, rank.process, rank.own_state, self._restarts)
        if (spare := self._spares.take(self._number(rank))) is not None:
            rank.spare = spare
            self._processes.say(Bind(spare, rank.process, where))
            self._later(SPARE_SECONDS, SpareDue())
            return
        forked = arguments.start_method == "fork"
        environment = {**self._environment(), **where.environment}
        keep = (rank.own_state, self._memory)
        self._processes.say(Start(rank.process, self._program(forked=forked), environment, where.redirects, keep))

    def _load_spares(self) -> None:
        arguments = self._arguments
        while len(self._spares) < (arguments.nproc_per_node if arguments.is_standby else arguments.spares) and not self._ending:
            self._started += 1
            name = f"spare-{self._started}"
            self._spares.started(name)
            program = self._program(forked=True)
            where = redirects(arguments, name)
            self._processes.say(Start(name, program, self._environment(), where, is_spare=True, interruptible=False))

    def _environment(self) -> dict[str, str]:
        return pod_environment(self._arguments, self._port, self._memory, os.environ)

    def _program(self, *, forked: bool) -> Program:
        arguments = self._arguments
        if forked:
            return Program(arguments.command, interpreted=True, as_module=arguments.runs_as == "module")
        python = {"script": (sys.executable, "-u"), "module": (sys.executable, "-u", "-m"), "program": ()}
        return Program((*python[arguments.runs_as], *arguments.command), own_group=arguments.runs_as == "program")

    # Ends.

    def _ended(self, name: str, code: int) -> None:
        if name == MANAGER:
            self._manager_ended(code)
        elif name == ZYGOTE:
            log.error("the process that starts the others was ended, and they with it")
            self._manager.runs = self._restarting = False
            for rank in self._ranks:
                rank.ended = code
            self._ending, self._code = True, self._code or _exit_code(code)
        elif name in self._spares:
            self._spare_ended(name, code)
        else:
            for rank in self._ranks:
                if rank.process == name:
                    self._rank_ended(rank, code)

    def _spare_ended(self, name: str, code: int) -> None:
        self._spares.ended(name)
        if self._ending:
            return
        if not self._arguments.is_standby:
            log.warning("a spare ended before it was needed, and is not replaced", extra={"code": code})
            return
        self._useless += 1
        if self._useless > STANDBY_STARTS:
            log.error("processes of this standby end before they are needed, again and again", extra={"code": code})
            self._end(_exit_code(code) if code else 1, None)
            return
        log.warning("a process of this standby ended before it was needed, starting another one", extra={"code": code})
        self._load_spares()
        self._tell()

    def _rank_ended(self, rank: _Rank, code: int) -> None:
        rank.ended, rank.stopped = code, False
        if self._seeks_code and code not in (0, -signal.SIGTERM):
            self._seeks_code, self._code = False, _exit_code(code)
        if code:
            self._failures.append(code)
            if (self._manager.runs or self._decides) and not self._ending and not self._restarting:
                log.warning("a rank ended", extra={"rank": self._number(rank), "code": code})
                self._wait_for_a_word()
            elif not self._ending and not self._restarting:
                log.error("a rank failed, ending the others", extra={"rank": self._number(rank), "code": code})
                self._end(_exit_code(code), signal.SIGTERM)
        self._tell()
        self._when_all_ended()

    def _when_all_ended(self) -> None:
        if any(rank.lives for rank in self._ranks):
            return
        if self._restarting:
            self._restarting = False
            self._restarts += 1
            self._start_ranks()
        elif self._ending or not any(self._failures):
            self._give_grace()  # to the manager, which knows when training is complete, and is told when it is not
            if self._ending:
                self._manager.send(signal.SIGTERM)

    def _end(self, code: int, number: int | None) -> None:
        """`number` is the signal that ranks are sent, if they have not got one already."""
        if not self._ending:
            self._ending, self._code = True, code
            self._restarting = False
            self._give_grace()
        if number is not None:
            self._send(number)
        self._when_all_ended()

    def _number(self, rank: _Rank) -> int:
        return self._arguments.node_rank * self._arguments.nproc_per_node + self._ranks.index(rank)

    def _give_grace(self) -> None:
        self._later(GRACE_SECONDS, GraceOver(self._restarts))

    def _end_grace(self) -> None:
        self._send(signal.SIGKILL)
        if not self._restarting:
            self._manager.send(signal.SIGKILL)

    def _later(self, seconds: float, event: _PodEvent) -> None:
        timer = threading.Timer(seconds, self._events.put, [event])
        timer.daemon = True
        timer.start()

    def _send(self, number: int) -> None:
        for rank in self._ranks:
            if rank.lives:
                self._processes.say(Signal(rank.process, number))


def _exit_code(code: int) -> int:
    """A process that a signal ended counts as shells count it."""
    return code if code > 0 else 128 - code
