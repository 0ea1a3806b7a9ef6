"""Whatever happens to a job, one recovery at a time works on it, no fault is lost, and in the end it trains and all is quiet.

The real workflows and the real intake run over a virtual clock against a world of values; a script of disturbances is tied to
what happens there. A script that found something is kept below, in its smallest form.
"""

import os
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from tests.model.world.walk import (
    HEALTHY,
    Disturbance,
    Script,
    Walk,
    explained,
    gentle_script,
    kinds,
    random_script,
    shrunk,
    switched_script,
)
from tests.model.world.world import Knobs
from tests.support.sampling import ALL

RUNS = int(os.environ.get("REKINDLE_MODEL_RUNS", "300" if ALL else "100"))
"""Number of random walks; `make model` runs many more."""

CHUNK = 50
SEEDS = 20 if ALL or RUNS > 300 else 6
"""Number of seeds for one example: the seed decides the order in a race."""


@dataclass(frozen=True)
class Example:
    """A script that once found a defect."""

    name: str
    finds: str
    script: Script


def example(name: str, finds: str, *disturbances: Disturbance, knobs: Knobs = HEALTHY, gentle: bool = False) -> Example:
    return Example(name, finds, Script(disturbances, knobs, gentle=gentle))


SUB_HEALTH = Disturbance("sub-health")
SWITCH, RESTART = Disturbance("switch asked for"), Disturbance("restart asked for")
MINDIO = Knobs(side="mindio")
RECOVERS = Knobs(allows="")
"""Knobs under which processes are recovered, in whatever way."""

DIES = Disturbance("rank dies", delay=40.0)
UNOFFERED = (Disturbance("memory fault", delay=40.0), Disturbance("rank dies", "order stop_train"))
"""A retry that is not offered: the next mode continues where it stopped, at first without an order."""

