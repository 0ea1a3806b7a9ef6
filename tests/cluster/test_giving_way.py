"""Standbys of the local cluster end for pods that need their node more. A pure function chooses which ones."""

from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.clusters.local import LocalCluster
from activities.pods import PodActivities
from rekindle.cluster_client import ClusterClient
from rekindle.model import keys
from rekindle.model.activities.pods import BackupRequest
from rekindle.model.cluster import JobObject, JobPhase, Node, NodeStatus, Pod, PodPhase, PodRole
from simulators.local_cluster.guardian import kill_carriers
from simulators.local_cluster.scheduling import in_the_way, place
from tests.support.cluster import job_object, phase, until, until_running
from tests.support.job_views import NOW, job, node, pod


def sized(name: str = "new", *, asks: int = 2, on: str = "", role: PodRole = PodRole.WORKER, ends: bool = False) -> Pod:
    """Returns a pod that asks for accelerators: a worker, a backup or a standby."""
    marks = {} if role is PodRole.WORKER else {keys.POD_TYPE: role.value}
    made = pod(None, name, name=name, node=on, phase=PodPhase.RUNNING if on else PodPhase.PENDING)
    metadata = made.metadata.model_copy(update={"annotations": marks, "deletion_timestamp": NOW if ends else None})
    return made.model_copy(update={"metadata": metadata, "spec": made.spec.model_copy(update={"accelerators": asks})})


def standby(name: str, on: str, asks: int = 2, *, ends: bool = False) -> Pod:
    return sized(name, asks=asks, on=on, role=PodRole.STANDBY, ends=ends)


def small(name: str, **wishes: str) -> Node:
    """Returns a node with two accelerators."""
    made = node(name, **wishes)  # type: ignore[arg-type]
    return made.model_copy(update={"status": NodeStatus(accelerators=2, conditions=made.status.conditions)})


A, B = small("a"), small("b")


@pytest.mark.parametrize(
    ("new", "nodes", "pods", "ended"),
    [
        (sized(), [A, B], [sized("w", on="a"), standby("s", "b")], ["s"]),
        (sized(role=PodRole.BACKUP), [A], [standby("s", "a")], ["s"]),
        (sized(role=PodRole.STANDBY), [A], [standby("s", "a")], []),
        (sized(), [A], [standby("s", "a", ends=True)], []),
        (sized(), [A, B], [standby("s", "a"), standby("t", "b", ends=True)], []),
        (sized(asks=1), [A], [standby("s", "a", 1), standby("t", "a", 1)], ["s"]),
        (sized(asks=2), [A, B], [standby("s", "a", 1), standby("t", "a", 1), standby("u", "b")], ["u"]),
        (sized(asks=3), [A], [standby("s", "a")], []),
        (sized(), [small("a", ready="False")], [standby("s", "a")], []),
        (sized(), [small("a", sick="slow")], [standby("s", "a")], []),
        (sized(), [A], [sized("w", on="a")], []),
    ],
)
def test_as_few_standbys_end_as_make_room(new: Pod, nodes: list[Node], pods: list[Pod], ended: list[str]) -> None:
    """The fewest standbys that make room for a rank or a backup end. None ends for another standby, where it does not help, or
    where enough of them already end."""
    of = job(labels={keys.SUB_HEALTHY_STRATEGY: "hotSwitch"})
    assert not place(new, of, nodes, pods).node
    assert [one.metadata.name for one in in_the_way(new, of, nodes, pods)] == ended


async def with_a_standby(client: ClusterClient, cluster: LocalCluster) -> JobObject:
    """Submits a job on two of three nodes, with a standby on the third."""
    submitted = await client.submit(job_object(pods=2, accelerators=2))
    await until_running(client, "demo-worker-0", "demo-worker-1")
    await cluster.ensure_standbys(submitted.metadata.uid, 1, ())
    await until_running(client, "demo-standby-0")
    return submitted


