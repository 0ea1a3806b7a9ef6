"""Random walks of the model: a script of disturbances at certain moments, its findings, and the smallest script with them."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tests.model.world.adapter import ENTITY
from tests.model.world.driver import START
from tests.model.world.driver_runs import Broken
from tests.model.world.plane import ControlPlane
from tests.model.world.world import Knobs, Node

DISTURBED, QUIET = timedelta(hours=2), timedelta(hours=4)
"""Time within which all disturbances have happened, and time within which everything must have settled."""

MOMENTS = (
    "first step",
    "backup made",
    "backup runs",
    "order hot switch",
    "order new pod running",
    "order migration",
    "pause",
    "resumed",
    "pods deleted",
    "pods made",
    "pod runs",
    "hot switch ended",
    "restart ended",
)
DELAYS = (0.0, 0.01, 0.1, 1.0, 3.0, 40.0)


@dataclass(frozen=True)
class Disturbance:
    """Disturbance `what` of the pod of a rank, `delay` seconds after the first `moment`."""

    what: str
    moment: str = "first step"
    delay: float = 0.0
    rank: int = 1


HEALTHY = Knobs()
WELL: dict[str, Any] = {"holds": "yes", "switches": "yes", "finds": "", "goes_on": "yes", "pauses": "yes", "resumes": "yes"}

ALLOWED = ("", "", "", "recover", "recover-in-place", "retry,recover")
"""Recovery strategies that the owners of jobs with recovered processes allow."""

OF_PROCESSES = ("process fault", "order stop_train", "order on_global_rank", "order retry", "order recover", "repaired")
OF_SWITCHES = (
    "order hot switch",
    "backup made",
    "backup runs",
    "order new pod running",
    "pause",
    "order migration",
    "resumed",
    "hot switch ended",
)
BETWEEN = ("retry ended", "in place ended", "elsewhere ended", "restart ended", "backup runs")
LATE = ("", "", "", "fault", "stopped", "offers", "status")
OF_PODS = ("process dies", "pod vanishes", "pod evicted", "pod replaced", "node lost", "node blinks")


@dataclass(frozen=True)
class Script:
    disturbances: tuple[Disturbance, ...]
    knobs: Knobs = HEALTHY
    loss: float = 0.0
    """Probability that an activity, or the answer to an update, is lost."""
    long_history: int = 10_000
    """Number of workflow tasks after which continue-as-new is suggested."""
    seed: int = 0
    gentle: bool = False
    """True if nothing in the script justifies a restart of the whole job."""


MEDDLING = ("recovery cancelled", "front cancelled", "entity terminated", "recovery terminated")
"""Disturbances after which the same fault may be recovered twice."""


class Walk:
    """Run of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.plane = ControlPlane(script.knobs, script.seed, script.loss)
        self.world, self.driver = self.plane.world, self.plane.driver
        self.world.at = self._at
        self.plane.gentle = script.gentle
        self.driver.long_history = script.long_history
        self.story: list[str] = []
        """Descriptions of the incidents in the entity's history."""
        self._left = list(script.disturbances)

    def run(self) -> list[str]:
        """Runs the script. Returns what was found; empty: nothing is wrong."""
        try:
            while self.driver.step(self.driver.now + DISTURBED) and self.driver.now < self._end(DISTURBED):
                self.plane.watch()
            self._left = []
            self._heal()
            while self.driver.step(self._end(QUIET)):
                self.plane.watch()
            self.plane.conclude()
            if self.script.gentle and self.world.last("pods deleted"):
                self.plane.found.append("costly: the job was restarted, and less would have done")
            if self.script.gentle and not any(one.what in MEDDLING for one in self.script.disturbances):
                self.plane.found += self.plane.twice()
            self.story = self.plane.story()
        except Broken as broken:
            self.plane.found.append(f"broken: {broken}")
        self.driver.kill_worker(0.0)
        return self.plane.found

    def _end(self, limit: timedelta) -> datetime:
        return START + limit

    def _at(self, moment: str) -> None:
        due = [one for one in self._left if one.moment == moment]
        self._left = [one for one in self._left if one.moment != moment]
        for one in due:
            self.driver.after(one.delay, lambda one=one: self._disturb(one))  # type: ignore[misc]

    def _disturb(self, one: Disturbance) -> None:
        if self.driver.now < self._end(DISTURBED):
            self.world.log.append((self.driver.now, f"* {one.what} {one.rank}"))
            {**DISTURBANCES, **STRIKES, **SIZES}[one.what](self, one.rank)

    def _heal(self) -> None:
        world = self.world
        world.knobs = replace(world.knobs, **WELL)
        world.knobs = replace(world.knobs, deletes=True, answers=True, starts=True)
        for number in range(2):
            world.nodes[f"new-{number}"] = Node(f"new-{number}")
        for name in world.nodes:
            world.mend(name)
        world.schedule()

    # ---- disturbances

    def die(self, rank: int) -> None:
        self.world.training.die(rank)

    def fail_step(self, rank: int, kind: str) -> None:
        self.world.training.fail_step(rank, kind)

    def fail(self, rank: int) -> None:
        if pod := self.world.holder(rank):
            self.world.fail(pod.uid)

    def vanish(self, rank: int) -> None:
        if pod := self.world.holder(rank):
            self.world.remove(pod.uid)

    def evict(self, rank: int) -> None:
        """Evicts a pod, as a drain of its node does."""
        if pod := self.world.holder(rank):
            pod.leaving = True
            self.world.change()
            self.driver.after(2.0, lambda: self.world.remove(pod.uid))

    def replace(self, rank: int) -> None:
        """Replaces a pod at once, as its controller does, unless a backup pod takes over its rank."""
        if (pod := self.world.holder(rank)) and self.world.trains() and not any(one.backup for one in self.world.pods.values()):
            self.world.replace(pod.uid)

    def restart(self) -> None:
        """Restarts all pods, as a person may while no recovery runs and the entity knows the end of the last one."""
        if not self.world.ended and not self.plane.recoveries() and self.driver.running(ENTITY):
            self.world.restart()

    def vanish_backup(self) -> None:
        for pod in [pod for pod in self.world.pods.values() if pod.backup]:
            self.world.remove(pod.uid)

    def terminate_recovery(self) -> None:
        self.plane.terminated |= bool(self.plane.recoveries())
        for run in self.plane.recoveries():
            self.driver.terminate(run.id)

    def observe(self, seconds: float) -> None:
        self._observe(observed=True)
        self.driver.after(seconds, lambda: self._observe(observed=False))

    def _observe(self, *, observed: bool) -> None:
        self.world.observed = observed
        self.world.change()

    def on_node(self, act: Callable[[str], None], rank: int) -> None:
        if (pod := self.world.holder(rank)) and pod.node:
            act(pod.node)

    def fail_backup(self) -> None:
        for pod in [pod for pod in self.world.pods.values() if pod.backup]:
            self.world.fail(pod.uid)

    def mend(self) -> None:
        for name in self.world.nodes:
            self.world.mend(name)

    def cancel_recovery(self) -> None:
        for run in self.plane.recoveries():
            self.driver.cancel(run.id)

    def forbid(self, knob: str, seconds: float) -> None:
        self._allow(knob, allowed=False)
        self.driver.after(seconds, lambda: self._allow(knob))

    def _allow(self, knob: str, *, allowed: bool = True) -> None:
        knobs = self.world.knobs
        self.world.knobs = replace(knobs, deletes=allowed) if knob == "deletes" else replace(knobs, answers=allowed)
        self.world.change()


