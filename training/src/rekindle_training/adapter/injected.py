"""Faults in the steps that `REKINDLE_INJECT` names: an error, a signal to this process, a pause after the step.

A fault acts once in a job, whichever process has its rank then: the step is repeated, and a process that takes the rank over
comes to it again. A fault may also act always.
"""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rekindle_training.adapter import passes
from rekindle_training.adapter.trained import Trained
from rekindle_training.injection import INJECTED, UPDATED, Injection, StepFault
from rekindle_training.processor.gate import Gate


def arm(  # noqa: PLR0913  # position of the rank, and hooks that report it
    trained: Trained, rank: int, job_dir: Path | None, gate: Gate, turn: Callable[[], int], on_done: list[Callable[[], None]]
) -> None:
    """Installs the faults of this rank. It costs nothing if there are none.

    Args:
        turn: the step whose turn of the loop it is.
        on_done: functions that are called at the end of the scope of a step.
    """
    for fault in Injection.read().in_steps:
        if fault.rank == rank:
            reached = _armed(fault, job_dir, gate, turn)
            passes.watch(trained.modules, reached)
            on_done.append(partial(reached, UPDATED, None))


def _armed(fault: StepFault, job_dir: Path | None, gate: Gate, turn: Callable[[], int]) -> passes.Reached:
    struck = False

    def reached(place: str, _: object) -> None:
        nonlocal struck
        if place == fault.place and turn() == fault.step and (fault.always or not struck):
            struck = True
            if _is_first(fault, job_dir) or fault.always:
                _strike(fault, gate)

    return reached


def _strike(fault: StepFault, gate: Gate) -> None:
    match fault.kind:
        case "exception":
            raise RuntimeError(f"{INJECTED} {fault.step}")
        case "memory":
            raise MemoryError(f"{INJECTED} {fault.step}")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "pause":
            gate.pause_at(fault.step)


def _is_first(fault: StepFault, job_dir: Path | None) -> bool:
    """Returns whether a fault acts for the first time, and records its time in the job's directory.

    The file is `injected/rank-00002-step-16`, with seconds since the epoch.
    """
    if job_dir is None:
        return True
    folder = job_dir / "injected"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (folder / f"rank-{fault.rank:05d}-step-{fault.step}").open("x") as mark:
            mark.write(repr(time.time()))
    except FileExistsError:
        return False
    return True
