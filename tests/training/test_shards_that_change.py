"""Changes of shards between two updates are noticed, whether the script or FSDP makes them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.distributed.tensor import DTensor

from rekindle_training.adapter.digest import content_hash, digest, moment_of
from rekindle_training.adapter.gradients import Gradients
from rekindle_training.adapter.snapshots import Snapshots, _Agreed
from rekindle_training.adapter.trained import Trained
from rekindle_training.snapshot_memory import SnapshotMemory
from tests.training.standalone import Standalone, last_words
from tests.training.test_adapter import rank_environment
from tests.training.test_boundary import Counter
from tests.training.test_elastic_sharded import in_replicas, sharded

Change = Callable[[DTensor], object]

CHANGES = pytest.mark.parametrize(
    "change", [lambda shard: shard.mul_(2), lambda shard: shard.to_local().mul_(2)], ids=["the whole", "the part"]
)
"""Ways in which a script or FSDP writes a shard. Each counts elsewhere."""


@CHANGES
def test_a_shard_that_changes_before_the_update_gives_its_snapshot_up(change: Change, four_ranks: None, tmp_path: Path) -> None:
    """The copy is made beside the computation. Half of it might be of another moment than the other half."""
    model, _ = sharded(in_replicas())
    trained = Trained(model, torch.optim.SGD(model.parameters(), lr=0.1), Counter())
    snapshots = Snapshots(rank_environment(tmp_path), cast(Any, None), trained, [0])
    memory = SnapshotMemory(os.memfd_create("rekindle-snapshots-of-a-test"))

    def copied(step: int, change: Change) -> object:
        taken = snapshots._begun(memory, step, _Agreed(True, False, -1, False), gathers=False)
        with torch.no_grad():
            change(cast(DTensor, next(model.parameters())))
        return snapshots._completed(memory, taken)

    assert copied(3, lambda shard: shard.norm()) is not None
    assert copied(6, change) is None


@CHANGES
def test_gradients_of_shards_that_a_step_adds_to_are_noticed(change: Change, four_ranks: None) -> None:
    """The step has several updates, so that gradients which stay the same are no sign of it."""
    model, _ = sharded(in_replicas())
    parameters, gradients = list(model.parameters()), Gradients()
    model(torch.ones(1, 4)).sum().backward()
    gradients.remember(parameters)
    gradients.notice(parameters, is_one_of_several=True)
    assert not gradients.are_added
    change(cast(DTensor, parameters[0].grad))
    gradients.notice(parameters, is_one_of_several=True)
    assert gradients.are_added


@CHANGES
def test_the_hash_of_a_shard_that_changed_since_does_not_count(change: Change, four_ranks: None) -> None:
    """A state that was changed while it was loaded has another digest than the one that was sent."""
    model, _ = sharded(in_replicas())
    (shard, *_) = (parameter.detach() for parameter in model.parameters())
    known = {moment_of(shard): content_hash(shard)}
    assert digest([shard], dict.fromkeys(known, b"known")) != digest([shard])
    change(cast(DTensor, shard))
    assert digest([shard], known) == digest([shard])


@pytest.mark.parametrize("sizes", [(0,), (0, 3)])
def test_a_rank_may_hold_no_element_of_a_gradient_that_is_set_to_zero(sizes: tuple[int, ...]) -> None:
    """A bias of one element lies on one rank. Steps add to zeros, and nothing is copied for that."""
    parameters, gradients = [torch.nn.Parameter(torch.ones(size)) for size in sizes], Gradients()
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(2):
        gradients.remember(parameters)
        gradients.notice(parameters, is_one_of_several=False)
        assert not gradients.are_added


SCALED = """
import os
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import rekindle_training

rekindle_training.init_process_group()
model = torch.nn.Linear(4, 2)
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
with rekindle_training.session(model, optimizer, state=[scaler], checkpoint_every=0, unique_shards=True) as training:
    for step in training.steps(4):
        with step:
            scaler.scale(model(torch.ones(2, 4)).square().sum() * 64).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
os.write(1, f"final {scaler.get_scale() < 2.0**127}\\n".encode())
"""


async def test_shards_may_be_unscaled_by_the_step_of_a_scaler(alone: Standalone, tmp_path: Path) -> None:
    """Ranks tell each other whether one of them overflows. That is done before the update, and no pass after it."""
    (script := tmp_path / "scaled.py").write_text(SCALED)
    assert last_words(await alone.run(script=str(script), ranks=2)) == ["final True"] * 2
