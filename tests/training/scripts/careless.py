"""A training script that does what `WISH` names: something that a recovery could not repeat, or that ranks do not have in common.
`FAULT` (`RANK:STEP`) kills a rank when the step has its gradients."""

import copy
import hashlib
import os
import signal
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import rekindle_training

STEPS = int(os.environ.get("STEPS", "8"))
WISH = os.environ.get("WISH", "")
ACCEPT = os.environ.get("ACCEPT", "").split()
KIND = os.environ.get("KIND", "kill")
FAULT = os.environ.get("FAULT", "")


def wishes(*names: str) -> bool:
    return WISH in names


def fault(step: int) -> None:
    marker = Path(os.environ["REKINDLE_JOB_DIR"]) / f"struck-{FAULT}"
    if f"{rank}:{step}" == FAULT and not marker.exists():
        marker.touch()
        if KIND == "raise":
            raise ValueError("struck")
        os.kill(os.getpid(), signal.SIGKILL)


class Momentum(nn.Module):
    """A layer with a copy of itself, which each forward pass moves a little."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.slow = nn.Linear(16, 16), nn.Linear(16, 16).requires_grad_(False)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.layer.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        result: torch.Tensor = self.layer(data) + self.slow(data)
        return result


class Codes(nn.Module):
    """Adds a code to what it is given, and moves a row of its codebook a little from step 5 on. `HOW` says how it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.how, self.number = os.environ["HOW"], 0
        codes = torch.ones(32768 if self.how == "large buffer" else 64, 16)
        if self.how == "parameter":
            self.codes: torch.Tensor = nn.Parameter(codes, requires_grad=False)
        else:
            self.register_buffer("codes", codes)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        row = self.number % 8
        if self.number > 4 and self.how == "parameter":
            with torch.no_grad():
                self.codes[row] *= 1.01
        elif self.number > 4:
            self.codes.data[row] *= 1.01
        return data + self.codes[row]


class Published(nn.Module):
    """A momentum encoder as it is published: the keys begin as the queries, and are given other memory in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(16, 16), nn.Linear(16, 16)
        self.keys.load_state_dict(self.queries.state_dict())
        self.keys.requires_grad_(False)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        for query, key in zip(self.queries.parameters(), self.keys.parameters(), strict=True):
            key.data = key.data * 0.9 + query.data * 0.1
        result: torch.Tensor = self.queries(data) + self.keys(data)
        return result


class Bank:
    """A memory of more than a megabyte, of which each step fills a row before its update."""

    def __init__(self) -> None:
        self.rows, self.at = torch.zeros(32768, 16), 0

    def push(self, row: torch.Tensor) -> None:
        self.rows[self.at] = row
        self.at += 1

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows.copy_(state["rows"])
        self.at = state["at"]


class Container(torch.optim.Optimizer):
    """An optimizer that holds another one, as trainers of large models do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(trained, {"lr": 0.01})
        self.inner, self.param_groups = [inner], inner.param_groups

    def step(self, _closure: object = None) -> None:  # type: ignore[override]
        self.inner[0].step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner[0].zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.inner[0].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner[0].load_state_dict(state)
        self.param_groups = self.inner[0].param_groups


class Lazy(nn.Module):
    """A layer whose loudness begins as None, and one that it makes in its first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.loudness: float | None = None

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.loudness = 1.0 if self.loudness is None else self.loudness * 1.05
        self.made = getattr(self, "made", 1.0) * 1.02
        return data * self.loudness * self.made


class Counting(nn.Module):
    """A layer that grows louder with each forward pass, as its counters say."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self._loudness = 0, 1.0

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self._loudness *= 1.01
        self.latest = self.calls
        return data * self._loudness * (1 + self.latest / 10)


rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(rank if wishes("own parameters") else 0)
model: nn.Module = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 4))
if wishes("momentum encoder"):
    model = nn.Sequential(Momentum(), model)
if wishes("counts in its forward pass"):
    model = nn.Sequential(Counting(), model)
if wishes("begins as none"):
    model = nn.Sequential(Lazy(), model)
if wishes("codes"):
    model = nn.Sequential(Codes(), model)
if wishes("published momentum encoder"):
    model = nn.Sequential(Published(), model)
trained = list(model.parameters())  # as published trainers do, also of what needs no gradient
optimizer: torch.optim.Optimizer = torch.optim.AdamW(trained, lr=0.01)
if wishes("lbfgs"):
    optimizer = torch.optim.LBFGS(trained, lr=0.01, max_iter=3)
if wishes("container"):
    optimizer = Container(optimizer)
critic = nn.Linear(4, 1)
critics = torch.optim.SGD(critic.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
scaler = torch.amp.GradScaler("cpu", enabled=False)
state: list[Any] = [scaler, critic, critics]
if not wishes("forgotten scheduler"):
    state.append(scheduler)
bank = Bank()
if wishes("bank"):
    state.append(bank)
shadow = copy.deepcopy(model)
if wishes("average with buffers"):
    state.append(AveragedModel(model, use_buffers=True))
own_numbers = np.random.default_rng(rank)
noise, seeded = torch.Generator(), torch.Generator()
drawn = 0


def batch(number: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * rank + number))


def closure(wrapped: nn.Module, data: torch.Tensor) -> Any:
    optimizer.zero_grad()
    loss = wrapped(data).pow(2).mean()
    loss.backward()
    if wishes("lbfgs"):  # decides by it how far it goes
        loss = loss.detach()
        dist.all_reduce(loss)
    return loss


