"""A small network as people train it, with Rekindle's session: `rekindle-train --standalone --nproc-per-node 2 ddp.py`.

DistributedDataParallel, a DataLoader with workers, autocast and a GradScaler, gradients of two batches, a schedule, an average of
the model, and an evaluation between epochs.
"""

import argparse
import os

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler

import rekindle_training
from rekindle_training.examples.ddp_model import Batch, Patterns, accuracy, network, train_step
from rekindle_training.examples.gpt_model import write_final

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--workers", type=int, default=2, help="processes that load data, of each rank")
parser.add_argument("--checkpoint-every", type=int, default=5)
options = parser.parse_args()

torch.manual_seed(options.seed)
model = network()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
images = Patterns(options.seed, 640)
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
sampler: DistributedSampler[Batch] = DistributedSampler(images, world_size, rank, seed=options.seed, drop_last=True)
loader = DataLoader(images, 16, sampler=sampler, num_workers=options.workers, drop_last=True)
batches = rekindle_training.batches(loader)
torch.manual_seed(options.seed * 1000 + rank)

with rekindle_training.session(
    model, optimizer, state=[scheduler, scaler, average], data=batches, checkpoint_every=options.checkpoint_every
) as training:
    wrapped = DistributedDataParallel(model)
    for epoch in training.epochs(options.epochs, steps=len(batches) // 2):
        for step in epoch:
            with step:
                train_step(wrapped, optimizer, scaler, [next(batches), next(batches)])
                scheduler.step()
                average.update_parameters(model)
        if rank == 0:
            print(f"epoch {epoch} accuracy {accuracy(average, images):.3f}", flush=True)

write_final(model, rank)
