"""`python -P -m benchmarks.session_cost`: measures a step of an empty loop, with and without the session, in microseconds.

It uses one rank, so that the vote of a step waits for no other rank; `python -P -m benchmarks.vote` measures that. One collective
of one element is measured for comparison.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from statistics import median, quantiles

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

import rekindle_training
from rekindle_training.examples.gpt_model import GPT

STEPS, CHUNK = 4000, 100
"""Number of steps of a run, and of steps that are averaged into one figure."""

MODELS: dict[str, Callable[[], nn.Module]] = {
    "8 parameters": lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))),
    "500 parameters": lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(250))),
    "the small GPT: 30 parameters": GPT,
    "300 parameters, 100 small buffers": lambda: nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)) for _ in range(100))
    ),
}
WAYS = ("bare", "session", "scope", "collective")


def rank_main(model_name: str, way: str) -> None:
    model = MODELS[model_name]()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    accept = ["early-collectives"]  # a loop without steps has them before its steps
    with rekindle_training.session(model, optimizer, state=[scheduler], checkpoint_every=0, accept=accept) as training:
        element = torch.ones(1)
        steps = training.steps(STEPS) if way in ("session", "scope") else repeat(None, STEPS)
        found, began = [], time.perf_counter()
        for number, step in enumerate(steps, 1):
            with step if way == "scope" and step is not None else nullcontext():
                if way == "collective":
                    dist.all_reduce(element)
            if number % CHUNK == 0:
                now = time.perf_counter()
                found.append((now - began) / CHUNK * 1e6)
                began = now
    print(json.dumps(found), flush=True)


def measure(model_name: str, way: str) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as folder:
        command = [
            str(Path(sys.executable).with_name("rekindle-train")),
            "--standalone",
            "-m",
            "benchmarks.session_cost",
            "--rank",
        ]
        environment = {**os.environ, "REKINDLE_JOB_DIR": folder}
        done = subprocess.run(
            [*command, model_name, way], check=True, capture_output=True, text=True, timeout=300, env=environment
        )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rank", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(*options.rank)
        return
    table = Table("us a step", "median", "p5", "p95", title=f"an empty loop of {STEPS} steps, one rank")
    for model_name in MODELS:
        for way, words in zip(
            WAYS, ("bare loop", "steps of a session", "`with step:`", "one collective of one element"), strict=True
        ):
            found = measure(model_name, way)
            cuts = quantiles(found, n=20)
            table.add_row(f"{model_name}; {words}", *(f"{value:.1f}" for value in (median(found), cuts[0], cuts[-1])))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
