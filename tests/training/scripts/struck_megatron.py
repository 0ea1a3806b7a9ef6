"""The example with a trainer in the style of Megatron, on which `FAULTS` act: `RANK:STEP:PLACE`, each once, with commas between
them. `KIND` is what happens there: `raise` or `kill`."""

import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rekindle_training.adapter import session
from rekindle_training.adapter.loop import Training
from rekindle_training.examples import megatron_trainer
from rekindle_training.examples.megatron_trainer import DistributedOptimizer

FAULTS = {tuple(fault.split(":")) for fault in os.environ.get("FAULTS", "").split(",") if fault}
KIND = os.environ.get("KIND", "kill")
training: list[Training] = []


class Watched(Training):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        training.append(self)


def fault(place: str) -> None:
    found = (os.environ["RANK"], str(training[0].step + 1), place)
    marker = Path(os.environ["REKINDLE_JOB_DIR"]) / "-".join(("struck", *found))
    if found not in FAULTS or marker.exists():
        return
    marker.touch()
    if KIND == "raise":
        raise ValueError(f"struck {place}")
    os.kill(os.getpid(), signal.SIGKILL)


def strikes(method: Callable[..., None], place: str) -> Callable[..., None]:
    def struck(*arguments: Any) -> None:
        fault(place)
        method(*arguments)

    return struck


class Struck(DistributedOptimizer):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._adam.step = strikes(self._adam.step, "agreed")  # type: ignore[method-assign]


for method, place in (("reduce", "behind"), ("step", "reducing"), ("gather", "telling")):
    setattr(Struck, method, strikes(getattr(DistributedOptimizer, method), place))

sys.argv[1:] = ["--steps=12", "--checkpoint-every=5"]
setattr(session, "Training", Watched)  # noqa: B010  # under the name by which the session makes it
megatron_trainer.DistributedOptimizer = Struck  # type: ignore[misc]
runpy.run_path(str(Path(megatron_trainer.__file__).with_name("megatron.py")))
