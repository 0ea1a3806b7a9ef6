"""A training script in which `RANK_THAT_LEAVES_OUT` does not update in step 3, and in which no error leaves a step."""

import os
from contextlib import suppress

import torch

import rekindle_training

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
memory = os.fstat(int(os.environ["REKINDLE_POD_MEMORY"])).st_ino
with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    print(f"rank {training.rank} shares memory {memory}\n", end="", flush=True)
    for step in training.steps(5):
        with step, suppress(Exception):
            model(torch.ones(1, 2)).sum().backward()
            if not (step == 3 and os.environ.get("RANK_THAT_LEAVES_OUT") == f"{training.rank}"):
                optimizer.step()
            optimizer.zero_grad()
