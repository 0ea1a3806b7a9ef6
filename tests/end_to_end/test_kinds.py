"""The manifests of other people's kinds, as a user applies them: real training under controllers that are played, through a lost
pod. `make real-controllers` runs the same under the real ones.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle.cli.stack import ClusterKind, Machine, Stack, running
from rekindle.model.mode import Outcome
from tests.fakes.controller import apply_crds
from tests.fakes.kubeflow import kubeflow
from tests.fakes.volcano import operator_and_volcano
from tests.kubernetes.world.control_plane import Namespace, a_namespace
from tests.kubernetes.world.trained_examples import (
    Underway,
    kubeconfig_of,
    trained_through,
    trained_through_a_lost_pod,
    watch_anew,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with AsyncExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="rekindle-e2e-")))
        stack = await ends.enter_async_context(running(folder, Machine(3, 2, ClusterKind.KUBERNETES)))
        async with a_namespace(kubeconfig_of(stack), "crds") as namespace:
            await apply_crds(namespace.api)
        await watch_anew(stack)
        yield stack


@asynccontextmanager
async def played(namespace: Namespace) -> AsyncIterator[None]:
    """Controllers of all kinds but Jobs, whose controller is the real one."""
    async with operator_and_volcano(namespace), kubeflow(namespace):
        yield


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.same_path("restarts of kinds")) for kind in ("Job", "JobSet")]
)
async def test_a_job_with_a_manager_of_its_own_kind_is_restarted(kind: str, stack: Stack, tmp_path: Path) -> None:
    """All pods start again from the last checkpoint, whether the manager is a pod of the job or of a Job of its own."""

    async def restart(underway: Underway) -> None:
        verdict = await underway.rekindle.reschedule(underway.uid)
        assert verdict.outcome is Outcome.RECOVERED, verdict

    trained = await trained_through(restart, kind, stack, tmp_path, played)
    assert trained.pods == [2, 2, 2, 2]


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob", "TrainJob", "AscendJob"])
async def test_a_job_of_each_kind_trains_on_through_a_lost_pod(kind: str, stack: Stack, tmp_path: Path) -> None:
    """The manager is known by a token; the pod that takes over is made for the rank of the lost one, no step is lost, and its
    controller calls the job complete."""
    await trained_through_a_lost_pod(kind, stack, tmp_path, played)
