"""`make accelerator`: measures what happens to training on an accelerator when ranks are lost, against an undisturbed run.

    python -P -m benchmarks.accelerator [--device cpu] [--only kill,memory] [--output FILE]

On CUDA with NCCL, each rank has a device. If there is only one device, ranks share it, if NCCL allows that. Without a device it
says so and exits with 0; `--device cpu` runs the same on processors and gloo. It exits with 1 if a row fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rekindle_training.adapter.rehearsal import TOLERANCE

JOB = str(Path(__file__).with_name("accelerator_job.py"))
RANKS = 2
STEPS, STRUCK = 12, 6
RECOVERIES = 10
MEASURED, WARM = 200, 50
"""Number of steps whose cost is measured, and of steps before them."""
SECONDS = 600
"""Time limit of one job in seconds."""
DRILLED = "exception,kill,kill-rank-0,stop,switch,restart"
HINT = 160
"""Longest part of a failed job's last output line, in characters."""

OK, FAILED, NOT_RUN = "ok", "FAILED", "not run"


class JobFailed(Exception):
    """A job did not end as expected; the message says how it ended."""


@dataclass
class Row:
    name: str
    result: str
    words: str = ""
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    device: str
    shares: bool
    """True if all ranks share one device."""
    ranks: int

    def in_words(self) -> str:
        if self.device == "cpu":
            return f"{self.ranks} ranks on processors, gloo"
        kind = (
            f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
        )
        return f"{self.ranks} ranks on {kind}" + (", which share one device" if self.shares else "")


class Jobs:
    """Runs jobs on one machine, each in its own folder."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.undisturbed = cache(partial(self.run, ()))

    def run(self, faults: Sequence[dict[str, Any]], *flags: str, steps: int = STEPS) -> dict[int, Any]:
        """Runs one job. Returns the results of each rank by rank, and under -1 the time at which each fault was injected, by
        step.

        Raises:
            JobFailed: the exit code is not 0, or a fault did not strike.
        """
        with tempfile.TemporaryDirectory(prefix="rekindle-accelerator-") as folder:
            launch = [
                "rekindle-train",
                "--standalone",
                "--spares=1",
                "--start-method=fork",
                f"--nproc-per-node={self.machine.ranks}",
            ]
            found = self.left(launch, folder, faults, f"--steps={steps}", "--deterministic", *flags)
            struck = {int(mark.name.rpartition("-")[2]): float(mark.read_text()) for mark in Path(folder).glob("injected/*")}
        if len(struck) != len(faults):
            raise JobFailed(f"{len(struck)} of {len(faults)} faults struck")
        return {**{line["rank"]: line for line in found}, -1: struck}

    def left(self, launch: list[str], folder: str, faults: Sequence[dict[str, Any]], *flags: str) -> list[dict[str, Any]]:
        """Runs one job, and returns the results that its processes left in its folder."""
        self.output(launch, folder, faults, *flags)
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]

    def output(
        self, launch: list[str], folder: str, faults: Sequence[dict[str, Any]], *flags: str, accepted: tuple[int, ...] = (0,)
    ) -> str:
        program, *others = launch
        shared = ["--shared-device"] if self.machine.shares else []
        command = [str(Path(sys.executable).with_name(program)), *others, JOB, f"--device={self.machine.device}", *shared, *flags]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=SECONDS, env=self._environment(folder, faults)
            )
        except subprocess.TimeoutExpired:
            raise JobFailed(f"no end within {SECONDS} s") from None
        if done.returncode not in accepted:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise JobFailed(f"exit code {done.returncode}: {''.join(said)[-HINT:]}")
        return done.stdout

    def _environment(self, folder: str, faults: Sequence[dict[str, Any]]) -> dict[str, str]:
        here = {**os.environ, "REKINDLE_JOB_DIR": folder, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if self.machine.device == "cpu":
            here["CUDA_VISIBLE_DEVICES"] = ""
        return here | ({"REKINDLE_INJECT": json.dumps(faults)} if faults else {})


def digests(found: dict[int, Any]) -> list[str]:
    return [found[rank]["digest"] for rank in sorted(found) if rank >= 0]


def _struck(kind: str, jobs: Jobs) -> Row:
    """Injects a fault into the last rank. Meanwhile the others wait in a collective of the backward pass, which has to be
    aborted."""
    found = jobs.run([_fault(kind, STRUCK)])
    seconds = found[0]["ends"][str(STRUCK)] - found[-1][STRUCK]
    equal = digests(found) == digests(jobs.undisturbed())
    words = f"goes on after {seconds:.2f} s; parameters and moments {'equal' if equal else 'DIFFER'}"
    return Row("", OK if equal else FAILED, words, {"seconds": seconds})


def _fault(kind: str, step: int) -> dict[str, Any]:
    return {"fault": kind, "rank": RANKS - 1, "step": step, "place": "forward"}


def _drill(jobs: Jobs) -> Row:
    with tempfile.TemporaryDirectory(prefix="rekindle-accelerator-") as folder:
        flags = ["--drill", f"--drill-cases={DRILLED}", "--drill-output=json", "--start-method=fork", f"--nproc-per-node={RANKS}"]
        printed = jobs.output(["rekindle-train", *flags], folder, (), accepted=(0, 1))
    found = json.loads(printed.splitlines()[-1])
    words = [f"{case['case']} {case['result']}" for case in found["cases"]]
    said = [line for case in found["cases"] if case["result"] not in ("survives", "trains") for line in case["said"]]
    return Row("", OK if found["survives"] else FAILED, "; ".join([*words, *said]), {"seconds": found["seconds"]})


def _streams(jobs: Jobs) -> Row:
    """Trains on a stream of the script's own, with a rank that is killed."""
    found = jobs.run([_fault("kill", STRUCK)], "--streams")
    equal = digests(found) == digests(jobs.undisturbed())
    return Row("", OK if equal else FAILED, "bits of the usual stream" if equal else "other bits than on the usual stream")


