"""Batches of a step that one rank computes: that of its own share, and those of further shares that it carries.

A carried share is computed alike on each rank: with its own random numbers, data position and buffers.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rekindle_training.adapter import own
from rekindle_training.adapter.data_parallel import STATIC, UNWRAPPED, DataParallel
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.pass_state import PassState
from rekindle_training.adapter.sums import MIXED
from rekindle_training.adapter.team import Team
from rekindle_training.adapter.trained import Trained
from rekindle_training.adapter.whole_replicas import WholeReplicas
from rekindle_training.data import pickled, process_generators
from rekindle_training.data.shares import Shares


class Playing:
    """Shares of one rank, in one step after the other."""

    def __init__(
        self, trained: Trained, shares: Shares, reduced: DataParallel | WholeReplicas, rank: int, team: Callable[[], Team]
    ) -> None:
        self._trained, self._shares, self._reduced, self._rank, self._team = trained, shares, reduced, rank, team
        assert reduced.sums is not None
        self._sums = reduced.sums
        self._turn = object()
        """Identity of the latest pass over the batches of a step. What an earlier one leaves undone counts no more."""
        self._ended: Own | None = None
        """Random numbers at the end of that pass. None: it was given up, or there is none."""

    def batches(self) -> Iterator[Any]:
        """Yields the next batch of each share of this rank, in the order of shares. Gradients of the batches are summed by DDP
        in the passes of the last one, and those of sharded models after it."""
        self._look()
        turn = self._turn = object()
        self._sums.begin_batches(lambda: self._reduced.parameters)
        try:
            self._look_at_wrappers()
            yield from self._drawn(turn)
            self._reduced.conclude()
        finally:
            if self._turn is turn:
                self._sums.has_batch = False
                is_compared = self._sums.is_in_first_steps or not self._team().is_whole
                self._ended = self._trained.take_random_numbers() if is_compared else None

    def _look(self) -> None:
        """Notes random numbers that were drawn since the last pass: a share that another rank carries would not draw them."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        now = self._trained.take_random_numbers()
        held = [(ended.python, now.python), (ended.torch, now.torch), (ended.accelerator, now.accelerator)]
        held += [(ended.numpy, now.numpy)] if ended.numpy is not None else []  # numpy may be imported at any time
        if any(before != after for before, after in held):
            self._sums.note(
                "random numbers are drawn outside of `for batch in training.batches():`: draw them inside, or in "
                "`with training.apart():`"
            )

    def _look_at_wrappers(self) -> None:
        """Notes wrappers that sum the gradients of some models only, and what is not wrapped."""
        if self._reduced.sums_some:
            self._sums.note(MIXED)
        if self._shares.parts > 1 and self._sums.is_in_first_steps:
            self._refuse_unwrapped()

    def _refuse_unwrapped(self) -> None:
        """Raises Refused where something trains of which the session does not sum the gradients over all shares."""
        if isinstance(self._reduced, DataParallel) and self._reduced.has_static_graph:
            self._sums.note(STATIC)
        if self._trained.updates_others_than(self._reduced.parameters):
            self._sums.note(f"with shares(parts=...), {UNWRAPPED}: wrap it")

    def _drawn(self, turn: object) -> Iterator[Any]:
        shares = self._team().shares(self._rank)
        if shares == (self._rank,):
            with self._reduced.looking(False):
                yield next(self._shares.of(self._rank))
            return
        self._sums.begin(self._reduced.parameters, is_last=self._reduced.is_last)
        begun = PassState(module for root in self._trained.modules for module in root.modules())
        for share in shares:
            is_first = share == shares[0]
            with (
                self._as(share, turn, begun, is_first=is_first),
                begun.sends(self._reduced.living if is_first else ()),
                self._reduced.passes(share, lambda: self._turn is turn, sums=share == shares[-1]),
                self._reduced.looking(share == shares[-1]),
            ):
                yield next(self._shares.of(share))

    def drop(self) -> None:
        """Gives up the pass that is going on: the step is repeated, and begins with the state that the session puts back."""
        self._turn, self._ended = object(), None
        self._sums.has_batch = False

    @contextmanager
    def _as(self, share: int, turn: object, begun: PassState, *, is_first: bool) -> Iterator[None]:
        """Makes this process that of a share inside the block, as far as its random numbers, data and buffers go.

        A generator that a failed step has left may be closed at any later time. Nothing is put back then.

        Args:
            begun: state that passes change and all ranks share, with which each share begins.
        """
        mine = None if share == self._rank else self._taken(self._rank)
        if not is_first:
            begun.put_back()
        if mine is None:
            yield
            return
        self._put(share, self._trained.carried[share])
        try:
            yield
            self._trained.carried[share] = self._taken(share)
        finally:
            if self._turn is turn:
                self._put(self._rank, mine)

    def _taken(self, share: int) -> Own:
        return own.take(self._shares.of(share), self._trained.accelerator, self._trained.own_buffers.take())

    def _put(self, share: int, then: Own) -> None:
        data = self._shares.of(share)
        moved = then.data is not None and pickled.dumps(data.state_dict()) != then.data
        own.put(then, data if moved else None, self._trained.accelerator)
        self._trained.own_buffers.put(then.described, then.buffers)


def shared_out(trained: Trained, shares: Shares | None, others: Collection[int], given: Mapping[int, Own]) -> dict[int, Own]:
    """Gives this rank the shares that it is to carry in a generation, and returns the state of those that it carries no more.

    Args:
        others: shares that it carries besides its own one in that generation.
        given: state of shares that it has not carried yet.
    """
    before = dict(trained.carried)
    trained.carried.clear()
    for share in sorted(others):
        trained.carried[share] = replace(given[share] if share in given else before[share], carried=())
    if shares is not None:
        shares.close(trained.carried.keys())
    return {share: then for share, then in before.items() if share not in trained.carried}


def first_shares(trained: Trained, shares: Shares) -> None:
    """Gives this rank its further shares, before the first step of a job that begins without a checkpoint.

    Their random numbers follow from those of the rank, so that a job that begins again has the same.
    """
    shares.close(())
    here, buffers = trained.take_random_numbers(), trained.own_buffers.take()
    for share in shares.further:
        process_generators.derive(share, trained.accelerator)
        trained.carried[share] = own.take(shares.of(share), trained.accelerator, buffers)
        own.put(here, None, trained.accelerator)
