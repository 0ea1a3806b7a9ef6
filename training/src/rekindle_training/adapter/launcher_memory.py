"""State that a rank leaves to the process that follows it, in memory of the launcher, which outlives a killed process.

A rank writes the state that only it has (`Own`) at each boundary and before each update. Its successor reads the last copy
for the step after which training goes on. A copy whose writer was killed during the write does not count.
"""

import logging
import os
import struct

import xxhash

log = logging.getLogger(__name__)

_SLOTS = 4
"""Number of copies, enough for two steps, because training never goes back further."""
_STRIDE = 1 << 32
"""Bytes between two copies. Only bytes that are written take up memory."""
END = _SLOTS * _STRIDE
"""Offset after which this memory holds no copies."""
_HEADER = struct.Struct("<QqQQ")
"""Header of a copy: number of the write, step, length, digest."""


class LauncherMemory:
    """Memory of one rank. Without a descriptor no state is left."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._written = max((number for number, _, _ in self._found()), default=0)
        self._latest = (-1, b"")
        self._has_failed = False

    def leave(self, step: int, own: bytes) -> None:
        """Writes the state that only this rank has after a step. If no memory can be written, training goes on without."""
        if self._descriptor is None or (step, own) == self._latest:
            return
        try:
            self._write(self._descriptor, step, own)
        except OSError as error:
            if not self._has_failed:
                log.warning("own state not left, a process that replaces this one would go back to the checkpoint: %s", error)
            self._has_failed = True
        else:
            self._latest = (step, own)

    def _write(self, descriptor: int, step: int, own: bytes) -> None:
        self._written += 1
        place = self._written % _SLOTS * _STRIDE
        header = _HEADER.pack(self._written, step, len(own), xxhash.xxh3_64_intdigest(own))
        os.pwritev(descriptor, (header, own), place)

    def behind(self, step: int) -> bytes | None:
        """Returns the state that the process before left after this step, the latest if there are several.

        None: it left none.
        """
        found = [(number, own) for number, at, own in self._found() if at == step]
        return max(found)[1] if found else None

    def _found(self) -> list[tuple[int, int, bytes]]:
        if self._descriptor is None:
            return []
        read = (self._read(self._descriptor, slot * _STRIDE) for slot in range(_SLOTS))
        return [found for found in read if found is not None]

    @staticmethod
    def _read(descriptor: int, place: int) -> tuple[int, int, bytes] | None:
        header = os.pread(descriptor, _HEADER.size, place)
        if len(header) < _HEADER.size:
            return None
        number, step, length, digest = _HEADER.unpack(header)
        own = os.pread(descriptor, length, place + _HEADER.size)
        return (number, step, own) if number and xxhash.xxh3_64_intdigest(own) == digest else None
