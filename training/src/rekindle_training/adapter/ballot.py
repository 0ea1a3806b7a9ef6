"""What ranks say in a vote, put together. Used by `vote.py` and `shared_vote.py`."""

import struct
from collections.abc import Mapping
from typing import NamedTuple

import xxhash

_FIELDS = struct.Struct("QqQqQ")
"""The vote, and the fields of a ballot."""
_DIGEST = struct.Struct("Q")
SIZE = _FIELDS.size + _DIGEST.size
"""Bytes of a ballot in memory or in a message."""


class Ballot(NamedTuple):
    """The lowest of some ranks, and the lowest of them that says something else."""

    rank: int
    word: int
    other: int = -1
    """-1: all say the same."""
    other_word: int = 0

    @property
    def is_unanimous(self) -> bool:
        return self.other < 0

    @classmethod
    def of(cls, said: Mapping[int, int]) -> "Ballot":
        """Counts words by ranks."""
        rank, *others = sorted(said)
        other = next((one for one in others if said[one] != said[rank]), None)
        return cls(rank, said[rank]) if other is None else cls(rank, said[rank], other, said[other])

    def merged(self, more: "Ballot") -> "Ballot":
        """The result is the same in any order, and where a rank is counted twice."""
        if self.is_unanimous and more.is_unanimous and self.word == more.word:
            return min(self, more)
        said = {self.rank: self.word, self.other: self.other_word, more.rank: more.word, more.other: more.other_word}
        return Ballot.of({rank: word for rank, word in said.items() if rank >= 0})

    def packed(self, vote: int) -> bytes:
        fields = _FIELDS.pack(vote, *self)
        return fields + _DIGEST.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def unpacked(cls, content: bytes, vote: int) -> "Ballot | None":
        """None: these are not the bytes of a ballot of this vote, or not all of them."""
        fields = content[: _FIELDS.size]
        said, *ballot = _FIELDS.unpack(fields)
        if said != vote or _DIGEST.pack(xxhash.xxh3_64_intdigest(fields)) != content[_FIELDS.size :]:
            return None
        return cls(*ballot)
