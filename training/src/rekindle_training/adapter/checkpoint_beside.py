"""Checkpoints that are written from snapshots in memory, beside training. Used by `snapshots.py`.

Ranks meet in the manager's store. A process group would order their messages with the collectives of training. A generation that
ends gives up the checkpoint that is being written, and the next snapshot is written instead.
"""

import logging
import threading
import time
from collections.abc import Callable

from rekindle_training.adapter.checkpoint import CheckpointNotWritten, Checkpoints
from rekindle_training.adapter.communicator import Communicator
from rekindle_training.adapter.failure_text import FAILURES, in_words
from rekindle_training.adapter.meeting import Meeting
from rekindle_training.adapter.wards import Ward
from rekindle_training.processor.gate import Gate

log = logging.getLogger(__name__)

SECONDS = 600.0
"""Limit of one checkpoint in seconds. A rank that cannot take part does not answer."""


class Beside:
    """Checkpoints beside training, as one rank takes part in them."""

    def __init__(self, checkpoints: Checkpoints, communicator: Communicator, gate: Gate, rank: int) -> None:
        self._checkpoints, self._communicator, self._gate, self._rank = checkpoints, communicator, gate, rank
        self.is_wanted = False
        """True if a checkpoint is to be written from the next snapshot, because one was given up."""
        self._step = 0
        self._writer: threading.Thread | None = None
        self._called_off = threading.Event()

    @property
    def step(self) -> int | None:
        """Step of the checkpoint that is being written. None: none is."""
        return self._step if self._writer is not None and self._writer.is_alive() else None

    def begin(self, step: int, read: Callable[[], Ward]) -> None:
        """Begins to write the checkpoint of this step, together with all ranks of the generation.

        Args:
            read: returns the state of this rank after the step. It may raise.
        """
        self.is_wanted, self._step, self._called_off = False, step, threading.Event()
        arguments = step, self._communicator.generation, read, self._called_off
        self._writer = threading.Thread(target=self._write, args=arguments, name="rekindle-checkpoint", daemon=True)
        self._writer.start()

    def call_off(self) -> None:
        """Gives up the checkpoint that is being written, since its generation is over."""
        self._called_off.set()

    def finish(self) -> None:
        """Waits until the checkpoint is written, or given up."""
        if self._writer is not None:
            self._writer.join()

    def _write(self, step: int, generation: int, read: Callable[[], Ward], called_off: threading.Event) -> None:
        began, members = time.monotonic(), self._communicator.team.members
        try:
            store = self._communicator.store_beside(f"checkpoint {step}", generation)
            meeting = Meeting(store, members, self._rank, SECONDS, lambda: called_off.is_set() or self._gate.broken)
            self._checkpoints.write_snapshot(step, meeting, read)
        except CheckpointNotWritten as error:
            if self._rank == members[0]:
                log.warning("checkpoint after step %d not written, training goes on; reason: %s", step, error)
        except FAILURES as error:
            self.is_wanted = True
            log.info("checkpoint given up", extra={"step": step, "reason": in_words(error)})
        else:
            if self._rank == members[0]:
                log.info("checkpoint written", extra={"step": step, "seconds": round(time.monotonic() - began, 3)})
