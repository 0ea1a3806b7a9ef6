"""Turns torchrun into Rekindle's launcher. The published recipe adds an import of this module to `torch/distributed/run.py`.

The launcher has torchrun's flags. It replaces the process at once, so that torchrun's agent never starts. Nothing happens where
another program imports `torch.distributed.run`.
"""

import os
import sys
from pathlib import Path

LAUNCHER = "rekindle_training.launcher.main"


def is_torchrun(program: str) -> bool:
    """Returns whether a program, the first word of a command line, is torchrun."""
    path = Path(program)
    return path.name == "torchrun" or (path.parts[-3:-1] == ("torch", "distributed") and path.name in ("run.py", "launch.py"))


if is_torchrun(sys.argv[0]):
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", LAUNCHER, *sys.argv[1:]])  # noqa: S606  # there is no shell in between