EXAMPLES = (
    example("a gateway dies with the order of a receipt", "costly", DIES, knobs=replace(RECOVERS, lost="order"), gentle=True),
    example(
        "a front that is cancelled behind the pause does not cancel the restart that has to follow",
        "dead",
        SWITCH,
        Disturbance("front cancelled", "order migration"),
        knobs=Knobs(resumes="406"),
    ),
    example(
        "the old node dies while training resumes on the backup",
        "needless",
        SUB_HEALTH,
        Disturbance("node lost", "order migration"),
    ),
    example(
        "the report of a crash arrives when the restart that it led to is over",
        "needless",
        Disturbance("process dies"),
        knobs=Knobs(late="fault"),
    ),
    example(
        "the first step of the old life arrives while the new one starts",
        "untrue",
        RESTART,
        knobs=Knobs(late="first step"),
    ),
    example(
        "the first step of a life that a lost node ended arrives while the new one starts",
        "untrue",
        Disturbance("node lost"),
        knobs=Knobs(late="first step"),
    ),
    example(
        "the old manager comes back while its pods stop",
        "untrue",
        RESTART,
        Disturbance("stream cut", "pods deleted"),
        knobs=MINDIO,
    ),
    example(
        "an old pod that could not be deleted is deleted later",
        "left behind",
        SUB_HEALTH,
        Disturbance("deletion refused"),
    ),
    example(
        "an old pod that was left behind does not keep a lost node from being recovered",
        "dead",
        SUB_HEALTH,
        Disturbance("deletion refused", rank=2),
        Disturbance("node lost", "hot switch ended", 40.0, 0),
    ),
    example(
        "a backup pod that could not be deleted is deleted later",
        "left behind",
        SUB_HEALTH,
        Disturbance("deletion refused", rank=2),
        knobs=Knobs(spares=0),
    ),
    example(
        "the cluster does not answer while a backup takes over, and training runs on",
        "needless",
        SWITCH,
        Disturbance("cluster away", "pause", 0.1, 2),
        knobs=MINDIO,
    ),
    example("a front is cancelled while it asks", "forsaken", SWITCH, Disturbance("front cancelled")),
    example(
        "a restart is cancelled when all pods are gone",
        "dead",
        RESTART,
        Disturbance("recovery cancelled", "pods deleted", 1.0),
    ),
    example(
        "the restart behind a failed hot switch is cancelled",
        "dead",
        SUB_HEALTH,
        Disturbance("recovery cancelled", "pods deleted"),
        knobs=Knobs(resumes="406"),
    ),
    example(
        "training that stands after an outage is not taken for recovered",
        "untrue",
        SUB_HEALTH,
        Disturbance("manager dies", "order migration"),
        knobs=MINDIO,
    ),
    example(
        "a pod vanishes while the watcher restarts, and the training side has not begun",
        "dead",
        Disturbance("pod vanishes", "pod runs"),
        Disturbance("watcher dies", "pod runs"),
    ),
    example(
        "a pod is evicted, and the training side has not begun",
        "dead",
        Disturbance("pod evicted", "pod runs"),
    ),
    example(
        "a pod that the restart waits for vanishes while the watcher restarts",
        "given up",
        RESTART,
        Disturbance("pod vanishes", "pods made", 0.1),
        Disturbance("watcher dies", "pods made", 0.1),
    ),
    example(
        "a pod is evicted while the restart waits for it",
        "given up",
        RESTART,
        Disturbance("pod evicted", "pods made"),
    ),
    example(
        "an entity that somebody terminated is registered again",
        "entity lost",
        Disturbance("entity terminated", delay=1.0),
    ),
    example(
        "an entity is terminated before it could note that the restart behind a hot switch has begun",
        "two recoveries at once",
        SWITCH,
        Disturbance("entity terminated", "pods deleted"),
        knobs=Knobs(resumes="406"),
    ),
    example(
        "a switch that is cancelled with the job's workflow cannot delete its backup pod yet",
        "left behind",
        SWITCH,
        Disturbance("deletion refused"),
        Disturbance("entity terminated", delay=40.0),
        knobs=Knobs(spares=0),
    ),
    example(
        "an entity is terminated when its hot switch has just ended",
        "needless",
        SUB_HEALTH,
        Disturbance("entity terminated", "hot switch ended", 0.1),
    ),
    example(
        "a lost hot switch fails while the job is only observed",
        "dead",
        SWITCH,
        Disturbance("entity terminated", delay=3.0),
        Disturbance("observed", "hot switch ended"),
        knobs=Knobs(resumes="406"),
    ),
    example(
        "a restart that somebody terminated has started all pods, and what its job's old processes told is over",
        "given up",
        Disturbance("node lost"),
        Disturbance("recovery terminated", delay=3.0),
        Disturbance("recovery terminated", "pods made"),
    ),
    example(
        "an entity is terminated before it could note that its first restart has begun",
        "two recoveries at once",
        Disturbance("process dies"),
        Disturbance("entity terminated", "pods deleted"),
        Disturbance("node lost", "pods deleted"),
    ),
    example(
        "a pod of a restart vanishes that was begun because somebody terminated the one before",
        "given up",
        RESTART,
        Disturbance("recovery terminated", delay=1.0),
        Disturbance("pod vanishes", "pods made", 0.1),
    ),
    example(
        "a rank hangs when an entity is terminated whose restart has just ended",
        "dead",
        RESTART,
        Disturbance("entity terminated", "restart ended"),
        Disturbance("rank hangs", "restart ended"),
    ),
    example(
        "a rank that was recovered dies again while its new pod is made its own",
        "forgotten",
        DIES,
        Disturbance("rank dies", "repaired", 0.01),
        knobs=Knobs(allows="recover", spares=3),
        gentle=True,
    ),
    example(
        "another rank dies while the pod that took over is made the rank's own",
        "forgotten",
        DIES,
        Disturbance("rank dies", "repaired", 0.01, 0),
        knobs=Knobs(allows="recover", spares=3),
        gentle=True,
    ),
    example(
        "an entity is terminated before a rank dies, and its gateway has others to offer first",
        "costly",
        DIES,
        Disturbance("entity terminated", delay=39.9),
        knobs=RECOVERS,
        gentle=True,
    ),
    example(
        "an entity is terminated before a pod vanishes, of which its successor is told with the job",
        "costly",
        Disturbance("pod vanishes", delay=40.0),
        Disturbance("entity terminated", delay=40.0),
        knobs=RECOVERS,
        gentle=True,
    ),
    example(
        "an entity is terminated with the second recovery since the cluster took a note",
        "needless",
        DIES,
        Disturbance("sub-health", "order recover"),
        Disturbance("cluster away", delay=39.9),
        Disturbance("entity terminated", "resumed"),
        knobs=RECOVERS,
    ),
    example(
        "a rank dies while another one starts again in its pod",
        "costly",
        DIES,
        Disturbance("rank dies", "order recover", 0.1, 0),
        knobs=RECOVERS,
        gentle=True,
    ),
    example(
        "a new pod vanishes before it has taken over",
        "costly",
        DIES,
        Disturbance("backup vanishes", "order recover"),
        knobs=Knobs(allows="recover", spares=2),
        gentle=True,
    ),
    example(
        "the new pod of one that failed is put on the node of that one",
        "costly",
        Disturbance("process dies", delay=40.0),
        Disturbance("node lost", "process fault", 0.0, 0),
        knobs=Knobs(allows="", spares=1),
        gentle=True,
    ),
    example(
        "somebody terminates a recovery whose order is being carried out",
        "wrong order",
        DIES,
        Disturbance("recovery terminated", "order recover", 0.01),
        knobs=RECOVERS,
    ),
    example(
        "a new pod vanishes when it was just made",
        "costly",
        DIES,
        Disturbance("backup vanishes", "backup made", 0.02),
        knobs=Knobs(allows="recover", spares=3),
        gentle=True,
    ),
    example(
        "a second mode is cancelled before its first order",
        "forgotten",
        *UNOFFERED,
        Disturbance("recovery cancelled", "retry ended", 0.05),
        knobs=Knobs(allows="retry,recover", spares=3),
        gentle=True,
    ),
    example(
        "an entity is terminated while a second mode starts its pods",
        "forgotten",
        *UNOFFERED,
        Disturbance("entity terminated", "retry ended", 0.3),
        knobs=Knobs(allows="retry,recover", spares=3),
        gentle=True,
    ),
    example(
        "a rank that stays dies in the rebuild of a hot switch",
        "costly",
        Disturbance("sub-health", delay=40.0),
        Disturbance("rank dies", "order migration", 0.1, 0),
        knobs=RECOVERS,
        gentle=True,
    ),
    example(
        "a rank that stays dies when a hot switch has just paused",
        "costly",
        Disturbance("sub-health", delay=40.0),
        Disturbance("rank dies", "pause", 0.0, 0),
        knobs=RECOVERS,
        gentle=True,
    ),
    example(
        "a hot switch cannot resume, and no process is faulty",
        "costly",
        Disturbance("sub-health", delay=40.0),
        knobs=Knobs(allows="", resumes="406"),
        gentle=True,
    ),
    example(
        "the manager dies with the report that training resumed",
        "costly",
        Disturbance("sub-health", delay=40.0),
        Disturbance("manager dies", "resumed"),
        knobs=Knobs(allows="", spares=1),
        gentle=True,
    ),
    example(
        "a gateway dies between the reports of two ranks that die in one recovery",
        "costly",
        Disturbance("rank dies", "first step", 40.0, 0),
        Disturbance("rank dies", "order recover", 1.0, 1),
        Disturbance("gateway dies", "process fault", 0.1, 1),
        knobs=Knobs(allows="", pods=3, spares=1),
        gentle=True,
    ),
    example(
        "the cluster is away after a recovery, and a step fails meanwhile",
        "forgotten",
        Disturbance("pod vanishes", "first step", 40.0, 1),
        Disturbance("memory fault", "elsewhere ended", 0.0, 1),
        Disturbance("cluster away", "elsewhere ended", 0.0, 2),
        knobs=Knobs(allows="", pods=3, spares=1),
        gentle=True,
    ),
    example(
        "a new pod dies when it has just taken over",
        "left behind",
        DIES,
        Disturbance("backup dies", "repaired"),
        knobs=Knobs(allows="recover", spares=2),
    ),
)


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in EXAMPLES])
def test_what_was_found_once_stays_mended(one: Example) -> None:
    """The script runs with many different delays, and all is well in the end."""
    for seed in range(SEEDS):
        script = replace(one.script, seed=seed)
        assert not Walk(script).run(), explained(script)


