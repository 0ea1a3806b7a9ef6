"""How a process becomes a rank of the job, before it has anything of what is trained: it has met the others, and stands in the
default process group."""

import atexit
import gc
import os
from dataclasses import dataclass

from rekindle_training import names
from rekindle_training.adapter import communicator
from rekindle_training.adapter.communicator import Communicator
from rekindle_training.environment import RankEnvironment
from rekindle_training.injection import Injection
from rekindle_training.processor.gate import Gate, Join
from rekindle_training.processor.processor import Processor
from rekindle_wire.training_pb2 import Leave


@dataclass
class Entry:
    environment: RankEnvironment
    communicator: Communicator
    gate: Gate
    processor: Processor
    met: Join | None = None
    """The generation whose group is there already; the state that training has in it is still to come."""

    @classmethod
    def make(cls) -> "Entry":
        """A spare waits for its rank here."""
        communicator.warm()
        gc.collect()
        atexit.register(gc.unfreeze)  # who counts at the end what was not freed, as nanobind does, would write it all down
        gc.freeze()  # a full collection walks over all of torch: 0.2 s, which fell into pauses and checkpoints
        return cls.of(RankEnvironment.read())

    @classmethod
    def of(cls, environment: RankEnvironment) -> "Entry":
        gate = Gate()
        made = Communicator(environment, gate)
        return cls(environment, made, gate, Processor(environment, gate, made.cut, made.begun))

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
                case _:
                    pass

    def _try(self, wish: Join) -> None:
        try:
            self.communicator.join(wish)
        except RuntimeError as error:
            failure = f"{type(error).__name__}: {error}"
        else:
            self.met = wish
            return
        self.say_failed(failure, wish)

    def say_failed(self, failure: str, wish: Join) -> None:
        """Unless the manager has turned to another generation by itself. Ends the process of a job that begins: nothing is lost,
        and nobody could repair it."""
        if self.gate.is_asked_to_join:
            return
        rank = self.environment.rank
        self.processor.failed(f"rank {rank}: {failure}", wish.generation)
        if self.starts(wish):
            raise SystemExit(f"rekindle: rank {rank} could not start: {failure}")

    def starts(self, wish: Join) -> bool:
        return self.processor.generation == 0 and not wish.rebuild.transfers
