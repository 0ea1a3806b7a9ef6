"""A job's object names other components that decide when its pods run. Pods that we create carry what queues and autoscalers look
for."""

import copy
from typing import Any

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Kind, Workload
from activities.clusters.kubernetes.kinds import ASCEND_JOB, BATCH_JOB, JOB_SET, KINDS, PYTORCH_JOB, TRAIN_JOB, TRAINING_JOB
from activities.clusters.kubernetes.kinds.bare_pods import bare_job
from activities.clusters.kubernetes.objects import job_object_of, pod_of
from activities.clusters.kubernetes.pod_objects import backup_of, standby_of
from tests.support.valid_objects import JOBS, pod

QUEUE = "kueue.x-k8s.io/queue-name"
SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
GATED = {"schedulingGates": [{"name": "example.com/quota"}]}


def job(kind: Kind, **changes: Any) -> Workload:
    body = copy.deepcopy(JOBS[kind])
    body["metadata"]["labels"] |= changes.pop("labels", {})
    body["spec"] |= changes
    return Workload(kind, body)


def queue(one: Workload) -> str:
    return job_object_of(one, observe=False).queue


@pytest.mark.parametrize("kind", [BATCH_JOB, JOB_SET, PYTORCH_JOB, TRAIN_JOB], ids=lambda kind: kind.name)
def test_a_job_of_kueue_is_told_by_its_queue(kind: Kind) -> None:
    """The queue counts for each kind that Kueue knows."""
    assert queue(job(kind, labels={QUEUE: "gpus"})) == "Kueue, queue 'gpus'"


def test_pods_of_kueue_are_told_by_their_queue() -> None:
    """Pods of Kueue without a job object are recognized by their queue label."""
    mine = pod("default.loose", "one")
    mine["metadata"]["labels"][QUEUE] = "gpus"
    assert queue(bare_job("default", "default.loose", [mine])) == "Kueue, queue 'gpus'"


@pytest.mark.parametrize("kind", [TRAINING_JOB, ASCEND_JOB], ids=lambda kind: kind.name)
def test_kinds_that_kueue_does_not_know_are_restarted(kind: Kind) -> None:
    """Kinds that Kueue does not know are restarted, and its label has no effect."""
    assert queue(job(kind, labels={QUEUE: "gpus"})) == ""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_job_of_its_own_controller_is_restarted(kind: Kind) -> None:
    """A job of its own controller is restarted, because no queue decides about it."""
    assert queue(job(kind)) == ""


MULTI = "kueue.x-k8s.io/multikueue"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (job(BATCH_JOB, managedBy=MULTI), f"controller '{MULTI}' (managedBy)"),
        (job(JOB_SET, managedBy=MULTI), f"controller '{MULTI}' (managedBy)"),
        (job(TRAIN_JOB, managedBy=MULTI), f"controller '{MULTI}' (managedBy)"),
        (job(PYTORCH_JOB, runPolicy={"managedBy": MULTI}), f"controller '{MULTI}' (managedBy)"),
        (job(BATCH_JOB, managedBy="kubernetes.io/job-controller"), ""),
        (job(BATCH_JOB, managedBy="x" * 5000), f"controller '{'x' * 120}' (managedBy)"),
    ],
)
def test_a_job_that_is_managed_by_somebody_else_is_told_by_that(one: Workload, words: str) -> None:
    """A job that another controller manages is recognized by that field. Its own controller ignores it, so a restart would have
    no pods."""
    assert queue(one) == words


def test_a_job_whose_pods_wait_behind_a_gate_is_told_by_that() -> None:
    """The component that removes the gate decides."""
    body = copy.deepcopy(JOBS[BATCH_JOB])
    body["spec"]["template"]["spec"] |= GATED
    assert queue(Workload(BATCH_JOB, body)) == "the controller that removes the scheduling gate 'example.com/quota'"
    own = copy.deepcopy(JOBS[TRAINING_JOB])
    own["spec"]["kubernetes"]["pod"] |= GATED
    assert queue(Workload(TRAINING_JOB, own)) == "the controller that removes the scheduling gate 'example.com/quota'"


