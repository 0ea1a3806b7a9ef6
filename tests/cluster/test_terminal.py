"""Failures of one pod that are those of its whole job, where its controller marks no pod that it has counted."""

import copy

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import PYTORCH_JOB
from rekindle.model import keys
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
    """The training operator judges it alike, whoever looks first."""
    body = copy.deepcopy(JOBS[PYTORCH_JOB])
    body["spec"]["pytorchReplicaSpecs"]["Worker"] |= {"restartPolicy": policy} if policy else {}
    why = PYTORCH_JOB.fails_with(Workload(PYTORCH_JOB, body), failed(code))
    assert why == (f"pod demo-worker-0 failed, and its restartPolicy is {policy}" if fails else "")
