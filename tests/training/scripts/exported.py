"""Training script whose checkpoint is read by another process. `KIND` is `ddp`, `hsdp` (shards on two ranks, two replicas), or
`parts`: ranks 0 and 1 train one model, and ranks 2 and 3 another one.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import rekindle_training

INPUT = torch.linspace(-1, 1, 16).reshape(2, 8)


class Scaled(nn.Module):
    """Module with a buffer that its state dict leaves out, and with state that is no tensor."""

    passes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(1), persistent=False)
        self.factor = 1.0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return given * self.factor

    def get_extra_state(self) -> float:
        return self.factor

    def set_extra_state(self, state: float) -> None:
        self.factor = state


def build(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 6), Scaled(), nn.BatchNorm1d(6), nn.Linear(6, 8))


def evaluated(model: nn.Module) -> str:
    model.eval()
    with torch.no_grad():
        output: torch.Tensor = model(INPUT)
    model.train()
    return output.numpy().tobytes().hex()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train() -> None:
    kind = os.environ["KIND"]
    rekindle_training.init_process_group()
    rank = dist.get_rank()
    model = build(rank // 2 if kind == "parts" else 0)
    trained: nn.Module = model
    own: dict[str, Any] = {}
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        for layer in (model[0], model[3]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "parts":
        own = {"replicas": [0, 1] if rank < 2 else [2, 3]}
    scaled = next(module for module in model.modules() if isinstance(module, Scaled))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = nn.Linear(2, 2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    with rekindle_training.session(model, optimizer, state=[scheduler, average], checkpoint_every=2, **own) as training:
        if kind == "ddp":
            trained = DistributedDataParallel(model)
        for step in training.steps(4):
            with step:
                trained(torch.full((4, 8), float(step)) + torch.arange(8.0)).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                scaled.factor = step / 2
        moment = whole(optimizer.state[model.get_parameter("0.weight")]["exp_avg"]).numpy().tobytes().hex()
        os.write(1, f"evaluated {rank} {evaluated(trained)}\nmoment {rank} {moment}\n".encode())


if __name__ == "__main__":
    train()