# ---- pods


def backup(old: Object, kind: Kind = BATCH_JOB) -> Object:
    return backup_of(old, Workload(kind, JOBS[kind]), "spare", "0", {})


def test_a_backup_is_left_alone_by_whoever_makes_clusters_smaller() -> None:
    """A backup is not evicted by autoscalers: it has no controller that they know, and soon holds a rank. A standby may be
    evicted."""
    old = pod("uid-of-job", "one")
    assert backup(old)["metadata"]["annotations"].items() > {SAFE: "false", "karpenter.sh/do-not-disrupt": "true"}.items()
    made = standby_of(old, Workload(BATCH_JOB, JOBS[BATCH_JOB]), "standby", {}, ())["metadata"]["annotations"]
    assert made[SAFE] == "true"
    assert "karpenter.sh/do-not-disrupt" not in made


@pytest.mark.parametrize("mark", ["kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/workload", ""])
def test_a_node_that_kueue_has_assigned_is_not_cloned(mark: str) -> None:
    """A backup with that node could be nowhere else; a host that the owner names himself stays."""
    old = pod("uid-of-job", "one")
    old["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-0", "gpu": "a100"}
    old["metadata"]["annotations"] |= {mark: "x"} if mark else {}
    kept = {"gpu": "a100"} if mark else {"kubernetes.io/hostname": "node-0", "gpu": "a100"}
    assert backup(old)["spec"]["nodeSelector"] == kept


def test_what_kueue_writes_on_a_pod_is_not_cloned() -> None:
    """The clone is no part of the Kueue workload, and Kueue would not let it run. The owner's requests to Kueue are cloned."""
    old = pod("uid-of-job", "one")
    asked = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    old["metadata"]["labels"] |= {"kueue.x-k8s.io/managed": "true", "kueue.x-k8s.io/podset": "main", QUEUE: "default"}
    old["metadata"]["annotations"] |= {"kueue.x-k8s.io/workload": "job-demo-1a2b3", **asked}
    workload = Workload(BATCH_JOB, JOBS[BATCH_JOB])
    for clone in (backup(old), standby_of(old, workload, "standby", {}, ())):
        metadata = clone["metadata"]
        written = {**metadata["labels"], **metadata["annotations"]}
        assert {key: value for key, value in written.items() if key.startswith("kueue")} == asked


def test_the_gates_of_a_pod_are_read() -> None:
    """A pod with a gate and without a node was never considered by a scheduler."""
    waiting = pod("uid-of-job", "one")
    waiting["spec"] |= GATED
    assert pod_of(waiting, Workload(BATCH_JOB, JOBS[BATCH_JOB]), ()).spec.gates == ("example.com/quota",)


# ---- JobSet's placement


EXCLUSIVE = {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}}
BY_NODE_SELECTOR = {"annotations": {**EXCLUSIVE["annotations"], "alpha.jobset.sigs.k8s.io/node-selector": "true"}}


@pytest.mark.parametrize(
    ("of_set", "of_jobs", "moves"),
    [({}, {}, True), (EXCLUSIVE, {}, False), ({}, EXCLUSIVE, False), (BY_NODE_SELECTOR, {}, True), (EXCLUSIVE, EXCLUSIVE, False)],
)
def test_a_set_whose_jobs_are_placed_exclusively_moves_no_pod(of_set: Object, of_jobs: Object, *, moves: bool) -> None:
    """JobSet's webhook refuses clones of its pods, and reports that too late. With nodes labelled beforehand it does not
    check."""
    body = copy.deepcopy(JOBS[JOB_SET])
    body["metadata"] |= of_set
    body["spec"]["replicatedJobs"][0]["template"] |= {"metadata": of_jobs}
    unmovable = job_object_of(Workload(JOB_SET, body), observe=False).unmovable
    assert (unmovable == "") is moves
    assert moves or "exclusive-topology" in unmovable
