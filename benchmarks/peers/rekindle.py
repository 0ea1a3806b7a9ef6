"""Rekindle: the session provides the group, the checkpoints and the repair of a step."""

import torch
from torch.nn.parallel import DistributedDataParallel

import rekindle_training
from benchmarks.peers.work import EVERY, STEPS, batch, completed, network, strike, write_final

model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with rekindle_training.session(model, optimizer, checkpoint_every=EVERY) as training:
    rank = training.rank
    wrapped = DistributedDataParallel(model)
    for step in training.steps(STEPS):
        with step:
            optimizer.zero_grad()
            loss = wrapped(*batch(step, rank))
            strike(step, rank)
            loss.backward()
            optimizer.step()
            completed(step, rank)
    write_final(model, rank)