DISTURBANCES: dict[str, Callable[[Walk, int], None]] = {
    "node lost": lambda walk, rank: walk.on_node(walk.world.lose, rank),
    "sub-health": lambda walk, rank: walk.on_node(walk.world.sicken, rank),
    "nodes back": lambda walk, rank: walk.mend(),
    "process dies": lambda walk, rank: walk.fail(rank),
    "pod vanishes": lambda walk, rank: walk.vanish(rank),
    "pod evicted": lambda walk, rank: walk.evict(rank),
    "backup dies": lambda walk, rank: walk.fail_backup(),
    "stream cut": lambda walk, rank: walk.world.training.cut(),
    "gateway dies": lambda walk, rank: walk.world.training.cut(silently=True),
    "manager dies": lambda walk, rank: walk.world.training.lose_manager(),
    "worker dies": lambda walk, rank: walk.driver.kill_worker(0.5 + rank),
    "watcher dies": lambda walk, rank: walk.plane.watcher.kill(0.5 + rank),
    "switch asked for": lambda walk, rank: walk.plane.ask("hot switch", rank),
    "links asked for": lambda walk, rank: walk.plane.ask("link switch", rank),
    "test asked for": lambda walk, rank: walk.plane.ask("stress test", rank),
    "failover asked for": lambda walk, rank: walk.plane.fail_over(rank),
    "switchback asked for": lambda walk, rank: walk.plane.switch_back(),
    "stream away": lambda walk, rank: walk.world.training.cut(away=(3.0, 20.0, 90.0)[rank]),
    "restart asked for": lambda walk, rank: walk.plane.ask("restart", rank),
    "front cancelled": lambda walk, rank: walk.plane.withdraw(),
    "recovery cancelled": lambda walk, rank: walk.cancel_recovery(),
    "deletion refused": lambda walk, rank: walk.forbid("deletes", (5.0, 60.0, 3600.0)[rank]),
    "cluster away": lambda walk, rank: walk.forbid("answers", (3.0, 15.0, 60.0)[rank]),
    "job deleted": lambda walk, rank: walk.world.end(),
    "entity terminated": lambda walk, rank: walk.driver.terminate(ENTITY),
    "node blinks": lambda walk, rank: walk.on_node(lambda name: walk.world.blink(name, (3.0, 15.0, 19.0)[rank]), rank),
    "pod replaced": lambda walk, rank: walk.replace(rank),
    "job restarted": lambda walk, rank: walk.restart(),
    "backup vanishes": lambda walk, rank: walk.vanish_backup(),
    "recovery terminated": lambda walk, rank: walk.terminate_recovery(),
    "rank hangs": lambda walk, rank: walk.world.training.hang(rank),
    "observed": lambda walk, rank: walk.observe((3.0, 30.0, 300.0)[rank]),
    "policy lifted": lambda walk, rank: walk.plane.lift(),
}

