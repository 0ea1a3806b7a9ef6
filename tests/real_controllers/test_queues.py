"""Jobs in a queue of the real Kueue, webhooks included: what works there, and what is refused and said beforehand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from activities.clusters.api_server import Object
from rekindle.cli.demos import measure
from rekindle.cli.stack import Stack
from rekindle.errors import Refused
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from tests.kubernetes.world.control_plane import ACCELERATOR, Namespace
from tests.kubernetes.world.trained_examples import (
    NO_WORDS,
    Controllers,
    Underway,
    trained_through,
    trained_through_a_drain,
    trained_through_a_hot_switch,
    trained_through_a_lost_pod,
)
from tests.real_controllers.conftest import cluster_with
from tests.real_controllers.controllers import JOBSET, KUEUE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800)]
"""Programs are built."""

API = "kueue.x-k8s.io/v1beta2"
USED, ONE_POD_MORE = 4, 6
"""Accelerators: of the job, and with a backup pod of it."""

NAMED = {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
SOON = {"annotations": {"rekindle.io/limits": '{"backupScheduled": 8}'}}

in_each_kind = pytest.mark.parametrize("kind", ["Job", "JobSet"])
in_each_queue = pytest.mark.parametrize(
    ("name", "quota", "words"), [("gpus", USED, NAMED), ("default", ONE_POD_MORE, NO_WORDS)], ids=["named", "default"]
)
"""Queue that the job names, which counts no backup, and the queue `default`, which counts one as a pod of its own."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with cluster_with((JOBSET, KUEUE)) as stack:
        yield stack


def queue(name: str, quota: int, counted: list[str] | None = None) -> Controllers:
    """A LocalQueue of the namespace, and its quota.

    Args:
        counted: gets the kinds of objects that Kueue has counted, at the end.
    """

    @asynccontextmanager
    async def queued(namespace: Namespace) -> AsyncIterator[None]:
        flavor, resource = f"{namespace.name}-plain", {"name": ACCELERATOR, "nominalQuota": str(quota)}
        groups = [{"coveredResources": [ACCELERATOR], "flavors": [{"name": flavor, "resources": [resource]}]}]
        await create(namespace, "ResourceFlavor", flavor, {})
        await create(namespace, "ClusterQueue", namespace.name, {"namespaceSelector": {}, "resourceGroups": groups})
        local = {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": namespace.name}}
        await namespace.api.create(namespace.path("localqueues"), local)
        yield
        if counted is not None:
            found = (await namespace.api.list(namespace.path("workloads"))).items
            counted.extend(one["metadata"]["ownerReferences"][0]["kind"] for one in found)

    return queued


async def create(namespace: Namespace, kind: str, name: str, spec: Object) -> None:
    """An object of no namespace."""
    body = {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}
    await namespace.api.create(f"/apis/{API}/{kind.lower()}s", body)


@in_each_kind
async def test_a_pod_of_a_named_queue_is_hot_switched(kind: str, stack: Stack, tmp_path: Path) -> None:
    """Kueue does not count the backup, and the quota need not have room for it."""
    counted: list[str] = []
    await trained_through_a_hot_switch(kind, stack, tmp_path, queue("gpus", USED, counted), NAMED)
    assert counted == [kind]


@in_each_kind
async def test_a_pod_of_the_default_queue_is_hot_switched_where_the_quota_has_room(
    kind: str, stack: Stack, tmp_path: Path
) -> None:
    """Kueue counts the backup as a pod of its own, and lets it run."""
    counted: list[str] = []
    await trained_through_a_hot_switch(kind, stack, tmp_path, queue("default", ONE_POD_MORE, counted))
    assert "Pod" in counted


@in_each_kind
async def test_a_pod_of_the_default_queue_stays_where_the_quota_has_no_room(kind: str, stack: Stack, tmp_path: Path) -> None:
    """The backup waits for Kueue's gate, which the verdict names. Training goes on, and the policy stays."""

    async def degrade(underway: Underway) -> None:
        async with underway.degraded(underway.holder(2).node):
            await underway.mended()

    trained = await trained_through(degrade, kind, stack, tmp_path, queue("default", USED), SOON)
    assert trained.ladder == [(Mode.HOT_SWITCH, Outcome.IGNORED)]
    assert "kueue.x-k8s.io/admission" in trained.incident.ladder[0].reason
    assert trained.incident.policy_after is SubHealthStrategy.HOT_SWITCH
    assert (measure.steps_lost(trained.records), trained.pods) == (0, [1, 1, 1, 1])


@in_each_kind
@in_each_queue
async def test_a_job_of_a_queue_is_told_that_it_is_not_restarted(
    kind: str, name: str, quota: int, words: Object, stack: Stack, tmp_path: Path
) -> None:
    """An event reports that at its registration, and a requested restart is refused with the same reason."""
    reason = f"Kueue, queue '{name}'"

    async def restart(underway: Underway) -> None:
        assert reason in (await underway.namespace.until_event("RestartsRefused"))["message"]
        with pytest.raises(Refused, match=reason):
            await underway.rekindle.reschedule(underway.uid)

    trained = await trained_through(restart, kind, stack, tmp_path, queue(name, quota), words)
    assert (measure.steps_lost(trained.records), trained.pods) == (0, [1, 1, 1, 1])


@in_each_kind
@in_each_queue
async def test_a_lost_pod_is_replaced(kind: str, name: str, quota: int, words: Object, stack: Stack, tmp_path: Path) -> None:
    """The job's own controller or the recovery creates the pod."""
    await trained_through_a_lost_pod(kind, stack, tmp_path, queue(name, quota), words)


@in_each_kind
@in_each_queue
async def test_a_drain_waits_until_a_rank_has_moved(
    kind: str, name: str, quota: int, words: Object, stack: Stack, tmp_path: Path
) -> None:
    """The rank moves by a hot switch, and `kubectl drain` ends well."""
    await trained_through_a_drain(kind, stack, tmp_path, queue(name, quota), words)
