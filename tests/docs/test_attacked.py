"""The page of attacks names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/attacked.md"


def _tests_in(path: Path) -> set[str]:
    functions = (
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_attack_has_its_test() -> None:
    """Each row names a file with tests, or one test in it."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| scenario")]
    assert len(rows) > 40
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert named, row
        for file, test in named:
            tests = _tests_in(ROOT / file)
            assert tests, file
            assert not test or test in tests, f"{file} has no {test}"
