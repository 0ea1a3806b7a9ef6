"""A step that fails on a rank is repeated by all, inside the processes that live: training ends as if nothing had happened."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from rekindle_training.adapter.failure_text import LONGEST, in_words
from rekindle_training.manager.repair import plan
from rekindle_training.manager.replacements import CannotRepair, Futile
from rekindle_wire.training_pb2 import Standing
from tests.training.gateway_service import GatewayPeer
from tests.training.job import PODS, WORLD, Job
from tests.training.processes import Zygote
from tests.training.standalone import last_words

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("repaired.py"))

BY_ITSELF = {"REKINDLE_ORDER_TIMEOUT": "0"}
"""Environment of a job without a control plane, for which the manager does not wait."""

Train = Callable[..., Awaitable[Job]]
"""Runs a job with this script and these variables to its end."""


@pytest.fixture
def train(tmp_path: Path, zygote: Zygote, gateway: GatewayPeer) -> Train:
    async def train(folder: str = "job", code: int = 0, **environment: str) -> Job:
        gateway.recovers = "" if "REKINDLE_ORDER_TIMEOUT" in environment else "in place"
        (tmp_path / folder).mkdir(exist_ok=True)
        job = Job(tmp_path / folder, zygote, gateway, environment, [], SCRIPT)
        try:
            await job.start()
            codes = await asyncio.gather(*(job.started[f"worker-{pod}"].code() for pod in range(PODS)))
            assert set(codes) == {code}
        finally:
            await job.end()
            print(job.outputs())
        return job

    return train


@pytest.fixture(scope="module")
def found() -> list[str]:
    """Keeps how an undisturbed run ended, once there was one."""
    return []


@pytest.fixture
def undisturbed(train: Train, found: list[str]) -> Callable[[], Awaitable[list[str]]]:
    async def undisturbed() -> list[str]:
        if not found:
            found.extend(last_words((await train("undisturbed")).outputs()))
        return found

    return undisturbed


Undisturbed = Callable[[], Awaitable[list[str]]]


def at_places(path: str, **places: str) -> list[ParameterSet]:
    """Returns parameters of a test, of which one per path is run, chosen by the committed code."""
    return [pytest.param(faults, id=name.replace("_", " "), marks=pytest.mark.same_path(path)) for name, faults in places.items()]


@pytest.mark.parametrize(
    "faults",
    [
        *at_places(
            "a step fails on a rank before its update",
            before_anything="0:1:beginning,2:5:beginning",
            in_an_evaluation="0:4:evaluating",
            behind_a_backward_pass="1:6:backward",
        ),
        *at_places(
            "a step fails on a rank in the middle of its collectives",
            inside_a_collective="3:5:communicating",
            on_two_ranks_at_once="0:5:communicating,3:5:backward",
            where_the_script_swallows_it="0:6:swallowing,2:6:communicating",
        ),
        *at_places(
            "a step fails on a rank when its update has begun",
            behind_the_agreement="2:5:agreed",
            behind_the_update_of_the_first_rank="0:7:updated",
            at_the_end_of_the_last_step="1:12:ending",
            in_the_step_that_repeats="2:5:updated,2:6:backward,1:6:updated",
        ),
    ],
)
async def test_a_step_that_fails_is_repeated(faults: str, train: Train, undisturbed: Undisturbed) -> None:
    """A step may fail at any place, on one rank or several. Parameters, moments, random numbers, data, schedule and scale are, to
    the bit, those of an undisturbed run."""
    job = await train(FAULTS=faults)
    assert last_words(job.outputs()) == await undisturbed()
    assert "repaired step=" in job.outputs()
    raised = [fault for fault in faults.split(",") if "swallowing" not in fault]
    assert job.outputs().count("rekindle-train ERROR") == len(raised), "what failed, and no consequence of it"


@pytest.mark.same_path("a step is repeated in a loop of another kind")
async def test_gradients_of_several_turns_are_gathered_anew(train: Train) -> None:
    """A rank that goes back in a loop whose turns are parts of a batch has the gradients after the turn before. These gradients
    are the same on all ranks."""
    repaired = await train(FAULTS="1:2:backward,1:6:backward,2:9:backward", GATHER="2", WRAP="")
    assert last_words(repaired.outputs()) == last_words((await train("undisturbed", GATHER="2", WRAP="")).outputs())


@pytest.mark.same_path("a step is repeated in a loop of another kind")
async def test_data_that_is_drawn_in_front_of_the_scope_is_drawn_again(train: Train) -> None:
    """A step begins where the loop gives it out, as in `for step, batch in zip(training.steps(...), loader)`."""
    repaired = await train(FAULTS="1:6:backward", EARLY="yes")
    assert last_words(repaired.outputs()) == last_words((await train("undisturbed", EARLY="yes")).outputs())


@pytest.mark.same_path("a collective stands behind the scope of a step that failed")
@pytest.mark.parametrize("place", ["backward", "ending"])
async def test_a_collective_behind_the_scope_ends_training_and_does_not_hang(place: str, train: Train) -> None:
    """The failed rank is alone in the collective. All ranks are notified at once, and fail there as they would without the
    scope."""
    await train(code=1, FAULTS=f"2:5:{place}", TAIL="yes", **BY_ITSELF)


async def test_a_step_that_fails_again_and_again_ends_training(train: Train) -> None:
    """A repair is tried three times, then the job ends with an error. Its log has one traceback, and a line for each further
    try."""
    printed = (await train(code=1, FAULTS="2:5:backward", ONCE="no", **BY_ITSELF)).outputs()
    assert printed.count("\nValueError: struck backward\n") == printed.count("Traceback (most recent call last)") == 1
    assert printed.count("failed again in step 5, as before: ValueError: struck backward") == 3
    assert "training did not get beyond step 4 in 3 tries" in printed


@pytest.mark.same_path("a checkpoint around a step that fails")
async def test_an_update_that_fails_everywhere_leaves_the_checkpoint(train: Train, undisturbed: Undisturbed) -> None:
    """No rank has the state after the step, and none can go back. The log says so, and the next start goes on at the
    checkpoint."""
    failed = await train(code=1, EVERY="2", FAULTS=",".join(f"{rank}:5:updated" for rank in range(WORLD)), **BY_ITSELF)
    assert "no rank has the state after step 5" in failed.outputs()
    assert last_words((await train(EVERY="2")).outputs()) == await undisturbed()


@pytest.mark.same_path("a checkpoint around a step that fails")
async def test_a_checkpoint_that_fails_on_a_rank_costs_no_step(train: Train, undisturbed: Undisturbed) -> None:
    """The other ranks leave it, and the next one is written."""
    job = await train(FAULTS="1:6:checkpoint", EVERY="3")
    assert last_words(job.outputs()) == await undisturbed()
    assert "failed in what follows step 6" in job.outputs()
    assert "checkpoint after step 6 not written, training goes on; the newest is that of step 3" in job.outputs()
    assert sorted(path.name for path in (job.folder / "checkpoints").iterdir()) == ["step-00000009", "step-00000012"]


async def test_without_the_scope_a_failure_ends_the_process(train: Train) -> None:
    """A loop that does not say `with step:` ends with a traceback, as with torchrun."""
    assert "repaired step=" not in (await train(code=1, FAULTS="2:5:backward", BARE="yes", **BY_ITSELF)).outputs()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "words"),
    [(Unspeakable(), "Unspeakable"), (ValueError("\ud800"), "ValueError: ?"), (KeyError("x" * 10**6), "KeyError: 'xx")],
)
def test_what_failed_is_told_in_words_whatever_it_was(error: Exception, words: str) -> None:
    """The manager receives no more than fits into a message, and nothing that cannot be sent."""
    told = in_words(error)
    assert told.startswith(words)
    assert len(told.encode()) <= LONGEST


def at(step: int, place: "Standing.Place.ValueType" = Standing.BOUNDARY) -> Standing:
    return Standing(step=step, place=place)


@pytest.mark.parametrize(
    ("standing", "step", "transfers"),
    [
        ((at(4), at(4), at(4)), 4, ()),
        ((at(4, Standing.VOTES), at(4), at(4, Standing.VOTES)), 4, ()),
        ((at(4, Standing.VOTES), at(5), at(4, Standing.VOTES)), 5, ()),
        ((at(4, Standing.VOTES), at(4, Standing.SPOILT), at(5)), 5, ((0, 1),)),
        ((at(4, Standing.SPOILT), at(4, Standing.SPOILT), at(5)), 5, ((2, 0), (2, 1))),
        ((at(4), at(5), at(5)), 5, ((1, 0),)),
        ((at(4), at(4, Standing.LOST), at(4)), 4, ((0, 1),)),
        ((at(0, Standing.LOST), at(4, Standing.VOTES), at(4, Standing.SPOILT)), 5, ((1, 0), (1, 2))),
    ],
)
def test_where_training_goes_on(standing: tuple[Standing, ...], step: int, transfers: tuple[tuple[int, int], ...]) -> None:
    """Training goes on after the last step whose update began on any rank. A rank that cannot get there by itself takes the state
    of one that can."""
    found = plan(dict(enumerate(standing)))
    assert (found.step, found.transfers) == (step, transfers)


@pytest.mark.parametrize("places", [(Standing.SPOILT, Standing.SPOILT), (Standing.SPOILT, Standing.LOST), (Standing.LOST,)])
def test_nobody_is_renewed_from_nobody(places: tuple["Standing.Place.ValueType", ...]) -> None:
    """Only the checkpoint is left where no rank has the state."""
    with pytest.raises(CannotRepair, match=r"no rank (has the state|is left)"):
        plan({rank: at(4, place) for rank, place in enumerate(places)})


@pytest.mark.parametrize("refused", [True, False])
def test_a_refusal_of_the_script_is_no_reason_for_a_restart(refused: bool) -> None:
    """The same script would be refused again; ranks that differ may be equal after a restart."""
    with pytest.raises(CannotRepair, match="a rule") as raised:
        plan({0: Standing(step=3), 1: Standing(step=3, place=Standing.LOST, reason="a rule", final=True, refused=refused)})
    assert isinstance(raised.value, Futile) == refused
