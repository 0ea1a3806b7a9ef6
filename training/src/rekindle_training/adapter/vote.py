"""Vote of all ranks: it is over when every rank has sent the same word. Used by the communicator.

The ranks of a pod vote in memory that they share. The first ranks of all pods then exchange the results of their pods. In round k
each of them sends to the pod 2**k places ahead, and receives from the pod 2**k places behind. After log2 of the number of pods,
rounded up, each has the results of all pods.
"""

from rekindle_training.adapter.ballot import Ballot
from rekindle_training.adapter.lines import Lines
from rekindle_training.adapter.shared_vote import SharedVote


class Disagreement(RuntimeError):
    """Ranks have sent different words. Raised on all of them."""

    def __init__(self, found: Ballot) -> None:
        super().__init__(f"rank {found.rank} says {found.word:#x} in a vote, and rank {found.other} says {found.other_word:#x}")
        self.words = {found.rank: found.word, found.other: found.other_word}
        """Words of two ranks, the lower rank first."""


class Vote:
    """Votes of one rank in one generation. `cut` may be called from any thread."""

    def __init__(self, rank: int, ranks: int, generation: int, shared: SharedVote | None) -> None:
        """Args:
        shared: votes in the memory of this pod. None: ranks do not share memory, and each votes like a pod of one rank.
        """
        self._rank, self._shared = rank, shared
        in_pod = 1 if shared is None else shared.ranks
        rounds = (ranks // in_pod - 1).bit_length()
        self._has_more_pods = rounds > 0
        self.distances = [in_pod * 2**number for number in range(rounds)] if rank % in_pod == 0 else []
        """Distances in ranks to the ranks with which this one exchanges messages."""
        self._last = generation << 32
        self.begun = 0
        """Number of votes that were begun."""

    def agree(self, word: int, lines: Lines) -> None:
        """Returns when every rank has called it with this word, a number of up to 64 bits.

        Args:
            lines: connections over these distances.

        Raises:
            Disagreement: every rank has called it, and some with another word.
            RuntimeError: a rank could not be reached; some may have returned all the same.
        """
        self.begun += 1
        self._last += 1
        try:
            found = self._found(self._last, word, lines)
        except BaseException:  # no other rank waits for this one any more
            self.cut()
            lines.cut()
            raise
        if not found.is_unanimous:
            raise Disagreement(found)

    def cut(self) -> None:
        """Ends the wait of all ranks of this pod."""
        if self._shared is not None:
            self._shared.leave()

    def _found(self, vote: int, word: int, lines: Lines) -> Ballot:
        if self._shared is None:
            return self._among_pods(vote, Ballot(self._rank, word), lines)
        self._shared.say(vote, word)
        if not self._has_more_pods:
            return self._shared.gathered(vote, word)
        if not self.distances:
            return self._shared.decided(vote)
        found = self._among_pods(vote, self._shared.gathered(vote, word), lines)
        self._shared.decide(vote, found)
        return found

    def _among_pods(self, vote: int, found: Ballot, lines: Lines) -> Ballot:
        for distance in self.distances:
            if (theirs := Ballot.unpacked(lines.exchange(distance, found.packed(vote)), vote)) is None:
                raise RuntimeError(f"a rank {distance} places before it is in another vote")
            found = found.merged(theirs)
        return found
