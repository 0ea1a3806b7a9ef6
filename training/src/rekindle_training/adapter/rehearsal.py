"""Rehearsal of a repair: an early step is done twice on purpose, before its update, and has to come to the same state twice.

A script that carries something from turn to turn which the session was not given is found in its first minute this way, and not
at its first fault. The second step of each life of a job is rehearsed: in the first one libraries and wrappers set themselves up.
"""

import math
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rekindle_training.adapter.boundary import Boundary
from rekindle_training.adapter.digest import digest, leaf_digest
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.sharding import local
from rekindle_training.adapter.trained import Trained

REHEARSED = 2
"""Number of the rehearsed step, counted from 1 in each life of a job."""
POSTPONED = 3
"""Maximum number of times that the rehearsal is postponed to the next step."""
TOLERANCE = 1e-2
"""Largest difference of a gradient's norm, and of a sum of its elements with random signs, as a share of the norm: kernels of an
accelerator may add in another order. Another batch or another mask changes both by more."""
NOISE = 0.1
"""Share of the largest gradient's norm below which a gradient is compared by the tolerance of that share: one that is zero but
for rounding, such as that of a bias before BatchNorm, is another one each time."""
AT_ONCE = 1024 * 1024
"""Elements of a gradient that are summed up at once, so that little memory of the accelerator is needed."""
Fingerprint = bytes | tuple[float, float]


@dataclass(frozen=True)
class _Pass:
    """State of a step before its update."""

    gradients: Mapping[str, Fingerprint]
    state: Mapping[str, bytes]


class Rehearsal:
    """Rehearsal of one rank. `is_due` and `first` belong to the first pass of a step, `difference` to the second one."""

    def __init__(self, trained: Trained, boundary: Boundary) -> None:
        self._trained, self._boundary = trained, boundary
        self._number = 0
        """Step that is rehearsed; 0: not known yet."""
        self._put_off = 0
        self._first: _Pass | None = None
        self.is_over = False

    def begin(self, number: int, total: int) -> None:
        """Chooses the step of the rehearsal. Called when the first loop begins, whose first step is `number`."""
        if not self._number:
            self._number = number + REHEARSED - 1
            self.is_over = self.is_over or self._number > total

    def postpone(self, number: int) -> bool:
        """Postpones the rehearsal to the next step, since wrappers set themselves up.

        Returns False if that was done too often.
        """
        if self._put_off == POSTPONED:
            return False
        self._put_off, self._number = self._put_off + 1, number + 1
        return True

    def is_first_pass(self, number: int) -> bool:
        return not self.is_over and number == self._number and self._first is None

    def is_second_pass(self, number: int) -> bool:
        return not self.is_over and number == self._number and self._first is not None

    def remember(self) -> None:
        self._first = self._now()

    def conclude(self) -> str:
        """Returns in words what differs on some rank between the two passes; empty: nothing. Called by all ranks together."""
        assert self._first is not None
        first, second = self._first, self._now()
        self._first, self.is_over = None, True
        found: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(found, _difference(first, second))
        return next((f"on rank {rank}, {words}" for rank, words in enumerate(found) if words), "")

    def _now(self) -> _Pass:
        gradients = {name: _fingerprint(gradient) for name, gradient in self._gradients()}
        return _Pass(gradients, {**own_parts(self._trained.take_own()), **self._small()})

    def _gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        modules = {"model": self._trained.model, **self._trained.shared}
        for root, module in modules.items():
            if isinstance(module, torch.nn.Module):
                for name, parameter in module.named_parameters():
                    if parameter.grad is not None and parameter.grad.layout is torch.strided:
                        yield (name if root == "model" else f"{root} {name}"), parameter.grad

    def _small(self) -> dict[str, bytes]:
        """Returns digests of the objects of `state` and of the buffers, by name."""
        given = {**self._boundary.small, **self._boundary.large}
        found = {name: digest(thing.state_dict()) for name, thing in given.items()}
        for root, module in self._trained.own_buffers.roots.items():
            found |= {f"buffer {name} of {root}": leaf_digest(buffer) for name, buffer in module.named_buffers()}
        return found


