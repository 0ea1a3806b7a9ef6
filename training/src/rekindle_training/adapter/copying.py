"""Sends a state from the rank that has it to one that needs it. No tensor is pickled, and matching tensors are received in place.

Called by the session in a migration: `send` on the replica, `receive` on the replacement, over the default process group. The
skeleton is sent first, which describes the structure. The tensors of each device follow, packed into messages of a certain size,
whatever their types. The digest comes last; both ranks compute it during the copy.
"""

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from rekindle_training.adapter.digest import Hashes, content_hash, digest, moment_of
from rekindle_training.adapter.sharding import local
from rekindle_training.adapter.skeleton import Slot, destinations, put_together, slot_of, strides, taken_apart

BUCKET_BYTES = 32 * 1024 * 1024
"""Minimum bytes of a message of packed tensors, if there are as many."""
ALONE = 1024 * 1024
"""Minimum bytes of a tensor that is sent in a separate message, because packing it would cost more."""
ALIGNMENT = 16
"""Alignment in bytes of each tensor in a message."""


def send(state: Any, target: int) -> None:
    skeleton, tensors = taken_apart(state)
    slots = [slot_of(tensor) for tensor in tensors]
    if any(slot.device != "cpu" for slot in slots):  # the other thread has its own stream
        torch.accelerator.synchronize()
    with ThreadPoolExecutor(1, "digest") as beside:
        expected = beside.submit(digest, state)
        send_bytes(pickle.dumps((skeleton, slots)), target)
        for bucket in buckets(slots):
            dist.send(_packed([tensors[index] for index in bucket]), target)
        send_bytes(expected.result(), target)


def receive(source: int, mine: Any) -> tuple[Any, bytes, Hashes]:
    """Receives a state. Returns it, its digest, and the hashes for this rank's digest that were computed during the copy.

    Args:
        mine: this rank's state; tensors of it that have the same place, shape, type and device are filled in place.
    """
    skeleton, slots = pickle.loads(receive_bytes(source))  # sent by a rank of the same job
    tensors = destinations(skeleton, slots, mine)
    hashed: list[Future[dict[object, bytes]]] = []
    with ThreadPoolExecutor(1, "digest") as beside:
        for bucket in buckets(slots):
            received = [tensors[index] for index in bucket]
            _receive_bucket(received, source)
            if received[0].device.type == "cpu":
                hashed.append(beside.submit(_hash, received))
        expected = receive_bytes(source)
    hashes = {moment: content for future in hashed for moment, content in future.result().items()}
    return put_together(skeleton, tensors), expected, hashes


def _hash(tensors: Sequence[torch.Tensor]) -> dict[object, bytes]:
    return {moment_of(tensor): content_hash(tensor) for tensor in tensors}


def buckets(slots: Sequence[Slot]) -> Iterator[list[int]]:
    """Yields the indices of the tensors of each message: those of one device, in their order, up to a certain size."""
    for device in dict.fromkeys(slot.device for slot in slots):
        bucket: list[int] = []
        size = 0
        for index, slot in enumerate(slots):
            if slot.device != device or not slot.bytes:
                continue
            if slot.bytes >= ALONE:
                yield [index]
                continue
            bucket.append(index)
            size += slot.bytes
            if size >= BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


def _packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) == 1:
        return in_memory(tensors[0]).view(torch.uint8)
    message = _message(tensors)
    for tensor, part in zip(tensors, _parts(message, tensors), strict=True):
        part.copy_(in_memory(tensor))
    return message


def _receive_bucket(destinations: Sequence[torch.Tensor], source: int) -> None:
    if len(destinations) == 1:
        dist.recv(in_memory(destinations[0]).view(torch.uint8), source)
        return
    message = _message(destinations)
    dist.recv(message, source)
    for tensor, part in zip(destinations, _parts(message, destinations), strict=True):
        in_memory(tensor).copy_(part)


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements in the order of memory. If a tensor is not plain memory, a copy is used."""
    plain = local(tensor).detach().resolve_conj().resolve_neg()
    whole = plain if plain.stride() == strides(plain) else plain.clone()
    return whole.as_strided((whole.numel(),), (1,))


def _message(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    size = sum(_aligned(local(tensor).nbytes) for tensor in tensors)
    return torch.empty(size, dtype=torch.uint8, device=tensors[0].device)


def _parts(message: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    begin = 0
    for tensor in tensors:
        held = local(tensor).nbytes
        yield message[begin : begin + held].view(tensor.dtype)
        begin += _aligned(held)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def send_bytes(content: bytes, target: int) -> None:
    dist.send(torch.tensor([len(content)], device="cpu"), target)
    dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), target)


def receive_bytes(source: int) -> bytes:
    length = torch.empty(1, dtype=torch.int64, device="cpu")
    dist.recv(length, source)
    content = torch.empty(int(length.item()), dtype=torch.uint8, device="cpu")
    dist.recv(content, source)
    return content.numpy().tobytes()
