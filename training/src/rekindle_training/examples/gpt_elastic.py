"""The small GPT with data in shares: it goes on with fewer ranks, and takes missing ones back."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rekindle_training
from rekindle_training.examples.gpt_model import GPT, Text, at_least, write_final

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--step-ms", type=float, default=0, help="a batch takes at least this long")
parser.add_argument("--step-ms-file", default="", help="once this file is there, it says how long a batch takes")
parser.add_argument("--checkpoint-every", type=int, default=0)
parser.add_argument("--parts", type=int, default=1, help="shares of each rank; each has a batch of the same size in a step")
options = parser.parse_args()

torch.manual_seed(options.seed)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
rank = int(os.environ["RANK"])
text = rekindle_training.shares(lambda share, _shares: Text(options.seed, share), options.parts)
torch.manual_seed(options.seed * 1000 + rank)

with rekindle_training.session(
    model, optimizer, state=[scheduler], data=text, checkpoint_every=options.checkpoint_every
) as training:
    wrapped = DistributedDataParallel(model)
    for step in training.steps(options.steps):
        with step:
            optimizer.zero_grad()
            for batch in training.batches():
                with at_least(options.step_ms, options.step_ms_file):
                    wrapped(*batch).backward()
            optimizer.step()
            scheduler.step()
            if rank == 0 and step % 20 == 0:
                print(f"step {step}, {dist.get_world_size()} ranks", flush=True)

write_final(model, rank)
