"""Share of docstrings that begin with a preposition or a pronoun: such a sentence is not understood without the code.

`python .ci/docstring_openings.py [--list]` prints the share of each folder and exits 1 where a folder exceeds its ceiling.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PREPOSITIONS = "about after as at before behind beside between by for from in of on over than to under until with within without"
PRONOUNS = "he how it its nobody she that their them these they this those what when where whether which while who whose"
CEILING = 0.05
"""Highest accepted share of a folder."""

UNCLEAR = {*PREPOSITIONS.split(), *PRONOUNS.split(), "and", "because", "but", "if", "not", "or"}


def openings(file: Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of each docstring of a file, those of fields and constants included."""
    for node in ast.walk(ast.parse(file.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.strip():
                yield statement.lineno, value.value


def counted(folder: str) -> tuple[int, int]:
    """Returns how many docstrings a folder has, and how many of them are unclear. Prints these with `--list`."""
    total = unclear = 0
    for file in sorted((ROOT / folder).rglob("*.py")):
        for line, text in () if file.name.endswith(("_pb2.py", "_pb2_grpc.py")) else openings(file):
            total += 1
            word = re.search(r"[A-Za-z']+", text)
            if word and word[0].lower() in UNCLEAR:
                unclear += 1
                if "--list" in sys.argv:
                    print(f"{file.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0][:100]}")
    return total, unclear


def main() -> None:
    over = []
    for folder in ("rekindle", "workflows", "activities", "workers", "simulators", "training/src", "benchmarks", "tests"):
        total, unclear = counted(folder)
        over += [folder] if unclear > CEILING * total else []
        print(f"{folder}: {unclear / total:.1%} of {total}, accepted are {CEILING:.0%}")
    if over:
        sys.exit(f"too many docstrings begin with a preposition or a pronoun in {', '.join(over)}: see them with --list")


main()
