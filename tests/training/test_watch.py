"""Detection of the rank that holds training up, by the progress of the ranks. No other rank is taken for stuck."""

import pytest

from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.watch import LEARNT, STOPPED_SECONDS, Progress, Watch, look
from rekindle_wire.training_pb2 import Heartbeat, Hello, RankMessage, Standing, Stepped


class Watched:
    """A watch with time that the test makes."""

    def __init__(self, patience: float = 10) -> None:
        self.now = 0.0
        self.killed: list[int] = []
        self.watch = Watch(patience, lambda rank, _: self.killed.append(rank), lambda: self.now)

    def sees(self, *progress: Progress, seconds: float = 0) -> None:
        """Gives the watch this progress of the ranks, for so long."""
        self.watch.look(dict(enumerate(progress)))
        for _ in range(int(seconds)):
            self.now += 1
            self.watch.look(dict(enumerate(progress)))


def test_the_rank_that_began_fewer_collectives_is_stuck() -> None:
    """All other ranks wait in the next collective."""
    job = Watched()
    job.sees((4, 41), (4, 40), (4, 41), seconds=11)
    assert job.killed == [1]


def test_a_rank_a_step_behind_is_stuck() -> None:
    """A rank with one step less than the others is stuck, however many collectives it counts."""
    job = Watched()
    job.sees((5, 50), (4, 52), seconds=11)
    assert job.killed == [1]


@pytest.mark.parametrize("patience", [10, 0])
def test_what_takes_all_ranks_long_is_no_fault(patience: float) -> None:
    """A compilation or an evaluation makes no rank wait for another one."""
    job = Watched(patience)
    job.sees((4, 40), (4, 40), seconds=1000)
    assert job.killed == []


async def test_ranks_that_wait_for_an_order_hold_nobody_up() -> None:
    """A failed rank has begun fewer collectives than the others, and is not killed however long all wait for an order."""
    job, membership = Watched(), Membership(2)
    for rank in range(2):
        member, _ = membership.enroll(Hello(rank=rank, role="worker", process=f"process-{rank}"), 1)
        member.hear("stepped", RankMessage(stepped=Stepped(step=4)), stopped=False)
        member.hear("heartbeat", RankMessage(heartbeat=Heartbeat(step=4, collectives=40 + rank)), stopped=False)
        member.hear("standing", RankMessage(standing=Standing(step=4)), stopped=False)

    def looks() -> list[int]:
        for _ in range(12):
            job.now += 1
            look(job.watch, membership, Pods())
        return job.killed

    assert looks() == []
    job.watch.rest()
    for member in membership.members.values():
        member.stands = False
    assert looks() == [0], "where they train"


def test_without_patience_nobody_is_stuck() -> None:
    """A patience of 0 waits for as long as it takes."""
    job = Watched(0)
    job.sees((4, 40), (4, 41), seconds=1000)
    assert job.killed == []


def test_what_took_long_before_may_take_long_again() -> None:
    """The limit is learnt: rank 0 writes a file while the others wait, now and then."""
    job = Watched()
    for _ in range(3):
        job.sees((4, 40), (4, 41), seconds=9)
        job.sees((4, 41), (4, 41))
    job.sees((4, 42), (4, 43), seconds=9 * LEARNT)
    assert job.killed == []
    job.sees((4, 42), (4, 43), seconds=2)
    assert job.killed == [0]


def test_a_rank_is_blamed_for_a_step_once() -> None:
    """A step that takes long again on the replacement is what the script does."""
    job = Watched()
    job.sees((4, 40), (4, 41), seconds=11)
    job.watch.rest()
    job.sees((4, 40), (4, 41), seconds=100)
    assert job.killed == [0]


def test_a_job_that_was_suspended_as_a_whole_has_nobody_stuck() -> None:
    """A suspension by a terminal for hours blames no rank, since the watch slept as well."""
    job = Watched()
    job.sees((4, 40), (4, 41), seconds=2)
    job.now += 10_000
    job.sees((4, 40), (4, 41), seconds=2)
    assert job.killed == []


def test_a_stopped_process_is_given_a_moment() -> None:
    """A stopped process is not killed at once, since it may soon go on."""
    job = Watched()
    job.watch.look_at_stopped(frozenset({2}))
    job.now = STOPPED_SECONDS / 2
    job.watch.look_at_stopped(frozenset())
    job.watch.look_at_stopped(frozenset({2}))
    job.now += STOPPED_SECONDS / 2
    job.watch.look_at_stopped(frozenset({2}))
    assert job.killed == []
    job.now += STOPPED_SECONDS
    job.watch.look_at_stopped(frozenset({2}))
    assert job.killed == [2]