def test_a_stream_that_becomes_known_after_its_end_is_no_new_life() -> None:
    """The job fails at its first step. The messages of the lost manager are late, and arrive after all pods were stopped."""
    knobs = Knobs(pods=3, spares=1, slow=0.2, allows="exit")
    assert not Walk(Script((Disturbance("process dies", "first step", 0.0, 1),), knobs, loss=0.05, seed=6660)).run()


@pytest.mark.parametrize("delay", [0.02, 0.05], ids=["as the old pod is deleted", "as the backup is promoted"])
def test_a_hot_switch_that_is_terminated_after_its_hand_over_leads_to_a_restart(delay: float) -> None:
    """The backup pod has the rank, so that no mode of processes can repair another rank, and nothing may delete the pod."""
    disturbances = (
        Disturbance("sub-health", delay=40.0),
        Disturbance("rank dies", "resumed", 0.0, 0),
        Disturbance("recovery terminated", "resumed", delay),
    )
    walk = Walk(Script(disturbances, Knobs(spares=2, allows=""), seed=1))
    assert not walk.run()
    terminated, trains = walk.world.last("hot switch ended"), walk.world.last("restart ended")
    assert terminated
    assert trains
    assert trains - terminated < timedelta(minutes=1)


def test_a_hot_switch_that_is_terminated_leaves_no_backup_when_a_process_dies_meanwhile() -> None:
    """The backup pod is created as a person terminates the hot switch, so that no verdict names the pod."""
    disturbances = (
        Disturbance("process dies", "first step", 0.0, 0),
        Disturbance("sub-health", "pod runs", 1.0, 1),
        Disturbance("recovery terminated", "order hot switch", 0.01, 2),
    )
    assert not Walk(Script(disturbances, Knobs(pods=3, spares=2, allows="", late="stopped"), seed=12345)).run()


