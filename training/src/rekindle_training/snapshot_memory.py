"""Memory of one rank's snapshots: the last two of itself, and the last two of the rank for which it keeps them.

It belongs to the launcher, so it outlives the process, and a restart of all processes in their pods. Memory that nobody has open
any more is freed by the system. A copy counts when its header is written, which comes last, so one whose writer was killed does
not count. A digest over its content is compared whenever a copy is used.
"""

import mmap
import os
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import xxhash

_STRIDE = 1 << 42
"""Bytes between two copies. Only bytes that are written take up memory."""
_PAGE = mmap.ALLOCATIONGRANULARITY
_HEADER = struct.Struct("<QqqQQ")
"""Header of a copy: number of the write, rank, step, length, digest."""
_DOUBT = 4 * _STRIDE
"""Place of the mark that no copy is trusted any more."""


OWN_COPIES = 2
"""Number of snapshots of itself that a rank has."""


class Kind(Enum):
    """Two places each."""

    OWN = 0
    KEPT = 2


@dataclass(frozen=True)
class Copy:
    """A complete copy."""

    place: int
    number: int
    rank: int
    step: int
    length: int
    digest: int

    @property
    def offset(self) -> int:
        """Offset of the content in the memory."""
        return self.place * _STRIDE + _PAGE

    @property
    def kind(self) -> Kind:
        return Kind.OWN if self.place < Kind.KEPT.value else Kind.KEPT


class SnapshotMemory:
    """Used by the loop, and by the threads that copy and receive. Each place has one writer at a time."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._lock = threading.Lock()
        self._mapped: dict[int, mmap.mmap] = {}

    def copies(self, kind: Kind) -> list[Copy]:
        """Returns the complete copies, the newest first."""
        found = [copy for place in (kind.value, kind.value + 1) if (copy := self._header(place)) is not None]
        return sorted(found, key=lambda copy: -copy.number)

    def find(self, kind: Kind, rank: int, step: int) -> Copy | None:
        return next((copy for copy in self.copies(kind) if (copy.rank, copy.step) == (rank, step)), None)

    @property
    def capacity(self) -> int:
        """Returns the bytes of memory that copies take up."""
        return os.fstat(self.descriptor).st_blocks * 512

    def reserve(self, kind: Kind, length: int) -> None:
        """Takes up the memory for copies of this size. Otherwise the first copies would wait for it beside training."""
        for place in (kind.value, kind.value + 1):
            self._map(place, length, mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def begin(self, kind: Kind, rank: int, length: int) -> tuple[int, memoryview]:
        """Returns a place for another copy, and its memory. What was there counts no more.

        A copy of another rank is overwritten first, then the oldest one.
        """
        with self._lock:
            there = {copy.place: (copy.rank == rank, copy.number) for copy in self.copies(kind)}
            place = min((kind.value, kind.value + 1), key=lambda place: there.get(place, (False, 0)))
            self._drop(place)
            return place, self._memory(place, length)

    def seal(self, place: int, rank: int, step: int, length: int) -> Copy:
        """Completes the copy in this place."""
        digest = xxhash.xxh3_64_intdigest(self._memory(place, length))
        with self._lock:
            number = 1 + max((copy.number for kind in Kind for copy in self.copies(kind)), default=0)
            os.pwrite(self.descriptor, _HEADER.pack(number, rank, step, length, digest), place * _STRIDE)
        return Copy(place, number, rank, step, length, digest)

    def read(self, copy: Copy) -> memoryview | None:
        """Returns the content. None: it is not what was written, and counts no more."""
        content = self._memory(copy.place, copy.length)
        if xxhash.xxh3_64_intdigest(content) == copy.digest:
            return content
        with self._lock:
            self._drop(copy.place)
        return None

    def forget(self, after: int = -1, kinds: Iterable[Kind] = tuple(Kind)) -> None:
        """Drops the copies of these kinds of all steps after this one."""
        with self._lock:
            for copy in (copy for kind in kinds for copy in self.copies(kind)):
                if copy.step > after:
                    self._drop(copy.place)

    @property
    def doubted(self) -> bool:
        """True if training was refused: a copy may have what was wrong. It holds until all copies are forgotten."""
        return os.pread(self.descriptor, 1, _DOUBT) == b"\1"

    @doubted.setter
    def doubted(self, doubted: bool) -> None:
        os.pwrite(self.descriptor, b"\1" if doubted else b"\0", _DOUBT)

    def _header(self, place: int) -> Copy | None:
        header = os.pread(self.descriptor, _HEADER.size, place * _STRIDE)
        if len(header) < _HEADER.size:
            return None
        number, *rest = _HEADER.unpack(header)
        return Copy(place, number, *rest) if number else None

    def _drop(self, place: int) -> None:
        os.pwrite(self.descriptor, bytes(_HEADER.size), place * _STRIDE)

    def _memory(self, place: int, length: int) -> memoryview:
        """Returns the memory of a place. It stays mapped, since the first access to each page costs more than its content."""
        mapped = self._mapped.get(place)
        if mapped is None or len(mapped) < length:
            mapped = self._map(place, length, mmap.MAP_SHARED)
        return memoryview(mapped)[:length]

    def _map(self, place: int, length: int, flags: int) -> mmap.mmap:
        begin = place * _STRIDE + _PAGE
        end = begin + -(-max(length, 1) // _PAGE) * _PAGE
        if os.fstat(self.descriptor).st_size < end:
            os.ftruncate(self.descriptor, end)
        mapped = self._mapped[place] = mmap.mmap(self.descriptor, end - begin, flags=flags, offset=begin)
        return mapped
