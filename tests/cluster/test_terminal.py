"""Failures of one pod that are those of its whole job, where its controller marks no pod that it has counted."""

import copy
from collections.abc import Sequence

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import PYTORCH_JOB
from activities.clusters.kubernetes.reader import Reader
from rekindle.errors import Invalid
from rekindle.model import keys
from tests.support.tenants import Tenants, owner
from tests.support.valid_objects import JOBS, pod


def failed(code: int) -> Object:
    """A worker's pod of a PyTorchJob."""
    one = pod("uid-of-job", "demo-worker-0")
    one["metadata"]["labels"][keys.REPLICA_TYPE] = "worker"
    ended = {"state": {"terminated": {"exitCode": code, "reason": "Error"}}}
    return {**one, "status": {"phase": "Failed", "containerStatuses": [ended]}}


@pytest.mark.parametrize(
    ("policy", "code", "fails"),
    [
        ("Never", 1, True),
        ("Never", 137, True),
        ("OnFailure", 1, False),
        ("ExitCode", 1, True),
        ("ExitCode", 127, True),
        ("ExitCode", 137, False),
        ("", 1, False),
    ],
)
def test_a_pytorch_job_fails_with_a_pod_by_its_restart_policy(policy: str, code: int, *, fails: bool) -> None:
    """The control plane fails the job by the same rules as the training operator, so the order of the two does not matter."""
    body = copy.deepcopy(JOBS[PYTORCH_JOB])
    body["spec"]["pytorchReplicaSpecs"]["Worker"] |= {"restartPolicy": policy} if policy else {}
    why = PYTORCH_JOB.fails_with(Workload(PYTORCH_JOB, body), failed(code))
    assert why == (f"pod demo-worker-0 failed, and its restartPolicy is {policy}" if fails else "")


async def test_a_pod_that_a_suspension_ended_fails_no_job(tenants: Tenants) -> None:
    """The operator counts no pod of a suspended job. A pod that exits with an error on SIGTERM is part of the suspension."""
    job = await failing_job(tenants)
    job["spec"]["runPolicy"]["suspend"] = True
    with pytest.raises(Invalid, match="PyTorchJob demo is suspended, and not by a restart"):
        await tenants.cluster.ensure_stopped("uid-of-demo", 0)
    job["metadata"]["annotations"] = {keys.STOPPED: "yes"}
    assert [pod.metadata.name for pod in await tenants.cluster.ensure_stopped("uid-of-demo", 0)] == ["demo-worker-0"]


async def test_a_suspension_after_the_first_read_is_seen(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is suspended, and its pods end, after the job was read and before its pods are."""
    job = await failing_job(tenants)
    read = Reader.pods

    async def late(reader: Reader, workload: Workload) -> Sequence[Object]:
        job["spec"]["runPolicy"]["suspend"] = True
        return await read(reader, workload)

    monkeypatch.setattr(Reader, "pods", late)
    with pytest.raises(Invalid, match="PyTorchJob demo is suspended, and not by a restart"):
        await tenants.cluster.ensure_stopped("uid-of-demo", 0)


async def failing_job(tenants: Tenants) -> Object:
    """Returns the object of a PyTorchJob of `Never`, one pod of which failed."""
    await tenants.job(PYTORCH_JOB, "victim", "demo")
    job = tenants.scripted.collections[PYTORCH_JOB.path("victim")]["demo"]
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    one = failed(1)
    one["metadata"]["labels"][keys.JOB_NAME] = "demo"
    one["metadata"] |= {"namespace": "victim", "uid": "uid-of-pod", "ownerReferences": [owner(PYTORCH_JOB, "demo")]}
    await tenants.scripted.put("/api/v1/namespaces/victim/pods", one)
    return job
