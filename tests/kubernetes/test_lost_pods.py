"""Pods and nodes of a running job are lost: the real watcher reports it to the job's real workflow, which decides.

The namespace is only observed unless a test says otherwise: the decision is in the job's history, and nothing is done.
"""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner

from activities.clusters.api_server import Object
from rekindle.ids import Queries, Updates, job_workflow
from rekindle.model import keys
from rekindle.model.attachment import Progress
from rekindle.model.cluster import Pod
from rekindle.model.dialogue import Receipt
from rekindle.model.fault import FaultKind, Sighting
from rekindle.model.incident import Incident
from rekindle.model.limits import Limits
from rekindle.model.mode import Outcome
from rekindle.model.state import JobStatus
from rekindle.policy.detection.watcher_updates import News, Sighted
from simulators.kubernetes.kubelet import LOST
from tests.kubernetes.world.worlds import WORLDS, KubernetesWorld
from workers.control import control_worker
from workers.watcher.job_workflows import TemporalJobWorkflows
from workers.watcher.watcher import Watcher

WAIT_LIMIT = 60.0
LOST_OR_REPLACED = "pod rank 1 lost the pod that held it|pod rank 1 passed to another pod"
OBSERVED = {keys.MODE: "observe"}


class Telling(TemporalJobWorkflows):
    """Records the reports that were sent."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.sightings: list[Sighting] = []

    async def send(self, job_id: str, news: News, update_id: str) -> None:
        await super().send(job_id, news, update_id)
        if isinstance(news, Sighted):
            self.sightings.append(news.sighting)


class Site:
    """A namespace with its controllers, a control worker and a watcher."""

    def __init__(self, world: KubernetesWorld, client: Client) -> None:
        self.world, self.client, self.telling = world, client, Telling(client)
        self.uid = ""
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        self._watching = asyncio.create_task(Watcher(self.world.cluster, self.telling, Limits(), listed=None).run())

    async def stop_watching(self) -> None:
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def job(self, node_lost: float = 20.0) -> None:
        """Submits a job of two pods on two nodes, and waits until its workflow knows who holds its ranks.

        Args:
            node_lost: seconds that a node is given to come back.
        """
        self.uid = await self.world.job(2, accelerators=2)
        await self.world.limit(nodeLost=node_lost)
        held = [(await self.world.holder(self.uid, rank)).metadata.uid[:8] for rank in (0, 1)]
        limit = timedelta(seconds=node_lost)
        await self.until(lambda status: list(status.state.holders) == held and status.state.job.limits.node_lost == limit)

    async def until(self, condition: Callable[[JobStatus], bool]) -> JobStatus:
        """Returns the status of the job, as soon as it satisfies a condition."""
        async with asyncio.timeout(WAIT_LIMIT):
            await self.until_registered()
            while not condition(status := await self.status()):
                await asyncio.sleep(0.03)
            return status

    async def until_registered(self) -> None:
        query = f"WorkflowId = '{job_workflow(self.uid)}'"
        while not (await self.client.count_workflows(query)).count:
            await asyncio.sleep(0.03)

    async def status(self) -> JobStatus:
        handle = self.client.get_workflow_handle(job_workflow(self.uid))
        status: JobStatus = await handle.query(Queries.STATUS, result_type=JobStatus)
        return status

    async def incident(self, words: str) -> Incident:
        """Returns the first incident whose summary contains this text."""
        status = await self.until(lambda status: any(re.search(words, one.summary) for one in status.state.history))
        return next(one for one in status.state.history if re.search(words, one.summary))

    @property
    def told_lost_nodes(self) -> bool:
        """Returns whether the job's workflow received a fault of a node that is not ready."""
        return any(fault.kind is FaultKind.NODE for seen in self.telling.sightings for fault in seen.faults)

    async def restarted(self) -> Incident:
        """Returns the first incident, and reports a first step in a new life until there is one."""
        handle = self.client.get_workflow_handle(job_workflow(self.uid))
        async with asyncio.timeout(WAIT_LIMIT):
            for life in itertools.count(1):
                if history := (await self.status()).state.history:
                    return history[0]
                await handle.execute_update(Updates.PROGRESS, Progress(incarnation=f"life-{life}", step=1), result_type=Receipt)
                await asyncio.sleep(0.1)
        raise AssertionError("a job lives for ever")

    async def delete(self, pod: Pod) -> None:
        """Deletes a pod as `kubectl delete pod` does."""
        await self.world.namespace.api.delete(self.world.namespace.path("pods", pod.metadata.name), pod.metadata.uid, 30)

    async def evict(self, pod: Pod) -> None:
        """Evicts a pod as `kubectl drain` does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.metadata.name}}
        await self.world.namespace.api.create(self.world.namespace.path("pods", f"{pod.metadata.name}/eviction"), body)


@asynccontextmanager
async def a_site(kind: str, kubeconfig: Path, directory: Path, temporal: WorkflowEnvironment) -> AsyncIterator[Site]:
    async with AsyncExitStack() as ends:
        ends.enter_context(temporal.with_time_skipping_disabled())
        world = await ends.enter_async_context(WORLDS[kind](kubeconfig, directory))
        await ends.enter_async_context(control_worker(temporal.client, world.cluster, UnsandboxedWorkflowRunner()))
        site = Site(world, temporal.client)
        site.watch()
        ends.push_async_callback(site.stop_watching)
        yield site
        await temporal.client.get_workflow_handle(job_workflow(site.uid)).terminate("the test is over")


@asynccontextmanager
async def observed(kind: str, kubeconfig: Path, directory: Path, temporal: WorkflowEnvironment) -> AsyncIterator[Site]:
    async with a_site(kind, kubeconfig, directory, temporal) as site:
        path = f"/api/v1/namespaces/{site.world.namespace.name}"
        await site.world.namespace.api.patch(path, {"metadata": {"labels": OBSERVED}})
        yield site


# ---- pods


@pytest.mark.parametrize("kind", ["direct, TrainingJob", "direct, Job", "direct, pods", "operator"])
@pytest.mark.same_path("a pod is deleted by a person")
async def test_a_pod_that_a_person_deletes_is_a_fault(
    kubeconfig: Path, tmp_path: Path, temporal: WorkflowEnvironment, kind: str
) -> None:
    """A pod that a person deletes is a fault, whether a controller recreates it at once or not: its processes are gone."""
    async with observed(kind, kubeconfig, tmp_path, temporal) as site:
        await site.job()
        await site.delete(await site.world.holder(site.uid, 1))
        (fault,) = (await site.incident(LOST_OR_REPLACED)).faults
        assert (fault.kind, fault.pod_ranks) == (FaultKind.POD, (1,))


@pytest.mark.parametrize("kind", ["direct, Job", "direct, pods"])
@pytest.mark.same_path("a pod is drained from its node")
async def test_a_pod_that_is_drained_from_its_node_is_a_fault(
    kubeconfig: Path, tmp_path: Path, temporal: WorkflowEnvironment, kind: str
) -> None:
    """A pod that is drained from its node is a fault. An eviction under pressure uses the same call."""
    async with observed(kind, kubeconfig, tmp_path, temporal) as site:
        await site.job()
        await site.evict(await site.world.holder(site.uid, 1))
        await site.incident(LOST_OR_REPLACED)


@pytest.mark.parametrize("kind", ["direct, Job", "direct, pods"])
@pytest.mark.same_path("a pod vanishes while no watcher runs")
async def test_a_pod_that_vanishes_while_no_watcher_runs_is_a_fault(
    kubeconfig: Path, tmp_path: Path, temporal: WorkflowEnvironment, kind: str
) -> None:
    """The next watcher reports who holds the ranks, and the job's workflow knows who held them."""
    async with observed(kind, kubeconfig, tmp_path, temporal) as site:
        await site.job()
        await site.stop_watching()
        pod = await site.world.holder(site.uid, 1)
        await site.delete(pod)
        await site.world.until_gone(site.uid, pod)
        site.watch()
        await site.incident(LOST_OR_REPLACED)


