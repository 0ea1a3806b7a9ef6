"""Reads in the step logs of ranks when they stood. Pure."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from statistics import median

from rekindle.model.base import Value
from rekindle.model.picture import Item, Lane, Part, StepRecord
from rekindle.model.ranks import written_ranks

LONG = 5.0
"""Number of usual steps after which a rank without a step counts as standing."""
SHORTEST = 0.02
"""Minimum of that time, in seconds."""
MOST_LANES = 12
"""Maximum number of lanes of ranks. More of them are folded: by what changed, and then by what changed in all."""


class Stood(Value):
    """Time in which a rank stood, between two steps."""

    rank: int
    since: float
    until: float
    before: StepRecord
    after: StepRecord
    """The same as `before`: the rank still stands."""

    times: int = 1
    """Number of times that are shown as one."""

    @property
    def change(self) -> str:
        """Change of the rank's process in a word."""
        if self.before.pod_uid != self.after.pod_uid:
            return "moved"
        return "new process" if self.before.pid != self.after.pid else "stood"

    @property
    def places(self) -> str:
        """Pod and node of the process, and those of its successor."""
        after = f"{self.after.pod} on {self.after.node}"
        return f"{self.before.pod} on {self.before.node} -> {after}" if self.change == "moved" else after


def lanes_of(records: Iterable[StepRecord], since: float, until: float, now: float | None = None) -> list[Lane]:
    """Returns a lane for all ranks that stood alike: at the same places, and with the same changes.

    Args:
        since: times before it are left out, also those of other incidents.
        until: likewise. What began before it is shown to its end.
        now: time at which ranks may still stand. None: the incident is over.
    """
    stood = _stood(records, now)
    found = {rank: [one for one in times if one.until > since and one.since < until] for rank, times in stood.items()}
    groups = _grouped(found, by_place=True)
    if len(groups) > MOST_LANES:
        groups = _grouped(found, by_place=False)
    if len(groups) > MOST_LANES:
        found = {rank: _whole(times) for rank, times in found.items()}
        groups = _grouped(found, by_place=False)
    lanes = [_lane(ranks, [one for rank in ranks for one in found[rank]]) for ranks in groups]
    return sorted(lanes, key=lambda lane: not any(one.text.startswith(("moved", "new process")) for one in lane.items))


def _stood(records: Iterable[StepRecord], now: float | None) -> dict[int, list[Stood]]:
    found = {}
    ordered = sorted(records, key=lambda record: (record.rank, record.start))
    for rank, own in groupby(ordered, key=lambda record: record.rank):
        steps = list(own)
        limit = max(LONG * median(step.end - step.start for step in steps), SHORTEST)
        found[rank] = [
            Stood(rank=rank, since=before.end, until=after.start, before=before, after=after)
            for before, after in pairwise(steps)
            if _is_interrupted(before, after, limit)
        ]
        last = steps[-1]
        if now and now - last.end > limit:
            found[rank].append(Stood(rank=rank, since=last.end, until=now, before=last, after=last))
    return found


def _is_interrupted(before: StepRecord, after: StepRecord, limit: float) -> bool:
    same = (before.pid, before.pod_uid, before.generation) == (after.pid, after.pod_uid, after.generation)
    return not same or after.start - before.end > limit


def _grouped(found: dict[int, list[Stood]], *, by_place: bool) -> list[list[int]]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, times in found.items():
        alike = tuple(f"{one.change} {one.places if by_place else ''}" for one in times)
        groups.setdefault(alike, []).append(rank)
    return list(groups.values())


def _whole(times: Sequence[Stood]) -> list[Stood]:
    """Returns the times as one, from the first to the last."""
    if len(times) < 2:
        return list(times)
    first, last = times[0], times[-1]
    return [first.model_copy(update={"until": last.until, "after": last.after, "times": len(times)})]


def _lane(ranks: Sequence[int], times: Sequence[Stood]) -> Lane:
    """Returns the lane of ranks that stood alike: from the first of them that stood to the last one that went on."""
    items: list[Item] = []
    for number in range(len(times) // len(ranks)):
        alike = times[number :: len(times) // len(ranks)]
        places = list(dict.fromkeys(one.places for one in alike))
        where = places[0] if len(places) == 1 else f"{len(places)} pods"
        since, until = min(one.since for one in alike), max(one.until for one in alike)
        often = "" if max(one.times for one in alike) == 1 else " (several times)"
        text, running = f"{alike[0].change}: {where}{often}", alike[0].before is alike[0].after
        items.append(Item(since=since, until=max(until, since), text=text, running=running))
    return Lane(part=Part.RANKS, name=f"rank{'' if len(ranks) == 1 else 's'} {written_ranks(ranks)}", items=tuple(items))
