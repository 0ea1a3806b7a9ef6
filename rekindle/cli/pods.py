"""Describes pods of the local cluster that keep a job from training: those that wait for a node, and those that failed."""

from collections.abc import Iterable, Sequence

from rekindle.model.cluster import Pod, PodPhase, condition_of
from rekindle.policy.detection.pod_ranks import is_standby


def is_waiting(pod: Pod) -> bool:
    """Returns whether the pod waits for a node. A standby does not count, as training does not wait for it."""
    return not is_standby(pod) and pod.status.phase is PodPhase.PENDING and not pod.metadata.deletion_timestamp


def waiting(pods: Sequence[Pod]) -> str:
    """Describes in a few words how many pods of a job wait for a node; empty: none does."""
    pending, everyone = sum(map(is_waiting, pods)), sum(not is_standby(pod) for pod in pods)
    return f"waiting: {pending} of {everyone} pods have no node" if pending else ""


def running(pods: Sequence[Pod]) -> str:
    """Returns how many of a job's pods run, of how many, such as `1/2`; empty: no pods are known."""
    own = [pod for pod in pods if not is_standby(pod)]
    return f"{sum(pod.status.phase is PodPhase.RUNNING for pod in own)}/{len(own)}" if own else ""


def pod_words(pods: Iterable[Pod]) -> list[str]:
    """Returns a line for each pod that does not run as it should, with the scheduler's message or its own last one."""
    return [words for pod in pods if (words := _words(pod))]


def _words(pod: Pod) -> str:
    if is_waiting(pod):
        scheduled = condition_of(pod.status.conditions, "PodScheduled")
        return f"waiting: {pod.metadata.name}: {scheduled.message if scheduled else 'not scheduled yet'}"
    if pod.status.phase is PodPhase.FAILED:
        return f"failed: {pod.metadata.name} on {pod.spec.node_name}, exit code {pod.status.exit_code}: {pod.status.message}"
    return ""
