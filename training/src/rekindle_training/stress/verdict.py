"""What a check finds of this rank's device, and how long it may go on."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rekindle_training.stress.codes import FAULT, OK

Disturb = Callable[[torch.Tensor], None]
"""What a tensor goes through before it is looked at: nothing, or an injected fault."""


@dataclass(frozen=True)
class Verdict:
    code: str
    result: str
    """One line, with figures and units."""
    wrong: tuple[int, ...] = ()
    """Ranks of which messages came wrong."""
    silent: tuple[int, ...] = ()
    """Ranks of which none came."""


def found(wrong: int, result: str) -> Verdict:
    """`wrong`: how many elements are."""
    return Verdict(FAULT if wrong else OK, result)


class Turn:
    """Of one check: it looks here between two pieces of its work, none of which takes long."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._stopped = threading.Event()

    def stop(self) -> None:
        """From any thread: nobody wants to know any more."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def over(self) -> bool:
        return self.stopped or self.left() <= 0

    def left(self, share: float = 1) -> float:
        """Seconds until this share of the time is used."""
        return self._seconds * share - self.spent

    @property
    def spent(self) -> float:
        return time.monotonic() - self._began
