"""Random scripts of the model for operations on a job that trains: link switches, stress tests, maintenances of links."""

import random
from dataclasses import replace

from tests.model.world.walk import (
    BETWEEN,
    DELAYS,
    DISTURBANCES,
    HARMLESS,
    OF_PROCESSES,
    SIZES,
    STRIKES,
    Disturbance,
    Script,
)
from tests.model.world.world import Knobs

ASKED = ("links asked for", "test asked for")
OF_OPERATIONS = (
    "order pause_train",
    "held",
    "order pause_start_agent",
    "order switch links",
    "links moved",
    "order stress test",
    "order continue_start_agent",
    "order continue",
    "went on",
    "link switch ended",
    "stress test ended",
)
LOST = ("", "", "order", "fault", "stood", "switched", "tested", "went on")
LATE = LOST[4:]
LIGHT = ("failover asked for", "failover asked for", "switchback asked for", "switchback asked for")
MEANWHILE = (*HARMLESS[:-1], "front cancelled", "recovery cancelled", "entity terminated", *ASKED)


def operated_script(seed: int) -> Script:
    """Returns a script with one or two operations and any other events; our own training side or MindIO."""
    chance = random.Random(seed)
    knobs = Knobs(
        side=chance.choice(("rekindle", "mindio")),
        spares=chance.choice((0, 1, 2)),
        holds=chance.choice(("yes",) * 8 + ("no", "never")),
        switches=chance.choice(("yes",) * 6 + ("no", "torn")),
        finds=chance.choice(("",) * 6 + ("fault", "silent", "untested", "nothing")),
        goes_on=chance.choice(("yes",) * 8 + ("no",)),
        lost=chance.choice(LOST),
        late=chance.choice(("", "", *LATE)),
        slow=chance.choice((0.0, 0.0, 0.2)),
        doubled=chance.random() < 0.2,
        allows=chance.choice(("exit", "", "", "recover", "recover-in-place")),
    )
    if knobs.side == "mindio":
        knobs = Knobs(**{**vars(knobs), "allows": "exit"})
    whatever = (*MEANWHILE, *MEANWHILE, *DISTURBANCES, *STRIKES)
    more = [
        Disturbance(
            chance.choice(whatever),
            chance.choice((*OF_OPERATIONS, *OF_PROCESSES[:3])),
            chance.choice(DELAYS),
            chance.randrange(3),
        )
        for _ in range(chance.randrange(5))
    ]
    loss, long_history = chance.choice((0.0, 0.0, 0.05, 0.2)), chance.choice((10_000, 10_000, 4))
    first = Disturbance(chance.choice(ASKED), delay=chance.choice((0.1, 40.0)), rank=chance.randrange(3))
    return Script((first, *more), knobs, loss, long_history, seed)


def gentle_operated_script(seed: int) -> Script:
    """Returns a script with an operation on our own training side, in which nothing justifies a restart of the job."""
    chance = random.Random(seed)
    knobs = Knobs(
        spares=2,
        holds=chance.choice(("yes",) * 8 + ("no",)),
        switches=chance.choice(("yes",) * 6 + ("no", "torn")),
        finds=chance.choice(("",) * 6 + ("fault", "silent", "untested", "nothing")),
        goes_on=chance.choice(("yes",) * 8 + ("no",)),
        lost=chance.choice(LOST),
        late=chance.choice(("", "", *LATE)),
        doubled=chance.random() < 0.2,
        allows="",
    )
    strikes = _some(chance, tuple(STRIKES), 2, 2)
    more = [
        Disturbance(chance.choice(MEANWHILE), chance.choice(OF_OPERATIONS), chance.choice(DELAYS), chance.randrange(2))
        for _ in range(chance.randrange(4))
    ]
    loss, long_history = chance.choice((0.0, 0.0, 0.05)), chance.choice((10_000, 10_000, 4))
    first = Disturbance(chance.choice(ASKED), delay=40.0, rank=chance.randrange(2))
    return _gentle(Script((first, *strikes, *more), knobs, loss, long_history, seed))


def maintained_script(seed: int) -> Script:
    """Returns a script with a maintenance of links and any other events; our own training side or MindIO."""
    chance, plain = random.Random(seed), operated_script(seed)
    whatever = (*MEANWHILE, *LIGHT, *LIGHT, "stream away", *DISTURBANCES, *STRIKES)
    return replace(plain, disturbances=(*_maintenance(chance), *_some(chance, whatever, 3, 4)))


def gentle_maintained_script(seed: int) -> Script:
    """Returns a script with a maintenance on our own training side, in which nothing justifies a restart of the job."""
    chance, plain = random.Random(seed), gentle_operated_script(seed)
    more = _some(chance, (*MEANWHILE, *LIGHT), 2, 4)
    return _gentle(replace(plain, disturbances=(*_maintenance(chance), *_some(chance, tuple(STRIKES), 2, 2), *more)))


def _gentle(script: Script) -> Script:
    """Returns the script marked as gentle: nothing in it justifies a restart.

    The termination of the job's workflow is removed if there are faults: one that only that workflow knew would justify a
    restart.
    """
    knobs, those = script.knobs, script.disturbances
    has_faults = knobs.switches == "torn" or knobs.goes_on != "yes" or knobs.finds or any(one.what in STRIKES for one in those)
    left = tuple(one for one in those if one.what != "entity terminated") if has_faults else those
    return replace(script, disturbances=left, gentle=True)


