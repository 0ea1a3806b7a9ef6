"""The comparison of recoveries reads its results from the steps that ranks have written."""

from benchmarks.process_recovery import Line, differing, recovery


def steps(numbers: list[int], ranks: list[int], at: float, world: int = 4) -> list[Line]:
    """Returns one step after the other, a second each, each rank a tenth of a second after the one before it."""
    return [Line(step, rank, world, at + index + rank / 10, 100 + rank) for index, step in enumerate(numbers) for rank in ranks]


def test_training_goes_on_when_the_last_rank_has_completed_a_step_behind_the_fault() -> None:
    """A step that was done before counts as progress, the step of the fault as caught up, and those between as redone."""
    lines = [*steps([1, 2, 3, 4], [0, 1, 2, 3], 0), *steps([3, 4, 5, 6], [0, 1, 2, 3], 10)]
    found = recovery(lines, 5.0, 5, frozenset())
    assert found.goes_on is not None
    assert found.caught_up is not None
    assert round(found.goes_on, 3) == 5.3
    assert round(found.caught_up, 3) == 7.3
    assert found.whole == found.goes_on
    assert found.redone == 2


def test_a_step_of_those_that_are_left_is_none_of_all_ranks() -> None:
    """Three ranks continue by themselves; the fourth comes back later."""
    alone = steps([5, 6], [0, 2, 3], 6, world=3)
    found = recovery([*steps([1, 2, 3, 4], [0, 1, 2, 3], 0), *alone, *steps([7], [0, 1, 2, 3], 9)], 5.0, 5, frozenset())
    assert (found.goes_on, found.whole) == (alone[2].end - 5.0, 9.3 - 5.0)


def test_a_step_that_one_rank_has_not_completed_is_not_done() -> None:
    """Other ranks may have written the step after the fault; training has not continued."""
    found = recovery([*steps([1, 2], [0, 1, 2, 3], 0), *steps([3], [0, 2, 3], 5)], 4.0, 3, frozenset())
    assert found.goes_on is None


def test_lines_that_are_only_indented_are_the_plain_ones() -> None:
    """The plain script does not differ from itself, and torchrun's differs by its checkpoint."""
    assert differing("plain.py") == 0
    assert 0 < differing("rekindle.py") < differing("torchrun.py")
