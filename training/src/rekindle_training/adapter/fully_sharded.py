"""Modules to which `fully_shard` was applied (FSDP2), in one generation after the other.

Between two steps, and where one failed, their parameters are the shards. Their groups are found by the names of a mesh, so they
are looked up again when others have these names.
"""

import sys
from functools import cached_property
from typing import Any

import torch


class FullySharded:
    """Those of one model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def reshard(self) -> None:
        """An evaluation leaves the outermost module's parameters gathered."""
        for module in self._modules:
            module.reshard()

    def give_up_step(self) -> None:
        """Nothing of a forward or backward pass that was broken off is left."""
        for module in self._modules:
            for group in _groups(module):
                group._all_gather_result = None  # torch would wait for it
        for module in self._modules:
            if module._get_fsdp_state()._is_root:
                module.reset_iter_state()

    def regroup(self) -> None:
        for module in self._modules:
            for group in _groups(module):
                for info in (group.mesh_info, group.post_forward_mesh_info):
                    if info is not None:
                        info.__post_init__()

    @cached_property
    def _modules(self) -> list[Any]:
        """Known when training begins: the session has been given their shards."""
        if (fsdp := sys.modules.get("torch.distributed.fsdp")) is None:
            return []
        return [module for module in self._model.modules() if isinstance(module, fsdp.FSDPModule)]


def _groups(module: Any) -> Any:
    return module._get_fsdp_state()._fsdp_param_groups
