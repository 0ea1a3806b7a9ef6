import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes import Namespace, a_namespace, local_kubernetes

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One control plane for all tests; each has a namespace of its own."""
    with local_kubernetes(tmp_path_factory.mktemp("kubernetes")) as kubeconfig:
        yield kubeconfig


@pytest.fixture
async def namespace(kubeconfig: Path) -> AsyncIterator[Namespace]:
    async with a_namespace(kubeconfig, f"test-{next(_numbers)}") as namespace:
        yield namespace
