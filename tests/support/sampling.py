"""Samples tests by the committed code; `make test-all` runs all of them.

Of tests that prove the same path, one runs:

    @pytest.mark.same_path("a failed hot switch ends in job rescheduling")

A test whose parameters prove the same path is marked once, and one of its cases runs. Cases that differ in one parameter are
marked by its name, whatever the test is:

    pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.same_path(over="kind")) for kind in KINDS])

Of the other costly tests with parameters, `MOST_CASES` cases run. A test is costly if it needs a server or processes of a job, by
its fixtures or by itself (`pytest.mark.costly`). `REKINDLE_TEST_SAMPLE=1`, which `make test` sets, runs one costly test of
`ONE_OF` of each folder.
"""

import os
import random
import subprocess
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROSE = {"CHANGELOG.md", "README.md", "docs"}

MOST_CASES = 2
ONE_OF = 10
COSTLY = {"temporal", "zygote", "kubeconfig", "product", "stack"}
"""Fixtures that start a Temporal server, ranks, a Kubernetes control plane, the product, or all of it on Kubernetes."""

ALL = os.environ.get("REKINDLE_TEST_ALL") == "1"
SAMPLE = os.environ.get("REKINDLE_TEST_SAMPLE") == "1"


@cache
def committed_code() -> str:
    """Returns the hash of the committed files without prose, the seed of the samples: everybody who runs the tests of this code
    runs the same ones."""
    command = ["git", "ls-tree", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    files = [line for line in found.stdout.splitlines() if line.split("\t")[1] not in PROSE]
    return sha256("\n".join(files).encode()).hexdigest()


def _but(parameter: str, item: pytest.Item) -> str:
    """Returns the name of a test case without its value of one parameter."""
    assert isinstance(item, pytest.Function)
    return f"{item.path.name} {item.name.replace(str(item.callspec.params[parameter]), '*')}"


def _not_chosen(group: str, names: Iterable[str], most: int) -> set[str]:
    """Returns the names that are left out of a group."""
    ordered = sorted(names)
    return set(ordered) - set(random.Random(f"{committed_code()} {group}").sample(ordered, min(most, len(ordered))))


def _costly(items: Iterable[pytest.Item]) -> dict[str, dict[str, list[pytest.Item]]]:
    """Returns the cases of each costly test, by folder and test."""
    folders: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and (COSTLY & set(item.fixturenames) or item.get_closest_marker("costly")):
            tests = folders.setdefault(item.path.parent.name, {})
            tests.setdefault(f"{item.path.name} {item.originalname}", []).append(item)
    return folders


def _is_marked(cases: Iterable[pytest.Item]) -> bool:
    return any(item.get_closest_marker("same_path") for item in cases)


def _names(cases: Iterable[pytest.Item]) -> set[str]:
    return {item.nodeid for item in cases}


def sampled(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Returns the tests that run, and those that are left out. A test that is selected by its own name is never left out."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if marker := item.get_closest_marker("same_path"):
            groups.setdefault(marker.args[0] if marker.args else _but(marker.kwargs["over"], item), []).append(item)
    left_out = {name for group, cases in groups.items() for name in _not_chosen(group, _names(cases), 1)}
    for tests in _costly(items).values():
        for test, cases in tests.items():
            if not _is_marked(cases):
                left_out |= _not_chosen(test, _names(cases), MOST_CASES)
    if SAMPLE:
        for folder, tests in _costly(item for item in items if item.nodeid not in left_out).items():
            left_out |= {name for test in _not_chosen(folder, tests, -(-len(tests) // ONE_OF)) for name in _names(tests[test])}
    return [item for item in items if item.nodeid not in left_out], [item for item in items if item.nodeid in left_out]
