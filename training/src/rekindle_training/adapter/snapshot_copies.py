"""Good copies of snapshots: found in the pod's memory, or handed over by the rank that keeps them. Used by `snapshots.py`."""

import logging

import torch
import torch.distributed as dist

from rekindle_training.snapshot_memory import Kind, SnapshotMemory

log = logging.getLogger(__name__)

_PART = 256 * 1024 * 1024
"""Maximum bytes of one message between ranks."""


def checked(memory: SnapshotMemory, kind: Kind, rank: int, step: int) -> memoryview | None:
    """Returns the content of a snapshot. None: there is none that is good."""
    while (copy := memory.find(kind, rank, step)) is not None:
        if (content := memory.read(copy)) is not None:
            return content
        log.warning("snapshot of rank %d after step %d dropped: its digest differs", rank, step)
    return None


def give(memory: SnapshotMemory, rank: int, step: int, target: int) -> None:
    """Sends the snapshot that is kept for a rank to that rank, the process `target` of the group. Empty: it is damaged."""
    content = checked(memory, Kind.KEPT, rank, step)
    dist.send(torch.tensor([len(content or b"")], device="cpu"), target)
    for part in _cut(content):
        dist.send(part, target)


def received(memory: SnapshotMemory, rank: int, step: int, source: int) -> memoryview | None:
    """Returns this rank's snapshot as the process `source` of the group sends it. None: its copy is damaged."""
    length = torch.empty(1, dtype=torch.int64, device="cpu")
    dist.recv(length, source)
    size = int(length.item())
    if not size:
        return None
    place, content = memory.begin(Kind.OWN, rank, size)
    for part in _cut(content):
        dist.recv(part, source)
    memory.seal(place, rank, step, size)
    return content


def _cut(content: memoryview | None) -> list[torch.Tensor]:
    return list(torch.frombuffer(content, dtype=torch.uint8).split(_PART)) if content else []
