"""Jobs of foreign kinds under the direct driver. The controllers of JobSets, PyTorchJobs and TrainJobs are simulated. The
controller of Jobs, API server, scheduler and garbage collector are real."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from activities.clusters.api_server import Api, Change, Object
from activities.clusters.port import Snapshot
from rekindle.errors import ClusterUnavailable, Invalid
from rekindle.model import keys
from rekindle.model.cluster import JobView, Pod, WatchEvent
from rekindle.policy.detection.sighting import sight
from tests.fakes.controller import annotations_of, is_terminating, labels_of
from tests.fakes.foreign import Setting, a_setting
from tests.fakes.kubeflow import (
    PATHS,
    SUBMIT,
    accelerators,
    job_sets_path,
    pod_template,
    replicated_job,
    submit,
    submit_job_set,
    submit_pytorch_job,
    train_jobs_path,
    train_spec,
)
from tests.kubernetes.world.control_plane import Namespace
from tests.kubernetes.world.worlds import NODES, rank_of, tried

WAIT_LIMIT = 60.0
ASKS = {"labels": {keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}}
RANKS = ["0", "1", "2", "3"]
WITHHELD = {
    "JobSet": {"batch.kubernetes.io/controller-uid", "controller-uid"},
    "PyTorchJob": {"training.kubeflow.org/operator-name"},
    "TrainJob": {"batch.kubernetes.io/controller-uid", "controller-uid"},
}
"""Labels by which the controller of each kind counts pods."""

_numbers = itertools.count(1)


every_kind = pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.same_path(over="kind")) for kind in SUBMIT])


# ---- what is found


@every_kind
async def test_a_job_is_found_with_the_pods_of_its_ranks(setting: Setting, kind: str) -> None:
    """A watch begins with the job, its number of pods, and one pod a rank."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    found = await setting.snapshot()
    (job,) = found.jobs
    assert (job.metadata.uid, job.metadata.name, job.kind, job.spec.pods) == (uid, "demo", kind, 4)
    assert sorted(rank_of(pod) or "" for pod in found.pods) == RANKS
    assert {pod.metadata.owner_uid for pod in found.pods} == {uid}


async def test_the_master_is_rank_zero(setting: Setting) -> None:
    """Workers of a PyTorchJob are counted after the Master."""
    uid = await setting.running(await submit_pytorch_job(setting.namespace, ASKS))
    ranks = {pod.metadata.name: rank_of(pod) for pod in await setting.cluster.pods(uid)}
    assert ranks == {"demo-master-0": "0", "demo-worker-0": "1", "demo-worker-1": "2", "demo-worker-2": "3"}


async def test_jobs_of_a_set_are_counted_one_behind_the_other(setting: Setting) -> None:
    """The rank of a JobSet's pod follows from the place of its Job and from its own index in that Job."""
    uid = await setting.running(await submit_job_set(setting.namespace, ASKS))
    places = sorted((rank_of(pod), pod.metadata.name.rsplit("-", 1)[0]) for pod in await setting.cluster.pods(uid))
    assert places == [("0", "demo-workers-0-0"), ("1", "demo-workers-0-1"), ("2", "demo-workers-1-0"), ("3", "demo-workers-1-1")]


async def test_a_sets_groups_of_jobs_are_counted_one_behind_the_other(setting: Setting) -> None:
    """A leader of one pod and workers of two each have ranks of their own."""
    jobs = [replicated_job("leader", pod_template()), replicated_job("workers", pod_template(), replicas=2, pods=2)]
    uid = await setting.running(await submit(job_sets_path, setting.namespace, ASKS, {"replicatedJobs": jobs}), pods=5)
    ranks = {pod.metadata.name.rsplit("-", 1)[0]: rank_of(pod) for pod in await setting.cluster.pods(uid)}
    assert ranks == {
        "demo-leader-0-0": "0",
        "demo-workers-0-0": "1",
        "demo-workers-0-1": "2",
        "demo-workers-1-0": "3",
        "demo-workers-1-1": "4",
    }


