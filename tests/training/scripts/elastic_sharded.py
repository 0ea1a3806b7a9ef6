"""A training script whose number of replicas may change: its model is sharded over two ranks, with a replica for each such pair.

Each rank writes the samples of each step to `samples/RANK.jsonl` when it has drawn them, so that a repeated step is there twice.
Steps after the first ones take `PACE_MS`.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import rekindle_training
from rekindle_training.examples.gpt_model import at_least

STEPS, SAMPLES, BATCH, FAST = 20, 180, 4, 3
PACE = (float(os.environ.get("PACE_MS", "0")), os.environ.get("PACE_FILE", ""))
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = Path(os.environ["REKINDLE_JOB_DIR"])
rows = TensorDataset(torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(2)), torch.arange(SAMPLES))


def make_loader(share: int, of: int) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(rows, of, share, seed=3)
    return DataLoader(rows, BATCH, sampler=sampler, drop_last=True)


def drawn(step: int) -> Iterator[torch.Tensor]:
    """Yields the batches of a step, and writes their samples down."""
    for inputs, numbers in training.batches():
        with (folder / "samples" / f"{rank}.jsonl").open("a") as log:
            log.write(json.dumps({"step": int(step), "samples": numbers.tolist()}) + "\n")
        yield inputs


def passed(inputs: torch.Tensor) -> None:
    """Makes two passes of a batch, which add their gradients up."""
    for half in inputs.chunk(2):
        scaler.scale(model(half).square().mean()).backward()


(folder / "samples").mkdir(exist_ok=True)
rekindle_training.init_process_group()
mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicas", "shards"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 3))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
torch.manual_seed(1000 + rank)
data = rekindle_training.shares(make_loader)
with rekindle_training.session(model, optimizer, state=[scaler], data=data, checkpoint_every=10) as training:
    for step in training.steps(STEPS):
        with step, at_least(*PACE) if step > FAST else nullcontext():
            optimizer.zero_grad(set_to_none=bool(step % 2))
            for inputs in drawn(step):
                passed(inputs)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

held = [one.to_local().detach() for one in model.parameters() if isinstance(one, DTensor)]
digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in held))
numbers = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
os.write(1, f"final {rank} {digest.hexdigest()[:16]} {numbers.hexdigest()[:16]}\n".encode())
