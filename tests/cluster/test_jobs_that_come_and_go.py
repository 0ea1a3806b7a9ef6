"""Jobs that end, are recreated under their name, or ask for recoveries again each have their own pods."""

import asyncio
import copy
from contextlib import aclosing
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes import reader, schemas
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kinds import BATCH_JOB, TRAINING_JOB
from activities.clusters.kubernetes.kinds.bare_pods import remembered
from activities.clusters.port import Snapshot
from activities.pods import PodActivities
from rekindle.errors import Conflict, NotFound
from rekindle.model.activities.jobs import SurveyRequest
from rekindle.model.cluster import WatchEvent
from rekindle.settings import Settings
from tests.support.tenants import WAIT_LIMIT, Tenants, owner
from tests.support.valid_objects import JOBS, pod
from workers.operator import Operator
from workers.watcher.cluster_index import ClusterIndex


async def test_a_job_that_is_gone_is_not_known_for_ever(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway lives for months, and a cluster has thousands of Jobs a day."""
    monkeypatch.setattr(reader, "LOOK_GAP", 0.0)
    await tenants.job(BATCH_JOB, "victim", "train")
    await tenants.cluster.locate("uid-of-train")
    await tenants.scripted.remove(BATCH_JOB.path("victim"), "train")
    for unknown in ("made-up", "uid-of-train"):
        with pytest.raises(NotFound):
            await tenants.cluster.locate(unknown)


async def test_a_job_that_asks_for_recoveries_again_has_the_pods_that_there_are(tenants: Tenants) -> None:
    """A job that asks for recoveries again has exactly the pods that exist. Pods that ended meanwhile were never reported, and
    would otherwise hold a rank twice."""
    asks = copy.deepcopy((await tenants.job(BATCH_JOB, "victim", "train"))["metadata"])
    pods = "/api/v1/namespaces/victim/pods"

    async def made(name: str) -> None:
        body = pod("", name)
        labels = {**body["metadata"]["labels"], "batch.kubernetes.io/job-name": "train"}
        more = {"namespace": "victim", "uid": f"uid-of-{name}", "labels": labels, "ownerReferences": [owner(BATCH_JOB, "train")]}
        await tenants.scripted.put(pods, {**body, "metadata": {**body["metadata"], **more}})

    await made("first")
    async with aclosing(tenants.cluster.watch()) as news:
        snapshot = await anext(news)
        assert isinstance(snapshot, Snapshot)
        index = ClusterIndex(snapshot.jobs, snapshot.pods, snapshot.nodes)
        assert [pod.metadata.name for pod in index.view("uid-of-train").pods] == ["first"]

        async def take() -> None:
            event = await asyncio.wait_for(anext(news), WAIT_LIMIT)
            assert isinstance(event, WatchEvent)
            (index.remove if event.type == "DELETED" else index.put)(event.object)

        body = copy.deepcopy(JOBS[BATCH_JOB]) | {"metadata": {**asks, "labels": {}, "annotations": {}}}
        taking = asyncio.ensure_future(take())
        await tenants.scripted.until_watched(BATCH_JOB.path())
        await tenants.scripted.until_watched("/api/v1/pods", len(tenants.cluster._reader.pod_labels))
        await tenants.scripted.put(BATCH_JOB.path("victim"), body)
        await taking
        await tenants.scripted.remove(pods, "first")
        await made("second")
        await tenants.job(BATCH_JOB, "victim", "train")
        await take()
        await take()
    assert [pod.metadata.name for pod in index.view("uid-of-train").pods] == ["second"]


async def test_pods_that_nobody_controls_and_that_are_made_again_are_the_only_ones(tenants: Tenants) -> None:
    """The pods are recreated by `kubectl delete` and `kubectl apply` of the same file."""
    pods = "/api/v1/namespaces/victim/pods"
    await tenants.pod("victim", "worker", "victim.loose")
    async with aclosing(tenants.cluster.watch()) as news:
        snapshot = await anext(news)
        assert isinstance(snapshot, Snapshot)
        index = ClusterIndex(snapshot.jobs, snapshot.pods, snapshot.nodes)
        following = asyncio.ensure_future(anext(news))
        await tenants.scripted.until_watched("/api/v1/pods", len(tenants.cluster._reader.pod_labels))
        await tenants.scripted.remove(pods, "worker")
        body = pod("victim.loose", "worker")
        more = {"namespace": "victim", "uid": "another", "ownerReferences": []}
        await tenants.scripted.put(pods, {**body, "metadata": {**body["metadata"], **more}})
        for event in (await asyncio.wait_for(following, WAIT_LIMIT), await anext(news), await anext(news)):
            assert isinstance(event, WatchEvent)
            (index.remove if event.type == "DELETED" else index.put)(event.object)
    assert [one.metadata.uid for one in index.view("victim.loose").pods] == ["another"]


async def test_pods_that_nobody_controls_are_not_over_in_the_middle_of_a_restart(tenants: Tenants) -> None:
    """Pods without a controller are not over in the middle of a restart, when only their templates exist. A watch that breaks
    then lists everything again."""
    made = await tenants.pod("victim", "worker", "victim.loose")
    template = remembered(schemas.checked(schemas.Pod, made))
    template["metadata"] |= {"namespace": "victim", "uid": "uid-of-template"}
    await tenants.scripted.put("/api/v1/namespaces/victim/podtemplates", template)
    assert (await tenants.snapshot()).unreadable == []
    await tenants.scripted.remove("/api/v1/namespaces/victim/pods", "worker")
    assert (await tenants.snapshot()).unreadable == ["victim.loose"]


async def test_a_restart_brings_back_what_its_owner_has_made_since_the_last_one(tenants: Tenants) -> None:
    """A failed restart leaves templates. The owner then creates the pods by hand, from another image, and the next restart uses
    that image."""
    for image in ("old", "new"):
        made = await tenants.pod("victim", "worker", "victim.loose")
        made["metadata"] |= {"uid": f"uid-of-{image}"}
        made["spec"]["containers"][0]["image"] = image
        for _ in range(2):  # tried again, while the pod is ending
            await tenants.cluster.ensure_stopped("victim.loose", 0)
            await tenants.scripted.put("/api/v1/namespaces/victim/pods", made)
        await tenants.scripted.remove("/api/v1/namespaces/victim/pods", "worker")
    assert [method for method, path in tenants.scripted.requests if "podtemplates" in path and method != "GET"] == [
        "POST",
        "DELETE",
        "POST",
    ]
    (template,) = tenants.scripted.collections["/api/v1/namespaces/victim/podtemplates"].values()
    assert template["template"]["spec"]["containers"][0]["image"] == "new"


async def test_a_job_that_asks_for_nothing_any_more_is_over_though_no_watcher_saw_it(tenants: Tenants) -> None:
    """The next watcher does not know the job. Its workflow surveys it now and then, and would recover it for ever."""
    made = await tenants.job(BATCH_JOB, "victim", "train")
    request = SurveyRequest(job_id="uid-of-train", nodes=())
    looking = PodActivities(tenants.cluster).survey
    assert (await ActivityEnvironment().run(looking, request)).ended == ""
    made["metadata"]["labels"] = {}
    await tenants.scripted.put(BATCH_JOB.path("victim"), made)
    assert "asks for recoveries" in (await ActivityEnvironment().run(looking, request)).ended


async def test_a_new_job_does_not_take_the_pods_of_a_deleted_one_of_its_name(tenants: Tenants) -> None:
    """The garbage collector has not deleted them yet: they look alike, and would be gone a moment later."""
    await tenants.job(TRAINING_JOB, "victim", "train")
    await tenants.pod("victim", "train-worker-0", "uid-of-former", owner(TRAINING_JOB, "train", "uid-of-former"))
    with pytest.raises(Conflict):
        await tenants.cluster.ensure_pods("uid-of-train", "0", ())


async def test_a_new_job_does_not_take_the_service_of_a_deleted_one_of_its_name(tenants: Tenants) -> None:
    """A new job receives its own Service when that of the deleted job is gone, and does not begin before."""
    services, jobs = "/api/v1/namespaces/victim/services", TRAINING_JOB.path("victim")
    former = {"metadata": {"name": "train-manager", "ownerReferences": [owner(TRAINING_JOB, "train", "uid-of-former")]}}
    await tenants.scripted.put(services, former)
    await tenants.job(TRAINING_JOB, "victim", "train")
    operating = asyncio.create_task(Operator(tenants.api, Settings(cluster="kubernetes")).run())
    try:
        async with asyncio.timeout(WAIT_LIMIT):
            while ("GET", f"{services}/train-manager") not in tenants.scripted.requests:
                await asyncio.sleep(0.01)
        assert not tenants.scripted.collections[jobs]["train"]["status"]
        await tenants.scripted.remove(services, "train-manager")
        await tenants.scripted.until(jobs, "train", "status")
    finally:
        operating.cancel()
        await asyncio.gather(operating, return_exceptions=True)
    (mine,) = tenants.scripted.collections[services]["train-manager"]["metadata"]["ownerReferences"]
    assert mine["uid"] == "uid-of-train"


async def test_a_job_that_took_the_name_of_a_deleted_one_is_neither_suspended_nor_marked(
    tenants: Tenants, tmp_path: Path
) -> None:
    """A job that took the name of a deleted one is neither suspended nor marked. It was created between read and write, and every
    write names the UID."""
    path = BATCH_JOB.path("victim", "train")

    class Slow(Api):
        async def get(self, path: str) -> Object:
            found = await super().get(path)
            await tenants.job(BATCH_JOB, "victim", "train", uid="uid-of-the-next")
            return found

    async with Slow(tmp_path / "kubeconfig") as api:
        cluster = KubernetesCluster(api, Settings(cluster="kubernetes"))
        for write in (
            lambda: cluster.ensure_stopped("uid-of-train", 0),
            lambda: cluster.ensure_job_metadata("uid-of-train", {"marked": "yes"}, {}),
        ):
            await tenants.job(BATCH_JOB, "victim", "train")
            with pytest.raises(Conflict):
                await write()
            there = await tenants.api.get(path)
            assert there["metadata"]["uid"] == "uid-of-the-next"
            assert not there["spec"]["suspend"]
            assert "marked" not in there["metadata"]["labels"]