async def test_a_manager_in_a_set_has_no_rank(setting: Setting) -> None:
    """A manager's pods are pods of the job without a rank, and the ranks of the workers are counted without it."""
    manager = replicated_job("manager", pod_template(labels={keys.REPLICA_TYPE: "manager"}))
    jobs = [manager, replicated_job("workers", pod_template(), replicas=2, pods=2)]
    uid = await setting.running(await submit(job_sets_path, setting.namespace, ASKS, {"replicatedJobs": jobs}), pods=5)
    found = await setting.snapshot()
    assert found.jobs[0].spec.pods == 4
    assert Counter(rank_of(pod) for pod in found.pods) == Counter([None, *RANKS])
    assert {pod.metadata.owner_uid for pod in found.pods} == {uid}


async def test_what_prepares_a_train_job_has_no_rank(setting: Setting) -> None:
    """Other jobs of a TrainJob's runtime have no rank: their pods are pods of the job, and only those of its nodes are
    counted."""
    spec = train_spec({"numNodes": 4, "resourcesPerNode": {}}, initializer={"dataset": {}})
    await setting.running(await submit(train_jobs_path, setting.namespace, ASKS, spec), pods=5)
    found = await setting.snapshot()
    assert found.jobs[0].spec.pods == 4
    assert Counter(rank_of(pod) for pod in found.pods) == Counter([None, *RANKS])


@pytest.mark.parametrize("are_jobs_watched", [True, False])
async def test_the_trainer_of_a_train_job_is_known_by_its_mark(setting: Setting, *, are_jobs_watched: bool) -> None:
    """The runtime may give the Job any name, and marks it; the pod that takes a rank over has the mark too. A Job that was not
    seen before its pods is read from the API server."""
    spec = train_spec({"numNodes": 4, "resourcesPerNode": {}}, initializer={"dataset": {}}, runtimeRef={"name": "marked"})
    uid = await setting.running(await submit(train_jobs_path, setting.namespace, ASKS, spec), pods=5)
    if are_jobs_watched:
        found = await setting.snapshot()
        assert Counter(rank_of(pod) for pod in found.pods) == Counter([None, *RANKS])
    assert Counter(rank_of(pod) for pod in await setting.cluster.pods(uid)) == Counter([None, *RANKS])
    await setting.hot_switch(uid, "3", "spare")
    ranks = {pod.metadata.name: rank_of(pod) for pod in await setting.cluster.pods(uid)}
    assert ranks["spare"] == "3"


@every_kind
@pytest.mark.parametrize(
    ("annotations", "container", "ranks"),
    [
        ({keys.RANKS_PER_POD: "8"}, {"env": [{"name": "NPROC_PER_NODE", "value": "4"}]}, 8),
        ({}, {"env": [{"name": "NPROC_PER_NODE", "value": "4"}], "resources": accelerators(2)}, 4),
        ({}, {"env": [{"name": "LOCAL_WORLD_SIZE", "value": "4"}]}, 4),
        ({}, {"resources": accelerators(2)}, 2),
        ({}, {}, 1),
    ],
    ids=["annotation", "NPROC_PER_NODE", "LOCAL_WORLD_SIZE", "accelerators", "nothing"],
)
async def test_a_job_says_how_many_ranks_a_pod_has(
    setting: Setting, kind: str, annotations: dict[str, str], container: Object, ranks: int
) -> None:
    """An annotation precedes the environment, and that precedes the accelerators; without any of them a pod has one rank."""
    await SUBMIT[kind](setting.namespace, {**ASKS, "annotations": annotations}, container)
    (job,) = (await setting.snapshot()).jobs
    assert job.spec.ranks_per_pod == ranks


@every_kind
async def test_parts_of_a_job_are_not_jobs_of_their_own(setting: Setting, kind: str) -> None:
    """A JobSet's Jobs, and a TrainJob's JobSet, are not registered although their labels request it."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    api, name = setting.namespace.api, setting.namespace.name
    parts = [*(await api.list(setting.namespace.path("jobs"))).items, *(await api.list(job_sets_path(name))).items]
    for part in parts:
        if part["metadata"]["uid"] != uid:
            path = setting.namespace.path("jobs") if "completionMode" in part["spec"] else job_sets_path(name)
            await api.patch(f"{path}/{part['metadata']['name']}", {"metadata": ASKS})
    assert [job.metadata.uid for job in (await setting.snapshot()).jobs] == [uid]


@every_kind
async def test_a_job_appears_with_its_pods_when_it_asks_for_it(setting: Setting, kind: str) -> None:
    """A job without any of the contract's labels is not seen until it gets ours."""
    created = await SUBMIT[kind](setting.namespace, {})
    uid = await setting.running(created)
    async with asyncio.timeout(WAIT_LIMIT), aclosing(setting.cluster.watch()) as news:
        first = await anext(news)
        assert isinstance(first, Snapshot)
        assert (first.jobs, first.pods) == ([], [])
        path = PATHS[kind](setting.namespace.name, "demo")
        await setting.namespace.api.patch(path, {"metadata": {"labels": {keys.MANAGED: "true"}}})
        seen = [await next_about(news, "Job", uid), *[await next_about(news, "Pod", uid) for _ in range(4)]]
    assert [event.type for event in seen] == ["ADDED"] * 5
    assert sorted(rank_of(event.object) or "" for event in seen[1:] if isinstance(event.object, Pod)) == RANKS


