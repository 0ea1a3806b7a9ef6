"""`make faults`: kills and disturbs ranks of jobs without a control plane in every way, and measures how the jobs end.

Each run is a job of four gloo ranks with real processes. Its script has DDP, gradients of two batches, dropout, running
statistics, autocast and a scaler. It also has an average of the model, a schedule, data with a position, and an evaluation every
few steps. One or two faults are injected, and the final state of each rank is compared bit for bit with that of an undisturbed
run.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console

from tests.training.processes import Zygote

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence" / "faults.md"
REPAIRED, SHARDED = (str(ROOT / "tests" / "training" / "scripts" / name) for name in ("repaired.py", "sharded.py"))
WORLD = 4
STEPS = 6
"""Steps that are left at least when all ranks have completed one."""
LIMIT = 90.0
"""Time limit of one job in seconds. A job that takes longer hangs, which is a failure."""
PACE = 0.025
"""Duration of a step in seconds, for faults that come from outside at a random moment."""

HEAD = """# Faults

Written by `make faults`. Each row is a number of jobs of four gloo ranks in one pod, with the fault that the row names. They are
started by `rekindle-train --standalone`, with real processes on one machine. All jobs have these parts, and those with HSDP have
fewer:

- DDP over several buckets, except in jobs with collectives of their own;
- gradients of two batches, dropout, and running statistics;
- autocast with a scaler, an average of the model, and a schedule;
- data with a position, and an evaluation every few steps.

*Went on* counts the jobs whose ranks went on in their processes. The others began again at a checkpoint. *Equal* counts the jobs
in which every rank ended with the state of an undisturbed run, bit for bit. This state is the parameters, moments, averages,
random numbers, position, schedule and scale. Seconds are from the first fault to the first step after the last fault that all
ranks have completed together.

{machine}

| fault | jobs | went on | equal | seconds, median | worst |
|---|---|---|---|---|---|
"""

console = Console(width=130)


def _wait_for(condition: Callable[[], bool]) -> None:
    """Waits for a condition. Raises TimeoutError if the job does not reach it."""
    latest = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > latest:
            raise TimeoutError(f"the job did not come to its fault within {LIMIT:g} s")
        time.sleep(0.001)


@dataclass(frozen=True)
class Job:
    """Running job, as seen by a fault that is injected from outside."""

    folder: Path
    launcher: int

    def steps(self, rank: int) -> list[dict[str, float]]:
        path = self.folder / "steps" / f"rank-{rank:05d}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

    def pid(self, rank: int) -> int:
        return int(self.steps(rank)[-1]["pid"])

    def manager(self) -> int:
        return self._children()[0]

    def spare(self) -> int:
        """Returns the process id of the spare that waits or loads: the last process that was started."""
        return self._children()[-1]

    def _children(self) -> list[int]:
        zygote = _children(self.launcher)[0]
        return _children(zygote)

    def some_moment(self, draw: random.Random) -> None:
        """Returns at a random moment while training is under way."""
        _wait_for(lambda: all(self.steps(rank) for rank in range(WORLD)))
        time.sleep(draw.uniform(0, PACE * STEPS))

    def struck(self) -> None:
        """Returns when the script has injected its fault."""
        _wait_for(lambda: any(self.folder.glob("struck-*")))


Strike = Callable[[Job, random.Random], None]


@dataclass(frozen=True)
class Kind:
    """Row of the table: a kind of fault."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment of the script, which says where it injects a fault into itself."""
    strike: Strike | None = None
    """Function that injects a fault from outside; None: there is none."""
    flags: tuple[str, ...] = ("--spares=1", "--start-method=fork")
    script: str = REPAIRED
    restarts: bool = False
    """True if no rank survives, so that the job restarts."""


@dataclass(frozen=True)
class Found:
    code: int
    final: list[str]
    went_on: bool
    seconds: float | None
    """Seconds from the fault to the first common step after it; None: no generation followed."""
    printed: str


def _signal(number: int, *ranks: int) -> Strike:
    """Returns a fault that sends a signal at a random moment to these ranks, or to a random one if none is given."""

    def strike(job: Job, draw: random.Random) -> None:
        job.some_moment(draw)
        for pid in [job.pid(rank) for rank in ranks or (draw.randrange(WORLD),)]:
            os.kill(pid, number)

    return strike


def _manager(job: Job, draw: random.Random) -> None:
    job.some_moment(draw)
    os.kill(job.manager(), signal.SIGKILL)


