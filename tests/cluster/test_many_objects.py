"""Clusters of tens of thousands of objects: how they are listed, what is kept of them, and how many jobs receive reports at
once."""

import asyncio
import copy
import json
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from activities.clusters import api_server
from activities.clusters.api_server import BOOKMARK, Api, Change, Listing, Object
from activities.clusters.kubernetes import watch
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kinds import BATCH_JOB, JOB_SET, TRAINING_JOB
from activities.clusters.kubernetes.objects import shown_by
from activities.clusters.port import Snapshot
from rekindle.errors import ClusterUnavailable, WatchExpired
from rekindle.model import keys
from rekindle.model.cluster import Pod
from rekindle.model.fault import Sighting
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.state import Registration
from rekindle.policy.detection.watcher_updates import News, Register, Sighted
from rekindle.settings import Settings
from tests.fakes.scripted_api import ScriptedApi, scripted_api
from tests.support import job_views, valid_objects
from workers.operator import Operator
from workers.watcher.job_workflows import AT_ONCE, TemporalJobWorkflows

EVENTS = "/api/v1/namespaces/default/events"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[ScriptedApi, Api]]:
    async with scripted_api(tmp_path) as both:
        yield both


async def everything(api: Api) -> list[Change]:
    async with aclosing(api.everything(PODS)) as changes:
        return [change async for change in changes]


async def snapshot(api: Api) -> Snapshot:
    async with aclosing(KubernetesCluster(api, Settings(cluster="kubernetes")).watch()) as news:
        first = await anext(news)
    assert isinstance(first, Snapshot)
    return first


def a_pod(name: str, job: str, **metadata: object) -> Object:
    """Returns a pod with the job that owns it."""
    pod = valid_objects.pod("", name)
    owner = {"apiVersion": TRAINING_JOB.api_version, "kind": TRAINING_JOB.name, "name": job, "uid": f"uid-of-{job}"}
    pod["metadata"]["labels"] = {keys.JOB_ID: f"uid-of-{job}", "team": "vision"}
    pod["metadata"] |= {"ownerReferences": [{**owner, "controller": True}], **metadata}
    return pod


# ---- lists


async def test_a_list_is_streamed_and_a_watch_goes_on_behind_it(server: tuple[ScriptedApi, Api]) -> None:
    """One request returns objects one by one, with a bookmark after the last."""
    scripted, api = server
    for number in range(3):
        await scripted.put(PODS, valid_objects.pod("", f"pod-{number}"))
    *pods, end = await everything(api)
    assert [(change.type, change.object["metadata"]["name"]) for change in pods] == [("ADDED", f"pod-{one}") for one in range(3)]
    assert (end.type, int(end.object["metadata"]["resourceVersion"])) == (BOOKMARK, 3)
    assert len(scripted.requests) == 1


async def test_a_server_that_streams_no_lists_is_asked_for_pages(server: tuple[ScriptedApi, Api]) -> None:
    """A server that refuses the first stream of a list receives no second one, and is asked for pages."""
    scripted, api = server
    scripted.streams = False
    for number in range(5):
        await scripted.put(PODS, valid_objects.pod("", f"pod-{number}"))
    for _ in range(2):
        *pods, end = await everything(api)
        assert [change.object["metadata"]["name"] for change in pods] == [f"pod-{number}" for number in range(5)]
        assert end.type == BOOKMARK
    assert sum("sendInitialEvents" in path for _, path in scripted.requests) == 1
    assert sum("limit=" in path for _, path in scripted.requests) == 2


@pytest.mark.parametrize(("paged", "streams"), [(600.0, 1), (0.0, 2)])
async def test_a_stream_that_breaks_is_tried_again_later(
    server: tuple[ScriptedApi, Api], monkeypatch: pytest.MonkeyPatch, paged: float, streams: int
) -> None:
    """A server that restarts streams lists again afterwards, which costs less of everything than pages do."""
    monkeypatch.setattr(api_server, "PAGED", paged)
    scripted, api = server
    scripted.ends_streams = True
    with pytest.raises(ClusterUnavailable):
        await everything(api)
    scripted.ends_streams = False
    await everything(api)
    assert sum("sendInitialEvents" in path for _, path in scripted.requests) == streams


