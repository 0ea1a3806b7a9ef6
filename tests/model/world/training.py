"""Training side of the model: its manager and its processes, as strict as the real ones. Created by the `World`."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.model.world.growth import UPGRADE, Growth
from tests.model.world.manager import DOWNGRADE, ORDERS, RECOVER, Command, Manager
from tests.model.world.messages import Message, Operation
from tests.model.world.mindio import QUESTIONS, Mindio
from tests.model.world.operations import Pauses

if TYPE_CHECKING:
    from tests.model.world.world import Pod, World

PATIENCE = 60.0
"""Seconds that a paused training side waits for its order."""
RANKS = 2
"""Number of ranks of each pod."""
LIVE = ("training", "paused", "held", "standing")
"""States in which processes exist."""


@dataclass
class Switch:
    uuid: str
    rank: int
    loading: bool = False


class Training:
    """Training side of one generation of pods.

    Its states are: starting, training, paused (by a hot switch), held (by an operation), asked (whether it trains), standing (its
    processes are recovered), stuck, gone.
    """

    def __init__(self, world: "World") -> None:
        self.world, self.clock = world, world.clock
        self.state = "starting"
        self.life = f"life-{world.number()}"
        self.members: dict[int, str] = {}
        self.session = ""
        """Session of the open stream; empty: there is none."""
        self.queue = ""
        self.ordered_by = self.newest = ""
        """Recovery that gave the last order on this stream, and the newest attempt of which the stream has an order."""
        self.manager = 1
        """Number of processes that have been the manager so far."""
        self.switching: Switch | None = None
        self.ending = False
        self.each = RANKS
        self.gone: set[int] = set()
        """Ranks whose process ended in a pod that still runs."""
        self.alone = False
        """True if it last continued without an order."""
        self.failed: dict[int, str] = {}
        """Ranks whose step failed, with the type of the fault."""
        self.came_as_backups: set[str] = set()
        """UIDs of member pods that joined as backup pods."""
        self._migration, self.went_on = object(), "continue"
        """Token of the order to migrate that is being carried out; strategy by which the last one ended."""
        self.boss = Manager(self, follows=False) if world.knobs.allows != "exit" else None
        """Recovers processes; None: this training side does not."""
        self.growth = Growth(self)
        self.pauses: Pauses | Mindio = Mindio(self) if self.mindio else Pauses(self, follows=False)
        self.held_for = ""
        """Attempt of the operation for which it is held."""
        self.links: set[int] = set()
        """Ranks that use their backup link."""
        self._loaded: dict[str, bool] = {}
        """Running backup pods by UID, with True if their processes have loaded."""
        self._done: set[tuple[str, str]] = set()
        self._loading = self._met = False
        self._back = self.clock.now
        """Time until which it does not reconnect."""
        self.clock.after(self.clock.random.choice((0.3, 1.0)), self.connect)

    @property
    def mindio(self) -> bool:
        return self.world.knobs.side == "mindio"

    @property
    def knows_no_attempt(self) -> bool:
        """True if a successor of MindIO's manager runs, which does not know what its predecessor had done."""
        return self.mindio and self.manager > 1

    def pace(self, kind: str) -> float:
        """Returns the seconds until a message arrives."""
        slow = kind == self.world.knobs.late or self.clock.random.random() < self.world.knobs.slow
        return self.clock.random.uniform(6.0, 12.0) if slow else 0.01

    def heard(self, message: Message) -> None:
        """Processes the control plane's answer to a message."""
        if self.boss:
            self.boss.heard(message)
        elif isinstance(self.pauses, Pauses):
            self.pauses.teller.heard(message)

    def send(self, message: Message) -> None:
        knobs = self.world.knobs
        if self.boss and message.kind in ("pause", "resumed"):
            self.boss.tell(message)
            return
        delay = self.pace(message.kind)
        for sent in range(2 if knobs.doubled and message.kind in ("pause", "resumed") else 1):
            self.clock.after(delay + 0.05 * sent, lambda: self.world.receive(message, self))

    # ---- the stream

    def connect(self) -> None:
        if self.state == "gone" or self.session:
            return
        if self.clock.now < self._back:
            self.clock.after((self._back - self.clock.now).total_seconds(), self.connect)
            return
        if self.mindio and not self._manager_lives():
            self._met = False
            self.clock.after(0.5, self.connect)
            return
        if self.mindio and not self._met:  # it starts together with the processes of its pod
            self._met = True
            self.clock.after(2.0, self.connect)
            return
        self.session, self.queue = f"session-{self.world.number()}", f"gateway/{self.clock.random.choice('ab')}"
        if self is self.world.training:
            self.world.moment("attached")
        self.ordered_by = ""
        self.send(self.attachment())

    def attachment(self) -> Message:
        """Returns the attachment of the open stream, with the progress that its gateway received."""
        client = f"10.0.0.1 {self.life} {self.manager}" if self.mindio else ""
        trains = self.state in ("training", "paused", "held", "standing") and not self.mindio
        return Message("attach", session=self.session, queue=self.queue, client=client, life=self.life if trains else "")

    def _manager_lives(self) -> bool:
        return any(pod.rank == 0 and pod.phase == "Running" for pod in self.world.pods.values())

    def cut(self, *, silently: bool = False, away: float = 0.0) -> None:
        """Breaks the stream; the client reconnects. A gateway that died does not report the end.

        Args:
            away: seconds for which the client does not reconnect.
        """
        self._back = self.clock.now + timedelta(seconds=away)
        if self.session:
            if not silently:
                self.send(Message("detach", session=self.session))
            self.session = ""
            self.clock.after(away + self.clock.random.choice((0.1, 1.0)), self.connect)

    def lose_manager(self) -> None:
        """Replaces the manager by another process. MindIO's new manager does not know the orders of its predecessor."""
        self.manager += 1
        if self.mindio:
            if self.state in ("paused", "held", "asked"):
                self.state = "stuck"
            self.switching = None
        self.pauses.over = True
        self.pauses = Mindio(self) if self.mindio else Pauses(self, follows=True)
        if self.boss:
            self.boss.over = self.growth.over = True
            self.boss, self.growth = Manager(self, follows=True), Growth(self)
            self._done.clear()
        self.cut()

    def told_to_end(self, grace: float) -> None:
        if not self.ending:
            self.ending = True
            self.clock.after(self.clock.random.uniform(0.1, grace) if grace else 0.02, self.leave)

    def leave(self) -> None:
        self.state = "gone"
        if self.session:
            self.send(Message("detach", session=self.session))
            self.session = ""

    # ---- its processes

    def whole(self) -> bool:
        pods = self.world.pods
        here = bool(self.members) and all(uid in pods and pods[uid].phase == "Running" for uid in self.members.values())
        return here and not self.gone

    def look(self) -> None:
        """Processes the state of the cluster. Called after every change."""
        pods = self.world.pods
        if self.state == "starting" and not self._loading and not self.ending:
            ranks = {pod.rank: pod.uid for pod in pods.values() if pod.alive and not pod.backup}
            if len(ranks) == self.world.knobs.pods:
                self._loading, self.members = True, ranks
                self.clock.after(self.clock.random.choice((1.0, 5.0)), self._first_step)
        lost = [rank for rank, uid in self.members.items() if uid not in pods or pods[uid].over]
        replaced = self.switching.rank if self.state == "paused" and self.switching else None
        if self.state in (*LIVE, "asked") and [rank for rank in lost if rank != replaced] and not self.ending:
            self._stuck(lost)
        if self.boss:
            self._backups_load()
        if self.state == "training" and self.switching:
            self._backup_loads()

    def _first_step(self) -> None:
        if self.state == "starting" and self.whole() and not self.ending:
            self.state = "training"
            self.world.moment("first step")
            self.send(Message("first step", life=self.life, session=self.session))
            self.look()
        elif self.state == "starting" and self.boss and not self.ending:  # it begins when all are there
            self._loading, self.members = False, {}
            self.look()
        elif self.state == "starting" and not self.ending:
            self._stuck([rank for rank, uid in self.members.items() if uid not in self.world.pods])

    def _stuck(self, lost: list[int]) -> None:
        """Stops training, for good or until its processes are recovered."""
        self.pauses.give_way()
        if self.boss:
            self.stand()
            self.boss.look()
            return
        self.state, self.switching = "stuck", None
        if lost:
            self.clock.after(self.clock.random.choice((0.1, 1.0)), lambda: self._report_fault(tuple(lost)))

    def hang(self, rank: int) -> None:
        """Makes a process hang in a pod that still runs."""
        if self.boss:
            self.die(rank)
        elif self.state in ("training", "paused", "held"):
            self._stuck([rank])

    def die(self, rank: int) -> None:
        """Ends one process of a pod. The pod keeps running if processes are recovered, and fails otherwise."""
        pod = self.members.get(rank)
        if self.boss and pod and self.state in LIVE:
            of_switch = self.state == "paused" and self.switching and self.switching.rank == rank
            self.gone.add(self.clock.random.choice(self.ranks_of(rank)))
            if not of_switch:
                self._stuck([])
        elif holder := self.world.holder(rank):
            self.world.fail(holder.uid)

    def fail_step(self, rank: int, kind: str) -> None:
        """Makes the step fail on a rank; no process ends."""
        if self.boss and rank in self.members and self.state in ("training", "standing") and not self.ending:
            of_rank = self.clock.random.choice(self.ranks_of(rank))
            if of_rank not in self.vacant():
                self.failed[of_rank] = kind
                self._stuck([])

    # ---- what its manager does with them

    @property
    def ranks(self) -> int:
        return self.world.knobs.pods * RANKS

    @staticmethod
    def ranks_of(pod: int) -> range:
        return range(pod * RANKS, (pod + 1) * RANKS)

    def vacant(self) -> frozenset[int]:
        """Returns the ranks without a process that trains."""
        lost = [rank for rank, uid in self.members.items() if not self.live({rank: uid})]
        return frozenset((*self.gone, *(one for rank in lost for one in self.ranks_of(rank))))

    def live(self, members: dict[int, str]) -> bool:
        pods = self.world.pods
        return all(uid in pods and pods[uid].phase == "Running" for uid in members.values())

    def has_replica(self, lost: frozenset[int]) -> bool:
        """Returns whether at least one pod keeps all of its processes."""
        missing = lost | self.vacant()
        return any(missing.isdisjoint(self.ranks_of(rank)) for rank in self.members)

    def places(self, pods: Iterable[int]) -> dict[int, str]:
        """Returns the pods in which processes of these pod ranks can start, or already wait."""
        found = {}
        for rank in pods:
            own, holder = self.members[rank], self.world.holder(rank)
            if self.live({rank: own}):
                found[rank] = own
            elif holder and holder.alive:
                found[rank] = holder.uid
        return {**self.ready_backups(set(pods) - found.keys()), **found}

    def ready_backups(self, pods: Iterable[int]) -> dict[int, str]:
        wanted, members = set(pods), set(self.members.values())
        ready = (pod for pod in self.world.pods.values() if pod.alive and self._loaded.get(pod.uid) and pod.uid not in members)
        return {pod.rank: pod.uid for pod in ready if pod.rank in wanted}

    def _backups_load(self) -> None:
        for pod in self.world.pods.values():
            is_missing = self.state == "training" and pod.rank not in self.members  # made by somebody else
            if (pod.backup or is_missing) and pod.phase == "Running" and pod.uid not in self._loaded:
                self._loaded[pod.uid] = False
                self.clock.after(self.clock.random.choice((0.5, 3.0)), lambda uid=pod.uid: self._loaded.update({uid: True}))  # type: ignore[misc]

    def stand(self) -> None:
        """Stops training. The wait for ranks that are missing ends."""
        if self.state in ("training", "paused", "held"):
            self.pauses.give_way()
            self.growth.stop("a fault is being recovered")
            self.state, self.switching = "standing", None

    def take(self, ranks: frozenset[int], there: dict[int, str]) -> None:
        """Assigns these ranks to other processes."""
        for pod, uid in there.items():
            if self.members[pod] != uid:
                self.gone.difference_update(self.ranks_of(pod))
                self.links.difference_update(self.ranks_of(pod))  # a new pod begins on its first links
            if self.world.pods[uid].backup:
                self.came_as_backups.add(uid)
            self.members[pod] = uid
        self.gone.difference_update(ranks)

    def go_without(self, pods: Iterable[int]) -> None:
        """Lets pods leave. Their processes end, then the pods do, and training goes on without them."""
        for pod in pods:
            if uid := self.members.pop(pod, ""):
                self.clock.after(0.5, lambda uid=uid: self.world.fail(uid, "exit code 0"))  # type: ignore[misc]
            self.gone.difference_update(self.ranks_of(pod))
            self.links.difference_update(self.ranks_of(pod))
        self.world.moment("resized")
        self.world.moment("pods left")

    def come(self, there: dict[int, str]) -> None:
        """Takes missing pods back."""
        self.came_as_backups.update(uid for uid in there.values() if self.world.pods[uid].backup)
        self.members.update(there)
        self.world.moment("resized")
        self.world.moment("pods back")

    def missing(self) -> list[int]:
        """Returns the pod ranks that have left. Empty: none has, or training has not begun."""
        return [rank for rank in range(self.world.knobs.pods) if rank not in self.members] if self.members else []

    def hold(self, attempt: str) -> None:
        """Pauses all ranks after the same step, with their state."""
        self.state, self.held_for = "held", attempt
        self.world.moment("held")

    def move(self, links: Iterable[tuple[int, bool]]) -> None:
        for rank, backup in links:
            (self.links.add if backup else self.links.discard)(rank)
        self.world.moment("links moved")

    def is_mending(self) -> bool:
        return self.state == "standing" or bool(self.boss and self.boss.recovery)

    def blame(self) -> None:
        """Stops training after an operation that failed for an unknown reason, and reports a network fault of rank 0 to each
        manager."""
        self.failed.setdefault(0, "2")
        self._stuck([])

    def stop_for_good(self) -> None:
        """Stops training for good; its processes still exist."""
        self.state, self.switching = "stuck", None

    def go_on(self) -> None:
        self.state = "training"
        self.world.moment("repaired")

    def end(self, why: str) -> None:
        """Ends training because no rank can continue."""
        self.world.moment(f"training ends: {why}")
        self._exit()

    def _report_fault(self, lost: tuple[int, ...]) -> None:
        if self.state != "gone" and not self.session:  # a client that is not registered does not report
            self.clock.after(0.5, lambda: self._report_fault(lost))
        elif self.state != "gone":
            self.send(Message("fault", ranks=lost, session=self.session))

    # ---- orders

    def order(self, name: str, uuid: str, ranks: tuple[int, ...], pods: tuple[int, ...] = (), *, in_place: bool = False) -> None:
        if self.boss and name in (*ORDERS, UPGRADE):
            self.world.moment(f"order {name}")
            if name == UPGRADE:
                self.growth.order(uuid, pods)
            else:
                leaving = frozenset() if in_place or name not in (RECOVER, DOWNGRADE) else frozenset(pods)
                self.boss.order(Command(name, uuid, frozenset(ranks), leaving, in_place))
        elif (uuid, name) not in self._done:
            self._order_once(name, uuid, ranks)

    def _order_once(self, name: str, uuid: str, ranks: tuple[int, ...]) -> None:
        self._done.add((uuid, name))
        self.world.moment(f"order {name}")
        if isinstance(self.pauses, Mindio) and name in QUESTIONS:
            self.pauses.order(Operation(name, uuid))
        if name == "hot switch":
            self.pauses.stop("a hot switch was ordered")
            self.growth.stop("a hot switch was ordered")
        if name == "hot switch" and self.state == "training":
            self.switching = Switch(uuid, ranks[0] // RANKS)
            self._backup_loads()
        elif name == "stop switch":
            self._stop_switch()
        elif name == "migration":
            self._order_migration()

    def operate(self, operation: Operation) -> None:
        """Takes an order of an operation. Our side answers repetitions; MindIO takes each order once."""
        self.world.moment(f"order {operation.name}")
        if not self.mindio:
            self.pauses.order(operation)
        elif (operation.uuid, operation.name) not in self._done:
            self._done.add((operation.uuid, operation.name))
            self.pauses.order(operation)

    def _order_migration(self) -> None:
        if self.state == "paused":
            self._migration = token = object()
            self.clock.after(self.clock.random.choice((0.1, 2.0)), lambda: self._migrate(token))
        elif self.boss and self.boss.follows and self.state == "standing":
            self._fail_migration()
        elif self.boss and self.state == "standing":
            self.send(Message("resumed", code=406))
        elif self.boss and self.boss.follows and self.state == "training":
            self.switching = None
            self._tell_what_became_of_it(self.boss)
        elif self.mindio and self.state in ("starting", "training"):
            self.world.moment(f"wrong order: migration while {self.state}")

    def _tell_what_became_of_it(self, manager: Manager) -> None:
        """Answers an order that an earlier manager carried out. A new manager first learns from the ranks how far it got."""
        if not manager.met:
            self.clock.after(0.2, lambda: self._tell_what_became_of_it(manager))
        elif not manager.over and self.state == "training":
            self.send(Message("resumed", strategy=self.went_on))

    def _stop_switch(self) -> None:
        self.growth.stop("ordered")
        if self.state == "paused" and self.mindio:
            self._exit()
        elif self.state == "paused":
            self.state = "training"
        self.switching = None

    def _backup_loads(self) -> None:
        switch = self.switching
        backup = self._backup()
        if switch and backup and backup.phase == "Running" and not switch.loading:
            switch.loading = True
            self.clock.after(self.clock.random.choice((0.5, 3.0)), lambda: self._pause(switch))

    def _backup(self) -> "Pod | None":
        rank = self.switching.rank if self.switching else None
        backups = (pod for pod in self.world.pods.values() if pod.backup and pod.uid not in self.members.values())
        return next((pod for pod in backups if pod.rank == rank), None)

    def _pause(self, switch: Switch) -> None:
        backup = self._backup()
        if self.switching is not switch or self.state != "training" or not backup or not backup.alive:
            return
        if self.world.knobs.pauses == "never":
            return
        if switch.rank not in self.members:  # it has left
            self.switching = None
            self.send(Message("pause", offers=("exit",)))
            return
        self.state = "paused"
        self.world.moment("pause")
        self._tell_pause()
        self.clock.after(PATIENCE, lambda: self._patience_ends(switch))

    def _tell_pause(self) -> None:
        offers = ("exit",) if self.world.knobs.pauses == "exit" else ("migration", "exit")
        self.send(Message("pause", offers=offers, once=self.mindio))

    def tell_pause_again(self) -> None:
        """Repeats the report of a pause, since a new manager does not know whether it was sent."""
        if self.state == "paused" and self.switching and (self.switching.uuid, "migration") not in self._done:
            self._tell_pause()

    def _patience_ends(self, switch: Switch) -> None:
        if self.state == "paused" and self.switching is switch and (switch.uuid, "migration") not in self._done:
            if self.mindio:
                self._exit()
            else:
                self.state, self.switching = "training", None
                self.look()

    def _migrate(self, token: object) -> None:
        if token is not self._migration:  # a new manager carries the order out
            return
        self._migration = object()
        if self.boss and self.state == "standing":  # for a fault in the rebuild
            self.send(Message("resumed", code=406))
        elif self.state == "paused" and self.switching:
            self._resume(self.switching)

    def _resume(self, switch: Switch) -> None:
        rank, backup = switch.rank, self._backup() or self.world.holder(switch.rank)
        self.switching = None
        if self.world.knobs.resumes != "yes":
            if self.world.knobs.resumes == "406":
                self._fail_migration()
                return
            self.state = "standing" if self.boss else "stuck"
            if self.mindio:  # its library gives up by itself
                self.clock.after(PATIENCE, self._exit)
            return
        went_on = backup is not None and backup.alive and backup.uid != self.members[rank]
        if went_on and backup:
            self.members[rank] = backup.uid
            self.came_as_backups.add(backup.uid)
            self.gone.difference_update(self.ranks_of(rank))
            self.links.difference_update(self.ranks_of(rank))
        if not self.whole() or (self.mindio and not went_on):
            self._fail_migration()
            return
        self.state, self.went_on = "training", "migration" if went_on else "continue"
        self.world.moment("resumed")
        self.send(Message("resumed", strategy=self.went_on, once=self.mindio))

    def _fail_migration(self) -> None:
        """Reports the fault of a failed migration, and then answers the order. A new manager first learns which ranks live."""
        self.state = "standing" if self.boss else "stuck"
        if self.boss and not self.boss.met:
            self.clock.after(0.2, self._fail_migration)
            return
        if self.boss:
            self.boss.blame()
        self.send(Message("resumed", code=406, once=self.mindio))

    def _exit(self) -> None:
        """Ends all processes and their pods, as MindIO does."""
        for uid in list(self.members.values()):
            self.world.fail(uid)
        self.leave()
