"""Names of the devices of a node: local ids, UUIDs and PCI addresses. Pure.

They are in an annotation of the node, in lines as `nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv,noheader` prints.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

LONGEST = 16 * 1024
"""Maximum number of characters of the annotation that are read."""

PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.ASCII)
"""PCI address: domain, bus, device, function. Drivers write a domain of four digits or eight, or none, and may
omit the function."""

UUID = re.compile(r"gpu-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16})", re.ASCII)
"""UUID of a whole GPU of NVIDIA or AMD, with all digits: messages may be cut anywhere. The UUID of a part of a GPU is another
device."""


def plain(name: str) -> str:
    """Returns the normalized spelling of a device's name."""
    lower = name.strip().lower()
    address = PCI.fullmatch(lower)
    return f"{int(address[1] or '0', 16):04x}:{address[2]}:{address[3]}" if address else lower


def is_local(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= 4


def is_uuid(name: str) -> bool:
    return bool(UUID.fullmatch(name.lower()))


@lru_cache(maxsize=10_000)
def known(text: str) -> Mapping[str, str]:
    """Returns the local id for every name in the annotation of a node."""
    found: dict[str, str] = {}
    for line in text[:LONGEST].splitlines():
        local, *names = (part.strip() for part in line.split(","))
        if is_local(local):
            found |= dict.fromkeys((local, *(plain(one) for one in names if one)), local)
    return found


ALSO = "="
"""Separator between several names of the same device."""


def shown(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the first name of each device."""
    return tuple(name.partition(ALSO)[0] for name in names)


def local_ids(names: Iterable[str], of_node: Mapping[str, str]) -> tuple[str, ...] | None:
    """Returns the local ids of devices, without duplicates. None: the local id of one of them is unknown."""
    found = [_local(name.split(ALSO), of_node) for name in names]
    return tuple(dict.fromkeys(found)) if all(found) else None


def _local(names: Sequence[str], of_node: Mapping[str, str]) -> str:
    said = (of_node.get(plain(name), "") for name in names)
    return next(filter(None, said), next(filter(is_local, names), ""))


def uuids(names: Iterable[str]) -> tuple[str, ...] | None:
    """Returns the normalized UUIDs of devices. None: one of them has no UUID."""
    found = [next(filter(is_uuid, name.split(ALSO)), "") for name in names]
    return tuple(map(plain, found)) if all(found) else None
