"""A training script whose loops differ: rank R does as many steps as the R-th number of `STEPS`, of as many as `TOTAL` says.

`WAY` says how a loop ends: by the `total` that it was given (`total`), by a loader that is empty (`loader`) or by `break`. With
`inner break` or `inner continue` a rank leaves its last step before its collectives. `SLOW` names a rank that writes a file after
its loop, until the test lets it.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import rekindle_training

RANK = int(os.environ["RANK"])
STEPS = [int(steps) for steps in os.environ["STEPS"].split(",")]
TOTAL = int(os.environ.get("TOTAL", "0")) or STEPS[RANK]
WAY = os.environ.get("WAY", "total")
FOLDER = Path(os.environ["REKINDLE_JOB_DIR"])

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train() -> None:
    loss = model(torch.ones(2)).sum()
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()


with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    for step in training.steps(TOTAL):
        if WAY == "loader" and step > STEPS[RANK]:  # has no batch left
            break
        with step:
            if step == STEPS[RANK] and WAY == "inner break":
                break
            if step == STEPS[RANK] and WAY == "inner continue":
                continue
            train()
        if WAY == "break" and step == STEPS[RANK]:
            break
    if "FINISHES" in os.environ:
        training.finish()
    os.write(1, f"left {RANK} {training.step}\n".encode())
    while os.environ.get("SLOW") == str(RANK) and not (FOLDER / "written").exists():
        time.sleep(0.01)
os.write(1, f"ended {RANK} generation {training.generation}\n".encode())
