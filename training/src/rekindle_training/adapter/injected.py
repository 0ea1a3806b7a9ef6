"""Raises in the steps that `REKINDLE_INJECT` names. Each fault acts once in a job, whichever process its rank has by then: the
step is repeated, and a process that takes the rank over comes to it anew."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from rekindle_training.injection import Injection, StepFault


def arm(model: torch.nn.Module, rank: int, job_dir: Path | None, current_step: Callable[[], int]) -> None:
    """Costs nothing where this rank has no fault to come.

    Args:
        current_step: the step in whose scope the script is; 0: in none.
    """
    for fault in Injection.read().in_steps:
        if fault.rank == rank:
            _arm(model, fault, job_dir, current_step)


def _arm(model: torch.nn.Module, fault: StepFault, job_dir: Path | None, current_step: Callable[[], int]) -> None:
    def strike(*_: object) -> None:
        if current_step() == fault.step:
            hook.remove()
            if _is_first(fault, job_dir):
                raise (MemoryError if fault.of_memory else RuntimeError)(f"injected in step {fault.step}")

    hook = model.register_forward_pre_hook(strike)


def _is_first(fault: StepFault, job_dir: Path | None) -> bool:
    """Leaves in the job's directory when it struck: `injected/rank-00002-step-16`, seconds since the epoch."""
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
