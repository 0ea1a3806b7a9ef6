"""The scripted Ascend Operator and Volcano do to a real API server what the contract says of the real ones, flaws included."""

from collections.abc import AsyncIterator, Iterable

import pytest

from activities.clusters.api_server import Object
from tests.fakes.ascend_operator import AscendOperator, groups_path, jobs_path, submit_ascend_job
from tests.fakes.controller import annotations_of, is_terminating, labels_of, pods_until
from tests.fakes.volcano import Volcano, operator_and_volcano
from tests.kubernetes.world.control_plane import Namespace

Peers = tuple[AscendOperator, Volcano]

HOT = {"fault-scheduling": "force", "subHealthyStrategy": "hotSwitch"}
RECOVER = {"recover-strategy": "recover"}
FAULTY = {"fault-type": "Separate"}


@pytest.fixture
async def peers(namespace: Namespace) -> AsyncIterator[Peers]:
    async with operator_and_volcano(namespace) as peers:
        yield peers


async def a_job(
    peers: Peers,
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
    *,
    workers: int = 1,
    accelerators: int = 1,
) -> tuple[Object, dict[str, Object]]:
    """A job that runs, for Volcano too, and its pods by name."""
    _, volcano = peers
    job = await submit_ascend_job(
        volcano.namespace, workers=workers, accelerators=accelerators, labels=labels, annotations=annotations
    )
    pods = await pods_until(volcano.namespace, lambda pods: len(pods) == workers + 1 and all(map(is_running, pods)))
    for pod in pods:
        await volcano.saw(pod)
    return job, by_name(pods)


def by_name(pods: Iterable[Object]) -> dict[str, Object]:
    return {pod["metadata"]["name"]: pod for pod in pods}


def is_running(pod: Object) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


async def mark(
    namespace: Namespace, name: str, annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None
) -> Object:
    change = {"annotations": annotations or {}, "labels": labels or {}}
    return await namespace.api.patch(namespace.path("pods", name), {"metadata": change})


async def a_backup(namespace: Namespace, name: str) -> Object:
    """Requests the backup of a pod as ClusterD does, and waits until the Operator is done."""
    await mark(namespace, name, {"inHotSwitchFlow": "true", "needOperatorOpe": "create"})
    pods = by_name(await pods_until(namespace, lambda pods: "backupNewPodName" in annotations_of(by_name(pods)[name])))
    return pods[annotations_of(pods[name])["backupNewPodName"]]


async def test_a_job_gets_its_gang(namespace: Namespace, peers: Peers) -> None:
    """The PodGroup is a copy of the job's labels and annotations, with process-level recovery on where strategies are named."""
    job, _ = await a_job(peers, HOT, RECOVER, workers=2)
    group = await namespace.api.get(groups_path(namespace.name, f"demo-{uid(job)}"))
    assert labels_of(group) == {**labels_of(job), "process-recover-enable": "on"}
    assert annotations_of(group) == RECOVER
    assert group["spec"]["minMember"] == 3


