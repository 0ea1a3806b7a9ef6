"""NVIDIA's resiliency extension with in-process restart, as in its `optimal_example.py`: model, optimizer and store are created
once, the function with the loop is called again in living processes, and a reserve rank replaces a lost one."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess  # type: ignore[import-not-found]
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.work import CHECKPOINT, EVERY, STEPS, WORLD, batch, completed, network, strike, write_final

model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
port, soft = int(os.environ["MASTER_PORT"]), float(os.environ["PEERS_TIMEOUT"])
interval = timedelta(seconds=0.05)


@inprocess.Wrapper(  # type: ignore[untyped-decorator]
    store_kwargs={"port": port + 2},
    rank_assignment=inprocess.Compose(inprocess.rank_assignment.MaxActiveWorldSize(WORLD), inprocess.rank_assignment.FillGaps()),
    monitor_thread_interval=interval,
    monitor_process_interval=interval,
    heartbeat_interval=interval,
    progress_watchdog_interval=interval,
    last_call_wait=interval,
    soft_timeout=timedelta(seconds=soft),
    hard_timeout=timedelta(seconds=1.5 * soft),
    heartbeat_timeout=timedelta(seconds=soft),
    termination_grace_time=interval,
)
def train(base_store: dist.Store, wrapper: inprocess.CallWrapper) -> None:
    rank = int(os.environ["RANK"])
    store = dist.PrefixStore(str(wrapper.iteration), base_store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=1))
    first = 1
    if CHECKPOINT.exists():
        snapshot = torch.load(CHECKPOINT)
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["step"] + 1
    wrapped = DistributedDataParallel(model)
    for step in range(first, STEPS + 1):
        optimizer.zero_grad()
        loss = wrapped(*batch(step, rank))
        strike(step, rank)
        loss.backward()
        optimizer.step()
        completed(step, rank)
        if rank == 0 and step % EVERY == 0:
            snapshot = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            with wrapper.atomic():
                torch.save(snapshot, CHECKPOINT.with_suffix(".part"))
                CHECKPOINT.with_suffix(".part").rename(CHECKPOINT)
    write_final(model, rank)
    dist.destroy_process_group()


is_master = os.environ["RANK"] == "0"
address, world = os.environ["MASTER_ADDR"], int(os.environ["WORLD_SIZE"])
train(dist.TCPStore(address, port + 1, world, is_master, multi_tenant=True), None)
