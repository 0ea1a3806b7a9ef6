"""Measures what snapshots in memory cost in a step, and how long going back to one takes.

    python -P -m benchmarks.snapshots [--gibibytes 1] [--rounds 2]

Two ranks on one machine have a state of their own each: parameters, and two moments of AdamW. Each rank keeps the snapshots of
the other one, as if they were on two nodes. A step waits as long as an accelerator would compute. On a free host it updates one
parameter only, since an accelerator would do that too. On a busy host it updates all of them. Runs with and without snapshots
take turns. In each run with snapshots a rank is killed, and both go back.
"""

import argparse
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch import nn

import rekindle_training
from rekindle_training.adapter.snapshots import Snapshots

GIBIBYTE = 1024**3
RANKS, EVERY, INTERVALS = 2, 10, 4
"""Number of ranks, of steps between two snapshots, and of such intervals."""
BYTES_OF_PARAMETER = 4 + 2 * 4
MATRIX = 2048 * 2048
WAITS = {"free": 1.0, "busy": 0.5}
"""Seconds in which an accelerator would compute, by the host."""
KILLED_IN = EVERY * (INTERVALS - 1) + 5

console = Console(width=130)


def rank_main(gibibytes: float, host: str) -> None:
    """Trains as one rank. Prints the seconds of each interval of steps, and those of going back."""
    rank = int(os.environ["RANK"])
    os.environ["REKINDLE_NODE"] = f"node-{rank}"
    torch.set_num_threads(1)
    count = round(gibibytes * GIBIBYTE / (BYTES_OF_PARAMETER * MATRIX))
    model = nn.ParameterList(nn.Parameter(torch.zeros(MATRIX)) for _ in range(count))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    gradient = torch.full((MATRIX,), 1e-3)
    restore = Snapshots.restore

    def timed(snapshots: Snapshots, step: int) -> str:
        began = time.perf_counter()
        problem = restore(snapshots, step)
        os.write(1, f"restored {time.perf_counter() - began} {problem}\n".encode())
        return problem

    Snapshots.restore = timed  # type: ignore[assignment, method-assign]
    times: list[float] = []
    marker = Path(os.environ["REKINDLE_JOB_DIR"]) / "killed"
    accept = ["early-collectives"]
    with rekindle_training.session(
        model, optimizer, unique_shards=True, replicas=[rank], checkpoint_every=0, accept=accept
    ) as training:
        for step in training.steps(EVERY * INTERVALS):
            with step:
                time.sleep(WAITS[host])
                if rank == 1 and step == KILLED_IN and "REKINDLE_SNAPSHOT_EVERY" in os.environ and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                for parameter in model if host == "busy" or step == 1 else [model[0]]:
                    parameter.grad = gradient
                optimizer.step()
                optimizer.zero_grad()
            if not marker.exists() and step % EVERY == 0:
                times.append(time.perf_counter())
                if len(times) > 1:
                    os.write(1, f"interval {times[-1] - times[-2]}\n".encode())


def measure(gibibytes: float, host: str, *, snapshots: bool) -> tuple[list[float], list[float]]:
    """Returns the seconds of a step in each interval but the first one, and those of going back on each rank."""
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as folder:
        environment = {**os.environ, "REKINDLE_JOB_DIR": folder}
        environment |= {"REKINDLE_SNAPSHOT_EVERY": str(EVERY)} if snapshots else {}
        program = str(Path(sys.executable).with_name("rekindle-train"))
        command = [
            program,
            "--standalone",
            "--nproc-per-node",
            str(RANKS),
            "-m",
            "benchmarks.snapshots",
            "--rank",
            str(gibibytes),
            host,
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=environment)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    intervals = [float(seconds) / EVERY for seconds in re.findall(r"interval (\S+)", done.stdout)]
    return intervals, [float(seconds) for seconds in re.findall(r"restored (\S+) $", done.stdout, re.MULTILINE)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gibibytes", type=float, default=1.0, help="state of each rank (default: 1)")
    parser.add_argument("--rounds", type=int, default=2, help="runs with snapshots, and without (default: 2)")
    parser.add_argument("--rank", nargs=2, metavar=("GIBIBYTES", "HOST"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(float(options.rank[0]), options.rank[1])
        return
    console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Python {platform.python_version()}\n")
    console.print("| seconds | median | spread | n |\n|---|---|---|---|")
    for host in WAITS:
        without, with_them, back = [], [], []
        for _ in range(options.rounds):
            without += measure(options.gibibytes, host, snapshots=False)[0]
            steps, restored = measure(options.gibibytes, host, snapshots=True)
            with_them += steps
            back += restored
        for name, seconds in (
            ("step without snapshots", without),
            (f"step with a snapshot after every {EVERY}th", with_them),
            ("going back to a snapshot", back),
        ):
            spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
            console.print(f"| {host} host: {name} | {median(seconds):.3f} | {spread} | {len(seconds)} |")
        console.print(f"| {host} host: added to a step | {median(with_them) / median(without) - 1:.1%} | | |")


if __name__ == "__main__":
    main()
