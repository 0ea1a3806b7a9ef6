"""Result of a vote: the words of ranks, combined. Used by `vote.py` and `shared_vote.py`."""

import struct
from collections.abc import Mapping
from typing import NamedTuple

import xxhash

_FIELDS = struct.Struct("QqQqQ")
"""Number of the vote, and the fields of a ballot."""
_DIGEST = struct.Struct("Q")
SIZE = _FIELDS.size + _DIGEST.size
"""Size of a ballot in bytes, in memory or in a message."""


class Ballot(NamedTuple):
    """Words of some ranks, combined: the word of the lowest rank, and the lowest rank with another word."""

    rank: int
    word: int
    other: int = -1
    """Lowest rank with another word. -1: all words are the same."""
    other_word: int = 0

    @property
    def is_unanimous(self) -> bool:
        return self.other < 0

    @classmethod
    def of(cls, said: Mapping[int, int]) -> "Ballot":
        """Creates a ballot from the words of ranks, by rank."""
        rank, *others = sorted(said)
        other = next((one for one in others if said[one] != said[rank]), None)
        return cls(rank, said[rank]) if other is None else cls(rank, said[rank], other, said[other])

    def merged(self, more: "Ballot") -> "Ballot":
        """Combines two ballots. The order does not matter, and a rank may be counted twice."""
        if self.is_unanimous and more.is_unanimous and self.word == more.word:
            return min(self, more)
        said = {self.rank: self.word, self.other: self.other_word, more.rank: more.word, more.other: more.other_word}
        return Ballot.of({rank: word for rank, word in said.items() if rank >= 0})

    def packed(self, vote: int) -> bytes:
        fields = _FIELDS.pack(vote, *self)
        return fields + _DIGEST.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def unpacked(cls, content: bytes, vote: int) -> "Ballot | None":
        """Reads a ballot. None: the bytes belong to another vote, or are damaged or incomplete."""
        fields = content[: _FIELDS.size]
        said, *ballot = _FIELDS.unpack(fields)
        if said != vote or _DIGEST.pack(xxhash.xxh3_64_intdigest(fields)) != content[_FIELDS.size :]:
            return None
        return cls(*ballot)
