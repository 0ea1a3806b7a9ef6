"""Training job of `benchmarks.accelerator`: a small network with DistributedDataParallel on one device for each rank.

Its steps contain what depends on a device: its random numbers, statistics of BatchNorm per rank, autocast, sums in an order that
kernels choose, and, with `--streams`, a separate stream.
"""

import argparse
import json
import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rekindle_training
from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.rehearsal import NOISE, norm_and_sum

BATCH, LENGTH, WORDS, WIDTH = 16, 32, 50, 64


class Network(nn.Module):
    """Network with layers whose gradients an accelerator's kernels sum in their own order."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.near = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm1d(width)
        self.far = nn.MultiheadAttention(width, 4, batch_first=True)
        self.out = nn.Sequential(nn.Dropout(0.1), nn.Linear(width, WORDS))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        near = self.norm(self.near(self.words(text).transpose(1, 2))).transpose(1, 2)
        far, _ = self.far(near, near, near, need_weights=False)
        found: torch.Tensor = self.out(near + far)
        return found


def main() -> None:
    options = _options()
    if options.deterministic:
        torch.use_deterministic_algorithms(mode=True)
    if options.tolerance:
        _leave("tolerance", tolerance(options.device, options.width))
        return
    rank = int(os.environ["RANK"])  # a spare waits here
    if options.shared_device:
        os.environ["NCCL_HOSTID"] = f"rank-{rank}"  # NCCL refuses two ranks of one host on one device
    device = device_of(options.device)
    torch.manual_seed(0)
    model = Network(options.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = (train_plainly if options.bare else train)(options, device, model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    _leave(f"rank-{rank}", {"rank": rank, "digest": digest(state).hex(), **found})


def _leave(name: str, found: dict[str, Any]) -> None:
    """Writes a result into the folder of the job, since simultaneous output of ranks may be mixed."""
    (Path(os.environ["REKINDLE_JOB_DIR"]) / f"{name}.json").write_text(json.dumps(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--streams", action="store_true", help="train on a stream of the script's own")
    parser.add_argument("--deterministic", action="store_true", help="kernels that give the same bits each time")
    parser.add_argument("--shared-device", action="store_true", help="several ranks have one device")
    parser.add_argument("--bare", action="store_true", help="without the session, for torchrun")
    parser.add_argument("--tolerance", action="store_true", help="compare the gradients of two passes, and end")
    return parser.parse_args()


def device_of(kind: str) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    index = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device(kind, index)


def train(
    options: argparse.Namespace, device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    ends: dict[int, float] = {}
    used: dict[int, dict[str, int]] = {}
    with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
        wrapped = DistributedDataParallel(model)
        torch.manual_seed(1 + training.rank)
        with _stream(options, device):
            for step in training.steps(options.steps):
                with step:
                    train_step(wrapped, optimizer, device)
                ends[int(step)] = time.time()
                used[int(step)] = memory(device)
    return {"ends": ends, "memory": used}


def train_plainly(
    options: argparse.Namespace, device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(1 + dist.get_rank())
    ends: dict[int, float] = {}
    for step in range(1, options.steps + 1):
        train_step(wrapped, optimizer, device)
        ends[step] = time.time()
    dist.destroy_process_group()
    return {"ends": ends}


def train_step(wrapped: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    loss_of(wrapped, device).backward()
    if device.type == "cuda":
        torch.cuda.current_stream().synchronize()  # as logging a loss would do, so that both ways of training wait alike
    optimizer.step()
    optimizer.zero_grad()


def loss_of(model: nn.Module, device: torch.device) -> torch.Tensor:
    text = torch.randint(0, WORDS, (BATCH, LENGTH), device=device)
    with torch.autocast(device.type, torch.bfloat16):
        said = model(text)
    return nn.functional.cross_entropy(said.float().flatten(0, 1), text.roll(1, 1).flatten())


def memory(device: torch.device) -> dict[str, int]:
    """Returns the bytes that torch has allocated and reserved on the device, and the bytes that all processes use there."""
    if device.type == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "on the device": total - free,
    }


def tolerance(kind: str, width: int) -> dict[str, float]:
    """Returns the distance of the gradients of two passes over the same batch, and over two batches, as the rehearsal measures
    it: the largest share of all parameters."""
    device = torch.device(kind)
    torch.manual_seed(0)
    model = Network(width).to(device)

    def gradients(seed: int) -> dict[str, tuple[float, float]]:
        torch.manual_seed(seed)
        model.zero_grad()
        loss_of(model, device).backward()
        held = {name: parameter.grad for name, parameter in model.named_parameters()}
        return {name: norm_and_sum(gradient) for name, gradient in held.items() if gradient is not None}

    first = gradients(1)
    return {"same": max(apart(first, gradients(1)) for _ in range(10)), "another": apart(first, gradients(2))}


def apart(first: dict[str, tuple[float, float]], second: dict[str, tuple[float, float]]) -> float:
    least = NOISE * max(norm for norm, _ in first.values())
    return max(
        abs(one - other) / max(first[name][0], second[name][0], least)
        for name in first
        for one, other in zip(first[name], second[name], strict=True)
    )


def _stream(options: argparse.Namespace, device: torch.device) -> AbstractContextManager[object]:
    if not options.streams or device.type == "cpu":
        return nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


if __name__ == "__main__":
    main()
