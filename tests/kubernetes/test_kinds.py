"""Jobs of other people's kinds under the direct driver: JobSets, PyTorchJobs and TrainJobs, whose controllers are played, and
Jobs, whose controller is the real one, as are API server, scheduler and garbage collector."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from activities.cluster import Snapshot
from activities.kube import Api, Change, Object
from activities.kubernetes.cluster import KubernetesCluster
from rekindle.errors import Conflict, Invalid
from rekindle.model import keys
from rekindle.model.cluster import Pod, PodPhase, WatchEvent
from rekindle.settings import Settings
from tests.support.controller import Controller, annotations_of, apply_crds, is_terminating, labels_of, pods_until
from tests.support.kubeflow import (
    PATHS,
    SUBMIT,
    accelerators,
    job_sets_path,
    kubeflow,
    pod_template,
    replicated_job,
    submit,
    submit_job_set,
    submit_pytorch_job,
    train_jobs_path,
    train_spec,
)
from tests.support.kubernetes import Namespace
from tests.support.worlds import NODES, rank_of

WAIT_LIMIT = 30.0
ASKS = {"labels": {keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}}
RANKS = ["0", "1", "2", "3"]
KINDS = list(SUBMIT)
WITHHELD = {
    "JobSet": {"batch.kubernetes.io/controller-uid", "controller-uid"},
    "PyTorchJob": {"training.kubeflow.org/operator-name"},
    "TrainJob": {"batch.kubernetes.io/controller-uid", "controller-uid"},
}
"""Labels by which the kind's controller counts."""

_numbers = itertools.count(1)


class Setting:
    """A namespace with its controllers, and the port over it."""

    def __init__(self, namespace: Namespace, cluster: KubernetesCluster, peers: Mapping[str, Controller]) -> None:
        self.namespace, self.cluster, self.peers = namespace, cluster, peers

    async def running(self, job: Object, pods: int = 4) -> str:
        """The UID of a job, as soon as so many pods of it run."""
        uid = str(job["metadata"]["uid"])

        def run(found: Sequence[Pod]) -> bool:
            return len(found) == pods and all(pod.status.phase is PodPhase.RUNNING for pod in found)

        await self.until(uid, run)
        return uid

    async def until(self, uid: str, condition: Callable[[Sequence[Pod]], bool]) -> Sequence[Pod]:
        """The job's pods, as soon as they satisfy a condition."""
        async with asyncio.timeout(WAIT_LIMIT), aclosing(self.cluster.follow(uid)) as states:
            async for pods in states:
                if condition(pods):
                    return pods
        raise AssertionError("a watch has no end")

    async def until_gone(self, uid: str, *gone: Pod) -> None:
        uids = {pod.metadata.uid for pod in gone}
        await self.until(uid, lambda pods: not uids & {pod.metadata.uid for pod in pods})

    async def until_runs(self, uid: str, pod: Pod) -> Pod:
        def found(pods: Sequence[Pod]) -> list[Pod]:
            return [one for one in pods if one.metadata.uid == pod.metadata.uid and one.status.phase is PodPhase.RUNNING]

        return found(await self.until(uid, lambda pods: bool(found(pods))))[0]

    async def holder(self, uid: str, rank: str) -> Pod:
        """The pod of a rank, without backups."""
        pods = await self.cluster.pods(uid)
        return next(pod for pod in pods if rank_of(pod) == rank and keys.POD_TYPE not in pod.metadata.annotations)

    async def raw(self, pod: Pod) -> Object:
        return await self.namespace.api.get(self.namespace.path("pods", pod.metadata.name))

    async def hot_switch(self, uid: str, rank: str, name: str) -> Pod:
        """The pod that took over."""
        old = await self.holder(uid, rank)
        backup = await self.until_runs(uid, await self.cluster.ensure_backup(old, name, ()))
        await self.cluster.ensure_deleted(uid, old.metadata.name, old.metadata.uid, 0)
        await self.until_gone(uid, old)
        await self.cluster.ensure_promoted(uid, backup.metadata.name, backup.metadata.uid)
        return backup

    async def settled(self, pod: Pod) -> None:
        """Returns when its controller has acted on the pod as it is now."""
        raw = await self.raw(pod)
        (owner,) = (one for one in raw["metadata"]["ownerReferences"] if one["controller"])
        if owner["kind"] != "Job":
            await self.peers[owner["kind"]].saw(raw)
            return
        job = await self.namespace.api.get(self.namespace.path("jobs", owner["name"]))
        more = job["spec"]["completions"] + 1  # the real controller is only heard of by what it does
        await self.namespace.api.patch(
            self.namespace.path("jobs", owner["name"]), {"spec": {"completions": more, "parallelism": more}}
        )
        index = "batch.kubernetes.io/job-completion-index"
        mine = {"batch.kubernetes.io/job-name": owner["name"], index: str(more - 1)}
        await pods_until(self.namespace, lambda pods: any(mine.items() <= labels_of(one).items() for one in pods))

    async def snapshot(self) -> Snapshot:
        async with aclosing(self.cluster.watch()) as news:
            first = await anext(news)
            assert isinstance(first, Snapshot)
            return first


