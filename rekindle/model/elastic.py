"""Elastic training: sizes that the owner of a job allows, and the state of a job that trains with fewer replicas.

A replica is a pod, or several pods over which one copy of the model is sharded.
"""

import re
from datetime import timedelta

from rekindle.model.base import Moment, Value
from rekindle.model.bounds import Text
from rekindle.model.ranks import Ranks


class Elastic(Value):
    """Annotation `rekindle.io/elastic` of a job."""

    least: int = 1
    """Smallest number of replicas with which the job trains."""

    pods: int = 1
    """Number of pods of a replica, which leave and come back together. Their pod ranks follow each other."""

    wait: timedelta = timedelta(seconds=30)
    """Time in which a spare node may be found for a faulty replica, while training stands, before the job goes on without it. 0:
    only a standby that runs takes its place."""


class Resized(Value):
    """Change of a job's size by a mode."""

    left: Ranks = ()
    """Pod ranks that have left."""

    came: Ranks = ()
    """Pod ranks that have come back."""

    nodes: tuple[str, ...] = ()
    """Nodes of the replicas that have left, if they are lost or are to be left."""

    places: tuple[Ranks, ...] = ()
    """Pod ranks that have left each of these nodes, in their order. Empty: an earlier version did not say, or they are many."""

    by_hand: bool = False
    """True if a person has set the size."""

    attempt: str = ""
    """Uuid of the attempt in which they have left, for a training side that takes them back in the same one. Empty: any may."""


class Small(Value):
    """State of a job that trains with fewer replicas than it was started with."""

    since: Moment
    missing: Ranks
    """Pod ranks of the replicas that are missing."""

    nodes: tuple[str, ...] = ()
    """Nodes that the missing replicas have left because they are lost, faulty or drained."""

    places: tuple[Ranks, ...] = ()
    """Missing pod ranks that have left each of these nodes. See `Resized.places`."""

    by_hand: bool = False
    """True if a person has set the size. It does not grow beyond it by itself then."""

    size: int | None = None
    """Number of replicas that a person has set. None: nobody has, or an earlier version did not keep it."""

    attempt: str = ""
    """See `Resized.attempt`."""

    old: dict[int, str] = {}
    """Last holders of missing replicas, by pod rank, as `Sighting.holders`. Only the first ones are kept."""

    lingering: Ranks = ()
    """Pod ranks of missing replicas whose last pods were not seen to be gone."""

    there: Ranks = ()
    """Pod ranks of missing replicas whose pods another component has created. Only the first ones are kept."""

    hurried: int = 0
    """Number of attempts to grow, since the last change of the size, that such pods have begun at once. After some of them
    further pods wait for the next attempt, as a controller may create pods that fail again and again."""

    tries: int = 0
    """Number of attempts to grow, since the last change of the size, that came to no end."""

    try_at: Moment | None = None
    """Earliest time of the next attempt to grow, by the workflow's clock. None: at once."""

    last_try: Text = ""
    """Reason why the last attempt to grow came to no end. Empty: there was none."""


WORD = "elastic-training"
"""Strategy of the annotation `recover-strategy` that allows elastic training. Source: MindCluster."""

SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
"""Seconds of each unit of the wait in the annotation `rekindle.io/elastic`."""

PATTERN = re.compile(
    r"(?P<least>[0-9]{1,6})(\s*;\s*pods=(?P<pods>[0-9]{1,6}))?(\s*;\s*wait=(?P<wait>[0-9]{1,5})(?P<unit>[smh]?))?", re.ASCII
)


def is_named(strategies: str) -> bool:
    """Returns whether the annotation `recover-strategy` allows elastic training."""
    return WORD in (word.strip() for word in strategies.split(","))


def read_elastic(said: str, pods: int) -> Elastic | None:
    """Returns the value of the annotation `rekindle.io/elastic`. None: it is not accepted.

    Args:
        pods: number of pods of the job.
    """
    found = PATTERN.fullmatch(said.strip())
    if found is None:
        return None
    least, of_replica = int(found["least"]), int(found["pods"] or 1)
    if not of_replica or pods % of_replica or not 1 <= least <= pods // of_replica:
        return None
    if found["wait"] is None:
        return Elastic(least=least, pods=of_replica)
    return Elastic(least=least, pods=of_replica, wait=timedelta(seconds=int(found["wait"]) * SECONDS[found["unit"]]))


def accepted_elastic(said: str, pods: int) -> str:
    """Returns what the annotation accepts in a job of this many pods, for the number of pods of a replica that it names."""
    named = re.search(r";\s*pods=([0-9]{1,6})", said, re.ASCII)
    of_replica = int(named[1]) if named else 1
    wait = "the wait for a spare node"
    if not of_replica or pods % of_replica:
        sizes = ", ".join(str(size) for size in range(1, pods + 1) if not pods % size)
        return f"a number of pods of a replica by which {pods} pods can be divided, {sizes}, such as '1; pods=1; wait=60s'"
    if of_replica > 1:
        return f"a number of replicas from 1 to {pods // of_replica}, and {wait}, such as '1; pods={of_replica}; wait=60s'"
    return f"a number of pods from 1 to {pods}, and {wait}, such as '1; wait=60s'"
