"""An object that cannot be read affects only its author: watcher and operator serve all others."""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kind import Kind
from activities.clusters.kubernetes.kinds import BATCH_JOB, JOB_SET, KINDS, TRAIN_JOB, TRAINING_JOB
from activities.clusters.kubernetes.pod_operations import AT_ONCE
from activities.clusters.port import Snapshot
from rekindle.model import keys
from rekindle.model.cluster import JobObject, WatchEvent
from rekindle.settings import Settings
from tests.fakes.scripted_api import ScriptedApi, scripted_api
from tests.support.valid_objects import JOBS, node, pod
from workers.operator import Operator
from workers.training_job_phase import MANAGER_RESTARTS

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
OWN = TRAINING_JOB.path("default")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ScriptedApi, Api]]:
    async with scripted_api(tmp_path) as found:
        yield found


def job(kind: Kind, name: str) -> Object:
    found = copy.deepcopy(JOBS[kind])
    found["metadata"] = {**found["metadata"], "name": name, "uid": f"uid-of-{name}"}
    return found


def broken_jobs() -> list[tuple[Kind, Object, str]]:
    """Returns a job of each sort that once ended a process, and the message that its owner receives."""
    empty = job(JOB_SET, "broken")
    empty["spec"]["replicatedJobs"] = []
    null = job(JOB_SET, "broken")
    null["spec"]["replicatedJobs"] = None
    many = job(BATCH_JOB, "broken")
    many["metadata"]["annotations"][keys.RANKS_PER_POD] = "9" * 5000
    quoted = job(BATCH_JOB, "broken")
    quoted["spec"]["completions"] = "2"
    return [
        (JOB_SET, empty, "spec.replicatedJobs"),
        (JOB_SET, null, "spec.replicatedJobs"),
        (BATCH_JOB, many, ""),
        (BATCH_JOB, quoted, "spec.completions"),
    ]


def cluster_of(api: Api) -> KubernetesCluster:
    return KubernetesCluster(api, Settings(cluster="kubernetes"))


@pytest.mark.parametrize(("kind", "broken", "words"), broken_jobs())
async def test_a_job_that_cannot_be_read_is_left_out_of_the_snapshot(
    served: tuple[ScriptedApi, Api], kind: Kind, broken: Object, words: str
) -> None:
    """All other jobs are in it, and an event of the job names the field."""
    scripted, api = served
    await scripted.put(kind.path("default"), broken)
    await scripted.put(BATCH_JOB.path("default"), job(BATCH_JOB, "sound"))
    async with aclosing(cluster_of(api).watch()) as news:
        first = await anext(news)
    assert isinstance(first, Snapshot)
    assert [one.metadata.name for one in first.jobs] == ["sound"]
    event = await scripted.until(EVENTS, "broken.", "reason")
    assert event["reason"] == "JobRefused"
    assert words in event["message"]


@pytest.mark.parametrize(("kind", "broken", "words"), broken_jobs())
async def test_a_job_that_cannot_be_read_does_not_end_the_watch(
    served: tuple[ScriptedApi, Api], kind: Kind, broken: Object, words: str
) -> None:
    """A job that cannot be read does not end the watch, and later changes are still seen."""
    scripted, api = served
    async with aclosing(cluster_of(api).watch()) as news:
        await anext(news)
        following = asyncio.ensure_future(anext(news))
        for watched in (kind, BATCH_JOB):
            await scripted.until_watched(watched.path())
        await scripted.put(kind.path("default"), broken)
        assert words in (await scripted.until(EVENTS, "broken.", "reason"))["message"]
        await scripted.put(BATCH_JOB.path("default"), job(BATCH_JOB, "sound"))
        event = await asyncio.wait_for(following, 20)
    assert isinstance(event, WatchEvent)
    assert isinstance(event.object, JobObject)
    assert event.object.metadata.name == "sound"


