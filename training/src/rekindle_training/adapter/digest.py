"""Digest of training state. It verifies that a replacement has the same bits, shapes and types as its replica.

A tensor on the host is hashed by XXH3 in its memory. A tensor on an accelerator is summed up there: 32-bit words times fixed
odd weights of 64 bits, modulo 2**64, one sum for each mebibyte. That needs no copy on the host, and detects every word that
changes or moves. A product carries bits upwards only. If the words were as wide as the sums, two changes of the highest bit,
the sign, would cancel each other out. The results of all tensors are hashed by SHA-256 with all other values. The digest
finds errors, not forgeries: both ranks belong to one job, and their tensors are on devices of one kind.
"""

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
import xxhash

from rekindle_training.adapter.leaves import leaves
from rekindle_training.adapter.sharding import local, version

WORD = 4
CHUNK = 262_144
"""Number of words in one sum: a mebibyte."""
SLAB = 2
"""Number of chunks that are multiplied at once, so that the intermediate result stays in the processor's cache."""


Hashes = Mapping[object, bytes]
"""Hashes of tensors that were hashed before, keyed by the result of `moment_of`."""


def digest(state: Any, known: Hashes = MappingProxyType({})) -> bytes:
    """Returns the digest of all values in nested mappings and sequences, each with its path, type and shape.

    Tensors, numbers, texts, arrays and sets count.
    """
    sha = hashlib.sha256()
    for path, leaf in sorted(leaves(state, ""), key=lambda item: item[0]):
        sha.update(f"{path}\0{type(leaf).__qualname__}\0".encode())
        if isinstance(leaf, torch.Tensor):
            held = local(leaf)
            sha.update(f"{tuple(held.shape)} {held.dtype}".encode())
            sha.update(known.get(moment_of(leaf)) or content_hash(held))
        else:
            sha.update(_bytes_of(leaf))
    return sha.digest()


def leaf_digest(leaf: Any) -> bytes:
    """Returns the digest of one tensor or value, with its type and shape. For a DTensor, only this rank's part counts."""
    if not isinstance(leaf, torch.Tensor):
        return xxhash.xxh3_128_digest(type(leaf).__qualname__.encode() + _bytes_of(leaf))
    held = local(leaf)
    return xxhash.xxh3_128_digest(f"{tuple(held.shape)} {held.dtype}".encode() + content_hash(held))


def moment_of(tensor: torch.Tensor) -> object:
    """Returns a key that is the same for the same memory, read in the same way, until it is written through torch."""
    held = local(tensor)
    if held.is_inference():  # whose changes are not counted
        return object()
    lies = held.data_ptr(), held.shape, held.stride(), held.dtype, held.device, held.is_conj(), held.is_neg()
    return *lies, version(tensor)


def content_hash(tensor: torch.Tensor) -> bytes:
    held = local(tensor)
    return sums(held) if held.device.type != "cpu" else xxhash.xxh3_128_digest(_flat_bytes(held).numpy().data)


def sums(tensor: torch.Tensor) -> bytes:
    """Returns the weighted sums of a tensor's content, and the bytes after its last whole word."""
    content = _flat_bytes(tensor)
    whole = content.numel() // WORD * WORD
    words = content[:whole].view(torch.int32)
    weights = _weights(content.device)
    chunks = words.numel() // CHUNK
    table = words[: chunks * CHUNK].view(chunks, CHUNK)
    found = [_products(table[start : start + SLAB], weights).sum(1) for start in range(0, chunks, SLAB)]
    rest = words[chunks * CHUNK :]
    found.append(_products(rest, weights[: rest.numel()]).sum().reshape(1))
    return torch.cat(found).cpu().numpy().tobytes() + content[whole:].cpu().numpy().tobytes()


def _products(words: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return words.to(torch.int64).mul_(weights)


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return flat if flat.storage_offset() % WORD == 0 else flat.clone()


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Returns the weights. They are odd, so that every change of a word counts, and different, so that every swap counts."""
    drawn = torch.randint(-(2**62), 2**62, (CHUNK,), generator=torch.Generator("cpu").manual_seed(1), device="cpu")
    return (2 * drawn + 1).to(device)


def _bytes_of(leaf: Any) -> bytes:
    """Returns the content of a value. Empty for objects without a content that is the same in every process."""
    if isinstance(leaf, bytes | bytearray):
        return bytes(leaf)
    if isinstance(leaf, set | frozenset):
        return repr(sorted(map(repr, leaf))).encode()
    if "numpy" in sys.modules and isinstance(leaf, sys.modules["numpy"].ndarray | sys.modules["numpy"].generic):
        return b"" if leaf.dtype.hasobject else f"{leaf.shape} {leaf.dtype}".encode() + bytes(leaf.tobytes())
    if leaf is None or isinstance(leaf, bool | int | float | complex | str | torch.dtype | torch.device | torch.Size):
        return repr(leaf).encode()
    return b""
