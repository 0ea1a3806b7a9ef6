"""Losses that a script reports, by which the first step after a recovery is judged.

In a step a loss is only copied, without waiting for a device. It is read once for each recovery.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from rekindle_training.adapter.sharding import local


class Finite(NamedTuple):
    """Whether the losses of one rank are finite. None: the rank has none, or cannot read it."""

    before: bool | None
    """Loss of the last step before the recovery."""
    now: bool | None
    """Loss of the first step after it."""


class ReportedLoss:
    """Losses of one rank, in its current step and in the last one that counts."""

    def __init__(self) -> None:
        self._now: torch.Tensor | float | None = None
        self._before: torch.Tensor | float | None = None

    def report(self, loss: object) -> None:
        """Notes a loss of the current step. Losses of one step are added up.

        Raises:
            TypeError: it is no number and no tensor of numbers.
        """
        if isinstance(loss, torch.Tensor):
            wide = torch.promote_types(loss.dtype, torch.float32)  # a sum of finite halves is often none
            with torch.no_grad():  # a copy, since the script may use its tensor again
                found: torch.Tensor | float = local(loss.detach()).sum(dtype=wide)
        elif isinstance(loss, int | float) and not isinstance(loss, bool):
            found = float(loss)
        else:
            raise TypeError(f"training.report_loss(loss): {type(loss).__name__} is not accepted; give a tensor or a number")
        self._now = found if self._now is None else self._now + found

    def drop(self) -> None:
        """Forgets the loss of a step that is repeated."""
        self._now = None

    def step_is_done(self, *, counts: bool) -> None:
        """Args:
        counts: False if the step is the first one after a recovery, and was not judged.
        """
        if counts and self._now is not None:
            self._before = self._now
        self._now = None

    def finite(self) -> Finite:
        """Reads both losses, for which a device is waited for."""
        return Finite(_is_finite(self._before), _is_finite(self._now))


def _is_finite(loss: torch.Tensor | float | None) -> bool | None:
    if loss is None:
        return None
    try:
        return bool(torch.isfinite(torch.as_tensor(loss)).item())
    except RuntimeError:  # the device on which it was computed is lost
        return None


def problem(losses: Sequence[Finite | None]) -> str:
    """Returns why the first step after a recovery does not count, from the losses of all ranks. Empty: it counts.

    A job whose loss was not finite before, or is not known, is not judged.
    """
    known = [loss for loss in losses if loss is not None]
    was_well = any(loss.before for loss in known) and not any(loss.before is False for loss in known)
    broken = next((rank for rank, loss in enumerate(losses) if loss is not None and loss.now is False), None)
    if broken is None or not was_well:
        return ""
    return (
        f"the loss of rank {broken} is not finite in the first step after a recovery, and losses were finite before: the state "
        "of this training is not proved any more"
    )
