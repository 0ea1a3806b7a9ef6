"""State of ranks from their snapshots, as it is written into a checkpoint: that of the rank itself, and that of ranks that are
gone, of which others keep the snapshots. Used by `checkpoint.py`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from rekindle_training.adapter.own import Own
from rekindle_training.adapter.skeleton import Slot, named


@dataclass(frozen=True)
class Ward:
    """State of a rank, from its snapshot."""

    rank: int
    skeleton: Any
    slots: Sequence[Slot]
    tensors: Sequence[torch.Tensor]
    """The parts that the rank held, in the host's memory."""
    own: Own

    def shards(self, prefix: str, *, whole: bool) -> Iterator["Shard"]:
        """Yields what is written of this rank.

        Args:
            prefix: of the names of tensors that only this rank and its replicas have, if ranks have declared who holds the same.
            whole: True for all tensors. Otherwise another rank has those that are not sharded.
        """
        for part, content in named(self.skeleton, range(len(self.slots))).items():
            for name, index in content.items():
                slot, tensor = self.slots[index], self.tensors[index]
                if slot.spread is not None:
                    yield Shard(part, name, self._offsets(slot), torch.Size(slot.spread.shape), tensor)
                elif whole:
                    yield Shard(part, prefix + name, torch.Size([0] * tensor.dim()), tensor.shape, tensor)

    def _offsets(self, slot: Slot) -> torch.Size:
        spread = slot.spread
        assert spread is not None
        place, coordinate = spread.ranks.index(self.rank), list[int]()
        for size in reversed(spread.sizes):
            place, at = divmod(place, size)
            coordinate.insert(0, at)
        _, offsets = _compute_local_shape_and_global_offset(spread.shape, spread.sizes, coordinate, spread.placements)
        return torch.Size(offsets)


@dataclass(frozen=True)
class Shard:
    part: str
    own_name: str
    """Name of the whole tensor in its part of the state."""
    offsets: torch.Size
    whole: torch.Size
    tensor: torch.Tensor

    @property
    def name(self) -> str:
        """Name of the whole tensor in the checkpoint."""
        return f"{self.part}.{self.own_name}"

    @property
    def index(self) -> MetadataIndex:
        return MetadataIndex(self.name, self.offsets)

    @property
    def item(self) -> WriteItem:
        chunk = ChunkStorageMetadata(offsets=self.offsets, sizes=self.tensor.shape)
        properties = TensorProperties.create_from_tensor(self.tensor)
        return WriteItem(self.index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, self.whole))


class Planner(DefaultSavePlanner):
    """Planner that writes shards of other ranks besides this rank's."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        super().__init__()
        self._shards = {(shard.name, shard.offsets): shard for shard in shards}

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        shards = self._shards.values()
        paths = {shard.name: (shard.part, shard.own_name) for shard in shards}  # by which `load` finds them again
        items = [*plan.items, *(shard.item for shard in shards)]
        self.plan = replace(plan, items=items, planner_data={**plan.planner_data, **paths})
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        shard = self._shards.get((index.fqn, index.offset)) if index.offset is not None else None
        return super().lookup_object(index) if shard is None else shard.tensor