@asynccontextmanager
async def a_setting(kubeconfig: Path, namespace: Namespace) -> AsyncIterator[Setting]:
    await apply_crds(namespace.api)
    settings = Settings(cluster="kubernetes", kubeconfig=kubeconfig, namespaces=(namespace.name,))
    cluster = KubernetesCluster(Api(kubeconfig), settings)
    async with kubeflow(namespace) as peers:
        try:
            yield Setting(namespace, cluster, peers)
        finally:
            await cluster.close()


@pytest.fixture
async def setting(kubeconfig: Path, namespace: Namespace) -> AsyncIterator[Setting]:
    async with a_setting(kubeconfig, namespace) as setting:
        yield setting


every_kind = pytest.mark.parametrize("kind", KINDS)


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
    """Workers of a PyTorchJob are counted behind the Master."""
    uid = await setting.running(await submit_pytorch_job(setting.namespace, ASKS))
    ranks = {pod.metadata.name: rank_of(pod) for pod in await setting.cluster.pods(uid)}
    assert ranks == {"demo-master-0": "0", "demo-worker-0": "1", "demo-worker-1": "2", "demo-worker-2": "3"}


async def test_jobs_of_a_set_are_counted_one_behind_the_other(setting: Setting) -> None:
    """The rank of a JobSet's pod follows from the place of its Job and from its own in that."""
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
    """Its pods are pods of the job, and those of the workers are counted without it."""
    manager = replicated_job("manager", pod_template(labels={keys.REPLICA_TYPE: "manager"}))
    jobs = [manager, replicated_job("workers", pod_template(), replicas=2, pods=2)]
    uid = await setting.running(await submit(job_sets_path, setting.namespace, ASKS, {"replicatedJobs": jobs}), pods=5)
    found = await setting.snapshot()
    assert found.jobs[0].spec.pods == 4
    assert Counter(rank_of(pod) for pod in found.pods) == Counter([None, *RANKS])
    assert {pod.metadata.owner_uid for pod in found.pods} == {uid}


async def test_what_prepares_a_train_job_has_no_rank(setting: Setting) -> None:
    """Its runtime may have more jobs than the one of its nodes; their pods are pods of the job."""
    spec = train_spec({"numNodes": 4, "resourcesPerNode": {}}, initializer={"dataset": {}})
    await setting.running(await submit(train_jobs_path, setting.namespace, ASKS, spec), pods=5)
    found = await setting.snapshot()
    assert found.jobs[0].spec.pods == 4
    assert Counter(rank_of(pod) for pod in found.pods) == Counter([None, *RANKS])


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
    """An annotation comes before the environment, that before the accelerators; without any of them it is one."""
    await SUBMIT[kind](setting.namespace, {**ASKS, "annotations": annotations}, container)
    (job,) = (await setting.snapshot()).jobs
    assert job.spec.ranks_per_pod == ranks


@every_kind
async def test_parts_of_a_job_are_not_jobs_of_their_own(setting: Setting, kind: str) -> None:
    """A JobSet's Jobs, and a TrainJob's JobSet, are not registered although they ask for it."""
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
    """One without any of the contract's labels is not seen, until it gets ours."""
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
    """The next event of a kind about a job or a pod of it."""
    async for event in news:
        if isinstance(event, WatchEvent) and event.kind == kind:
            about = event.object.metadata.owner_uid if isinstance(event.object, Pod) else event.object.metadata.uid
            if about == uid:
                return event
    raise AssertionError("a watch has no end")


@every_kind
async def test_a_job_that_is_written_wrongly_is_told_so(setting: Setting, kind: str) -> None:
    """Limits that are no mapping: the job is not registered, and an event on it says why."""
    created = await SUBMIT[kind](setting.namespace, {**ASKS, "annotations": {keys.LIMITS: "- pause"}})
    events = setting.namespace.path("events")
    since = (await setting.namespace.api.list(events)).resource_version
    assert (await setting.snapshot()).jobs == []
    async with asyncio.timeout(WAIT_LIMIT):
        news = setting.namespace.api.watch(events, since)
        told = (await first(news, lambda change: change.object["reason"] == "JobRefused")).object
    assert told["involvedObject"]["uid"] == created["metadata"]["uid"]
    assert keys.LIMITS in told["message"]


