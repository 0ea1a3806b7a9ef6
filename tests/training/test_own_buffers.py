"""Buffers of a rank's own: what a replacement knows of them."""

import torch
from torch import nn

from rekindle_training.adapter.own_buffers import OwnBuffers

STATISTICS = (("model", "running_mean"), ("model", "running_var"))


def test_a_replacement_does_not_take_a_shared_counter_for_its_own() -> None:
    """The counter of a BatchNorm moves alike on all ranks, and the replacement sees it move for the first time."""
    buffers = OwnBuffers({"model": nn.BatchNorm1d(4)})
    _step(buffers)
    buffers.keep(STATISTICS)
    buffers.settled = True
    replacement = OwnBuffers({"model": nn.BatchNorm1d(4)})
    replacement.load_state_dict(buffers.state_dict())
    _step(replacement)
    assert replacement.names == STATISTICS
    assert replacement.state_dict() == buffers.state_dict()


def test_a_replacement_notices_statistics_that_are_thawed_behind_it() -> None:
    """A buffer that stood still on all ranks becomes the replacement's own when it moves."""
    buffers = OwnBuffers({"model": nn.BatchNorm1d(4)})
    buffers.keep(())
    buffers.settled = True
    replacement = OwnBuffers({"model": nn.BatchNorm1d(4)})
    replacement.load_state_dict(buffers.state_dict())
    _step(replacement)
    assert set(STATISTICS) <= set(replacement.names)


def _step(buffers: OwnBuffers) -> None:
    buffers.remember()
    buffers.roots["model"](torch.arange(12.0).reshape(3, 4))
    buffers.notice()
