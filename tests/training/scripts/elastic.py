"""A training script whose number of ranks may change: its data are shares, and its model is wrapped in DDP.

Each rank writes the samples of each step to `samples/RANK.jsonl` when it has drawn them, so that a repeated step is there
twice. Steps after the first ones take `PACE_MS`. `FAULTS` are `RANK:STEP:PLACE` with commas between them, in which the rank's
process kills itself once. `KEEPS` is what keeps the number of ranks fixed: `batches`, `groups`, `norm`, `next`, `left`,
`draws`, `drops`, `static`, `sums` (ranks sum in both passes of a batch), `beside` (a layer is not wrapped), `bare` (none is) or
`gathers`; `next` and `left` do so from step `KEEPS_FROM` on. With `COUNTS` the model counts its passes, in a buffer and in an
attribute, and computes with both counts. With `BRANCH` the parameters that it uses depend on the batch. With `SYNC` gradients
are summed over ranks after each of several batches. `PARTS` is the number of shares of each rank. With `TWICE` each batch has
two passes, and ranks sum in the second one. With `ZERO_LAST` gradients are dropped at the end of a step. With `SECOND` another
model has a loop of its own over the batches of a step.
"""

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import rekindle_training
from rekindle_training.examples.gpt_model import at_least

PARTS = int(os.environ.get("PARTS", "1"))
STEPS, SAMPLES, BATCH, FAST = 24, 90, 4 if PARTS == 1 else 2, 3
PACE = (float(os.environ.get("PACE_MS", "0")), os.environ.get("PACE_FILE", ""))
FAULTS = {tuple(fault.split(":")) for fault in os.environ.get("FAULTS", "").split(",") if fault}
KEEPS, KEEPS_FROM = os.environ.get("KEEPS", ""), int(os.environ.get("KEEPS_FROM", "1"))
MICRO = int(os.environ.get("MICRO", "1"))
rank = int(os.environ["RANK"])
folder = Path(os.environ["REKINDLE_JOB_DIR"])


class Samples(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = torch.rand(16)  # as an augmentation
        return torch.randn(16, generator=torch.Generator().manual_seed(index)) + noise, index


class Counted(nn.Module):
    """Divides by what grows with each pass, as an estimate that is the same on all ranks."""

    passes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.count = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        self.count += 1
        return inputs / (1 + self.passes / 8) / (1 + self.count / 8)


class Branch(nn.Module):
    """Uses one of two layers, as its input has it. A third one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers[int(inputs.sum() > 0)](inputs)
        return outputs


def make_loader(share: int, shares: int) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(Samples(), shares, share, seed=3)
    return DataLoader(Samples(), BATCH, sampler=sampler, drop_last=True, num_workers=int(os.environ.get("WORKERS", "0")))


def fault(place: str, step: int) -> None:
    struck = folder / f"struck-{rank}-{step}-{place}"
    if FAULTS & {(str(rank), str(step), place), (str(rank), "*", place)} and not struck.exists():
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)


drawn_from: list[Any] = []


def drawn(step: int) -> Iterator[torch.Tensor]:
    """Yields the batches of a step, and writes their samples down."""
    batches = iter([next(data)]) if KEEPS == "batches" else training.batches()
    if KEEPS in ("next", "left") and step >= KEEPS_FROM:
        batches, drawn_from[:] = iter([next(batches)]), [batches] if KEEPS == "left" else []
    for images, numbers in batches:
        with (folder / "samples" / f"{rank}.jsonl").open("a") as log:
            log.write(json.dumps({"step": int(step), "samples": numbers.tolist()}) + "\n")
        yield images


(folder / "samples").mkdir(exist_ok=True)
torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
if os.environ.get("COUNTS"):
    layers.append(Counted())
if os.environ.get("BRANCH"):
    layers.append(Branch())
model = nn.Sequential(layers, nn.SyncBatchNorm(4)) if KEEPS == "norm" else layers  # DDP accepts it on accelerators only
if KEEPS == "beside":
    model = nn.Sequential(layers, nn.Linear(4, 4))
second = nn.Linear(16, 4)
optimizer = torch.optim.AdamW([*model.parameters(), *(second.parameters() if "SECOND" in os.environ else ())], lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
data = rekindle_training.batches(make_loader(rank, int(os.environ["WORLD_SIZE"])))
shares: Any = data if KEEPS == "batches" else rekindle_training.shares(make_loader, PARTS)
torch.manual_seed(1000 + rank)
state: list[Any] = [scaler, second] if "SECOND" in os.environ else [scaler]
with rekindle_training.session(model, optimizer, state=state, data=shares, checkpoint_every=10) as training:
    fault("joined", training.step)
    ddp: Any = DistributedDataParallel(
        layers if KEEPS != "bare" else nn.Linear(1, 1),
        gradient_as_bucket_view=bool(os.environ.get("VIEWS")),
        bucket_cap_mb=0.001,
        find_unused_parameters="BRANCH" in os.environ,
        static_graph=KEEPS == "static",
    )
    seconds: list[Any] = [DistributedDataParallel(second)] if "SECOND" in os.environ else []
    if KEEPS == "bare":
        ddp.forward = layers.forward
    if KEEPS == "groups":
        dist.new_group([0, 1])
    for step in training.steps(STEPS):
        with step, at_least(*PACE) if step > FAST else nullcontext():
            if KEEPS != "gathers" and "ZERO_LAST" not in os.environ:
                optimizer.zero_grad(set_to_none=bool(step % 2))
            for micro in range(MICRO):
                with ddp.no_sync() if micro < MICRO - 1 and "SYNC" not in os.environ else nullcontext():
                    for images in drawn(step):
                        if KEEPS == "drops":
                            optimizer.zero_grad()
                        if "TWICE" in os.environ or KEEPS == "sums":
                            with ddp.no_sync() if KEEPS != "sums" else nullcontext():
                                scaler.scale(ddp(images).sum() / MICRO).backward()
                        scaler.scale(ddp(images).square().mean() / MICRO).backward()
                        fault("between", step)
            for other in seconds:
                for images in drawn(step):
                    scaler.scale(other(images).square().mean()).backward()
            fault("backward", step)
            if KEEPS == "draws":
                torch.rand(1)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            fault("updated", step)
            if "ZERO_LAST" in os.environ:
                optimizer.zero_grad(set_to_none=bool(step % 2))
        fault("after", step)

held = [*model.parameters(), *model.buffers(), *second.parameters()]
digest = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in held))
numbers = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
os.write(1, f"final {rank} {digest.hexdigest()[:16]} {numbers.hexdigest()[:16]}\n".encode())
