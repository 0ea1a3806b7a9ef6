"""Training goes on, whatever happens to an operation on its job: no rank stays held, links are where they are known.

Walks of the same model as in `test_entity`: link switches, stress tests and maintenances of links, of our own training side
and of MindIO.
"""

import os
from dataclasses import replace

import pytest

from tests.model.test_entity import MINDIO, RECOVERS, SEEDS, Example, example
from tests.model.world.scripts import gentle_maintained_script, gentle_operated_script, maintained_script, operated_script
from tests.model.world.walk import Disturbance, Script, Walk, explained, kinds, shrunk
from tests.model.world.world import Knobs

RUNS = max(50, int(os.environ.get("REKINDLE_MODEL_RUNS", "0")) // 4)
"""Random walks of each of the four kinds; `make model` makes many more."""

CHUNK = 25

LINKS, TEST = Disturbance("links asked for", delay=40.0), Disturbance("test asked for", delay=40.0)
OVER, BACK = Disturbance("failover asked for", delay=40.0), Disturbance("switchback asked for", delay=600.0)

EXAMPLES = (
    example("links are switched", "misplaced", LINKS, knobs=RECOVERS, gentle=True),
    example("devices are tested", "dead", TEST, knobs=RECOVERS, gentle=True),
    example(
        "links are moved, and training does not go on behind it",
        "misplaced",
        LINKS,
        knobs=Knobs(allows="", goes_on="no"),
        gentle=True,
    ),
    example(
        "a process dies when links were just moved",
        "misplaced",
        LINKS,
        Disturbance("rank dies", "links moved", 0.0, 0),
        knobs=RECOVERS,
        gentle=True,
    ),
    example(
        "all pods of a job are made anew whose links were moved",
        "misplaced",
        Disturbance("links asked for"),
        Disturbance("job restarted", delay=40.0),
    ),
    example(
        "an entity is terminated with the recovery of a pod whose links were moved",
        "misplaced",
        LINKS,
        Disturbance("process dies", "link switch ended"),
        Disturbance("entity terminated", "link switch ended", 0.1),
        knobs=RECOVERS,
    ),
    example(
        "an entity is terminated with a link switch that a fault ends",
        "costly",
        LINKS,
        Disturbance("entity terminated", "order switch links", 0.1),
        knobs=Knobs(allows="", goes_on="no"),
        gentle=True,
    ),
    example(
        "an entity is terminated with a stress test that a fault ends",
        "costly",
        TEST,
        Disturbance("entity terminated", "order stress test", 3.0),
        knobs=Knobs(allows="", goes_on="no"),
        gentle=True,
    ),
    example(
        "a stress test finds a fault, and the agents of MindIO may start processes again",
        "held",
        TEST,
        knobs=replace(MINDIO, finds="fault"),
    ),
    example(
        "a front of a stress test is cancelled",
        "dead",
        TEST,
        Disturbance("front cancelled", "order stress test"),
        knobs=MINDIO,
    ),
    example(
        "the last report of a link switch dies with its gateway, and MindIO trains on",
        "needless",
        LINKS,
        knobs=replace(MINDIO, lost="went on"),
    ),
    example(
        "a process dies, and its report is sent again before the first one is stored",
        "twice",
        Disturbance("rank dies", delay=40.0),
        knobs=Knobs(allows="", lost="fault"),
        gentle=True,
    ),
    example(
        "a recovery's last report comes while its job's workflow is lost",
        "costly",
        LINKS,
        Disturbance("entity terminated", "order retry"),
        knobs=Knobs(allows="", switches="torn", lost="switched"),
        gentle=True,
    ),
    example(
        "the cluster does not answer for so long that training goes on without an order",
        "untrue",
        TEST,
        Disturbance("cluster away", "held", rank=2),
    ),
    example("links are failed over and switched back", "not its own", OVER, BACK, knobs=RECOVERS, gentle=True),
    example("links of MindIO are failed over and switched back", "not its own", OVER, BACK, knobs=MINDIO),
    example(
        "a second maintenance of the same links is refused",
        "restless",
        OVER,
        Disturbance("failover asked for", delay=50.0),
        knobs=RECOVERS,
        gentle=True,
    ),
    example(
        "a job has moved links when its workflow is terminated, and its stream is away",
        "not its own",
        OVER,
        Disturbance("entity terminated", "link switch ended"),
        Disturbance("stream away", "link switch ended", rank=2),
        knobs=RECOVERS,
        gentle=True,
    ),
    example(
        "training never goes on by itself behind links that a maintenance has moved",
        "not its own",
        OVER,
        knobs=Knobs(allows="", goes_on="no"),
        gentle=True,
    ),
    example(
        "a switchback is asked for while nobody knows whether links were moved",
        "not its own",
        OVER,
        Disturbance("switchback asked for", "went on"),
        Disturbance("entity terminated", "link switch ended"),
        knobs=RECOVERS,
        gentle=True,
    ),
    example(
        "a job's workflow is terminated while it mends what came behind moved links",
        "misplaced",
        OVER,
        Disturbance("entity terminated", "order continue", 1.0),
        knobs=Knobs(allows="", goes_on="no"),
        gentle=True,
    ),
)


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in EXAMPLES])
def test_what_was_found_of_operations_stays_mended(one: Example) -> None:
    """The script runs with many different delays, and all is well in the end."""
    for seed in range(SEEDS):
        script = replace(one.script, seed=seed)
        assert not Walk(script).run(), explained(script)


