"""A job's disruption budget: who drains a node asks again, by `kubectl drain` or another client of the eviction API, until a hot
switch has moved the ranks away. What a recovery replaces is deleted by us, which no budget holds."""

from contextlib import suppress

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.kind import MANAGER, Workload
from activities.clusters.kubernetes.pod_objects import BACKUP_OF
from rekindle.errors import Conflict, NotFound
from rekindle.model.keys import REPLICA_TYPE, STANDBY_OF


async def ensure_budget(api: Api, job: Workload, selector: dict[str, str]) -> None:
    """None of its ranks is evicted. It ends with the job; pods that nobody controls have nothing that it could end with."""
    if not job.kind.has_object:
        return
    with suppress(Conflict):
        await api.create(_path(job), _budget(job, selector))


async def ensure_no_budget(api: Api, job: Workload) -> None:
    """One of that name that is another's stays."""
    if not job.kind.has_object:
        return
    where = f"{_path(job)}/{_name(job)}"
    with suppress(NotFound):
        found = await api.get(where)
        if job.uid in {owner.get("uid") for owner in found["metadata"].get("ownerReferences", ())}:
            await api.delete(where, found["metadata"]["uid"])


def _path(job: Workload) -> str:
    return f"/apis/policy/v1/namespaces/{job.namespace}/poddisruptionbudgets"


def _name(job: Workload) -> str:
    return f"{job.name[:40].rstrip('-.')}-{job.uid[:5]}-drain"


def _budget(job: Workload, selector: dict[str, str]) -> Object:
    """Managers and standbys have no rank, are made anew elsewhere, and hold no drain. Nor does a pod that is not ready. A backup
    is none too many while it loads: it is counted from when the rank is its own.

    It says how many must be there, and not how many may be missing: the server would ask the pods' controller for their number,
    which hardly any kind of job can tell it, and would leave `kubectl drain` without an answer for ten seconds and more.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": _name(job),
            "namespace": job.namespace,
            "labels": {"app.kubernetes.io/part-of": "rekindle"},
            "ownerReferences": [job.reference],
        },
        "spec": {
            "minAvailable": job.kind.read(job).spec.pods,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {
                "matchLabels": selector,
                "matchExpressions": [
                    {"key": REPLICA_TYPE, "operator": "NotIn", "values": [MANAGER]},
                    {"key": STANDBY_OF, "operator": "DoesNotExist"},
                    {"key": BACKUP_OF, "operator": "DoesNotExist"},
                ],
            },
        },
    }