async def test_a_pod_and_a_node_that_cannot_be_read_are_left_out(served: tuple[ScriptedApi, Api]) -> None:
    """A phase that Kubernetes does not have, and a condition without a type, leave out their objects."""
    scripted, api = served
    await scripted.put(BATCH_JOB.path("default"), job(BATCH_JOB, "sound"))
    for name, phase in (("fine", "Running"), ("odd", "Dreaming")):
        body = pod("uid-of-sound", name)
        body["metadata"]["ownerReferences"] = [owner(BATCH_JOB, "sound")]
        body["status"]["phase"] = phase
        await scripted.put(PODS, body)
    await scripted.put("/api/v1/nodes", node("fine"))
    bad = node("strange")
    bad["status"]["conditions"] = [{"status": "True"}]
    await scripted.put("/api/v1/nodes", bad)
    async with aclosing(cluster_of(api).watch()) as news:
        first = await anext(news)
    assert isinstance(first, Snapshot)
    assert {one.metadata.name for one in first.pods} == {one.metadata.name for one in first.nodes} == {"fine"}
    assert "status.phase" in (await scripted.until(EVENTS, "odd.", "reason"))["message"]


async def test_a_job_whose_last_state_cannot_be_read_is_seen_to_end(served: tuple[ScriptedApi, Api]) -> None:
    """The identity of the job is enough to end its recoveries."""
    scripted, api = served
    await scripted.put(BATCH_JOB.path("default"), job(BATCH_JOB, "sound"))
    async with aclosing(cluster_of(api).watch()) as news:
        await anext(news)
        following = asyncio.ensure_future(anext(news))
        await scripted.until_watched(BATCH_JOB.path())
        scripted.collections[BATCH_JOB.path("default")]["sound"]["spec"] = {"completions": []}
        await scripted.remove(BATCH_JOB.path("default"), "sound")
        event = await asyncio.wait_for(following, 20)
    assert isinstance(event, WatchEvent)
    assert event.type == "DELETED"
    assert isinstance(event.object, JobObject)
    assert event.object.metadata.uid == "uid-of-sound"


async def test_owners_that_own_each_other_are_followed_once(served: tuple[ScriptedApi, Api]) -> None:
    """A JobSet of a TrainJob of that JobSet belongs to no job."""
    scripted, api = served
    one, other, part = job(JOB_SET, "one"), job(TRAIN_JOB, "other"), job(BATCH_JOB, "part")
    one["metadata"]["ownerReferences"] = [owner(TRAIN_JOB, "other")]
    other["metadata"]["ownerReferences"] = [owner(JOB_SET, "one")]
    part["metadata"]["ownerReferences"] = [owner(JOB_SET, "one")]
    for kind, body in ((JOB_SET, one), (TRAIN_JOB, other), (BATCH_JOB, part), (BATCH_JOB, job(BATCH_JOB, "sound"))):
        await scripted.put(kind.path("default"), body)
    strange = pod("", "strange")
    strange["metadata"]["ownerReferences"] = [owner(BATCH_JOB, "part")]
    await scripted.put(PODS, strange)
    async with aclosing(cluster_of(api).watch()) as news:
        first = await anext(news)
    assert isinstance(first, Snapshot)
    assert [one.metadata.name for one in first.jobs] == ["sound"]
    assert first.pods == []


@pytest.mark.parametrize("name", ["../../../../../api/v1/nodes", "..", "a?b=c", ""])
async def test_the_name_of_an_owner_is_no_path(served: tuple[ScriptedApi, Api], name: str) -> None:
    """A tenant cannot choose what is requested from the API server by our account."""
    scripted, api = served
    await scripted.put(BATCH_JOB.path("default"), job(BATCH_JOB, "sound"))
    strange = pod("", "strange")
    strange["metadata"]["ownerReferences"] = [{**owner(BATCH_JOB, "part"), "name": name}]
    await scripted.put(PODS, strange)
    async with aclosing(cluster_of(api).watch()) as news:
        first = await anext(news)
    assert isinstance(first, Snapshot)
    assert [one.metadata.name for one in first.jobs] == ["sound"]
    assert first.pods == []
    asked = [path.partition("?")[0] for _, path in scripted.requests]
    jobs = {kind.path() for kind in KINDS}
    core = {f"/api/v1/{plural}" for plural in ("nodes", "namespaces", "pods", "podtemplates")}
    assert set(asked) <= core | jobs


