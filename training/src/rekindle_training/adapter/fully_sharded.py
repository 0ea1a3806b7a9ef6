"""Modules to which `fully_shard` was applied (FSDP2), in one generation after the other.

Between two steps, and after a failed one, their parameters are the shards. Their groups are found by the names of a mesh.
They are looked up again when new groups have these names.
"""

import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import chain
from typing import Any

import torch

Flags = dict[str, bool]
FLAGS = ("reduce_grads", "all_reduce_grads", "reshard_after_backward")


class FullySharded:
    """Modules of the models that train. A `Stateful`, of which all ranks have the same state."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        self._models = list(models)

    def state_dict(self) -> dict[str, Any]:
        return {"flags": self.flags()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.put_flags(state["flags"])

    def flags(self) -> list[Flags]:
        """Flags of each group of parameters, by which it decides about the collectives of the next pass."""
        return [{name: getattr(group, name) for name in FLAGS} for group in self._all_groups]

    def put_flags(self, flags: list[Flags]) -> None:
        for group, then in zip(self._all_groups, flags, strict=False):
            vars(group).update(then)

    @property
    def keeps_gradients(self) -> bool:
        """Returns whether gradients are held that were not reduced over the ranks yet."""
        apart = (group for group in self._all_groups if not (group.reduce_grads and group.all_reduce_grads))
        return any(group._partial_reduce_output is not None or any(map(_holds_gradient, group.fsdp_params)) for group in apart)

    def reshard(self) -> None:
        """Shards all modules again, because an evaluation leaves the outermost module's parameters gathered."""
        for module in self._modules:
            module.reshard()

    def give_up_step(self) -> None:
        """Removes the remains of a forward or backward pass that was stopped."""
        for module in self._modules:
            for group in _groups(module):
                group._all_gather_result = None  # torch would wait for it
                group._partial_reduce_output = None
        for module in self._modules:
            if module._get_fsdp_state()._is_root:
                module.reset_iter_state()

    def regroup(self) -> None:
        for module in self._modules:
            for group in _groups(module):
                for info in (group.mesh_info, group.post_forward_mesh_info):
                    if info is not None:
                        info.__post_init__()

    # ---- replicas

    @property
    def mesh_infos(self) -> list[Any]:
        """Device mesh of each group of parameters, with the meaning of its dimensions. Empty: no module is sharded."""
        return [group.mesh_info for group in self._all_groups]

    @property
    def has_replicas(self) -> bool:
        """Returns whether each group of parameters has a dimension of replicas beside that of shards."""
        return all(hasattr(info, "replicate_process_group") for info in self.mesh_infos)

    @property
    def reshards_otherwise(self) -> bool:
        """Returns whether a group of parameters is sharded over other ranks between its forward and its backward pass."""
        return any(group.post_forward_mesh_info not in (None, group.mesh_info) for group in self._all_groups)

    @property
    def can_be_noticed(self) -> bool:
        """Returns whether FSDP calls a function in each pass that reduces gradients, and the script has set none. Torch before
        2.7 calls none."""
        return all(getattr(group, "_all_reduce_hook", self) is None for group in self._all_groups)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Shards that this rank holds of all parameters that train."""
        shards = (one.sharded_param for group in self._all_groups for one in group.fsdp_params)
        return [shard for shard in shards if shard.requires_grad]

    def reduce_within_replicas(self, passed: Callable[[torch.Tensor], None]) -> None:
        """Lets each backward pass reduce gradients over the shards of its replica only, as where there are no replicas.

        Args:
            passed: called in each backward pass that reduces gradients.
        """
        for group in self._all_groups:
            group._all_reduce_hook = passed
            if hasattr(group.mesh_info, "replicate_process_group"):  # groups may have it in common
                group.mesh_info.__class__ = type(group.mesh_info).__bases__[0]  # what shards only: FSDPMeshInfo
                del group.mesh_info.replicate_process_group  # it would keep the connections of its generation

    @cached_property
    def _all_groups(self) -> list[Any]:
        return [group for module in self._modules for group in _groups(module)]

    @cached_property
    def _modules(self) -> list[Any]:
        """Modules with shards. They are known when training begins, because the session has been given the shards."""
        if (fsdp := sys.modules.get("torch.distributed.fsdp")) is None:
            return []
        modules = chain.from_iterable(model.modules() for model in self._models)
        return [module for module in modules if isinstance(module, fsdp.FSDPModule)]


def _groups(module: Any) -> Any:
    return module._get_fsdp_state()._fsdp_param_groups


def _holds_gradient(parameter: Any) -> bool:
    unsharded = getattr(parameter, "_unsharded_param", None)
    return parameter.unsharded_accumulated_grad is not None or (unsharded is not None and unsharded.grad is not None)
