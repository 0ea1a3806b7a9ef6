"""The pages that name a test for each row name tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ATTACKED, NEVER_LOST = ROOT / "docs/evidence/attacked.md", ROOT / "docs/evidence/never-lost.md"


def rows_of(page: Path) -> list[str]:
    """Returns the rows of all tables of a page, without their heads."""
    lines = page.read_text().splitlines()
    heads = {index - 1 for index, line in enumerate(lines) if line.startswith("|---")}
    return [line for index, line in enumerate(lines) if line.startswith("| ") and index not in heads]


@cache
def _tests_in(path: Path) -> set[str]:
    functions = (
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {function.name for function in functions if function.name.startswith("test_")}


@pytest.mark.parametrize("page", [ATTACKED, NEVER_LOST], ids=lambda page: page.name)
def test_every_row_has_its_test(page: Path) -> None:
    """A row names a file with tests, or a test in it."""
    rows = rows_of(page)
    assert len(rows) > 40
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert named, row
        for file, test in named:
            tests = _tests_in(ROOT / file)
            assert tests, file
            assert not test or test in tests, f"{file} has no {test}"


def test_every_way_to_lose_a_recovery_is_a_row() -> None:
    """All 47 ways are there, once each."""
    numbers = [int(row.split("|")[1]) for row in rows_of(NEVER_LOST)]
    assert sorted(numbers) == list(range(1, 48))


@pytest.mark.parametrize("row", rows_of(NEVER_LOST), ids=lambda row: row.split("|")[1].strip())
def test_a_way_to_lose_a_recovery_has_its_proof(row: str) -> None:
    """A row names a test and not only its file. The files that prevent a loss exist, and what remains is a known limit."""
    _, here, proof = row.strip("| ").rsplit(" | ", 2)
    assert re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`(, `tests/[\w/]+\.py::test_\w+`)*", proof)
    assert all((ROOT / file).exists() for file in re.findall(r"`([\w/]+\.py)`", here))
    assert ("In part" not in here) or "../known-limits.md#" in here
