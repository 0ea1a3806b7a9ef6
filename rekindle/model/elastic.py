"""Elastic training: sizes that the owner of a job allows, and the state of a job that trains with fewer replicas.

A replica is a pod.
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

PATTERN = re.compile(r"(?P<least>[0-9]{1,6})(\s*;\s*wait=(?P<wait>[0-9]{1,5})(?P<unit>[smh]?))?", re.ASCII)


def is_named(strategies: str) -> bool:
    """Returns whether the annotation `recover-strategy` allows elastic training."""
    return WORD in (word.strip() for word in strategies.split(","))


def read_elastic(said: str, pods: int) -> Elastic | None:
    """Returns the value of the annotation `rekindle.io/elastic`. None: it is not accepted.

    Args:
        pods: number of pods of the job.
    """
    found = PATTERN.fullmatch(said.strip())
    if found is None or not 1 <= int(found["least"]) <= pods:
        return None
    least = int(found["least"])
    if found["wait"] is None:
        return Elastic(least=least)
    return Elastic(least=least, wait=timedelta(seconds=int(found["wait"]) * SECONDS[found["unit"]]))