async def next_about(news: AsyncIterator[object], kind: str, uid: str) -> WatchEvent:
    """Waits for the next event of a type about a job or one of its pods."""
    async for event in news:
        if isinstance(event, WatchEvent) and event.kind == kind:
            about = event.object.metadata.owner_uid if isinstance(event.object, Pod) else event.object.metadata.uid
            if about == uid:
                return event
    raise AssertionError("a watch has no end")


@every_kind
async def test_a_job_that_is_written_wrongly_is_told_so(setting: Setting, kind: str) -> None:
    """A job whose limits are no mapping is not registered, and an event on it gives the reason."""
    created = await SUBMIT[kind](setting.namespace, {**ASKS, "annotations": {keys.LIMITS: "- pause"}})
    events = setting.namespace.path("events")
    since = (await setting.namespace.api.list(events)).resource_version
    assert (await setting.snapshot()).jobs == []
    async with asyncio.timeout(WAIT_LIMIT):
        news = setting.namespace.api.watch(events, since)
        told = (await first(news, lambda change: change.object["reason"] == "JobRefused")).object
    assert told["involvedObject"]["uid"] == created["metadata"]["uid"]
    assert keys.LIMITS in told["message"]


async def test_a_set_whose_pods_cannot_be_moved_is_told_so_at_its_registration(setting: Setting) -> None:
    """The job is registered all the same: it can be restarted, and its processes can be recovered."""
    exclusive = {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "kubernetes.io/hostname"}}
    await submit_job_set(setting.namespace, {**ASKS, **exclusive})
    (job,) = (await setting.snapshot()).jobs
    told = await setting.namespace.until_event("HotSwitchesRefused")
    assert told["involvedObject"]["uid"] == job.metadata.uid
    assert "exclusive-topology" in told["message"]


async def first(news: AsyncIterator[Change], wanted: Callable[[Change], bool]) -> Change:
    async for change in news:
        if wanted(change):
            return change
    raise AssertionError("a watch has no end")


# ---- hot switch


@every_kind
async def test_a_hot_switch_leaves_one_pod_for_each_rank(setting: Setting, kind: str) -> None:
    """The job's controller counts the backup in the old pod's place, neither ends it nor creates another pod."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    before = await setting.raw(await setting.holder(uid, "3"))
    backup = await setting.hot_switch(uid, "3", "spare")
    await setting.settled(backup)
    pods = await setting.cluster.pods(uid)
    ranks = [rank_of(pod) for pod in pods]
    assert sorted(rank or "" for rank in ranks if rank in RANKS) == RANKS
    after = await setting.raw(backup)
    assert after["metadata"]["uid"] == backup.metadata.uid
    assert not is_terminating(after)
    assert after["status"]["phase"] == "Running"
    (owner,) = before["metadata"]["ownerReferences"]
    del owner["blockOwnerDeletion"]  # a right to it is the controller's own
    assert after["metadata"]["ownerReferences"] == [owner]
    assert {key: labels_of(before)[key] for key in WITHHELD[kind]}.items() <= labels_of(after).items()
    assert not {keys.POD_TYPE, keys.BACKUP_SOURCE} & annotations_of(after).keys()


@every_kind
async def test_a_rank_can_be_switched_again_and_again(setting: Setting, kind: str) -> None:
    """The names that controllers would give to new pods are free by then, and still no additional pod stays."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    for name in ("first", "second"):
        await setting.hot_switch(uid, "3", name)
    backup = await setting.hot_switch(uid, "3", "third")
    await setting.settled(backup)
    pods = await setting.until(uid, lambda pods: not any(pod.metadata.deletion_timestamp for pod in pods))
    assert any_of(pods, backup)
    assert Counter(rank_of(pod) for pod in pods if rank_of(pod) in RANKS) == Counter(RANKS)


