"""Measures the downtime of training after a fault, with the whole control plane running.

    python -P -m benchmarks.recoveries [--rounds 20] [--only NAME] [--peers]

All rows share one machine and one clock, and all but those of links one stack: Temporal server on a database file, control
worker, gateway, watcher and local cluster. Four gloo ranks in two pods train the small GPT of the examples. Each row is one long
job with repeated faults; its final parameters are compared with those of an undisturbed run. With `--peers` the table of
`benchmarks.process_recovery` follows, of systems without a control plane and of the lower bounds.
"""

import argparse
import asyncio
import os
import platform
import re
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

from benchmarks import process_recovery, strikes
from benchmarks.process_recovery import p95
from benchmarks.struck_jobs import PATIENCE, PODS, RANKS_PER_POD, JobOptions, Row, Trial, steps
from rekindle.cli.demos import measure
from rekindle.cli.demos.link_failover import switching_seconds
from rekindle.cli.demos.process_faults import ALLOWED
from rekindle.cli.demos.scenario import RANKS, STEP_MS, run_undisturbed
from rekindle.cli.stack import Machine, running
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.model.incident import Incident
from rekindle.model.mode import Mode, Outcome
from rekindle.model.picture import StepRecord

NODES = PODS + 1
SAVED = ALLOWED[Mode.DYING_GASP]

GOES_ON, DETECTED, BEYOND, PAUSE, TOTAL, SWITCHING, BEYOND_IT = (
    "fault to the first new step of all ranks",
    "fault to its acceptance",
    "acceptance to the first new step",
    "pause of training",
    "decision to verdict",
    "the switch itself: links ordered to all moved",
    "pause beyond the switch itself",
)
"""Names of the measured values."""

NOTES = """\
- Figures are seconds: median, p95, and least to most. *n* counts strikes, *as wanted* those that ended by the row's mode alone.
  *Steps lost* had been completed and were done again; *equal*: the final parameters are those of an undisturbed run, bit for bit.
- Who strikes writes down when; steps are those of the logs that ranks write; a fault is accepted when the job's workflow has
  taken the word of it. The pause is the largest gap between two completed steps, less the median gap before it.
"""

console = Console(width=150)


def rows() -> Iterator[Row]:
    """Yields the rows in the order of the table."""
    spare = "0.30, p95 0.45"
    in_place, retry, elsewhere = Mode.IN_PLACE, Mode.ONLINE_RETRY, Mode.PROCESS_RESCHEDULING
    only_elsewhere = ALLOWED[elsewhere]
    yield Row("kill -9 of a rank, a spare", in_place, strikes.kill, {GOES_ON: spare, DETECTED: "-"}, spares=1)
    yield Row("an exception in a step", in_place, strikes.fail_in_a_step, {GOES_ON: "0.20"}, raises="exception")
    yield Row("want of memory in a step", retry, strikes.fail_in_a_step, {GOES_ON: "0.20"}, raises="memory")
    yield Row("SIGSTOP of a rank, a spare", in_place, strikes.freeze, {GOES_ON: "-", BEYOND: "0.25"}, spares=1)
    yield Row("kill -9 of two ranks at once, a spare each", in_place, strikes.kill_two, {GOES_ON: "-"}, spares=1)
    yield Row("kill -9 of a rank, no spare waits", in_place, strikes.kill_where_no_spare_waits, {GOES_ON: "-"}, spares=1)
    yield Row("kill -9 of a rank, worker and gateway", in_place, strikes.kill_with_the_control_plane, {GOES_ON: "-"}, spares=1)
    yield Row(
        "a pod is lost, a standby on another node",
        elsewhere,
        strikes.kill_a_pod,
        {GOES_ON: "0.50"},
        standbys=1,
        allowed=only_elsewhere,
    )
    yield Row("a pod is lost, a new pod", elsewhere, strikes.kill_a_pod, {GOES_ON: "-"}, allowed=only_elsewhere)
    restart = Mode.JOB_RESCHEDULING
    yield Row("a pod is lost, a restart after a dying gasp", restart, strikes.kill_a_pod, {GOES_ON: "-"}, allowed=SAVED)
    yield Row("a pod is lost, a restart", restart, strikes.kill_a_pod, {GOES_ON: "-"}, allowed=ALLOWED[restart])
    paused, swapped = {PAUSE: "0.12, p95 0.25", TOTAL: "1"}, {PAUSE: "0.12, p95 0.25", TOTAL: "-"}
    yield Row("hot switch to a standby", Mode.HOT_SWITCH, strikes.degrade_a_node, paused, standbys=1)
    yield Row("hot switch to a new pod", Mode.HOT_SWITCH, strikes.degrade_a_node, swapped)
    yield Row("planned swap, to a new pod", Mode.HOT_SWITCH, strikes.ask_for_a_swap, swapped)
    moved = {PAUSE: "-", SWITCHING: "-", BEYOND_IT: "0.12", TOTAL: "-"}
    yield Row("all links moved, or moved back", Mode.LINK_SWITCH, strikes.move_links, moved, linked=True)