async def test_a_server_that_is_away_may_stream_lists(server: tuple[ScriptedApi, Api]) -> None:
    """A server that was unavailable may still stream lists, because its error said nothing about streams."""
    scripted, api = server
    scripted.answers["GET", PODS] = (503, {"kind": "Status", "code": 503, "message": "etcd is away"})
    with pytest.raises(ClusterUnavailable):
        await everything(api)
    del scripted.answers["GET", PODS]
    await everything(api)
    assert all("sendInitialEvents" in path for _, path in scripted.requests)


async def test_a_page_of_large_objects_has_few_of_them(server: tuple[ScriptedApi, Api], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's five hundred pods of a megabyte each would be more than the watcher's memory, in one answer."""
    monkeypatch.setattr(api_server, "LARGEST_PAGE", 20_000)
    scripted, api = server
    for number in range(30):
        pod = valid_objects.pod("", f"pod-{number:02}")
        pod["metadata"]["annotations"]["large"] = "x" * 1000
        await scripted.put(PODS, pod)
    listed = await api.list(PODS)
    assert [one["metadata"]["name"] for one in listed.items] == [f"pod-{number:02}" for number in range(30)]
    limits = [path.partition("limit=")[2].partition("&")[0] for _, path in scripted.requests]
    assert limits == ["500", "62", *["7"] * 5]


async def test_what_ends_while_a_list_is_streamed_is_not_there(server: tuple[ScriptedApi, Api]) -> None:
    """Changes may come before the bookmark: a pod, a node or a job that is gone by then is not reported."""
    scripted, api = server
    await scripted.put(TRAINING_JOB.path("default"), a_training_job("stays"))
    for name in ("stays", "goes"):
        await scripted.put(PODS, a_pod(name, "stays"))
        await scripted.put("/api/v1/nodes", valid_objects.node(name))
    await scripted.put(TRAINING_JOB.path("default"), a_training_job("goes"))
    scripted.gone = {"goes"}
    seen = await snapshot(api)
    assert [[one.metadata.name for one in things] for things in (seen.jobs, seen.pods, seen.nodes)] == [["stays"]] * 3


def a_training_job(name: str) -> Object:
    job = copy.deepcopy(valid_objects.JOBS[TRAINING_JOB])
    job["metadata"] |= {"name": name, "uid": f"uid-of-{name}"}
    return job


async def test_of_a_pod_is_kept_what_is_looked_at(server: tuple[ScriptedApi, Api]) -> None:
    """Ten thousand pods have metadata of their owners, and records of who wrote which field, which are larger than all else."""
    scripted, api = server
    await scripted.put(TRAINING_JOB.path("default"), a_training_job("train"))
    await scripted.put(PODS, a_pod("worker", "train", managedFields=[{"manager": "kubelet", "fieldsV1": {}}]))
    (pod,) = (await snapshot(api)).pods
    assert isinstance(pod, Pod)
    assert pod.metadata.labels == {}
    assert pod.metadata.annotations == {keys.RANK_INDEX: "0"}
    assert pod.status.conditions == ()


class Sent(dict[str, object]):
    """An object whose lifetime shows whether it is kept."""


async def test_of_a_pod_our_own_controller_keeps_what_it_looks_at(server: tuple[ScriptedApi, Api]) -> None:
    """Our own controller keeps only the fields of a pod that it reads. It has less memory than 5,000 pods of realistic size."""
    scripted, api = server
    await scripted.put(TRAINING_JOB.path("default"), a_training_job("train"))
    await scripted.put(PODS, a_pod("worker", "train", managedFields=[{"manager": "kubelet", "fieldsV1": {}}]))
    operator = Operator(api, Settings(cluster="kubernetes"))
    serving = asyncio.create_task(operator.run())
    await scripted.until_watched("/api/v1/pods")
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    (kept,) = operator._pods["default/uid-of-train"].values()
    assert kept["metadata"]["name"] == "worker"
    assert "managedFields" not in kept["metadata"]
    assert "LOCAL_WORLD_SIZE" not in json.dumps(kept)
    assert any("sendInitialEvents" in path for _, path in scripted.requests)


async def test_who_may_speak_for_a_large_job_is_seen_page_by_page(
    server: tuple[ScriptedApi, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that starts asks for sixteen jobs at once: it never holds whole pods until the last page."""
    scripted, api = server
    await scripted.put(TRAINING_JOB.path("default"), a_training_job("train"))
    sent: list[weakref.ref[Sent]] = []
    living: list[int] = []

    async def three_pages(_: str, labelSelector: str) -> AsyncIterator[Listing]:  # noqa: N803
        for number in range(3 if labelSelector.startswith(keys.JOB_ID) else 0):
            pod = Sent(a_pod(f"worker-{number}", "train"))
            sent.append(weakref.ref(pod))
            page = Listing([pod], "1")
            del pod
            yield page
            del page
            living.append(sum(1 for one in sent if one()))
        yield Listing([], "1")

    cluster = KubernetesCluster(api, Settings(cluster="kubernetes"))
    await cluster.job("uid-of-train")
    monkeypatch.setattr(api, "pages", three_pages)
    assert (await cluster.speakers("uid-of-train")).pods == {f"uid-of-worker-{number}" for number in range(3)}
    assert living == [1, 1, 1]


async def test_parts_of_many_job_sets_are_not_asked_for_one_by_one(server: tuple[ScriptedApi, Api]) -> None:
    """The list of all Jobs says which JobSet a part belongs to. Parts are not requested one by one."""
    scripted, api = server
    job_set = copy.deepcopy(valid_objects.JOBS[JOB_SET])
    job_set["metadata"] |= {"name": "set", "uid": "uid-of-set", "labels": {keys.MANAGED: "true"}}
    await scripted.put(JOB_SET.path("default"), job_set)
    for number in range(3):
        part = copy.deepcopy(valid_objects.JOBS[BATCH_JOB])
        owner = {"apiVersion": JOB_SET.api_version, "kind": JOB_SET.name, "name": "set", "uid": "uid-of-set", "controller": True}
        part["metadata"] |= {"name": f"part-{number}", "uid": f"uid-of-part-{number}", "ownerReferences": [owner]}
        await scripted.put(BATCH_JOB.path("default"), part)
        pod = valid_objects.pod("", f"pod-{number}")
        pod["metadata"]["labels"] = {"batch.kubernetes.io/job-name": f"part-{number}"}
        of_part = {"apiVersion": "batch/v1", "kind": "Job", "name": f"part-{number}", "uid": f"uid-of-part-{number}"}
        pod["metadata"]["ownerReferences"] = [{**of_part, "controller": True}]
        await scripted.put(PODS, pod)
    seen = await snapshot(api)
    assert {pod.metadata.owner_uid for pod in seen.pods} == {"uid-of-set"}
    assert len(seen.pods) == 3
    assert not [path for _, path in scripted.requests if "/namespaces/" in path]


async def test_parts_of_a_large_job_set_are_changed_side_by_side(server: tuple[ScriptedApi, Api]) -> None:
    """A restart of thousands of parts would take a minute one after the other."""
    scripted, api = server
    job_set, names = copy.deepcopy(valid_objects.JOBS[JOB_SET]), ("first", "second")
    job_set["metadata"] |= {"name": "set", "uid": "uid-of-set", "annotations": {keys.STOPPED: "yes"}}
    job_set["spec"]["suspend"] = True
    await scripted.put(JOB_SET.path("default"), job_set)
    owner = {"apiVersion": JOB_SET.api_version, "kind": JOB_SET.name, "name": "set", "uid": "uid-of-set", "controller": True}
    for name in names:
        part = copy.deepcopy(valid_objects.JOBS[BATCH_JOB])
        part["metadata"] |= {"name": name, "uid": f"uid-of-{name}", "ownerReferences": [owner]}
        part["metadata"]["labels"] = {JOB_SET.pod_label: "set"}
        await scripted.put(BATCH_JOB.path("default"), part)
        scripted.held["PATCH", f"{BATCH_JOB.path('default')}/{name}"] = asyncio.Event()
    cluster = KubernetesCluster(api, Settings(cluster="kubernetes"))
    restarting = asyncio.create_task(cluster.ensure_pods("uid-of-set", "1", ()))
    for name in names:
        await scripted.until_asked("PATCH", f"{BATCH_JOB.path('default')}/{name}")
    restarting.cancel()
    await asyncio.gather(restarting, return_exceptions=True)


async def test_a_kind_that_is_installed_later_is_watched_soon(
    server: tuple[ScriptedApi, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind that is installed later is watched soon. Otherwise its jobs would have no protection until the next list, an hour
    later."""
    monkeypatch.setattr(watch, "INSTALLED", 0.01)
    scripted, api = server
    absent = ("GET", JOB_SET.path())
    scripted.refused[absent] = (404, "404 page not found")
    async with aclosing(KubernetesCluster(api, Settings(cluster="kubernetes")).watch()) as news:
        await anext(news)
        waiting = asyncio.create_task(anext(news))
        await scripted.until_answered(*absent, 3)
        assert not waiting.done()
        del scripted.refused[absent]
        with pytest.raises(WatchExpired, match="jobsets"):
            await waiting


# ---- telling


class Slow(TemporalJobWorkflows):
    """Acknowledges nothing."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.under_way: list[News] = []

    async def _send(self, job_id: str, news: News, update_id: str) -> None:
        self.under_way.append(news)
        await asyncio.Event().wait()


async def test_a_fault_waits_for_no_thousand_of_registrations() -> None:
    """A watcher that starts registers all jobs, a few of them at a time; a fault of one job is reported beside them."""
    workflows, job = Slow(), job_of(job_views.job(), Limits())
    calm = Register(registration=Registration(job=job, sighting=Sighting(holders=("a", "b"))))
    sick = Sighted(sighting=Sighting(holders=("a", "")))
    tasks = [asyncio.create_task(workflows.send("job", news, "")) for news in [calm] * 1000 + [sick]]
    await asyncio.sleep(0)
    assert workflows.under_way == [*[calm] * AT_ONCE, sick]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- two watchers


async def test_two_watchers_say_once_what_is_wrong_with_an_object(server: tuple[ScriptedApi, Api]) -> None:
    """Two watchers report once what is wrong with an object. Both run for a moment while one replaces the other, and the new one
    finds the earlier event."""
    scripted, api = server
    job = a_training_job("train")
    job["spec"]["pods"] = "many"
    await scripted.put(TRAINING_JOB.path("default"), job)
    clusters = [KubernetesCluster(api, Settings(cluster="kubernetes")) for _ in range(2)]
    for times, cluster in enumerate(clusters, 1):
        async with aclosing(cluster.watch()) as news:
            await anext(news)
        await scripted.until_answered("POST", EVENTS, times)
    assert [one["reason"] for one in scripted.collections[EVENTS].values()] == ["JobRefused"]


async def test_what_is_wrong_with_many_objects_is_said_a_few_at_a_time(server: tuple[ScriptedApi, Api]) -> None:
    """One tenant has thousands of wrong objects when the watcher starts: each would have a connection of its own at the same
    moment."""
    scripted, api = server
    scripted.held["POST", EVENTS] = asyncio.Event()
    for number in range(100):
        job = a_training_job(f"train-{number}")
        job["spec"]["pods"] = "many"
        await scripted.put(TRAINING_JOB.path("default"), job)
    cluster = KubernetesCluster(api, Settings(cluster="kubernetes"))
    async with aclosing(cluster.watch()) as news:
        await anext(news)
        await scripted.until_asked("POST", EVENTS, 20)
        for _ in range(5):  # whatever was sent together with them has come
            await api.get(f"{TRAINING_JOB.path('default')}/train-0")
        at_once = scripted.requests.count(("POST", EVENTS))
        scripted.held.pop(("POST", EVENTS)).set()
        await scripted.until_answered("POST", EVENTS, 100)
    assert at_once == 20


def test_a_node_that_says_that_it_lives_shows_nothing_new() -> None:
    """Each of thousands of nodes renews its lease every few minutes; every other change counts."""
    node = valid_objects.node("node")
    beats = copy.deepcopy(node)
    beats["metadata"] |= {"resourceVersion": "8", "managedFields": [{"manager": "kubelet"}]}
    beats["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-02-02T00:00:00Z"
    assert shown_by(beats) == shown_by(node)
    changes: list[Callable[[Object], object]] = [
        lambda one: one["status"]["conditions"][0].update(status="False"),
        lambda one: one["metadata"]["labels"].update(zone="a"),
        lambda one: one.update(spec={"unschedulable": True}),
        lambda one: one["status"]["allocatable"].update(cpu="7"),
    ]
    for change in changes:
        changed = copy.deepcopy(beats)
        change(changed)
        assert shown_by(changed) != shown_by(node)
