"""A training script that saves by torch's asynchronous checkpoints, through a group of its own. With `KILL` rank 1 is killed
where it is to save the second one, so that the save of rank 0 fails. With `KEEPS` the script waits for that one all the same.
"""

import hashlib
import os
import signal
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import rekindle_training

FOLDER = Path(os.environ["REKINDLE_JOB_DIR"])
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
saving: Future[Any] | None = None
group: Any


def save(step: int) -> None:
    global saving
    if saving is not None:
        saving.result()
    struck = FOLDER / "struck"
    if "KILL" in os.environ and step == 4 and rank == 1 and not struck.exists():
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    content = {"model": model.state_dict(), "step": step}
    saving = dcp.async_save(content, checkpoint_id=FOLDER / f"saved-{step}", process_group=group)  # type: ignore[assignment]


def regroup() -> None:
    global group, saving
    group = dist.new_group(backend="gloo")
    if "KEEPS" not in os.environ:
        saving = None


with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
    regroup()
    training.on_rebuild(regroup)
    torch.manual_seed(1 + rank)
    for step in training.steps(8):
        with step:
            if step > 1 and step % 2 == 1:
                save(step - 1)
            model(torch.randn(4, 8)).pow(2).mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)  # type: ignore[arg-type]
            optimizer.step()
            optimizer.zero_grad()
    save(8)
    assert saving is not None
    saving.result()
    content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    os.write(1, f"final {rank} {hashlib.sha256(content).hexdigest()[:16]} {torch.rand(1).item()!r}\n".encode())
