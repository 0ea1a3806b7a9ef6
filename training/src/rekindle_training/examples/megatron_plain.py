"""The small GPT with a trainer in the style of Megatron, in plain PyTorch: `torchrun --nproc-per-node 4 megatron_plain.py`."""

import argparse

import torch
import torch.distributed as dist

from rekindle_training.examples.gpt_model import GPT, Text, write_final
from rekindle_training.examples.megatron_trainer import DistributedOptimizer, groups, pretrain

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=1)
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
shards, replicas = groups()

torch.manual_seed(options.seed)
model = GPT().bfloat16()
optimizer = DistributedOptimizer(model, shards, replicas)
text = Text(options.seed, rank)
torch.manual_seed(options.seed * 1000 + rank)

pretrain(model, optimizer, text, options.steps)

write_final(model.float(), rank)
dist.destroy_process_group()