def test_a_pod_that_is_lost_in_a_hand_over_is_replaced_alone() -> None:
    """The pod that has just taken over from the first lost pod is healthy, and stays."""
    disturbances = Disturbance("process dies", delay=40.0), Disturbance("pod vanishes", "repaired", 0.05, 0)
    for seed in range(SEEDS):
        walk = Walk(Script(disturbances, Knobs(allows="retry,recover", spares=3), seed=seed, gentle=True))
        assert not walk.run()
        assert [what for _, what in walk.world.log].count("backup made") == 2, walk.story


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_random_walks_end_well(first: int) -> None:
    """Random disturbances find no defect; a found one is shown in its smallest form."""
    for seed in range(first, min(first + CHUNK, RUNS)):
        script = random_script(seed)
        for kind in sorted(kinds(Walk(script).run())):
            pytest.fail(f"seed {seed}\n{explained(shrunk(script, kind))}")


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_faults_of_processes_cost_no_restart(first: int) -> None:
    """Faults of processes cost no restart as long as one pod keeps all of its processes, whatever happens to streams, managers
    and workers."""
    for seed in range(first, min(first + CHUNK, RUNS)):
        script = switched_script(seed) if seed % 4 == 0 else gentle_script(seed)
        for kind in sorted(kinds(Walk(script).run())):
            pytest.fail(f"seed {seed}\n{explained(shrunk(script, kind))}")


def test_a_walk_is_the_same_each_time() -> None:
    """A walk is the same each time, so that the finding of a seed can be examined again."""
    script = random_script(7)
    first, second = Walk(script), Walk(script)
    assert first.run() == second.run()
    assert first.world.log == second.world.log
