"""Compares the traces of two runs, and finds the first step in which they differ."""

import json
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

LONGEST = 60
"""Maximum number of characters of a value that is shown."""
RANDOM_NUMBERS = "random numbers of "


class Kind(IntEnum):
    """Kinds of objects, the likely cause before what follows from it."""

    DATA = 0
    LOSS = 1
    SHARED = 2
    OPTIONS = 3
    RANDOM = 4
    BUFFER = 5
    EXTRA = 6
    GRADIENT = 7
    PARAMETER = 8
    MOMENT = 9


@dataclass(frozen=True)
class Line:
    """A rank's state after one step."""

    losses: tuple[str, ...]
    scoped: bool
    """The step was inside `with step:`."""
    places: dict[str, list[int]]
    things: dict[str, str]
    """Values, or digests that begin with `#`, by the paths of the objects."""


@dataclass
class Trace:
    given: dict[str, str | None] = field(default_factory=dict)
    """Kinds of the objects that the session was given; empty: there was no session."""
    devices: int = 0
    ranks: dict[int, dict[int, Line]] = field(default_factory=dict)
    """Lines by rank and step."""

    @property
    def steps(self) -> int:
        """Returns the last step that all ranks have completed. 0 before the first one."""
        return min((max(lines, default=0) for lines in self.ranks.values()), default=0)

    @property
    def furthest(self) -> int:
        """Returns the last step that any rank has completed. A rank that takes another one's state has no line of that step."""
        return max((max(lines, default=0) for lines in self.ranks.values()), default=0)

    def turns(self, place: str, rank: int) -> list[int]:
        """Steps in whose turns a rank reached a place."""
        return sorted({turn for line in self.ranks.get(rank, {}).values() for turn in line.places.get(place, [])})


def read(folder: Path) -> Trace:
    trace = Trace()
    for path in sorted(folder.glob("rank-*.jsonl")):
        lines = trace.ranks.setdefault(int(path.stem.partition("-")[2]), {})
        for text in path.read_text().splitlines():
            try:
                found: dict[str, Any] = json.loads(text)
            except ValueError:  # torn, by a process that was killed
                continue
            if "given" in found:
                trace.given, trace.devices = found["given"], found["devices"]
            else:
                things = {**found["state"], **found["own"]}
                lines[found["step"]] = Line(tuple(found["losses"]), found["scoped"], found["places"], things)
    return trace


@dataclass(frozen=True)
class Changed:
    """One object that differs."""

    kind: Kind
    rank: int
    name: str
    was: str
    """Value in the undisturbed run. Empty: the object did not exist there."""
    now: str

    def __str__(self) -> str:
        if not self.now:
            return f"{self.name} is missing"
        if self.was.startswith("#") or self.now.startswith("#"):
            return f"{self.name} differs"
        return f"{self.name} is {self.now[:LONGEST]}, undisturbed {self.was[:LONGEST] or 'missing'}"


@dataclass(frozen=True)
class Difference:
    """Everything that differs in the first step in which something does."""

    step: int
    changed: tuple[Changed, ...]
    """Objects that differ, the likely cause first."""

    @property
    def cause(self) -> Changed:
        return self.changed[0]

    def __str__(self) -> str:
        more = len(self.changed) - 1
        rest = f" (and {more} more)" if more else ""
        return f"step {self.step}, rank {self.cause.rank}: {self.cause}{rest}"


def compare(undisturbed: Trace, run: Trace) -> Difference | None:
    """Returns the first difference. A step of which a rank has no line is left out: it took the state of another rank there."""
    unseeded = {
        (rank, name)
        for rank, lines in undisturbed.ranks.items()
        for name in lines[min(lines)].things
        if name.startswith(RANDOM_NUMBERS) and not _begins_alike(lines, run.ranks.get(rank, {}), name)
    }
    for step in range(1, undisturbed.steps + 1):
        changed: list[Changed] = []
        for rank, lines in undisturbed.ranks.items():
            here = run.ranks.get(rank, {})
            if step in lines and step in here:
                skipped = {name for of, name in unseeded if of == rank}
                changed += _changed(rank, lines[step], here[step], skipped)
                changed += _moved_otherwise(rank, lines, here, step, skipped)
        if changed:
            return Difference(step, tuple(sorted(changed, key=lambda one: (one.kind, one.rank))))
    return None


def has_other_parameters(undisturbed: Trace, run: Trace) -> bool:
    """Returns whether a rank has other parameters after its last step than in the undisturbed run."""
    ends = [(lines, run.ranks.get(rank, {})) for rank, lines in undisturbed.ranks.items()]
    last = [(lines[step], here[step]) for lines, here in ends for step in [max(lines.keys() & here.keys(), default=0)] if step]
    return any(one.kind is Kind.PARAMETER for before, now in last for one in _changed(0, before, now, set()))


def _begins_alike(before: dict[int, Line], now: dict[int, Line], name: str) -> bool:
    """Returns whether a value is the same in both runs after their first common step.

    Generators that no seed sets differ in each run. Only their moves are compared.
    """
    first = min(before.keys() & now.keys(), default=None)
    return first is None or before[first].things.get(name) == now[first].things.get(name)


def _changed(rank: int, before: Line, now: Line, skipped: set[str]) -> list[Changed]:
    found = []
    if before.losses != now.losses:
        was, is_now = (", ".join(losses) for losses in (before.losses, now.losses))
        found.append(Changed(Kind.LOSS, rank, "the loss", was, is_now))
    for name in sorted((before.things.keys() | now.things.keys()) - skipped):
        was, is_now = before.things.get(name, ""), now.things.get(name, "")
        if was != is_now:
            found.append(Changed(_kind(name, before), rank, name, was, is_now))
    return found


def _moved_otherwise(rank: int, before: dict[int, Line], now: dict[int, Line], step: int, names: set[str]) -> list[Changed]:
    if not {step - 1, step} <= before.keys() & now.keys():
        return []

    def moved(lines: dict[int, Line], name: str) -> str:
        return "drawn" if lines[step].things.get(name) != lines[step - 1].things.get(name) else "not drawn"

    moves = ((name, moved(before, name), moved(now, name)) for name in sorted(names))
    return [Changed(Kind.RANDOM, rank, name, was, is_now) for name, was, is_now in moves if was != is_now]


_KINDS = {"data": Kind.DATA, "random": Kind.RANDOM, "gradients": Kind.GRADIENT, "extra": Kind.EXTRA, "trains": Kind.EXTRA}


def _kind(name: str, line: Line) -> Kind:
    part, _, rest = name.partition(" ")
    if part == "model":
        return Kind.PARAMETER if f"trains {rest}" in line.things else Kind.BUFFER
    if part == "optimizer":
        return Kind.OPTIONS if rest.startswith("param_groups") else Kind.MOMENT
    buffer = rest.replace("state", "buffers", 1)
    is_buffer = buffer != rest and f"{part} {buffer}" in line.things
    return _KINDS.get(part, Kind.BUFFER if is_buffer else Kind.SHARED)
