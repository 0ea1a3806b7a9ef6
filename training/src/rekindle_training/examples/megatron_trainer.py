"""A trainer in the style of Megatron, as a library that a job does not change: it has its own loop, the gradients of several
micro batches in one buffer, and an optimizer whose masters and moments are spread over ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rekindle_training.examples.gpt_model import GPT, Text

MICRO_BATCHES = 2


def groups() -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Returns two groups of this rank: the one over which an optimizer's state is spread, and the one whose ranks hold the same
    part.
    """
    half = dist.get_world_size() // 2
    over: list[Any] = [dist.new_group(list(range(first, first + half))) for first in (0, half)]
    same: list[Any] = [dist.new_group([first, first + half]) for first in range(half)]
    return over[dist.get_rank() // half], same[dist.get_rank() % half]


class DistributedOptimizer:
    """AdamW for parameters of 16 bits; masters and moments have 32, and each rank has one part of them."""

    def __init__(self, model: nn.Module, shards: dist.ProcessGroup, replicas: dist.ProcessGroup, *, gathers: bool = True) -> None:
        """Args:
        gathers: `step` ends with the new parameters of all parts; else the caller has to call `gather`.
        """
        self.shards, self.replicas, self.gathers = shards, replicas, gathers
        self.before_update: Callable[[], None] | None = None
        self._parameters = list(model.parameters())
        parts = dist.get_world_size(shards)
        self._part = -(-sum(parameter.numel() for parameter in self._parameters) // parts)
        self._gradients = torch.zeros(parts * self._part)
        self._own_gradients = torch.zeros(self._part)
        self._reduction: Any = None
        at, views = 0, {}
        for parameter in self._parameters:
            views[parameter] = self._gradients[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(lambda done: self._add(done, views[done]))
        whole = torch.cat([parameter.detach().float().flatten() for parameter in self._parameters])
        padded = nn.functional.pad(whole, (0, parts * self._part - at))
        self._master = nn.Parameter(padded.chunk(parts)[dist.get_rank(shards)].clone())
        self._adam = torch.optim.AdamW([self._master], lr=1e-3)

    @staticmethod
    def _add(parameter: torch.Tensor, total: torch.Tensor) -> None:
        assert parameter.grad is not None
        total += parameter.grad
        parameter.grad = None

    def zero_grad(self) -> None:
        self._gradients.zero_()

    def reduce(self) -> None:
        """Begins to sum the gradients."""
        self._reduction = dist.reduce_scatter_tensor(self._own_gradients, self._gradients, group=self.shards, async_op=True)

    def drop(self) -> None:
        """Drops the sum that was begun, without waiting for it."""
        self._reduction = None

    def step(self) -> None:
        self._reduction.wait()
        dist.all_reduce(self._own_gradients, group=self.replicas)
        self._own_gradients /= dist.get_world_size()
        squares = self._own_gradients.pow(2).sum()
        dist.all_reduce(squares, group=self.shards)
        self._own_gradients *= min(1.0, 1.0 / (squares.sqrt().item() + 1e-6))
        if self.before_update is not None:
            self.before_update()
        self._master.grad = self._own_gradients
        self._adam.step()
        if self.gathers:
            self.gather()

    def gather(self) -> None:
        """Fills the model with the parameters of all parts."""
        parts = [torch.empty(self._part, dtype=torch.bfloat16) for _ in range(dist.get_world_size(self.shards))]
        dist.all_gather(parts, self._master.detach().bfloat16(), group=self.shards)
        whole, at = torch.cat(parts), 0
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.copy_(whole[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank's part."""
        return {"master": self._master.detach(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self._master.copy_(state["master"])
        self._adam.load_state_dict(state["adam"])


TrainStep = Callable[[GPT, DistributedOptimizer, Text], float]


def train_step(model: GPT, optimizer: DistributedOptimizer, text: Text) -> float:
    """Returns the loss of the last micro batch."""
    optimizer.zero_grad()
    losses = [_backward(model, text) for _ in range(MICRO_BATCHES)]
    optimizer.reduce()
    optimizer.step()
    return losses[-1]


def _backward(model: GPT, text: Text) -> float:
    loss = model(*text.batch())
    (loss / MICRO_BATCHES).backward()
    return float(loss.detach())


def pretrain(  # noqa: PLR0913  # as trainers have them
    model: GPT, optimizer: DistributedOptimizer, text: Text, iterations: int, iteration: int = 0, step: TrainStep = train_step
) -> None:
    """Trains from the step after `iteration` to the step `iterations`."""
    while iteration < iterations:
        loss = step(model, optimizer, text)
        iteration += 1
        if dist.get_rank() == 0 and iteration % 20 == 0:
            print(f"iteration {iteration} loss {loss:.4f}", flush=True)
