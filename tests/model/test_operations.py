"""Whatever happens to an operation on a job that trains, training goes on: nobody stands held, links are where they are known.

Walks of the same model as in `test_entity`: link switches and stress tests, of our own training side and of MindIO.
"""

import os
from dataclasses import replace

import pytest

from tests.model.test_entity import MINDIO, RECOVERS, SEEDS, Example, example
from tests.support.model_scripts import gentle_operated_script, operated_script
from tests.support.model_walk import Disturbance, Walk, explained, kinds, shrunk
from tests.support.model_world import Knobs

RUNS = int(os.environ.get("REKINDLE_MODEL_RUNS", "50"))
"""Random walks of each kind; `make model` makes many more."""

CHUNK = 25

LINKS, TEST = Disturbance("links asked for", delay=40.0), Disturbance("test asked for", delay=40.0)

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
)


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in EXAMPLES])
def test_what_was_found_of_operations_stays_mended(one: Example) -> None:
    """The script runs with many different delays, and all is well in the end."""
    for seed in range(SEEDS):
        script = replace(one.script, seed=seed)
        assert not Walk(script).run(), explained(script)


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_random_walks_with_operations_end_well(first: int) -> None:
    """Of ours and of MindIO, whatever else happens to the job."""
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
