"""`make bench`: the pause that training sees, fault to first order, control-plane time inside the pause, the machine's floor."""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from benchmarks.hot_switch import Sample, measure_switches
from rekindle.cli.stack import Machine, running

console = Console(width=110)


def floor(rounds: int) -> list[float]:
    """Returns the seconds of a communicator rebuild and state copy without a control plane."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.floor", str(rounds)], check=True, capture_output=True, text=True, timeout=300
    )
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


async def switches(count: int) -> list[Sample]:
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as directory:
        async with running(Path(directory), Machine(nodes=3, accelerators=2)) as stack:
            return await measure_switches(stack, Path(directory), count, lambda line: console.print(line, style="dim"))


def row(name: str, seconds: list[float], reach: str) -> tuple[str, ...]:
    cuts = quantiles(seconds, n=20) if len(seconds) > 1 else seconds * 20
    values = (median(seconds), cuts[0], cuts[-1])
    return (name, *(f"{value * 1000:.0f}" for value in values), reach, str(len(seconds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--switches", type=int, default=20, help="how many hot switches (default: 20)")
    count = parser.parse_args().switches
    lowest = floor(count)
    samples = asyncio.run(switches(count))
    table = Table("ms", "median", "p5", "p95", "reach", "n", title="planned hot switch, 4 gloo ranks in 2 pods")
    table.add_row(*row("floor: rebuild and copy, no control plane", lowest, "-"))
    table.add_row(*row("pause seen by training", [s.pause for s in samples], "400"))
    table.add_row(*row("fault seen to first order", [s.first_order for s in samples], "60, p95 100"))
    table.add_row(*row("control plane inside the pause", [s.control_plane for s in samples], "60"))
    table.add_row(*row("decision to verdict", [s.total for s in samples], "-"))
    console.print(table)
    console.print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}")


if __name__ == "__main__":
    main()
