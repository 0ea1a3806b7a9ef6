"""Processes of an installation: whether their pods are ready, and if not, why."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.rights import OWN, workload_of
from rekindle.errors import ClusterError
from rekindle.model.bounds import cut, few
from rekindle.model.examined import Link, failed, ok, warning
from workers.examination.installation import APPLY, Installation, asked, found
from workers.own_workload import CONDITION

OPTIONAL = "webhook"

STARTING = ("ContainerCreating", "PodInitializing")

REPEATED = timedelta(minutes=10)
"""Time in which a process that does not serve says so again, also while Kubernetes waits before it starts it once more."""

LONGEST = 300
"""Bytes of the words of a pod."""

IMAGE = "let the cluster pull the image: the values image.repository, image.tag and image.pullSecrets"
MENDS = {
    "ErrImagePull": IMAGE,
    "ImagePullBackOff": IMAGE,
    "InvalidImageName": IMAGE,
    "ErrImageNeverPull": IMAGE,
    "CreateContainerConfigError": "create the ConfigMap or Secret that it names",
    "Unschedulable": "free or add a node that fits, or change its nodeSelector, tolerations or resources",
    "ReplicaFailure": "mend what refuses its pods: a quota, the pod security standard, or a policy of the cluster",
}
"""Actions by the reason for which a pod does not run."""

Trouble = tuple[str, str]
"""Words, and how to mend it."""


async def processes(installation: Installation) -> AsyncIterator[Link | None]:
    """Examines the Deployment or StatefulSet of each process."""
    for process in (*OWN, OPTIONAL):
        yield await asked(f"process {process}", _process(installation, process))


async def _process(installation: Installation, process: str) -> Link | None:
    name, workload = f"process {process}", f"rekindle-{process}"
    there = await found(installation.api.get(installation.path("/apis/apps/v1", workload_of(process), workload)))
    if there is None:
        if process == OPTIONAL:
            return None
        return failed(name, f"{workload} is not in namespace {installation.namespace}", APPLY)
    wanted, ready = there["spec"].get("replicas", 1), (there.get("status") or {}).get("readyReplicas", 0)
    if not wanted:
        scale = f"scale {workload_of(process)} {workload} --replicas=1"
        return warning(name, "scaled to no pod at all", f"kubectl -n {installation.namespace} {scale}")
    troubles, latest = list(_of_workload(there)), _of_latest_revision(there)
    counted = f"{ready} of {wanted} pods are ready"
    if ready >= wanted and latest >= wanted and not troubles:
        return ok(name, f"{counted}, of image {there['spec']['template']['spec']['containers'][0].get('image', '')}")
    if latest < wanted:  # pods of the revision before may be ready meanwhile
        counted += f", {latest} are of the latest revision"
    if ready < wanted or latest < wanted:
        troubles += await _of_pods(installation, there)
    words = f"{counted}: {few([cut(said, LONGEST) for said, _ in troubles], between='; ') or 'they start'}"
    mend = next((mend for _, mend in troubles if mend), f"kubectl -n {installation.namespace} describe pod -l {_labels(there)}")
    return warning(name, words, mend) if ready else failed(name, words, mend)


def _of_latest_revision(workload: Object) -> int:
    """Returns the number of pods that the last change of a workload has reached."""
    status = workload.get("status") or {}
    is_seen = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    return status.get("updatedReplicas", 0) if is_seen else 0


def _of_workload(workload: Object) -> Iterator[Trouble]:
    """Yields what the conditions of a workload say, ours too: a process may be ready, and wait for Temporal."""
    for one in (workload.get("status") or {}).get("conditions") or ():
        said = f"{one.get('reason', one['type'])}: {one.get('message', '')}"
        if one["type"] == CONDITION and one["status"] == "False" and not _is_old(one):
            yield said, ""
        elif one["type"] == "ReplicaFailure" and one["status"] == "True":
            yield said, MENDS["ReplicaFailure"]
        elif one["type"] == "Progressing" and one["status"] == "False":
            yield said, ""


def _is_old(condition: Object) -> bool:
    """Returns whether no process says so any more: it repeats it while it lives. An older release would not take it back."""
    try:
        said = datetime.fromisoformat(condition["lastTransitionTime"])
        return datetime.now(UTC) - said > REPEATED
    except (LookupError, TypeError, ValueError):
        return False


async def _of_pods(installation: Installation, workload: Object) -> list[Trouble]:
    try:
        pods = await installation.api.list(installation.path("/api/v1", "pods"), labelSelector=_labels(workload))
    except ClusterError as error:
        return [(f"its pods cannot be seen: {error}", "")]
    return [trouble for pod in pods.items if (trouble := _of_pod(pod, installation.namespace))]


def _labels(workload: Object) -> str:
    return ",".join(f"{key}={value}" for key, value in workload["spec"]["selector"]["matchLabels"].items())


def _of_pod(pod: Object, namespace: str) -> Trouble | None:
    """Returns why a pod is not ready. None: it is, or it starts."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True" or pod["metadata"].get("deletionTimestamp"):
        return None
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"pod {name} has no node: {scheduled.get('message', '')}", MENDS["Unschedulable"]
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        if words := _of_container(container):
            return f"pod {name}: {words}", MENDS.get(_waiting(container)) or _look(container, name, namespace)
    if status.get("phase") == "Running":
        return f"pod {name} runs and is not ready", f"kubectl -n {namespace} logs {name}"
    return None


def _look(container: Object, pod: str, namespace: str) -> str:
    """Returns the command that shows why a container ended, or why it was never started."""
    of_container = f" -c {container['name']}" if container.get("name") else ""
    if (container.get("lastState") or {}).get("terminated"):
        return f"kubectl -n {namespace} logs {pod}{of_container} --previous"
    if (container.get("state") or {}).get("terminated"):
        return f"kubectl -n {namespace} logs {pod}{of_container}"
    return f"kubectl -n {namespace} describe pod {pod}"


def _waiting(container: Object) -> str:
    reason = ((container.get("state") or {}).get("waiting") or {}).get("reason", "")
    return "" if reason in STARTING else str(reason)


def _of_container(container: Object) -> str:
    """Returns why a container does not run, with its last words; empty: it does, or it starts."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    reason = _waiting(container) or (state.get("terminated") or {}).get("reason", "")
    if not reason:
        return ""
    words = (state.get("waiting") or {}).get("message", "")
    if ended:
        words = f"ended with code {ended.get('exitCode')}: {_last_words(str(ended.get('message') or ''))}".rstrip(": ")
    return f"{reason}: {words}" if words else str(reason)


def _last_words(text: str) -> str:
    """Returns the sentence with which a process of ours ends, or the last line that it wrote."""
    lines = [line for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "")
