"""Manager of the model's own training side in recoveries of processes: it stops training, reports, and obeys orders.

There is one object for each life of a manager process. It knows only what its ranks report. A successor receives the
attempt again.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.model.world.messages import TICK, Message, Teller

if TYPE_CHECKING:
    from tests.model.world.training import Training

STOP, ANNOUNCE, RETRY, RECOVER, DUMP, DOWNGRADE = "stop_train", "on_global_rank", "retry", "recover", "dump", "downgrade"
ORDERS = (STOP, ANNOUNCE, RETRY, RECOVER, DUMP, DOWNGRADE)
MEMORY, GONE, NETWORK = "0", "1", "2"
RETRY_FAILED, FAILED = 405, 406

MEETS = 2.0
"""Seconds within which a manager that follows another one has met all living ranks."""
ALONE, SPOKEN = 60.0, 900.0
"""Seconds that it waits for an order before it recovers by itself: for the first order, and after one."""
STARTS = 900.0
"""Seconds that it waits for processes of new pods."""
LAUNCHER = 10.0
"""Seconds after which a silent launcher counts as gone."""


@dataclass(frozen=True)
class Command:
    """Order of a recovery."""

    name: str
    uuid: str
    ranks: frozenset[int] = field(default=frozenset(), compare=False)
    """Faulty ranks; not compared, as those of a repetition may differ."""
    pods: frozenset[int] = field(default=frozenset(), compare=False)
    """Pod ranks that are replaced, or leave."""
    in_place: bool = False


class CannotRepair(Exception):
    """The repair is not possible; the message says why."""


class Recovery:
    """State of a recovery, from the first fault or order to the next completed step."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}
        self.untold: dict[int, str] = {}
        self.orders: deque[Command] = deque()
        self.carried: Command | None = None
        self.patience = ALONE
        self.work = object()
        """Token of the current work; it is replaced when other work begins."""
        self.repairs = False
        self.saved = False
        """True if the state was saved for a restart: it does not recover by itself any more."""


