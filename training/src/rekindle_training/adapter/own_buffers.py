"""Buffers that differ from rank to rank, such as running statistics without SyncBatchNorm: each rank carries its own.

The session begins with all small buffers. A buffer that changes after the update of a step is left to the replicas, since what a
rank keeps for its successor is written before the update. The first comparison of ranks leaves those that differ. One that did
not move until then, such as statistics that are frozen in the first steps, is the rank's own from the pass on that moves it.
"""

import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from rekindle_training.adapter.sample import Sample

LARGEST = 1024 * 1024
"""Maximum bytes of all own buffers of a rank, which are written twice in each step."""
ALIGNMENT = 16

_NOTHING = torch.empty(0, device="cpu")
"""Placeholder for a buffer that a forward pass has left out."""

Name = tuple[str, str]
"""Name that the session has for a module, and the name of a buffer in it."""


@dataclass
class OwnBuffers:
    """Names and content of a rank's own buffers. The names are state that ranks have in common, the content is not."""

    roots: Mapping[str, torch.nn.Module]
    names: tuple[Name, ...] = ()
    late: frozenset[Name] = frozenset()
    """Names of the buffers that change after the update: a replacement takes them from a replica."""
    settled: bool = False
    """True if ranks have been compared."""
    _woken: frozenset[Name] = frozenset()
    """Names of the buffers that have become the rank's own in this step."""
    _moved: set[Name] = field(default_factory=set)
    """Names of the buffers that passes move."""
    _still: dict[Name, tuple[torch.nn.Module, str]] | None = None
    """Place of each small buffer that was not seen to move; None: not looked up yet."""
    _sample: Sample = field(default_factory=Sample)
    _slots: list[tuple[torch.nn.Module, str]] = field(default_factory=list)
    """Module and name of each buffer. Empty: not looked up yet."""
    _found: list[torch.Tensor] = field(default_factory=list)
    _views: list[torch.Tensor] = field(default_factory=list)
    """Copies of the buffers in `_found`, inside `_memory`."""
    _memory: list[torch.Tensor] = field(default_factory=list)
    _header: bytes = b""

    def __post_init__(self) -> None:
        self.names = tuple(self._small())

    def state_dict(self) -> dict[str, Any]:
        moved = self._moved - set(self.names) - self.late
        return {"names": sorted(self.names), "late": sorted(self.late), "settled": self.settled, "moved": sorted(moved)}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.late, self.settled = frozenset(state["late"]), state["settled"]
        self._moved = set(state.get("moved", ()))  # a checkpoint of an earlier release has none
        self.keep(state["names"])

    def leave_late(self) -> None:
        """Leaves buffers to replicas that changed after `take`, before the update of the step. Called at the end of a step.

        After ranks are compared only new buffers are checked, because a check costs as much as a step of a small model.
        """
        looked_at = self._woken if self.settled else frozenset(self.names)
        self._woken = frozenset()
        if looked_at and (changed := self.changed() & looked_at):
            self.late |= changed
            self.keep(set(self.names) - changed)

    def remember(self) -> None:
        """Remembers samples of the small buffers, for `notice`. Called when a step begins."""
        if self._still is None:
            still = [name for name in self._small() if name not in self.late | self._moved]
            if self.settled:
                still = [name for name in still if name not in self.names]
            self._still = {name: _slot(self.roots[name[0]], name[1]) for name in still}
        if self._still:
            self._sample.remember(_held(self._still.values()))

    def notice(self) -> None:
        """Makes small buffers that moved for the first time in this step this rank's own. Called before its update.

        It is not known before ranks are compared whether other ranks have the same content.
        """
        if not self._still or not (moved := self._sample.moved(_held(self._still.values()))):
            return
        names = list(self._still)
        modules = {self._still[names[number]][0] for number in moved}
        woken = {name for name, (module, _) in self._still.items() if module in modules}
        self._moved |= woken
        self._still = None
        if self.settled:
            self._woken |= woken
            self.keep([*self.names, *woken])

    def keep(self, names: Collection[Name]) -> None:
        self.names = tuple(sorted(names))
        self.look_again()

    def look_again(self) -> None:
        """Drops the known places of buffers. Called when a module was replaced or has grown."""
        self._slots, self._found, self._still = [], [], None

    @property
    def size(self) -> int:
        """Size of all own buffers in bytes."""
        return sum(tensor.nbytes for name, tensor in self._all() if name in self.names)

    def take(self) -> tuple[bytes, bytes]:
        """Returns the description of the own buffers, and their content."""
        if not self.names:
            return b"", b""
        if not self._refresh():
            self._lay_out()
        return self._header, b"".join(memory.cpu().numpy().tobytes() for memory in self._memory)

    def put(self, header: bytes, content: bytes) -> None:
        """Fills the buffers that are still this rank's own."""
        at = 0
        for name, dtype, shape, device in pickle.loads(header) if header else ():
            size = dtype.itemsize * shape.numel()
            if name in self.names:
                filled = torch.empty(shape, dtype=dtype, device="cpu")
                if size:
                    filled = torch.frombuffer(bytearray(content[at : at + size]), dtype=torch.uint8).view(dtype).reshape(shape)
                self._fill(name, filled, device)
            at += _aligned(size)

    def changed(self) -> set[Name]:
        """Returns the names of the buffers that changed since the latest `take`."""
        now = self._tensors()
        if len(now) != len(self._views):
            return set(self.names)
        pairs = zip(self.names, now, self._views, strict=True)
        return {name for name, tensor, then in pairs if tensor.shape != then.shape or not torch.equal(tensor, then)}

    def _refresh(self) -> bool:
        found = self._tensors()
        if len(found) != len(self._found) or not all(map(is_, found, self._found)):
            return False
        try:
            with torch.no_grad():
                torch._foreach_copy_(self._views, found)
        except RuntimeError:  # one has another shape now
            return False
        return True

    def _lay_out(self) -> None:
        """Allocates one piece of memory for the buffers of each device, in the order of the devices' first buffers."""
        found = dict(zip(self.names, self._tensors(), strict=True))
        by_device: dict[torch.device, list[Name]] = {}
        for name, tensor in found.items():
            by_device.setdefault(tensor.device, []).append(name)
        self.names = tuple(name for names in by_device.values() for name in names)
        self._slots = []
        self._found = [found[name] for name in self.names]
        self._memory, self._views = [], []
        for device, names in by_device.items():
            memory = torch.zeros(sum(_aligned(found[name].nbytes) for name in names), dtype=torch.uint8, device=device)
            self._memory.append(memory)
            self._views += _parts(memory, [found[name] for name in names])
        present = {name: tensor for name, tensor in found.items() if tensor is not _NOTHING}
        described = {name: (held.dtype, held.shape, held.device.type) for name, held in present.items()}
        self._header = pickle.dumps([(name, *described[name]) for name in self.names if name in described])
        with torch.no_grad():
            torch._foreach_copy_(self._views, self._found)

    def _tensors(self) -> list[torch.Tensor]:
        if not self._slots:
            self._slots = [_slot(self.roots[root], name) for root, name in self.names]
        return _held(self._slots)

    def _small(self) -> Iterator[Name]:
        size = 0
        for name, tensor in self._all():
            if size + tensor.nbytes <= LARGEST:
                yield name
                size += tensor.nbytes

    def _all(self) -> Iterator[tuple[Name, torch.Tensor]]:
        for root, module in self.roots.items():
            for name, tensor in module.named_buffers():
                if not isinstance(tensor, DTensor):
                    yield (root, name), tensor

    def _fill(self, name: Name, content: torch.Tensor, device: str) -> None:
        module, slot = _slot(self.roots[name[0]], name[1])
        here = module._buffers.get(slot)
        if here is None or here.shape != content.shape or here.is_inference() or 0 in here.stride():
            module._buffers[slot] = content.to(device if here is None else here.device)
            return
        with torch.no_grad():
            here.copy_(content)


def _slot(root: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    path, _, slot = name.rpartition(".")
    return (root.get_submodule(path) if path else root), slot


def _held(slots: Iterable[tuple[torch.nn.Module, str]]) -> list[torch.Tensor]:
    present = [module._buffers.get(slot) for module, slot in slots]
    return [_NOTHING if tensor is None else tensor for tensor in present]


def _parts(memory: torch.Tensor, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    at = 0
    for tensor in tensors:
        yield memory[at : at + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
        at += _aligned(tensor.nbytes)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
