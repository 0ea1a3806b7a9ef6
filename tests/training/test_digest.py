"""The digest of a state sees every difference, and none that is none."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rekindle_training.adapter.digest import CHUNK, digest, moment_of, sums
from tests.training.values import STATE, Pair


def changed(key: str, value: Any) -> dict[str, Any]:
    return {**STATE, key: value}


def swapped(tensor: torch.Tensor, one: int, other: int) -> torch.Tensor:
    found = tensor.clone()
    found[one], found[other] = tensor[other], tensor[one]
    return found


@pytest.mark.parametrize(
    "other",
    [
        changed("words", swapped(torch.arange(2 * CHUNK + 3), 5, 6)),
        changed("words", swapped(torch.arange(2 * CHUNK + 3), 5, 5 + CHUNK)),
        changed("words", torch.arange(2 * CHUNK + 3).view(torch.int32)),
        changed("words", torch.arange(2 * CHUNK + 3).view(1, -1)),
        changed("odd", torch.tensor([1, 2, 3, 4.03125], dtype=torch.bfloat16)),
        changed("odd", torch.tensor([1, 2, 3, 4], dtype=torch.float16)),
        changed("array", np.arange(4) + 1),
        changed("array", np.arange(4).reshape(2, 2)),
        changed("bytes", b"abd"),
        changed("set", {3, 2}),
        changed("pair", Pair(1, (2.0, 0))),
        changed("pair", Pair(True, (2.0, None))),
        changed("pair", Pair("1", (2.0, None))),
        changed("last", deque([torch.zeros(2), 1], 3)),
        changed("scalar", np.float32(2)),
        changed("empty", []),
        changed("pair", {0: 1, 1: (2.0, None)}),
    ],
    ids=[
        "neighbours",
        "chunks",
        "type",
        "shape",
        "last bits",
        "half",
        "array",
        "array's shape",
        "bytes",
        "set",
        "none",
        "bool",
        "text",
        "deque",
        "scalar",
        "empty",
        "mapping",
    ],
)
def test_the_digest_sees_every_difference(other: dict[str, Any]) -> None:
    """Content, order, shape and type of tensors and arrays, and every plain value."""
    assert digest(other) != digest(STATE)


def test_the_digest_is_of_the_content_only() -> None:
    """The digest depends neither on how a tensor lies in memory, nor on the order of a mapping or a set."""
    turned = torch.arange(6).view(2, 3).T.contiguous().T
    assert digest({"a": turned, "b": {1, 2}}) == digest({"b": {2, 1}, "a": torch.arange(6).view(2, 3)})
    assert digest(dict(reversed(STATE.items()))) == digest(STATE)


Hashed = Callable[[torch.Tensor], bytes]
of_hosts_and_of_accelerators = pytest.mark.parametrize("hashed", [digest, sums])


@of_hosts_and_of_accelerators
def test_one_changed_bit_changes_the_digest(hashed: Hashed) -> None:
    """A changed bit is found in the first word, in the last one, and in the bytes after it."""
    content = torch.zeros(CHUNK * 8 + 8 + 3, dtype=torch.uint8)
    digests = {hashed(content)}
    for place in (0, CHUNK * 8 - 1, CHUNK * 8, CHUNK * 8 + 7, CHUNK * 8 + 8, CHUNK * 8 + 10):
        flipped = content.clone()
        flipped[place] ^= 128
        digests.add(hashed(flipped))
    assert len(digests) == 7


@of_hosts_and_of_accelerators
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex128, torch.int64, torch.uint8])
def test_the_digest_sees_the_highest_bits(dtype: torch.dtype, hashed: Hashed) -> None:
    """Signs and exponents count as much as the lowest bits. Two words whose upper bits change do not cancel each other out."""
    content = torch.arange(1, 65).to(dtype)
    words = content.view(torch.uint8).view(-1, 8)
    digests = {hashed(content)}
    for bit in range(8):
        flipped = words.clone()
        flipped[2:4, 7] ^= 1 << bit
        digests.add(hashed(flipped.view(-1).view(dtype)))
    assert len(digests) == 9


@of_hosts_and_of_accelerators
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_digest_sees_signs(dtype: torch.dtype, hashed: Hashed) -> None:
    """The digest changes with the sign of a tensor, and with the sign of zeros."""
    content = torch.arange(1, 17).to(dtype)
    zeros = torch.zeros(16, dtype=dtype)
    assert hashed(content) != hashed(-content)
    assert hashed(zeros) != hashed(-zeros)


@of_hosts_and_of_accelerators
def test_words_that_change_places_change_the_digest(hashed: Hashed) -> None:
    """The digest changes if two neighbouring 64-bit numbers are swapped, or two at the same place of two chunks."""
    content = torch.arange(2 * CHUNK + 3)
    assert len({hashed(one) for one in (content, swapped(content, 5, 6), swapped(content, 5, 5 + CHUNK))}) == 3


def test_of_what_was_hashed_before_only_what_has_not_changed_counts() -> None:
    """A tensor that was written to, or lies elsewhere, is hashed again."""
    tensor, other = torch.arange(4.0), torch.arange(4.0)
    wrong = b"of another content"
    known = {moment_of(tensor): wrong}
    assert digest([tensor], known) != digest([tensor])
    assert digest([other], known) == digest([other])
    assert digest([tensor.detach()], known) == digest([tensor], known)
    tensor.mul_(2)
    assert digest([tensor], known) == digest([tensor])
