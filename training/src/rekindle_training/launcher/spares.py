"""Processes of a pod that run the script in advance and wait for a rank, as the launcher sees them. Used by `pod.py`."""

import logging
import time
from dataclasses import dataclass

log = logging.getLogger(__name__)

USELESS_STARTS = 3
"""Number of spares in a row that may end before they are needed. After that no further one is started."""
USEFUL_SECONDS = 60.0
"""Seconds after which a waiting process counts as useful: its end is not caused by its script."""


@dataclass
class _Spare:
    waits_since: float | None = None
    """Monotonic time at which the process reached the point where it needs a rank. None: it still loads."""
    stopped: bool = False


class Spares:
    """Spares of a pod, by name."""

    def __init__(self) -> None:
        self._known: dict[str, _Spare] = {}
        self._useless = 0
        """Number of processes in a row that ended before they were needed."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def ready(self) -> int:
        """Number of spares that can take a rank immediately."""
        return sum(spare.waits_since is not None and not spare.stopped for spare in self._known.values())

    @property
    def given_up(self) -> bool:
        """Returns whether no further spare is started, because too many in a row ended before they were needed."""
        return self._useless > USELESS_STARTS

    def started(self, name: str) -> None:
        self._known[name] = _Spare()

    def waits(self, name: str) -> None:
        if name in self._known:  # it may have a rank by now
            self._known[name].waits_since = time.monotonic()
            log.info("spare parked", extra={"spare": name})

    def stopped(self, name: str, *, stopped: bool) -> None:
        self._known[name].stopped = stopped
        log.warning("spare stopped, not used" if stopped else "spare continued", extra={"spare": name})

    def ended(self, name: str) -> None:
        since = self._known.pop(name).waits_since
        was_useful = since is not None and time.monotonic() - since > USEFUL_SECONDS
        self._useless = 0 if was_useful else self._useless + 1

    def give_up(self) -> None:
        """Stops the start of further spares, because they would end as the last one did."""
        self._useless = USELESS_STARTS + 1

    def lose(self) -> None:
        """Removes all spares, which have ended for a reason that is not their own."""
        self._known.clear()

    def take(self, rank: int) -> str | None:
        """Removes and returns a spare for this rank, preferably one that waits. None: there is no usable spare."""
        able = [name for name, spare in self._known.items() if not spare.stopped]
        name = max(able, key=lambda name: self._known[name].waits_since is not None, default=None)
        if name is not None:
            waited = self._known.pop(name).waits_since is not None
            self._useless = 0
            log.info("spare assigned to a rank", extra={"rank": rank, "waited": waited})
        return name
