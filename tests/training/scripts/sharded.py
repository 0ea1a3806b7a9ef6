"""A training script whose model is sharded over two ranks and replicated over two (HSDP), or with `UNIQUE` sharded over all four.
Steps after the step `FAST` take `PACE_MS`. `FAULTS` act on it as in `repaired.py`; with `EVALUATES` an evaluation is registered.
The rank `WITHOUT_THREAD` cannot start the thread of its third snapshot. Tensors of checkpoints are written when a rank begins the
step `WRITES_FROM`, on the rank `HELD` alone if there is one; on the rank `FULL` there is no room for them.
The snapshot of the step `HOLDS_SNAPSHOT` is taken when the rank waits for its end."""

import errno
import hashlib
import itertools
import os
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import rekindle_training
from rekindle_training.adapter.snapshots import Snapshots
from rekindle_training.examples.gpt_model import at_least

STEPS = 10
FAST = int(os.environ.get("FAST", "0"))
PACE = (float(os.environ.get("PACE_MS", "0")), os.environ.get("PACE_FILE", ""))
FAULTS = {tuple(fault.split(":")) for fault in os.environ.get("FAULTS", "").split(",") if fault}
KIND = os.environ.get("KIND", "raise")

rekindle_training.init_process_group()
rank = torch.distributed.get_rank()
sizes, names = ((2, 2), ("replicas", "shards")) if "UNIQUE" not in os.environ else ((4,), ("shards",))
mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)


def fault(place: str, step: int) -> None:
    found = (str(rank), str(step), place)
    marker = Path(os.environ["REKINDLE_JOB_DIR"]) / "-".join(("struck", *found))
    if found not in FAULTS or marker.exists():
        return
    marker.touch()
    if KIND == "raise":
        raise ValueError(f"struck {place}")
    os.kill(os.getpid(), signal.SIGKILL)


class Interrupts(torch.autograd.Function):
    """A function that places a fault in the middle of a backward pass, between the collectives of two layers."""

    @staticmethod
    def forward(_: Any, data: torch.Tensor) -> torch.Tensor:
        return data.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        fault("backward", int(step))
        return gradient


class Between(nn.Module):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Interrupts.apply(data)
        return result


def start(thread: threading.Thread, start: Any = threading.Thread.start) -> None:
    if thread.name == "rekindle-snapshot" and next(snapshots) == 2:
        raise RuntimeError("can't start new thread")
    start(thread)


if os.environ.get("WITHOUT_THREAD") == str(rank):
    snapshots = itertools.count()
    threading.Thread.start = start  # type: ignore[assignment, method-assign]

writes_from = int(os.environ.get("WRITES_FROM", "0"))
is_held = os.environ.get("HELD", str(rank)) == str(rank)
may_write = Path(os.environ["REKINDLE_JOB_DIR"]) / "may-write"


def write_data(*arguments: Any, write: Any = FileSystemWriter.write_data) -> Any:
    while writes_from and is_held and not may_write.exists():
        time.sleep(0.01)
    if os.environ.get("FULL") == str(rank):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return write(*arguments)


waits, finish, completed = threading.Event(), Snapshots.finish, Snapshots._completed


def complete_late(snapshots: Any, memory: Any, taken: Any) -> Any:
    if os.environ.get("HOLDS_SNAPSHOT") == str(taken.step):
        waits.wait()
    return completed(snapshots, memory, taken)


def finish_late(snapshots: Any, is_over: Any) -> None:
    waits.set()
    finish(snapshots, is_over)


Snapshots.finish, Snapshots._completed = finish_late, complete_late  # type: ignore[assignment, method-assign]
FileSystemWriter.write_data = write_data  # type: ignore[assignment, method-assign]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Dropout(0.2), Between(), nn.Linear(33, 33), nn.ReLU(), nn.Linear(33, 4))
for layer in (model[0], model[4]):
    fully_shard(layer, mesh=mesh)
sharded: Any = fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.Generator()
torch.manual_seed(1000 + rank)


def content(tensor: torch.Tensor) -> bytes:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().numpy().tobytes()


arguments: dict[str, Any] = {"unique_shards": os.environ["UNIQUE"] == "accepted"} if "UNIQUE" in os.environ else {}
with rekindle_training.session(model, optimizer, checkpoint_every=int(os.environ.get("EVERY", "0")), **arguments) as training:
    if "EVALUATES" in os.environ:

        @torch.no_grad()
        def evaluate(_: int) -> None:
            model(torch.ones(2, 16))

        training.every(2, evaluate)
    epochs = training.epochs(STEPS // 2, 2) if "EPOCHS" in os.environ else [training.steps(STEPS)]
    for step in itertools.chain.from_iterable(epochs):
        with step, at_least(*PACE) if step > FAST else nullcontext():
            if step % 4 == 0:
                with torch.no_grad():
                    model(torch.ones(2, 16))
            fault("beginning", step)
            if step == writes_from and is_held:
                may_write.touch()
            sharded.set_requires_gradient_sync("GATHERS" not in os.environ or step % 2 == 0)
            batch = torch.randn(8, 16, generator=data.manual_seed(100 * rank + step))
            model(batch).pow(2).mean().backward()
            fault("behind", step)
            if "GATHERS" in os.environ and step % 2:
                continue
            optimizer.step()
            fault("updated", step)
            if "ADDS" not in os.environ:
                optimizer.zero_grad()
    tensors = [*model.parameters(), *(tensor for state in optimizer.state.values() for tensor in state.values())]
    digest = hashlib.sha256(b"".join(content(tensor) for tensor in tensors)).hexdigest()[:16]
    os.write(1, f"ended {rank} generation {training.generation}\nfinal {rank} {digest} {torch.rand(1).item()!r}\n".encode())
