"""Whole jobs of foreign kinds stop and start again, while a Job's real controller counts."""

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from activities.clusters.api_server import Api, Object
from rekindle.errors import Conflict, Invalid
from rekindle.model import keys
from rekindle.model.cluster import Pod, PodPhase
from rekindle.policy.detection.pod_ranks import is_over
from rekindle.policy.detection.sighting import end_of
from tests.fakes.controller import annotations_of, labels_of
from tests.fakes.foreign import Setting
from tests.fakes.kubeflow import PATHS, SUBMIT, accelerators, job_sets_path, pod_template, replicated_job, submit, submit_job_set
from tests.kubernetes.world.worlds import rank_of, tried

WAIT_LIMIT = 60.0
ASKS = {"labels": {keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}}
RANKS = ["0", "1", "2", "3"]
every_kind = pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.same_path(over="kind")) for kind in SUBMIT])


# ---- restart


@every_kind
async def test_a_restarted_job_has_new_pods_off_the_bad_node(setting: Setting, kind: str) -> None:
    """All pods are new, of one generation and off the node. The job's controller counts no failure."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    pods = await restarted(setting, uid, "second", ("node-0",))
    assert sorted(rank_of(pod) or "" for pod in pods) == RANKS
    running = [await setting.until_runs(uid, pod) for pod in pods]
    assert {pod.metadata.labels.get(keys.GENERATION) for pod in running} == {"second"}
    assert "node-0" not in {pod.spec.node_name for pod in running}
    job = await setting.namespace.api.get(PATHS[kind](setting.namespace.name, "demo"))
    assert {one["type"] for one in job.get("status", {}).get("conditions", ()) if one["status"] == "True"} == set()


async def restarted(setting: Setting, uid: str, generation: str, avoid: Sequence[str]) -> list[Pod]:
    """Restarts a job by the port as a recovery does, and returns its new pods. A Conflict is retried, as Temporal does."""
    stopped = await setting.cluster.ensure_stopped(uid, 0)
    await setting.until_gone(uid, *stopped)
    pods = await tried(lambda: setting.cluster.ensure_pods(uid, generation, avoid))
    assert len(pods) == len(stopped)
    assert not {pod.metadata.uid for pod in stopped} & {pod.metadata.uid for pod in pods}
    return pods


@every_kind
@pytest.mark.same_path("a node is avoided by one restart only, with every kind of job")
async def test_a_node_is_avoided_by_one_restart_only(setting: Setting, kind: str) -> None:
    """The next restart states again which nodes to avoid."""
    container = {"resources": accelerators(1)}
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS, container))
    await restarted(setting, uid, "second", ("node-0",))
    pods = [await setting.until_runs(uid, pod) for pod in await restarted(setting, uid, "third", ("node-1",))]
    assert {pod.spec.node_name for pod in pods} == {"node-0", "node-2"}


async def test_a_restart_changes_of_a_set_what_its_webhook_lets_change(setting: Setting) -> None:
    """A restart changes only those parts of a JobSet that its webhook allows: labels, annotations, node selectors, tolerations
    and scheduling gates of templates."""
    created = await submit_job_set(setting.namespace, ASKS)
    await restarted(setting, await setting.running(created), "second", ("node-0",))
    after = await setting.namespace.api.get(job_sets_path(setting.namespace.name, "demo"))
    assert [frozen(job) for job in after["spec"]["replicatedJobs"]] == [frozen(job) for job in created["spec"]["replicatedJobs"]]


def frozen(replicated: Object) -> Object:
    """Returns the parts of a replicated job that may not change."""
    copy: Object = json.loads(json.dumps(replicated))
    template = copy["template"]["spec"]["template"]
    for key in ("labels", "annotations"):
        template.get("metadata", {}).pop(key, None)
    for key in ("nodeSelector", "tolerations", "schedulingGates"):
        template["spec"].pop(key, None)
    return copy


@every_kind
async def test_a_job_that_somebody_else_suspended_is_not_resumed(setting: Setting, kind: str) -> None:
    """A job that its owner or a queue suspended is over until it is resumed, and no restart resumes it."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    assert not end_of(await setting.cluster.job(uid))
    await suspend(setting, kind)
    assert end_of(await setting.cluster.job(uid)) == "the job was suspended"
    with pytest.raises(Invalid, match=f"{kind} demo is suspended, and not by a restart"):
        await setting.cluster.ensure_stopped(uid, 0)
    await setting.until(uid, lambda pods: not pods)
    with pytest.raises(Invalid, match=f"{kind} demo is suspended, and not by a restart"):
        await setting.cluster.ensure_pods(uid, "second", ())