class Manager:
    def __init__(self, training: "Training", *, follows: bool) -> None:
        self.training, self.clock, self.world = training, training.clock, training.world
        self.over = False
        """True if another process is the manager."""
        self.follows = follows
        self.recovery: Recovery | None = None
        self.met = not follows
        self._seen: set[Command] = set()
        self.teller = Teller(training, lambda: self.over)
        if follows:
            self.clock.after(MEETS, self._meet)

    # ---- what it sends

    def tell(self, message: Message) -> None:
        self.teller.tell(message)

    def heard(self, message: Message) -> None:
        self.teller.heard(message)

    # ---- faults

    def _meet(self) -> None:
        self.met = True
        if not self.over:
            self.training.tell_pause_again()
            self.look()

    def look(self) -> None:
        """Handles faults that came while nothing else could be started."""
        if self.over or not self.met or self.training.state not in ("training", "standing"):
            return
        for rank in sorted(self.training.vacant()):
            self.gone(rank)
        for rank, kind in sorted(self.training.failed.items()):
            self.failed(rank, kind)
        if self.training.state == "standing" and self.recovery is None:
            self._begin()

    def gone(self, rank: int) -> None:
        if self.met and not self.over:
            self._add(self.recovery or self._begin(), rank, GONE)

    def failed(self, rank: int, kind: str) -> None:
        """Adds a failed rank, unless a repair runs, which repeats the step anyway."""
        if self.met and not self.over and not (self.recovery and self.recovery.repairs):
            self._add(self.recovery or self._begin(), rank, kind)

    def blame(self) -> None:
        """Reports the fault of a failed switch: lost ranks, or the network if none is lost."""
        self.look()
        if self.recovery and not self.recovery.known:
            self._add(self.recovery, 0, NETWORK)
        if self.recovery:
            self._report(self.recovery)

    def _add(self, recovery: Recovery, rank: int, kind: str) -> None:
        if recovery.known.get(rank) in (kind, GONE):
            return
        recovery.known[rank] = kind
        if not recovery.untold:
            self.clock.after(0.01, lambda: self._report(recovery))
        recovery.untold[rank] = kind

    def _report(self, recovery: Recovery) -> None:
        if not self.over and recovery.untold:
            self.world.moment("process fault")
            self.tell(Message("fault", session=self.training.session, faulty=tuple(sorted(recovery.untold.items()))))
            recovery.untold = {}

    # ---- a recovery

    def _begin(self) -> Recovery:
        self.recovery = recovery = Recovery()
        self.training.stand()
        self._wait(recovery)
        return recovery

    def _wait(self, recovery: Recovery) -> None:
        """Waits for orders; if none comes in time, repairs the job by itself."""
        work = recovery.work = object()

        def alone() -> None:
            if self.goes_on(recovery, work) and self.training.state == "starting":  # nothing is to be repaired before
                self.recovery = None
            elif self.goes_on(recovery, work) and recovery.saved:
                self.training.end("the state is saved, and no order has followed")
            elif self.goes_on(recovery, work):
                recovery.repairs = True
                everyone = frozenset(range(self.training.ranks))
                self._repair(recovery, Command("", "", ranks=everyone, in_place=True), work)

        self.clock.after(recovery.patience, alone)

    def goes_on(self, recovery: Recovery, work: object) -> bool:
        is_here = not self.over and self.recovery is recovery and recovery.work is work
        return is_here and self.training.state != "gone"

    def order(self, command: Command) -> None:
        """Takes an order; repetitions are ignored."""
        if command in self._seen or self.over:
            return
        self._judge(command)
        self._seen.add(command)
        self._take(command)

    def _judge(self, command: Command) -> None:
        """Records a wrong order, which a control plane must not give."""
        if command.name in (RETRY, RECOVER, DUMP, DOWNGRADE):
            before = [one.name for one in self._seen if one.uuid == command.uuid]
            asks_first = command.name == DUMP or (command.name == RECOVER and not command.in_place)
            if asks_first and ANNOUNCE not in before and not self.follows:  # a successor may receive the end of an attempt first
                self.world.moment(f"wrong order: {command.name} before its faults were announced")
            if {RETRY, RECOVER, DUMP, DOWNGRADE} & set(before):
                self.world.moment(f"wrong order: {command.name} as a second strategy of one attempt")

    def _take(self, command: Command) -> None:
        recovery = self.recovery or self._begin()
        recovery.orders.append(command)
        self._next(recovery)

    def _next(self, recovery: Recovery) -> None:
        """Starts the next order. Orders of one attempt run one after the other; an order of another attempt replaces the
        current work."""
        carried, orders = recovery.carried, recovery.orders
        if not orders or (carried and carried.uuid == orders[0].uuid):
            return
        recovery.patience, recovery.repairs = SPOKEN, False
        recovery.carried = command = orders.popleft()
        work = recovery.work = object()
        self._acquainted(recovery, command, work, 10.0)

    def _acquainted(self, recovery: Recovery, command: Command, work: object, patience: float) -> None:
        if not self.goes_on(recovery, work):
            return
        if not self.met or (self.training.state == "starting" and patience > 0):
            self.clock.after(TICK, lambda: self._acquainted(recovery, command, work, patience - TICK))
        else:
            self.training.stand()
            pause = self.clock.random.choice((0.02, 0.5))
            self.clock.after(pause, lambda: self._carry_out(recovery, command, work))

    def _carry_out(self, recovery: Recovery, command: Command, work: object) -> None:
        if not self.goes_on(recovery, work):
            return
        if self.training.state == "starting":
            self.fail(recovery, command, "training has not begun")
        elif command.name == STOP:
            self._answer(recovery, self._report_of(command, "stopped"))
        elif command.name == ANNOUNCE:
            self._answer(recovery, self._report_of(command, "offers", offers=self._offers(command)))
        elif command.name == DUMP:
            self.clock.after(self.clock.random.choice((0.3, 5.0)), lambda: self._save(recovery, command, work))
        elif command.name == DOWNGRADE:
            recovery.repairs = True
            self._go_without(recovery, command, work)
        else:
            recovery.repairs = True
            self._repair(recovery, command, work)

    def _go_without(self, recovery: Recovery, command: Command, work: object) -> None:
        """Goes on without some pods, unless another rank is lost before that is done."""

        def finish() -> None:
            if not self.goes_on(recovery, work):
                return
            if why := self._why_not_without(command.pods):
                self.fail(recovery, command, why)
                return
            self.training.failed.clear()
            self.training.go_without(command.pods)
            self.recovered(recovery, command)

        if why := self._why_not_without(command.pods):
            self.fail(recovery, command, why)
        else:
            self.clock.after(self.clock.random.choice((0.3, 2.0, 5.0)), finish)

    def _why_not_without(self, pods: frozenset[int]) -> str:
        leaving = {rank for pod in pods for rank in self.training.ranks_of(pod)}
        if further := self.training.vacant() - leaving:
            return f"rank {min(further)} is gone"
        return "" if self.training.members.keys() - pods else "no rank would be left to train"

    def _report_of(self, command: Command, kind: str, code: int = 0, words: str = "", offers: tuple[str, ...] = ()) -> Message:
        known = tuple(sorted(self.recovery.known.items())) if self.recovery and kind != "status" else ()
        return Message(
            kind, code=code, strategy=command.name, words=words, offers=offers, faulty=known, answers=(command.uuid, command.name)
        )

    def _answer(self, recovery: Recovery, message: Message) -> None:
        """Sends an answer while training is stopped, and waits for the next order."""
        recovery.carried, recovery.repairs = None, False
        self.tell(message)
        self._wait(recovery)
        self._next(recovery)

    def fail(self, recovery: Recovery, command: Command, why: str) -> None:
        if not command.name:  # the manager itself started it
            self.training.end(why)
            return
        kind = {STOP: "stopped", ANNOUNCE: "offers"}.get(command.name, "status")
        code = RETRY_FAILED if command.name == RETRY else FAILED
        self.world.moment(f"{command.name} fails")
        self._answer(recovery, self._report_of(command, kind, code, why, ("exit",) if kind == "offers" else ()))

    def _offers(self, command: Command) -> tuple[str, ...]:
        vacant = self.training.vacant()
        retry = (RETRY,) if not vacant and self.training.has_replica(frozenset()) else ()
        recover = (RECOVER,) if self.training.has_replica(vacant | command.ranks) else ()
        smaller = (DOWNGRADE,) if self.world.knobs.elastic and len(self.training.members) > 1 else ()
        dump = (DUMP,) if self.training.has_replica(vacant) else ()
        return (*retry, *recover, *smaller, *dump, "exit")

    def _save(self, recovery: Recovery, command: Command, work: object) -> None:
        """Saves the state of the ranks that are left."""
        if not self.goes_on(recovery, work):
            return
        if not self.training.has_replica(self.training.vacant()):
            self.fail(recovery, command, "no rank that is left holds the state")
            return
        recovery.saved = True
        self.world.moment("saved")
        self._answer(recovery, self._report_of(command, "status", words="the state is saved"))

    # ---- a repair

    def _repair(self, recovery: Recovery, command: Command, work: object) -> None:
        Repair(self, recovery, command, work).attempt()

    def recovered(self, recovery: Recovery, command: Command) -> None:
        self.training.go_on()
        self.training.alone = not command.name
        self.recovery = None
        if command.name:
            self.tell(self._report_of(command, "status", words="training goes on"))
        self.look()
        for left in recovery.orders:
            self._take(left)