async def first(news: AsyncIterator[Change], wanted: Callable[[Change], bool]) -> Change:
    async for change in news:
        if wanted(change):
            return change
    raise AssertionError("a watch has no end")


# ---- hot switch


@every_kind
async def test_a_hot_switch_leaves_one_pod_for_each_rank(setting: Setting, kind: str) -> None:
    """The backup counts for the job's controller in the old pod's place, which neither ends it nor makes another."""
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
    assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]
    assert {key: labels_of(before)[key] for key in WITHHELD[kind]}.items() <= labels_of(after).items()
    assert not {keys.POD_TYPE, keys.BACKUP_SOURCE} & annotations_of(after).keys()


@every_kind
async def test_a_rank_can_be_switched_again_and_again(setting: Setting, kind: str) -> None:
    """The names that controllers would give to new pods are free by then, and still they make none that stays."""
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
async def test_a_backup_is_not_counted_before_it_takes_over(setting: Setting, kind: str) -> None:
    """It has neither a controller nor the labels by which pods are counted, and is a pod of the job all the same."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    backup = await setting.cluster.ensure_backup(await setting.holder(uid, "2"), "spare", ())
    raw = await setting.raw(backup)
    assert not any(owner.get("controller") for owner in raw["metadata"]["ownerReferences"])
    assert not WITHHELD[kind] & labels_of(raw).keys()
    assert any_of(await setting.cluster.pods(uid), backup)


@every_kind
async def test_a_backup_is_deleted_with_its_job(setting: Setting, kind: str) -> None:
    """One that was not promoted is no orphan: the garbage collector takes it."""
    created = await SUBMIT[kind](setting.namespace, ASKS)
    uid = await setting.running(created)
    backup = await setting.cluster.ensure_backup(await setting.holder(uid, "2"), "spare", ())
    raw = await setting.raw(await setting.until_runs(uid, backup))
    await setting.namespace.api.delete(PATHS[kind](setting.namespace.name, "demo"), uid)
    await setting.namespace.until_gone(raw)


@pytest.fixture
async def rack(kubeconfig: Path) -> AsyncIterator[str]:
    """The key of a label of nodes, which are shared by all tests."""
    label = f"test.rekindle.io/rack-{next(_numbers)}"
    yield label
    async with Api(kubeconfig) as api:
        for node in NODES:
            await api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {label: None}}})


@every_kind
async def test_a_backup_stays_in_the_domain_of_the_old_pod(setting: Setting, kind: str, rack: str) -> None:
    """Its node shares the value of the label that the job names with the old pod's."""
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
    """Where the old pod's node has no such label nobody can tell its domain, and the error says so."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, {**ASKS, "annotations": {keys.TOPOLOGY: rack}}))
    old = await setting.holder(uid, "1")
    with pytest.raises(Invalid, match=f"node {old.spec.node_name} has no label {rack}"):
        await setting.cluster.ensure_backup(old, "spare", ())


# ---- restart


@every_kind
async def test_a_restarted_job_has_new_pods_off_the_bad_node(setting: Setting, kind: str) -> None:
    """All pods are new, of one generation and off the node; nothing failed in the eyes of the job's controller."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    pods = await restarted(setting, uid, "second", ("node-0",))
    assert sorted(rank_of(pod) or "" for pod in pods) == RANKS
    running = [await setting.until_runs(uid, pod) for pod in pods]
    assert {pod.metadata.labels.get(keys.GENERATION) for pod in running} == {"second"}
    assert "node-0" not in {pod.spec.node_name for pod in running}
    job = await setting.namespace.api.get(PATHS[kind](setting.namespace.name, "demo"))
    assert {one["type"] for one in job.get("status", {}).get("conditions", ()) if one["status"] == "True"} == set()


async def restarted(setting: Setting, uid: str, generation: str, avoid: Sequence[str]) -> list[Pod]:
    """What a restart asks of the port; a Conflict is asked again, as Temporal does."""
    stopped = await setting.cluster.ensure_stopped(uid, 0)
    await setting.until_gone(uid, *stopped)
    async with asyncio.timeout(WAIT_LIMIT):
        pods = await asked_again(lambda: setting.cluster.ensure_pods(uid, generation, avoid))
    assert len(pods) == len(stopped)
    assert not {pod.metadata.uid for pod in stopped} & {pod.metadata.uid for pod in pods}
    return pods


async def asked_again(ask: Callable[[], Awaitable[list[Pod]]]) -> list[Pod]:
    while True:
        try:
            return await ask()
        except Conflict:
            await asyncio.sleep(0.05)  # nothing that may be watched says when a template is open to changes


