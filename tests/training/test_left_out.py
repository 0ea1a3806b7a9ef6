"""A rank that leaves a collective out of a step ends the job with an explanation, and one that only takes long is waited for."""

from pathlib import Path

import pytest

from rekindle_training.manager.left_out import AGAIN_SECONDS, FIRST_SECONDS, LEARNT, QUIET_SECONDS, LeftOut, left_out
from rekindle_wire.training_pb2 import Heartbeat, Standing, Stepped
from tests.training.heard import Ranks
from tests.training.job import Job
from tests.training.standalone import Standalone

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("uneven.py"))
WORDS = "ranks [1] have come to the end of step 3, and ranks [0, 2] wait for them in a collective of that step"


@pytest.mark.same_path("a rank leaves a collective out of a step")
@pytest.mark.parametrize("way", ["inner break", "inner continue"])
async def test_a_rank_that_leaves_a_collective_out_ends_the_job(way: str, alone: Standalone) -> None:
    """The step is repeated once and ends as before. The text names which rank waits for which, and the job is not restarted."""
    launcher = await alone.start("--max-restarts=3", script=SCRIPT, ranks=3, STEPS="4,3,4", TOTAL="4", WAY=way)
    assert await launcher.code(within=90) == 1
    assert f"rekindle-train ERROR training abandoned reason={WORDS}" in alone.printed
    assert "all ranks restarted" not in alone.printed


async def test_a_collective_that_is_left_out_ends_a_job_of_a_cluster(job: Job) -> None:
    """All ranks leave with an exit code, and the manager names the reason."""
    job.script, job.arguments, job.environment = SCRIPT, [], {"STEPS": "4,3,4,4", "TOTAL": "4", "WAY": "inner continue"}
    await job.start()
    for pod in ("worker-0", "worker-1"):
        assert await job.started[pod].code(within=90) != 0
    assert "process fault" not in job.outputs(), "no rank is blamed"
    assert "ranks [1] have come to the end of step 3, and ranks [0, 2, 3] wait for them in a collective" in job.outputs()


def beat(collectives: int, groups: dict[str, int] | None = None, *, step: int = 5, votes: bool = False) -> Heartbeat:
    return Heartbeat(step=step - 1, begun=step, votes=votes, groups={"all": collectives, **(groups or {})})


@pytest.fixture
def ranks() -> Ranks:
    """Two ranks of a job, which have completed a step. The watch has seen them."""
    ranks = Ranks(LeftOut)
    for rank in range(2):
        ranks.says(rank, stepped=Stepped(step=4))
    return ranks


def wait(ranks: Ranks, *, collectives: int = 11, **groups: int) -> None:
    """Rank 0 waits in a vote after ten collectives, and rank 1 does not."""
    ranks.says(0, heartbeat=beat(10, votes=True))
    ranks.says(1, heartbeat=beat(collectives, groups))


def test_ranks_of_which_some_vote_and_others_wait_elsewhere_are_asked(ranks: Ranks) -> None:
    """Ranks are asked when none of them has moved for two heartbeats."""
    wait(ranks)
    assert ranks.looks(QUIET_SECONDS) == 0
    assert ranks.looks(1) == 1
    assert ranks.membership.doubted is None, "of one try nothing is said"


def test_before_the_first_step_ranks_have_more_time(ranks: Ranks) -> None:
    """Ranks have more time before the first step, since they may compile."""
    ranks.membership.stepped = False
    wait(ranks)
    assert ranks.looks(FIRST_SECONDS) == 0
    assert ranks.looks(1) == 1


def test_a_rank_that_is_in_no_further_collective_is_left_alone(ranks: Ranks) -> None:
    """A rank that computes is left alone while the others wait in the vote."""
    wait(ranks, collectives=10)
    assert ranks.looks(1000) == 0


def test_a_group_of_which_the_one_that_votes_is_no_member_says_nothing(ranks: Ranks) -> None:
    """A group is not judged whose members compute between its collectives, as stages of a pipeline do."""
    wait(ranks, collectives=10, stage=7)
    assert ranks.looks(1000) == 0


def test_a_rank_that_speaks_in_a_group_of_its_own_is_found_all_the_same(ranks: Ranks) -> None:
    """Collectives are compared group by group."""
    ranks.says(0, heartbeat=beat(10, {"own": 50}, votes=True))
    ranks.says(1, heartbeat=beat(11))
    assert ranks.looks(QUIET_SECONDS + 1) == 1


def test_what_took_long_before_may_take_long_again(ranks: Ranks) -> None:
    """The limit is learnt from what went on by itself."""
    wait(ranks, collectives=10)
    ranks.looks(20)
    wait(ranks)
    assert ranks.looks(20 * LEARNT) == 0
    assert ranks.looks(1) == 1


def test_a_job_whose_ranks_often_stand_so_is_asked_less_and_less(ranks: Ranks) -> None:
    """A question costs the job a step."""
    asked = []
    for step in range(5, 9):
        ranks.says(0, heartbeat=beat(10 * step, step=step, votes=True))
        ranks.says(1, heartbeat=beat(10 * step + 1, step=step))
        seconds = 0.0
        while not ranks.looks(0.5):
            seconds += 0.5
        asked.append(seconds)
    assert asked == sorted(set(asked))
    assert asked[-1] > 8 * QUIET_SECONDS


def stand(ranks: Ranks, *, other: Standing | None = None) -> str:
    """Sends that rank 0 votes and rank 1 is in its step, and returns the manager's conclusion."""
    return left_out(ranks.membership, {0: Standing(step=4, place=Standing.VOTES), 1: other or Standing(step=4)})


def doubt(ranks: Ranks) -> None:
    """Interrupts the same step twice."""
    wait(ranks)
    assert ranks.looks(QUIET_SECONDS + 1) == 1
    assert stand(ranks) == ""
    ranks.membership.install(dict(ranks.membership.members))
    wait(ranks)
    assert ranks.looks(AGAIN_SECONDS + 1) == 1


def test_the_same_again_is_what_the_script_does(ranks: Ranks) -> None:
    """Ranks that wait in the same way after a repetition are reported, and the text names both."""
    doubt(ranks)
    assert stand(ranks).startswith("ranks [0] have come to the end of step 5, and ranks [1] wait for them in a collective")


@pytest.mark.parametrize(
    "other",
    [
        Standing(step=4, place=Standing.VOTES),
        Standing(step=4, reason="ValueError: a bad batch"),
        Standing(step=5),
    ],
    ids=["it came to the vote as well", "its step failed", "it has done the step"],
)
def test_a_rank_that_tells_something_else_is_not_accused(other: Standing, ranks: Ranks) -> None:
    """A rank that reports another place, a failed step or a later step took long, and is not accused."""
    doubt(ranks)
    assert stand(ranks, other=other) == ""


def test_a_rank_that_has_computed_until_then_is_not_accused(ranks: Ranks) -> None:
    """A rank is not accused that began its next collective only when all were asked already."""
    doubt(ranks)
    ranks.says(1, heartbeat=beat(12))
    assert stand(ranks) == ""


def test_who_waits_for_a_rank_that_is_gone_is_not_accused(ranks: Ranks) -> None:
    """The rank that is gone is replaced."""
    doubt(ranks)
    ranks.membership.ended("a/1")
    assert stand(ranks) == ""
