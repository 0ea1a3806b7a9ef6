"""`make real-controllers`: the manifests of `examples/kubernetes` under real controllers, webhooks included."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from activities.clusters.api_server import Api
from rekindle.cli.stack import ClusterKind, Machine, Stack, running
from tests.real_controllers.controllers import OF_KIND, controllers
from tests.support.examples import apply, documents
from tests.support.kubernetes import Namespace, a_namespace
from tests.support.trained_examples import kubeconfig_of, trained_through_a_lost_pod, watch_anew

pytestmark = pytest.mark.timeout(1800)
"""Programs are built."""


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    """One cluster for each test: the controllers of the last one would be missed."""
    async with AsyncExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="rekindle-real-")))
        yield await ends.enter_async_context(running(folder, Machine(3, 2, ClusterKind.KUBERNETES)))


@pytest.mark.parametrize("kind", OF_KIND)
async def test_a_job_trains_on_through_a_lost_pod_under_its_real_controller(kind: str, stack: Stack, tmp_path: Path) -> None:
    """The controller appends its variables, counts the pod that takes over, and calls the job complete."""
    folder = tmp_path / "job"
    folder.mkdir()

    @asynccontextmanager
    async def real(namespace: Namespace) -> AsyncIterator[None]:
        async with controllers(kind, namespace.api, kubeconfig_of(stack), tmp_path):
            await watch_anew(stack)
            yield

    await trained_through_a_lost_pod(kind, stack, folder, real)


@pytest.mark.parametrize("kind", OF_KIND)
async def test_the_manifest_is_admitted_as_it_stands(kind: str, stack: Stack, tmp_path: Path) -> None:
    """The schemas and the webhooks of its kind admit it."""
    async with (
        Api(kubeconfig_of(stack)) as api,
        controllers(kind, api, kubeconfig_of(stack), tmp_path),
        a_namespace(kubeconfig_of(stack), "admitted") as namespace,
    ):
        assert (await apply(namespace, documents(kind)))["kind"] == kind
