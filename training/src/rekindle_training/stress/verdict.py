"""Result of a check of this rank's device, and the time limit of the check."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rekindle_training.stress.codes import FAULT, OK

Disturb = Callable[[torch.Tensor], None]
"""Function that is applied to a tensor before it is compared: it does nothing, or injects a fault."""


@dataclass(frozen=True)
class Verdict:
    code: str
    result: str
    """Result in one line, with figures and units."""
    wrong: tuple[int, ...] = ()
    """Ranks whose messages arrived with wrong content."""
    silent: tuple[int, ...] = ()
    """Ranks from which no message arrived."""


def found(wrong: int, result: str) -> Verdict:
    """Returns the verdict FAULT if `wrong`, the number of wrong elements, is not 0. Otherwise returns OK."""
    return Verdict(FAULT if wrong else OK, result)


class Turn:
    """Time limit of one check. The check looks at it between two pieces of its work, none of which takes long."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stops the check. Can be called from any thread; the result is not needed any more."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def over(self) -> bool:
        return self.stopped or self.left() <= 0

    def left(self, share: float = 1) -> float:
        """Returns the seconds that are left of this share of the time."""
        return self._seconds * share - self.spent

    @property
    def spent(self) -> float:
        return time.monotonic() - self._began
