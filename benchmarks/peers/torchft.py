"""torchft, as in its `train_ddp.py`: each rank is its own replica group. The others go on without a lost one, and one that comes
back copies the state of a living one."""

import os
from datetime import timedelta
from typing import Any

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found]
from torchft.manager import WorldSizeMode  # type: ignore[import-not-found]

from benchmarks.peers.work import STEPS, WORLD, batch, completed, network, strike, write_final

replica = int(os.environ["REPLICA_GROUP_ID"])
spares = int(os.environ["NUM_REPLICA_GROUPS"]) > WORLD
model = network()


def state_dict() -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load_state_dict(state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=1)),
    min_replica_size=WORLD if spares else WORLD - 1,
    world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if spares else WorldSizeMode.DYNAMIC,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"replica_{replica}",
    init_sync=False,
)
wrapped = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=1e-3))
while manager.current_step() < STEPS:
    done = manager.current_step()
    optimizer.zero_grad()
    rank = manager.participating_rank() if spares else replica
    loss = wrapped(*batch(done + 1, replica if rank is None else rank))
    strike(done + 1, replica)
    loss.backward()
    optimizer.step()
    if manager.current_step() > done and manager.is_participating():
        completed(manager.current_step(), replica, manager.num_participants())
write_final(model, replica)
manager.shutdown()