def any_of(pods: Sequence[Pod], pod: Pod) -> bool:
    return pod.metadata.uid in {one.metadata.uid for one in pods}


@every_kind
async def test_a_pod_that_is_gone_is_replaced(setting: Setting, kind: str) -> None:
    """A pod that was deleted is replaced: the backup alone holds its rank, whatever the controller created in its place."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    api, jobs = setting.namespace.api, setting.namespace.path("jobs")
    for part in (await api.list(jobs)).items:
        await api.patch(f"{jobs}/{part['metadata']['name']}", {"spec": {"backoffLimit": 9}})
    old = await setting.holder(uid, "3")
    await setting.namespace.api.delete(setting.namespace.path("pods", old.metadata.name), old.metadata.uid, 0)
    await setting.until_gone(uid, old)
    made = await tried(lambda: setting.cluster.ensure_replacement(uid, 3, "spare", ()))
    backup = await setting.until_runs(uid, made.backup)
    await setting.cluster.ensure_promoted(uid, backup.metadata.name, backup.metadata.uid)
    await setting.settled(backup)
    pods = [pod for pod in await setting.cluster.pods(uid) if not pod.metadata.deletion_timestamp]
    assert [pod.metadata.name for pod in with_rank("3", pods)] == ["spare"]
    assert Counter(rank_of(pod) for pod in pods if rank_of(pod) in RANKS) == Counter(RANKS)


class Lossy(Api):
    """An API server that is unavailable once, when a backup is to take over."""

    lost = False

    async def patch(self, path: str, body: Object) -> Object:
        takes_over = any(owner.get("controller") for owner in body.get("metadata", {}).get("ownerReferences", ()))
        if takes_over and not self.lost:
            self.lost = True
            raise ClusterUnavailable("away")
        return await super().patch(path, body)


async def test_a_pod_that_the_controller_made_meanwhile_does_not_share_the_rank(kubeconfig: Path, namespace: Namespace) -> None:
    """A Job's controller fills the index between two writes of a hand-over. A backup that is promoted holds the rank alone."""
    async with a_setting(Lossy(kubeconfig), namespace) as setting:
        jobs = [replicated_job("workers", pod_template({"resources": accelerators(1)}), pods=5)]
        uid = await setting.running(await submit(job_sets_path, namespace, ASKS, {"replicatedJobs": jobs}), pods=5)
        pods = await setting.cluster.pods(uid)
        used = Counter(pod.spec.node_name for pod in pods)
        old = next(pod for pod in pods if used[pod.spec.node_name] == 2)
        rank = rank_of(old)
        backup = await setting.until_runs(uid, await setting.cluster.ensure_backup(old, "spare", ()))
        with pytest.raises(ClusterUnavailable):
            await setting.cluster.ensure_deleted(uid, old.metadata.name, old.metadata.uid, 0)
        await setting.until(uid, lambda pods: len(with_rank(rank, pods)) == 3)
        await setting.cluster.ensure_deleted(uid, old.metadata.name, old.metadata.uid, 0)
        await setting.until_gone(uid, old)
        await setting.cluster.ensure_promoted(uid, backup.metadata.name, backup.metadata.uid)
        pods = with_rank(rank, await setting.cluster.pods(uid))
        assert [pod.metadata.name for pod in pods if not pod.metadata.deletion_timestamp] == ["spare"]
        await setting.settled(backup)
        assert any_of(await setting.cluster.pods(uid), backup)


def with_rank(rank: str | None, pods: Sequence[Pod]) -> list[Pod]:
    return [pod for pod in pods if rank_of(pod) == rank]


