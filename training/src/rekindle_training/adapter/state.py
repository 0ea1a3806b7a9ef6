"""Training state as tensors in a fixed order plus a skeleton, so that a replica can hand it over without pickling a tensor.

Called by the session in a migration: `send` on the replica, `receive` on the replacement. Both hash what they hold
afterwards, and the replacement refuses to go on with anything else than its replica's state.
"""

import hashlib
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

State = dict[str, Any]
"""`model`, `optimizer`, `scheduler`: what data parallel ranks have in common."""


BUCKET_BYTES = 32 * 1024 * 1024
"""A bucket is sent once it holds this much; so much, at most, and one tensor is held twice."""


class Stateful(Protocol):
    """Anything with a position of its own: an optimizer, a scheduler, a sampler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class StateMismatch(RuntimeError):
    """A replacement's state differs from its replica's. The migration has failed and the job has to be restarted."""


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor in the skeleton."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * self.dtype.itemsize


def collect(model: torch.nn.Module, optimizer: Stateful, scheduler: Stateful | None) -> State:
    """Parameters and all buffers, persistent or not, with everything that the next step depends on."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state: State = {"model": {name: tensor.detach() for name, tensor in tensors.items()}, "optimizer": optimizer.state_dict()}
    if scheduler is not None:
        state["scheduler"] = scheduler.state_dict()
    return state


def restore(state: State, model: torch.nn.Module, optimizer: Stateful, scheduler: Stateful | None) -> None:
    mine = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, tensor in state["model"].items():
            mine[name].copy_(tensor)
    if "optimizer" in state:
        optimizer.load_state_dict(state["optimizer"])
    if scheduler is not None:
        scheduler.load_state_dict(state["scheduler"])


def send(state: State, target: int) -> None:
    tensors: list[torch.Tensor] = []
    skeleton = _separate(state, tensors)
    _send_bytes(pickle.dumps((skeleton, digest(state))), target)
    for bucket in _buckets([_slot(tensor) for tensor in tensors]):
        dist.send(torch.cat([tensors[index].detach().reshape(-1) for index in bucket]), target)


def receive(source: int) -> tuple[State, bytes]:
    """The replica's state and the digest that it has to have once it is in place."""
    skeleton, expected = pickle.loads(_receive_bytes(source))  # sent by a rank of the same job
    slots: list[Slot] = []
    _gather_slots(skeleton, slots)
    tensors: list[torch.Tensor] = []
    for bucket in _buckets(slots):
        tensors += _receive_bucket([slots[index] for index in bucket], source)
    state: State = _fill(skeleton, iter(tensors))
    return state, expected


def digest(state: State) -> bytes:
    """SHA-256 over every tensor and number with its path; objects without a stable text are left out."""
    sha = hashlib.sha256()
    for path, leaf in sorted(_leaves(state, ""), key=lambda item: item[0]):
        sha.update(path.encode())
        if isinstance(leaf, torch.Tensor):
            sha.update(tensor_bytes(leaf))
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            sha.update(repr(leaf).encode())
    return sha.digest()


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    flat: torch.Tensor = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().tobytes()


def _slot(tensor: torch.Tensor) -> Slot:
    return Slot(tuple(tensor.shape), tensor.dtype, tensor.device.type)


def _buckets(slots: list[Slot]) -> Iterator[list[int]]:
    """Neighbours of one kind travel together, up to a size: a message costs milliseconds, whatever is in it."""
    bucket: list[int] = []
    size = 0
    for index, slot in enumerate(slots):
        if bucket and (size >= BUCKET_BYTES or (slot.dtype, slot.device) != (slots[bucket[0]].dtype, slots[bucket[0]].device)):
            yield bucket
            bucket, size = [], 0
        bucket.append(index)
        size += slot.bytes
    if bucket:
        yield bucket


def _receive_bucket(slots: list[Slot], source: int) -> list[torch.Tensor]:
    flat = torch.empty(sum(slot.count for slot in slots), dtype=slots[0].dtype, device=slots[0].device)
    dist.recv(flat, source)
    parts = flat.split([slot.count for slot in slots])
    return [part.view(slot.shape).clone() for part, slot in zip(parts, slots, strict=True)]


def _separate(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The same structure with a slot in each tensor's place."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _slot(value)
    if isinstance(value, dict):
        return {key: _separate(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_separate(item, tensors) for item in value)
    return value


def _gather_slots(value: Any, slots: list[Slot]) -> None:
    for _, leaf in _leaves(value, ""):
        if isinstance(leaf, Slot):
            slots.append(leaf)


def _fill(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, Slot):
        return next(tensors)
    if isinstance(value, dict):
        return {key: _fill(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_fill(item, tensors) for item in value)
    return value


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}/{index}")
    else:
        yield path, value


def _send_bytes(content: bytes, target: int) -> None:
    dist.send(torch.tensor([len(content)]), target)
    dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), target)


def _receive_bytes(source: int) -> bytes:
    length = torch.empty(1, dtype=torch.int64)
    dist.recv(length, source)
    content = torch.empty(int(length.item()), dtype=torch.uint8)
    dist.recv(content, source)
    return tensor_bytes(content)