def _manager_and_rank(job: Job, draw: random.Random) -> None:
    _signal(signal.SIGKILL)(job, draw)
    time.sleep(draw.uniform(0, 0.15))
    os.kill(job.manager(), signal.SIGKILL)


def _spare_and_rank(job: Job, draw: random.Random) -> None:
    _wait_for(lambda: bool(job.steps(0)))
    os.kill(job.spare(), signal.SIGKILL)
    _signal(signal.SIGKILL)(job, draw)


def _rank_and_survivor(job: Job, draw: random.Random) -> None:
    first, second = draw.sample(range(WORLD), 2)
    _signal(signal.SIGKILL, first)(job, draw)
    time.sleep(draw.uniform(0, 0.2))
    os.kill(job.pid(second), signal.SIGKILL)


def kinds() -> Iterator[Kind]:
    """Yields all kinds of faults in the order of the table."""
    wrapped = {"WRAP": ""}
    kill, paced = {**wrapped, "KIND": "kill"}, {**wrapped, "PACE_MS": f"{PACE * 1000:g}"}
    some = _signal(signal.SIGKILL)
    yield Kind("kill -9 of a rank at some moment", paced, some)
    yield Kind("kill -9 of rank 0 at some moment", paced, _signal(signal.SIGKILL, 0))
    yield Kind("kill -9 of two ranks at once", paced, _signal(signal.SIGKILL, 1, 3))
    yield Kind("kill -9 of a rank, no spare, ranks are forked", paced, some, ("--start-method=fork",))
    yield Kind("kill -9 of a rank, no spare, started cold", paced, some, ())
    yield Kind("SIGSTOP of a rank at some moment", paced, _signal(signal.SIGSTOP))
    places = {
        "at the beginning of a step": "1:5:beginning",
        "in an evaluation": "1:4:evaluating",
        "while the others wait in a collective": "1:5:backward",
        "between agreement and update": "1:5:agreed",
        "between the updates of two parameters": "1:5:updating",
        "behind the update": "1:5:updated",
        "in a checkpoint": "1:4:checkpoint",
        "at the end of the last step": "1:12:ending",
    }
    for name, place in places.items():
        yield Kind(f"kill -9 of a rank {name}", {**kill, "FAULTS": place, "EVERY": "4"})
    yield Kind("kill -9 of a rank inside an asynchronous collective of its own", {"KIND": "kill", "FAULTS": "1:5:communicating"})
    yield Kind("kill -9 of the rank that hands its state over", {**kill, "FAULTS": "1:5:backward,0:5:sending"})
    yield Kind("kill -9 of a survivor right behind the rebuild", {**kill, "FAULTS": "1:5:backward,2:5:rebuilt"})
    yield Kind("kill -9 of a rank, and soon of another one", paced, _rank_and_survivor)
    yield Kind("kill -9 of a spare that loads, and of a rank", paced, _spare_and_rank)
    yield Kind("kill -9 of the manager", paced, _manager)
    yield Kind("kill -9 of a rank, and soon of the manager", paced, _manager_and_rank)
    everybody = ",".join(f"{rank}:7:backward" for rank in range(WORLD))
    yield Kind(
        "kill -9 of all ranks",
        {**kill, "FAULTS": everybody, "EVERY": "3"},
        None,
        ("--max-restarts=1", "--start-method=fork"),
        restarts=True,
    )
    for name, place in places.items():
        yield Kind(f"an exception {name}", {**wrapped, "FAULTS": place, "EVERY": "4"})
    yield Kind("an exception inside an asynchronous collective of its own", {"FAULTS": "1:5:communicating"})
    yield Kind("an exception on two ranks", {**wrapped, "FAULTS": "0:5:beginning,3:5:backward"})
    yield Kind("an exception in the step in which DDP finds its buckets", {**wrapped, "FAULTS": "2:1:backward"})
    yield Kind("HSDP 2x2: kill -9 of a rank at some moment", paced, some, script=SHARDED)
    yield Kind("HSDP 2x2: kill -9 between two layers' collectives", {**kill, "FAULTS": "1:5:backward"}, script=SHARDED)
    yield Kind("HSDP 2x2: an exception between two layers' collectives", {"FAULTS": "1:5:backward"}, script=SHARDED)


