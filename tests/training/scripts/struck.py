"""Runs the script that its first argument names; `FAULTS` act on it when a step has its gradients: `RANK:STEP:KIND`, once."""

import os
import runpy
import signal
import sys
from pathlib import Path

from rekindle_training.adapter.step import Attempts

FAULTS = [fault.split(":") for fault in os.environ["FAULTS"].split(",")]
before_update = Attempts.before_update


def struck(attempts: Attempts, *arguments: object) -> None:
    for rank, step, kind in FAULTS:
        marker = Path(os.environ["REKINDLE_JOB_DIR"]) / f"struck-{rank}-{step}"
        if rank == os.environ["RANK"] and int(step) == attempts._now.number and not marker.exists():
            marker.touch()
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("struck")
    before_update(attempts, *arguments)


Attempts.before_update = struck  # type: ignore[method-assign,assignment]
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