torch.manual_seed(1000 + rank)
carried = batch(0)
passes: list[int] = []
np.random.seed(rank)
if wishes("barrier before the session"):
    rekindle_training.init_process_group()
    dist.barrier()
arguments: dict[str, Any] = {"accept": ACCEPT} if ACCEPT else {}
with rekindle_training.session(
    model,
    optimizer,
    state=state,
    checkpoint_every=int(os.environ.get("EVERY", "0")),
    repeat_updates="COPIES" in os.environ,
    **arguments,
) as training:
    if wishes("early collective"):
        dist.all_reduce(torch.ones(1))
    own_group = dist.new_group() if wishes("speaks in a thread") else None
    if wishes("lonely collective") and training.generation > 1:
        dist.barrier()
    options: dict[str, Any] = {"broadcast_buffers": False} if wishes("thaws") else {}
    wrapped: Any = model if wishes("own parameters") else DistributedDataParallel(model, **options)
    judge = DistributedDataParallel(critic)
    if wishes("stateful hook"):
        wrapped.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    if wishes("compressing hook"):
        wrapped.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    if wishes("every"):

        def evaluate(step: int) -> None:
            model.eval()
            loss = wrapped(torch.ones(2, 16) * torch.rand(1)).mean().detach()
            fault(-step)
            dist.all_reduce(loss)
            os.write(1, f"evaluated {rank} {step}\n".encode())

        training.every(2, evaluate)
    if wishes("callback that fails"):

        def regroup() -> None:
            if rank == 0:
                raise ValueError("no such group")

        training.on_rebuild(regroup)
    if wishes("every lowers the rate"):
        training.every(2, lambda _: optimizer.param_groups[0].update(lr=1e-4))
    if wishes("every moves the scheduler"):
        training.every(2, lambda _: scheduler.step())
    if wishes("every writes a parameter"):
        training.every(2, lambda _: nn.init.zeros_(trained[-1]))
    if wishes("changes between session and loop"):
        optimizer.param_groups[0]["lr"] = 0.02
    for step in training.steps(STEPS):
        with step if not wishes("no scope") else nullcontext():
            if wishes("evaluates through the wrapper"):
                with torch.no_grad():
                    wrapped(torch.ones(2, 16))
            if wishes("thaws"):
                model.get_submodule("1").train(step > 2)
            if wishes("codes"):
                model[0].number = int(step)  # type: ignore[index]
            if wishes("louder dropout") and step % 3 == 2:
                model[2].p += 0.05  # type: ignore[index]
            if wishes("scales moments"):
                for entry in optimizer.state.values():
                    entry["exp_avg"].mul_(0.5)
            if wishes("fills a list"):
                if passes:
                    raise RuntimeError("not the first pass")
                passes.append(int(step))
            data = batch(step)
            if wishes("draws one number"):
                data = data * float(np.random.randn())
            if wishes("bank"):
                bank.push(torch.full((16,), float(step)))
            critic.requires_grad_(True)
            if wishes("carries a batch"):
                data, carried = carried, batch(step)
            if wishes("numbers of its own"):
                data = torch.from_numpy(own_numbers.normal(size=(8, 16))).float()
            if wishes("a generator in some steps") and step % 3 == 0:
                data = data + torch.randn(16, generator=noise) + torch.randn(16, generator=seeded.manual_seed(int(step)))
            gathers = wishes("gathers") and step % 4
            with wrapped.no_sync() if gathers else nullcontext():
                loss = scaler.scale(wrapped(data).pow(2).mean())
                if not wishes("closure", "lbfgs"):
                    loss.backward()
            if not wishes("two updates"):
                fault(step)
            if gathers:
                continue

            if wishes("closure", "lbfgs"):
                optimizer.step(partial(closure, wrapped, data))
            elif not (wishes("leaves out an update") and rank == 1 and step == 3):
                scaler.step(optimizer)
            scaler.update()
            passes.clear()
            optimizer.zero_grad()
            scheduler.step()
            if wishes("two updates"):
                judge(wrapped(data).detach()).mean().backward()
                fault(step)
                critics.step()
                critics.zero_grad()
                critic.requires_grad_("FREEZES" not in os.environ)
            if wishes("own average"):
                with torch.no_grad():
                    for slow, fast in zip(shadow.parameters(), model.parameters(), strict=True):
                        slow.lerp_(fast, 0.1)
            if wishes("average with buffers"):
                state[-1].update_parameters(model)
            if wishes("speaks in a thread"):
                thread = Thread(target=dist.all_reduce, args=(torch.ones(1),), kwargs={"group": own_group})
                thread.start()
                thread.join()
            if wishes("late collective"):
                dist.all_reduce(loss.detach())
            if wishes("late draw"):
                torch.rand(1)
        if wishes("ends early") and step == STEPS - 1:
            break
        if wishes("outside"):
            dist.all_reduce(loss.detach())
        if wishes("updates outside"):
            optimizer.step()
    moments = [held for entry in optimizer.state.values() for held in entry.values() if isinstance(held, torch.Tensor)]
    tensors = [*model.parameters(), *model.buffers(), *critic.parameters(), *moments]
    digest = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()[:16]
    os.write(1, f"final {rank} {digest} {scheduler.get_last_lr()[0]!r} {torch.rand(1).item()!r}\n".encode())
sys.exit(0)