async def test_a_standby_ends_for_the_pod_of_another_job(client: ClusterClient, socket: Path) -> None:
    """The pod receives the standby's node. The standby that is created in its place waits, and takes no node from any pod."""
    cluster = LocalCluster(socket)
    submitted = await with_a_standby(client, cluster)
    await client.submit(job_object("urgent", accelerators=2))
    view = await until(client, lambda view: phase(view, "urgent-worker-0") is PodPhase.RUNNING)
    assert view.pods["urgent-worker-0"].spec.node_name == "node-2"
    assert "demo-standby-0" not in view.pods
    assert "Preempted" in {event.reason for event in await client.events("demo-standby-0")}
    (again,) = await cluster.ensure_standbys(submitted.metadata.uid, 1, ())
    name = again.metadata.name
    view = await until(client, lambda view: name in view.pods and bool(view.pods[name].status.conditions))
    assert view.pods[name].spec.node_name == ""
    assert phase(view, "urgent-worker-0") is PodPhase.RUNNING
    await cluster.close()


async def test_a_standby_knows_that_it_is_one_and_has_no_rank(client: ClusterClient, socket: Path) -> None:
    """A standby's environment has its role, and the variables of a worker except the rank. Its end does not end the job."""
    cluster = LocalCluster(socket)
    tells = ("sh", "-c", 'test "$REKINDLE_POD_ROLE" = standby && exec env; exec sleep 1000')
    submitted = await client.submit(job_object(command=tells, env={"MINE": "yes"}))
    await until_running(client, "demo-worker-0")
    await cluster.ensure_standbys(submitted.metadata.uid, 1, ())
    view = await until(client, lambda view: phase(view, "demo-standby-0") is PodPhase.SUCCEEDED)
    log = "".join([piece async for piece in client.logs("demo-standby-0")])
    found = dict(line.split("=", 1) for line in log.splitlines())
    ours = view.pods["demo-standby-0"]
    assert (found[keys.ENV_POD_ROLE], found["MINE"]) == ("standby", "yes")
    assert keys.ENV_POD_RANK not in found
    assert (found[keys.ENV_POD_NAME], found[keys.ENV_POD_UID]) == (ours.metadata.name, ours.metadata.uid)
    assert found[keys.ENV_NODE] == ours.spec.node_name != view.pods["demo-worker-0"].spec.node_name
    assert view.jobs["demo"].status.phase is JobPhase.RUNNING
    await cluster.close()


async def test_the_node_of_a_pod_that_failed_is_as_good_as_any(client: ClusterClient, socket: Path) -> None:
    """A backup may use the node of a failed pod, because its processes are gone and the node is healthy. Where no other node is
    free, no restart is needed."""
    cluster = LocalCluster(socket)
    submitted = await client.submit(job_object(pods=3, accelerators=2))
    await until_running(client, "demo-worker-0", "demo-worker-1", "demo-worker-2")
    old = await client.pod("demo-worker-1")
    kill_carriers(f"{keys.ENV_POD_UID}={old.metadata.uid}")
    await until(client, lambda view: phase(view, "demo-worker-1") is PodPhase.FAILED)
    made = await cluster.ensure_replacement(submitted.metadata.uid, 1, "demo-worker-1-hot-0001", ())
    view = await until(client, lambda view: bool(view.pods[made.backup.metadata.name].status.conditions))
    assert view.pods[made.backup.metadata.name].spec.node_name == old.spec.node_name
    await cluster.close()


@pytest.mark.parametrize("waits", [True, False])
async def test_a_pod_that_may_wait_gets_the_node_that_comes_back(waits: bool, client: ClusterClient, socket: Path) -> None:
    """The pod of a missing replica waits on while its node is lost. Where training stands, a lost node is left for good."""
    cluster = LocalCluster(socket)
    submitted = await client.submit(job_object(pods=3, accelerators=2))
    await until_running(client, "demo-worker-2")
    node = (await client.pod("demo-worker-2")).spec.node_name
    await client.take_down(node)
    await client.delete_pod("demo-worker-2")
    request = BackupRequest(
        job_id=submitted.metadata.uid, pod_rank=2, name_suffix="0001", avoid_nodes=(), waits=waits, spare=None
    )
    made = await ActivityEnvironment().run(PodActivities(cluster).ensure_replacement, request)
    await client.bring_up(node)
    other = await client.submit(job_object("other", accelerators=2))
    found = "demo-worker-2-hot-0001" if waits else f"{other.metadata.name}-worker-0"
    view = await until(client, lambda view: phase(view, found) is PodPhase.RUNNING)
    assert view.pods[found].spec.node_name == node
    assert (view.pods[made.backup.name].spec.node_name == node) is waits
    await cluster.close()