def _repeats(jobs: Jobs) -> Row:
    equal = digests(jobs.run(())) == digests(jobs.undisturbed())
    return Row("", OK if equal else FAILED, "two undisturbed runs are equal" if equal else "two undisturbed runs DIFFER")


def _memory(jobs: Jobs) -> Row:
    """Recovers ten times from exceptions and kills of the last rank, and measures the memory of rank 0, whose process stays."""
    faults = [_fault(("exception", "kill")[number % 2], 4 + 2 * number) for number in range(RECOVERIES)]
    used = jobs.run(faults, steps=8 + 2 * RECOVERIES)[0]["memory"]
    first, last = used["7"], used[str(8 + 2 * RECOVERIES - 1)]  # after two recoveries, one of each kind, and at the end
    if not last:
        return Row("", OK, f"{RECOVERIES} recoveries; the memory of a device is not looked at on processors")
    grown = {name: last[name] - first[name] for name in last}
    words = ", ".join(f"{name} {first[name] / 1e6:.1f} -> {last[name] / 1e6:.1f} MB" for name in last)
    kept = grown["allocated"] <= 0 and grown["reserved"] <= 0
    return Row("", OK if kept else FAILED, words, {name: float(size) for name, size in grown.items()})


def _cost(jobs: Jobs) -> Row:
    count = f"--steps={WARM + MEASURED}"
    with tempfile.TemporaryDirectory(prefix="rekindle-accelerator-") as folder:
        standalone = ["--standalone", f"--nproc-per-node={jobs.machine.ranks}"]
        bare = _median(jobs.left(["torchrun", *standalone], folder, (), count, "--bare"))
        with_session = _median(jobs.left(["rekindle-train", *standalone], folder, (), count))
    words = f"{bare:.0f} us without the session, {with_session:.0f} us with it"
    return Row("", OK, words, {"without": bare, "with": with_session})


def _median(found: list[dict[str, Any]]) -> float:
    """Returns the median duration of a step of rank 0, in microseconds."""
    (ends,) = [list(line["ends"].values())[WARM:] for line in found if line["rank"] == 0]
    return float(median(end - begin for begin, end in pairwise(ends))) * 1e6


def _tolerance(jobs: Jobs) -> Row:
    """Checks the tolerance of the rehearsal without deterministic kernels: it accepts gradients of the same batch, not of
    another."""
    with tempfile.TemporaryDirectory(prefix="rekindle-accelerator-") as folder:
        (found,) = jobs.left(["python", "-P"], folder, (), "--tolerance")
    fits = found["same"] <= TOLERANCE < found["another"]
    words = f"same batch {found['same']:.1e}, another batch {found['another']:.1e}, tolerance {TOLERANCE:.0e}"
    return Row("", OK if fits else FAILED, words, found)


ROWS: dict[str, Callable[[Jobs], Row]] = {
    "deterministic": _repeats,
    "exception": partial(_struck, "exception"),
    "kill": partial(_struck, "kill"),
    "stop": partial(_struck, "stop"),
    "streams": _streams,
    "memory": _memory,
    "drill": _drill,
    "cost": _cost,
    "tolerance": _tolerance,
}
ALONE = ("cost", "deterministic", "tolerance")
"""Rows that need only one rank."""


def machine_for(device: str) -> Machine:
    if device == "cpu":
        return Machine("cpu", shares=False, ranks=RANKS)
    if torch.cuda.device_count() >= RANKS:
        return Machine(device, shares=False, ranks=RANKS)
    shared = Machine(device, shares=True, ranks=RANKS)
    try:
        Jobs(shared).run((), steps=1)
    except JobFailed as failure:
        Console(stderr=True).print(f"two ranks cannot share the device: {failure}", markup=False)
        return Machine(device, shares=False, ranks=1)
    return shared


def row(name: str, jobs: Jobs) -> Row:
    if jobs.machine.ranks < RANKS and name not in ALONE:
        return Row(name, NOT_RUN, f"it needs {RANKS} ranks")
    try:
        found = ROWS[name](jobs)
    except JobFailed as failure:
        found = Row(name, FAILED, str(failure))
    found.name = name
    return found


def _rows(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no row; accepted are {', '.join(ROWS)}, with commas")
    return [name for name in ROWS if name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cuda (default), or cpu")
    parser.add_argument("--only", type=_rows, default=list(ROWS), metavar="ROWS", help=f"of {', '.join(ROWS)}, with commas")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the rows as JSON, too")
    options = parser.parse_args()
    console = Console(width=130)
    if options.device == "cuda" and not torch.cuda.is_available():
        console.print("no CUDA device here: nothing was run; `--device cpu` runs the same on processors")
        return 0
    jobs = Jobs(machine_for(options.device))
    found = [row(name, jobs) for name in options.only]
    table = Table("row", "result", "what was seen", title=jobs.machine.in_words())
    for one in found:
        table.add_row(one.name, one.result, one.words)
    console.print(table)
    if options.output is not None:
        options.output.write_text(
            json.dumps({"machine": jobs.machine.in_words(), "rows": [asdict(one) for one in found]}, indent=1)
        )
    return 1 if any(one.result == FAILED for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
