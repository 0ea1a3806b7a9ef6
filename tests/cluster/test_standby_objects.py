"""Standbys as objects of Kubernetes: one that has taken a rank, and one that is created too late."""

from typing import Any

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import pod_objects as made
from activities.clusters.kubernetes.kind import Places, Workload
from activities.clusters.kubernetes.kinds import TRAINING_JOB
from activities.clusters.kubernetes.kinds.training_job import pods_of_training_job
from activities.clusters.kubernetes.pod_operations import PodOperations
from rekindle.errors import Conflict
from rekindle.model import keys
from rekindle.settings import Settings

NEXT_LIFE = "1"
MARKS = (keys.POD_TYPE, keys.BACKUP_SOURCE, keys.TAKEN_AS)
ROLES = (keys.ENV_POD_ROLE, keys.ENV_POD_RANK)


def job_of_class(priority: str) -> Workload:
    pod = {"priorityClassName": priority} if priority else {}
    spec = {"pods": 1, "ranksPerPod": 1, "command": ["train"], "kubernetes": {"image": "any", "pod": pod}}
    return Workload(TRAINING_JOB, {"metadata": {"name": "demo", "namespace": "any", "uid": "job"}, "spec": spec})


def promoted(job: Workload, worker: Object) -> Object:
    """Returns a standby that was created from this worker and took its rank over."""
    standby = made.standby_of(worker, job, "demo-standby-0", {}, ())
    own = standby["metadata"]
    own.update(uid="standby", resourceVersion="1")
    patch = made.taken(standby, made.backup_of(worker, job, "demo-hot-0001", "0", {}))["metadata"]
    own["labels"].update(patch["labels"])
    own["annotations"].update(patch["annotations"])
    own["annotations"] = {key: value for key, value in own["annotations"].items() if key not in MARKS}
    return standby


def roles(pod: Object) -> list[Object]:
    return [entry for entry in pod["spec"]["containers"][0]["env"] if entry["name"] in ROLES]


@pytest.mark.parametrize("priority", ["", "high"])
def test_a_pod_that_was_a_standby_is_cloned_as_a_worker(priority: str) -> None:
    """A pod that was a standby is cloned as a worker: its backup waits for no rank, and has its job's priority again. A later
    standby keeps that priority, where the class of standbys is gone meanwhile."""
    job = job_of_class(priority)
    (*_, worker) = pods_of_training_job(job, "0", Places(), "gateway:8899")
    worker["metadata"]["uid"] = "worker"
    ours = promoted(job, worker)
    backup = made.backup_of(ours, job, "demo-hot-0002", "0", {})
    assert roles(backup) == roles(worker)
    assert backup["spec"].get("priorityClassName", "") == priority
    assert made.OWN_CLASS not in backup["metadata"]["annotations"]
    another = made.standby_of(ours, job, "demo-standby-1", {}, ())
    assert another["metadata"]["annotations"].get(made.OWN_CLASS, "") == priority


class Pods:
    """Pods of a job, as the API server and the reader hold them."""

    def __init__(self, *pods: Object) -> None:
        self.there = list(pods)

    async def pods(self, job: Workload) -> list[Object]:
        return list(self.there)

    async def create(self, path: str, body: Object) -> Object:
        self.there.append(body)
        return body

    async def delete(self, path: str, uid: str, grace_seconds: int) -> None:
        self.there = [pod for pod in self.there if pod["metadata"].get("uid") != uid]


async def test_a_standby_that_is_made_while_its_job_is_stopped_holds_the_restart_up_no_longer_than_it_lives() -> None:
    """A standby that a stalled worker creates while its job is stopped delays the restart only until it is deleted. The restart
    itself deletes it."""
    job = job_of_class("")
    (*_, worker) = pods_of_training_job(job, "0", Places(), "gateway:8899")
    late = made.standby_of(worker, job, "demo-standby-0", {}, ())
    late["metadata"]["uid"] = "late"
    pods: Any = Pods(late)
    ops = PodOperations(pods, pods, Settings(gateway_address="gateway:8899"))
    with pytest.raises(Conflict, match="demo-standby-0"):
        await TRAINING_JOB.restart.ensure_pods(ops, job, NEXT_LIFE, Places())
    assert {pod["metadata"]["name"] for pod in await TRAINING_JOB.restart.ensure_pods(ops, job, NEXT_LIFE, Places())} == {
        "demo-manager-0",
        "demo-worker-0",
    }
