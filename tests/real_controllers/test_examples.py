"""`make real-controllers`: the manifests of `examples/kubernetes` under real controllers, webhooks included."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle.cli.stack import Stack
from tests.kubernetes.world.control_plane import a_namespace
from tests.kubernetes.world.examples import apply, documents
from tests.kubernetes.world.trained_examples import (
    kubeconfig_of,
    nothing_more,
    trained_through_a_drain,
    trained_through_a_hot_switch,
    trained_through_a_lost_pod,
    trained_through_a_restart,
)
from tests.real_controllers.conftest import cluster_with
from tests.real_controllers.controllers import OF_KIND

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800)]
"""Programs are built."""


@dataclass(frozen=True)
class Installed:
    """A cluster with the real controllers of a kind."""

    kind: str
    stack: Stack


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=OF_KIND)
async def real(request: pytest.FixtureRequest) -> AsyncIterator[Installed]:
    """Cluster for each kind."""
    async with cluster_with(OF_KIND[request.param]) as stack:
        yield Installed(request.param, stack)


async def test_the_manifest_is_admitted_as_it_stands(real: Installed) -> None:
    """The schemas and the webhooks of its kind admit it."""
    async with a_namespace(kubeconfig_of(real.stack), "admitted") as namespace:
        assert (await apply(namespace, documents(real.kind)))["kind"] == real.kind


async def test_a_job_trains_on_through_a_lost_pod_under_its_real_controller(real: Installed, tmp_path: Path) -> None:
    """The controller appends its variables, counts the pod that takes over, and calls the job complete."""
    await trained_through_a_lost_pod(real.kind, real.stack, tmp_path, nothing_more)


async def test_a_pod_is_hot_switched_under_its_real_controller(real: Installed, tmp_path: Path) -> None:
    """The controller takes the backup for the pod that it replaces, and calls the job complete; no step is lost."""
    await trained_through_a_hot_switch(real.kind, real.stack, tmp_path, nothing_more)


async def test_a_job_that_has_lost_all_its_pods_is_restarted_through_its_real_controller(real: Installed, tmp_path: Path) -> None:
    """The controller lets the job be suspended and resumed with another template, and makes its pods; they go on from the last
    checkpoint."""
    await trained_through_a_restart(real.kind, real.stack, tmp_path, nothing_more)


async def test_a_drain_waits_until_a_rank_has_moved_under_its_real_controller(real: Installed, tmp_path: Path) -> None:
    """`kubectl drain` ends well, and no step is lost."""
    await trained_through_a_drain(real.kind, real.stack, tmp_path, nothing_more)
