"""Changes that a script makes while it trains are present in a process that replaces a rank."""

from pathlib import Path

import pytest

from tests.training.standalone import Standalone, last_words

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("changing.py"))


@pytest.mark.parametrize("wish", ["mode", "attribute", "second model", "sharded second model"])
async def test_a_replacement_has_what_the_script_changed_in_earlier_steps(
    wish: str, alone: Standalone, beside: Standalone
) -> None:
    """Modes and attributes of modules, gradients that a second model gathers, and shards of a second model."""
    printed = await alone.run(script=SCRIPT, ranks=2, WISH=wish, FAULT="1:8")
    assert "repaired step=7" in printed
    assert last_words(printed) == last_words(await beside.run(script=SCRIPT, ranks=2, WISH=wish))


async def test_a_step_that_is_repeated_after_its_update_moves_the_scaler_once(alone: Standalone, beside: Standalone) -> None:
    """The scale of the scaler grows after as many steps as in an undisturbed run."""
    options = {"script": SCRIPT, "ranks": 2, "WISH": "scaler", "COPIES": "1"}
    printed = await alone.run(FAULT="1:7", PLACE="end", KIND="raise", **options)  # type: ignore[arg-type]
    assert "repaired step=6" in printed
    assert last_words(printed) == last_words(await beside.run(**options))  # type: ignore[arg-type]


async def test_a_second_model_that_gathers_gradients_is_repaired_where_copies_are_kept(
    alone: Standalone, beside: Standalone
) -> None:
    """Gradients that one of several updates leaves are copied, too."""
    options = {"script": SCRIPT, "ranks": 2, "WISH": "second model", "COPIES": "1"}
    printed = await alone.run(FAULT="1:8", PLACE="end", **options)  # type: ignore[arg-type]
    assert "repaired step=7" in printed
    assert last_words(printed) == last_words(await beside.run(**options))  # type: ignore[arg-type]
