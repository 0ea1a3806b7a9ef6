"""Memory of this host that is free, and what snapshots would take of it."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rekindle_training import names

COPIES = 2
"""Copies of each rank's state in a memory: one that is complete, and one that is being written."""
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Files with the limit of this container and what it uses, of both versions of cgroups."""
GIB = 1024**3


class Need(NamedTuple):
    """Bytes that the snapshots of one rank take, and bytes that are free where it runs."""

    rank: int
    node: str
    pod: str
    own: int
    """Bytes of one snapshot of this rank."""
    kept: int
    """Bytes of one snapshot of the rank for which it keeps them. 0: none."""
    has: int
    """Bytes that its snapshots take up already."""
    free_of_node: int
    free_of_pod: int | None
    """None: the container has no limit."""

    @property
    def more(self) -> int:
        return max(COPIES * (self.own + self.kept) - self.has, 0)


class TooLarge(ValueError):
    """Snapshots do not fit into the memory of a host."""


def free() -> tuple[int, int | None]:
    """Returns the bytes that are free on this machine, and below the limit of this container."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    for limit, used in _LIMITS:
        if limit.exists() and used.exists():
            said = limit.read_text().strip()
            return available, None if said == "max" else max(int(said) - int(used.read_text()), 0)
    return available, None


def refuse_too_large(needs: Iterable[Need]) -> None:
    """Raises TooLarge where the snapshots of the ranks on one node, or in one pod, do not fit into what is free there."""
    nodes, pods = defaultdict[str, list[Need]](list), defaultdict[str, list[Need]](list)
    for need in needs:
        nodes[need.node].append(need)
        pods[need.pod].append(need)
    for node, there in nodes.items():
        _refuse(there, min(need.free_of_node for need in there), f"node {node}")
    for there in pods.values():
        if limits := [need.free_of_pod for need in there if need.free_of_pod is not None]:
            _refuse(there, min(limits), f"the pod of rank {there[0].rank}")


def _refuse(there: list[Need], available: int, where: str) -> None:
    needed = sum(need.more for need in there)
    if needed > available:
        one = max(there, key=lambda need: need.own)
        raise TooLarge(
            f"snapshots of ranks {[need.rank for need in there]} take {needed / GIB:.2f} GiB more in the memory of {where}, "
            f"where {available / GIB:.2f} GiB are free: {COPIES} copies of the state of each rank ({one.own / GIB:.2f} GiB of "
            f"rank {one.rank}), and {COPIES} of each rank that is kept there; give it more memory, have more ranks share the "
            f"state, or leave {names.SNAPSHOT_EVERY} out"
        )