OVER_AT_ONCE = Disturbance("failover asked for", "first step", 0.0)

RARE = {
    "a test is asked for before the first step, at which MindIO does not pause": Script(
        (Disturbance("test asked for", "pod runs", 0.0),), Knobs(side="mindio", allows="exit"), 0.2, 10_000, 5488
    ),
    "a job's workflow is terminated before it has answered that it accepted a maintenance": Script(
        (OVER_AT_ONCE, Disturbance("entity terminated", "order switch links", 0.0)), Knobs(allows="exit"), 0.0, 10_000, 1654
    ),
    "a switchback is asked for while a lost switch of links comes to its end": Script(
        (OVER, Disturbance("switchback asked for", "held", 0.0), Disturbance("entity terminated", "order switch links", 0.0)),
        Knobs(allows="exit"),
        0.05,
        10_000,
        466,
    ),
}
"""Scripts that found something with few of thousands of seeds, each with one of those."""


@pytest.mark.parametrize("script", [pytest.param(script, id=name) for name, script in RARE.items()])
def test_what_was_found_with_one_seed_stays_mended(script: Script) -> None:
    """The walk with this seed ends well."""
    assert not Walk(script).run(), explained(script)


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_random_walks_with_operations_end_well(first: int) -> None:
    """Training sides of ours and of MindIO are walked, whatever else happens to the job."""
    for seed in range(first, min(first + CHUNK, RUNS)):
        script = operated_script(seed)
        for kind in sorted(kinds(Walk(script).run())):
            pytest.fail(f"seed {seed}\n{explained(shrunk(script, kind))}")


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_operations_cost_no_restart(first: int) -> None:
    """Ours goes on, or its processes are recovered, whatever becomes of the operation."""
    for seed in range(first, min(first + CHUNK, RUNS)):
        script = gentle_operated_script(seed)
        for kind in sorted(kinds(Walk(script).run())):
            pytest.fail(f"seed {seed}\n{explained(shrunk(script, kind))}")


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_random_walks_with_maintenances_end_well(first: int) -> None:
    """Training sides of ours and of MindIO are walked, whatever else happens to the job."""
    for seed in range(first, min(first + CHUNK, RUNS)):
        script = maintained_script(seed)
        for kind in sorted(kinds(Walk(script).run())):
            pytest.fail(f"seed {seed}\n{explained(shrunk(script, kind))}")


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_maintenances_cost_no_restart(first: int) -> None:
    """Ours goes on, or its processes are recovered, whatever becomes of the maintenance."""
    for seed in range(first, min(first + CHUNK, RUNS)):
        script = gentle_maintained_script(seed)
        for kind in sorted(kinds(Walk(script).run())):
            pytest.fail(f"seed {seed}\n{explained(shrunk(script, kind))}")
