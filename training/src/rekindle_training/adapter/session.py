"""The user's side of it all: `with session(model, optimizer) as training: for step in training.steps(total): ...`.

The pause, the rebuild and the resumption of a recovery happen inside the step boundary, that is between two turns of that loop;
the loop itself never notices. A backup process enters the same session, waits there until it is told to take over, and then
enters the loop at the right step.
"""

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import torch

from rekindle_training import names
from rekindle_training.adapter import communicator, copying
from rekindle_training.adapter.checkpoint import Checkpoints
from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.state import Stateful, StateMismatch
from rekindle_training.adapter.step_log import StepLog
from rekindle_training.adapter.tampering import Tampering
from rekindle_training.adapter.trained import Trained
from rekindle_training.environment import RankEnvironment
from rekindle_training.injection import Injection
from rekindle_training.processor.gate import Gate, Go, Join, Pause
from rekindle_training.processor.processor import Processor
from rekindle_wire.training_pb2 import Leave

log = logging.getLogger(__name__)


@contextmanager
def session(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    state: Sequence[Stateful] = (),
    data: Stateful | None = None,
    checkpoint_every: int | None = None,
) -> Iterator["Training"]:
    """Makes this process a rank of the job: the default process group is there inside, and the state is where training is.

    Args:
        model: The bare module; wrap it (DDP) inside the session.
        optimizer: Its state is taken from a replica or from a checkpoint.
        state: Anything else with `state_dict` that all ranks have in common: schedulers, a GradScaler, an average of the model.
        data: Anything with `state_dict` that each rank has for itself, such as a sampler.
        checkpoint_every: Steps between two checkpoints, 0 for none; by default what `REKINDLE_CHECKPOINT_EVERY` says.

    Raises:
        EnvironmentIncomplete: the process was not started by `rekindle-train`.
        TypeError: something has no state that a replacement could be given; the message names it.
        ValueError: nobody said how often a checkpoint is written.
        RuntimeError: there is a default process group already.
    """
    environment = RankEnvironment.read()
    every = _interval(environment.checkpoint_every if checkpoint_every is None else checkpoint_every)
    communicator.refuse_another()
    shared = {f"state[{index}]": thing for index, thing in enumerate(state)}
    trained = Trained(model, optimizer, data, shared, communicator.accelerator_module())
    training = Training(environment, trained, every)
    training.begin()
    yield training
    training.end()


def _interval(checkpoint_every: int | None) -> int:
    if checkpoint_every is None or checkpoint_every < 0:
        said = "missing" if checkpoint_every is None else f"{checkpoint_every} is not accepted"
        raise ValueError(
            f"session(checkpoint_every): {said}; give the steps between two checkpoints, or 0 for none: a restart of the job "
            f"begins from the first step then ({names.CHECKPOINT_EVERY} says it for scripts that do not)"
        )
    return checkpoint_every


