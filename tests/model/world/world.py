"""Simulated job with its pods and training side, for the model of the entity. It knows nothing of the control plane.

Pods have holders, generations and nodes. The training side answers orders with messages, and is as strict as the real ones.
Events have names (`moment`), to which a script ties its disturbances.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from tests.model.world.messages import Message
from tests.model.world.mindio import Mindio
from tests.model.world.training import Training

PATIENCE = 60.0
"""Seconds that a paused training side waits for its order."""

RANKS = 2
"""Number of ranks of each pod."""


class Clock(Protocol):
    now: datetime
    random: random.Random

    def after(self, seconds: float, work: Callable[[], None]) -> Any: ...


class Refused(Exception):
    """The cluster refuses a call, and a repetition would not help."""


class Missing(Refused):
    """The pod does not exist."""


class Away(Exception):
    """The cluster does not answer at the moment."""


@dataclass
class Node:
    name: str
    ready: bool = True
    sick: bool = False
    isolated: str = ""
    """Reason why new pods avoid the node; empty: they do not."""
    since: datetime | None = None
    """Time of the last change of `ready` or `sick`."""


@dataclass
class Pod:
    uid: str
    name: str
    rank: int
    generation: str
    backup: bool = False
    node: str = ""
    phase: str = "Pending"
    leaving: bool = False
    avoid: tuple[str, ...] = ()
    words: str = ""

    @property
    def number(self) -> int:
        return int(self.uid.removeprefix("uid-"))

    @property
    def alive(self) -> bool:
        return self.phase == "Running" and not self.leaving

    @property
    def over(self) -> bool:
        return self.phase == "Failed"


@dataclass(frozen=True)
class Knobs:
    """Differences of a run from a healthy one."""

    side: str = "rekindle"
    pods: int = 3
    spares: int = 1
    pauses: str = "yes"
    """Pause of a hot switch: yes; never; exit: only `exit` is offered."""
    resumes: str = "yes"
    """Resumption after a hot switch: yes; 406; never."""
    deletes: bool = True
    """True if the cluster allows single pods to be deleted."""
    answers: bool = True
    starts: bool = True
    """True if new pods start."""
    slow: float = 0.0
    """Probability that a message of the training side is delayed by seconds."""
    late: str = ""
    """Kind of messages that are always delayed by seconds; empty: none."""
    holds: str = "yes"
    """Answer to an operation: yes; no: it cannot pause; never (MindIO): it says nothing."""
    switches: str = "yes"
    """Result of a link switch: yes; no: all ranks stay on their links; torn: neither link works."""
    finds: str = ""
    """Result of a stress test: nothing wrong; fault; silent; untested; nothing: there are no results."""
    goes_on: str = "yes"
    """Continuation after an operation: yes; no: it fails."""
    lost: str = ""
    """Kind of message of which the first one is lost with its gateway; empty: none. Our training side repeats it, and it is
    stored late. `order`: the first order that a receipt contains."""
    doubled: bool = False
    """True if each report is sent twice."""
    allows: str = "exit"
    """Recoveries of processes that the job's owner allows; empty: the owner says nothing, so that all are allowed."""
    elastic: str = ""
    """Sizes that the job's owner allows, as in the annotation; empty: no other one."""


