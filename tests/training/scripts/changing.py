"""A training script that changes, while it trains, what `WISH` names. `FAULT` (`RANK:STEP`) strikes at the end of a step, or with
`PLACE=begin` at its beginning."""

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rekindle_training

WISH, FAULT, PLACE = os.environ["WISH"], os.environ.get("FAULT", ""), os.environ.get("PLACE", "begin")


def fault(step: int, place: str) -> None:
    marker = Path(os.environ["REKINDLE_JOB_DIR"]) / "struck"
    if f"{rank}:{step}" == FAULT and place == PLACE and not marker.exists():
        marker.touch()
        if os.environ.get("KIND") == "raise":
            raise ValueError("struck")
        os.kill(os.getpid(), signal.SIGKILL)


rekindle_training.init_process_group()
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
judge = nn.Linear(4, 1)
if WISH == "sharded second model":
    fully_shard(judge, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards")))
judges = torch.optim.SGD(judge.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2, enabled=WISH == "scaler")

with rekindle_training.session(
    model, optimizer, state=[scaler, judge, judges], checkpoint_every=0, repeat_updates="COPIES" in os.environ
) as training:
    torch.manual_seed(1 + rank)
    wrapped = DistributedDataParallel(model)
    judging: Any = judge if WISH == "sharded second model" else DistributedDataParallel(judge)
    if WISH == "mode":
        model[1].eval()
    for step in training.steps(10):
        with step:
            fault(step, "begin")
            if step == 4:
                model[1].train()
                if WISH == "attribute":
                    setattr(model[1], "p", 0.5)  # noqa: B010  # torch does not say its type
            result = wrapped(torch.randn(6, 8))
            loss = result.pow(2).mean() + judging(result).pow(2).mean()
            scaler.scale(loss).backward()
            if WISH != "second model" or step % 2 == 0:
                judges.step()
                judges.zero_grad()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            fault(step, "end")
    held = [parameter.detach() for parameter in (*model.parameters(), *judge.parameters())]
    tensors = [parameter.to_local() if hasattr(parameter, "to_local") else parameter for parameter in held]
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()[:16]
    os.write(1, f"final {rank} {digest} {scaler.get_scale()} {scaler.state_dict().get('_growth_tracker')}\n".encode())
