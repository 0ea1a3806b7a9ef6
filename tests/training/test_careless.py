"""Scripts of others. What a recovery cannot repeat is refused with an explanation while all is well; the rest is repaired to the
bit."""

import re
from pathlib import Path

import pytest

from tests.training.standalone import Standalone, last_words

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("careless.py"))
KINDS = [pytest.param(kind, marks=pytest.mark.same_path(over="kind")) for kind in ("kill", "raise")]


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("own parameters", "model 0.weight differs between rank 0 and rank 1, which the session takes for the same"),
        ("gathers", "gradients 0.weight differs between rank 0 and rank 1"),
        ("forgotten scheduler", "StepLR sets the options of an optimizer, and was not given to the session"),
        ("stateful hook", "the communication hook powerSGD_hook has a state (PowerSGDState)"),
        ("early collective", "allreduce at careless.py:LINE speaks to other ranks before the loop"),
        ("barrier before the session", "barrier at careless.py:LINE speaks to other ranks before the loop"),
        ("late collective", "allreduce at careless.py:LINE speaks to other ranks after the update"),
        ("outside", "allreduce at careless.py:LINE speaks to other ranks outside `with step:`"),
        ("late draw", "torch's random numbers moved between the update of step 1 and the beginning of step 2"),
        ("own average", "`shadow` averages the model, and was not given to the session"),
        ("carries a batch", "careless.py:LINE reads `carried`, which changes from turn to turn"),
        ("numbers of its own", "The step uses something that the session was not given"),
        ("leaves out an update", "rank 1 leaves out its update in step 3, and rank 0 updates"),
        ("updates outside", "is outside `with step:`"),
        ("lbfgs", "LBFGS evaluates its closure several times in one update; session(repeat_updates=True) repeats its steps"),
        ("two updates", "speaks to other ranks after the update"),
        ("every lowers the rate", "training.every(<lambda>): it has changed lr of optimizer after step 2"),
        ("every moves the scheduler", "it has changed "),
        ("every writes a parameter", "it has changed the parameter 3.bias after step 2"),
        ("scales moments", "the state of an optimizer changed in step 2 before its update"),
        ("bank", "cannot be repeated: a large object of `state` changed before the update"),
    ],
)
async def test_what_cannot_be_repaired_is_refused_while_all_is_well(wish: str, words: str, alone: Standalone) -> None:
    """The first breach ends training, and names what was done and what to write in its place."""
    printed = await alone.run(code=1, script=SCRIPT, ranks=2, WISH=wish)
    assert words in re.sub(r"careless\.py:\d+", "careless.py:LINE", printed)
    assert "final " not in printed


@pytest.mark.parametrize(
    "wish",
    [
        *("", "evaluates through the wrapper", "momentum encoder", "compressing hook", "closure", "every", "thaws"),
        *("counts in its forward pass", "begins as none", "louder dropout", "published momentum encoder", "draws one number"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_can_be_repaired_ends_with_the_bits_of_an_undisturbed_run(
    wish: str, kind: str, alone: Standalone, beside: Standalone
) -> None:
    """Parameters, moments, buffers of each rank, learning rate and random numbers."""
    printed = await alone.run("--spares=1", script=SCRIPT, ranks=2, WISH=wish, KIND=kind, FAULT="1:5")
    assert "repaired step=4" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=2, WISH=wish))


@pytest.mark.parametrize("how", ["parameter", "buffer", "large buffer"])
async def test_a_codebook_of_which_rows_move_late_is_repaired(how: str, alone: Standalone, beside: Standalone) -> None:
    """A run ends with the bits of an undisturbed one, however the rows are written, and long after the first steps were
    checked."""
    printed = await alone.run("--spares=1", script=SCRIPT, ranks=2, WISH="codes", HOW=how, FAULT="1:7")
    assert "repaired step=6" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=2, WISH="codes", HOW=how))


async def test_what_a_replacement_changes_before_its_loop_is_refused(alone: Standalone) -> None:
    """A replacement has the state of training before its loop. A script that overwrites it is refused."""
    wish = "changes between session and loop"
    printed = await alone.run("--spares=1", code=1, script=SCRIPT, ranks=2, WISH=wish, FAULT="1:5")
    assert "lr of optimizer was changed between session() and the loop of a process that goes on after step 4" in printed


async def test_an_error_of_the_rehearsal_says_that_it_is_one(alone: Standalone) -> None:
    """A rehearsal may fail, for example, on a list that the script clears after the update."""
    printed = await alone.run(code=1, script=SCRIPT, ranks=1, WISH="fills a list")
    assert "was done a second time on purpose, as after a fault (the rehearsal): RuntimeError: not the first pass" in printed


