"""Lines that a refusal names."""

from pathlib import Path
from typing import Any

import pytest

from rekindle_training.adapter.places import line_of_script


def called(file: Path, source: str, **names: Any) -> Any:
    """The function `run` of a file with this source."""
    exec(compile(source, str(file), "exec"), names)
    return names["run"]


@pytest.mark.parametrize(
    ("library", "line"),
    [
        ("site-packages/lightning/ddp.py", "ddp.py:2, called at train.py:3"),
        ("dist-packages/ddp.py", "ddp.py:2, called at train.py:3"),
        ("mine/ddp.py", "ddp.py:2"),
    ],
)
def test_what_a_library_does_is_named_with_the_line_of_the_script(library: str, line: str, tmp_path: Path) -> None:
    """The innermost line of a file that is not installed follows; a module of the script's own needs none."""
    speak = called(tmp_path / library, "def run():\n    return line()\n", line=line_of_script)
    train = called(tmp_path / "train.py", "def run():\n    step = 1\n    return speak()\n", speak=speak)
    assert train() == line
