"""A small network as people train it, in plain PyTorch: `torchrun --nproc-per-node 2 ddp_plain.py`.

DistributedDataParallel, a DataLoader with workers, autocast and a GradScaler, gradients of two batches, a schedule, an average of
the model, and an evaluation between epochs.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler

from rekindle_training.examples.ddp_model import Batch, Patterns, accuracy, network, train_step
from rekindle_training.examples.gpt_model import write_final

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--workers", type=int, default=2, help="processes that load data, of each rank")
options = parser.parse_args()

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(options.seed)
model = network()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
images = Patterns(options.seed, 640)
sampler: DistributedSampler[Batch] = DistributedSampler(images, world_size, rank, seed=options.seed, drop_last=True)
loader = DataLoader(images, 16, sampler=sampler, num_workers=options.workers, drop_last=True, generator=torch.Generator())
torch.manual_seed(options.seed * 1000 + rank)

wrapped = DistributedDataParallel(model)
for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    batches = iter(loader)
    for _ in range(len(loader) // 2):
        train_step(wrapped, optimizer, scaler, [next(batches), next(batches)])
        scheduler.step()
        average.update_parameters(model)
    if rank == 0:
        print(f"epoch {epoch} accuracy {accuracy(average, images):.3f}", flush=True)

write_final(model, rank)
dist.destroy_process_group()
