"""Reasons why pods of a job are not made: the API server is asked by dry run, and controllers by their events.

Used by the strategies, before what runs is stopped and while a controller is waited for.
"""

import re
from collections.abc import Sequence
from typing import Any

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import pod_objects as made
from activities.clusters.kubernetes.hands import Hands, pods_path
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.lost_rank import is_backup, is_standby, is_terminating
from rekindle.errors import ClusterError, Forbidden, Invalid, Refused
from rekindle.model.bounds import cut
from rekindle.model.sizes import LONGEST_TEXT

NO_DRY_RUN = "does not support dry run"
"""A webhook with side effects; whether it would refuse the pod nobody can ask."""

DRY_RUN = "dry-run-"
"""Prefix of the names of pods that are asked about and not made."""

DENIED = ("admission webhook", "denied request")
"""Words of a webhook, and of a ValidatingAdmissionPolicy, which answer with other codes than 403."""

NO_RIGHT = re.compile(r"User \S+ cannot ")
"""Our own account may not do it."""

QUOTA = re.compile(r"exceeded quota: .*used: (?P<used>[^ ]+), limited: (?P<limited>[^ ]+)")
UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
UNITS |= {f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", 1)}
AMOUNT = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)(?P<unit>[a-zA-Z]*)")
"""Reads or writes an amount as quotas are written: `4`, `1500m`, `2Ti` or `3e3`."""


MOST_ASKED = 20
"""Objects whose events are read."""


def may_pass(error: ClusterError) -> bool:
    """Tells whether somebody refuses an object who may admit it later, such as a quota, a policy or a webhook."""
    return isinstance(error, Forbidden) and not NO_RIGHT.search(str(error))


# ---- before it is stopped


async def refuse_what_is_refused(hands: Hands, job: Workload, pods: Sequence[Object]) -> None:
    """Asks whether the API server would admit the job's pods again, one of each kind. Nothing is made.

    Args:
        pods: of the job. They are asked about as they are, but for their names; none of those that are told to end.

    Raises:
        Refused: it would not.
    """
    for body in _probes(job, pods):
        try:
            await hands.api.create(pods_path(job.namespace), body, dry_run=True)
        except (Forbidden, Invalid) as error:
            if is_refusal(error) and not _has_room_later(str(error)):
                raise Refused(f"the cluster would refuse the new pods: {error}") from error


def is_refusal(error: ClusterError) -> bool:
    """Tells whether a policy or a webhook refuses the pod. What else is wrong is wrong with the question: the pod runs."""
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
    """Tells whether a quota refuses a pod only because the pod's own model still counts. A quota of which more is used than it
    allows has no room for all pods of the job."""
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


async def words_of_controllers(hands: Hands, job: Workload) -> str:
    """Returns what controllers of the job said last of why they make no pods, by their events; empty: nothing."""
    about = [job, *(await hands.reader.parts(job))][:MOST_ASKED]
    said: list[Object] = []
    for one in about:
        selector = f"involvedObject.uid={one.uid},type=Warning"
        said += (await hands.api.list(f"/api/v1/namespaces/{job.namespace}/events", fieldSelector=selector)).items
    refusals = [event for event in said if _is_about_making(event)]
    if not refusals:
        return ""
    last = max(refusals, key=_moment)
    return cut(f"{last['reason']} at {_moment(last)}: {last.get('message', '')}", LONGEST_TEXT)


def _is_about_making(event: Object) -> bool:
    """`FailedCreate` of Jobs, `FailedCreatePod` of the training operator, `JobCreationFailed`, `ResourcesCreationFailed`."""
    reason = str(event.get("reason", ""))
    return "Fail" in reason and "Creat" in reason


def _moment(event: Object) -> str:
    series: Any = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")
