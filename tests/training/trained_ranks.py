"""Ranks that train something small, with all that the next step may depend on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rekindle_training.adapter.checkpoint import Checkpoints
from rekindle_training.adapter.launcher_memory import LauncherMemory
from rekindle_training.adapter.trained import Trained


class Counted(torch.nn.Module):
    """A module with state that is no tensor, as one that scales to eight bits has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.count = 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return given * self.weight

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, state: int) -> None:
        self.count = state


class Growing(torch.nn.Module):
    """Registers a buffer in its first pass, and lets it grow."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, given.detach().sum().reshape(1)])
        if not hasattr(self, "first"):
            self.register_buffer("first", given.detach().clone())
        return given * self.weight


class Masters(torch.optim.Optimizer):
    """Steps in 32 bits for parameters of 16."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                master = self.state[parameter].setdefault("master", parameter.detach().float())
                master -= group["lr"] * parameter.grad.float()
                parameter.data.copy_(master)


def a_model(kind: type[torch.nn.Module] = Counted) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), kind())


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def masters(model: torch.nn.Module) -> torch.optim.Optimizer:
    return Masters(model.to(torch.bfloat16).parameters())


def a_rank(
    kind: type[torch.nn.Module] = Counted, optimizer_of: Callable[[torch.nn.Module], torch.optim.Optimizer] = adam
) -> Trained:
    """The model of a rank that begins, with an optimizer, a scheduler, a scaler and an average."""
    model = a_model(kind)
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2)
    shared: dict[str, Any] = {"scheduler": scheduler, "scaler": scaler}
    if kind is not Growing:  # torch cannot average what grows
        shared["average"] = torch.optim.swa_utils.AveragedModel(model)
    return Trained(model, optimizer, shared=shared)


def torch_optimizer(rank: Trained) -> torch.optim.Optimizer:
    assert isinstance(rank.optimizer, torch.optim.Optimizer)
    return rank.optimizer


def step(rank: Trained, number: int) -> None:
    shared: dict[str, Any] = dict(rank.shared)
    given = torch.full((4, 3), float(number)) + torch.arange(12).view(4, 3)
    torch_optimizer(rank).zero_grad()
    loss = rank.model(given.to(next(rank.model.parameters()).dtype)).pow(2).mean()
    shared["scaler"].scale(loss).backward()
    shared["scaler"].step(rank.optimizer)
    shared["scaler"].update()
    if "average" in shared:
        shared["average"].update_parameters(rank.model)
    shared["scheduler"].step()


def written_and_read(theirs: Trained, mine: Trained, folder: Path) -> None:
    Checkpoints(folder, 0, 1, theirs, None, LauncherMemory(None)).write(3)
    Checkpoints(folder, 0, 1, mine, None, LauncherMemory(None)).read(3)
