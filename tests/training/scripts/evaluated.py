"""A training script with statistics of BatchNorm, evaluated through its DistributedDataParallel after each second step."""

import hashlib
import os

import torch
from torch.nn.parallel import DistributedDataParallel

import rekindle_training

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(1 + training.rank)

    def evaluate(_: int) -> None:
        wrapped.eval()
        with torch.no_grad():
            loss = wrapped(torch.ones(4, 8)).mean()
        torch.distributed.all_reduce(loss)
        wrapped.train()

    training.every(2, evaluate)
    for step in training.steps(5):
        with step:
            rows = torch.randn(16, 8)
            (wrapped(rows) - rows.sum(1, keepdim=True)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

content = b"".join(tensor.detach().numpy().tobytes() for tensor in (*model.parameters(), *model.buffers()))
os.write(1, f"final {training.rank} {hashlib.sha256(content).hexdigest()[:16]}\n".encode())
