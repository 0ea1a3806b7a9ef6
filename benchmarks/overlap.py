"""Measures a step whose gradients are summed in the order of the shares, beside plain DDP, where both overlap with the pass.

    python -P -m benchmarks.overlap [--steps 40] [--layers 8] [--mib 8] [--layer-ms 60]

Four gloo ranks train a model with a bucket for each layer. The backward pass of a layer sleeps, as if an accelerator computed it.
Two baselines are in the same run: plain DDP, whose all-reduce overlaps with the pass, and the pass alone. The last row is what a
step would take if each bucket was summed before the pass goes on: it waits inside the hook.
"""

import argparse
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rekindle_training.adapter.places import Places
from rekindle_training.adapter.sums import Sums
from rekindle_training.adapter.team import Team

RANKS = 4
WARM_UP = 5
"""Steps that are not counted. DDP finds its buckets in the first one."""
PLAIN, IN_ORDER, AWAITED = "plain DDP", "in the order of the shares", "the same, each bucket awaited"
CONTEXT = multiprocessing.get_context("forkserver")

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


class Computed(torch.autograd.Function):
    """Function whose backward pass sleeps."""

    @staticmethod
    def forward(context: Any, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds, context.of = seconds, weight.numel()
        return weight.sum()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.seconds)
        return gradient.expand(context.of), None


class Layers(nn.Module):
    def __init__(self, layers: int, mib: float, seconds: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(int(mib * 2**18)) for _ in range(layers))
        self._seconds = seconds

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            scale = scale * 0 + Computed.apply(weight, self._seconds)
        return scale


def step_seconds(how: str, rank: int, port: int, options: argparse.Namespace) -> list[float]:
    """Returns the seconds of each step of one rank."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port), rank=rank, world_size=RANKS)
    ddp = DistributedDataParallel(Layers(options.layers, options.mib, options.layer_ms / 1000), bucket_cap_mb=options.mib)
    team = Team.of((), RANKS)
    sums = Sums(lambda: team, rank, Places())
    if how != PLAIN:
        ddp.register_comm_hook(None, sums.hook if how == IN_ORDER else waiting(sums.hook))
    ends = []
    for _ in range(options.steps + WARM_UP):
        ddp.zero_grad()
        sums.begin_batches(list)
        ddp(torch.ones(())).backward()
        sums.end_step()
        ends.append(time.time())
    dist.destroy_process_group()
    return [after - before for before, after in pairwise(ends)][WARM_UP - 1 :]


def waiting(hook: Hook) -> Hook:
    """Returns a hook that lets the pass go on when the bucket is summed."""

    class Last:
        """Bucket as if no other one followed."""

        def __init__(self, bucket: dist.GradBucket) -> None:
            self._bucket = bucket

        def is_last(self) -> bool:
            return True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._bucket, name)

    return lambda state, bucket: hook(state, Last(bucket))  # type: ignore[arg-type]


def measured(how: str, options: argparse.Namespace) -> list[float]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with CONTEXT.Pool(RANKS) as pool:
        return pool.starmap(step_seconds, [(how, rank, store.port, options) for rank in range(RANKS)])[0]


def row(name: str, seconds: Sequence[float]) -> tuple[str, ...]:
    cuts = quantiles(seconds, n=20)
    return (name, *(f"{1000 * one:.0f}" for one in (median(seconds), cuts[0], cuts[-1])), f"{len(seconds)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="steps that are counted (default: 40)")
    parser.add_argument("--layers", type=int, default=8, help="layers, each in a bucket of its own (default: 8)")
    parser.add_argument("--mib", type=float, default=8, help="size of a layer's gradients (default: 8)")
    parser.add_argument("--layer-ms", type=float, default=60, help="backward pass of a layer (default: 60)")
    options = parser.parse_args()
    table = Table("ms for a step", "median", "p5", "p95", "n")
    table.add_row("the pass alone", f"{options.layers * options.layer_ms:.0f}", "-", "-", "-")
    for how in (PLAIN, IN_ORDER, AWAITED):
        table.add_row(*row(how, measured(how, options)))
    console = Console(width=110)
    console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    console.print(table)


if __name__ == "__main__":
    main()