class Training:
    """One rank of a running job. Made by `session` only."""

    def __init__(self, environment: RankEnvironment, trained: Trained, checkpoint_every: int) -> None:
        self._environment = environment
        self._trained = trained
        self._checkpoint_every = checkpoint_every
        self._gate = Gate()
        self._processor = Processor(environment, self._gate)
        self._step_log = StepLog(environment)
        self._checkpoints = Checkpoints(environment.job_dir, environment.rank)
        self._tampering = Tampering(environment.tamper)
        self._callbacks: list[Callable[[], None]] = []
        self._trains = False
        self._random_numbers: bytes | None = None
        """With which a loop begins that goes on in the middle."""

    @property
    def rank(self) -> int:
        return self._environment.rank

    @property
    def world_size(self) -> int:
        return self._environment.world_size

    @property
    def generation(self) -> int:
        """Which communicator of the job this is, counted from 1; each migration makes a new one."""
        return self._processor.generation

    @property
    def step(self) -> int:
        """The last completed step; 0 before the first."""
        return self._gate.completed

    def on_rebuild(self, callback: Callable[[], None]) -> None:
        """Calls back after each rebuild of the default process group, for code that holds groups of its own (DDP, subgroups)."""
        self._callbacks.append(callback)

    def steps(self, total: int) -> Iterator[int]:
        """The steps that are still to be done, counted from 1 over the whole training. The end of each turn of the loop is a step
        boundary.

        Raises:
            RuntimeError: this process has done as many already, as in a loop over epochs, which is for `epochs`.
        """
        if self._trains and self.step >= total:
            raise RuntimeError(
                f"training.steps({total}): {self.step} steps are done; `steps` counts over the whole training and not over an "
                "epoch: use `for epoch in training.epochs(epochs, steps): for step in epoch:`"
            )
        return self._turns(total, total)

    def epochs(self, count: int, steps: int) -> Iterator["Epoch"]:
        """The epochs that are still to be done, counted from 0 as samplers count them; each gives those of its steps that are
        still to be done. What stands behind an epoch's loop, such as an evaluation, is not repeated by who begins behind it.

        Args:
            count: epochs of the whole training.
            steps: of each epoch.

        Raises:
            ValueError: less than one of either.
        """
        if count < 1 or steps < 1:
            raise ValueError(f"training.epochs({count}, {steps}): accepted are whole numbers from 1")
        for number in range(self.step // steps, count):
            yield Epoch(number, self._turns((number + 1) * steps, count * steps))

    def _turns(self, end: int, total: int) -> Iterator[int]:
        self._gate.expect(total)
        if self._random_numbers is not None:  # what came between the session and its loop may have drawn some
            self._trained.restore_random_numbers(self._random_numbers)
            self._random_numbers = None
        while self.step < end:
            self._cross()
            step, start = self.step + 1, time.time()
            self._trains = True
            yield step
            self._complete(step, start)

    def begin(self) -> None:
        """Registers this process and waits until it is a member of the job, where training is. Called by `session`."""
        communicator.warm(self._environment)
        gc.collect()
        gc.freeze()  # a full collection walks over all of torch: 0.2 s, which fell into pauses and checkpoints
        if self._environment.role == names.BACKUP and Injection.read().backup_fails_loading:
            os._exit(1)
        self._processor.start()
        while self.generation == 0:
            self._obey(self._gate.wait())
        if self.step:
            self._random_numbers = self._trained.capture_random_numbers()

    def end(self) -> None:
        """The loop is done. Called by `session`, unless an exception ends the process."""
        communicator.leave()
        self._processor.end()
        self._step_log.close()

    # Inside the step boundary.

    def _cross(self) -> None:
        """Does what the manager asks for until the next step may begin."""
        while not isinstance(wish := self._gate.wait(), Go):
            self._obey(wish)

    def _obey(self, wish: Pause | Join | Leave | Go) -> None:
        if isinstance(wish, Leave):
            raise SystemExit(wish.exit_code)
        if isinstance(wish, Pause):
            self._processor.paused(self.step, self._trained.capture_own())
        if isinstance(wish, Join):
            self._join(wish)

    def _complete(self, step: int, start: float) -> None:
        if self._checkpoint_every and step % self._checkpoint_every == 0:
            self._trained.write(self._checkpoints, step)
        self._step_log.record(step, start, time.time(), self.generation)
        self._gate.complete(step)
        self._processor.stepped(step)

    # Becoming a member of a generation.

    def _join(self, wish: Join) -> None:
        failure = self._try_to_join(wish)
        if failure is None:
            self._processor.joined(wish.generation)
            self._gate.open()
            return
        # Said here, behind the `except` block: its traceback would hold the old connections open.
        self._processor.failed(f"rank {self.rank}: {failure}", wish.generation)
        if self._starts(wish):
            raise SystemExit(f"rekindle: rank {self.rank} could not start: {failure}")

    def _try_to_join(self, wish: Join) -> str | None:
        try:
            communicator.join(self._environment, wish)
            self._bring_up_to_date(wish)
            for callback in self._callbacks:
                callback()
        except Exception as error:
            log.exception("could not join the new generation")
            return f"{type(error).__name__}: {error}"
        return None

    def _starts(self, wish: Join) -> bool:
        return self.generation == 0 and not wish.rebuild.transfers

    def _bring_up_to_date(self, wish: Join) -> None:
        """A replacement takes the state of its replica, a starting job its newest checkpoint; the others keep what they have."""
        if self._starts(wish):
            self._restore_checkpoint()
        for transfer in wish.rebuild.transfers:
            if transfer.source == self.rank:
                copying.send(self._tampering.of_state(self._trained.collect()), transfer.target)
            elif transfer.target == self.rank:
                self._take_over(transfer.source, wish)

    def _take_over(self, source: int, wish: Join) -> None:
        received, expected = copying.receive(source, self._trained.collect())
        self._trained.place(received)
        if digest(self._tampering.of_state(self._trained.collect())) != expected:
            raise StateMismatch(f"the state taken from rank {source} is not the state that rank {source} has")
        self._trained.restore_own(wish.rebuild.own_state, random_numbers=self._tampering.keeps_random_numbers)
        self._tampering.of_model(self._trained.model)
        self._gate.complete(wish.rebuild.step)

    def _restore_checkpoint(self) -> None:
        step = self._checkpoints.newest()
        if step:
            self._trained.read(self._checkpoints, step)
            self._gate.complete(step)
        self._processor.lost_steps(max(self._step_log.last_step() - step, 0))


class Epoch(int):
    """The number of an epoch, from 0, and its steps: `for step in epoch`."""

    def __new__(cls, number: int, _steps: Iterator[int]) -> Self:
        return super().__new__(cls, number)

    def __init__(self, _number: int, steps: Iterator[int]) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[int]:
        return self._steps