def run(kind: Kind, folder: Path, draw: random.Random, zygote: Zygote) -> Found:
    """Runs one job. Its launcher is a fork of a process that has loaded torch; processes that the launcher starts cold are
    not."""
    folder.mkdir()
    arguments = ["--standalone", f"--nproc-per-node={WORLD}", *kind.flags, kind.script]
    variables = {**kind.variables, "REKINDLE_JOB_DIR": str(folder), "PYTHONPATH": f"{ROOT}:{ROOT / 'training' / 'src'}"}
    process = asyncio.run(zygote.run("train", arguments, variables, folder / "output.log"))
    job, struck = Job(folder, process.pid), None
    try:
        if kind.strike is not None:
            kind.strike(job, draw)
            struck = time.time()
        code = asyncio.run(process.code(LIMIT))
    except TimeoutError:
        process.kill()
        code = -1
    printed = (folder / "output.log").read_text()
    marks = [path.stat().st_mtime for path in folder.glob("struck-*")]
    return Found(
        code,
        sorted(line for line in printed.splitlines() if line.startswith("final ")),
        "all ranks restarted" not in printed,
        _seconds(job, min(marks, default=struck)),
        printed,
    )


def _seconds(job: Job, fault: float | None) -> float | None:
    steps = {rank: job.steps(rank) for rank in range(WORLD)}
    if fault is None or not all(steps.values()):
        return None
    last = max(step["generation"] for step in steps[0])
    first = [next((step["end"] for step in steps[rank] if step["generation"] == last), None) for rank in range(WORLD)]
    return None if last == 1 or None in first else max(end for end in first if end is not None) - fault


def measure(kind: Kind, runs: int, seed: int, keep: Path) -> tuple[str, bool]:
    """Returns the row, and whether all jobs ended as they should. Logs of jobs that are not equal are kept."""
    with tempfile.TemporaryDirectory(prefix="rekindle-faults-") as scratch, closing(Zygote()) as zygote:
        quiet = Kind("undisturbed", {**kind.variables, "FAULTS": "", "PACE_MS": "0"}, script=kind.script)
        expected = run(quiet, Path(scratch) / "undisturbed", random.Random(seed), zygote).final
        found = []
        for number in range(runs):
            one = run(kind, Path(scratch) / f"{number}", random.Random(f"{seed}/{kind.name}/{number}"), zygote)
            found.append(one)
            if not _is_right(one, expected):
                keep.mkdir(parents=True, exist_ok=True)
                path = keep / f"{re.sub('[^a-z0-9]+', '-', kind.name.lower())}-{seed}-{number}.log"
                path.write_text(one.printed)
                console.print(f"not equal: {kind.name}, run {number} of seed {seed}, exit code {one.code}: {path}", style="red")
    equal = sum(_is_right(one, expected) for one in found)
    went_on = sum(one.went_on for one in found)
    seconds = [one.seconds for one in found if one.seconds is not None]
    times = (f"{median(seconds):.3f}", f"{max(seconds):.3f}") if seconds else ("-", "-")
    row = f"| {kind.name} | {runs} | {went_on} | {equal} | {times[0]} | {times[1]} |"
    return row, equal == runs and went_on == (0 if kind.restarts else runs)


def _is_right(found: Found, expected: list[str]) -> bool:
    return found.code == 0 and len(found.final) == WORLD and found.final == expected


def _children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="jobs of each kind (default: 20)")
    parser.add_argument("--parallel", type=int, default=1, help="jobs at a time, which makes them slower (default: 1)")
    parser.add_argument("--only", default="", help="kinds whose name this expression is found in")
    parser.add_argument("--seed", type=int, default=1, help="decides all moments (default: 1)")
    parser.add_argument("--keep", type=Path, default=Path("faults-logs"), help="where logs of jobs that are not equal are kept")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    chosen = [kind for kind in kinds() if re.search(options.only, kind.name)]
    if not chosen:
        parser.error(f"--only {options.only}: no kind has such a name")
    rows, right = [], True
    with ThreadPoolExecutor(options.parallel) as pool:
        for row, is_right in pool.map(lambda kind: measure(kind, options.runs, options.seed, options.keep), chosen):
            rows.append(row)
            right &= is_right
            console.print(row)
    if options.write:
        machine = (
            f"{os.cpu_count()} cores, {options.parallel} jobs at a time, load average {os.getloadavg()[2]:.1f}; "
            f"Python {platform.python_version()}, {platform.machine()}; seed {options.seed}."
        )
        PAGE.write_text(HEAD.format(machine=machine) + "\n".join(rows) + "\n")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
