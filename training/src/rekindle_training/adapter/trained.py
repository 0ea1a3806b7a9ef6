"""What is being trained: the objects that the user gave to the session, and every way in which their state moves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from rekindle_training import wire
from rekindle_training.adapter import own, state
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.state import State, Stateful

LARGEST_OWN = wire.LARGEST_MESSAGE - 1024 * 1024
"""Bytes of what a rank has for itself, which goes through the manager in one message."""


@dataclass(frozen=True)
class Trained:
    model: torch.nn.Module
    optimizer: Stateful
    data: Stateful | None = None
    """A position that differs from rank to rank, such as a sampler's."""
    shared: Mapping[str, Stateful] = field(default_factory=dict)
    """What else data parallel ranks have in common, such as a scheduler, by the name that the session has for it."""
    accelerator: str | None = None
    """`torch.<accelerator>` has random number generators of its own."""

    def __post_init__(self) -> None:
        given = {"optimizer": self.optimizer, **self.shared}
        state.refuse(self.model, given if self.data is None else {**given, "data": self.data})
        state.refuse_content(self.collect())
        size = len(self.take_own().pickled)
        if size > LARGEST_OWN:
            raise ValueError(
                f"session(data): the state of {type(self.data).__name__} has {size / 1e6:.1f} MB, of which a pause can take "
                f"{LARGEST_OWN / 1e6:.1f} MB along; keep what it is made from, such as a seed and a position"
            )

    def collect(self) -> State:
        """What all data parallel ranks have in common."""
        return state.collect(self.model, self.optimizer, self.shared)

    def place(self, common: State) -> None:
        state.place(common, self.model, self.optimizer, self.shared)

    def take_own(self) -> Own:
        return own.take(self.data, self.accelerator)

    def put_own(self, then: Own, *, random_numbers: bool = True) -> None:
        own.put(then, self.data, self.accelerator, random_numbers=random_numbers)

    def take_random_numbers(self) -> Own:
        return own.take(None, self.accelerator)
