"""Watch over generators of random numbers in the script's variables, which the session was not given.

The rehearsal finds a generator that each step uses. A generator that only some steps use, and do not seed, is logged when it
first moves, because a repeated step draws other numbers.
"""

import logging
import pickle
import sys
from collections.abc import Iterable
from types import FrameType

import torch

from rekindle_training.data.random_numbers import Held, held_by

log = logging.getLogger(__name__)


class Generators:
    """Generators of one rank that were not seen to move in a step."""

    def __init__(self) -> None:
        self._watched: dict[str, Held] = {}
        """Generators, by the names of their variables."""
        self._then: dict[str, tuple[bytes, int]] = {}

    def find(self, frames: Iterable[FrameType], given: Iterable[object]) -> None:
        """Args:
        frames: of the script, where its loop begins.
        given: what the session has, with the generators that it holds.
        """
        known = {id(held.thing) for held in held_by(*given)}
        for frame in frames:
            for name, value in {**frame.f_globals, **frame.f_locals}.items():
                if _is_watched(value) and id(value) not in known:
                    known.add(id(value))
                    (self._watched[name],) = held_by(value)

    def remember(self) -> None:
        """Remembers the generators' states. Called when a step begins."""
        self._then = {name: _state(held) for name, held in self._watched.items()}

    def notice(self, step: int) -> None:
        """Logs each generator that has moved in this step, once. If its seed has changed, the script restores it."""
        for name, (state, seed) in self._then.items():
            now, now_seed = _state(self._watched[name])
            if now == state:
                continue
            kind = type(self._watched.pop(name).thing).__name__
            if now_seed == seed:
                log.warning(
                    "the generator %s (%s) was not given to the session, and moved in step %d: a repair that repeats such a step "
                    "draws other numbers; seed it in each step by the number of the step, draw from torch's own generator, or "
                    "give its state as `data`",
                    name,
                    kind,
                    step,
                )
        self._then = {}


def _is_watched(value: object) -> bool:
    """Returns whether a value is a generator of torch or numpy. Other kinds may be seeded again by a call that is not noticed.

    Asks the type of the value, as the `__class__` of a stand-in may execute code of a library.
    """
    numpy, kind = sys.modules.get("numpy"), type(value)
    return issubclass(kind, torch.Generator) or (numpy is not None and issubclass(kind, numpy.random.Generator))


def _state(held: Held) -> tuple[bytes, int]:
    seed = held.thing.initial_seed() if isinstance(held.thing, torch.Generator) else 0
    return pickle.dumps(held.get()), seed
