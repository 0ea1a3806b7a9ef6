"""Tensors of which each rank holds a shard (`DTensor`, as in FSDP2): the part of this rank, and the ranks with the same part."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.amp.grad_scaler import OptState
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, empty
from torch.distributed.tensor.placement_types import Placement

from rekindle_training.adapter.leaves import leaves

Ranks = frozenset[int]


@dataclass(frozen=True)
class Spread:
    """Distribution of a tensor over the ranks of a mesh, without the mesh itself, which exists in one process only."""

    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...] | None
    """Names of the mesh's dimensions. None: they have no names."""
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    """Shape of the whole tensor."""

    @classmethod
    def of(cls, tensor: DTensor) -> "Spread":
        return cls(*_key(tensor.device_mesh), tuple(tensor.placements), tuple(tensor.shape))

    @property
    def mesh(self) -> tuple[Any, ...]:
        """Key of the mesh, the same in each process."""
        return self.ranks, self.sizes, self.names

    def tensor(self, dtype: torch.dtype, mesh: DeviceMesh) -> DTensor:
        """Creates this process's tensor. Its elements are not initialized."""
        return empty(self.shape, dtype=dtype, device_mesh=mesh, placements=self.placements)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of a tensor that is in this process, in the same memory."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        held: torch.Tensor = tensor.to_local()
    return held


def version(tensor: torch.Tensor) -> int:
    """Returns how often a tensor was changed, together with the part of it that is in this process.

    FSDP writes the part, and an operation on a DTensor counts with the whole only. Writes by `.data`, those of fused kernels, and
    operations on lists of DTensors (`torch._foreach_mul_`) are not counted.
    """
    return tensor._version + tensor._local_tensor._version if isinstance(tensor, DTensor) else tensor._version


def has_scaled_shards(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether an optimizer has gradients that are sharded, and the script has not unscaled them in this step."""
    if not scaler.is_enabled() or scaler._per_optimizer_states[id(optimizer)]["stage"] is not OptState.READY:
        return False
    return any(isinstance(one.grad, DTensor) for group in optimizer.param_groups for one in group["params"])


def spread_as(held: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Returns the tensor that is spread over ranks as `whole` is, and of which this process holds `held`."""
    if not isinstance(whole, DTensor):
        return held
    return DTensor.from_local(
        held, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def can_be_sent(tensor: DTensor) -> bool:
    """Returns whether each rank holds elements of the tensor, and not addends."""
    return all(isinstance(placement, Shard | Replicate) for placement in tensor.placements)


def meshes(state: Any) -> dict[tuple[Any, ...], DeviceMesh]:
    return {_key(tensor.device_mesh): tensor.device_mesh for tensor in _spread(state)}


def replicas(state: Any, world_size: int) -> Ranks:
    """Returns the ranks that hold the same part of a state as this one, including itself."""
    held = frozenset(range(world_size))
    for tensor in _spread(state):
        held &= holders(tensor)
    return held


def refuse_unique(model: Mapping[str, torch.Tensor], world_size: int) -> None:
    """Raises ValueError where no other rank holds what this one holds of a tensor of the model, which the message names."""
    if world_size > 1 and len(replicas(model, world_size)) == 1:
        spread = {name: tensor for name, tensor in model.items() if isinstance(tensor, DTensor)}
        name, tensor = min(spread.items(), key=lambda item: len(holders(item[1])))
        raise ValueError(
            f"session(model): {name} is sharded over ranks {sorted(tensor.device_mesh.mesh.flatten().tolist())}, and no other "
            "rank has the same shard, so a rank that is lost takes it along; shard over a mesh with a dimension of replicas "
            "(HSDP), or say session(unique_shards=True): all ranks begin again at the last checkpoint then"
        )


def declared(replicas: Collection[int], rank: int, world_size: int, *, unique: bool) -> Ranks:
    """Returns the ranks that hold the same state as `rank`, as the script declares them.

    Raises:
        ValueError: `rank` is missing, or a rank is not of this job, or `rank` is alone although `unique` is false.
    """
    named = frozenset(replicas)
    if rank not in named or not named <= frozenset(range(world_size)):
        raise ValueError(
            f"session(replicas): rank {rank} names {sorted(named)}; accepted are 0 to {world_size - 1}, itself among them"
        )
    if len(named) == 1 and world_size > 1 and not unique:
        raise ValueError(
            f"session(replicas): rank {rank} names itself alone, so a rank that is lost takes its state along; have each part of "
            "the state on two ranks, or say session(unique_shards=True): all ranks begin again at the last checkpoint then"
        )
    return named


def refuse_contradiction(replicas: Sequence[Collection[int]]) -> None:
    """Raises ValueError where two ranks disagree on whether they hold the same.

    Args:
        replicas: of each rank; empty: all.
    """
    named = [frozenset(held) or frozenset(range(len(replicas))) for held in replicas]
    by_name = defaultdict(set)
    for rank, held in enumerate(named):
        by_name[held].add(rank)
    for held, ranks in by_name.items():
        if others := held - ranks:
            rank, other = min(ranks), min(others)
            raise ValueError(
                f"session(replicas): rank {rank} names {sorted(held)}, and rank {other} names {sorted(named[other])}; ranks that "
                "have the same state name each other"
            )


def _spread(state: Any) -> Iterator[DTensor]:
    return (leaf for _, leaf in leaves(state, "") if isinstance(leaf, DTensor))


def holders(tensor: DTensor) -> Ranks:
    """Returns the ranks that hold the same part of a tensor as this one.

    Along a dimension of the mesh that replicates, these are all ranks. Along one that shards, only ranks at the same place.
    """
    at = tensor.device_mesh.get_coordinate()
    assert at is not None  # of a mesh that this rank is no part of it has no tensor
    where = tuple(slice(None) if place.is_replicate() else at[dim] for dim, place in enumerate(tensor.placements))
    return frozenset(tensor.device_mesh.mesh[where].flatten().tolist())


def _key(mesh: DeviceMesh) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...] | None]:
    return tuple(mesh.mesh.flatten().tolist()), tuple(mesh.mesh.shape), mesh.mesh_dim_names
