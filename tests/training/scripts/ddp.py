"""A training script with DDP, which as a rule it wraps once. With `WRAPS_AGAIN` it does so after each rebuild, in a callback
that fails on the rank `FAILS_AT_RANK`."""

import hashlib
import os

import torch
from torch.nn.parallel import DistributedDataParallel

import rekindle_training
from rekindle_training.examples.gpt_model import at_least

torch.manual_seed(1)


class Model(torch.nn.Module):
    """A model whose layers are made in another order than they are used, so that DDP finds better buckets than the first ones."""

    def __init__(self) -> None:
        super().__init__()
        self.third, self.first, self.second = torch.nn.Linear(64, 8), torch.nn.Linear(8, 32), torch.nn.Linear(32, 64)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.third(self.second(self.first(data).relu()).relu())
        return result


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # which keeps the last bits of gradients

with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    wrapped: DistributedDataParallel
    data = torch.Generator().manual_seed(training.rank)

    def wrap() -> None:
        global wrapped
        if os.environ.get("FAILS_AT_RANK") == str(training.rank) and training.step:
            raise RuntimeError("the user's callback failed")
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)

    wrap()
    if "WRAPS_AGAIN" in os.environ:
        training.on_rebuild(wrap)
    for step in training.steps(64):
        with at_least(float(os.environ.get("PACE_MS", "0")), os.environ.get("PACE_FILE", "")):
            optimizer.zero_grad()
            data.manual_seed(1000 * training.rank + step)
            wrapped(torch.randn(2, 8, generator=data)).pow(2).mean().backward()
            optimizer.step()
    digest = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())).hexdigest()
    line = f"final {training.rank} {training.generation} {digest}\n"
    os.write(1, line.encode())  # in one piece: all ranks of a pod write to one log