class Repair:
    """Repair of a job: new processes take the faulty ranks, in the same pods or in others, or none are needed."""

    def __init__(self, manager: Manager, recovery: Recovery, command: Command, work: object) -> None:
        self.manager, self.recovery, self.command, self.work = manager, recovery, command, work
        self.training, self.clock = manager.training, manager.clock
        self.ends = self.clock.now.timestamp() + STARTS
        self.members = dict(self.training.members)
        taken = self._is_taken()
        self.leaving = frozenset() if taken or command.in_place else command.pods
        self.unheard: dict[int, float] = {}
        """Time since which no launcher has spoken for a pod, by pod rank."""

    def _is_taken(self) -> bool:
        """Returns whether a manager that follows another one finds the new pods already in place."""
        pods = self.command.pods
        were_backups = all(self.members.get(pod) in self.training.came_as_backups for pod in pods)
        lost = {rank for pod in pods for rank in self.training.ranks_of(pod)} & self.training.vacant()
        return self.manager.follows and were_backups and not lost

    def attempt(self) -> None:
        if not self.manager.goes_on(self.recovery, self.work):
            return
        try:
            there = self._found()
        except CannotRepair as error:
            self.manager.fail(self.recovery, self.command, str(error))
            return
        if there is None:
            self.clock.after(TICK, self.attempt)
            return
        ranks = self._replaced()
        self.training.failed.clear()
        self.clock.after(self.clock.random.choice((0.3, 2.0, 5.0)), lambda: self._finish(ranks, there))

    def _finish(self, ranks: frozenset[int], there: dict[int, str]) -> None:
        if not self.manager.goes_on(self.recovery, self.work):
            return
        try:
            is_hit = self._replaced() != ranks or self.training.failed or not self.training.live(there)
        except CannotRepair as error:
            self.manager.fail(self.recovery, self.command, str(error))
            return
        if is_hit:
            self.attempt()
        else:
            self.training.take(ranks, there)
            self.manager.recovered(self.recovery, self.command)

    def _replaced(self) -> frozenset[int]:
        """Returns the ranks that get other processes. Raises CannotRepair if a lost rank may not be replaced by this order, or if
        a rank of the order has left."""
        if left := self.leaving & set(self.training.missing()):
            raise CannotRepair(f"pod {min(left)} has left the job")
        left = frozenset(pod for pod in self.leaving if self.training.members.get(pod) == self.members.get(pod))
        of_pods = frozenset(rank for pod in left for rank in self.training.ranks_of(pod))
        vacant = self.training.vacant()
        allowed = self.command.ranks if self.command.in_place else of_pods
        if vacant - allowed:
            raise CannotRepair(f"rank {min(vacant - allowed)} is gone")
        return vacant if self.command.in_place else of_pods

    def _found(self) -> dict[int, str] | None:
        """Returns the pods for the replaced ranks, by pod rank; None: not all of them are ready."""
        ranks = self._replaced()
        if not self.training.has_replica(ranks):
            raise CannotRepair("no rank is left")
        pods = {rank // self.training.each for rank in ranks}
        if self.command.in_place:
            there = self.training.places(pods)
            self._hear(pods - there.keys())
        else:
            there = self.training.ready_backups(pods)
        if self.clock.now.timestamp() > self.ends:
            raise CannotRepair(f"no process took the place of ranks {sorted(ranks)}")
        return there if pods <= there.keys() else None

    def _hear(self, silent: set[int]) -> None:
        """Raises CannotRepair if no launcher has spoken for one of these pods for too long."""
        now = self.clock.now.timestamp()
        self.unheard = {pod: self.unheard.get(pod, now) for pod in silent}
        if late := [pod for pod, since in self.unheard.items() if now - since > LAUNCHER]:
            raise CannotRepair(f"the pod of rank {self.training.ranks_of(min(late))[0]} is gone")
