"""Step boundary, where the training loop gets the manager's requests. The loop crosses it, the processor's thread shuts it.

Two threads use it, with one lock. A planned pause takes two phases: `hold` stops the loop at the end of its step and returns
its position, `pause_at` lets it run up to the step on which all ranks agreed. So no rank is stopped inside a collective. If a
step has failed, the gate is broken: no step begins before the next generation.
"""

import threading
from dataclasses import dataclass

from rekindle_wire.training_pb2 import Leave, Rebuild, Save, StressTest


@dataclass(frozen=True)
class Go:
    """Request: the next step may begin."""


@dataclass(frozen=True)
class Pause:
    """Request: the loop stands at the requested step, and is to report that. Made once for each pause."""


@dataclass(frozen=True)
class Stand:
    """Request to report where the rank stands, because a step has failed, here or on another rank."""


@dataclass(frozen=True)
class Join:
    """Request to become a member of this generation."""

    generation: int
    rebuild: Rebuild


@dataclass(frozen=True)
class Switch:
    """Request to check whether collectives can use the backup link, or the first one."""

    backup: bool


@dataclass(frozen=True)
class Check:
    """Request to begin this check at the boundary."""

    order: StressTest


@dataclass(frozen=True)
class WriteLast:
    """Request to write the last checkpoint together with other ranks that stand."""

    order: Save


Wish = Go | Pause | Stand | Join | Switch | Check | WriteLast | Leave


class Gate:
    """Step boundary of one rank. It is shut at first: a process belongs to no generation until the manager gives it one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = 0
        self._completed = 0
        self._total = 0
        self._limit: int | None = 0
        self._pause_at: int | None = None
        self._generation = 0
        self._broken_in = -1
        self._stand = False
        self._join: Join | None = None
        self._switch: Switch | None = None
        self._leave: Leave | None = None
        self._check: Check | None = None
        self._last: WriteLast | None = None

    # The training loop's side.

    def wait(self) -> Wish:
        """Blocks at the boundary until there is something to do. `Go` means that the next step has begun."""
        with self._changed:
            while (wish := self._wish()) is None:
                self._changed.wait()
            return wish

    def complete(self, step: int) -> None:
        """Notes that the loop has reached the boundary after `step`, by executing it, or by taking the state of a replica or
        checkpoint.
        """
        with self._changed:
            self._begun = self._completed = step

    def expect(self, total: int) -> None:
        with self._changed:
            self._total = total

    def open(self) -> None:
        with self._changed:
            self._limit = self._pause_at = self._switch = self._check = None
            self._changed.notify_all()

    def enter(self, generation: int) -> None:
        """Enters a generation. Failures of earlier generations no longer count."""
        with self._changed:
            self._generation = generation
            self._stand = self.broken
        self.open()

    @property
    def completed(self) -> int:
        return self._completed

    @property
    def begun(self) -> int:
        """Current step, or the last completed one at a boundary."""
        return self._begun

    @property
    def total(self) -> int:
        """Last step of the loop. 0: it is not known yet."""
        return self._total

    @property
    def is_asked_to_join(self) -> bool:
        """True if the loop was asked to join a generation and has not turned to it yet."""
        return self._join is not None

    @property
    def is_asked_by_manager(self) -> bool:
        """True if the manager asks for something else than the request that a standing loop carries out now."""
        return any((self._leave, self._join, self._stand, self._last))

    @property
    def broken(self) -> bool:
        return self._broken_in >= self._generation

    def broken_by(self, generation: int) -> bool:
        """Returns whether this generation is known to have failed."""
        return self._broken_in >= generation

    @property
    def broken_in(self) -> int:
        """Returns the generation of the failure about which the loop reports."""
        return self._broken_in

    def break_off(self, generation: int) -> None:
        """Ends this generation: no step begins in it any more, and the loop reports where it stands."""
        self.stand(max(generation, self._broken_in))

    # The manager's side.

    def hold(self) -> tuple[int, int]:
        """Lets no step begin after the current one. Returns the current step and the last step of the loop."""
        with self._changed:
            self._limit = self._begun
            self._pause_at = None
            return self._begun, self._total

    def pause_at(self, step: int) -> None:
        with self._changed:
            self._limit = self._pause_at = step
            self._changed.notify_all()

    def stand(self, generation: int) -> None:
        """Ends the generation about which the manager asks, as `break_off` does. An earlier generation is ignored."""
        with self._changed:
            if generation >= self._generation:
                self._broken_in, self._stand, self._last = generation, True, None
                self._changed.notify_all()

    def join(self, join: Join) -> None:
        with self._changed:
            self._join, self._last = join, None
            self._changed.notify_all()

    def write_last(self, last: WriteLast) -> None:
        with self._changed:
            self._last = last
            self._changed.notify_all()

    def switch(self, switch: Switch) -> None:
        with self._changed:
            self._switch = switch
            self._changed.notify_all()

    def check(self, check: Check) -> None:
        """Requests a check of the rank's device. Ignored if the loop is not held at a boundary."""
        with self._changed:
            if self._limit is not None:
                self._check = check
                self._changed.notify_all()

    def leave(self, leave: Leave) -> None:
        with self._changed:
            self._leave = leave
            self._changed.notify_all()

    def _wish(self) -> Wish | None:
        if self._leave is not None:
            return self._leave
        if self._join is not None:
            join, self._join = self._join, None
            return join
        if self.broken:
            return self._wish_of_who_waits()
        if self._limit is None or self._completed < self._limit:
            self._begun = self._completed + 1
            return Go()
        return self._wish_of_who_stands()

    def _wish_of_who_waits(self) -> Wish | None:
        if self._stand:
            self._stand = False
            return Stand()
        last, self._last = self._last, None
        return last

    def _wish_of_who_stands(self) -> Wish | None:
        if self._pause_at == self._completed:
            self._pause_at = None
            return Pause()
        if self._switch is not None:
            switch, self._switch = self._switch, None
            return switch
        check, self._check = self._check, None
        return check