async def test_a_job_gets_its_pods(namespace: Namespace, peers: Peers) -> None:
    """Pods carry the names, labels, ranks, owner and variables of the contract."""
    job, pods = await a_job(peers, HOT, {"recover-strategy": "retry,dump"}, workers=2)
    ranks = {name: annotations_of(pod)["hccl/rankIndex"] for name, pod in pods.items()}
    assert ranks == {"demo-master-0": "0", "demo-worker-0": "1", "demo-worker-1": "2"}
    worker = pods["demo-worker-1"]
    assert labels_of(worker).items() >= {
        ("training.kubeflow.org/job-name", "demo"),
        ("training.kubeflow.org/replica-type", "worker"),
        ("training.kubeflow.org/replica-index", "1"),
        ("version", "0"),
    }
    (owner,) = worker["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("AscendJob", uid(job), True)
    environment = {entry["name"]: entry["value"] for entry in worker["spec"]["containers"][0]["env"]}
    assert environment["MINDX_TASK_ID"] == uid(job)
    assert (environment["RANK"], environment["WORLD_SIZE"]) == ("2", "3")
    assert environment["HIGH_AVAILABILITY"] == "dump,recover,retry"


async def test_a_hot_switch_as_clusterd_does_it(namespace: Namespace, peers: Peers) -> None:
    """The steps are create, name, delete by Volcano, promote by the Operator. The backup is then the pod of its rank, and no
    third pod is created."""
    _, pods = await a_job(peers, HOT, RECOVER)
    backup = await a_backup(namespace, "demo-worker-0")
    assert backup["metadata"]["name"].startswith("demo-worker-0-hot-")
    marks = {"inHotSwitchFlow": "true", "podType": "backup", "backupSourcePodName": "demo-worker-0", "hccl/rankIndex": "1"}
    assert annotations_of(backup).items() >= marks.items()
    assert "needOperatorOpe" not in annotations_of(await namespace.api.get(namespace.path("pods", "demo-worker-0")))
    await namespace.until_phase(backup["metadata"]["name"], "Running")
    await mark(namespace, "demo-worker-0", {"needVolcanoOpe": "delete"}, {"fault-type": "SubHealth"})
    await namespace.until_gone(pods["demo-worker-0"])
    left = await pods_until(namespace, lambda pods: not any("podType" in annotations_of(pod) for pod in pods))
    assert {uid(pod) for pod in left} == {uid(pods["demo-master-0"]), uid(backup)}


async def test_a_backup_that_is_not_wanted_ends_with_its_marks(namespace: Namespace, peers: Peers) -> None:
    """The Operator deletes it at once, and the old pod loses its marks of the hot switch."""
    await a_job(peers, HOT)
    backup = await a_backup(namespace, "demo-worker-0")
    await mark(namespace, backup["metadata"]["name"], {"needOperatorOpe": "delete"})
    await namespace.until_gone(backup)
    flow = {"inHotSwitchFlow", "backupNewPodName"}
    await namespace.until("pods", "demo-worker-0", lambda pod: not flow & annotations_of(pod).keys())


async def test_a_failed_patch_makes_a_second_backup(namespace: Namespace, peers: Peers) -> None:
    """The backup is created in one write and named in another: when the second fails, both are repeated."""
    peers[0].failing_patches = 1
    await a_job(peers, HOT)
    named = await a_backup(namespace, "demo-worker-0")
    pods = (await namespace.api.list(namespace.path("pods"))).items
    backups = {uid(pod) for pod in pods if "podType" in annotations_of(pod)}
    assert len(backups) == 2
    assert uid(named) in backups


async def test_an_end_that_it_misses_makes_a_third_pod(namespace: Namespace, peers: Peers) -> None:
    """The backup keeps its mark, so the Operator finds no pod for its rank."""
    peers[0].misses_the_end_of.add("demo-worker-0")
    _, pods = await a_job(peers, HOT)
    old, backup = pods["demo-worker-0"], await a_backup(namespace, "demo-worker-0")
    await namespace.api.delete(namespace.path("pods", "demo-worker-0"), uid(old), 0)
    await namespace.until("pods", "demo-worker-0", lambda pod: uid(pod) != uid(old))
    pods = by_name((await namespace.api.list(namespace.path("pods"))).items)
    assert annotations_of(pods[backup["metadata"]["name"]])["podType"] == "backup"


@pytest.mark.parametrize(
    ("faulty", "labels", "kept"),
    [
        ("demo-worker-0", {**HOT, "process-recover-enable": "on"}, {"demo-master-0", "demo-worker-1"}),
        ("demo-worker-0", {**HOT, "process-recover-enable": "pause"}, set()),
        ("demo-master-0", {**HOT, "process-recover-enable": "on"}, set()),
        ("demo-worker-0", {}, {"demo-master-0", "demo-worker-0", "demo-worker-1"}),
    ],
    ids=["process level", "job level", "the leader", "rescheduling is off"],
)
async def test_which_pods_end_with_a_faulty_one(
    namespace: Namespace, peers: Peers, faulty: str, labels: dict[str, str], kept: set[str]
) -> None:
    """Only the faulty pod ends while process-level recovery is on and it is not the leader, otherwise all. None ends when
    rescheduling is off."""
    operator, volcano = peers
    await a_job(peers, labels, workers=2)
    operator.deaf = True
    await volcano.saw(await mark(namespace, faulty, labels=FAULTY))
    left = await pods_until(namespace, lambda pods: len(pods) == len(kept))
    assert {pod["metadata"]["name"] for pod in left if not is_terminating(pod)} == kept


async def test_a_job_is_not_deleted_twice_for_one_fault(namespace: Namespace, peers: Peers) -> None:
    """A second known pod that becomes faulty is left alone until what was deleted is replaced."""
    operator, volcano = peers
    _, pods = await a_job(peers, HOT, RECOVER, workers=2)
    operator.deaf = True
    await mark(namespace, "demo-worker-0", labels=FAULTY)
    await namespace.until_gone(pods["demo-worker-0"])
    await volcano.saw(await mark(namespace, "demo-worker-1", labels=FAULTY))
    assert not is_terminating(await namespace.api.get(namespace.path("pods", "demo-worker-1")))
    operator.deaf = False
    await namespace.until_gone(pods["demo-worker-1"])


async def test_a_failed_pod_is_replaced_as_often_as_the_job_says(namespace: Namespace, peers: Peers) -> None:
    """A failed pod is replaced as often as fault-retry-times says: with 1, its first end is a fault and its second one is not."""
    _, volcano = peers
    _, pods = await a_job(peers, {**HOT, "fault-retry-times": "1"}, RECOVER)
    for life in range(2):
        status = {"phase": "Failed", "reason": "Error"}
        path = namespace.path("pods", "demo-worker-0/status")
        failed = await namespace.api.patch(path, {"status": status})
        if life == 0:
            await namespace.until_gone(pods["demo-worker-0"])
            await namespace.until_phase("demo-worker-0", "Running")
        else:
            await volcano.saw(failed)
            assert uid(await namespace.api.get(namespace.path("pods", "demo-worker-0"))) == uid(failed)


@pytest.mark.parametrize(
    ("strategy", "workers", "accelerators", "nodes"),
    [("hotSwitch", 1, 1, {"node-2"}), ("ignore", 2, 2, {"node-0", "node-1", "node-2"})],
)
async def test_new_pods_keep_off_sub_healthy_nodes(
    namespace: Namespace, peers: Peers, strategy: str, workers: int, accelerators: int, nodes: set[str]
) -> None:
    """Volcano refuses them, unless the job's strategy is to ignore it."""
    try:
        for node in ("node-0", "node-1"):
            await tell_health(namespace, node, sub_healthy=True)
        labels = {"fault-scheduling": "force", "subHealthyStrategy": strategy}
        _, pods = await a_job(peers, labels, workers=workers, accelerators=accelerators)
        assert {pod["spec"]["nodeName"] for pod in pods.values()} == nodes
    finally:
        for node in ("node-0", "node-1"):
            await tell_health(namespace, node, sub_healthy=False)


async def tell_health(namespace: Namespace, node: str, *, sub_healthy: bool) -> None:
    path = f"/api/v1/nodes/{node}"
    known = (await namespace.api.get(path))["status"]["conditions"]
    others = [condition for condition in known if condition["type"] != "SubHealthy"]
    ours = [{"type": "SubHealthy", "status": "True", "reason": "LinkDown"}] if sub_healthy else []
    await namespace.api.patch(f"{path}/status", {"status": {"conditions": [*others, *ours]}})


async def test_a_job_ends_with_more_generations_than_it_may_have(namespace: Namespace, peers: Peers) -> None:
    """Every deletion of a pod of the running generation counts; beyond the backoff limit the job has failed."""
    operator, _ = peers
    await submit_ascend_job(namespace, labels={**HOT, "fault-retry-times": "1"})
    for _ in range(2):
        pod = await namespace.until_phase("demo-worker-0", "Running")
        await namespace.api.delete(namespace.path("pods", "demo-worker-0"), uid(pod), 0)
        await namespace.until_gone(pod)
    await operator.saw(await mark(namespace, "demo-master-0", {"anything": "new"}))
    job = await namespace.api.get(jobs_path(namespace.name, "demo"))
    assert "Failed" in {one["type"] for one in job["status"]["conditions"]}
