"""Measures a step of a job that trains without one of its four ranks, with one share for each rank and with several.

    python -P -m benchmarks.small_team [--steps 60] [--batch-ms 240] [--parts 1 3]

Four gloo ranks in four pods train the small GPT with its data in shares, without a control plane. One of them is lost halfway,
and training goes on with three. What a rank computes for all its shares takes `--batch-ms`, as if an accelerator did it: passes
sleep until then. Plain DDP with as many passes, of which the last one sums, is measured beside it. The floor is four thirds of
its time, when the accelerators that are there are always in use.
"""

import argparse
import asyncio
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

from rekindle_training import examples
from rekindle_training.examples.gpt_model import GPT, Text, at_least
from tests.training.dialogue import opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.processes import Zygote

SCRIPT = str(Path(examples.__path__[0]) / "gpt_elastic.py")
RANKS = 4
LOST = RANKS - 1
CONTEXT = multiprocessing.get_context("forkserver")

Seconds = list[float]


async def in_shares(zygote: Zygote, parts: int, steps: int, batch_ms: float) -> tuple[Seconds, Seconds]:
    """Returns the seconds of each step with all ranks, and without one of them."""
    gateway = GatewayPeer()  # type: ignore[abstract]  # what it does not serve is answered with UNIMPLEMENTED
    await gateway.start()
    arguments = [f"--steps={steps}", f"--step-ms={batch_ms / parts}", f"--parts={parts}"]
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as folder:
        job = Job(Path(folder), zygote, gateway, {}, arguments, SCRIPT, pods=RANKS)
        try:
            await job.start()
            await job.reached(steps // 2, within=steps * batch_ms / 100)
            await job.lose(f"worker-{LOST}")
            await gateway.report("ReportProcessFault")
            await opened(gateway, LOST)
            await gateway.smaller(LOST)
            assert (await status(gateway))[:2] == ("downgrade", 0), await status(gateway)
            await job.reached(steps, within=steps * batch_ms / 100)
            records = job.steps(0)
        finally:
            await job.end()
            await gateway.stop()
    first = records[0]["generation"]
    whole = between([one["end"] for one in records if one["generation"] == first])
    return whole, between([one["end"] for one in records if one["generation"] != first])


def between(ends: Sequence[float]) -> Seconds:
    """Returns the seconds from one end of a step to the next, without those of the first steps."""
    return [after - before for before, after in pairwise(ends)][3:]


def plain(parts: int, steps: int, batch_ms: float) -> Seconds:
    """Returns the seconds of each step of plain DDP that sums in the last pass of a step."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with CONTEXT.Pool(RANKS) as pool:
        return pool.starmap(_plain_rank, [(rank, store.port, parts, steps, batch_ms) for rank in range(RANKS)])[0]


def _plain_rank(rank: int, port: int, parts: int, steps: int, batch_ms: float) -> Seconds:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port), rank=rank, world_size=RANKS)
    model = DistributedDataParallel(GPT())
    optimizer, batches, ends = torch.optim.AdamW(model.parameters(), lr=1e-3), iter(Text(1, rank)), []
    for _ in range(steps // 2):
        optimizer.zero_grad()
        for part in range(parts):
            with at_least(batch_ms / parts), model.no_sync() if part < parts - 1 else nullcontext():
                model(*next(batches)).backward()
        optimizer.step()
        ends.append(time.time())
    dist.destroy_process_group()
    return between(ends)


async def measured(zygote: Zygote, options: argparse.Namespace) -> Table:
    table = Table("parts", "plain DDP, ms", "4 of 4, ms", "3 of 4, ms", "floor, ms", "in use")
    for parts in options.parts:
        beside = plain(parts, options.steps, options.batch_ms)
        whole, small = await in_shares(zygote, parts, options.steps, options.batch_ms)
        floor = median(beside) * RANKS / (RANKS - 1)
        row = [median(beside), median(whole), median(small), floor]
        table.add_row(f"{parts}", *(f"{1000 * seconds:.0f}" for seconds in row), f"{floor / median(small):.0%}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="half of them without one rank (default: 60)")
    parser.add_argument("--batch-ms", type=float, default=240, help="computation of a rank in a step at full size (default: 240)")
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 3], help="shares of each rank (default: 1 3)")
    options = parser.parse_args()
    zygote = Zygote()
    try:
        table = asyncio.run(measured(zygote, options))
    finally:
        zygote.close()
    console = Console(width=110)
    console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    console.print(table)


if __name__ == "__main__":
    main()
