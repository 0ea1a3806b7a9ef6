"""Order in which a gateway serves clients when many call at once."""

import asyncio

import pytest

from rekindle.errors import Unavailable
from workers.gateway.concurrency import Admission, Lanes


class Visitors:
    """Tasks that each hold a place until they are let go."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.inside: list[str] = []
        self._doors: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str) -> None:
        self._doors[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._visit(name))
        await asyncio.sleep(0)

    async def go(self, name: str) -> None:
        self._doors[name].set()
        await self.tasks[name]
        for _ in range(3):
            await asyncio.sleep(0)

    async def _visit(self, name: str) -> None:
        async with self._admission.place(name):
            self.inside.append(name)
            await self._doors[name].wait()


async def test_no_more_are_inside_than_there_are_places_and_the_wanted_come_first() -> None:
    """A job whose recovery waits for its stream comes before all others, also if the recovery begins while the job waits."""
    wanted = set[str]()
    visitors = Visitors(Admission(2, 10, wanted))
    for name in ("a", "b", "c", "d", "late"):
        await visitors.come(name)
    wanted.update(("late", "nobody"))
    assert visitors.inside == ["a", "b"]
    await visitors.go("a")
    assert visitors.inside == ["a", "b", "late"]
    await visitors.go("b")
    assert visitors.inside[-1] == "c"
    for name in ("late", "c", "d"):
        await visitors.go(name)
    assert visitors.inside == ["a", "b", "late", "c", "d"]


async def test_who_comes_many_times_waits_behind_itself() -> None:
    """A client that calls a hundred times at once is served by turns with the one that came last."""
    admission, inside = Admission(1, 10, ()), list[str]()

    async def visit(job_id: str) -> None:
        async with admission.place(job_id):
            inside.append(job_id)
            await asyncio.sleep(0)

    await asyncio.gather(*(visit(job_id) for job_id in ("flood",) * 100 + ("a", "b", "a")))
    assert inside[:7] == ["flood", "flood", "a", "b", "flood", "a", "flood"]


async def test_who_gives_up_waiting_costs_nobody_a_place() -> None:
    """A caller that gives up waiting takes no place, also in the very moment in which its place became free."""
    visitors = Visitors(Admission(1, 10, ()))
    for name in ("a", "b", "c", "d"):
        await visitors.come(name)
    visitors.tasks["b"].cancel()
    visitors._doors["a"].set()
    await visitors.tasks["a"]
    visitors.tasks["c"].cancel()
    await asyncio.gather(visitors.tasks["b"], visitors.tasks["c"], return_exceptions=True)
    await visitors.go("d")
    assert visitors.inside[-1] == "d"
    await visitors.come("e")
    assert visitors.inside[-1] == "e"
    await visitors.go("e")


async def test_fewer_are_inside_while_they_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of one moment lower the number once. It grows again with quick ones, up to the first number."""
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    visitors = Visitors(Admission(10, 1e9, (), slow=1.0))

    async def inside_of_twenty(seconds: float) -> int:
        """Returns how many of twenty come in at once. Each of them stays for so long."""
        nonlocal now
        for number in range(20):
            await visitors.come(str(number))
        most = len(visitors.inside)
        while leaving := list(visitors.inside):
            now += seconds
            visitors.inside.clear()
            for name in leaving:
                await visitors.go(name)
        return most

    assert await inside_of_twenty(0.5) == 10
    assert [await inside_of_twenty(2.0) for _ in range(4)] == [10, 4, 4, 4]
    assert [await inside_of_twenty(0.5) for _ in range(5)] == [4, 7, 9, 10, 10]


async def test_jobs_that_do_not_answer_take_no_places_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls for some jobs last long again and again while all others are quick. As many as before run at once."""
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    visitors, stuck = Visitors(Admission(10, 1e9, (), slow=1.0)), ("stuck-1", "stuck-2", "stuck-3", "stuck-4")
    for _ in range(5):
        for name in stuck:
            await visitors.come(name)
        for number in range(30):
            await visitors.come(f"{number}")
            assert visitors.inside[-1] == f"{number}"
            now += 0.8
            await visitors.go(f"{number}")
        for name in stuck:
            await visitors.go(name)
    visitors.inside.clear()
    for number in range(20):
        await visitors.come(f"{number}")
    assert len(visitors.inside) == 10
    for number in range(20):
        await visitors.go(f"{number}")


async def test_who_cannot_be_admitted_in_time_is_told_so() -> None:
    """A caller that waited too long for a place is refused, and is admitted when it tries again."""
    admission = Admission(1, 0.01, ())
    async with admission.place("a"):
        with pytest.raises(Unavailable, match="too many come at once"):
            async with admission.place("a"):
                raise AssertionError("there is one place")
    async with admission.place("a"):
        pass


async def test_a_lane_is_kept_in_order_and_forgotten() -> None:
    """Messages of one job are handled in their order. Those of another job do not wait for them."""
    lanes, said = Lanes(), list[str]()

    async def say(job_id: str, word: str) -> None:
        async with lanes.of(job_id):
            said.append(word)

    async with lanes.of("a"):
        waiting = [asyncio.create_task(say("a", word)) for word in ("first", "second")]
        await say("b", "another job")
    await asyncio.gather(*waiting)
    assert said == ["another job", "first", "second"]
    assert lanes._lanes == {}