@dataclass
class Found:
    row: Row
    figures: dict[str, list[float]] = field(default_factory=dict)
    as_wanted: int = 0
    lost: int = 0
    equal: bool = False
    failure: str = ""
    """Reason why the row was aborted; empty: it was not."""

    @classmethod
    def of(cls, row: Row, strikes: Sequence[tuple[float, Incident]], directory: Path, reference: Path) -> "Found":
        records = measure.read_steps(directory)
        samples = [_sample(struck, incident, records) for struck, incident in strikes]
        return cls(
            row,
            {figure: [sample[figure] for sample in samples] for figure in row.reach},
            sum(_is_as_wanted(row, incident) for _, incident in strikes),
            measure.steps_lost(records),
            measure.parameters_equal(directory, reference, RANKS),
        )

    def lines(self) -> Iterator[str]:
        if self.failure:
            yield f"| {self.row.name} | given up: {self.failure} | | | | | | | | |"
        for figure, seconds in self.figures.items():
            spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
            ends = f"{self.as_wanted} | {self.lost} | {'yes' if self.equal else '**no**'}"
            values = f"{median(seconds):.3f} | {p95(seconds):.3f} | {spread} | {len(seconds)}"
            yield f"| {self.row.name} | {figure} | {values} | {ends} | {self.row.reach[figure]} |"


def _sample(struck: float, incident: Incident, records: Sequence[StepRecord]) -> dict[str, float]:
    near = [record for record in records if struck - 2 <= record.end <= struck + PATIENCE]
    goes_on = measure.first_step_since(near, struck, RANKS)
    until = incident.started_at.timestamp() + incident.seconds + 1
    pause = measure.pause_seconds([record for record in near if record.end <= until], struck)
    switching = switching_seconds(incident)
    accepted = min((at for fault in incident.faults if (at := fault.accepted_at)), default=incident.started_at)
    return {
        GOES_ON: goes_on - struck,
        DETECTED: accepted.timestamp() - struck,
        BEYOND: goes_on - accepted.timestamp(),
        PAUSE: pause,
        TOTAL: incident.seconds,
        SWITCHING: switching,
        BEYOND_IT: pause - switching,
    }


def _is_as_wanted(row: Row, incident: Incident) -> bool:
    saved = [(Mode.DYING_GASP, Outcome.ESCALATE)] if row.allowed == SAVED else []
    wanted = [*saved, (row.mode, Outcome.RECOVERED)]
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder] == wanted


async def measure_all(chosen: Sequence[Row], options: argparse.Namespace) -> list[Found]:
    """Measures all rows, on two stacks: those of links need networks of nodes, which have a cost of their own."""
    stacks = [[row for row in chosen if row.linked is linked] for linked in (False, True)]
    return [found for rows_of_one in stacks if rows_of_one for found in await _measure(rows_of_one, options)]


async def _measure(chosen: Sequence[Row], options: argparse.Namespace) -> list[Found]:
    found = []
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as name:
        directory = Path(name)
        async with (
            running(directory, Machine(NODES, RANKS_PER_POD, links=chosen[0].linked)) as stack,
            ClusterClient(Path(stack.addresses.socket)) as cluster,
        ):
            reference = directory / "undisturbed"
            await run_undisturbed(reference, JobOptions(seed=options.seed, steps=steps(options.rounds)))
            rekindle = await Rekindle.connect(stack.addresses.temporal)
            for row in chosen:
                trial = Trial(row, options.rounds, stack, rekindle, cluster)
                try:
                    struck = await trial.run(options.seed)
                    found.append(Found.of(row, struck, trial.directory, reference))
                except Exception as error:  # noqa: BLE001  # the other rows are still measured
                    found.append(Found(row, failure=f"{type(error).__name__}: {error}"))
                for line in found[-1].lines():
                    console.print(line, soft_wrap=True, style="dim")
    return found


def _table(found: Sequence[Found]) -> None:
    console.print(
        f"{os.cpu_count()} cores, load average {os.getloadavg()[2]:.1f}; Python {platform.python_version()}, "
        f"torch {torch.__version__}; {RANKS} gloo ranks in {PODS} pods, steps of {STEP_MS:g} ms, the control plane beside them\n",
        soft_wrap=True,
    )
    heads = ("fault", "what", "median", "p95", "spread", "n", "as wanted", "steps lost", "equal", "reach")
    console.print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", soft_wrap=True)
    for one in found:
        for line in one.lines():
            console.print(line, soft_wrap=True)
    console.print("\n" + NOTES, soft_wrap=True, end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="strikes of each row (default: 20)")
    parser.add_argument("--only", default="", help="rows whose name this expression is found in")
    parser.add_argument("--seed", type=int, default=7, help="of the model and its data (default: 7)")
    parser.add_argument("--peers", action="store_true", help="the table of systems without a control plane behind it")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # started processes are ended too
    found = asyncio.run(measure_all([row for row in rows() if re.search(options.only, row.name)], options))
    _table(found)
    if options.peers:
        process_recovery.compare(list(process_recovery.systems()), max(options.rounds // 2, 1), Path("recovery-logs"))


if __name__ == "__main__":
    main()
