"""How long ranks that were told to end may take before they are killed. Used by `pod.py`.

Whoever ends the pod from outside, as the kubelet does, kills it when its patience is over; a script that saves its work until
then is not disturbed. Where the pod ends its ranks by itself, nobody else would ever kill one that does not react.
"""

import signal
import time
from collections.abc import Callable

from rekindle_training.launcher.timers import GraceOver, StillEnding

FAILED_SECONDS = 30.0
"""By default, where another rank's failure or a restart ends the ranks; as torchrun has it."""
STOPPED_SECONDS = 5.0
"""How long a process may be stopped that is to end, or that is the manager."""
STILL_SECONDS = 5.0
"""After so long ranks that still end are named."""
ENDS_AT_ONCE = (signal.SIGTERM, signal.SIGINT)
"""The second of these kills the ranks."""
REPEATED_SECONDS = 0.2
"""Within so long a signal is the same one: `timeout` sends it to the process and to its group."""


class Grace:
    """Of one pod: the last that was given counts."""

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
        """Ranks are told to end now; `limited`: nobody else would kill them."""
        self._number += 1
        self._is_limited = limited or self._seconds is not None
        if self._is_limited:
            seconds = FAILED_SECONDS if self._seconds is None else self._seconds
            self._later(seconds, GraceOver(self._number, seconds))
        self._later(STILL_SECONDS, StillEnding(self._number))

    def limit(self) -> None:
        """Those that still end now would not end by themselves."""
        if not self._is_limited:
            self.give(limited=True)

    def settle(self) -> None:
        """All have ended."""
        self._number += 1

    def is_meant(self, event: GraceOver | StillEnding) -> bool:
        return event.number == self._number

    @property
    def of_stopped(self) -> float:
        """Seconds for a rank that is stopped, and cannot react before it goes on."""
        return STOPPED_SECONDS if self._seconds is None else min(STOPPED_SECONDS, self._seconds)

    def is_second(self, number: int) -> bool | None:
        """Returns whether this signal follows an earlier one and kills; None: it is the earlier one, told twice."""
        if number not in ENDS_AT_ONCE:
            return False
        before, now = self._signalled, time.monotonic()
        self._signalled = now if before is None else before
        if before is None:
            return False
        return True if now - before > REPEATED_SECONDS else None
