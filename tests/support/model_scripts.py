"""Random scripts of the model with operations on a job that trains: link switches, stress tests, maintenances of links."""

import random

from tests.support.model_walk import DELAYS, DISTURBANCES, HARMLESS, OF_PROCESSES, STRIKES, Disturbance, Script
from tests.support.model_world import Knobs

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
LOST = ("", "", "stood", "switched", "tested", "went on")
MEANWHILE = (*HARMLESS[:-1], "front cancelled", "recovery cancelled", "entity terminated", *ASKED)


def operated_script(seed: int) -> Script:
    """An operation, or two, and whatever else may happen to a job; of ours or of MindIO."""
    chance = random.Random(seed)
    knobs = Knobs(
        side=chance.choice(("rekindle", "mindio")),
        spares=chance.choice((0, 1, 2)),
        holds=chance.choice(("yes",) * 8 + ("no", "never")),
        switches=chance.choice(("yes",) * 6 + ("no", "torn")),
        finds=chance.choice(("",) * 6 + ("fault", "silent", "untested", "nothing")),
        goes_on=chance.choice(("yes",) * 8 + ("no",)),
        lost=chance.choice(LOST),
        late=chance.choice(LOST),
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
    """An operation with our own training side, in which nothing breaks that is worth a restart of the job."""
    chance = random.Random(seed)
    knobs = Knobs(
        spares=2,
        holds=chance.choice(("yes",) * 8 + ("no",)),
        switches=chance.choice(("yes",) * 6 + ("no", "torn")),
        finds=chance.choice(("",) * 6 + ("fault", "silent", "untested", "nothing")),
        goes_on=chance.choice(("yes",) * 8 + ("no",)),
        lost=chance.choice(LOST),
        late=chance.choice(LOST),
        doubled=chance.random() < 0.2,
        allows="",
    )
    strikes = [
        Disturbance(chance.choice(tuple(STRIKES)), chance.choice(OF_OPERATIONS), chance.choice(DELAYS), chance.randrange(2))
        for _ in range(chance.choice((0, 0, 1)))
    ]
    more = [
        Disturbance(chance.choice(MEANWHILE), chance.choice(OF_OPERATIONS), chance.choice(DELAYS), chance.randrange(2))
        for _ in range(chance.randrange(4))
    ]
    loss, long_history = chance.choice((0.0, 0.0, 0.05)), chance.choice((10_000, 10_000, 4))
    first = Disturbance(chance.choice(ASKED), delay=40.0, rank=chance.randrange(2))
    return Script((first, *strikes, *more), knobs, loss, long_history, seed, gentle=True)
