import resource
from collections.abc import Iterator

import pytest

MEMORY = 256 * 1024
"""KiB by which the process may grow while one reader is fuzzed."""


@pytest.fixture(autouse=True, scope="module")
def bounded_memory() -> Iterator[None]:
    """No object takes memory without end, however large the numbers in it are."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY
