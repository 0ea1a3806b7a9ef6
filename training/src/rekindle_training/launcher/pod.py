"""Processes of one pod, from their start to the end of the last one. Used by `main`.

Without a manager that decides, the pod ends with the first rank that fails. Its exit code is that rank's; the other ranks are
ended, and killed if they do not react. A manager that decides has an ended rank replaced, by a spare if there is one, and the
others live on. Standalone it may restart all ranks from the last checkpoint. Beside a control plane the pod then ends; it
also ends if it has received no message for too long. If the zygote ends, all processes end with it. Another zygote is
started, and their ends are reported as usual. A stopped zygote is continued, and is ended if it is stopped again and again.

A standby has no ranks: its spares wait until a manager gives it the rank of a pod. From then on it is that pod's backup.
"""

import logging
import os
import queue
import signal
import sys
import threading
import time
import uuid
from dataclasses import replace

from rekindle_training import names
from rekindle_training.launcher import signals
from rekindle_training.launcher.arguments import Arguments
from rekindle_training.launcher.grace import Grace
from rekindle_training.launcher.link import Link, Refused
from rekindle_training.launcher.own_manager import MANAGER, Listens, OwnManager, ends_again_and_again
from rekindle_training.launcher.processes import ZYGOTE, Processes
from rekindle_training.launcher.rank_environment import place, pod_environment, redirects
from rekindle_training.launcher.ranks import Rank, Ranks
from rekindle_training.launcher.signals import Signalled
from rekindle_training.launcher.spares import Spares
from rekindle_training.launcher.timers import GraceOver, ManagerDue, RestartDue, SpareDue, StillEnding, StillStopped, Undecided
from rekindle_training.launcher.zygote import PASSED_ON, Bind, Ended, Event, Program, Signal, Start, Stopped, Waits
from rekindle_training.processor.processor import REFUSED
from rekindle_wire import PROTOCOL
from rekindle_wire.training_pb2 import Again, PodOrder, PodState, Restart, Standby

log = logging.getLogger(__name__)

MANAGER_SECONDS = 5.0
"""Seconds that the manager has to end when all ranks have ended."""
SPARE_SECONDS = 3.0
"""Seconds after the use of a spare until the next one begins to load, so that it does not slow down the recovery."""
UNDECIDED_SECONDS = 120.0
"""Seconds that a pod of a job with a control plane waits for a decision about a rank that has ended."""
ZYGOTE_SECONDS = 1.0
"""Seconds that a zygote may be stopped. Meanwhile no process is started, and no end of a process is reported."""
END_SECONDS = 1.0
"""Seconds to wait for the end of a rank's process. The manager may learn of a loss from other ranks before the launcher does."""
UNTRAINED_RESTARTS = 3
"""Maximum number of restarts that do not count as `--max-restarts`, because a rank was killed before the first step."""


_Timer = Undecided | GraceOver | StillEnding | ManagerDue | SpareDue | StillStopped | RestartDue
_PodEvent = Event | PodOrder | Refused | Listens | Signalled | _Timer


class Pod:
    """Pod of this launcher. `run` returns its exit code. Created while the launcher has only one thread."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._name = uuid.uuid4().hex[:8]
        self._started = 0
        self._memory = os.memfd_create("rekindle-pod")
        """Descriptor of the memory that the ranks of the pod share."""
        self._ranks = Ranks(arguments.nproc_per_node)
        self._spares = Spares()
        self._preloads = arguments.start_method == "fork" or arguments.spares > 0 or arguments.is_standby
        """True if torch is loaded once, for all processes that are forked."""
        self._manager = OwnManager(arguments, forked=self._preloads)
        self._processes = Processes(preload=self._preloads, signals={*PASSED_ON, *arguments.signals})
        self._zygotes: list[float] = []
        """Times at which further zygotes were started."""
        self._is_zygote_stopped = False
        self._zygote_stops: list[float] = []
        """Moments at which the zygote was found stopped."""
        self._events: queue.SimpleQueue[_PodEvent] = queue.SimpleQueue()
        self._grace = Grace(arguments.grace_seconds, self._later)
        self._port = arguments.master_port
        self._link: Link | None = None
        self._decides = False
        """True if a manager of a job with a control plane decides what follows the end of a rank."""
        self._words = 0
        """Number of messages received from the manager, plus the ends of ranks about which it is to decide."""
        self._restarts = 0
        self._restarting = False
        self._attempt = self._again = ""
        """Attempt for which all ranks are being started again, and the last one for which they were."""
        self._is_told_of_steps = False
        """True if the manager has reported a completed step since all ranks began together."""
        self._untrained = 0
        """Number of restarts before the first completed step."""
        self._failures: list[int] = []
        """Exit codes of ranks that failed and were not replaced, in their order."""
        self._code = 0
        self._seeks_code = False
        """True if the manager gave up before the launcher knew which rank had ended."""
        self._ending = False

    def run(self) -> int:
        signals.listen(self._events, self._arguments.signals)
        self._ranks.attend(self._processes.say)
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
        if not self._code and any(self._failures):  # after the end of training
            self._code = _exit_code(self._failures[0])
        self._processes.end(well=self._code == 0)
        return self._code

    @property
    def _over(self) -> bool:
        waits = self._manager.runs or self._restarting or self._is_undecided or self._waits_for_rank
        return not waits and not self._ranks.living

    @property
    def _waits_for_rank(self) -> bool:
        return self._arguments.is_standby and not self._ending

    @property
    def _is_undecided(self) -> bool:
        """Returns whether a rank has ended and may still be replaced."""
        return self._decides and any(self._failures) and not self._ending

    def _handle(self, event: object) -> None:
        match event:
            case Ended() | Stopped() | Waits():
                self._hear(event)
            case PodOrder() if not (self._ending or self._restarting):
                self._obey(event)
            case PodOrder() if event.HasField("restart"):
                self._grace.limit()  # ranks that wait for others that have ended do not end by themselves
            case Refused(reason) if self._waits_for_rank:
                log.error("standby refused by the manager", extra={"reason": reason})
                self._end(REFUSED, None)
            case Listens(port):
                self._meet(port)
            case Signalled():
                self._signalled(event)
            case _:
                self._notice_time(event)

    def _notice_time(self, event: object) -> None:
        match event:
            case SpareDue():
                self._load_spares()
            case StillStopped(name):
                self._end_if_stopped(name)
            case Undecided(words) if words == self._words and self._is_undecided:
                self._let_go(f"nothing was decided within {UNDECIDED_SECONDS:g} s")
            case RestartDue(order) if order.restarts == self._restarts and not (self._ending or self._restarting):
                self._restart(order)
            case GraceOver() if self._grace.is_meant(event):
                self._ranks.kill(f"its grace of {event.seconds:g} s is over")
            case StillEnding() if self._grace.is_meant(event):
                ranks = [rank.number for rank in self._ranks.living]
                log.info("ranks not ended yet, a second signal to rekindle-train kills them", extra={"ranks": ranks})
            case ManagerDue(life) if life == self._restarts and not self._restarting:
                self._manager.send(signal.SIGKILL)

    def _hear(self, event: Event) -> None:
        match event:
            case Ended(name, code):
                self._ended(name, code)
            case Stopped(name, stopped):
                self._stopped(name, stopped=stopped)
            case Waits(name):
                self._spares.waits(name)
                self._tell()

    def _stopped(self, name: str, *, stopped: bool) -> None:
        if name == ZYGOTE:
            self._is_zygote_stopped = stopped
            self._later(ZYGOTE_SECONDS, StillStopped(name))
            return
        if name == MANAGER:
            self._manager.is_stopped = stopped
        if name in self._spares:
            self._spares.stopped(name, stopped=stopped)
        for rank in self._ranks.all:
            if name in (rank.process, rank.spare):
                rank.stopped = stopped
                name = rank.process
        self._later(self._grace.of_stopped, StillStopped(name))
        self._tell()

    def _end_if_stopped(self, name: str) -> None:
        """Ends a stopped manager, which would notice no fault, or a stopped rank that is to end.

        A stopped zygote is continued first.
        """
        if name == ZYGOTE:
            self._rouse_zygote()
        elif name == MANAGER:
            self._manager.end_if_stopped()
        elif self._ending or self._restarting:
            self._ranks.kill_if_stopped(name)

    def _rouse_zygote(self) -> None:
        if not self._is_zygote_stopped:
            return
        self._zygote_stops.append(time.monotonic())
        if ends_again_and_again(self._zygote_stops, self._zygote_stops[-1]):
            log.warning("zygote stopped repeatedly, ending it")
            self._processes.signal_zygote(signal.SIGKILL)
        else:
            log.warning("zygote stopped, continuing it", extra={"seconds": ZYGOTE_SECONDS})
            self._processes.signal_zygote(signal.SIGCONT)

    def _signalled(self, event: Signalled) -> None:
        number = event.number
        match self._grace.is_second(number):
            case True:
                self._ranks.kill("a second signal came")
                self._manager.send(signal.SIGKILL)
            case False:
                log.info("all ranks stopped", extra={"signal": signal.Signals(number).name})
                reached_all = event.from_terminal and number == signal.SIGINT and self._arguments.runs_as != "program"
                self._end(128 + number, None if reached_all else number, limited=False)

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
        is_complete = self._ranks.complete and not self._restarting
        if self._ending or is_complete or (code == 0 and self._link is not None):
            return
        if self._link is None or self._manager.ends_again_and_again:
            log.error("manager ended, ending the ranks", extra={"code": code})
            self._end(_exit_code(code) if code else 1, signal.SIGTERM)
            return
        log.warning("manager ended, starting another", extra={"code": code})
        self._manager.start(self._port)
        self._tell()

    def _tell(self) -> None:
        """Reports the pod's state to the manager.

        The manager of a standalone pod that is ending gets no report, because it would react.
        """
        if self._link is not None and not (self._ending and self._arguments.standalone):
            state = PodState(
                protocol=PROTOCOL,
                pod=self._name,
                pod_uid=self._arguments.pod_uid,
                restarts=self._restarts,
                succeeds=self._manager.succeeds,
                again=self._again,
                can_begin_again=not (self._arguments.standalone or self._arguments.is_standby),
            )
            if self._arguments.is_standby:
                state.standby.CopyFrom(Standby(loaded=self._spares.ready == self._arguments.nproc_per_node))
            else:
                state.processes.extend(self._ranks.states())
            self._link.say(state)

    def _obey(self, order: PodOrder) -> None:
        match order.WhichOneof("kind"):
            case "replace":
                self._replace(order.replace.process)
            case "end":
                log.warning("rank killed by order of the manager", extra={"reason": order.end.reason})
                self._processes.say(Signal(order.end.process, signal.SIGKILL))
            case "decides":
                self._decides = True
                self._wait_for_a_word()
            case "restart":
                self._obey_restart(order.restart)
            case "again" if not self._waits_for_rank:
                self._begin_again(order.again)
            case "trains":
                self._is_told_of_steps |= order.trains.restarts == self._restarts
            case "take" if self._arguments.is_standby:
                self._take(order.take.pod_rank)

    def _obey_restart(self, order: Restart) -> None:
        if not self._arguments.standalone:
            self._let_go(order.reason)
        elif order.restarts == self._restarts:
            if not (self._trained or self._was_killed):
                self._later(END_SECONDS, RestartDue(order))
            else:
                self._restart(order)

    def _begin_again(self, order: Again) -> None:
        """Ends all ranks and starts them again, once for each attempt. Ranks that do not react are killed."""
        if self._again == order.attempt:
            self._tell()
            return
        self._attempt = order.attempt
        self._restart_ranks("all ranks restarted by order of the manager", reason=order.reason)

    def _wait_for_a_word(self) -> None:
        self._words += 1
        if self._is_undecided:
            self._later(UNDECIDED_SECONDS, Undecided(self._words))

    def _let_go(self, reason: str) -> None:
        """Stops waiting for the manager: the first rank that fails, or has failed, ends the pod."""
        log.info("pod released by the manager", extra={"reason": reason})
        self._decides = False
        if self._arguments.is_standby:
            self._end(0, None)
        elif any(self._failures):
            self._end(_exit_code(self._failures[0]), signal.SIGTERM)

    @property
    def _trained(self) -> bool:
        """Returns whether a step was completed.

        A manager that was lost may not have reported it, so the ranks' memory counts too.
        """
        return self._is_told_of_steps or (self._manager.succeeds and self._ranks.begun)

    @property
    def _was_killed(self) -> bool:
        """Returns whether a rank was killed by a signal. A shell reports that by an exit code above 128."""
        lowest = 128 if self._arguments.runs_as == "program" else 255
        return any(code < 0 or code > lowest for code in self._failures)

    def _restart(self, order: Restart) -> None:
        """Restarts all ranks, or ends the pod if no restarts are left.

        A rank that was killed before the first step does not count: its script is not the cause, and no training is lost.
        """
        reason = order.reason
        if self._was_killed and not self._trained and not order.futile and self._untrained < UNTRAINED_RESTARTS:
            self._untrained += 1
        elif order.futile or self._restarts - self._untrained == self._arguments.max_restarts:
            log.error("training abandoned", extra={"reason": reason, "restarts": self._restarts})
            self._seeks_code = not self._failures
            self._end(_exit_code(self._failures[0]) if self._failures else 1, signal.SIGTERM)
            return
        counts = {"restart": self._restarts + 1, "max_restarts": self._arguments.max_restarts}
        self._restart_ranks("all ranks restarted from the last checkpoint", reason=reason, **counts)

    def _restart_ranks(self, message: str, **fields: str | int) -> None:
        log.warning(message, extra=fields)
        self._restarting = True
        self._give_grace(limited=True)
        self._ranks.signal(signal.SIGTERM)
        self._when_all_ended()

    # Ranks and spares.

    def _take(self, pod_rank: int) -> None:
        log.info("standby turned into a backup pod", extra={"pod_rank": pod_rank, "loaded": self._spares.ready})
        self._arguments = replace(self._arguments, role=names.BACKUP, node_rank=pod_rank)
        self._start_ranks()

    def _start_ranks(self) -> None:
        self._failures.clear()
        self._is_told_of_steps = False
        for local, rank in enumerate(self._ranks.all):
            os.ftruncate(rank.own_state, 0)  # what an earlier life left there is not what follows its checkpoint
            self._start_rank(local)
        self._tell()

    def _replace(self, process: str) -> None:
        for local, rank in enumerate(self._ranks.all):
            if rank.process == process and rank.ended is not None:
                if rank.ended in self._failures:
                    self._failures.remove(rank.ended)
                self._start_rank(local)
                self._tell()

    def _start_rank(self, local: int) -> None:
        arguments, rank = self._arguments, self._ranks.all[local]
        self._started += 1
        rank.begin(arguments.node_rank * arguments.nproc_per_node + local, f"{self._name}/{local}/{self._started}")
        where = place(arguments, local, rank.process, (rank.own_state, rank.snapshots), self._restarts)
        if (spare := self._spares.take(rank.number)) is not None:
            rank.spare = spare
            self._processes.say(Bind(spare, rank.process, where))
            self._later(SPARE_SECONDS, SpareDue())
            return
        program = self._program(forked=arguments.start_method == "fork", title=f"rank-{rank.number}")
        environment = {**self._environment(), **where.environment}
        keep = (rank.own_state, rank.snapshots, self._memory)
        self._processes.say(Start(rank.process, program, environment, where.redirects, keep))

    def _load_spares(self) -> None:
        arguments = self._arguments
        wanted = arguments.nproc_per_node if arguments.is_standby else arguments.spares
        while len(self._spares) < wanted and not (self._ending or self._spares.given_up):
            self._started += 1
            name = f"spare-{self._started}"
            self._spares.started(name)
            program = self._program(forked=True)
            where = redirects(arguments, name)
            self._processes.say(Start(name, program, self._environment(), where, is_spare=True, interruptible=False))

    def _environment(self) -> dict[str, str]:
        return pod_environment(self._arguments, self._port, self._memory, os.environ)

    def _program(self, *, forked: bool, title: str = "") -> Program:
        """Returns the program of a rank or spare.

        Args:
            title: shown by `ps`, in an option that the interpreter ignores.
        """
        arguments = self._arguments
        if forked:
            return Program(arguments.command, interpreted=True, as_module=arguments.runs_as == "module")
        interpreter = (sys.executable, "-u", "-X", f"rekindle-train={title}")
        python = {"script": interpreter, "module": (*interpreter, "-m"), "program": ()}
        return Program((*python[arguments.runs_as], *arguments.command), own_group=arguments.runs_as == "program")

    # Ends.

    def _ended(self, name: str, code: int) -> None:
        if name == MANAGER:
            self._manager_ended(code)
        elif name == ZYGOTE:
            self._zygote_ended(code)
        elif name in self._spares:
            self._spare_ended(name, code)
        else:
            for rank in self._ranks.all:
                if rank.process == name:
                    self._rank_ended(rank, code)

    def _spare_ended(self, name: str, code: int) -> None:
        self._spares.ended(name)
        if self._ending:
            return
        is_standby = self._arguments.is_standby
        if code == 0 and not is_standby:
            self._spares.give_up()  # its script does not ask for its rank, and another one would run through it as well
        if not self._spares.given_up:
            log.warning("spare ended early, starting another", extra={"code": code})
            self._later(0 if is_standby else SPARE_SECONDS, SpareDue())
        elif is_standby:
            log.error("spares of this standby ended early repeatedly", extra={"code": code})
            self._end(_exit_code(code) if code else 1, None)
        else:
            log.warning("spare ended early, not replaced", extra={"code": code})
        self._tell()

    def _zygote_ended(self, code: int) -> None:
        """Handles the end of the zygote, with which all processes of the pod have ended."""
        self._is_zygote_stopped = False
        self._zygotes.append(time.monotonic())
        if ends_again_and_again(self._zygotes, self._zygotes[-1]):
            log.error("zygote ended repeatedly with all processes of the pod", extra={"code": code})
            self._end(_exit_code(code), None)
        if self._ending:
            self._manager.runs = False
        else:
            log.warning("zygote ended with all processes of the pod, starting another", extra={"code": code})
            of_ranks = (memory for rank in self._ranks.all for memory in (rank.own_state, rank.snapshots))
            self._processes.begin_again([self._manager.announce, self._memory, *of_ranks])
            self._spares.lose()
            self._later(0 if self._arguments.is_standby else SPARE_SECONDS, SpareDue())
            if self._manager.runs:
                self._manager.start(self._port)
        for rank in self._ranks.living:
            self._rank_ended(rank, code)

    def _rank_ended(self, rank: Rank, code: int) -> None:
        rank.ended, rank.stopped = code, False
        if self._seeks_code and code not in (0, -signal.SIGTERM):
            self._seeks_code, self._code = False, _exit_code(code)
        if code:
            self._failures.append(code)
            if (self._manager.runs or self._decides) and not self._ending and not self._restarting:
                log.warning("rank ended", extra={"rank": rank.number, "code": code})
                self._wait_for_a_word()
            elif not self._ending and not self._restarting:
                log.error("rank failed, ending the others", extra={"rank": rank.number, "code": code})
                self._end(_exit_code(code), signal.SIGTERM)
        self._tell()
        self._when_all_ended()

    def _when_all_ended(self) -> None:
        if self._ranks.living:
            return
        self._grace.settle()
        if self._restarting:
            self._restarting = False
            self._restarts += 1
            self._again = self._attempt
            self._start_ranks()
        elif self._ending or not any(self._failures):
            self._later(
                MANAGER_SECONDS, ManagerDue(self._restarts)
            )  # it knows when training is over, and gets a signal when it is not
            if self._ending:
                self._manager.send(signal.SIGTERM)

    def _end(self, code: int, number: int | None, *, limited: bool = True) -> None:
        """Args:
        number: the signal that ranks are sent, if they have not got one already.
        limited: True if nothing else would kill a rank that does not react.
        """
        if not self._ending:
            self._ending, self._code = True, code
            self._restarting = False
            self._give_grace(limited=limited)
        if number is not None:
            self._ranks.signal(number)
        self._when_all_ended()

    def _give_grace(self, *, limited: bool) -> None:
        """Starts the grace period. A stopped rank cannot react, so it is killed sooner.

        Args:
            limited: as in `Grace.give`.
        """
        self._grace.give(limited=limited)
        for rank in self._ranks.living:
            self._later(self._grace.of_stopped, StillStopped(rank.process))

    def _later(self, seconds: float, event: _PodEvent) -> None:
        timer = threading.Timer(seconds, self._events.put, [event])
        timer.daemon = True
        timer.start()


def _exit_code(code: int) -> int:
    """Returns the exit code as shells report it: 128 plus the number of the signal that ended the process."""
    return code if code > 0 else 128 - code
