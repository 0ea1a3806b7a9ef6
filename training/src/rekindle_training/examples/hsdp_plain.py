"""The small GPT, sharded over two ranks and replicated over two, in plain PyTorch:
`torchrun --nproc-per-node 4 hsdp_plain.py`."""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rekindle_training.examples.gpt_model import GPT, Text, write_final

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=1)
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))

torch.manual_seed(options.seed)
model = GPT()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = Text(options.seed, rank)
torch.manual_seed(options.seed * 1000 + rank)

for step in range(1, options.steps + 1):
    loss = model(*text.batch())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)

write_final(model, rank)
dist.destroy_process_group()
