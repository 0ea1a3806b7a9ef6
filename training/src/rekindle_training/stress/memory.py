"""Operation 2: writes patterns over a share of the free memory and then reads all of it back."""

import contextlib
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from rekindle_training.stress.codes import NOT_RUN
from rekindle_training.stress.verdict import Disturb, Turn, Verdict, found

BLOCK = 64 * 2**20
"""Bytes of one allocation. Free memory may be fragmented."""
WORDS = 2**20
"""Number of words of eight bytes that are written at a time."""
SHARE_OF_HOST, MOST_OF_HOST = 4, 2**30
"""Divisor that gives the used part of the free host memory, and the limit of that part in bytes.

Other processes use that memory too, and a process that takes too much is killed.
"""
SHARE_OF_DEVICE = 2
TAKING = 0.2
"""Share of the check's time in which memory is allocated."""

CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files with the limit and the usage of a container's memory, for version 2 and then version 1 of control groups."""

Pattern = Callable[[int], torch.Tensor]
"""Returns a chunk of the pattern: the words that follow after the given number of words."""


def check(device: torch.device, ranks: int, turn: Turn, disturb: Disturb) -> Verdict:
    """Checks the memory of the device.

    Args:
        ranks: ranks that share the host's memory and are checked at the same time.
    """
    free = free_bytes(device)
    wanted, share = free // SHARE_OF_DEVICE, SHARE_OF_DEVICE
    if device.type == "cpu":
        wanted, share = min(free // (SHARE_OF_HOST * ranks), MOST_OF_HOST), SHARE_OF_HOST
    try:
        if wanted < BLOCK:
            return _too_little(free, ranks)
        return _checked(_blocks(device, wanted // BLOCK, free - free // share, turn), turn, disturb)
    finally:
        if device.type != "cpu":
            _of(device).empty_cache()  # what training did not have before is given back


def _checked(blocks: list[torch.Tensor], turn: Turn, disturb: Disturb) -> Verdict:
    if not blocks:
        return Verdict(NOT_RUN, "no block of memory could be had")
    passes, wrong, began = 0, 0, turn.spent
    for pattern in _patterns(blocks[0].device):
        for number, chunk in _chunks(blocks, turn):
            chunk.copy_(pattern(number * WORDS))
        for block in blocks:
            disturb(block)
        for number, chunk in _chunks(blocks, turn):
            wrong += int((chunk != pattern(number * WORDS)).sum().item())
        passes += 1
        if turn.over:
            break
    size = len(blocks) * BLOCK
    rate = 2e-9 * passes * size / (turn.spent - began)
    return found(
        wrong, f"{wrong} words wrong of {size / 2**30:.2f} GiB in {passes} patterns, {rate:.1f} GB/s, {turn.spent:.1f} s"
    )


def _patterns(device: torch.device) -> Iterator[Pattern]:
    """Yields the patterns: each word's own address, then the same inverted, then a single bit that moves through every word."""
    words = torch.arange(WORDS, dtype=torch.int64)
    here = words.to(device)
    yield lambda behind: here + behind
    yield lambda behind: ~(here + behind)
    for shift in range(64):
        walking = (torch.ones((), dtype=torch.int64) << (words + shift) % 64).to(device)
        yield lambda _, walking=walking: walking  # type: ignore[misc]
        yield lambda _, walking=walking: ~walking  # type: ignore[misc]


def _chunks(blocks: list[torch.Tensor], turn: Turn) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields the numbered chunks of the blocks, until the check is stopped."""
    numbered = enumerate(chunk for block in blocks for chunk in block.split(WORDS))
    return takewhile(lambda _: not turn.stopped, numbered)


def _blocks(device: torch.device, count: int, leaves: int, turn: Turn) -> list[torch.Tensor]:
    """Allocates blocks for part of the check's time, so that enough time is left for several patterns.

    It stops early if the free memory falls to `leaves` bytes, because others, such as ranks of another pod of this node, allocate
    memory too.
    """
    blocks: list[torch.Tensor] = []
    with contextlib.suppress(torch.OutOfMemoryError):  # another process took some meanwhile
        while not blocks or (len(blocks) < count and turn.left(TAKING) > 0 and free_bytes(device) > leaves):
            blocks.append(torch.zeros(BLOCK // 8, dtype=torch.int64, device=device))
    return blocks


def _too_little(free: int, ranks: int) -> Verdict:
    return Verdict(NOT_RUN, f"too little memory is free: {free / 2**20:.0f} MiB for {ranks} ranks")


def free_bytes(device: torch.device) -> int:
    if device.type != "cpu":
        return int(_of(device).mem_get_info(device)[0])
    return min([_available(), *_left_in_containers()])


def _of(device: torch.device) -> Any:
    return getattr(torch, device.type)


def _available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))


def _left_in_containers() -> Iterator[int]:
    for limit, used in CONTAINERS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says `max`
            yield max(int(Path(limit).read_text()) - int(Path(used).read_text()), 0)
