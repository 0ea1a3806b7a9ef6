"""Spans of the manager: what it records of its procedures and of the ranks in them."""

import asyncio
import time

import pytest

from rekindle_training.manager.rank_process import RankLost
from rekindle_training.manager.spans import KEPT, LONGEST, MOST, OWN, RANKS, Spans
from rekindle_wire.training_pb2 import Interval, RankMessage, Stepped


def asked(*ranks: int) -> dict[int, "asyncio.Future[RankMessage]"]:
    return {rank: asyncio.get_running_loop().create_future() for rank in ranks}


async def answers(*answered: "asyncio.Future[RankMessage]", intervals: tuple[Interval, ...] = ()) -> None:
    """Lets ranks answer, and the callbacks run that note when."""
    for answer in answered:
        answer.set_result(RankMessage(stepped=Stepped(step=1, intervals=intervals)))
    await asyncio.sleep(0)


async def test_each_rank_is_in_its_procedure_until_it_answers() -> None:
    """Measurements of a rank itself are in the interval of the rank."""
    spans, ranks = Spans(), asked(0, 1)
    with spans.record("rebuild", ranks):
        await answers(ranks[0], intervals=(Interval(name="state", began=5, ended=6),))
        await answers(ranks[1])
    whole, *others = spans.take()
    assert (whole.name, whole.within, whole.HasField("rank")) == ("rebuild", 0, False)
    first, second = ([one for one in others if one.rank == rank] for rank in (0, 1))
    assert [one.name for one in first] == ["rank 0: rebuild", "state"]
    assert [one.name for one in second] == ["rank 1: rebuild"]
    assert whole.began == first[0].began <= first[0].ended <= second[0].ended <= whole.ended
    assert first[0].within == 1
    assert first[1].within == [whole, *others].index(first[0]) + 1
    assert spans.take() == []


async def test_a_procedure_that_fails_says_on_which_rank() -> None:
    """The error of a rank is its own. A rank that has not answered yet has failed in nothing else."""
    spans, ranks = Spans(), asked(0, 1)
    ranks[0].set_exception(RankLost())
    with pytest.raises(RankLost), spans.record("pause", ranks):
        ranks[0].result()
    errors = {one.name: one.error for one in spans.take()}
    assert errors == {"pause": "RankLost", "rank 0: pause": "RankLost", "rank 1: pause": "no answer"}


async def test_of_many_ranks_the_slowest_are_kept() -> None:
    """Intervals are bounded in number, however large the job is, and however long nobody asks for them."""
    spans, ranks = Spans(), asked(*range(RANKS + 10))
    with spans.record("stand", ranks):
        await answers(*(ranks[rank] for rank in range(RANKS)))
        await answers(*(ranks[rank] for rank in range(RANKS, RANKS + 10)))
    kept = {one.rank for one in spans.take() if one.HasField("rank")}
    assert len(kept) == RANKS
    assert set(range(RANKS, RANKS + 10)) <= kept
    for _ in range(KEPT + 10):
        with spans.record("stand"):
            pass
    assert len(spans.take()) == KEPT


async def test_what_a_rank_measures_wrongly_is_left_out() -> None:
    """A gateway refuses all of a message with one such interval. Clocks are set, and processes are of any origin."""
    wrong = [
        Interval(name="state", began=6, ended=5),
        Interval(name="state", began=5, ended=6 + LONGEST),
        Interval(name="n" * 61, began=5, ended=6),
        Interval(began=5, ended=6),
    ]
    many = [Interval(name="state", began=5, ended=6)] * 1000
    spans, ranks = Spans(), asked(0, 1)
    with spans.record("rebuild", ranks):
        await answers(ranks[0], intervals=tuple(wrong))
        await answers(ranks[1], intervals=tuple(many))
    assert sorted(one.name for one in spans.take()) == ["rank 0: rebuild", "rank 1: rebuild", "rebuild", *["state"] * OWN]


async def test_a_clock_that_is_set_back_makes_no_negative_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time server sets the clock while ranks are asked. The procedure and the rank are sent as moments."""
    spans, ranks, clock = Spans(), asked(0), iter([5 * LONGEST, 4 * LONGEST, 4 * LONGEST])
    monkeypatch.setattr(time, "time_ns", lambda: next(clock, 5 * LONGEST))
    with spans.record("pause", ranks):
        await answers(ranks[0])
    assert [(one.name, one.ended - one.began) for one in spans.take()] == [("pause", 0), ("rank 0: pause", 0)]


async def test_the_latest_procedures_fit_into_one_message() -> None:
    """A gateway refuses a message that is too large, and its spans are lost."""
    spans = Spans()
    for number in range(KEPT):
        ranks = asked(*range(RANKS))
        with spans.record(f"rebuild {number}", ranks):
            await answers(*ranks.values(), intervals=(Interval(name="state", began=5, ended=6),) * OWN)
    taken = spans.take()
    assert MOST - RANKS * (OWN + 1) - 1 < len(taken) <= MOST
    assert [one.name for one in taken if not one.within] == [f"rebuild {number}" for number in range(KEPT - 6, KEPT)]
