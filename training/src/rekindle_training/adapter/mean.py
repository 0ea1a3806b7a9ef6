"""Mean of gradients over all shares, which ranks compute together: each of them sums a piece.

Pieces are on their way while the rank computes other gradients. All ranks call `gather` and `result` in the same order.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
import torch.distributed as dist

from rekindle_training.adapter.team import Team, Unit


class Mean:
    """Mean that is being computed."""

    def __init__(self, mine: Sequence[torch.Tensor], team: Team, peers: Sequence[int]) -> None:
        """Sends each peer its piece.

        Args:
            mine: gradients of each unit of this rank, all of the same length.
            peers: ranks that sum, in their order. This rank is one of them.
        """
        self._team, self._length = team, mine[0].numel()
        self._counts = {rank: len(team.units(rank)) for rank in peers}
        self._units = [unit for rank in peers for unit in team.units(rank)]
        size = len(peers)
        self._part = -(-self._length // size) or 1
        sent = mine[0].new_zeros(size, len(mine), self._part)
        for number, gradients in enumerate(mine):
            padded = torch.nn.functional.pad(gradients, (0, self._part * size - self._length))
            sent[:, number] = padded.view(size, self._part)
        self._pieces = sent.new_empty(len(self._units), self._part)
        come = [self._counts.get(rank, 0) * self._part for rank in team.members]
        go = [len(mine) * self._part if rank in self._counts else 0 for rank in team.members]
        self._work = dist.all_to_all_single(self._pieces.view(-1), sent.view(-1), come, go, async_op=True)
        self._whole: torch.Tensor | None = None

    def gather(self) -> None:
        """Sums this rank's piece, and sends it to all peers. Does nothing if it was called before."""
        if self._whole is not None:
            return
        _wait(self._work)
        first, *others = _sums_of_groups(self._pieces, self._units, self._team)
        summed = first.clone()
        for one in others:
            summed += one
        summed /= sum(map(len, self._units))
        size = len(self._counts)
        self._pieces, self._whole = summed, summed.new_empty(size * self._part)
        if size == self._team.size:
            self._work = dist.all_gather_into_tensor(self._whole, summed, async_op=True)
        else:
            pieces = [self._part if rank in self._counts else 0 for rank in self._team.members]
            self._work = dist.all_to_all_single(self._whole, summed.repeat(size), pieces, pieces, async_op=True)

    def result(self) -> torch.Tensor:
        """Returns the mean, of the length of the gradients. Sums this rank's piece first if that is still to be done."""
        self.gather()
        _wait(self._work)
        assert self._whole is not None
        return self._whole[: self._length]


def _wait(work: dist.Work | None) -> None:
    assert work is not None, "an asynchronous collective returns its work"
    work.wait()


def _sums_of_groups(received: torch.Tensor, units: Sequence[Unit], team: Team) -> Iterator[torch.Tensor]:
    """Yields the sum of each group, in their order. They lie in what was received."""
    in_order = sorted(range(len(units)), key=lambda number: team.place(units[number][0]))
    for _, group in groupby(in_order, lambda number: team.place(units[number][0])[0]):
        first, *others = group
        for number in others:
            received[first] += received[number]
        yield received[first]