def owner(kind: Kind, name: str) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name, "name": name, "uid": f"uid-of-{name}", "controller": True}


# ---- the operator


@asynccontextmanager
async def operating(api: Api) -> AsyncIterator[asyncio.Task[None]]:
    running = asyncio.create_task(Operator(api, Settings(cluster="kubernetes")).run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("affinity", "words"),
    [
        ("anywhere", "spec.kubernetes.pod.affinity"),
        ({"nodeAffinity": []}, "spec.kubernetes.pod.affinity.nodeAffinity"),
        (
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [None]}}},
            "nodeSelectorTerms.0",
        ),
    ],
)
async def test_a_training_job_that_cannot_be_read_fails_alone(
    served: tuple[ScriptedApi, Api], affinity: object, words: str
) -> None:
    """A TrainingJob that cannot be read has a status that names the field, and the operator continues with the next job."""
    scripted, api = served
    broken = job(TRAINING_JOB, "broken")
    broken["spec"]["kubernetes"]["pod"] = {"affinity": affinity}
    await scripted.put(OWN, broken)
    await scripted.put(OWN, job(TRAINING_JOB, "sound"))
    async with operating(api):
        said = (await scripted.until(OWN, "broken", "status"))["status"]
        assert (await scripted.until(OWN, "sound", "status"))["status"]["phase"] == "Pending"
    assert said["phase"] == "Failed"
    assert words in said["message"]


async def test_a_training_job_that_was_refused_begins_when_it_is_mended(served: tuple[ScriptedApi, Api]) -> None:
    """A refused TrainingJob begins when its owner corrects it. Another mistake replaces the message of the first one."""
    scripted, api = served
    mended = job(TRAINING_JOB, "mended")
    broken = {**mended, "spec": {**mended["spec"], "limits": {"pause": -1}}}
    await scripted.put(OWN, broken)
    async with operating(api):
        await until_said(scripted, "mended", "limits.pause")
        await scripted.put(OWN, {**scripted.collections[OWN]["mended"], "spec": {**mended["spec"], "limits": {"order": -1}}})
        await until_said(scripted, "mended", "limits.order")
        await scripted.put(OWN, {**scripted.collections[OWN]["mended"], "spec": mended["spec"]})
        await scripted.until(PODS, "mended-worker-0", "spec")
        await until_said(scripted, "mended", "")
    assert scripted.collections[OWN]["mended"]["status"]["phase"] == "Pending"


async def until_said(scripted: ScriptedApi, name: str, words: str) -> None:
    """Waits until the message in the job's status has this text; empty: until there is no message."""
    async with asyncio.timeout(60):
        while True:
            said = scripted.collections[OWN][name].get("status", {}).get("message", "")
            if words in said and bool(words) == bool(said):
                return
            await asyncio.sleep(0.01)


async def test_an_empty_affinity_is_none(served: tuple[ScriptedApi, Api]) -> None:
    """An empty affinity is absent, as every field without a value in Kubernetes."""
    scripted, api = served
    empty = job(TRAINING_JOB, "empty")
    empty["spec"]["kubernetes"]["pod"] = {"affinity": None}
    await scripted.put(OWN, empty)
    async with operating(api):
        assert (await scripted.until(OWN, "empty", "status"))["status"]["phase"] == "Pending"
    assert "empty-worker-0" in scripted.collections[PODS]


