"""The small GPT with a trainer in the style of Megatron, with Rekindle's session around it:
`rekindle-train --standalone --nproc-per-node 4 --spares 1 megatron.py`."""

import argparse
from math import nan

import torch
import torch.distributed as dist

import rekindle_training
from rekindle_training.examples.gpt_model import GPT, Text, write_final
from rekindle_training.examples.megatron_trainer import DistributedOptimizer, groups, pretrain, train_step

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--checkpoint-every", type=int, default=50)
options = parser.parse_args()

rekindle_training.init_process_group()
rank = dist.get_rank()
shards, replicas = groups()

torch.manual_seed(options.seed)
model = GPT().bfloat16()
optimizer = DistributedOptimizer(model, shards, replicas, gathers=False)
text = Text(options.seed, rank)
torch.manual_seed(options.seed * 1000 + rank)

with rekindle_training.session(
    model,
    optimizer,
    data=text,
    checkpoint_every=options.checkpoint_every,
    replicas=dist.get_process_group_ranks(replicas),
    after_update=optimizer.gather,
) as training:

    def regroup() -> None:
        optimizer.shards, optimizer.replicas = groups()

    optimizer.before_update = training.agree
    training.on_repeat(optimizer.drop)
    training.on_rebuild(regroup)
    pretrain(model, optimizer, text, options.steps, training.step, training.guard(train_step, options.steps, missed=nan))

write_final(model.float(), rank)
