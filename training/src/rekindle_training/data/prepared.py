"""Batches of a loader that accelerate has prepared. The loader below it is drawn from: its own iteration talks to other ranks."""

from collections.abc import Callable
from typing import Any

from rekindle_training.data.indexed import Indexed


class Prepared:
    """Batches of this rank on its device. `Accelerator.accumulate` is notified of the end of an epoch."""

    KEYS = Indexed.KEYS

    def __init__(self, shard: Any, below: Indexed, send: Callable[..., Any]) -> None:
        self._shard, self._below, self._send = shard, below, send
        self._begun = False

    def __len__(self) -> int:
        return len(self._below)

    def state_dict(self) -> dict[str, Any]:
        return self._below.state_dict()

    def load_state_dict(self, state: dict[str, Any], epoch: int, number: int) -> None:
        self._below.load_state_dict(state, epoch, number)

    def draw(self, epoch: int, number: int) -> Any:
        try:
            batch = self._below.draw(epoch, number)
        except StopIteration:
            self._shard.end()
            self._begun = False
            raise
        if not self._begun:
            self._shard.begin()
            self._begun = True
        self._shard.end_of_dataloader = number + 1 == len(self)
        if self._shard.device is None:
            return batch
        return self._send(batch, self._shard.device, non_blocking=vars(self._shard)["_non_blocking"])
