"""Common parts of all scripts: the model, its data, the fault, and the records for the measurement."""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import torch

from rekindle_training.examples.gpt_model import ALPHABET, BATCH, CONTEXT, GPT

FOLDER = Path(os.environ["PEERS_FOLDER"])
STEPS = int(os.environ["PEERS_STEPS"])
EVERY = int(os.environ["PEERS_CHECKPOINT_EVERY"])
CHECKPOINT = FOLDER / "checkpoint.pt"
WORLD = 4
PACE = 0.02
"""Seconds of waiting in each step: a step takes about 40 ms, and training leaves time on two cores for a process that starts."""

torch.set_num_threads(1)


def network() -> GPT:
    torch.manual_seed(0)
    return GPT().eval()  # no dropout: how systems treat random numbers is not compared


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the batch of a step and rank, which is the same for every caller."""
    time.sleep(PACE)
    draw = torch.Generator().manual_seed(1000 * step + rank)
    text = torch.randint(len(ALPHABET), (BATCH, CONTEXT + 1), generator=draw)
    return text[:, :-1], text[:, 1:]


def strike(step: int, rank: int) -> None:
    """Injects the fault: into rank 1, once in a job, between the forward and the backward pass, while all others wait for it."""
    fault = os.environ.get("PEERS_FAULT", "")
    if not fault or rank != 1 or step < int(os.environ["PEERS_STRIKE_AT"]):
        return
    try:
        with (FOLDER / "struck").open("x") as file:
            json.dump({"step": step, "time": time.monotonic(), "pid": os.getpid()}, file)
    except FileExistsError:
        return
    if fault == "exception":
        raise ValueError("struck")
    os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)


def completed(step: int, rank: int, world: int = WORLD) -> None:
    """Records a completed step: the rank, and the number of ranks that took part. All processes of a machine share the clock."""
    line = json.dumps({"step": step, "rank": rank, "world": world, "end": time.monotonic(), "pid": os.getpid()})
    with (FOLDER / f"steps-{os.getpid()}").open("a") as file:
        file.write(line + "\n")


def write_final(model: torch.nn.Module, rank: int) -> None:
    content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    path = FOLDER / f"final-{rank}"
    path.with_suffix(".part").write_text(hashlib.sha256(content).hexdigest())
    path.with_suffix(".part").rename(path)
