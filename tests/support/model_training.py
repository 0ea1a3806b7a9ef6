"""The training side of the model: its manager and its processes, as strict as the real ones. Made by the `World`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.model_world import Pod, World

PATIENCE = 30.0
"""Seconds that a paused training side waits for its order."""
RANKS = 2
"""Of each pod."""


@dataclass(frozen=True)
class Message:
    """From the training side: attach, detach, pause, resumed, fault, first step."""

    kind: str
    session: str = ""
    queue: str = ""
    offers: tuple[str, ...] = ()
    code: int = 0
    strategy: str = ""
    ranks: tuple[int, ...] = ()
    life: str = ""
    client: str = ""
    """Which process speaks, where that matters."""
    once: bool = False
    """Nobody sends it again where it is lost."""


@dataclass
class Switch:
    uuid: str
    rank: int
    loading: bool = False


class Training:
    """Of one generation of pods. Its state: starting, training, paused, stuck, gone."""

    def __init__(self, world: "World") -> None:
        self.world, self.clock = world, world.clock
        self.state = "starting"
        self.life = f"life-{world.number()}"
        self.members: dict[int, str] = {}
        self.session = ""
        """Of the open stream."""
        self.queue = ""
        self.ordered_by = ""
        """Who gave the last order on this stream."""
        self.manager = 1
        """How many processes were the manager so far."""
        self.switching: Switch | None = None
        self.ending = False
        self._done: set[tuple[str, str]] = set()
        self._loading = self._met = False
        self.clock.after(self.clock.random.choice((0.3, 1.0)), self.connect)

    @property
    def mindio(self) -> bool:
        return self.world.knobs.side == "mindio"

    def send(self, message: Message) -> None:
        knobs = self.world.knobs
        slow = message.kind == knobs.late or self.clock.random.random() < knobs.slow
        delay = self.clock.random.uniform(6.0, 12.0) if slow else 0.01
        for sent in range(2 if knobs.doubled and message.kind in ("pause", "resumed") else 1):
            self.clock.after(delay + 0.05 * sent, lambda: self.world.receive(message, self))

    # ---- the stream

    def connect(self) -> None:
        if self.state == "gone" or self.session:
            return
        if self.mindio and not self._manager_lives():
            self._met = False
            self.clock.after(0.5, self.connect)
            return
        if self.mindio and not self._met:  # it starts with the processes of its pod
            self._met = True
            self.clock.after(2.0, self.connect)
            return
        self.session, self.queue = f"session-{self.world.number()}", f"gateway/{self.clock.random.choice('ab')}"
        if self is self.world.training:
            self.world.moment("attached")
        self.ordered_by = ""
        self.send(self.attachment())

    def attachment(self) -> Message:
        """The open stream, with what its gateway heard of the first step."""
        client = f"10.0.0.1 {self.life} {self.manager}" if self.mindio else ""
        trains = self.state in ("training", "paused") and not self.mindio
        return Message("attach", session=self.session, queue=self.queue, client=client, life=self.life if trains else "")

    def _manager_lives(self) -> bool:
        return any(pod.rank == 0 and pod.phase == "Running" for pod in self.world.pods.values())

    def cut(self, *, silently: bool = False) -> None:
        """The stream breaks, and the client comes back. A gateway that died says nothing of it."""
        if self.session:
            if not silently:
                self.send(Message("detach", session=self.session))
            self.session = ""
            self.clock.after(self.clock.random.choice((0.1, 1.0)), self.connect)

    def lose_manager(self) -> None:
        """Another process is the manager from now on. MindIO's knows nothing of what its predecessor was told."""
        self.manager += 1
        if self.mindio:
            if self.state == "paused":
                self.state = "stuck"
            self.switching = None
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
        return bool(self.members) and all(uid in pods and pods[uid].phase == "Running" for uid in self.members.values())

    def look(self) -> None:
        """Called whenever the cluster changed."""
        pods = self.world.pods
        if self.state == "starting" and not self._loading and not self.ending:
            ranks = {pod.rank: pod.uid for pod in pods.values() if pod.alive and not pod.backup}
            if len(ranks) == self.world.knobs.pods:
                self._loading, self.members = True, ranks
                self.clock.after(self.clock.random.choice((1.0, 5.0)), self._first_step)
        lost = [rank for rank, uid in self.members.items() if uid not in pods or pods[uid].over]
        replaced = self.switching.rank if self.state == "paused" and self.switching else None
        if self.state in ("training", "paused") and [rank for rank in lost if rank != replaced] and not self.ending:
            self._stuck(lost)
        if self.state == "training" and self.switching:
            self._backup_loads()

    def _first_step(self) -> None:
        if self.state == "starting" and self.whole() and not self.ending:
            self.state = "training"
            self.world.moment("first step")
            self.send(Message("first step", life=self.life, session=self.session))
            self.look()
        elif self.state == "starting" and not self.ending:
            self._stuck([rank for rank, uid in self.members.items() if uid not in self.world.pods])

    def _stuck(self, lost: list[int]) -> None:
        self.state, self.switching = "stuck", None
        if lost:
            self.clock.after(self.clock.random.choice((0.1, 1.0)), lambda: self._report_fault(tuple(lost)))

    def hang(self, rank: int) -> None:
        """A process stands, and its pod runs on."""
        if self.state in ("training", "paused"):
            self._stuck([rank])

    def _report_fault(self, lost: tuple[int, ...]) -> None:
        if self.state != "gone" and not self.session:  # who is not registered reports nothing
            self.clock.after(0.5, lambda: self._report_fault(lost))
        elif self.state != "gone":
            self.send(Message("fault", ranks=lost, session=self.session))

    # ---- orders

    def order(self, name: str, uuid: str, ranks: tuple[int, ...]) -> None:
        if (uuid, name) in self._done:
            return
        self._done.add((uuid, name))
        self.world.moment(f"order {name}")
        if name == "hot switch" and self.state == "training":
            self.switching = Switch(uuid, ranks[0] // RANKS)
            self._backup_loads()
        elif name == "stop switch":
            self._stop_switch()
        elif name == "migration":
            if self.state == "paused":
                self.clock.after(self.clock.random.choice((0.1, 2.0)), self._migrate)
            elif self.mindio and self.state in ("starting", "training"):
                self.world.moment(f"wrong order: migration while {self.state}")

    def _stop_switch(self) -> None:
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
        return next((pod for pod in self.world.pods.values() if pod.backup and pod.rank == rank), None)

    def _pause(self, switch: Switch) -> None:
        backup = self._backup()
        if self.switching is not switch or self.state != "training" or not backup or not backup.alive:
            return
        if self.world.knobs.pauses == "never":
            return
        self.state = "paused"
        offers = ("exit",) if self.world.knobs.pauses == "exit" else ("migration", "exit")
        self.world.moment("pause")
        self.send(Message("pause", offers=offers, once=self.mindio))
        self.clock.after(PATIENCE, lambda: self._patience_ends(switch))

    def _patience_ends(self, switch: Switch) -> None:
        if self.state == "paused" and self.switching is switch and (switch.uuid, "migration") not in self._done:
            if self.mindio:
                self._exit()
            else:
                self.state, self.switching = "training", None
                self.look()

    def _migrate(self) -> None:
        if self.state != "paused" or self.switching is None:
            return
        rank, backup = self.switching.rank, self._backup() or self.world.holder(self.switching.rank)
        self.switching = None
        if self.world.knobs.resumes != "yes":
            self.state = "stuck"
            if self.world.knobs.resumes == "406":
                self.send(Message("resumed", code=406, once=self.mindio))
            elif self.mindio:  # its library gives up by itself
                self.clock.after(PATIENCE, self._exit)
            return
        went_on = backup is not None and backup.alive and backup.uid != self.members[rank]
        if went_on and backup:
            self.members[rank] = backup.uid
        if not self.whole() or (self.mindio and not went_on):
            self.state = "stuck"
            self.send(Message("resumed", code=406, once=self.mindio))
            return
        self.state = "training"
        self.world.moment("resumed")
        self.send(Message("resumed", strategy="migration" if went_on else "continue", once=self.mindio))

    def _exit(self) -> None:
        """As MindIO does: all of its processes end, and the pods with them."""
        for uid in list(self.members.values()):
            self.world.fail(uid)
        self.leave()