SIZES: dict[str, Callable[[Walk, int], None]] = {
    "size asked for": lambda walk, rank: walk.plane.ask("size", rank),
}
"""Disturbances of jobs whose owners allow several sizes."""


STRIKES: dict[str, Callable[[Walk, int], None]] = {
    "rank dies": lambda walk, rank: walk.die(rank),
    "memory fault": lambda walk, rank: walk.fail_step(rank, "0"),
    "network fault": lambda walk, rank: walk.fail_step(rank, "2"),
}
"""Disturbances of processes, for jobs whose processes are recovered."""


def random_script(seed: int) -> Script:
    """Returns a script; with an odd seed it is for a job whose processes are recovered."""
    return _script_of_processes(seed) if seed % 2 else _script(seed)


def _script_of_processes(seed: int) -> Script:
    chance = random.Random(seed)
    knobs = Knobs(
        spares=chance.choice((0, 1, 1, 2)),
        pauses=chance.choice(("yes",) * 8 + ("never", "exit")),
        resumes=chance.choice(("yes",) * 8 + ("406", "never")),
        slow=chance.choice((0.0, 0.0, 0.2)),
        doubled=chance.random() < 0.2,
        allows=chance.choice(ALLOWED),
        late=chance.choice(LATE),
    )
    strikes, moments = (*STRIKES, *DISTURBANCES), (*OF_PROCESSES, *OF_PROCESSES, *BETWEEN, *MOMENTS)
    first = Disturbance(
        chance.choice(("rank dies",) * 3 + ("memory fault", "network fault", "node lost", "process dies", "sub-health")),
        rank=chance.randrange(3),
    )
    more = [
        Disturbance(chance.choice((*STRIKES, *strikes)), chance.choice(moments), chance.choice(DELAYS), chance.randrange(3))
        for _ in range(chance.randrange(6))
    ]
    return Script((first, *more), knobs, chance.choice((0.0, 0.0, 0.05, 0.2)), chance.choice((10_000, 10_000, 4)), seed)


def switched_script(seed: int) -> Script:
    """Returns a script with a hot switch in which other processes end or fail; nothing justifies a restart of the job."""
    chance = random.Random(seed)
    knobs = Knobs(
        allows="", resumes=chance.choice(("yes", "yes", "406")), doubled=chance.random() < 0.2, late=chance.choice(("", "status"))
    )
    strikes = [
        Disturbance(chance.choice(tuple(STRIKES)), chance.choice(OF_SWITCHES), chance.choice(DELAYS), chance.choice((0, 2)))
        for _ in range(chance.choice((1, 1, 2)))
    ]
    more = [
        Disturbance(chance.choice(HARMLESS[:-1]), chance.choice((*OF_SWITCHES, *OF_PROCESSES)), chance.choice(DELAYS))
        for _ in range(chance.randrange(3))
    ]
    return Script((Disturbance("sub-health", delay=40.0), *strikes, *more), knobs, 0.0, 10_000, seed, gentle=True)


