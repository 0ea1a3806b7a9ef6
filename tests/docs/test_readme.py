"""Targets of make, commands and options that the README and its pages tell people to type exist."""

import re
import shlex
from pathlib import Path

import pytest

from rekindle.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
TARGET = re.compile(r"^([a-z-]+):.*?## ", re.MULTILINE)


def commands(page: str) -> list[str]:
    """The lines of all shell blocks of a page."""
    blocks = re.findall(r"```(?:sh|bash|shell)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("target", [line.split()[1] for line in commands("README.md") if line.startswith("make ")])
def test_every_make_command_of_the_readme_is_a_target(target: str) -> None:
    """`make help` lists each target that the README names."""
    assert target in TARGET.findall((ROOT / "Makefile").read_text())


TYPED = [line for page in ("README.md", "docs/cli.md") for line in commands(page) if line.startswith(".venv/bin/rekindle ")]


@pytest.mark.parametrize("line", TYPED)
def test_every_command_of_the_readme_is_understood(line: str) -> None:
    """Command, arguments and options are those of the command line."""
    app.parse_args(shlex.split(line.removesuffix("&"))[1:], exit_on_error=False, print_error=False)


def test_the_readme_is_short() -> None:
    """A first look takes a few minutes; the pages have the rest."""
    assert len((ROOT / "README.md").read_bytes()) <= 7_000
