"""Gradients of DistributedDataParallel, summed over the shares of a batch in the order of the shares.

A sum of floating-point numbers depends on its order. Here the order is that of the ranks of the job at full size, whichever of
them are there. So a step has the same gradients, bit for bit, while some ranks carry the shares of others.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from rekindle_training.adapter.places import Places
from rekindle_training.adapter.team import Team


class Sums:
    """Gradients of one rank, apart for each share, and their sum over all ranks."""

    def __init__(self, team: Callable[[], Team], rank: int, places: Places) -> None:
        self._team, self._rank, self._places = team, rank, places
        self._apart: dict[int, dict[torch.Tensor, torch.Tensor]] = {}
        """Gradients of shares that are not summed yet, by share and parameter."""
        self.has_batch = False
        """True while the script goes through the batches of a step."""
        self.misuse = ""
        """Reason why this script could not carry the shares of others. Empty: none was seen."""

    def begin(self, shares: Collection[int], parameters: Iterable[torch.nn.Parameter]) -> None:
        """Lets each share of this rank add to the gradients that are there, such as sums of earlier passes of the step."""
        if self._apart:
            return  # each share has added to them already
        there = [parameter for parameter in parameters if parameter.grad is not None]
        for share in sorted(shares)[1:]:  # the first one finds them where they are
            self._apart[share] = {parameter: parameter.grad.clone() for parameter in there if parameter.grad is not None}

    @contextmanager
    def share(self, number: int, parameters: Collection[torch.nn.Parameter]) -> Iterator[None]:
        """Keeps the gradients of a share apart from those of others, for passes inside the block that sum nothing."""
        self.take(number, parameters)
        yield
        self._apart[number] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                self._apart[number][parameter] = parameter.grad.clone()  # it may be a view of a bucket
                parameter.grad = None

    def take(self, number: int, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Puts the gradients of a share back to which further passes add."""
        held = self._apart.pop(number, {})
        for parameter in parameters:
            if parameter in held:
                parameter.grad = held[parameter]

    def fill(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Gives zeros to parameters that have gradients of other shares only. DDP refuses a last pass that leaves them out."""
        held = {parameter for of_share in self._apart.values() for parameter in of_share}
        for parameter in parameters:
            if parameter.grad is None and parameter in held:
                parameter.grad = torch.zeros_like(parameter)

    def drop(self) -> None:
        """Drops what is apart: the step is repeated, or done."""
        self._apart.clear()

    def before_update(self) -> None:
        """Notes an update that does not have the gradients of all shares."""
        if self.has_batch:
            self.note("the script updates before its loop over training.batches() has ended: update after that loop")

    def note(self, misuse: str) -> None:
        """Notes what a job of full size can do only. Raises Refused if ranks are missing, as the update would be another one."""
        self.misuse = misuse
        if not self._team().is_whole:
            self._places.refuse(misuse)

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Returns the mean of a bucket's gradients over all shares. Called by DDP in the last pass of a step.

        Each rank sums one part of the bucket, so that each gradient is sent twice, as in an all-reduce.
        """
        if not self.has_batch:
            self.note("a backward pass is outside of `for batch in training.batches():`: make it before the next batch is drawn")
        buffer = bucket.buffer()
        with self._places.ours():
            result = self._mean([*self._of_other_shares(bucket), buffer])
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[buffer.device] if buffer.device.type != "cpu" else []
        )
        done.set_result(result)
        return done

    def _of_other_shares(self, bucket: dist.GradBucket) -> Iterator[torch.Tensor]:
        """Yields the bucket's gradients for each share that is apart, in the order of shares."""
        for _, held in sorted(self._apart.items()):
            flat = torch.zeros_like(bucket.buffer())
            at = 0
            for parameter in bucket.parameters():
                if parameter in held:
                    flat[at : at + parameter.numel()] = held[parameter].reshape(-1)
                at += parameter.numel()
            yield flat

    def _mean(self, mine: list[torch.Tensor]) -> torch.Tensor:
        team = self._team()
        length, size = mine[0].numel(), team.size
        part = -(-length // size)
        sent = mine[0].new_zeros(size, len(mine), part)
        for number, gradients in enumerate(mine):
            padded = torch.nn.functional.pad(gradients, (0, part * size - length))
            sent[:, number] = padded.view(size, part)
        counts = [len(team.shares(rank)) for rank in team.members]
        received = sent.new_empty(len(team.carriers), part)
        dist.all_to_all_single(received.view(-1), sent.view(-1), [count * part for count in counts], [len(mine) * part] * size)
        order = {share: place for place, share in enumerate(share for rank in team.members for share in team.shares(rank))}
        summed = received[order[0]].clone()
        for share in range(1, len(team.carriers)):
            summed += received[order[share]]
        summed /= len(team.carriers)
        whole = summed.new_empty(size * part)
        dist.all_gather_into_tensor(whole, summed)
        return whole[:length]


def parameters_of(ddps: Iterable[Any]) -> list[torch.nn.Parameter]:
    """Returns the parameters that wrappers reduce."""
    return [parameter for ddp in ddps for parameter in ddp.module.parameters() if parameter.requires_grad]
