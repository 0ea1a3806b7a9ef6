"""Share of docstrings that begin with a preposition or a pronoun: such a sentence is not understood without the code.

`python .ci/docstring_openings.py [--list]` prints the share of each folder and exits 1 where a folder exceeds its ceiling.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PREPOSITIONS = "about after as at before behind beside between by for from in of on over than to under until with within without"
PRONOUNS = "he how it its nobody she that their them these they this those what when where whether which while who whose"
CEILINGS = {"tests": 0.28}
"""Highest accepted share of a folder; of all others `CEILING`. That of the tests falls as they are rewritten."""

CEILING = 0.05
UNCLEAR = {*PREPOSITIONS.split(), *PRONOUNS.split(), "and", "because", "but", "if", "not", "or"}


def openings(file: Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of each docstring of a file, those of fields and constants included."""
    for node in ast.walk(ast.parse(file.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.strip():
                yield statement.lineno, value.value


def main() -> None:
    total, unclear = Counter[str](), Counter[str]()
    for folder in ("rekindle", "workflows", "activities", "workers", "training/src", "benchmarks", "tests"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                continue
            for line, text in openings(file):
                total[folder] += 1
                word = re.search(r"[A-Za-z']+", text)
                if word and word[0].lower() in UNCLEAR:
                    unclear[folder] += 1
                    if "--list" in sys.argv:
                        print(f"{file.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0][:100]}")
    over = []
    for folder, count in total.items():
        share, ceiling = unclear[folder] / count, CEILINGS.get(folder, CEILING)
        over += [folder] if share > ceiling else []
        print(f"{folder}: {share:.1%} of {count}, accepted are {ceiling:.0%}")
    if over:
        sys.exit(f"too many docstrings begin with a preposition or a pronoun in {', '.join(over)}: see them with --list")


main()