@every_kind
async def test_a_backup_is_not_counted_before_it_takes_over(setting: Setting, kind: str) -> None:
    """A backup has neither a controller nor the labels by which pods are counted, and is a pod of the job all the same."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    backup = await setting.cluster.ensure_backup(await setting.holder(uid, "2"), "spare", ())
    raw = await setting.raw(backup)
    assert not any(owner.get("controller") for owner in raw["metadata"]["ownerReferences"])
    assert not WITHHELD[kind] & labels_of(raw).keys()
    assert any_of(await setting.cluster.pods(uid), backup)


@every_kind
async def test_a_standby_has_no_rank_and_is_not_counted(setting: Setting, kind: str) -> None:
    """A standby has no rank, and the watcher sees it as a standby. The job's controller leaves it alone, and the ranks keep their
    pods."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    (standby,) = await setting.cluster.ensure_standbys(uid, 1, ())
    await setting.settled(await setting.holder(uid, "3"))
    found = await setting.snapshot()
    listed = {pod.metadata.uid: pod for pod in found.pods if pod.metadata.owner_uid == uid}  # once for each of its labels
    pods = [pod for pod in listed.values() if rank_of(pod) in (None, *RANKS)]
    assert sorted(rank_of(pod) or pod.metadata.name for pod in pods) == [*RANKS, standby.metadata.name]
    seen = sight(JobView(job=found.jobs[0], pods=tuple(pods)))
    assert ([one.uid for one in seen.standbys], seen.problems, seen.faults) == ([standby.metadata.uid], (), ())
    assert not WITHHELD[kind] & labels_of(await setting.raw(standby)).keys()


async def test_what_others_have_written_on_a_pod_is_not_cloned(setting: Setting) -> None:
    """A backup, a standby and the replacement of a lost pod are what the owner wrote. The address that a network plugin wrote on
    the old pod is not copied."""
    workers = replicated_job("workers", pod_template(labels={"team": "blue"}), pods=4)
    uid = await setting.running(await submit(job_sets_path, setting.namespace, ASKS, {"replicatedJobs": [workers]}))
    old = await setting.holder(uid, "3")
    for pod in await setting.cluster.pods(uid):
        change = {"labels": {"cni/zone": "a"}, "annotations": {"cni/address": "10.0.0.7"}}
        await setting.namespace.api.patch(setting.namespace.path("pods", pod.metadata.name), {"metadata": change})
    (standby,) = await setting.cluster.ensure_standbys(uid, 1, NODES)
    backup = await setting.cluster.ensure_backup(old, "backup", ())
    await setting.cluster.ensure_no_backups(uid, 0)
    made = await tried(lambda: setting.cluster.ensure_replacement(uid, 3, "replacement", (old.spec.node_name,)))
    for clone in (standby, backup, made.backup):
        written = {**clone.metadata.labels, **clone.metadata.annotations}
        assert written["team"] == "blue"
        assert not {"cni/zone", "cni/address"} & written.keys()
    assert made.backup.metadata.annotations[keys.RANK_INDEX] == "3"


@every_kind
async def test_a_backup_is_deleted_with_its_job(setting: Setting, kind: str) -> None:
    """A backup that was not promoted is no orphan: the garbage collector deletes it."""
    created = await SUBMIT[kind](setting.namespace, ASKS)
    uid = await setting.running(created)
    backup = await setting.cluster.ensure_backup(await setting.holder(uid, "2"), "spare", ())
    raw = await setting.raw(await setting.until_runs(uid, backup))
    await setting.namespace.api.delete(PATHS[kind](setting.namespace.name, "demo"), uid)
    await setting.namespace.until_gone(raw)


@pytest.fixture
async def rack(kubeconfig: Path) -> AsyncIterator[str]:
    """Returns a label key for nodes. It is unique because all tests share the nodes."""
    label = f"test.rekindle.io/rack-{next(_numbers)}"
    yield label
    async with Api(kubeconfig) as api:
        for node in NODES:
            await api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {label: None}}})


@every_kind
async def test_a_backup_stays_in_the_domain_of_the_old_pod(setting: Setting, kind: str, rack: str) -> None:
    """A backup's node has the same value as the old pod's node, for the label that the job names."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, {**ASKS, "annotations": {keys.TOPOLOGY: rack}}))
    old = await setting.holder(uid, "1")
    here = old.spec.node_name
    near, far = sorted({*NODES} - {here})
    for node, value in ((here, "a"), (near, "a"), (far, "b")):
        await setting.namespace.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {rack: value}}})
    backup = await setting.until_runs(uid, await setting.cluster.ensure_backup(old, "spare", ()))
    assert backup.spec.node_name == near


@every_kind
async def test_a_node_outside_of_every_domain_is_named(setting: Setting, kind: str, rack: str) -> None:
    """An old pod's node without the label has no known domain, and the error names that node."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, {**ASKS, "annotations": {keys.TOPOLOGY: rack}}))
    old = await setting.holder(uid, "1")
    with pytest.raises(Invalid, match=f"node {old.spec.node_name} has no label {rack}"):
        await setting.cluster.ensure_backup(old, "spare", ())