def own_parts(own: Own) -> dict[str, bytes]:
    """Returns digests of a rank's own state, by its parts. Pickled values are compared by their content."""
    numbers = {"Python's": own.python, "torch's": own.torch, "numpy's": own.numpy, "the accelerator's": own.accelerator}
    parts = {f"{whose} random numbers": content for whose, content in numbers.items() if content is not None}
    if own.numpy is not None:
        parts["numpy's random numbers"] = digest(pickle.loads(own.numpy))
    if own.data is not None:
        parts["the position of `data`"] = digest(pickle.loads(own.data))
    for number, share in own.carried:
        parts |= {f"{name} for share {number}": content for name, content in own_parts(share).items()}
    return parts


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Returns the names of the parts that differ."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def _difference(first: _Pass, second: _Pass) -> str:
    states = differing(first.state, second.state)
    names = {**first.gradients, **second.gradients}
    least = NOISE * max((norm for found in first.gradients.values() if (norm := _norm(found)) < math.inf), default=0.0)
    gradients = [name for name in names if not _alike(first.gradients.get(name), second.gradients.get(name), least)]
    if not (states or gradients):
        return ""
    found = " and ".join([*states[:2], *(f"the gradient of {name}" for name in gradients[:1])])
    return f"{found} differ from the first try. {_advice(states)}"


def _advice(states: list[str]) -> str:
    if not all(name.startswith("buffer ") for name in states):
        return "What moves in a step is given to the session: as `state`, or as `data` where each rank has its own"
    return (
        "The step uses something that the session was not given: a batch that was drawn in an earlier turn, a generator, "
        "a counter or an average in a variable. Draw the batch inside the step, and give what is left to the session"
    )


def _fingerprint(gradient: torch.Tensor) -> Fingerprint:
    """Returns a digest where kernels are deterministic, as on the host; otherwise the norm and a sum with random signs."""
    held = local(gradient) if isinstance(gradient, DTensor) else gradient
    if held.device.type == "cpu" or torch.are_deterministic_algorithms_enabled():
        return leaf_digest(held)
    return norm_and_sum(held)


def norm_and_sum(gradient: torch.Tensor) -> tuple[float, float]:
    """Returns the norm of a gradient and the sum of its elements with random signs, which are the same each time."""
    flat = gradient.detach().resolve_conj().resolve_neg().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    generator = torch.Generator(flat.device).manual_seed(1)
    found = torch.zeros(2, dtype=torch.float64, device="cpu").to(flat.device)
    for part in flat.split(AT_ONCE):
        signs = torch.randint(0, 2, part.shape, dtype=torch.int8, generator=generator, device=flat.device).mul_(2).sub_(1)
        elements = part.float()
        found += torch.stack([elements.square().sum(), (elements * signs).sum()])
    squares, signed = found.tolist()
    return math.sqrt(squares), signed


def _norm(found: Fingerprint) -> float:
    return math.inf if isinstance(found, bytes) or math.isnan(found[0]) else found[0]


def _alike(first: Fingerprint | None, second: Fingerprint | None, least: float) -> bool:
    """Args:
    least: norm of which the tolerance is taken at least.
    """
    if not (isinstance(first, tuple) and isinstance(second, tuple)):
        return first == second
    scale = max(first[0], second[0], least)
    return all(_are_close(one, other, scale) for one, other in zip(first, second, strict=True))


def _are_close(one: float, other: float, scale: float) -> bool:
    """Returns whether two values are close.

    Gradients that overflow both times are alike, as in the first steps of a GradScaler.
    """
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.isfinite(one) == math.isfinite(other)
    return abs(one - other) <= TOLERANCE * scale
