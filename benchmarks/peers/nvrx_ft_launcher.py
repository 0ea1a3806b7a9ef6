"""ft_launcher of NVIDIA's resiliency extension: like torchrun, with a monitor of each rank that waits for its heartbeats."""

import os

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient  # type: ignore[import-not-found]
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.work import CHECKPOINT, EVERY, STEPS, batch, completed, network, strike, write_final

rank = int(os.environ["RANK"])
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dist.init_process_group("gloo")
monitor = RankMonitorClient()
monitor.init_workload_monitoring()
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
    monitor.send_heartbeat()
    completed(step, rank)
    if rank == 0 and step % EVERY == 0:
        snapshot = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(snapshot, CHECKPOINT.with_suffix(".part"))
        CHECKPOINT.with_suffix(".part").rename(CHECKPOINT)
write_final(model, rank)
monitor.shutdown_workload_monitoring()
dist.destroy_process_group()
