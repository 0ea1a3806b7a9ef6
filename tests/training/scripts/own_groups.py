"""A training script that keeps a process group of its own, of the ranks 0 and 1, over which they average as well."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

import rekindle_training

torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
pair: dist.ProcessGroup | None

with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:

    def ask() -> None:
        global pair
        group = dist.new_group([0, 1])
        pair = group if isinstance(group, dist.ProcessGroup) else None

    if training.generation == 1 or os.environ.get("REPLACEMENTS") != "careless":
        ask()
    if training.generation > 1 and os.environ.get("REPLACEMENTS") == "talkative":
        dist.recv(torch.zeros(1), 0)
    if training.generation > 1 and os.environ.get("REPLACEMENTS") == "slow":
        signal.pause()
    training.on_rebuild(ask)
    for step in training.steps(8):
        with step:
            data = torch.randn(2, 8, generator=torch.Generator().manual_seed(100 * training.rank + step))
            model(data).pow(2).mean().backward()
            struck = Path(os.environ["REKINDLE_JOB_DIR"]) / f"struck-{training.rank}"
            if f"{training.rank}:{step}" in os.environ.get("FAULTS", "").split(",") and not struck.exists():
                struck.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            for parameter in model.parameters():
                assert parameter.grad is not None
                if training.rank < 2:
                    dist.all_reduce(parameter.grad, group=pair)
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
    os.write(1, f"final {training.rank} {model.weight.double().sum().item()!r}\n".encode())
