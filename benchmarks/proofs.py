"""`python -P -m benchmarks.proofs`: measures the cost of comparing ranks and of the rehearsal, and the memory of gradients.

The calls of a job of 1,000 steps of 60 ms with two ranks, which writes checkpoints, are timed from inside. Peak memory is that of
one rank with a large layer, compared with the same loop in plain torch.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

import rekindle_training
from rekindle_training.adapter.comparison import Comparison
from rekindle_training.adapter.rehearsal import Rehearsal
from rekindle_training.examples.gpt_model import ALPHABET, CONTEXT, GPT, at_least

PACE_MS, EVERY = 60.0, 250
"""Milliseconds of a step of the job, steps between two checkpoints."""
WIDTH = 8192
"""Inputs and outputs of the large layer: 256 MiB of parameters."""
ORDERS = ("zero_grad at the end", "zero_grad at the start", "zeros are kept", "gathered over two turns")

spent: dict[str, float] = {"comparisons": 0.0, "rehearsal": 0.0}


def _timed(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            spent[what] += time.perf_counter() - began

    return timed


def job(count: int) -> None:
    """Trains as one rank of the job, and prints the seconds that were spent."""
    Comparison.run = _timed("comparisons", Comparison.run)  # type: ignore[method-assign]
    for name in ("remember", "conclude"):
        setattr(Rehearsal, name, _timed("rehearsal", getattr(Rehearsal, name)))
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    began, turns = 0.0, 0
    with rekindle_training.session(model, optimizer, checkpoint_every=EVERY) as training:
        wrapped = DistributedDataParallel(model)
        tokens = torch.randint(0, len(ALPHABET), (2, CONTEXT))
        for step in training.steps(count):
            began, turns = began or time.perf_counter(), turns + 1
            with step, at_least(PACE_MS, ""):
                wrapped(tokens, tokens).backward()
                optimizer.step()
                optimizer.zero_grad()
        total = time.perf_counter() - began
        spent["rehearsal"] += (turns - count) * PACE_MS / 1000
    if dist.is_available() and os.environ["RANK"] == "0":
        print(json.dumps({**spent, "job": total}), flush=True)


def memory(order: str, way: str) -> None:
    """Trains one rank with a large layer, and prints its peak in MiB."""
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def train(number: int) -> None:
        if order == "zero_grad at the start":
            optimizer.zero_grad()
        model(torch.ones(1, WIDTH)).sum().backward()
        if order != "gathered over two turns" or number % 2 == 0:
            optimizer.step()
            if order != "zero_grad at the start":
                optimizer.zero_grad(set_to_none=order != "zeros are kept")

    with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
        steps: Any = training.steps(6) if way == "session" else repeat(None, 6)
        for number, step in enumerate(steps, 1):
            with step if way == "session" else nullcontext():
                train(number)
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), flush=True)


def run(*arguments: str, ranks: int) -> Any:
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as folder:
        launcher = [str(Path(sys.executable).with_name("rekindle-train")), "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [*launcher, "-m", "benchmarks.proofs", *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "REKINDLE_JOB_DIR": folder},
        )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of the job (default: 3)")
    parser.add_argument("--steps", type=int, default=1000, help="of the job (default: 1000)")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory", nargs=2, metavar=("ORDER", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options.steps)
        return
    if options.memory:
        memory(*options.memory)
        return
    console = Console(width=110)
    found = [run("--job", f"--steps={options.steps}", ranks=2) for _ in range(options.runs)]
    table = Table(
        "ms", "median", "least", "most", title=f"a job of {options.steps} steps of {PACE_MS:g} ms, 2 ranks, {options.runs} runs"
    )
    for name in spent:
        seconds = [one[name] for one in found]
        table.add_row(name, *(f"{value * 1000:.0f}" for value in (median(seconds), min(seconds), max(seconds))))
    shares = [sum(one[name] for name in spent) / one["job"] * 100 for one in found]
    table.add_row("both, percent of the job", *(f"{value:.2f}" for value in (median(shares), min(shares), max(shares))))
    console.print(table)
    peaks = Table("MiB", "plain torch", "session", title=f"peak of one rank with {WIDTH * WIDTH * 4 >> 20} MiB of parameters")
    for order in ORDERS:
        peaks.add_row(order, *(f"{run('--memory', order, way, ranks=1):.0f}" for way in ("plain", "session")))
    console.print(peaks)


if __name__ == "__main__":
    main()
