"""Batches of a graph of torchdata.nodes. Its threads draw indices ahead, so a sampler draws all its random numbers when an epoch
begins."""

import pickle
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DistributedSampler, SequentialSampler

from rekindle_training.data.random_numbers import held_by, kept_apart, mixed, seed_all
from rekindle_training.data.stateful import Keeping
from rekindle_training.data.workers import tell_epoch


class Graph(Keeping):
    """Graph with its own state, and with samplers that give the same order again."""

    def __init__(self, loader: Any, nodes: Any) -> None:
        super().__init__(loader)
        loader.restart_on_stop_iteration = False  # epochs are counted here
        for node in _wrappers(loader.root, nodes):
            if not isinstance(node.sampler, nodes.Stateful | SequentialSampler | DistributedSampler):
                node.sampler = _Ordered(node.sampler, lambda: self._seed)


class _Ordered:
    """Sampler whose order depends on the seed and the epoch."""

    def __init__(self, sampler: Any, seed: Callable[[], int]) -> None:
        self._sampler, self._seed, self._held = sampler, seed, held_by(sampler)
        self._given = zlib.crc32(pickle.dumps([generator.get() for generator in self._held]))
        """Digest of the states that the script gave to the sampler's own generators."""
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        tell_epoch(epoch, self._sampler)

    def __iter__(self) -> Iterator[Any]:
        with kept_apart(self._held):
            seed_all(mixed(self._seed(), "order", self._given, self._epoch), self._held)
            return iter(list(self._sampler))


def _wrappers(node: Any, nodes: Any) -> Iterator[Any]:
    """Yields the nodes of a graph that wrap a sampler."""
    if isinstance(node, nodes.SamplerWrapper):
        yield node
    for part in vars(node).values():
        for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else [part]:
            if isinstance(one, nodes.BaseNode):
                yield from _wrappers(one, nodes)
