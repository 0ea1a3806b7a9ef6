"""What is being trained: the objects that the user gave to the session, and every way in which their state moves."""

import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from rekindle_training.adapter import own, state
from rekindle_training.adapter.checkpoint import Checkpoints
from rekindle_training.adapter.state import State, Stateful


@dataclass(frozen=True)
class Trained:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Stateful | None
    data: Stateful | None
    """A position that differs from rank to rank, such as a sampler's."""
    accelerator: str | None
    """`torch.<accelerator>` has random number generators of its own."""

    def collect(self) -> State:
        """What all data parallel ranks have in common."""
        return state.collect(self.model, self.optimizer, self.scheduler)

    def restore(self, common: State) -> None:
        state.restore(common, self.model, self.optimizer, self.scheduler)

    def capture_own(self) -> bytes:
        return own.capture(self.data, self.accelerator)

    def restore_own(self, content: bytes, *, random_numbers: bool = True) -> None:
        own.restore(content, self.data, self.accelerator, random_numbers=random_numbers)

    def write(self, checkpoints: Checkpoints, step: int) -> None:
        scheduler = self.scheduler.state_dict() if self.scheduler is not None else None
        checkpoints.write(step, self._portable(), pickle.dumps((scheduler, self.capture_own())))

    def read(self, checkpoints: Checkpoints, step: int) -> None:
        portable = self._portable()
        scheduler, own_state = pickle.loads(checkpoints.read(step, portable))  # written by the same job
        set_state_dict(self.model, self.optimizer, model_state_dict=portable["model"], optim_state_dict=portable["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(scheduler)
        self.restore_own(own_state)

    def _portable(self) -> dict[str, Any]:
        """By fully qualified names, as other tools that read distributed checkpoints expect it."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}