async def test_a_job_whose_pod_was_deleted_starts_anew(kubeconfig: Path, tmp_path: Path, temporal: WorkflowEnvironment) -> None:
    """A new pod alone would wait for the others for ever: all pods restart together, once, and afterwards there is no fault."""
    async with a_site("direct, TrainingJob", kubeconfig, tmp_path, temporal) as site:
        await site.job()
        before = {pod.metadata.uid for pod in await site.world.cluster.pods(site.uid)}
        await site.delete(await site.world.holder(site.uid, 1))
        assert (await site.restarted()).verdict is Outcome.RECOVERED
        after = [await site.world.holder(site.uid, rank) for rank in (0, 1)]
        assert before.isdisjoint(pod.metadata.uid for pod in after)
        held = [pod.metadata.uid[:8] for pod in after]
        status = await site.until(lambda status: list(status.state.holders) == held)
        assert (status.state.incidents, status.state.faults) == (1, ())


async def test_a_job_that_its_owner_suspends_stays_suspended(
    kubeconfig: Path, tmp_path: Path, temporal: WorkflowEnvironment
) -> None:
    """A job that its owner suspends stays suspended, and its workflow ends with that reason. The next workflow begins when the
    job is resumed, with nothing to recover."""
    async with a_site("direct, Job", kubeconfig, tmp_path, temporal) as site:
        await site.job()
        old = await site.world.cluster.pods(site.uid)
        path, namespace = site.world.path, site.world.namespace
        handle = temporal.client.get_workflow_handle(job_workflow(site.uid))
        await namespace.api.patch(path, {"spec": {"suspend": True}})
        async with asyncio.timeout(WAIT_LIMIT):
            assert (await handle.result())["reason"] == "the job was suspended"
        await site.world.until_gone(site.uid, *old)
        assert (await namespace.api.get(path))["spec"]["suspend"]
        await namespace.api.patch(path, {"spec": {"suspend": False}})
        before = {pod.metadata.uid[:8] for pod in old}  # which the workflow that has ended still answers with
        status = await site.until(lambda status: len(before.symmetric_difference(filter(None, status.state.holders))) == 4)
        assert (status.state.incidents, status.state.faults) == (0, ())


