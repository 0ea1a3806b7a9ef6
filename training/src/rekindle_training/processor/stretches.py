"""Stretches of one rank: times in which it completes one step after the other. A pause, a rebuild or a start begins another one.

The loop writes them, and the processor's thread reads them. Each value is replaced as a whole, so no lock is needed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from rekindle_wire import training_pb2 as wire


@dataclass(frozen=True)
class Stretch:
    """Times are seconds since the epoch."""

    began: float
    ended: float
    steps: int = 0
    checkpoint: float = 0.0
    """Seconds in which checkpoints were written."""
    again: float = 0.0
    """Seconds in which steps were executed that an earlier process had completed, without checkpoints."""
    missing: float = 0.0
    """Share of the job's ranks that were missing, from 0 to 1."""

    def sent(self) -> wire.Stretch:
        return wire.Stretch(
            began=self.began,
            ended=self.ended,
            steps=self.steps,
            checkpoint_seconds=self.checkpoint,
            again_seconds=self.again,
            missing_share=self.missing,
        )


class Stretches:
    def __init__(self) -> None:
        self.now: Stretch | None = None
        """Current or last stretch. None: this process has completed no step."""
        self.before: Stretch | None = None
        """Stretch before it, of this process, or of an earlier one of this rank as far as the step log tells."""
        self._earlier: Callable[[], Stretch | None] = lambda: None
        self._furthest = 0
        self.missing = 0.0
        """Share of the job's ranks that are missing from the next stretch on."""
        self._stands = True
        self._written = 0.0

    def follow(self, before: Callable[[], Stretch | None]) -> None:
        """Args:
        before: returns the last stretch of an earlier process of this rank. Called after the first step, as a backup begins while
            that process trains.
        """
        self._earlier = before

    def repeat(self, furthest: int) -> None:
        """Notes that training goes back to its checkpoint.

        Args:
            furthest: last step that any process of this rank has completed.
        """
        self._furthest = furthest

    def stand(self) -> None:
        """Notes that training stands: the next step begins another stretch."""
        self._stands, self._written = True, 0.0

    def wrote(self, seconds: float) -> None:
        """Adds the time of a checkpoint, which belongs to the next completed step, or to the end of the loop."""
        self._written += seconds

    def stepped(self, step: int, start: float, end: float) -> Stretch:
        """Adds a completed step, and returns the stretch."""
        if self._stands or self.now is None:
            self.before = self.now or self._earlier()
            began = max(start, self.now.ended) if self.now else start  # a clock may be set back
            self.now, self._stands = Stretch(began, began, missing=self.missing), False
        again = max(end - start - self._written, 0.0) if step <= self._furthest else 0.0
        return self._extend(end, steps=1, again=again)

    def end(self, now: float) -> None:
        """Ends the last stretch with a checkpoint that was written after its last step."""
        if self.now is not None and not self._stands and self._written:
            self._extend(now, steps=0, again=0.0)

    def _extend(self, end: float, *, steps: int, again: float) -> Stretch:
        assert self.now is not None
        self.now = replace(
            self.now,
            ended=max(end, self.now.ended),
            steps=self.now.steps + steps,
            checkpoint=self.now.checkpoint + self._written,
            again=self.now.again + again,
        )
        self._written = 0.0
        return self.now
