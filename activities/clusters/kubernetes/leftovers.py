"""Finds what an installation leaves on the objects of others, and removes it.

Reads jobs, pods and nodes once, in pages. Jobs that another living installation recovers, with their pods and budgets, are left
alone. Used by `workers.removal`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.ascend_operator import is_recovery_paused
from activities.clusters.kubernetes.budgets import OURS, PART_OF, budgets_path
from activities.clusters.kubernetes.claims import HOLDER, LASTS, RENEWED
from activities.clusters.kubernetes.contract_words import ContractWords
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import KINDS
from activities.clusters.kubernetes.kinds.bare_pods import is_bare
from activities.clusters.kubernetes.missing_rank import is_active, is_backup, is_standby
from activities.clusters.kubernetes.pod_objects import BACKUP_OF, OWN_CLASS, TAKES_OVER, controller_of
from activities.clusters.kubernetes.pod_operations import PodOperations
from activities.clusters.kubernetes.public_faults import NAMESPACE as FAULTS
from activities.clusters.kubernetes.public_faults import OURS as OF_THE_GATEWAY
from activities.clusters.kubernetes.reader import Reader, in_scope, is_name
from activities.clusters.kubernetes.watch import NODES
from rekindle.errors import Conflict, NotFound
from rekindle.model import keys
from rekindle.model.bounds import cut
from rekindle.model.contract import Words
from rekindle.model.job import Trait
from rekindle.policy.detection import isolation
from rekindle.settings import Settings

OF_JOBS = (
    keys.MEMORY,
    keys.RECOVERED_BY,
    keys.STOPPED,
    keys.RECOVERING,
    keys.LAST_VERDICT,
    keys.DOWNGRADED,
    keys.GIVEN_UP,
)
"""Annotations of a job that its owner does not write."""

OF_PODS = {
    "labels": (keys.JOB_ID, keys.GENERATION, BACKUP_OF, keys.STANDBY_OF),
    "annotations": (TAKES_OVER, keys.TAKEN_AS, OWN_CLASS, *OF_JOBS),
}
"""Marks of pods that training goes on in. Those of our own kinds keep theirs, which are deleted with the job."""

LEASES = "/apis/coordination.k8s.io/v1/leases"

UNUSED = {BACKUP_OF: "backup pod that has taken over nothing", keys.STANDBY_OF: "standby"}
"""Labels of pods in which nothing is trained."""


@dataclass(frozen=True)
class Leftover:
    thing: str
    """Object, such as `Job default/gpt`."""

    words: str
    """Description of what is left."""

    remove: Callable[[], Awaitable[None]] | None
    """Removes it. None: a person has to, and the words say how."""


class Leftovers:
    def __init__(self, api: Api, settings: Settings, again: float = RENEWED + 2) -> None:
        """Args:
        again: seconds after which a Lease that looks old is read again.
        """
        self._api, self._settings, self._again = api, settings, again
        self._reader = Reader(api, settings)
        self._operations = PodOperations(api, self._reader, settings)
        self._contract = ContractWords(api, self._operations, self._reader.job)
        self._living: frozenset[str] | None = None
        self._spared: set[str] = set()
        """UIDs of jobs that another installation recovers."""

    async def running(self) -> str:
        """Returns the Lease of this installation if it is being renewed; empty: the installation does not run."""
        return next((holder for holder in sorted(await self.alive()) if self._is_ours(holder)), "")

    async def find(self) -> AsyncGenerator[Leftover, None]:
        """Yields what is left, jobs first: their state decides about their pods. Each kind of thing is listed whole before any of
        it is removed, since a list that is read slowly expires."""
        for part in (self._jobs, self._pods, self._budgets, self._nodes, self._others):
            for found in [one async for one in part()]:
                yield found

    # ---- installations

    async def alive(self) -> frozenset[str]:
        """Returns the Leases of all installations that live, as namespace and name.

        As clocks of machines differ, one that looks old is read again after a renewal was due.
        """
        if self._living is None:
            before = await self._renewals()
            living = {holder for holder, renewed in before.items() if _is_recent(renewed)}
            if any(before[holder] for holder in before.keys() - living):
                await asyncio.sleep(self._again)
                living |= {holder for holder, renewed in (await self._renewals()).items() if renewed != before.get(holder, "")}
            self._living = frozenset(living)
        return self._living

    async def _renewals(self) -> dict[str, str]:
        found = {}
        for lease in (await self._api.list(LEASES, labelSelector=f"{PART_OF}={OURS}")).items:
            holder = f"{lease['metadata']['namespace']}/{lease['metadata']['name']}"
            if HOLDER.fullmatch(holder):
                found[holder] = str((lease.get("spec") or {}).get("renewTime") or "")
        return found

    def _is_ours(self, holder: str) -> bool:
        return holder.partition("/")[0] == self._settings.namespace

    async def _is_anothers(self, holder: str) -> bool:
        """Returns whether this is the Lease of another installation that lives."""
        return holder in await self.alive() and not self._is_ours(holder)

    async def _others_live(self) -> bool:
        return any([await self._is_anothers(holder) for holder in await self.alive()])

    # ---- jobs

    async def _jobs(self) -> AsyncIterator[Leftover]:
        await self._spare_bare_jobs()
        for kind in reversed(KINDS):  # a job before the jobs that it is made of
            with suppress(NotFound):  # the cluster has no such kind
                for scope in self._reader.scopes:
                    async for page in self._api.pages(kind.path(scope)):
                        for raw in page.items:
                            if found := await self._of_job(Workload(kind, raw)):
                                yield found

    async def _of_job(self, job: Workload) -> Leftover | None:
        if (controller_of(job.object) or {}).get("uid") in self._spared:
            self._spared.add(job.uid)
            return None
        if not (written := _there(job.object, "annotations", OF_JOBS)):
            return None  # nobody of ours served it: what stands on its PodGroup and pods is another controller's
        if await self._is_anothers(job.annotation(keys.RECOVERED_BY)):
            self._spared.add(job.uid)
            return None
        is_paused = Trait.CONTRACT_WORDS in job.kind.traits and await is_recovery_paused(self._operations, job)
        words = [f"annotations {', '.join(written)}"]
        words += ["suspended by a restart that was not finished"] if job.annotation(keys.STOPPED) == "yes" else []
        words += [f"label {keys.PROCESS_RECOVER_ENABLE} of its PodGroup is pause"] if is_paused else []
        self._reader.remember(job)
        remove = partial(self._release, job.uid, written)
        return Leftover(f"{job.kind.name} {job.namespace}/{job.name}", "; ".join(words), remove)

    async def _release(self, job_id: str, written: Iterable[str]) -> None:
        """Lets a job go on without an installation: not suspended, with no switch half-way, and without marks of ours."""
        job = await self._reader.job(job_id)
        if job.annotation(keys.STOPPED):
            await job.kind.restart.let_go(self._operations, job)
        if Trait.CONTRACT_WORDS in job.kind.traits:
            await self._contract.ensure_words(job.uid, Words(over=True))
        for pod in await self._reader.pods(job):
            if is_backup(pod) and not await self._is_unused(pod):
                await job.kind.count.ensure_promoted(self._operations, job, pod)
        await job.kind.count.ensure_no_backups(self._operations, job, await self._reader.pods(job), 0)
        await self._operations.ensure_metadata(job, {}, dict.fromkeys(written))

    async def _spare_bare_jobs(self) -> None:
        """Finds jobs of pods without controller that another installation recovers. One of their pods says so."""
        for scope in self._reader.scopes:
            async for page in self._api.metadata(in_scope("pods", scope), labelSelector=keys.JOB_ID):
                for pod in page.items:
                    holder = (pod["metadata"].get("annotations") or {}).get(keys.RECOVERED_BY, "")
                    if is_bare(pod) and await self._is_anothers(holder):
                        self._spared.add(pod["metadata"]["labels"][keys.JOB_ID])

    # ---- pods and budgets

    async def _pods(self) -> AsyncIterator[Leftover]:
        for scope in self._reader.scopes:
            async for page in self._api.metadata(in_scope("pods", scope)):
                for pod in page.items:
                    if found := await self._of_pod(pod):
                        yield found

    async def _of_pod(self, pod: Object) -> Leftover | None:
        metadata, controller = pod["metadata"], controller_of(pod) or {}
        labels = metadata.get("labels") or {}
        if {controller.get("uid"), labels.get(keys.JOB_ID)} & self._spared:
            return None
        thing = f"Pod {metadata['namespace']}/{metadata['name']}"
        path = f"{in_scope('pods', metadata['namespace'])}/{metadata['name']}"
        is_unused = any(one in labels for one in UNUSED) and await self._is_unused(pod)
        for label in (one for one in UNUSED if one in labels and is_unused):
            return Leftover(thing, UNUSED[label], partial(self._deleted, path, metadata["uid"]))
        if controller.get("kind") in {kind.name for kind in KINDS if kind.is_ours}:
            return None
        is_owners = "." in labels.get(keys.JOB_ID, ".")  # the id of pods without controller, which their owner has written
        found = {part: _there(pod, part, marks) for part, marks in OF_PODS.items()}
        found["labels"] = [key for key in found["labels"] if not (is_owners and key == keys.JOB_ID)]
        if any(one in labels for one in UNUSED):
            found["annotations"] += _there(pod, "annotations", (keys.POD_TYPE, keys.BACKUP_SOURCE))
        if not any(found.values()):
            return None
        words = "; ".join(f"{part} {', '.join(marks)}" for part, marks in found.items() if marks)
        change = {"uid": metadata["uid"], **{part: dict.fromkeys(marks) for part, marks in found.items()}}
        return Leftover(thing, words, partial(self._changed, path, {"metadata": change}))

    async def _is_unused(self, pod: Object) -> bool:
        """Returns whether nothing is trained in a standby or backup pod. A backup whose pod is gone, and which the job's
        controller counts, holds the rank."""
        metadata = pod["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        source = annotations.get(keys.BACKUP_SOURCE, "")
        if is_standby(pod) or TAKES_OVER in annotations or not is_name(source):
            return True
        try:
            old = await self._api.get(f"{in_scope('pods', metadata['namespace'])}/{source}")
        except NotFound:
            return False
        return old["metadata"]["uid"] == labels.get(BACKUP_OF, old["metadata"]["uid"]) and is_active(old)

    async def _budgets(self) -> AsyncIterator[Leftover]:
        for scope in self._reader.scopes:
            for budget in (await self._api.list(budgets_path(scope), labelSelector=f"{PART_OF}={OURS},{keys.JOB_ID}")).items:
                metadata = budget["metadata"]
                if metadata["labels"][keys.JOB_ID] not in self._spared:
                    where = f"{budgets_path(metadata['namespace'])}/{metadata['name']}"
                    yield self._to_delete("PodDisruptionBudget", metadata, where, "holds drains of a job's nodes")

    # ---- nodes, and what the processes write beside jobs

    async def _nodes(self) -> AsyncIterator[Leftover]:
        async for page in self._api.metadata(NODES):
            for node in page.items:
                annotations = node["metadata"].get("annotations") or {}
                if change := isolation.release(annotations):
                    name = node["metadata"]["name"]
                    words = f"isolated: {cut(annotations[keys.ISOLATED], 200)}"
                    if await self._others_live():  # the mark does not say whose it is
                        words += f"; another installation lives: rekindle nodes release {name}"
                        yield Leftover(f"Node {name}", words, None)
                        continue
                    remove = partial(self._changed, f"{NODES}/{name}", {"metadata": {"annotations": change}})
                    yield Leftover(f"Node {name}", words, remove)

    async def _others(self) -> AsyncIterator[Leftover]:
        namespace = self._settings.namespace
        for lease in (await self._api.list(_leases(namespace), labelSelector=f"{PART_OF}={OURS}")).items:
            metadata = lease["metadata"]
            yield self._to_delete("Lease", metadata, f"{_leases(namespace)}/{metadata['name']}", "name of the installation")
        path = in_scope("configmaps", FAULTS)
        selector = ",".join(f"{key}={value}" for key, value in OF_THE_GATEWAY.items())
        faults = [] if await self._others_live() else (await self._api.list(path, labelSelector=selector)).items
        for fault in faults:
            metadata = fault["metadata"]
            yield self._to_delete("ConfigMap", metadata, f"{path}/{metadata['name']}", "public fault")
        for scope in self._reader.scopes:
            for template in (await self._api.list(in_scope("podtemplates", scope), labelSelector=keys.JOB_ID)).items:
                metadata = template["metadata"]
                words = "pod of a restart that was not finished: create a pod from it, then delete it"
                yield Leftover(f"PodTemplate {metadata['namespace']}/{metadata['name']}", words, None)

    def _to_delete(self, kind: str, metadata: Object, path: str, words: str) -> Leftover:
        return Leftover(
            f"{kind} {metadata['namespace']}/{metadata['name']}", words, partial(self._deleted, path, metadata["uid"])
        )

    async def _deleted(self, path: str, uid: str) -> None:
        with suppress(NotFound, Conflict):  # it is gone, or another object has the name
            await self._api.delete(path, uid)

    async def _changed(self, path: str, change: Object) -> None:
        with suppress(NotFound, Conflict):
            await self._api.patch(path, change)


def _there(thing: Object, part: str, marks: Iterable[str]) -> list[str]:
    found = thing["metadata"].get(part) or {}
    return [key for key in marks if key in found]


def _leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def _is_recent(renewed: str) -> bool:
    """Returns whether a time is in the last minute, by this machine's clock."""
    try:
        return abs(datetime.now(UTC) - datetime.fromisoformat(renewed)) < timedelta(seconds=LASTS)
    except ValueError:
        return False
