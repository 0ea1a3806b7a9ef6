"""Checkpoints that are written from snapshots in memory, beside training. Used by `snapshots.py`.

Ranks meet in a store of their own. A process group would order their messages with the collectives of training, and the manager
may be replaced while training goes on. A generation that ends gives up its checkpoint, and the next snapshot is written instead.
"""

import logging
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from rekindle_training.adapter.checkpoint import CheckpointNotWritten, Checkpoints
from rekindle_training.adapter.communicator import Communicator, connected_store
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
        self._store: dist.TCPStore | None = None
        """Store of this generation, if this rank is the first one."""
        self._address = "", 0

    def open(self, host: str) -> None:
        """Opens the store in which the ranks of a generation meet. Called by all of them together.

        Args:
            host: address of this rank.
        """
        is_first = self._rank == self._communicator.team.members[0]
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False) if is_first else None
        said = [(host, self._store.port) if self._store else ("", 0)]
        dist.broadcast_object_list(said, 0)
        self._address = said[0]

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
        arguments = step, self._address, read, self._called_off
        self._writer = threading.Thread(target=self._write, args=arguments, name="rekindle-checkpoint", daemon=True)
        self._writer.start()

    def call_off(self) -> None:
        """Gives up the checkpoint that is being written, since its generation is over."""
        self._called_off.set()

    def finish(self) -> None:
        """Waits until the checkpoint is written, or given up."""
        if self._writer is not None:
            self._writer.join()

    def _write(self, step: int, address: tuple[str, int], read: Callable[[], Ward], called_off: threading.Event) -> None:
        began, members = time.monotonic(), self._communicator.team.members
        is_first = self._rank == members[0]

        def is_over() -> bool:
            return called_off.is_set() or self._gate.broken

        try:
            store = dist.PrefixStore(f"{step}", connected_store(*address))
            meeting = Meeting(store, members, self._rank, SECONDS, is_over)
            self._checkpoints.write_snapshot(step, meeting, read)
        except FAILURES as error:
            self.is_wanted = not isinstance(error, CheckpointNotWritten)  # a full disk is full after the next snapshot, too
            if is_over():
                log.info("checkpoint given up", extra={"step": step, "reason": in_words(error)})
            elif is_first:
                log.warning("checkpoint after step %d not written, training goes on; reason: %s", step, error)
        else:
            if is_first:
                log.info("checkpoint written", extra={"step": step, "seconds": round(time.monotonic() - began, 3)})
