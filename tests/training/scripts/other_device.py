"""A training script that has another default device than that of its tensors, as scripts have that say
`torch.set_default_device("cuda")`: whatever is made without a device of its own cannot be read."""

import torch
import torch.distributed as dist
from torch import nn

import rekindle_training
from rekindle_training.adapter.digest import digest

STEPS = 10

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
torch.set_default_device("meta")

with rekindle_training.session(model, optimizer, checkpoint_every=3) as training:
    torch.manual_seed(1 + training.rank)
    training.every(4, lambda step: print(f"called at step {step}", flush=True))
    for step in training.steps(STEPS):
        with step:
            batch = torch.randn(16, 8, device="cpu")
            (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
    print(f"final {training.rank} {digest([model.state_dict(), optimizer.state_dict()]).hex()}\n", end="", flush=True)
