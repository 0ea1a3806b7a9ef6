"""PodDisruptionBudget of a job.

While it exists, `kubectl drain` and other clients of the eviction API retry until a hot switch has moved the ranks away. Pods
that a recovery replaces are deleted directly, which no budget prevents.
"""

from contextlib import suppress

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.claims import Claims
from activities.clusters.kubernetes.kind import MANAGER, Workload
from activities.clusters.kubernetes.pod_objects import BACKUP_OF
from activities.clusters.kubernetes.reader import Reader
from rekindle.errors import Conflict, NotFound
from rekindle.model.keys import JOB_ID, REPLICA_TYPE, STANDBY_OF

PART_OF, OURS = "app.kubernetes.io/part-of", "rekindle"
"""Label of everything that we install or make beside jobs."""

MOST_LEFT = 100
"""Maximum number of budgets of unknown jobs that are returned."""


class JobBudgets:
    """Implements `activities.clusters.port.Evictions` by a PodDisruptionBudget for each job."""

    def __init__(self, api: Api, reader: Reader, claims: Claims | None) -> None:
        self._api, self._reader, self._claims = api, reader, claims

    async def budgets(self) -> dict[str, int]:
        """Returns the number of pods that the budget of each job protects, by job id; -1 if it is unknown.

        Tenants may write the same label, so a budget that is not at the expected place of the job is ignored. Of unknown jobs
        only the first `MOST_LEFT` are returned.
        """
        found: dict[str, int] = {}
        unknown = 0
        for scope in self._reader.scopes:
            async for page in self._api.pages(budgets_path(scope), labelSelector=f"{PART_OF}={OURS},{JOB_ID}"):
                for budget in page.items:
                    metadata, pods = budget["metadata"], (budget.get("spec") or {}).get("minAvailable")
                    job_id = metadata["labels"][JOB_ID]
                    where = self._reader.where(job_id)
                    if where and (metadata["namespace"], metadata["name"]) != (where[0], _name(where[1], job_id)):
                        continue
                    unknown += where is None
                    if where or unknown <= MOST_LEFT:
                        found[job_id] = pods if where and isinstance(pods, int) else -1
        return found

    async def ensure_budget(self, job_id: str, *, holds: bool) -> None:
        if holds:
            await self._ensure(await self._reader.job(job_id))
        elif seen := await self._reader.seen(job_id):
            if not (self._claims and await self._claims.are_others(seen)):  # the installation that recovers it keeps its budget
                await self._ensure_none(seen)
        elif "." not in job_id:
            await self._ensure_none_left(job_id)

    async def _ensure(self, job: Workload) -> None:
        """Ensures a budget that keeps all ranks of the job from being evicted.

        It is deleted with the job, except for pods without controller, which have no owner. A budget for another number of pods,
        as an elastic job had before, or for other pods, is recreated: the server counts the pods before it allows an eviction.
        """
        if not job.kind.has_object:
            return
        path, budget = budgets_path(job.namespace), _budget(job, await self._reader.selector_of_ranks(job))
        where = f"{path}/{budget['metadata']['name']}"
        try:
            await self._api.create(path, budget)
        except Conflict:
            found = await self._api.get(where)
            if _is_ours(found, job) and any(
                found["spec"].get(key) != budget["spec"][key] for key in ("minAvailable", "selector")
            ):
                await self._api.delete(where, found["metadata"]["uid"])
                await self._api.create(path, budget)

    async def _ensure_none(self, job: Workload) -> None:
        """Deletes the job's budget. A budget of the same name that belongs to another owner stays."""
        if not job.kind.has_object:
            return
        where = f"{budgets_path(job.namespace)}/{_name(job.name, job.uid)}"
        with suppress(NotFound):
            found = await self._api.get(where)
            if _is_ours(found, job):
                await self._api.delete(where, found["metadata"]["uid"])

    async def _ensure_none_left(self, job_id: str) -> None:
        """Deletes the budgets of a job that no longer exists. A job that is deleted without its pods leaves its budget too."""
        for scope in self._reader.scopes:
            for budget in (await self._api.list(budgets_path(scope), labelSelector=f"{PART_OF}={OURS},{JOB_ID}={job_id}")).items:
                with suppress(NotFound):
                    path = budgets_path(budget["metadata"]["namespace"])
                    await self._api.delete(f"{path}/{budget['metadata']['name']}", budget["metadata"]["uid"])


def _is_ours(budget: Object, job: Workload) -> bool:
    return job.uid in {owner["uid"] for owner in budget["metadata"].get("ownerReferences", ())}


def budgets_path(namespace: str) -> str:
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/policy/v1{where}/poddisruptionbudgets"


def _name(job: str, uid: str) -> str:
    return f"{job[:40].rstrip('-.')}-{uid[:5]}-drain"


def _budget(job: Workload, selector: dict[str, str]) -> Object:
    """Returns the budget of a job.

    Pods without rank (managers, standbys) are recreated elsewhere and do not hold a drain: counting one would let a rank be
    evicted. A pod that is not ready does not count either. A backup counts from the time at which the rank is its own.

    The budget gives the minimum number of available pods. With a maximum of unavailable ones, the server would ask the pods'
    controller for their number. Hardly any kind of job supports that, and `kubectl drain` would hang for ten seconds and more.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": _name(job.name, job.uid),
            "namespace": job.namespace,
            "labels": {PART_OF: OURS, JOB_ID: job.uid},
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
