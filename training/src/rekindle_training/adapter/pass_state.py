"""State that passes change and all ranks share, as it was when the shares of a batch began. Used by `playing.py`.

A buffer or an attribute may count passes, or follow an estimate with each of them. A rank that carries shares makes more passes
than others. So each of its shares begins with the same state. A wrapper that sends the buffers of its first rank does so in the
passes of a rank's first share only. What was sent belongs to the state with which further shares begin.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.parallel import DistributedDataParallel

from rekindle_training.adapter.settings import Settings

Buffers = dict[torch.nn.Module, dict[str, torch.Tensor | None]]


class PassState:
    """Buffers and plain attributes of some modules, at one moment."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._modules = list(dict.fromkeys(modules))
        self._settings = Settings()
        self._settings.look(self._modules)
        self._settings.remember()
        self._buffers: Buffers = {module: _copies(module) for module in self._modules}
        self._sent: Buffers = {}
        """Buffers that a wrapper's first rank has sent since then."""

    def put_back(self) -> None:
        """Puts back the state of that moment, in place."""
        self._settings.put_back()
        _put(self._buffers)

    @contextmanager
    def sends(self, ddps: Iterable[DistributedDataParallel]) -> Iterator[None]:
        """Notes the buffers that wrappers send in the first pass inside the block, and puts those that were sent already.

        Args:
            ddps: wrappers, for the first share of a rank, in whose passes they send.
        """
        _put(self._sent)  # over what a share has for itself
        hooks = [ddp.module.register_forward_pre_hook(self._note) for ddp in ddps if ddp.will_sync_module_buffers()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _note(self, module: torch.nn.Module, _inputs: object) -> None:
        if module not in self._sent:
            self._sent |= {part: _copies(part) for part in module.modules()}


def _copies(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if tensor is None else tensor.detach().clone() for name, tensor in module._buffers.items()}


def _put(then: Buffers) -> None:
    for module, buffers in then.items():
        for name in module._buffers.keys() - buffers.keys():
            del module._buffers[name]
        for name, content in buffers.items():
            module._buffers[name] = None if content is None else _filled(module._buffers.get(name), content)


def _filled(here: torch.Tensor | None, content: torch.Tensor) -> torch.Tensor:
    """Fills a buffer in place, because others may hold the tensor, and returns it. One that cannot be written is replaced."""
    if here is None or here.shape != content.shape or here.dtype != content.dtype or here.is_inference() or 0 in here.stride():
        return content.clone()
    with torch.no_grad():
        here.copy_(content)
    return here
