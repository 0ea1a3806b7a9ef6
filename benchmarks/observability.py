"""`python -P -m benchmarks.observability`: measures what metrics and traces cost a recovery.

Hot switches are measured on stacks with and without both, in turn, in one run. Where they are on, all spans go to a collector in
another process, and the metrics of all processes are read every second.
"""

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks.hot_switch import Sample, measure_switches
from rekindle.cli.stack import Machine, Ports, running
from tests.fakes.collector import collector

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SCRAPED_EVERY = 1.0
FIGURES = {
    "first_order": "fault seen to first order",
    "control_plane": "control plane inside the pause",
    "pause": "pause seen by training",
    "total": "decision to verdict",
}

console = Console(width=110)


async def _collect() -> None:
    async with collector() as there:
        print(there.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextmanager
def _collecting() -> Iterator[None]:
    """Runs a collector in another process, and names it to all processes that are started meanwhile."""
    command = [sys.executable, "-P", "-m", "benchmarks.observability", "--collect"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        os.environ[ENDPOINT] = process.stdout.readline().strip()
        yield
    finally:
        os.environ.pop(ENDPOINT, None)
        process.stdin.close()
        process.wait(30)


async def _scraped(urls: Iterable[str]) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            for url in urls:
                async with session.get(url) as answer:
                    await answer.read()
            await asyncio.sleep(SCRAPED_EVERY)


async def _switches(count: int, ports: Ports) -> list[Sample]:
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as name:
        directory = Path(name)
        async with running(directory, Machine(nodes=3, accelerators=2), ports=ports) as stack:
            scraping = asyncio.create_task(_scraped(stack.addresses.metrics.values()))
            try:
                return await measure_switches(stack, directory, count, lambda line: console.print(line, style="dim"))
            finally:
                scraping.cancel()


async def measure(rounds: int, switches: int) -> tuple[list[Sample], list[Sample]]:
    """Returns the hot switches with everything off, and those with everything on."""
    off: list[Sample] = []
    on: list[Sample] = []
    for number in range(rounds):
        console.print(f"round {number + 1} of {rounds}", style="dim")
        off += await _switches(switches, Ports())
        with _collecting():
            on += await _switches(switches, Ports(metrics=0))
    return off, on


def _row(name: str, seconds: list[float]) -> tuple[str, ...]:
    cuts = quantiles(seconds, n=20)
    return (name, *(f"{value * 1000:.1f}" for value in (median(seconds), cuts[0], cuts[-1])), str(len(seconds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="stacks of each kind (default: 4)")
    parser.add_argument("--switches", type=int, default=10, help="hot switches on each stack (default: 10)")
    parser.add_argument("--collect", action="store_true", help="only collect spans, until the input ends")
    options = parser.parse_args()
    if options.collect:
        asyncio.run(_collect())
        return
    off, on = asyncio.run(measure(options.rounds, options.switches))
    table = Table("ms", "median", "p5", "p95", "n", title="hot switches without and with metrics and traces")
    for name, title in FIGURES.items():
        without, with_both = ([getattr(sample, name) for sample in samples] for samples in (off, on))
        table.add_row(*_row(f"{title}, off", without))
        table.add_row(*_row(f"{title}, on", with_both))
        table.add_row("difference of the medians", f"{(median(with_both) - median(without)) * 1000:+.1f}", "", "", "")
    console.print(table)
    console.print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}")


if __name__ == "__main__":
    main()