# ---- nodes


@asynccontextmanager
async def unreachable(site: Site, node: str) -> AsyncIterator[None]:
    """Makes a node unreachable until the block ends."""
    api, path = site.world.namespace.api, f"/api/v1/nodes/{node}"
    await api.patch(path, {"metadata": {"annotations": {LOST: "yes"}}})
    try:
        await say_not_ready(site, node)  # as the cluster does when the node's lease has run out
        yield
    finally:
        await api.patch(path, {"metadata": {"annotations": {LOST: None}}})
        await until_ready(site, node)


async def say_not_ready(site: Site, node: str) -> None:
    conditions = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "no word of it"}]
    await site.world.namespace.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": conditions}})


async def until_ready(site: Site, node: str) -> None:
    def ready(found: Object) -> bool:
        return {"type": "Ready", "status": "True"}.items() <= condition(found, "Ready").items()

    await site.world.namespace.until("nodes", node, ready)


def condition(node: Object, kind: str) -> Object:
    return next((one for one in node["status"]["conditions"] if one["type"] == kind), {})


async def test_a_node_that_is_not_ready_for_a_moment_restarts_nothing(
    kubeconfig: Path, tmp_path: Path, temporal: WorkflowEnvironment
) -> None:
    """The kubelet reports each time that the node is alive. The job's workflow receives that and has nothing to do, however often
    it happens."""
    async with a_site("direct, pods", kubeconfig, tmp_path, temporal) as site:
        await site.job()
        node = (await site.world.holder(site.uid, 1)).spec.node_name
        async with asyncio.timeout(WAIT_LIMIT):
            while not site.told_lost_nodes:
                await say_not_ready(site, node)
                await until_ready(site, node)
        status = await site.until(lambda status: not status.state.faults)
        assert (status.state.incidents, status.running) == (0, None)


async def test_a_node_that_stays_away_is_a_fault(kubeconfig: Path, tmp_path: Path, temporal: WorkflowEnvironment) -> None:
    """The node counts as lost once it was not ready for as long as the job gives a node to come back."""
    async with observed("direct, Job", kubeconfig, tmp_path, temporal) as site:
        await site.job(node_lost=1.0)
        node = (await site.world.holder(site.uid, 1)).spec.node_name
        async with unreachable(site, node):
            incident = await site.incident(f"node {node}")
            (fault,) = incident.faults
            assert fault.accepted_at
            assert incident.started_at - fault.accepted_at >= timedelta(seconds=1)


async def test_a_node_is_not_waited_for_when_a_pod_failed(
    kubeconfig: Path, tmp_path: Path, temporal: WorkflowEnvironment
) -> None:
    """The job does not train any more: there is nothing to wait for, and the node counts as lost at once."""
    async with observed("direct, Job", kubeconfig, tmp_path, temporal) as site:
        await site.job(node_lost=600.0)
        first, second = [await site.world.holder(site.uid, rank) for rank in (0, 1)]
        async with unreachable(site, second.spec.node_name):
            await site.until(lambda status: any(one.fault.kind is FaultKind.NODE for one in status.state.faults))
            assert (await site.status()).state.history == ()
            await site.delete(first)
            incident = await site.incident("pod rank 0 (lost|passed)")
            assert {fault.kind for fault in incident.faults} == {FaultKind.NODE, FaultKind.POD}