async def test_pods_that_the_api_server_refuses_are_their_own_jobs_affair(served: tuple[ScriptedApi, Api]) -> None:
    """An event of the job has the server's message; the job is retried ever more rarely, and others are served meanwhile."""
    scripted, api = served
    elsewhere = TRAINING_JOB.path("other")
    scripted.refused["POST", PODS] = (403, "exceeded quota: of this namespace")
    await scripted.put(OWN, job(TRAINING_JOB, "broken"))
    body = job(TRAINING_JOB, "sound")
    body["metadata"]["namespace"] = "other"
    await scripted.put(elsewhere, body)
    async with operating(api):
        event = await scripted.until(EVENTS, "broken.", "reason")
        assert "exceeded quota" in event["message"]
        assert (await scripted.until(elsewhere, "sound", "status"))["status"]["phase"] == "Pending"
        del scripted.refused["POST", PODS]
        async with asyncio.timeout(60):
            while (await scripted.until(OWN, "broken", "status"))["status"].get("phase") != "Pending":
                await asyncio.sleep(0.01)


async def test_a_job_of_thousands_of_pods_that_nobody_admits_keeps_no_other_tenant_waiting(
    served: tuple[ScriptedApi, Api],
) -> None:
    """A job whose thousands of pods are refused does not delay other tenants. It causes few requests, and other namespaces are
    served while these are pending."""
    scripted, api = served
    elsewhere = TRAINING_JOB.path("other")
    scripted.refused["POST", PODS] = (403, "exceeded quota: of this namespace")
    scripted.held["POST", PODS] = asyncio.Event()
    large, sound = job(TRAINING_JOB, "broken"), job(TRAINING_JOB, "sound")
    large["spec"]["pods"] = 5000
    sound["metadata"]["namespace"] = "other"
    await scripted.put(OWN, large)
    async with operating(api):
        await scripted.until_asked("POST", PODS)
        await scripted.put(elsewhere, sound)
        assert (await scripted.until(elsewhere, "sound", "status"))["status"]["phase"] == "Pending"
        scripted.held.pop(("POST", PODS)).set()
        assert "exceeded quota" in (await scripted.until(EVENTS, "broken.", "reason"))["message"]
        assert scripted.requests.count(("POST", PODS)) <= 2 * AT_ONCE


# ---- the manager of a job


async def test_a_manager_that_was_deleted_comes_back(served: tuple[ScriptedApi, Api]) -> None:
    """A deleted manager is recreated while its workers train, in their generation. It prefers other nodes than those that the
    workers avoid. A node that was cordoned when a worker was created may be the only free one now."""
    scripted, api = served
    kept_off = {"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [kept_off]}]}}
    await trained(scripted, affinity={"nodeAffinity": required}, generation="third")
    async with operating(api):
        await scripted.until(PODS, "sound-manager-0", "status")
        await scripted.remove(PODS, "sound-manager-0")
        again = await scripted.until(PODS, "sound-manager-0", "spec")
    assert again["metadata"]["labels"][keys.GENERATION] == "third"
    of_nodes = again["spec"]["affinity"]["nodeAffinity"]
    assert kept_off not in of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])[
        0
    ].get("matchFields", [])
    assert [one["preference"] for one in of_nodes["preferredDuringSchedulingIgnoredDuringExecution"]] == [
        {"matchFields": [kept_off]}
    ]


async def test_a_service_that_was_deleted_comes_back_with_the_next_restart(served: tuple[ScriptedApi, Api]) -> None:
    """A deleted Service is recreated with the next restart: the ranks of the new pods find their manager by its name."""
    scripted, api = served
    await trained(scripted)
    pods = [pod for name, pod in scripted.collections[PODS].items() if "worker" in name]
    async with operating(api):
        await scripted.until_watched("/api/v1/pods")
        for pod in pods:
            await scripted.put(PODS, {**pod, "status": {"phase": "Pending"}})
        await scripted.until("/api/v1/namespaces/default/services", "sound-manager", "spec")