async def test_an_optimizer_that_holds_another_one_is_copied_with_it(alone: Standalone, beside: Standalone) -> None:
    """The moments of the inner optimizer move once in a repeated step. The same holds for the rehearsal, which would otherwise
    change training by itself."""
    printed = await alone.run("--spares=1", script=SCRIPT, ranks=2, WISH="container", FAULT="1:5", COPIES="1")
    assert "repaired step=4" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=2, WISH="container"))


@pytest.mark.parametrize("wish", ["late collective", "lbfgs", "two updates"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_step_is_repeated_whatever_failed_in_it_where_copies_are_kept(
    wish: str, kind: str, alone: Standalone, beside: Standalone
) -> None:
    """Several updates, closures that are called several times, and collectives after an update."""
    printed = await alone.run("--spares=1", script=SCRIPT, ranks=2, WISH=wish, KIND=kind, FAULT="1:5", COPIES="1")
    assert "repaired step=4" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=2, WISH=wish, COPIES="1"))


async def test_a_model_that_is_frozen_when_a_step_ends_is_repaired(alone: Standalone, beside: Standalone) -> None:
    """The wrapper has the parameters of before, as a critic that takes no gradients while another model is trained by it."""
    printed = await alone.run("--spares=1", script=SCRIPT, ranks=2, WISH="two updates", COPIES="1", FREEZES="1", FAULT="1:5")
    assert "repaired step=4" in printed
    assert last_words(printed) == last_words(
        await beside.run(script=SCRIPT, ranks=2, WISH="two updates", COPIES="1", FREEZES="1")
    )


async def test_a_generator_that_some_steps_use_is_named_when_it_first_moves(alone: Standalone) -> None:
    """A generator is named once on each rank. One that is seeded by the number of the step, or is not used, is not named."""
    printed = await alone.run(script=SCRIPT, ranks=2, WISH="a generator in some steps")
    named = re.findall(r"the generator (\w+) \((\w+)\) was not given to the session, and moved in step (\d)", printed)
    assert named == [("noise", "Generator", "3")] * 2


async def test_a_callback_of_a_rebuild_that_fails_is_named_and_its_traceback_is_printed_once(alone: Standalone) -> None:
    """Tries of the rebuild have one line each, and the reason of the end names the callback, too."""
    printed = await alone.run("--spares=1", code=1, script=SCRIPT, ranks=2, WISH="callback that fails", FAULT="1:5")
    assert printed.count("callback regroup of on_rebuild failed") == 1
    assert printed.count("failed again, as before: callback regroup of on_rebuild: ValueError: no such group") == 2
    assert printed.count('raise ValueError("no such group")') == 1
    assert "in 3 tries: rank 0: callback regroup of on_rebuild: ValueError: no such group" in printed


async def test_buffers_of_each_rank_are_in_its_checkpoint(alone: Standalone, beside: Standalone) -> None:
    """Statistics of BatchNorm that differ from rank to rank are those of an undisturbed run after a restart of all ranks."""
    wish = "evaluates through the wrapper"
    printed = await alone.run("--max-restarts=1", script=SCRIPT, ranks=1, WISH=wish, FAULT="0:6", EVERY="4")
    assert "all ranks restarted from the last checkpoint" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=1, WISH=wish, EVERY="4"))


async def test_buffers_of_an_average_that_differ_from_rank_to_rank_are_named(alone: Standalone) -> None:
    """Buffers that change after the update are kept by nobody for a rank that is lost. The log says so once."""
    printed = await alone.run(script=SCRIPT, ranks=2, WISH="average with buffers")
    assert printed.count("buffers differ from rank to rank and change after the update, such as module.1.running_mean") == 1


async def test_what_another_thread_says_after_an_update_is_no_pass_of_the_model(alone: Standalone) -> None:
    """An asynchronous save speaks so, in a group of its own."""
    assert "final 1" in await alone.run(script=SCRIPT, ranks=2, WISH="speaks in a thread")


async def test_a_loop_that_ends_before_its_total_is_no_complete_training(alone: Standalone) -> None:
    """A loop that ends early is an error unless the script says that it is meant."""
    printed = await alone.run(code=1, script=SCRIPT, ranks=1, WISH="ends early")
    assert "the loop ended after step 7 of 8; say training.finish() before a `break` that is meant" in printed
