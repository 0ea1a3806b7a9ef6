"""A survey of a job for its workflow: the same value as the watcher reports, of the cluster as it answers now."""

from collections.abc import AsyncIterator

import pytest
from temporalio.testing import ActivityEnvironment

from activities.clusters.local import LocalCluster
from activities.journal import JournalActivities
from activities.pods import MOST_NODES, PodActivities
from rekindle.cluster_client import ClusterClient
from rekindle.errors import NotFound
from rekindle.model.activities.jobs import EventRequest, PolicyRequest, RememberRequest, Survey, SurveyRequest
from rekindle.model.cluster import ClusterEvent, JobPhase, JobView, Node
from rekindle.model.fault import FaultKind
from rekindle.model.state import Remembered
from rekindle.policy.detection.sighting import sight
from tests.support.cluster import job_object, until, until_running


@pytest.fixture
async def cluster(client: ClusterClient) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(client.socket)
    yield cluster
    await cluster.close()


async def survey(cluster: LocalCluster, job_id: str, *nodes: str) -> Survey:
    answer: Survey = await ActivityEnvironment().run(PodActivities(cluster).survey, SurveyRequest(job_id=job_id, nodes=nodes))
    return answer


async def test_a_survey_sees_what_the_watcher_sees(client: ClusterClient, cluster: LocalCluster) -> None:
    """A survey has holders, and faults of the named nodes; it has no faults of other nodes or of nodes that do not exist."""
    job = await client.submit(job_object(pods=2, accelerators=2))
    first, second = await until_running(client, "demo-worker-0", "demo-worker-1")
    for pod in (first, second):
        await client.degrade(pod.spec.node_name, "slow", "")
    both = await survey(cluster, job.metadata.uid, first.spec.node_name, second.spec.node_name, "no-such-node")
    view = JobView(
        job=await cluster.job(job.metadata.uid),
        pods=tuple(await client.pods(job.metadata.uid)),
        nodes=tuple(await client.nodes()),
    )
    assert both.exists
    assert (both.ended, both.phase) == ("", JobPhase.RUNNING)
    assert both.sighting == sight(view)
    assert [fault.kind for fault in both.sighting.faults] == [FaultKind.SUB_HEALTH] * 2
    one = await survey(cluster, job.metadata.uid, second.spec.node_name)
    assert [fault.pod_ranks for fault in one.sighting.faults] == [(1,)]
    assert one.nodes == (second.spec.node_name,)


async def test_a_survey_sees_that_a_node_was_deleted(
    client: ClusterClient, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey reports a deleted node as the watcher does, while its pods seem to run."""
    job = await client.submit(job_object(pods=2, accelerators=2))
    first, _ = await until_running(client, "demo-worker-0", "demo-worker-1")

    async def deleted(name: str) -> Node:
        raise NotFound(f"no node {name}")

    monkeypatch.setattr(cluster, "node", deleted)
    (fault,) = (await survey(cluster, job.metadata.uid, first.spec.node_name)).sighting.faults
    assert (fault.kind, fault.pod_ranks, fault.code) == (FaultKind.NODE, (0,), "NodeGone")


async def test_a_survey_says_that_a_job_is_gone_or_over(client: ClusterClient, cluster: LocalCluster) -> None:
    """A survey reports that a job is gone or over, with the watcher's text."""
    assert await survey(cluster, "no-such-job") == Survey(exists=False, ended="the job was deleted")
    job = await client.submit(job_object(command=("true",)))
    await until(client, lambda view: view.jobs["demo"].status.phase is JobPhase.SUCCEEDED)
    over = await survey(cluster, job.metadata.uid)
    assert (over.exists, over.phase, over.ended) == (True, JobPhase.SUCCEEDED, "the job succeeded")


async def test_a_survey_looks_at_a_hundred_nodes_at_most(client: ClusterClient, cluster: LocalCluster) -> None:
    """A survey looks at a hundred nodes at most, and its answer names them."""
    job = await client.submit(job_object())
    names = tuple(f"node-{number}" for number in range(MOST_NODES + 20))
    assert (await survey(cluster, job.metadata.uid, *names)).nodes == names[:MOST_NODES]


async def test_of_a_job_that_is_gone_nothing_is_recorded_and_nothing_fails(cluster: LocalCluster) -> None:
    """A record about a job that is gone is dropped and does not fail: its workflow may outlive it for a moment."""
    activities, event = JournalActivities(cluster), ClusterEvent(name="gone", kind="TrainingJob", reason="r", message="m")
    run = ActivityEnvironment().run
    await run(activities.record_event, EventRequest(job_id="no-such-job", event=event))
    await run(activities.remember, RememberRequest(job_id="no-such-job", memory=Remembered()))
    await run(activities.publish_policy, PolicyRequest(job_id="no-such-job", strategy="ignore", reason=""))
