"""The small GPT in plain PyTorch: `torchrun --nproc-per-node 4 gpt_plain.py`."""

import argparse

import torch
import torch.distributed as dist

from rekindle_training.examples.gpt_model import GPT, Text, at_least, train_step, write_final

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--step-ms", type=float, default=0, help="a step takes at least this long")
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()

torch.manual_seed(options.seed)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
text = Text(options.seed, rank)
torch.manual_seed(options.seed * 1000 + rank)

for step in range(1, options.steps + 1):
    with at_least(options.step_ms):
        loss = train_step(model, optimizer, scheduler, text)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)

write_final(model, rank)
dist.destroy_process_group()
