"""Breaks one thing in a migration on purpose, so that a test can see the comparison of final parameters fail. Off by default."""

import torch

from rekindle_training import names
from rekindle_training.adapter.state import State

OPTIMIZER, BIT, RNG = "optimizer", "bit", "rng"


class Tampering:
    """Damage to a migration: `optimizer` leaves the optimizer's state out, `rng` the random numbers; `bit` flips one bit after
    all checks.
    """

    def __init__(self, what: str) -> None:
        if what not in ("", OPTIMIZER, BIT, RNG):
            raise ValueError(f"{names.TAMPER}={what!r}: accepted are {OPTIMIZER}, {BIT}, {RNG}")
        self._what = what

    @property
    def keeps_random_numbers(self) -> bool:
        return self._what != RNG

    def of_state(self, state: State) -> State:
        return {key: value for key, value in state.items() if self._what != OPTIMIZER or key != "optimizer"}

    def of_model(self, model: torch.nn.Module) -> None:
        if self._what == BIT:
            first = next(model.parameters())
            with torch.no_grad():
                first.view(-1)[:1].view(torch.uint8)[0] ^= 1
