"""Errors by which scripts end the processes of their ranks, as reasons why training given up."""

from pathlib import Path

import pytest

from tests.training.standalone import Standalone

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("last_words.py"))
ERROR = "rank 1: UnpicklingError: Weights only load failed."


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("before", f"processes of rank 1 end before they join, the last one with code 1: {ERROR}"),
        ("inside", f"training did not get beyond step 2 in 3 tries: {ERROR}"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--spares=1"]], ids=["started", "from a spare"])
async def test_the_first_error_of_a_replacement_is_the_reason(
    place: str, words: str, flags: list[str], alone: Standalone
) -> None:
    """The first error of a replacement is the reason. The lost connections of other ranks are not."""
    printed = await alone.run(*flags, code=1, script=SCRIPT, ranks=2, PLACE=place)
    assert f"training given up reason={words}" in printed
    assert f"training abandoned reason={words}" in printed


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_the_error_of_a_script_that_fails_before_its_session_is_the_reason(
    method: str, alone: Standalone, tmp_path: Path
) -> None:
    """The manager receives the error, whichever way the process was started."""
    (tmp_path / "rank.py").write_text(
        "import os, signal\nimport rekindle_training\n"
        'if os.environ["RANK"] == "1":\n    raise FileNotFoundError("no tokens in /data")\nsignal.pause()'
    )
    printed = await alone.run(f"--start-method={method}", code=1, script=str(tmp_path / "rank.py"), ranks=2)
    assert "rank 1 ended with 1, and no other one trains: FileNotFoundError: no tokens in /data" in printed
    assert printed.count("Traceback (most recent call last)") == 1


async def test_the_error_of_a_child_of_a_rank_is_not_the_rank_s(alone: Standalone, tmp_path: Path) -> None:
    """A fork inherits what shows errors in the rank."""
    (tmp_path / "rank.py").write_text(
        "import os, sys\nif (child := os.fork()) == 0:\n    raise ValueError('of the child')\nos.waitpid(child, 0)\nsys.exit(7)"
    )
    printed = await alone.run(code=7, script=str(tmp_path / "rank.py"), ranks=1)
    assert "ended with 7, and no other one trains restarts" in printed


async def test_a_refusal_shows_the_lines_of_the_script_alone(alone: Standalone) -> None:
    """A rank prints the refusal without the frames of the session, and the manager logs once that scripts have failed so."""
    printed = await alone.run(
        code=1, script=str(Path(__file__).with_name("scripts").joinpath("careless.py")), ranks=2, WISH="own parameters"
    )
    shown = [line for line in printed.splitlines() if "  File " in line]
    assert len(shown) == 2
    assert all("careless.py" in line for line in shown)
    assert printed.count("script of a rank failed") == 1
