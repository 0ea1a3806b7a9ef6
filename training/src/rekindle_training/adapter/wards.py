"""State of ranks that are gone, written into a checkpoint by the ranks that keep their snapshots. Used by `checkpoint.py`."""

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
    """State of another rank, from its snapshot."""

    rank: int
    skeleton: Any
    slots: Sequence[Slot]
    tensors: Sequence[torch.Tensor]
    """The parts that the rank held, in the host's memory."""
    own: Own

    def shards(self, prefix: str) -> Iterator["Shard"]:
        """Yields what no other rank has.

        Args:
            prefix: of the names of tensors that only this rank has, if ranks have declared who holds the same. Empty: others have
                all that is not sharded.
        """
        for part, content in named(self.skeleton, range(len(self.slots))).items():
            for name, index in content.items():
                slot, tensor = self.slots[index], self.tensors[index]
                if slot.spread is not None:
                    yield Shard(f"{part}.{name}", self._offsets(slot), torch.Size(slot.spread.shape), tensor)
                elif prefix:
                    yield Shard(f"{part}.{prefix}{name}", torch.Size([0] * tensor.dim()), tensor.shape, tensor)

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
    name: str
    """Name of the whole tensor in the checkpoint."""
    offsets: torch.Size
    whole: torch.Size
    tensor: torch.Tensor

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
        self.plan = replace(plan, items=[*plan.items, *(shard.item for shard in self._shards.values())])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        shard = self._shards.get((index.fqn, index.offset)) if index.offset is not None else None
        return super().lookup_object(index) if shard is None else shard.tensor