async def test_an_operator_that_died_before_it_made_the_manager_makes_it(served: tuple[ScriptedApi, Api]) -> None:
    """An operator that died before it created the manager creates it after its restart, because workers train without one. It
    needs no memory."""
    scripted, api = served
    await trained(scripted)
    await scripted.remove(PODS, "sound-manager-0")
    async with operating(api):
        await scripted.until(PODS, "sound-manager-0", "spec")


async def test_a_manager_that_fails_again_and_again_is_left(served: tuple[ScriptedApi, Api]) -> None:
    """A manager that fails again and again is left. Its pod has the number of restarts, so an operator that has just started
    knows it."""
    scripted, api = served
    await trained(scripted)
    manager = scripted.collections[PODS]["sound-manager-0"]
    manager["status"] = {"phase": "Failed"}
    manager["metadata"]["annotations"] = {keys.RESTARTS: str(MANAGER_RESTARTS - 1)}
    async with operating(api):
        await scripted.until_watched("/api/v1/pods")
        again = await until_another(scripted, "sound-manager-0", manager)
        assert again["metadata"]["annotations"][keys.RESTARTS] == str(MANAGER_RESTARTS)
        again["status"] = {"phase": "Failed"}
        await scripted.put(PODS, again)
        await scripted.put(OWN, job(TRAINING_JOB, "next"))
        await scripted.until(OWN, "next", "status")
    assert scripted.collections[PODS]["sound-manager-0"] is again


async def test_a_job_that_is_being_stopped_gets_no_manager(served: tuple[ScriptedApi, Api]) -> None:
    """A job that is being stopped receives no manager: its workers were deleted before its manager."""
    scripted, api = served
    await trained(scripted)
    async with operating(api):
        await cluster_of(api).ensure_stopped("uid-of-sound", 0)
        await scripted.put(OWN, job(TRAINING_JOB, "next"))
        await scripted.until(OWN, "next", "status")
    ours = [path for method, path in scripted.requests if method == "DELETE"]
    assert [path.rpartition("/")[2] for path in ours][-1] == "sound-manager-0"
    assert not [name for name in scripted.collections[PODS] if name.startswith("sound")]


async def test_a_job_that_says_that_it_has_no_manager_gets_none(served: tuple[ScriptedApi, Api]) -> None:
    """`manager: null` differs from an absent field, which means our own manager."""
    scripted, api = served
    body = job(TRAINING_JOB, "alone")
    body["spec"]["manager"] = None
    await scripted.put(OWN, body)
    async with operating(api):
        await scripted.until(OWN, "alone", "status")
    assert sorted(scripted.collections[PODS]) == ["alone-worker-0", "alone-worker-1"]


async def trained(scripted: ScriptedApi, affinity: Object | None = None, generation: str = "0") -> None:
    """Creates a job that trains, with its manager and two workers."""
    body = job(TRAINING_JOB, "sound")
    body["status"] = {"phase": "Running", "message": ""}
    await scripted.put(OWN, body)
    for role, rank in (("manager", 0), ("worker", 0), ("worker", 1)):
        made = pod("uid-of-sound", f"sound-{role}-{rank}")
        made["metadata"]["labels"] = {keys.JOB_ID: "uid-of-sound", keys.REPLICA_TYPE: role, keys.GENERATION: generation}
        made["metadata"]["annotations"] = {keys.RANK_INDEX: str(rank)} if role == "worker" else {}
        made["metadata"]["ownerReferences"] = [owner(TRAINING_JOB, "sound")]
        made["spec"]["affinity"] = affinity or {}
        await scripted.put(PODS, made)


async def until_another(scripted: ScriptedApi, name: str, old: Object) -> Object:
    async with asyncio.timeout(60):
        while True:
            found = await scripted.until(PODS, name, "spec")
            if found["metadata"]["uid"] != old["metadata"]["uid"]:
                return found
            await asyncio.sleep(0.01)
