"""Runs `repaired.py`; before anything else something happens to the second process of some ranks: `SECOND` is `RANK:KIND`, with
commas between them. `stop` and `kill` are of the process, `sleep` lasts for some seconds."""

import os
import runpy
import signal
import time
from pathlib import Path

SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}

for rank, kind in (strike.split(":") for strike in os.environ["SECOND"].split(",")):
    if rank == os.environ["RANK"]:
        before = Path(os.environ["REKINDLE_JOB_DIR"]).glob(f"process-{rank}-*")
        number = len(list(before)) + 1
        (Path(os.environ["REKINDLE_JOB_DIR"]) / f"process-{rank}-{number}").touch()
        if number == 2 and kind == "sleep":
            time.sleep(8)
        elif number == 2:
            os.kill(os.getpid(), SIGNALS[kind])
runpy.run_path(str(Path(__file__).with_name("repaired.py")), run_name="__main__")
