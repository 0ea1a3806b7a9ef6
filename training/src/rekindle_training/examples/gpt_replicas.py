"""The small GPT, sharded within replicas of two ranks (HSDP), with data in shares: it goes on with fewer replicas, and takes
missing ones back."""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import rekindle_training
from rekindle_training.examples.gpt_model import GPT, Text, at_least, write_final

SHARDS = 2

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--step-ms", type=float, default=0, help="a batch takes at least this long")
parser.add_argument("--step-ms-file", default="", help="once this file is there, it says how long a batch takes")
parser.add_argument("--checkpoint-every", type=int, default=0)
options = parser.parse_args()

rekindle_training.init_process_group()
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size() // SHARDS, SHARDS), mesh_dim_names=("replicas", "shards"))

torch.manual_seed(options.seed)
model = GPT()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = rekindle_training.shares(lambda share, _shares: Text(options.seed, share))
torch.manual_seed(options.seed * 1000 + rank)

with rekindle_training.session(model, optimizer, data=text, checkpoint_every=options.checkpoint_every) as training:
    for step in training.steps(options.steps):
        with step:
            optimizer.zero_grad()
            for batch in training.batches():
                with at_least(options.step_ms, options.step_ms_file):
                    model(*batch).backward()
            optimizer.step()
            if rank == 0 and step % 20 == 0:
                print(f"step {step}, {dist.get_world_size()} ranks", flush=True)

write_final(model, rank)
