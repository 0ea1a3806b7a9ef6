"""Samples tests that prove the same path: one test of each group runs, chosen by the commit; `make test-all` runs all of them.

    @pytest.mark.same_path("a failed hot switch ends in job rescheduling")

A test whose parameters prove the same path is marked once, and one of its cases runs. Cases that differ in one parameter are
marked by its name, whatever the test is:

    pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.same_path(over="kind")) for kind in KINDS])
"""

import os
import random
import subprocess
from pathlib import Path

import pytest

ALL = os.environ.get("REKINDLE_TEST_ALL") == "1"


def commit() -> str:
    """Returns the commit, the seed of the samples: everybody who runs this commit's tests runs the same ones."""
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "0"


def _but(parameter: str, item: pytest.Item) -> str:
    """Returns the name of a test case without its value of one parameter."""
    assert isinstance(item, pytest.Function)
    return f"{item.path.name} {item.name.replace(str(item.callspec.params[parameter]), '*')}"


def sampled(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Returns the tests that run, and those that are left out. A test that is selected by its own name is never left out."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if marker := item.get_closest_marker("same_path"):
            groups.setdefault(marker.args[0] if marker.args else _but(marker.kwargs["over"], item), []).append(item)
    seed = commit()
    left_out = set()
    for name, group in sorted(groups.items()):
        chosen = random.Random(f"{seed} {name}").choice(sorted(group, key=lambda item: item.nodeid))
        left_out |= {item.nodeid for item in group if item is not chosen}
    return [item for item in items if item.nodeid not in left_out], [item for item in items if item.nodeid in left_out]