@every_kind
async def test_a_node_is_avoided_by_one_restart_only(setting: Setting, kind: str) -> None:
    """The next restart says anew where pods must not go."""
    container = {"resources": accelerators(1)}
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS, container))
    await restarted(setting, uid, "second", ("node-0",))
    pods = [await setting.until_runs(uid, pod) for pod in await restarted(setting, uid, "third", ("node-1",))]
    assert {pod.spec.node_name for pod in pods} == {"node-0", "node-2"}


async def test_a_restart_changes_of_a_set_what_its_webhook_lets_change(setting: Setting) -> None:
    """Of a JobSet's templates that are labels, annotations, node selectors, tolerations and scheduling gates."""
    created = await submit_job_set(setting.namespace, ASKS)
    await restarted(setting, await setting.running(created), "second", ("node-0",))
    after = await setting.namespace.api.get(job_sets_path(setting.namespace.name, "demo"))
    assert [frozen(job) for job in after["spec"]["replicatedJobs"]] == [frozen(job) for job in created["spec"]["replicatedJobs"]]


def frozen(replicated: Object) -> Object:
    """What may not change in a replicated job."""
    copy: Object = json.loads(json.dumps(replicated))
    template = copy["template"]["spec"]["template"]
    for key in ("labels", "annotations"):
        template.get("metadata", {}).pop(key, None)
    for key in ("nodeSelector", "tolerations", "schedulingGates"):
        template["spec"].pop(key, None)
    return copy


@every_kind
async def test_a_job_that_was_given_up_is_not_restarted(setting: Setting, kind: str) -> None:
    """Its controller neither ends pods nor makes any: they are stopped all the same, and the error has its own reason."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    failed = {"type": "Failed", "status": "True", "reason": "TooMany", "message": "pods failed too often"}
    path = f"{PATHS[kind](setting.namespace.name, 'demo')}/status"
    await setting.namespace.api.patch(path, {"status": {"conditions": [failed]}})
    stopped = await setting.cluster.ensure_stopped(uid, 0)
    await setting.until_gone(uid, *stopped)
    with pytest.raises(Invalid, match=f"{kind} demo has failed for good: pods failed too often"):
        await setting.cluster.ensure_pods(uid, "second", ())


@every_kind
async def test_metadata_of_a_job_is_merged(setting: Setting, kind: str) -> None:
    """Single keys are set and removed on the job's own object, and the others stay."""
    created = await SUBMIT[kind](setting.namespace, {"labels": {"kept": "yes", **ASKS["labels"]}})
    uid = str(created["metadata"]["uid"])
    await setting.cluster.ensure_job_metadata(uid, {keys.SUB_HEALTHY_STRATEGY: None}, {keys.DOWNGRADED: "why"})
    after = await setting.namespace.api.get(PATHS[kind](setting.namespace.name, "demo"))
    assert labels_of(after) == {"kept": "yes"}
    assert annotations_of(after)[keys.DOWNGRADED] == "why"


# ---- a Job and its real controller


def until_told(directory: Path) -> list[str]:
    """A command that ends well when the file is there."""
    return ["sh", "-c", f"until [ -e {directory}/end ]; do sleep 0.05; done"]


async def submit_job(setting: Setting, command: list[str], **spec: Any) -> Object:
    """Three indexes; a pod that fails fails the Job."""
    job = {"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimit": 0, **spec}
    body = {"metadata": {"name": "demo", **ASKS}, "spec": {**job, "template": pod_template({"command": command})}}
    return await setting.namespace.api.create(setting.namespace.path("jobs"), body)


async def test_a_job_completes_after_a_hot_switch(setting: Setting, tmp_path: Path) -> None:
    """Every index is counted, the switched one too, and nothing failed."""
    uid = await setting.running(await submit_job(setting, until_told(tmp_path)), pods=3)
    await setting.hot_switch(uid, "1", "spare")
    (tmp_path / "end").touch()
    done = await setting.namespace.until("jobs", "demo", lambda job: has(job, "Complete"))
    assert done["status"]["completedIndexes"] == "0-2"
    assert (done["status"]["succeeded"], done["status"].get("failed", 0)) == (3, 0)


async def test_a_job_that_tolerates_no_failure_survives_a_restart(setting: Setting, tmp_path: Path) -> None:
    """Pods that a restart ends are not counted as failed, and the new ones complete the Job."""
    uid = await setting.running(await submit_job(setting, until_told(tmp_path)), pods=3)
    pods = await restarted(setting, uid, "second", ("node-0",))
    assert {pod.metadata.labels[keys.GENERATION] for pod in pods} == {"second"}
    (tmp_path / "end").touch()
    done = await setting.namespace.until("jobs", "demo", lambda job: has(job, "Complete") or has(job, "Failed"))
    assert has(done, "Complete"), done["status"]
    assert done["status"]["completedIndexes"] == "0-2"


def has(job: Object, kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in job["status"].get("conditions", ()))
