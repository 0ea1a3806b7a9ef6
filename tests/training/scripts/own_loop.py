"""A training script with a loop of its own. `WISH` names arguments that are refused, or checkpoints of its own."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import rekindle_training
from rekindle_training.examples.gpt_model import at_least

WISH = os.environ.get("WISH", "")
FOLDER = Path(os.environ["REKINDLE_JOB_DIR"])
STEPS = int(os.environ.get("STEPS", "4"))

rekindle_training.init_process_group()
rank = dist.get_rank()
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Nothing:
    pass


class Store:
    """A store for a job without random numbers and positions."""

    def newest(self) -> int:
        return max((int(path.name) for path in FOLDER.glob("[0-9]*")), default=0)

    def write(self, step: int) -> None:
        dist.barrier()
        if rank == 0:
            torch.save(model.state_dict(), FOLDER / str(step))
        dist.barrier()
        say(f"wrote {step}")

    def read(self, step: int) -> None:
        model.load_state_dict(torch.load(FOLDER / str(step)))
        say(f"read {step}")


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def train_step(number: int) -> None:
    struck = FOLDER / f"struck-{rank}"
    if str(number) == os.environ.get("FAULT") and not struck.exists():
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with at_least(float(os.environ.get("PACE_MS", "0")), os.environ.get("PACE_FILE", "")):
        model(torch.ones(1, 4)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


arguments: dict[str, dict[str, Any]] = {
    "replicas of another job": {"replicas": [rank, 7]},
    "nobody else": {"replicas": [rank]},
    "contradiction": {"replicas": [0, 1] if rank == 0 else [1], "unique_shards": True},
    "late groups": {"after_update": lambda: None},
    "no checkpoints": {"checkpoints": Nothing()},
    "own checkpoints": {"checkpoints": Store(), "checkpoint_every": 2},
}
with rekindle_training.session(model, optimizer, **{"checkpoint_every": 0, **arguments.get(WISH, {})}) as training:
    if WISH == "late groups":
        dist.new_group([0, 1])
    training.on_pause(lambda: say(f"pausing {rank}"))
    one_step = training.guard(train_step, STEPS, missed=None)
    for number in range(training.step + 1, STEPS + 1 + (WISH == "a step too many")):
        one_step(number)
say(f"final {training.step} {model.weight.double().sum().item()!r}")