class World:
    def __init__(self, clock: Clock, knobs: Knobs) -> None:
        self.clock, self.knobs = clock, knobs
        self.nodes = {f"node-{i}": Node(f"node-{i}") for i in range(knobs.pods + knobs.spares)}
        self.pods: dict[str, Pod] = {}
        self.changed: list[Callable[[], None]] = []
        self.at: Callable[[str], None] = lambda moment: None
        self.log: list[tuple[datetime, str]] = []
        self.generation = "0"
        self.ended = False
        """True if the job's object was deleted."""
        self.observed = False
        """True if the job is only observed, and nothing may be done for it."""
        self.receive: Callable[[Message, Training], None] = lambda message, sender: None
        self.restarting: Callable[[], None] = lambda: None
        self._numbers = itertools.count(1)
        self.training = Training(self)
        self._make("0", ())

    def number(self) -> int:
        return next(self._numbers)

    def moment(self, name: str) -> None:
        self.log.append((self.clock.now, name))
        self.at(name)

    def last(self, name: str) -> datetime | None:
        return next((when for when, what in reversed(self.log) if what == name), None)

    def change(self) -> None:
        self.training.look()
        for told in list(self.changed):
            told()

    # ---- what a control plane asks of a cluster

    def holder(self, rank: int) -> Pod | None:
        return next((pod for pod in self.pods.values() if pod.rank == rank and not pod.backup and not pod.leaving), None)

    def answer(self) -> None:
        if not self.knobs.answers:
            raise Away("the cluster does not answer")

    def make_backup(self, rank: int, suffix: str, avoid: Iterable[str]) -> tuple[Pod, Pod]:
        self.answer()
        old = self.holder(rank)
        if old is None:
            raise Missing(f"no pod holds pod rank {rank}")
        return old, self._backup(old, rank, suffix, (*avoid, old.node))

    def replace_lost(self, rank: int, suffix: str, avoid: Iterable[str], *, waits: bool = False) -> tuple[Pod | None, Pod]:
        """Creates a backup pod for a rank that lost its pod. Returns the pod that held the rank, if it exists, and the backup
        pod.

        Args:
            waits: a node that is lost now may come back for the new pod.
        """
        self.answer()
        lost = {node.name for node in self.nodes.values() if not node.ready}
        lost_nodes = set(avoid) - lost if waits else set(avoid) | lost
        own = [pod for pod in self.pods.values() if pod.rank == rank and not pod.backup]
        old = max(own, key=lambda pod: (not pod.alive or pod.node in lost_nodes, pod.number), default=None)
        return old, self._backup(old, rank, suffix, lost_nodes)

    def _backup(self, old: Pod | None, rank: int, suffix: str, avoid: Iterable[str]) -> Pod:
        name = f"gpt-worker-{rank}-hot-{suffix}"
        for pod in self.pods.values():
            if pod.name == name and pod.leaving:
                raise Away(f"pod {name} ends")
            if pod.name == name:
                return pod
        backup = self._put(name, rank, old.generation if old else self.generation, tuple(avoid), backup=True)
        self.moment("backup made")
        return backup

    def promote(self, uid: str) -> None:
        self.answer()
        if uid not in self.pods:
            raise Refused("the backup pod is gone")
        self.pods[uid].backup = False
        self.change()

    def delete(self, uid: str, grace: float, *, one: bool = True) -> None:
        self.answer()
        pod = self.pods.get(uid)
        if pod is None:
            return
        if one and not self.knobs.deletes:
            raise Refused(f"pod {pod.name} may not be deleted")
        at_once = not grace or pod.phase != "Running"
        ends = 0.02 if at_once else self.clock.random.uniform(0.1, grace)
        pod.leaving = True
        self.clock.after(ends, lambda: self.remove(uid))
        self.change()

    def delete_backups(self, grace: float) -> list[Pod]:
        backups = [pod for pod in self.pods.values() if pod.backup]
        for pod in backups:
            self.delete(pod.uid, grace)
        return backups

    def delete_all(self, grace: float) -> list[Pod]:
        self.answer()
        self.restarting()
        pods = list(self.pods.values())
        self.moment("pods deleted")
        self.training.told_to_end(grace)
        for pod in pods:
            self.delete(pod.uid, grace, one=False)
        return pods

    def make_pods(self, generation: str, avoid: Iterable[str]) -> list[Pod]:
        self.answer()
        if self.generation != generation:
            self.generation = generation
            self.training.leave()
            self.training = Training(self)
            self.moment("pods made")
        self._make(generation, tuple(avoid))
        return list(self.pods.values())

    def _make(self, generation: str, avoid: tuple[str, ...]) -> None:
        for rank in range(self.knobs.pods):
            if not any(pod.rank == rank for pod in self.pods.values()):
                self._put(f"gpt-worker-{rank}", rank, generation, avoid)

    def _put(self, name: str, rank: int, generation: str, avoid: tuple[str, ...], *, backup: bool = False) -> Pod:
        pod = Pod(f"uid-{self.number()}", name, rank, generation, backup=backup, avoid=avoid)
        self.pods[pod.uid] = pod
        self.schedule()
        return pod

    # ---- what happens in a cluster

    def end(self) -> None:
        """Deletes the job and its pods."""
        self.ended = True
        self.training.leave()
        for uid in list(self.pods):
            self.remove(uid)
        self.change()

    def schedule(self) -> None:
        used = {pod.node for pod in self.pods.values() if not pod.over}
        for pod in self.pods.values():
            free = [n for n in self.nodes.values() if n.ready and not n.isolated and n.name not in (*used, *pod.avoid)]
            if pod.phase == "Pending" and not pod.node and not pod.leaving and free:
                pod.node = min(free, key=lambda node: node.sick).name
                used.add(pod.node)
                self.clock.after(self.clock.random.choice((0.2, 1.0, 4.0)), lambda pod=pod: self._run(pod))  # type: ignore[misc]
        self.change()

    def _run(self, pod: Pod) -> None:
        if pod.uid not in self.pods or pod.phase != "Pending" or pod.leaving:
            return
        if self.knobs.starts:
            pod.phase = "Running"
            self.moment("backup runs" if pod.backup else "pod runs")
            self.change()
        else:
            self.fail(pod.uid, "the image cannot be pulled")

    def fail(self, uid: str, words: str = "exit code 1") -> None:
        pod = self.pods.get(uid)
        if pod and not pod.over:
            pod.phase, pod.words = "Failed", words
            self.schedule()

    def remove(self, uid: str) -> None:
        if self.pods.pop(uid, None):
            self.schedule()

    def lose(self, name: str) -> None:
        node = self.nodes[name]
        if node.ready:
            node.ready, node.since = False, self.clock.now
            for pod in [pod for pod in self.pods.values() if pod.node == name]:
                self.fail(pod.uid, f"node {name} is lost")
            self.change()

    def mend(self, name: str, *, released: bool = True) -> None:
        node = self.nodes[name]
        node.isolated = "" if released else node.isolated
        if not node.ready or node.sick:
            node.ready, node.sick, node.since = True, False, self.clock.now
            self.schedule()

    def blink(self, name: str, seconds: float) -> None:
        """Makes a node not ready for some seconds; its pods keep running."""
        node = self.nodes[name]
        if node.ready:
            node.ready, node.since = False, self.clock.now
            self.change()
            self.clock.after(seconds, lambda: self.mend(name, released=False))

    def isolate(self, name: str, reason: str) -> None:
        """Isolates a node; it is released at the end of the run."""
        self.nodes[name].isolated = self.nodes[name].isolated or reason
        self.change()

    def replace(self, uid: str) -> None:
        """Replaces a pod by another one at once, as its controller does."""
        if pod := self.pods.pop(uid, None):
            self._put(pod.name, pod.rank, pod.generation, ())

    def restart(self) -> None:
        """Restarts all pods, as a user would, and not the control plane."""
        self.training.leave()
        self.pods.clear()
        self.training = Training(self)
        self._make(self.generation, ())

    def sicken(self, name: str) -> None:
        node = self.nodes[name]
        if node.ready and not node.sick:
            node.sick, node.since = True, self.clock.now
            self.change()

    # ---- how the job is

    def trains(self) -> bool:
        return self.training.state == "training" and self.training.whole()

    def trains_undisturbed(self) -> bool:
        """Returns whether the job trains and none of its pods is terminating."""
        return self.trains() and not any(self.pods[uid].leaving for uid in self.training.members.values())

    def problems(self) -> list[str]:
        """Returns what is wrong after all disturbances have ended."""
        found = [] if self.trains() else [f"dead: the training side is {self.training.state}, pods {self._pods()}"]
        found += [f"left behind: backup pod {pod.name}" for pod in self.pods.values() if pod.backup]
        holders = Counter(pod.rank for pod in self.pods.values() if not pod.backup)
        found += [f"left behind: {count} pods hold rank {rank}" for rank, count in sorted(holders.items()) if count > 1]
        return found + (["held: no agent starts processes"] if self.agents_held() else [])

    def agents_held(self) -> bool:
        pauses = self.training.pauses
        return isinstance(pauses, Mindio) and pauses.agents_held and self.training.state != "gone"

    def _pods(self) -> str:
        return ", ".join(f"{pod.name} {pod.phase}" for pod in self.pods.values()) or "none"
