"""A pod of a process that is not ready says why, and what to do. The states are those that a kubelet writes."""

from typing import Any

import pytest

from workers.examination.processes import _of_pod

Object = dict[str, Any]


def pod(*containers: Object, phase: str = "Pending", **metadata: str) -> Object:
    return {"metadata": {"name": "rekindle-control-0", **metadata}, "status": {"phase": phase, "containerStatuses": containers}}


def waits(reason: str, message: str = "", last: Object | None = None) -> Object:
    return {"state": {"waiting": {"reason": reason, "message": message}}, "lastState": {"terminated": last} if last else {}}


LOG = "{json}\nerror: Temporal does not answer\n2026-11-29 WARN a line of another library\n"


@pytest.mark.parametrize(
    ("given", "words", "mend"),
    [
        (
            pod(waits("ImagePullBackOff", 'Back-off pulling image "rekindle:1"')),
            'pod rekindle-control-0: ImagePullBackOff: Back-off pulling image "rekindle:1"',
            "image.pullSecrets",
        ),
        (
            pod(waits("CrashLoopBackOff", "back-off 5m0s", {"exitCode": 1, "message": LOG}), phase="Running"),
            "pod rekindle-control-0: CrashLoopBackOff: ended with code 1: error: Temporal does not answer",
            "kubectl -n here logs rekindle-control-0 --previous",
        ),
        (
            pod({"name": "rekindle", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}, phase="Running"),
            "pod rekindle-control-0: OOMKilled: ended with code 137",
            "kubectl -n here logs rekindle-control-0 -c rekindle",
        ),
        (
            pod(waits("CreateContainerConfigError", 'configmap "rekindle-settings" not found')),
            'pod rekindle-control-0: CreateContainerConfigError: configmap "rekindle-settings" not found',
            "create the ConfigMap",
        ),
        (
            pod(waits("CreateContainerError", "context deadline exceeded")),
            "pod rekindle-control-0: CreateContainerError: context deadline exceeded",
            "kubectl -n here describe pod rekindle-control-0",
        ),
        (
            pod({"state": {"running": {}}}, phase="Running"),
            "pod rekindle-control-0 runs and is not ready",
            "kubectl -n here logs rekindle-control-0",
        ),
    ],
    ids=["image", "crash", "memory", "settings", "never started", "not ready"],
)
def test_a_pod_that_is_not_ready_says_why(given: Object, words: str, mend: str) -> None:
    """The last words of a process of ours are the sentence with which it ended, whatever other libraries wrote after it."""
    found = _of_pod(given, "here")
    assert found
    assert found[0] == words
    assert found[1].endswith(mend) if mend.startswith("kubectl") else mend in found[1]


def test_a_pod_that_starts_or_ends_is_no_trouble() -> None:
    """An image that is being pulled is a matter of time."""
    assert _of_pod(pod(waits("ContainerCreating")), "here") is None
    assert _of_pod(pod(phase="Running", deletionTimestamp="now"), "here") is None
