"""A training script with a group of its own: it wraps the model again after each rebuild, as the adapter's users do."""

import os

import torch
from torch.nn.parallel import DistributedDataParallel

import rekindle_training

torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    wrapped = DistributedDataParallel(model)

    def wrap_again() -> None:
        global wrapped
        if os.environ.get("FAILS_AT_RANK") == str(training.rank):
            raise RuntimeError("the user's callback failed")
        wrapped = DistributedDataParallel(model)

    training.on_rebuild(wrap_again)
    for step in training.steps(400):
        optimizer.zero_grad()
        wrapped(torch.full((2, 8), float(training.rank + step % 7))).pow(2).mean().backward()
        optimizer.step()
    line = f"final {training.rank} {training.generation} {model.weight.double().sum().item()!r}\n"
    os.write(1, line.encode())  # in one piece: all ranks of a pod write to one log
