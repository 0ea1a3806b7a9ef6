"""What becomes of a standby's pod object when it has taken a rank and is itself replaced."""

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import pod_objects as made
from activities.clusters.kubernetes.kinds import TRAINING_JOB, Workload
from rekindle.model import keys

MARKS = (keys.POD_TYPE, keys.BACKUP_SOURCE, keys.TAKEN_AS)
ROLES = (keys.ENV_POD_ROLE, keys.ENV_POD_RANK)


def job_of_class(priority: str) -> Workload:
    pod = {"priorityClassName": priority} if priority else {}
    spec = {"pods": 1, "ranksPerPod": 1, "command": ["train"], "kubernetes": {"image": "any", "pod": pod}}
    return Workload(TRAINING_JOB, {"metadata": {"name": "demo", "namespace": "any", "uid": "job"}, "spec": spec})


def promoted(job: Workload, worker: Object) -> Object:
    """A standby that was made after this worker and took its rank over."""
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
    """Its backup waits for no rank, and has its job's priority again: nobody would give it one, and anybody would end it. So is
    a standby that is made after it, where the class of standbys has gone meanwhile."""
    job = job_of_class(priority)
    (*_, worker) = made.pods_of_training_job(job, "0", (), "gateway:8899")
    worker["metadata"]["uid"] = "worker"
    ours = promoted(job, worker)
    backup = made.backup_of(ours, job, "demo-hot-0002", "0", {})
    assert roles(backup) == roles(worker)
    assert backup["spec"].get("priorityClassName", "") == priority
    assert made.OWN_CLASS not in backup["metadata"]["annotations"]
    another = made.standby_of(ours, job, "demo-standby-1", {}, ())
    assert another["metadata"]["annotations"].get(made.OWN_CLASS, "") == priority
