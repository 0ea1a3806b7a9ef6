"""Grace period of ranks that received a signal to end, after which they are killed. Used by `pod.py`.

If the pod is ended from outside, for example by the kubelet, that side also kills it after its own grace period. So a script that
saves its work until then is not disturbed. If the pod ends its ranks itself, nothing else would kill a rank that does not react.
"""

import signal
import time
from collections.abc import Callable

from rekindle_training.launcher.timers import GraceOver, StillEnding

FAILED_SECONDS = 30.0
"""Default grace period in seconds if a failure of another rank, or a restart, ends the ranks. It is the value of torchrun."""
STOPPED_SECONDS = 5.0
"""Seconds that a process may be stopped if it is to end, or if it is the manager."""
STILL_SECONDS = 5.0
"""Seconds after which ranks that are still ending are logged."""
ENDS_AT_ONCE = (signal.SIGTERM, signal.SIGINT)
"""Signals of which a second one kills the ranks."""
REPEATED_SECONDS = 0.2
"""Seconds within which a second signal counts as the same one: `timeout` sends it to the process and to its group."""


class Grace:
    """Grace period of the ranks of one pod. Only the latest one counts."""

    def __init__(self, seconds: int | None, later: Callable[[float, GraceOver | StillEnding], None]) -> None:
        """Args:
        seconds: the user's word for all ends; None: there is none.
        later: puts an event into the pod's queue after so many seconds.
        """
        self._seconds, self._later = seconds, later
        self._number = 0
        self._is_limited = False
        self._signalled: float | None = None

    def give(self, *, limited: bool) -> None:
        """Starts a grace period for ranks that received a signal to end.

        Args:
            limited: True if nothing else would kill the ranks.
        """
        self._number += 1
        self._is_limited = limited or self._seconds is not None
        if self._is_limited:
            seconds = FAILED_SECONDS if self._seconds is None else self._seconds
            self._later(seconds, GraceOver(self._number, seconds))
        self._later(STILL_SECONDS, StillEnding(self._number))

    def limit(self) -> None:
        """Limits the grace period, because the ranks that are still ending would not end by themselves."""
        if not self._is_limited:
            self.give(limited=True)

    def settle(self) -> None:
        """Cancels the grace period, because all ranks have ended."""
        self._number += 1

    def is_meant(self, event: GraceOver | StillEnding) -> bool:
        return event.number == self._number

    @property
    def of_stopped(self) -> float:
        """Seconds that a stopped rank has to end. It cannot react before it continues."""
        return STOPPED_SECONDS if self._seconds is None else min(STOPPED_SECONDS, self._seconds)

    def is_second(self, number: int) -> bool | None:
        """Returns whether this signal follows an earlier one and kills. None: it is the earlier one, received twice."""
        if number not in ENDS_AT_ONCE:
            return False
        before, now = self._signalled, time.monotonic()
        self._signalled = now if before is None else before
        if before is None:
            return False
        return True if now - before > REPEATED_SECONDS else None
