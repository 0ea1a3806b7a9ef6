"""Pods of a restart are distinguished from older ones, where another controller creates them and the cluster's clock counts whole
seconds."""

from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities.pods import PodActivities, ref
from rekindle.model.activities.pods import NewPodsRequest, OldPodsRequest, PodCount, PodsRequest, Restart, Started, StopRequest
from rekindle.model.cluster import Condition, Pod, PodPhase, PodStatus
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import a_job

SECOND = datetime(2026, 1, 1, tzinfo=UTC)


def all_created_then(cluster: ScriptedCluster) -> list[Pod]:
    """Returns the cluster's pods, each created in the same second as the others."""
    pods = list(cluster.pods_by_name.values())
    return [
        cluster._put(pod.model_copy(update={"metadata": pod.metadata.model_copy(update={"creation_timestamp": SECOND})}))
        for pod in pods
    ]


async def test_pods_that_are_made_in_the_second_of_the_old_ones_are_new() -> None:
    """Pods that are created in the same second as the old ones are new and are waited for, and old ones are not taken for new.
    Such a case is a pod that was deleted, recreated at once and deleted again by the restart."""
    job = a_job()
    cluster = ScriptedCluster(job)
    pods, run = PodActivities(cluster), ActivityEnvironment().run
    old = all_created_then(cluster)
    deleted: PodCount = await run(pods.delete_pods, StopRequest(job_id=job.id, grace_seconds=0))
    restart = Restart(job_id=job.id, generation="ours", youngest=deleted.youngest, youngest_uids=deleted.youngest_uids)
    for pod in old:
        cluster._put(pod)
    left: PodCount = await run(pods.await_old_gone, OldPodsRequest(restart=restart, within=timedelta(0)))
    assert left.count == job.pods
    cluster.pods_by_name.clear()
    await cluster.ensure_pods(job.id, "of-the-controller", ())
    all_created_then(cluster)
    request = NewPodsRequest(restart=restart, pods=job.pods, within=timedelta(0))
    started: Started = await run(pods.await_new_running, request)
    assert (started.running, started.message) == (True, "")
    assert (await run(pods.await_old_gone, OldPodsRequest(restart=restart, within=timedelta(0)))).count == 0


async def test_a_standby_is_not_counted_as_a_pod_of_the_restart() -> None:
    """A worker that stalled while the job was stopped may create one late."""
    job = a_job(standbys=1)
    cluster = ScriptedCluster(job, nodes=4)
    await cluster.ensure_standbys(job.id, 1, ())
    del cluster.pods_by_name[cluster.holder(1).metadata.name]
    restart = Restart(job_id=job.id, generation="0", youngest=None, youngest_uids=())
    request = NewPodsRequest(restart=restart, pods=job.pods, within=timedelta(0))
    started: Started = await ActivityEnvironment().run(PodActivities(cluster).await_new_running, request)
    assert (started.running, started.message) == (False, "1 of 2 pods are there")


async def test_a_pod_of_a_lost_node_does_not_run() -> None:
    """The cluster reports it as running for minutes, or for ever; ranks that wait for it wait in vain."""
    job = a_job()
    cluster = ScriptedCluster(job)
    pod = cluster.holder(1)
    request = PodsRequest(job_id=job.id, pods=(ref(pod),), within=timedelta(0))
    assert (await ActivityEnvironment().run(PodActivities(cluster).await_running, request)).running
    cluster.conditions[pod.spec.node_name] = (Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown"),)
    lost: Started = await ActivityEnvironment().run(PodActivities(cluster).await_running, request)
    assert (lost.running, lost.message) == (False, f"lost: {pod.spec.node_name}")


STUCK = PodStatus(phase=PodPhase.PENDING, waiting="ImagePullBackOff: the registry is not reached")
REFUSED = PodStatus(phase=PodPhase.FAILED, reason="OutOfcpu", message="the node has too little")
CRASHED = PodStatus(phase=PodPhase.FAILED, exit_code=1)


def with_status(cluster: ScriptedCluster, rank: int, status: PodStatus) -> str:
    """Sets the status of a rank's pod, and returns the pod's node."""
    pod = cluster.holder(rank)
    cluster._put(pod.model_copy(update={"status": status}))
    return pod.spec.node_name


async def test_pods_that_do_not_start_on_one_node_are_not_waited_for() -> None:
    """The other pods run, and another node may do better: the answer names the node long before the time is over."""
    job = a_job()
    cluster = ScriptedCluster(job)
    node = with_status(cluster, 1, STUCK)
    restart = Restart(job_id=job.id, generation="0", youngest=None, youngest_uids=())
    request = NewPodsRequest(restart=restart, pods=job.pods, within=timedelta(hours=1))
    started: Started = await ActivityEnvironment().run(PodActivities(cluster).await_new_running, request)
    assert (started.running, started.failed_on) == (False, (node,))
    assert "ImagePullBackOff" in started.message


@pytest.mark.parametrize(
    ("statuses", "failed_on"),
    [((REFUSED, None), 1), ((CRASHED, None), 0), ((STUCK, STUCK), 0), ((REFUSED, CRASHED), 0)],
    ids=["refused", "crashed", "an image that is nowhere", "nobody runs"],
)
async def test_a_place_is_told_of_only_where_the_place_may_be_the_reason(
    statuses: tuple[PodStatus | None, ...], failed_on: int
) -> None:
    """A pod that has run and failed says nothing about its node, and nor does one of many that start nowhere."""
    job = a_job()
    cluster = ScriptedCluster(job)
    for rank, status in enumerate(statuses):
        if status:
            with_status(cluster, rank, status)
    restart = Restart(job_id=job.id, generation="0", youngest=None, youngest_uids=())
    request = NewPodsRequest(restart=restart, pods=job.pods, within=timedelta(0))
    started: Started = await ActivityEnvironment().run(PodActivities(cluster).await_new_running, request)
    assert (started.running, len(started.failed_on)) == (False, failed_on)


async def test_a_backup_that_does_not_start_tells_of_its_place() -> None:
    """The pod that it replaces runs elsewhere, from the same template."""
    job = a_job()
    cluster = ScriptedCluster(job)
    node = with_status(cluster, 1, STUCK)
    request = PodsRequest(job_id=job.id, pods=(ref(cluster.holder(1)),), within=timedelta(hours=1))
    started: Started = await ActivityEnvironment().run(PodActivities(cluster).await_running, request)
    assert (started.waits, started.failed_on) == (True, (node,))


async def test_a_pod_that_has_ended_and_is_kept_holds_no_restart_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes are gone, and a foreign finalizer keeps the object; a pod that may still run is waited for."""
    monkeypatch.setattr("activities.pods.KEPT", timedelta(0))
    job = a_job()
    cluster = ScriptedCluster(job)
    cluster.terminating_for_ever = {cluster.holder(rank).metadata.name for rank in (0, 1)}
    pods, run = PodActivities(cluster), ActivityEnvironment().run
    await run(pods.delete_pods, StopRequest(job_id=job.id, grace_seconds=0))
    restart = Restart(job_id=job.id, generation="ours", youngest=datetime.now(UTC), youngest_uids=())
    with_status(cluster, 0, CRASHED)
    left: PodCount = await run(pods.await_old_gone, OldPodsRequest(restart=restart, within=timedelta(0)))
    assert left.names == (cluster.holder(1).metadata.name,)
    with_status(cluster, 1, CRASHED)
    left = await run(pods.await_old_gone, OldPodsRequest(restart=restart, within=timedelta(hours=1)))
    assert left.count == 0
