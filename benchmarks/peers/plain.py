"""Plain PyTorch without fault tolerance: the script with which the others are compared, line by line."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.work import STEPS, batch, completed, network, strike, write_final

rank = int(os.environ["RANK"])
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dist.init_process_group("gloo")
wrapped = DistributedDataParallel(model)
for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    loss = wrapped(*batch(step, rank))
    strike(step, rank)
    loss.backward()
    optimizer.step()
    completed(step, rank)
write_final(model, rank)
dist.destroy_process_group()
