"""Ends of loops. Training is complete with its last step, and loops of different lengths end the job instead of hanging."""

import re
from pathlib import Path

import pytest

from rekindle_training.manager.loop_ends import QUIET_SECONDS, LoopEnds, uneven
from rekindle_wire.training_pb2 import Goodbye, Heartbeat, Leaving
from tests.training.heard import Ranks
from tests.training.job import Job
from tests.training.standalone import Standalone

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("uneven.py"))


async def test_training_is_complete_with_its_last_step(alone: Standalone) -> None:
    """The manager then says that training is complete, and logs no warning."""
    printed = await alone.run(script=SCRIPT, ranks=2, STEPS="4,4")
    assert "rekindle-manager INFO training is complete" in printed
    assert "WARNING" not in printed


@pytest.mark.parametrize("way", ["break", "loader"])
async def test_a_loop_that_all_ranks_end_early_is_said_to_be_so(way: str, alone: Standalone) -> None:
    """An early stop that the script announces ends with 0, and no process reports that training is complete."""
    printed = await alone.run(script=SCRIPT, ranks=2, STEPS="15,15", TOTAL="16", WAY=way, FINISHES="yes")
    assert "rekindle-manager WARNING training ended before its last step step=15 total=16 ranks=[0, 1]" in printed
    assert "complete" not in printed


@pytest.mark.parametrize(
    ("way", "environment"),
    [("total", {}), ("loader", {"TOTAL": "16"}), ("break", {"TOTAL": "16"})],
)
async def test_a_loop_that_is_shorter_on_one_rank_ends_the_job(way: str, environment: dict[str, str], alone: Standalone) -> None:
    """The job ends at once with an error that names the rank and both steps, whatever is left of restarts."""
    launcher = await alone.start("--max-restarts=3", script=SCRIPT, ranks=3, STEPS="16,15,16", WAY=way, **environment)
    assert await launcher.code(within=45) == 1
    reason = r"rank 1 left its loop after step 15 of 1[56], and ranks \[0, 2\] wait for it in step 16: all ranks"
    assert re.search(f"rekindle-train ERROR training abandoned reason={reason}", alone.printed)
    assert "all ranks restarted" not in alone.printed
    assert "complete" not in alone.printed


async def test_a_rank_that_is_slow_behind_its_loop_is_waited_for(alone: Standalone) -> None:
    """Half of --stall-seconds later it is asked where it stands, which costs a rebuild and no step."""
    launcher = await alone.start("--stall-seconds=6", script=SCRIPT, ranks=2, STEPS="4,4", SLOW="0")
    await alone.prints("loop left by some ranks, the others queried others=[0]")
    (alone.folder / "written").touch()
    assert await launcher.code() == 0
    assert "training is complete" in alone.printed


async def test_a_shorter_loop_ends_a_job_of_a_cluster(job: Job) -> None:
    """All ranks leave with an exit code, and the manager names the reason."""
    job.script, job.arguments, job.environment = SCRIPT, [], {"STEPS": "16,16,15,16"}
    await job.start()
    for pod in ("worker-0", "worker-1"):
        assert await job.started[pod].code() != 0
    assert "rank 2 left its loop after step 15 of 15, and ranks [0, 1, 3] wait for it in step 16" in job.outputs()


def ranks_that_end(patience: float = 0) -> Ranks:
    """Returns two ranks of a job whose loops are watched."""
    return Ranks(lambda membership, cut, clock: LoopEnds(membership, patience, cut, clock))


LEFT = {"leaving": Leaving(step=15, total=16, collectives=30)}


def test_a_rank_that_waits_in_a_further_collective_is_asked_where_it_stands() -> None:
    """A rank is asked as soon as it does not go on for two heartbeats."""
    ranks = ranks_that_end()
    ranks.says(0, **LEFT)
    ranks.says(1, heartbeat=Heartbeat(step=15, begun=16, collectives=31))
    assert ranks.looks(QUIET_SECONDS + 2) == 1
    assert uneven(ranks.membership).startswith("rank 0 left its loop after step 15 of 16, and ranks [1] wait for it in step 16: ")


@pytest.mark.parametrize(("patience", "asked"), [(0, 0), (60, 1)])
def test_a_rank_that_is_in_no_further_collective_is_left_alone(patience: float, asked: int) -> None:
    """A rank that computes or writes a file is left alone. It is asked when half of the user's patience is over."""
    ranks = ranks_that_end(patience)
    ranks.says(0, **LEFT)
    ranks.says(1, heartbeat=Heartbeat(step=15, begun=15, collectives=30))
    assert ranks.looks(29) == 0
    assert ranks.looks(29) == asked
    assert uneven(ranks.membership) == ""


def test_ranks_that_go_on_or_leave_as_well_are_not_asked() -> None:
    """The others come later, one after the other."""
    ranks = ranks_that_end(1)
    assert ranks.looks(100) == 0
    ranks.says(0, **LEFT)
    for collectives in range(31, 41):
        ranks.says(1, heartbeat=Heartbeat(step=15, begun=16, collectives=collectives))
        assert ranks.looks(1) == 0
    ranks.says(1, **LEFT)
    assert ranks.looks(100) == 0
    ranks.says(0, goodbye=Goodbye(step=15, total=16))
    assert ranks.looks(100) == 0


def test_a_rank_that_is_lost_waits_for_nobody() -> None:
    """A rank that is lost is replaced, and leaves the loop as the others did."""
    ranks = ranks_that_end()
    ranks.says(1, heartbeat=Heartbeat(step=15, begun=16, collectives=31))
    ranks.says(0, **LEFT)
    ranks.membership.ended("a/1")
    assert uneven(ranks.membership) == ""


def test_a_rank_that_leaves_again_in_the_next_generation_says_so_there() -> None:
    """A report that a rank leaves its loop counts in its own generation only."""
    ranks = ranks_that_end()
    ranks.says(0, **LEFT)
    ranks.membership.install(dict(ranks.membership.members))
    assert ranks.membership.members[0].leaving is None
