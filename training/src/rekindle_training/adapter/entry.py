"""Entry of a process into the job: it meets the other ranks and joins the default process group.

It does not have any state of training yet.
"""

import atexit
import gc
import os
from dataclasses import dataclass

import torch.distributed as dist

from rekindle_training import names
from rekindle_training.adapter import communicator
from rekindle_training.adapter.communicator import Communicator
from rekindle_training.adapter.failure_text import in_words
from rekindle_training.adapter.snapshots import held, memory_of
from rekindle_training.environment import RankEnvironment
from rekindle_training.injection import Injection
from rekindle_training.processor.gate import Gate, Join, Stand
from rekindle_training.processor.processor import Processor
from rekindle_wire.training_pb2 import Leave, Standing

_is_warm = False
"""True if this process has called `warm`."""


def warm() -> None:
    """Runs once the costly setup of a rank's first group, its first backward pass and its first garbage collection."""
    global _is_warm
    if _is_warm or dist.is_initialized():
        return
    _is_warm = True
    communicator.warm()
    gc.collect()
    atexit.register(gc.unfreeze)  # a library that reports unfreed objects at the end, such as nanobind, would report all
    gc.freeze()  # a full collection walks over all of torch: 0.2 s, which fell into pauses and checkpoints


@dataclass
class Entry:
    environment: RankEnvironment
    communicator: Communicator
    gate: Gate
    processor: Processor
    met: Join | None = None
    """Generation that was joined: its group exists, but the state of training in it is still to be received."""

    @property
    def begins(self) -> bool:
        """Returns whether the generation that was joined is the first one of a life of the job."""
        return self.met is not None and self.met.rebuild.begins

    @classmethod
    def make(cls) -> "Entry":
        """Reads the environment and creates an entry. A spare waits for its rank here."""
        warm()
        return cls.of(RankEnvironment.read())

    @classmethod
    def of(cls, environment: RankEnvironment) -> "Entry":
        gate = Gate()
        made = Communicator(environment, gate)
        return cls(environment, made, gate, Processor(environment, gate, made))

    def begin(self) -> None:
        """Registers this process with the manager."""
        self.communicator.watch()
        if self.environment.role == names.BACKUP and Injection.read().backup_fails_loading:
            os._exit(1)
        self.processor.start()

    def meet(self) -> None:
        """Waits until this process is a member of the default group, in whichever generation that works."""
        while self.met is None:
            match self.gate.wait():
                case Leave() as leave:
                    raise SystemExit(leave.exit_code)
                case Join() as wish:
                    self._try(wish)
                case Stand():
                    self.processor.standing(self._lost(), self.gate.broken_in)
                case _:
                    pass

    def _lost(self) -> Standing:
        memory, here = memory_of(self.environment), self.environment
        snapshots = [] if memory is None else held(memory, here.rank)
        return Standing(step=self.gate.completed, place=Standing.LOST, snapshots=snapshots)

    def _try(self, wish: Join) -> None:
        try:
            self.communicator.join(wish)
        except RuntimeError as error:
            failure, lost = in_words(error), communicator.is_loss(error)
        else:
            self.met = wish
            return
        self.say_failed(failure, wish, lost=lost)

    def say_failed(self, failure: str, wish: Join, *, lost: bool) -> None:
        """Reports a failure to join, unless the manager has already requested another generation.

        Ends the process of a job that begins if the failure is its own, because no other rank could repair it.

        Args:
            lost: True if other ranks could not be reached. Then the manager decides what follows.
        """
        if self.gate.is_asked_to_join:
            return
        rank = self.environment.rank
        self.processor.failed(f"rank {rank}: {failure}", wish.generation)
        if wish.rebuild.begins and not lost:
            raise SystemExit(f"rekindle: rank {rank} could not start: {failure}")
