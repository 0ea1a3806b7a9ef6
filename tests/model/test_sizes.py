"""A job that may train with fewer pods has all of them again in the end, and its workflow knows which ones train.

Walks of the same model as in `test_entity`: pods leave because of faults and by request, and come back when nodes are free.
"""

import os
from dataclasses import replace

import pytest

from tests.model.test_entity import SEEDS, Example, example
from tests.model.world.scripts import elastic_script, gentle_elastic_script, operated_elastic_script
from tests.model.world.walk import Disturbance, Walk, explained, kinds, shrunk
from tests.model.world.world import Knobs

RUNS = max(50, int(os.environ.get("REKINDLE_MODEL_RUNS", "0")) // 4)
"""Number of random walks of each of the two kinds; `make model` runs many more."""

CHUNK = 25

SMALLER = Knobs(allows="", spares=0, elastic="1; wait=0")
LOST = Disturbance("node lost", delay=40.0)

EXAMPLES = (
    example(
        "a node is lost, and comes back", "small", LOST, Disturbance("nodes back", "pods left", 90.0), knobs=SMALLER, gentle=True
    ),
    example(
        "another pod is lost while the first one leaves",
        "costly",
        LOST,
        Disturbance("pod vanishes", "order downgrade", 0.1, 0),
        knobs=SMALLER,
        gentle=True,
    ),
    example(
        "a pod is lost when another one has just come back, and its answer is late",
        "costly",
        LOST,
        Disturbance("pod vanishes", "pods back", 0.1, 0),
        knobs=replace(SMALLER, spares=1, late="status"),
        gentle=True,
    ),
    example(
        "a pod is evicted while others leave by request",
        "wrong order",
        Disturbance("size asked for", delay=40.0, rank=0),
        Disturbance("pod evicted", "order downgrade", 0.01, 0),
        knobs=replace(SMALLER, elastic="1; wait=20s", spares=1),
    ),
    example(
        "a step fails while pods leave by request, and the next order is late",
        "size",
        Disturbance("size asked for", delay=40.0, rank=1),
        Disturbance("network fault", "order downgrade", 0.0, 0),
        knobs=SMALLER,
    ),
    example(
        "a manager dies while pods come back",
        "small",
        LOST,
        Disturbance("manager dies", "order upgrade", 0.1),
        knobs=replace(SMALLER, spares=1),
        gentle=True,
    ),
    example(
        "the job's workflow is lost when a pod has just come back",
        "needless",
        LOST,
        Disturbance("entity terminated", "pods back", 1.0),
        knobs=replace(SMALLER, spares=1),
    ),
    example(
        "a pod without a node cannot be deleted, and the job goes on without its rank",
        "left behind",
        LOST,
        Disturbance("deletion refused", delay=40.0, rank=1),
        Disturbance("nodes back", "pods left"),
        knobs=replace(SMALLER, elastic="1; wait=20s"),
    ),
    example(
        "the job's workflow is lost when its second mode has begun, and the first one has left a pod behind",
        "left behind",
        LOST,
        Disturbance("deletion refused", delay=40.0, rank=1),
        Disturbance("entity terminated", "order downgrade", 0.1),
        Disturbance("nodes back", "pods left"),
        knobs=replace(SMALLER, elastic="1; wait=20s"),
    ),
    example(
        "a fault of a rank that has left is reported, and there are nodes again",
        "size",
        Disturbance("failover asked for", delay=40.0),
        Disturbance("nodes back", "pods left"),
        knobs=replace(SMALLER, elastic="1; wait=20s", switches="torn", allows="recover"),
    ),
    example(
        "another party makes the pod of a missing rank",
        "small",
        LOST,
        Disturbance("nodes back", "pods left", 30.0),
        Disturbance("deletion refused", "pods back", 0.05),
        Disturbance("pod replaced", "backup runs", 1.0, 2),
        knobs=replace(SMALLER, spares=1),
    ),
    example(
        "somebody terminates the return of a pod",
        "small",
        LOST,
        Disturbance("recovery terminated", "pods back", 0.01),
        knobs=replace(SMALLER, spares=1),
    ),
    example(
        "somebody terminates elastic training when pods have left, and another pod is lost",
        "size",
        LOST,
        Disturbance("recovery terminated", "pods left"),
        Disturbance("pod vanishes", "pods left", 0.01, 0),
        knobs=replace(SMALLER, elastic="2; wait=0", allows="recover"),
    ),
    example(
        "the job's workflow is lost after somebody has restarted a job to which a pod had come back",
        "needless",
        LOST,
        Disturbance("job restarted", "pods back", 40.0),
        Disturbance("entity terminated", "pods back", 90.0),
        knobs=replace(SMALLER, spares=1),
    ),
    example(
        "the job's workflow is lost after somebody has restarted a small job",
        "size",
        LOST,
        Disturbance("size asked for", "pods left", 0.1, 0),
        Disturbance("job restarted", "pods left", 20.0),
        Disturbance("entity terminated", "pods left", 60.0),
        knobs=replace(SMALLER, spares=1),
    ),
    example(
        "the job's workflow is lost when new pods are made after elastic training was refused",
        "needless",
        Disturbance("pod vanishes", delay=40.0),
        Disturbance("pod vanishes", "process fault", 0.0, 0),
        Disturbance("entity terminated", "smaller ended", 0.1),
        knobs=replace(SMALLER, spares=1, elastic="2; wait=0", allows="recover"),
    ),
    example(
        "the links of a pod are moved that leaves, and comes back",
        "misplaced",
        Disturbance("failover asked for", delay=40.0),
        Disturbance("node lost", "link switch ended", 1.0),
        knobs=replace(SMALLER, spares=1),
        gentle=True,
    ),
)


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in EXAMPLES])
def test_what_was_found_once_stays_mended(one: Example) -> None:
    """The script runs with many different delays, and all is well in the end."""
    for seed in range(SEEDS):
        script = replace(one.script, seed=seed)
        assert not Walk(script).run(), explained(script)


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_random_walks_of_elastic_jobs_end_well(first: int) -> None:
    """Random disturbances find no defect; a found one is shown in its smallest form."""
    for seed in range(first, min(first + CHUNK, RUNS)):
        script = elastic_script(seed)
        for kind in sorted(kinds(Walk(script).run())):
            pytest.fail(f"seed {seed}\n{explained(shrunk(script, kind))}")


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_random_walks_of_elastic_jobs_with_operations_end_well(first: int) -> None:
    """Links are moved, devices tested and pods switched while the size changes, and people terminate what they like."""
    for seed in range(first, min(first + CHUNK, RUNS)):
        script = operated_elastic_script(seed)
        for kind in sorted(kinds(Walk(script).run())):
            pytest.fail(f"seed {seed}\n{explained(shrunk(script, kind))}")


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_lost_pods_of_elastic_jobs_cost_no_restart(first: int) -> None:
    """Losses of two of three pods cost no restart, whatever happens to streams, managers and workers."""
    for seed in range(first, min(first + CHUNK, RUNS)):
        script = gentle_elastic_script(seed)
        for kind in sorted(kinds(Walk(script).run())):
            pytest.fail(f"seed {seed}\n{explained(shrunk(script, kind))}")