@every_kind
@pytest.mark.same_path("a job that a restart has stopped is not over, with every kind of job")
async def test_a_job_that_a_restart_has_stopped_is_not_over(setting: Setting, kind: str) -> None:
    """A job that a restart has stopped is not over while it has no pods. A suspension by its owner after the restart counts
    again."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    stopped = await setting.cluster.ensure_stopped(uid, 0)
    assert not end_of(await setting.cluster.job(uid))
    await setting.until_gone(uid, *stopped)
    await tried(lambda: setting.cluster.ensure_pods(uid, "second", ()))
    await suspend(setting, kind)
    assert end_of(await setting.cluster.job(uid))


@every_kind
async def test_a_job_that_somebody_else_resumes_in_a_restart_has_its_pods(setting: Setting, kind: str) -> None:
    """A queue, or a tool that restores objects as written, resumes the job within a moment. The pods that its controller creates
    are the new ones, and a later suspension is not ours."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    stopped = await setting.cluster.ensure_stopped(uid, 0)
    await setting.until_gone(uid, *stopped)
    await suspend(setting, kind, suspended=False)
    pods = await tried(lambda: setting.cluster.ensure_pods(uid, "second", ()))
    assert sorted(rank_of(pod) or "" for pod in pods) == RANKS
    assert not {pod.metadata.uid for pod in stopped} & {pod.metadata.uid for pod in pods}
    await suspend(setting, kind)
    assert end_of(await setting.cluster.job(uid))


