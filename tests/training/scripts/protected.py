"""A training script whose checkpoints fail. `WAITS` are steps in which it waits for a file of that name, so that a test can break
or mend something meanwhile; `QUOTA` is the rank that may write no large file until step 6; with `STORE` the checkpoints are the
script's own, and fail on rank 0 alone as long as there is a file `broken`. With `NO_SCOPE` there is no `with step:`.
"""

import hashlib
import os
import resource
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import rekindle_training
from rekindle_training.adapter import periodic

FOLDER = Path(os.environ["REKINDLE_JOB_DIR"])
WAITS = os.environ.get("WAITS", "").split()
if "SOON" in os.environ:
    periodic.FIRST_SECONDS, periodic.SHARE = 1e-9, 0

rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 512), torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Store:
    """Checkpoints of parameters only."""

    def newest(self) -> int:
        return max((int(path.name) for path in FOLDER.glob("[0-9]*")), default=0)

    def write(self, step: int) -> None:
        dist.barrier()
        if rank == 0:
            if (FOLDER / "broken").exists():
                raise OSError(28, os.strerror(28))
            torch.save(model.state_dict(), FOLDER / str(step))
        dist.barrier()

    def read(self, step: int) -> None:
        model.load_state_dict(torch.load(FOLDER / str(step)))


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.005)


def limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


own: dict[str, Any] = {"checkpoints": Store()} if "STORE" in os.environ else {}
with rekindle_training.session(model, optimizer, checkpoint_every=int(os.environ["EVERY"]), **own) as training:
    torch.manual_seed(1 + rank)
    for step in training.steps(8):
        with nullcontext() if "NO_SCOPE" in os.environ else step:
            if str(rank) == os.environ.get("QUOTA") and step in (1, 6):
                limit(10**6 if step == 1 else resource.RLIM_INFINITY)
            if str(step) in WAITS:
                (FOLDER / f"waits-{step}-{rank}").touch()
                wait_for(FOLDER / f"go-{step}")
            model(torch.randn(2, 4)).pow(2).mean().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
    content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    os.write(1, f"final {rank} {hashlib.sha256(content).hexdigest()[:16]} {torch.rand(1).item()!r}\n".encode())