HARMLESS = ("stream cut", "gateway dies", "manager dies", "worker dies", "watcher dies", "cluster away", "backup vanishes")


def gentle_script(seed: int) -> Script:
    """Returns a script in which processes of two pods end or fail while the third keeps its own; nothing justifies a restart."""
    chance = random.Random(seed)
    strikes_at = chance.choice((("rank dies", *STRIKES), ("rank dies", *STRIKES), (*STRIKES, *OF_PODS)))
    knobs = Knobs(
        spares=4 if strikes_at[-1] == OF_PODS[-1] else 1,
        doubled=chance.random() < 0.2,
        allows="",
        late=chance.choice(("", *(kind for kind in LATE if kind != "fault"))),  # the report of a fault is only waited for briefly
    )
    strikes = [
        Disturbance(
            chance.choice(strikes_at),
            chance.choice((*OF_PROCESSES, *BETWEEN)) if number else "first step",
            chance.choice(DELAYS) if number else 40.0,  # when its first step is known
            chance.randrange(2),
        )
        for number in range(chance.choice((1, 1, 2, 3)))
    ]
    more = [
        Disturbance(chance.choice(HARMLESS), chance.choice((*OF_PROCESSES, *BETWEEN)), chance.choice(DELAYS), chance.randrange(3))
        for _ in range(chance.randrange(4))
    ]
    loss, long_history = chance.choice((0.0, 0.0, 0.05)), chance.choice((10_000, 10_000, 4))
    return Script((*strikes, *more), knobs, loss, long_history, seed, gentle=True)


def _script(seed: int) -> Script:
    chance = random.Random(seed)
    knobs = Knobs(
        side=chance.choice(("rekindle", "rekindle", "mindio")),
        spares=chance.choice((0, 1, 1, 2)),
        pauses=chance.choice(("yes",) * 6 + ("never", "exit")),
        resumes=chance.choice(("yes",) * 5 + ("406", "never")),
        slow=chance.choice((0.0, 0.0, 0.2)),
        doubled=chance.random() < 0.2,
    )
    first = Disturbance(
        chance.choice(("sub-health", "sub-health", "switch asked for", "restart asked for", "node lost", "process dies"))
    )
    more = [
        Disturbance(chance.choice(tuple(DISTURBANCES)), chance.choice(MOMENTS), chance.choice(DELAYS), chance.randrange(3))
        for _ in range(chance.randrange(6))
    ]
    return Script((first, *more), knobs, chance.choice((0.0, 0.0, 0.05, 0.2)), chance.choice((10_000, 10_000, 4)), seed)


def kinds(found: list[str]) -> set[str]:
    return {one.split(":")[0] for one in found}


def smaller(script: Script) -> Iterator[Script]:
    """Yields scripts that are simpler by one element."""
    those = script.disturbances
    for i in range(len(those)):
        yield replace(script, disturbances=(*those[:i], *those[i + 1 :]))
    yield replace(script, loss=0.0)
    yield replace(script, long_history=Script.long_history)
    for name, plain in vars(replace(HEALTHY, allows="") if script.gentle else HEALTHY).items():
        yield replace(script, knobs=replace(script.knobs, **{name: plain}))
    for i, one in enumerate(those):
        plainer = (replace(one, rank=1), *(() if script.gentle else (replace(one, delay=0.0), replace(one, moment="first step"))))
        for another in plainer:
            yield replace(script, disturbances=(*those[:i], another, *those[i + 1 :]))


def shrunk(script: Script, kind: str) -> Script:
    """Returns the smallest script that still has a finding of this kind."""
    while True:
        for candidate in smaller(script):
            if candidate != script and kind in kinds(Walk(candidate).run()):
                script = candidate
                break
        else:
            return script


def explained(script: Script) -> str:
    """Returns the script, its events and its findings as text."""
    walk = Walk(script)
    found = walk.run()
    lines = [f"{(when - START).total_seconds():10.3f} {what}" for when, what in walk.world.log]
    return "\n".join([repr(script), *lines, *walk.story, *(f"FOUND {one}" for one in found)])
