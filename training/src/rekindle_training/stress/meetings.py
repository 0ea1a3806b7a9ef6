"""Pairs of ranks that exchange messages in operation 1. Used by the ranks and by the manager.

Number i exchanges messages with number i^1, then with i^2, i^4, and so on.
"""


def partners(number: int, ranks: int) -> list[int | None]:
    """Returns the partners of this number in their order. None: it has no partner in that round."""
    others = [number ^ 1 << distance for distance in range((ranks - 1).bit_length())]
    return [other if other < ranks else None for other in others]
