"""`rekindle-train --drill train.py`: the same job undisturbed and with one fault after the other, and a report.

Called by the launcher's `main`. Ends with 0 where the script survives all faults, with 1 where it does not.
"""

import atexit
import gc
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rekindle_training.launcher.arguments import Arguments
from rekindle_training.launcher.drill.report import Report
from rekindle_training.launcher.drill.trial import Trial
from rekindle_training.launcher.drill_options import RANKS, Drill
from rekindle_training.launcher.zygote import PASSED_ON, load_ahead


class _Interrupted(BaseException):
    """The drill has got a signal."""

    def __init__(self, number: int) -> None:
        self.number = number


def run(arguments: Arguments, drill: Drill) -> int:
    """Returns the exit code."""
    if (ranks := arguments.nproc_per_node) < RANKS:
        _complain(f"--nproc-per-node {ranks}: a drill needs {RANKS} ranks at least, one to strike and one that is left")
        return 2
    began = time.monotonic()
    try:
        with _interruptible(), _folder(drill) as folder:
            if arguments.start_method == "fork" or arguments.spares:
                load_ahead()
                atexit.register(gc.unfreeze)  # otherwise nanobind writes down all that was not freed
            report = Trial(arguments, drill, folder).report()
    except _Interrupted as end:
        _complain("the drill was interrupted")
        return 128 + end.number
    report.seconds = time.monotonic() - began
    _tell(report, as_json=drill.json)
    return 0 if report.survives else 1


def _complain(words: str) -> None:
    print(f"rekindle-train: {words}", file=sys.stderr)  # noqa: T201  # for people


def _tell(report: Report, *, as_json: bool) -> None:
    stream = sys.stderr if as_json else sys.stdout
    print(report.as_text(loud=stream.isatty()), file=stream, flush=True)
    if as_json:
        print(report.as_json())  # noqa: T201


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ends the drill, with everything that it has started, when a signal arrives."""

    before = {number: signal.getsignal(number) for number in PASSED_ON}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def interrupt(number: int, _: FrameType | None) -> None:
        for other in heard:
            signal.signal(other, signal.SIG_IGN)  # a second one would cut the end short
        raise _Interrupted(number)

    for number in heard:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _folder(drill: Drill) -> Iterator[Path]:
    if drill.keep is not None:
        drill.keep.mkdir(parents=True, exist_ok=True)
        yield drill.keep
        return
    folder = Path(tempfile.mkdtemp(prefix="rekindle-drill-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
