"""Finds out why pods of a job are not created: from the API server by dry run, and from controllers by their events.

Used by the strategies, before running pods are stopped and while they wait for a controller.
"""

import re
from collections.abc import Sequence
from typing import Any

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import pod_objects as made
from activities.clusters.kubernetes.kind import PodAccess, Workload
from activities.clusters.kubernetes.missing_rank import is_backup, is_standby, is_terminating
from activities.clusters.kubernetes.pod_operations import pods_path
from rekindle.errors import ClusterError, Forbidden, Invalid, Refused
from rekindle.model.bounds import cut
from rekindle.model.sizes import LONGEST_TEXT

NO_DRY_RUN = "does not support dry run"
"""Message of a webhook with side effects. Whether it would refuse the pod cannot be checked."""

DRY_RUN = "dry-run-"
"""Prefix of the names of pods that are asked about and not made."""

DENIED = ("admission webhook", "denied request")
"""Parts of the messages of a webhook and of a ValidatingAdmissionPolicy, which answer with other codes than 403."""

NO_RIGHT = re.compile(r"User \S+ cannot ")
"""Matches the message that our own account lacks a right."""

QUOTA = re.compile(r"exceeded quota: .*used: (?P<used>[^ ]+), limited: (?P<limited>[^ ]+)")
UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
UNITS |= {f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", 1)}
AMOUNT = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)(?P<unit>[a-zA-Z]*)")
"""Matches an amount as quotas are written: `4`, `1500m`, `2Ti` or `3e3`."""


MOST_ASKED = 20
"""Maximum number of objects whose events are read."""


def may_pass(error: ClusterError) -> bool:
    """Returns whether the refusal may end later: that of a quota, a policy or a webhook."""
    return isinstance(error, Forbidden) and not NO_RIGHT.search(str(error))


# ---- before it is stopped


async def refuse_what_is_refused(ops: PodAccess, job: Workload, pods: Sequence[Object]) -> None:
    """Checks whether the API server would admit the job's pods again, one of each kind. Creates nothing.

    Args:
        pods: of the job. They are checked as they are, except for their names and for those that are being deleted.

    Raises:
        Refused: it would not.
    """
    for body in _probes(job, pods):
        try:
            await ops.api.create(pods_path(job.namespace), body, dry_run=True)
        except (Forbidden, Invalid) as error:
            if is_refusal(error) and not _has_room_later(str(error)):
                raise Refused(f"the cluster would refuse the new pods: {error}") from error


def is_refusal(error: ClusterError) -> bool:
    """Returns whether a policy or a webhook refuses the pod. Any other error is a fault of the check, as the pod is running."""
    words = str(error)
    return NO_DRY_RUN not in words and (may_pass(error) or any(one in words for one in DENIED))


def _probes(job: Workload, pods: Sequence[Object]) -> list[Object]:
    kinds: dict[str, Object] = {}
    for pod in pods:
        if not (is_terminating(pod) or is_backup(pod) or is_standby(pod)):
            labels = pod["metadata"].get("labels", {})
            kinds.setdefault(f"{made.is_manager(pod)} {labels.get(job.kind.indexing.type_label)}", pod)
    return [_probe(pod) for pod in kinds.values()]


def _probe(pod: Object) -> Object:
    kept = {key: pod["metadata"][key] for key in ("namespace", "labels", "annotations") if key in pod["metadata"]}
    owners = [
        {key: value for key, value in owner.items() if key != "blockOwnerDeletion"}
        for owner in pod["metadata"].get("ownerReferences", ())
    ]
    affinity = {"affinity": pod["spec"]["affinity"]} if "affinity" in pod["spec"] else {}
    spec = {**made.startable(pod["spec"], {}, ()), **affinity}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**kept, "generateName": DRY_RUN, "ownerReferences": owners},
        "spec": spec,
    }


def _has_room_later(words: str) -> bool:
    """Returns whether a quota refuses a pod only because the pod that it is modelled on still counts.

    All pods of the job do not fit into a quota that is already exceeded.
    """
    found = QUOTA.search(words)
    if not found:
        return False
    used, limited = (dict(_amount(one) for one in found[part].split(",")) for part in ("used", "limited"))
    return all(used[name] <= limited.get(name, used[name]) for name in used)


def _amount(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    found = AMOUNT.match(amount)
    return name, float(found["number"]) * UNITS.get(found["unit"], 1.0) if found else 0.0


# ---- while a controller is waited for


async def words_of_controllers(ops: PodAccess, job: Workload) -> str:
    """Returns the last reason that the job's controllers gave in their events for creating no pods; empty: there is none."""
    about = [job, *(await ops.reader.parts(job))][:MOST_ASKED]
    said: list[Object] = []
    for one in about:
        selector = f"involvedObject.uid={one.uid},type=Warning"
        said += (await ops.api.list(f"/api/v1/namespaces/{job.namespace}/events", fieldSelector=selector)).items
    refusals = [event for event in said if _is_about_making(event)]
    if not refusals:
        return ""
    last = max(refusals, key=_moment)
    return cut(f"{last['reason']} at {_moment(last)}: {last.get('message', '')}", LONGEST_TEXT)


def _is_about_making(event: Object) -> bool:
    """Returns whether the event is about the creation of pods:

    `FailedCreate` of Jobs, `FailedCreatePod` of the training operator, `JobCreationFailed`, `ResourcesCreationFailed`.
    """
    reason = str(event.get("reason", ""))
    return "Fail" in reason and "Creat" in reason


def _moment(event: Object) -> str:
    series: Any = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")