def _maintenance(chance: random.Random) -> tuple[Disturbance, ...]:
    """Returns a failover and, in most cases, its switchback, which may come early."""
    rank = chance.randrange(2)
    over = Disturbance("failover asked for", delay=40.0, rank=rank)
    back = Disturbance("switchback asked for", chance.choice(OF_OPERATIONS), chance.choice((*DELAYS, 600.0)))
    return (over, back) if chance.random() < 0.7 else (over,)


def _some(chance: random.Random, what: tuple[str, ...], ranks: int, most: int) -> tuple[Disturbance, ...]:
    moments = (*OF_OPERATIONS, "maintenance failed")
    return tuple(
        Disturbance(chance.choice(what), chance.choice(moments), chance.choice(DELAYS), chance.randrange(ranks))
        for _ in range(chance.randrange(most))
    )


OF_SIZES = (
    "order downgrade",
    "order upgrade",
    "pods left",
    "pods back",
    "smaller ended",
    "size ended",
    "elsewhere ended",
    "backup made",
    "backup runs",
    "process fault",
    "restart ended",
)
ELASTIC = ("1; wait=0", "1; wait=0", "1; wait=20s", "2; wait=0")
LOSSES = ("node lost", "node lost", "pod vanishes", "process dies", "pod evicted")
LONG = (*DELAYS, 65.0, 90.0, 150.0)
"""Delays up to the times at which a small job tries to grow."""


def elastic_script(seed: int) -> Script:
    """Returns a script of a job that may train with fewer pods: lost nodes and pods, requests for sizes, any other events."""
    chance = random.Random(seed)
    knobs = Knobs(
        spares=chance.choice((0, 0, 1)),
        elastic=chance.choice(ELASTIC),
        late=chance.choice(("", "", "", "fault", "stopped", "offers", "status")),
        slow=chance.choice((0.0, 0.0, 0.2)),
        doubled=chance.random() < 0.2,
        allows=chance.choice(("", "", "recover")),
    )
    first = Disturbance(chance.choice((*LOSSES, *SIZES)), delay=40.0, rank=chance.randrange(3))
    whatever = (*SIZES, *SIZES, *LOSSES, "nodes back", "nodes back", "recovery terminated", *DISTURBANCES, *STRIKES)
    moments = (*OF_SIZES, *OF_SIZES, "first step")
    more = [
        Disturbance(chance.choice(whatever), chance.choice(moments), chance.choice(LONG), chance.randrange(3))
        for _ in range(chance.randrange(6))
    ]
    loss, long_history = chance.choice((0.0, 0.0, 0.05, 0.2)), chance.choice((10_000, 10_000, 4))
    return Script((first, *more), knobs, loss, long_history, seed)


LOSES = ("entity terminated", "recovery terminated", "job restarted")
BESIDE = (*ASKED, *LIGHT[1:3], *LOSES, "switch asked for", "restart asked for")
"""Disturbances of elastic jobs that belong to other modes, or to people."""


def operated_elastic_script(seed: int) -> Script:
    """Returns a script of a job that may train with fewer pods, on which operations are done too."""
    chance, plain = random.Random(seed), elastic_script(seed)
    more = tuple(
        Disturbance(chance.choice(BESIDE), chance.choice((*OF_SIZES, *OF_SIZES, *OF_OPERATIONS)), chance.choice(LONG), rank)
        for rank in range(chance.randrange(1, 4))
    )
    knobs = replace(
        plain.knobs,
        holds=chance.choice(("yes",) * 6 + ("no", "never")),
        switches=chance.choice(("yes",) * 6 + ("torn",)),
        goes_on=chance.choice(("yes",) * 6 + ("no",)),
        finds=chance.choice(("",) * 6 + ("fault", "silent")),
    )
    return replace(plain, disturbances=(*plain.disturbances, *more), knobs=knobs)


def gentle_elastic_script(seed: int) -> Script:
    """Returns a script of a job that may train with one pod, in which two of three pods are lost and nothing justifies a
    restart."""
    chance = random.Random(seed)
    knobs = Knobs(
        spares=chance.choice((0, 0, 1)),
        elastic=chance.choice(("1; wait=0", "1; wait=20s")),
        late=chance.choice(("", "", "status")),
        doubled=chance.random() < 0.2,
        allows="",
    )
    strikes = [
        Disturbance(
            chance.choice((*LOSSES, *STRIKES)),
            chance.choice((*OF_SIZES[:-1], *BETWEEN)) if number else "first step",
            chance.choice(LONG) if number else 40.0,
            chance.randrange(2),
        )
        for number in range(chance.choice((1, 1, 2, 3)))
    ]
    meanwhile = (*HARMLESS, "nodes back", "front cancelled", "recovery cancelled")
    more = [
        Disturbance(chance.choice(meanwhile), chance.choice(OF_SIZES[:-1]), chance.choice(LONG), chance.randrange(3))
        for _ in range(chance.randrange(4))
    ]
    if chance.random() < 0.5:  # the size with all pods: with any other one, a pod leaves that has all of its processes
        more.append(Disturbance("size asked for", chance.choice(OF_SIZES[:-1]), chance.choice(LONG), 2))
    loss, long_history = chance.choice((0.0, 0.0, 0.05)), chance.choice((10_000, 10_000, 4))
    return Script((*strikes, *more), knobs, loss, long_history, seed, gentle=True)
