"""Scripts of others: what a recovery cannot repeat is refused in words while all is well, the rest is repaired to the bit."""

import re

import pytest

from tests.training.standalone import Standalone, last_words

SCRIPT = __file__.replace("test_careless", "careless")


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("own parameters", "model 0.weight differs between rank 0 and rank 1, which the session takes for the same"),
        ("gathers", "gradients 0.weight differs between rank 0 and rank 1"),
        ("forgotten scheduler", "StepLR sets the options of an optimizer, and was not given to the session"),
        ("stateful hook", "the communication hook powerSGD_hook has a state (PowerSGDState)"),
        ("early collective", "allreduce at careless.py:LINE speaks to other ranks before the loop"),
        ("late collective", "allreduce at careless.py:LINE speaks to other ranks after the update"),
        ("outside", "allreduce at careless.py:LINE speaks to other ranks outside `with step:`"),
        ("late draw", "torch's random numbers moved between the update of step 1 and the beginning of step 2"),
        ("carries a batch", "The step uses something that the session was not given"),
        ("numbers of its own", "The step uses something that the session was not given"),
        ("leaves out an update", "ranks disagree at the end of step 3"),
        ("updates outside", "is outside `with step:`"),
    ],
)
async def test_what_cannot_be_repaired_is_refused_while_all_is_well(wish: str, words: str, alone: Standalone) -> None:
    """The first breach ends training, and names what was done and what to write in its place."""
    printed = await alone.run(code=1, script=SCRIPT, ranks=2, WISH=wish)
    assert words in re.sub(r"careless\.py:\d+", "careless.py:LINE", printed)
    assert "final" not in printed


@pytest.mark.parametrize(
    "wish", ["", "evaluates through the wrapper", "momentum encoder", "compressing hook", "closure", "every"]
)
@pytest.mark.parametrize("kind", ["kill", "raise"])
async def test_what_can_be_repaired_ends_with_the_bits_of_an_undisturbed_run(
    wish: str, kind: str, alone: Standalone, beside: Standalone
) -> None:
    """Parameters, moments, buffers of each rank, learning rate and random numbers."""
    printed = await alone.run("--spares=1", script=SCRIPT, ranks=2, WISH=wish, KIND=kind, FAULT="1:5")
    assert "repaired step=4" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=2, WISH=wish))
