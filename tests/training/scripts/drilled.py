"""A training script with one defect that its author did not see; `--defect none` has none."""

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import rekindle_training

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--defect", default="none")
parser.add_argument("--own-checkpoints", type=Path)
parser.add_argument("--epoch", type=int, help="steps of an epoch, behind which the scheduler moves; by default there are none")
options = parser.parse_args()
defect = options.defect


class Store:
    """A store of the script's own for its checkpoints."""

    def newest(self) -> int:
        raise AssertionError("a drill reads no checkpoint of the script's own")

    def write(self, step: int) -> None:
        options.own_checkpoints.write_text(str(step))

    def read(self, step: int) -> None:
        raise AssertionError("a drill reads no checkpoint of the script's own")


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
given = [] if defect == "forgotten scheduler" else [scheduler]
store = Store() if options.own_checkpoints else None

with rekindle_training.session(model, optimizer, state=given, checkpoint_every=0, checkpoints=store) as training:
    if defect == "barrier before the loop":
        dist.barrier()
    numbers = np.random.default_rng(training.rank)
    torch.manual_seed(1 + training.rank)

    def draw() -> torch.Tensor:
        if defect == "generator of its own":
            return torch.from_numpy(numbers.standard_normal((16, 8))).float()
        return torch.randn(16, 8)

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            loss = model(torch.ones(4, 8)).mean()
        if defect == "collective after the update":
            dist.all_reduce(loss)
        model.train()

    if defect == "unseeded" and training.generation == 1:
        torch.seed()
    if defect == "differs before the fault" and "exception" in os.environ.get("REKINDLE_INJECT", "") and training.generation == 1:
        torch.manual_seed(2 + training.rank)
    batch = draw()

    done = set[int]()

    def is_enough(step: int) -> bool:
        done.add(step)
        return len(done) == 6

    def turns() -> Iterator[Any]:
        if not options.epoch:
            yield from training.steps(options.steps)
            return
        for epoch in training.epochs(options.steps // options.epoch, options.epoch):
            yield from epoch
            scheduler.step()

    for step in turns():
        with nullcontext() if defect == "no scope" else step:
            if defect != "batch of the turn before":
                batch = draw()
            loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            for gradient in [parameter.grad for parameter in model.parameters() if parameter.grad is not None]:
                dist.all_reduce(gradient)
                gradient.div_(training.world_size)
            optimizer.step()
            optimizer.zero_grad()
            if not options.epoch:
                scheduler.step()
            if defect == "batch of the turn before":
                batch = draw()
        if step % 3 == 0:
            evaluate()
        if defect == "early stop" and is_enough(step):
            training.finish()
            break
        if defect == "stuck in a new process" and training.generation > 1 and step == 6:
            signal.pause()
