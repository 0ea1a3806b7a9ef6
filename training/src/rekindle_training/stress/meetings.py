"""Which ranks meet in operation 1, known to ranks and to the manager: number i meets number i^1, then i^2, i^4, ..."""


def partners(number: int, ranks: int) -> list[int | None]:
    """Numbers of those that this one meets, one behind the other; None: it meets nobody then."""
    others = [number ^ 1 << distance for distance in range((ranks - 1).bit_length())]
    return [other if other < ranks else None for other in others]
