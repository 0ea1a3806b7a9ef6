"""Processes of a pod that run the script ahead and wait for a rank, as the launcher knows them. Used by `pod.py`."""

import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass
class _Spare:
    waits: bool = False
    """It has got as far as it can without a rank."""
    stopped: bool = False


class Spares:
    """By their names."""

    def __init__(self) -> None:
        self._known: dict[str, _Spare] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def ready(self) -> int:
        """How many can take a rank at once."""
        return sum(spare.waits and not spare.stopped for spare in self._known.values())

    def started(self, name: str) -> None:
        self._known[name] = _Spare()

    def waits(self, name: str) -> None:
        if name in self._known:  # it may have a rank by now
            self._known[name].waits = True
            log.info("a spare waits", extra={"spare": name})

    def stopped(self, name: str, *, stopped: bool) -> None:
        self._known[name].stopped = stopped
        log.warning("a spare is not used while it is stopped" if stopped else "a spare goes on", extra={"spare": name})

    def ended(self, name: str) -> None:
        del self._known[name]

    def take(self, rank: int) -> str | None:
        """One for this rank, if there is any; one that waits before one that still loads."""
        able = [name for name, spare in self._known.items() if not spare.stopped]
        name = max(able, key=lambda name: self._known[name].waits, default=None)
        if name is not None:
            log.info("a spare takes a rank", extra={"rank": rank, "waited": self._known.pop(name).waits})
        return name
