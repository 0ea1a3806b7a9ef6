"""Messages refer to what their reader has: a wheel has no pages, no README and no examples beside its packages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("rekindle", "workflows", "activities", "workers", "training/src/rekindle_training", "training/src/rekindle_wire")
PAGE = re.compile(r"\b(?:docs|examples|training|deploy)/[\w./-]*\.(?:md|ya?ml|py)\b|\bREADME\b")


def messages(tree: ast.AST) -> Iterator[str]:
    """All texts of a module but its docstrings and those of its attributes."""
    documented = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


@pytest.mark.parametrize("package", PACKAGES)
def test_no_message_points_at_a_file_of_the_repository(package: str) -> None:
    """A user who installed a wheel cannot open it; the message has to say what to do by itself."""
    found = [
        (path.name, text)
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in messages(ast.parse(path.read_text()))
        if PAGE.search(text)
    ]
    assert not found
