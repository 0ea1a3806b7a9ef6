"""Measures a job that goes on without a lost node, and takes it back, with the whole control plane running.

    python -P -m benchmarks.elastic [--rounds 10] [--peers]

One stack runs: Temporal server, control worker, gateway, watcher and local cluster with four nodes. Four gloo ranks in four pods
train the small GPT with its data in shares. In each round a node is lost, training goes on with three ranks, the node comes back,
and the job grows again. The final parameters are compared with those of an undisturbed run. With `--peers` torchft
goes on with three ranks in the same run. It has no control plane and no nodes there: a rank is killed.
"""

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.process_recovery import p95, peers_python, systems
from benchmarks.process_recovery import run as run_peer
from rekindle.cli.demos import measure
from rekindle.cli.demos.elastic import ElasticDemo, ElasticScenario
from rekindle.cli.demos.scenario import RANKS, Step, until
from rekindle.cli.stack import Machine, running
from rekindle.model.incident import Incident

TORCHFT = "torchft, goes on with three"
"""Name of the system in `benchmarks.process_recovery`."""

STEPS_EACH = 120
"""Number of steps of a round at most: a new pod loads in about a hundred of them."""

console = Console(width=130)


class Rounds(ElasticDemo):
    """Options of the job."""

    rounds: int

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the job. No node is set aside, however often it is lost."""
        return {**super().limits, "nodeIncidents": 0}

    @property
    def incidents(self) -> int:
        """Number of incidents to wait for. All have ended before."""
        return 1


class RoundsScenario(ElasticScenario):
    options: Rounds

    async def strike(self) -> None:
        """Loses a node and brings it back, in each round."""
        self._struck = []
        for number in range(1, self.options.rounds + 1):
            node = (await self._nodes_without_manager())[-1]
            self._struck.append(time.time())
            await self.cluster.take_down(node)
            await until(self._is_small, "a smaller job")
            await self._some_steps()
            await self.cluster.bring_up(node)
            await until(self._has_grown, "the return of the replica")
            await self._some_steps()
            self.tell(Step(text=f"round {number} of {self.options.rounds}"))

    async def _is_small(self) -> bool:
        status = await self._status()
        return status.state.small is not None and status.running is None

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        """Adds the seconds from each loss to the first step of the three other ranks, and the pause of each return."""
        records = measure.read_steps(self.job_directory)
        sizes = measure.replicas(records, 1)
        near = [[one for one in records if at <= one.start < at + STEPS_EACH] for at in self._struck]
        return {
            "lost": [measure.first_step_since(few, at, RANKS - 1) - at for few, at in zip(near, self._struck, strict=True)],
            "grown": [after.since - before.until for before, after in pairwise(sizes) if after.replicas > before.replicas],
        }


async def run(rounds: int) -> dict[str, Any]:
    """Returns the results of one job."""
    options = Rounds(rounds=rounds, steps=rounds * STEPS_EACH)
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as directory:
        async with running(Path(directory), Machine(options.nodes, 1)) as stack:
            tell = lambda step: console.print(step.text, style="dim") if step.text.startswith("round") else None  # noqa: E731
            return await RoundsScenario(options, stack, Path(directory), tell).run()


def torchft(rounds: int) -> list[float]:
    """Returns the seconds from the kill of a rank to the first step of the three others, with torchft."""
    system, python = next(one for one in systems() if one.name == TORCHFT), peers_python()
    found = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as folder:
            found.append(run_peer(system, "kill", python, Path(folder) / "job").goes_on)
        console.print(f"torchft, round {number + 1} of {rounds}", style="dim")
    return [seconds for seconds in found if seconds is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="losses of a node (default: 10)")
    parser.add_argument("--peers", action="store_true", help="torchft too, which is installed on first use")
    options = parser.parse_args()
    found = asyncio.run(run(options.rounds))
    if options.peers:
        found["torchft"] = torchft(options.rounds)
    console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Python {platform.python_version()}\n")
    console.print("| what | median | p95 | spread | n | reach |\n|---|---|---|---|---|---|")
    for name, key, reach in (
        ("loss of a node to the first step without it", "lost", "0.50"),
        ("pause of a return", "grown", "0.30"),
        ("torchft: kill of a rank to the first step without it", "torchft", ""),
    ):
        if not (seconds := found.get(key)):
            continue
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        console.print(f"| {name} | {median(seconds):.3f} | {p95(seconds):.3f} | {spread} | {len(seconds)} | {reach} |")
    equal = "equal" if found["parameters_equal"] else "NOT equal"
    console.print(f"\nSteps lost: {found['steps_lost']}. Final parameters: {equal} to those of an undisturbed run.")


if __name__ == "__main__":
    main()
