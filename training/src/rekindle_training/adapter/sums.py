"""Gradients of a rank, summed over the shares of a batch in the order of the shares. Used for DistributedDataParallel, and for
models that are sharded within each replica.

A sum of floating-point numbers depends on its order. Here the order is that of the ranks of the job at full size, whichever of
them are there. So a step has the same gradients, bit for bit, while some ranks carry the shares of others.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from rekindle_training.adapter.places import Places
from rekindle_training.adapter.sharding import local
from rekindle_training.adapter.team import Team

OUTSIDE = "a backward pass is outside of `for batch in training.batches():`: make it before the next batch is drawn"


class Sums:
    """Gradients of one rank, apart for each share, and their sum over all ranks."""

    def __init__(self, team: Callable[[], Team], rank: int, places: Places) -> None:
        self._team, self._rank, self._places = team, rank, places
        self._apart: dict[int, dict[torch.Tensor, torch.Tensor]] = {}
        """Gradients of shares that are not summed yet, by share and parameter."""
        self.has_batch = False
        """True while the script goes through the batches of a step."""
        self._is_open = False
        """True if it has begun to go through them, and the gradients of a sharded model are not summed over replicas yet."""
        self.misuse = ""
        """Reason why this script could not carry the shares of others. Empty: none was seen."""
        self.same_part: Collection[int] = ()
        """Ranks that hold the same part of what is trained as this one, and sum its gradients. Empty: all do, and DDP sums."""

    def begin_batches(self) -> None:
        self.has_batch, self._is_open = True, bool(self.same_part)

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
        self._is_open = False

    def before_update(self) -> None:
        """Notes an update that does not have the gradients of all shares."""
        if self.has_batch or self._is_open:
            self.note("the script updates before its loop over training.batches() has ended: update after that loop")

    def note(self, misuse: str) -> None:
        """Notes what a job of full size can do only.

        Raises:
            Refused: ranks are missing, as the update would be another one; or the model is sharded, as nothing but the loop over
                the batches sums the gradients of its replicas.
        """
        self.misuse = misuse
        if self.same_part or not self._team().is_whole:
            self._places.refuse(misuse)

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Returns the mean of a bucket's gradients over all shares. Called by DDP in the last pass of a step.

        Each rank sums one part of the bucket, so that each gradient is sent twice, as in an all-reduce.
        """
        if not self.has_batch:
            self.note(OUTSIDE)
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

    def over_replicas(self, parameters: Collection[torch.nn.Parameter]) -> None:
        """Puts the mean over all shares into the gradients of a sharded model, which FSDP has reduced within each replica.

        Called by all ranks together, when the last share of this rank has its gradients and those of the others are apart.
        """
        by_kind: defaultdict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = defaultdict(list)
        held = set[torch.nn.Parameter]().union(*self._apart.values())
        for parameter in parameters:
            if parameter.grad is None and parameter in held:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                by_kind[parameter.grad.dtype, parameter.grad.device].append(parameter)
        with self._places.ours(), torch.no_grad():
            for alike in by_kind.values():
                apart = [{one: held.get(one) for one in alike} for _, held in sorted(self._apart.items())]
                mine = [_flat(alike, gradients) for gradients in [*apart, {one: one.grad for one in alike}]]
                _spread_out(self._mean(mine), alike)
        self.drop()

    def _mean(self, mine: list[torch.Tensor]) -> torch.Tensor:
        """Returns the mean over all shares. Each of the ranks that hold the same part sums a piece of it."""
        team = self._team()
        peers = [rank for rank in team.members if not self.same_part or rank in self.same_part]
        length, size = mine[0].numel(), len(peers)
        part = -(-length // size) or 1
        sent = mine[0].new_zeros(size, len(mine), part)
        for number, gradients in enumerate(mine):
            padded = torch.nn.functional.pad(gradients, (0, part * size - length))
            sent[:, number] = padded.view(size, part)
        counts = {rank: len(team.shares(rank)) for rank in peers}
        shares = [share for rank in peers for share in team.shares(rank)]
        received = sent.new_empty(len(shares), part)
        come = [counts.get(rank, 0) * part for rank in team.members]
        go = [len(mine) * part if rank in counts else 0 for rank in team.members]
        dist.all_to_all_single(received.view(-1), sent.view(-1), come, go)
        first, *others = sorted(range(len(shares)), key=shares.__getitem__)
        summed = received[first].clone()
        for place in others:
            summed += received[place]
        summed /= len(shares)
        whole = summed.new_empty(size * part)
        if size == team.size:
            dist.all_gather_into_tensor(whole, summed)
        else:
            pieces = [part if rank in counts else 0 for rank in team.members]
            dist.all_to_all_single(whole, summed.repeat(size), pieces, pieces)
        return whole[:length]


def _flat(parameters: Iterable[torch.nn.Parameter], gradients: Mapping[torch.nn.Parameter, torch.Tensor | None]) -> torch.Tensor:
    """Returns this rank's part of some gradients in one tensor, with zeros for those that are not there."""
    found = ((parameter, gradients[parameter]) for parameter in parameters)
    return torch.cat(
        [
            (torch.zeros_like(local(parameter), dtype=parameter.grad.dtype) if gradient is None else local(gradient)).reshape(-1)
            for parameter, gradient in found
            if parameter.grad is not None
        ]
    )


def _spread_out(flat: torch.Tensor, parameters: Iterable[torch.nn.Parameter]) -> None:
    """Puts this rank's part of some gradients back into their tensors."""
    at = 0
    for parameter in parameters:
        assert parameter.grad is not None
        held = local(parameter.grad)
        held.copy_(flat[at : at + held.numel()].view(held.shape))
        at += held.numel()


def parameters_of(ddps: Iterable[Any]) -> list[torch.nn.Parameter]:
    """Returns the parameters that wrappers reduce."""
    return [parameter for ddp in ddps for parameter in ddp.module.parameters() if parameter.requires_grad]
