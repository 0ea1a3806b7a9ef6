"""Periodic checkpoints of one rank: when one is due, and what follows if it cannot be written. Called by the session's loop.

A checkpoint protects training but is no part of it. So training goes on after a failed one, which is tried again later. All ranks
write together, and have to agree on the time in the same generation. A process that joins a later generation does not know of
earlier failures.
"""

import logging
import math
import time
from collections.abc import Callable

import torch.distributed as dist

from rekindle_training.adapter.checkpoint import CheckpointFailed, CheckpointStore
from rekindle_training.adapter.failure_text import FAILURES, cause_in_words

log = logging.getLogger(__name__)

FIRST_SECONDS, MOST_SECONDS = 10.0, 600.0
"""First and longest wait in seconds until a failed checkpoint is tried again, if none is due before. It doubles each time."""
SHARE = 10
"""Minimum wait, as a multiple of the duration of the failed try."""
TRIES = 2
"""Number of tries after one step that end with the loss of a rank, until the checkpoint is postponed.

Writing may be what kills the rank.
"""


class Periodic:
    def __init__(self, store: CheckpointStore, every: int, is_loss: Callable[[BaseException], bool]) -> None:
        """Args:
        every: steps between two checkpoints; 0: none is written.
        is_loss: whether an error says that other ranks were lost.
        """
        self._store, self.every, self._is_loss = store, every, is_loss
        self._again = 0
        """Step after which a failed checkpoint is tried again; 0: none."""
        self._patience = FIRST_SECONDS
        """Wait after a failure, in seconds; longer than the first one: the last checkpoint failed."""
        self._newest: int | None = None
        """Step of the newest checkpoint; None: not known."""
        self._troubled = self._tries = 0
        """Step after which writing failed here or was interrupted, and the number of times."""
        self._reason = ""
        """Reason of a failure here, which other ranks see as the loss of this one."""
        self._took = 0.0
        self._since: tuple[int, float] | None = None
        """Step and time since which the pace of training is measured."""

    def is_due(self, step: int) -> bool:
        return step > 0 and self.every > 0 and (step % self.every == 0 or step == self._again)

    def join(self, step: int) -> None:
        """Begins a new generation. Its other members may not know of a pending try, which is dropped."""
        self._again = 0
        self._since = self._since or (step, time.monotonic())

    def write(self, step: int) -> None:
        """Writes a checkpoint, together with all ranks. Returns also where it cannot be written.

        Raises:
            Exception: other ranks were lost; or the store has failed here, and may not have failed elsewhere.
        """
        troubled = self._troubled == step and (self._tries >= TRIES or bool(self._reason))
        if self._is_put_off(step, self._steps_to_wait(step) if troubled else 0):
            return
        began = time.monotonic()
        try:
            self._newest = self._store.newest()
            if self._newest != step:  # it may have been written when another rank failed
                self._store.write(step)
        except FAILURES as error:
            self._note(step, began)
            if isinstance(error, CheckpointFailed):
                self._reason = str(error)
                self._is_put_off(step, self._steps_to_wait(step))
                return
            if not self._is_loss(error):
                self._reason = f"rank {dist.get_rank()}: {cause_in_words(error)}"
            raise
        else:
            self._written(step)

    def _note(self, step: int, began: float) -> None:
        self._tries = self._tries + 1 if self._troubled == step else 1
        self._troubled, self._took, self._reason = step, time.monotonic() - began, ""

    def _steps_to_wait(self, step: int) -> int:
        begun, since = self._since or (step, 0.0)
        if step == begun:  # other ranks know better
            return 1
        seconds_per_step = max(time.monotonic() - self._took - since, 1e-6) / (step - begun)
        seconds = max(self._patience, SHARE * self._took)
        return max(min(math.ceil(seconds / seconds_per_step), self.every), 1)

    def _is_put_off(self, step: int, wait: int) -> bool:
        """Returns whether any rank requests to wait. All ranks then wait for the largest number of steps."""
        said: list[tuple[int, str]] = [(0, "")] * dist.get_world_size()
        dist.all_gather_object(said, (wait, self._reason))
        if not (longest := max(steps for steps, _ in said)):
            return False
        self._patience = min(2 * self._patience, MOST_SECONDS)
        self._again = min(step + longest, step - step % self.every + self.every)
        self._since = (step, time.monotonic())
        if dist.get_rank() == 0:
            reason = next((reason for _, reason in said if reason), "ranks were lost while they wrote it")
            newest = {None: "it is not known which is the newest", 0: "no other one is found"}
            log.warning(
                "checkpoint after step %d not written, training goes on; %s; tried again after step %d; reason: %s",
                step,
                newest.get(self._newest, f"the newest is that of step {self._newest}"),
                self._again,
                reason,
            )
        self._tries, self._reason = 0, ""
        return True

    def _written(self, step: int) -> None:
        if self._patience > FIRST_SECONDS and dist.get_rank() == 0:
            log.warning("checkpoints written again, from step %d on", step)  # as loud as what it puts an end to
        self._again = self._troubled = 0
        self._patience, self._reason = FIRST_SECONDS, ""
        self._newest, self._since = step, (step, time.monotonic())