@every_kind
async def test_a_stop_that_was_overtaken_suspends_nothing(setting: Setting, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker stalls between its look at the job and its request. Another worker meanwhile stops the job and starts it."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    overtaken = False
    patch = Api.patch

    async def late(api: Api, path: str, body: Object) -> Object:
        nonlocal overtaken
        if not overtaken and "spec" in body:
            overtaken = True
            await restarted(setting, uid, "second", ())
        return await patch(api, path, body)

    monkeypatch.setattr(Api, "patch", late)
    with pytest.raises(Conflict):
        await setting.cluster.ensure_stopped(uid, 0)
    assert not end_of(await setting.cluster.job(uid))
    assert [rank_of(pod) for pod in await setting.cluster.pods(uid) if pod.metadata.labels.get(keys.GENERATION) == "second"]


async def test_a_pod_that_has_ended_and_that_a_finalizer_keeps_holds_no_restart_back(setting: Setting) -> None:
    """New pods have other names: the job trains again, whatever happens to the old object."""
    uid = await setting.running(await submit_job_set(setting.namespace, ASKS))
    kept = next(iter(await setting.cluster.pods(uid)))
    path = setting.namespace.path("pods", kept.metadata.name)
    raw = await setting.namespace.api.get(path)
    finalizers = [*raw["metadata"].get("finalizers", ()), "example.com/never"]
    await setting.namespace.api.patch(path, {"metadata": {"finalizers": finalizers}})
    await tried(lambda: setting.cluster.ensure_stopped(uid, 0))
    await setting.until(uid, lambda pods: [pod.metadata.uid for pod in pods] == [kept.metadata.uid] and is_over(pods[0]))
    pods = await tried(lambda: setting.cluster.ensure_pods(uid, "second", ()))
    assert sorted(rank_of(pod) or "" for pod in pods) == RANKS
    await setting.namespace.api.patch(path, {"metadata": {"finalizers": None}})


async def suspend(setting: Setting, kind: str, *, suspended: bool = True) -> None:
    """Suspends a job as its owner or Kueue does."""
    spec = {"runPolicy": {"suspend": suspended}} if kind == "PyTorchJob" else {"suspend": suspended}
    await setting.namespace.api.patch(PATHS[kind](setting.namespace.name, "demo"), {"spec": spec})


@every_kind
async def test_a_job_that_failed_for_good_is_over_and_left_as_it_is(setting: Setting, kind: str) -> None:
    """The controller creates no more pods: none is stopped, the job is not suspended, and it is no longer watched."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    await fail(setting, kind)
    with pytest.raises(Invalid, match=f"{kind} demo has failed for good: pods failed too often"):
        await setting.cluster.ensure_stopped(uid, 0)
    assert len([pod for pod in await setting.cluster.pods(uid) if not pod.metadata.deletion_timestamp]) == len(RANKS)
    assert await is_as_its_owner_wrote_it(setting, kind)
    assert end_of(await setting.cluster.job(uid)) == "the job failed for good: pods failed too often"


@every_kind
@pytest.mark.same_path("a job that fails while it is stopped, with every kind of job")
async def test_a_job_that_fails_while_a_restart_has_stopped_it_is_not_left_suspended(setting: Setting, kind: str) -> None:
    """The restart takes back its change of the object, and reports why it goes no further."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    stopped = await setting.cluster.ensure_stopped(uid, 0)
    await setting.until_gone(uid, *stopped)
    await fail(setting, kind)
    with pytest.raises(Invalid, match=f"{kind} demo has failed for good: pods failed too often"):
        await setting.cluster.ensure_pods(uid, "second", ())
    assert await is_as_its_owner_wrote_it(setting, kind)


async def fail(setting: Setting, kind: str) -> None:
    """Writes the condition Failed, as the job's controller would without us."""
    failed = {"type": "Failed", "status": "True", "reason": "TooMany", "message": "pods failed too often"}
    path = f"{PATHS[kind](setting.namespace.name, 'demo')}/status"
    await setting.namespace.api.patch(path, {"status": {"conditions": [failed]}})


async def is_as_its_owner_wrote_it(setting: Setting, kind: str) -> bool:
    job = await setting.namespace.api.get(PATHS[kind](setting.namespace.name, "demo"))
    spec = job["spec"].get("runPolicy", {}) if kind == "PyTorchJob" else job["spec"]
    return not spec.get("suspend") and keys.STOPPED not in annotations_of(job)


@every_kind
@pytest.mark.same_path("metadata is merged, with every kind of job")
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
    """Returns a command that succeeds when the file exists."""
    return ["sh", "-c", f"until [ -e {directory}/end ]; do sleep 0.05; done"]


async def submit_job(setting: Setting, command: list[str], **spec: Any) -> Object:
    """Submits a Job of three indexes; a pod that fails fails the Job."""
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


# ---- what a Job's owner has said of failures


def failing(code: int, directory: Path) -> list[str]:
    """Returns a command of which index 1 fails when the file exists."""
    return ["sh", "-c", f'until [ "$JOB_COMPLETION_INDEX" = 1 -a -e {directory}/fail ]; do sleep 0.02; done; exit {code}']


async def test_a_restart_policy_that_fails_the_job_counts_before_its_operator_has_looked(setting: Setting) -> None:
    """A PyTorchJob of `Never` ends with a pod that failed: nothing is suspended for it."""
    uid = await setting.running(await SUBMIT["PyTorchJob"](setting.namespace, ASKS))
    setting.peers["PyTorchJob"].deaf = True
    path = setting.namespace.path("pods", "demo-worker-1")
    await setting.namespace.api.patch(f"{path}/status", {"status": {"phase": "Failed"}})
    with pytest.raises(Invalid, match="pod demo-worker-1 failed, and its restartPolicy is Never"):
        await setting.cluster.ensure_stopped(uid, 0)
    assert await is_as_its_owner_wrote_it(setting, "PyTorchJob")


FAIL_JOB = {"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}}
RECOVERIES: dict[str, Callable[[Setting, str], Awaitable[object]]] = {
    "replacement": lambda setting, uid: setting.cluster.ensure_replacement(uid, 1, "spare", ()),
    "restart": lambda setting, uid: setting.cluster.ensure_stopped(uid, 0),
}


@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_a_policy_that_fails_the_job_counts_however_fast_a_recovery_is(
    setting: Setting, tmp_path: Path, recovery: str
) -> None:
    """The recovery begins in the moment in which the pod fails, before the Job's controller has seen it."""
    uid = await setting.running(await submit_job(setting, failing(42, tmp_path), backoffLimit=6, **FAIL_JOB), pods=3)
    (tmp_path / "fail").touch()
    await setting.until(uid, lambda pods: any(pod.status.phase is PodPhase.FAILED for pod in pods))
    with pytest.raises(Invalid, match=r"Job demo has failed for good: .*matching FailJob rule"):
        await tried(lambda: RECOVERIES[recovery](setting, uid))
    job = await setting.namespace.until("jobs", "demo", lambda job: has(job, "Failed"))
    assert not job["spec"]["suspend"]
    assert end_of(await setting.cluster.job(uid)).startswith("the job failed for good: ")


PER_INDEX = {"backoffLimitPerIndex": 0, "backoffLimit": 1000}


async def test_an_index_that_failed_for_good_is_not_waited_for(setting: Setting, tmp_path: Path) -> None:
    """The Job continues and creates no pod of that index: no pod is stopped for it, and the job is over."""
    uid = await setting.running(await submit_job(setting, failing(1, tmp_path), **PER_INDEX), pods=3)
    (tmp_path / "fail").touch()
    await setting.namespace.until("jobs", "demo", lambda job: job["status"].get("failedIndexes") == "1")
    for recovery in RECOVERIES.values():
        with pytest.raises(Invalid, match="Job demo has failed for good: index 1 has failed for good"):
            await recovery(setting, uid)
    assert end_of(await setting.cluster.job(uid)).startswith("the job failed for good: index 1 ")
    assert keys.STOPPED not in annotations_of(await setting.namespace.api.get(setting.namespace.path("jobs", "demo")))


async def test_an_index_of_a_part_that_failed_for_good_is_not_waited_for(setting: Setting, tmp_path: Path) -> None:
    """A JobSet does not state which indexes its Jobs have given up: its Jobs are read."""
    workers = replicated_job("workers", pod_template({"command": failing(1, tmp_path)}), pods=4, **PER_INDEX)
    uid = await setting.running(await submit(job_sets_path, setting.namespace, ASKS, {"replicatedJobs": [workers]}))
    (tmp_path / "fail").touch()
    await setting.namespace.until("jobs", "demo-workers-0", lambda job: job["status"].get("failedIndexes") == "1")
    for recovery in RECOVERIES.values():
        with pytest.raises(Invalid, match="Job demo-workers-0 of JobSet demo makes no more pods: index 1 "):
            await recovery(setting, uid)
    assert await is_as_its_owner_wrote_it(setting, "JobSet")
