"""A training script in which rank 1 is killed in its third step. The process that takes its place cannot load the snapshot that
the script has written: before its session, or with `PLACE=inside` in it."""

import os
import signal
from pathlib import Path

import torch

import rekindle_training

FOLDER = Path(os.environ["REKINDLE_JOB_DIR"])
SNAPSHOT = FOLDER / "snapshot.pt"
rank = int(os.environ["RANK"])


class Configuration:
    """Class that `torch.load` does not know."""


def load_snapshot() -> None:
    if SNAPSHOT.exists():
        torch.load(SNAPSHOT)


torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.environ.get("PLACE") != "inside":
    load_snapshot()
with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    if os.environ.get("PLACE") == "inside":
        load_snapshot()
    for step in training.steps(5):
        with step:
            if step == 3 and rank == 1:
                torch.save({"configuration": Configuration()}, SNAPSHOT)
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(1, 2)).sum().backward()
            assert model.weight.grad is not None
            torch.distributed.all_reduce(model.weight.grad)
            optimizer.step()
            optimizer.zero_grad()
