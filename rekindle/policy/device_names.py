"""By which names the devices of a node are known: its local ids, UUIDs and PCI addresses. Pure.

A node says it in one annotation, in lines as `nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv,noheader` prints them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

LONGEST = 16 * 1024
"""Characters of the annotation that are read."""

PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.ASCII)
"""Domain, bus, device, function: drivers write a domain of four digits or eight, or none, and may leave out the function."""

UUID = re.compile(r"gpu-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16})", re.ASCII)
"""Of a whole GPU, of NVIDIA or AMD, to its last digit: messages are cut somewhere. That of a part of a GPU is another device."""


def plain(name: str) -> str:
    """One spelling for each device."""
    lower = name.strip().lower()
    address = PCI.fullmatch(lower)
    return f"{int(address[1] or '0', 16):04x}:{address[2]}:{address[3]}" if address else lower


def is_local(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= 4


def is_uuid(name: str) -> bool:
    return bool(UUID.fullmatch(name.lower()))


@lru_cache(maxsize=10_000)
def known(text: str) -> Mapping[str, str]:
    """Local ids by every name that the annotation of a node says."""
    found: dict[str, str] = {}
    for line in text[:LONGEST].splitlines():
        local, *names = (part.strip() for part in line.split(","))
        if is_local(local):
            found |= dict.fromkeys((local, *(plain(one) for one in names if one)), local)
    return found


ALSO = "="
"""Between the names of one device."""


def shown(names: Iterable[str]) -> tuple[str, ...]:
    """One name of each device."""
    return tuple(name.partition(ALSO)[0] for name in names)


def local_ids(names: Iterable[str], of_node: Mapping[str, str]) -> tuple[str, ...] | None:
    """None: nobody says which device one of them is."""
    found = [_local(name.split(ALSO), of_node) for name in names]
    return tuple(dict.fromkeys(found)) if all(found) else None


def _local(names: Sequence[str], of_node: Mapping[str, str]) -> str:
    said = (of_node.get(plain(name), "") for name in names)
    return next(filter(None, said), next(filter(is_local, names), ""))


def uuids(names: Iterable[str]) -> tuple[str, ...] | None:
    """None: one of them has none."""
    found = [next(filter(is_uuid, name.split(ALSO)), "") for name in names]
    return tuple(map(plain, found)) if all(found) else None
