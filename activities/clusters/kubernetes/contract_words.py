"""Writes what MindCluster's contract says of a recovery, and exchanges annotations with a platform. Source: the Kubernetes
contract.

Each part stands for itself: one that fails does not keep the others from being written. Objects that are missing, malformed or
not ours to write are left alone. Every call may be repeated.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes import reset_config, super_pods
from activities.clusters.kubernetes.ascend_operator import FAULT_TYPE, mark, pod_group, switch_recovery
from activities.clusters.kubernetes.kind import PodAccess, Workload
from activities.clusters.kubernetes.pod_operations import side_by_side
from rekindle.errors import BadInput, ClusterError, Conflict, Forbidden, NotFound
from rekindle.model.contract import FaultLabel, Words
from rekindle.model.fault import HOLDER_LENGTH
from rekindle.model.job import Trait
from rekindle.model.keys import PLATFORM_CONFIRM, PLATFORM_RESULT, PLATFORM_STRATEGY, RANK_TABLE_READY, RECOVER_STATUS

TRIES = 3
"""Tries to write an object that another component writes at the same time. The activity is retried too."""

OF_THE_PLATFORM = (PLATFORM_STRATEGY, PLATFORM_CONFIRM, PLATFORM_RESULT, RANK_TABLE_READY)

FAULT_JOBS = "/api/v1/namespaces/cluster-system/configmaps"
FAULT_JOB_INFO = "fault-job-info"

logger = logging.getLogger("cluster")


class ContractWords:
    def __init__(self, api: Api, operations: PodAccess, to_change: Callable[[str], Awaitable[Workload]]) -> None:
        """Args:
        to_change: returns a job that this installation recovers.
        """
        self._api, self._operations, self._to_change = api, operations, to_change
        self._left_alone: dict[str, str] = {}
        """Last reason why the reset-config of a job is not written, by the job's UID."""

    async def ensure_words(self, job_id: str, words: Words) -> int | None:
        """Writes all parts, and returns the `RetryTime` of the reset-config.

        Raises:
            ClusterError: the first error of a part, after all of them were tried.
        """
        job = await self._to_change(job_id)
        if Trait.CONTRACT_WORDS not in job.kind.traits:
            return None
        found: list[int | None] = []
        failed: list[ClusterError] = []
        for part in (self._recovery, self._reset, self._status, self._released, self._labels):  # the pods last: they may be many
            try:
                found.append(await part(job, words))
            except Forbidden as error:
                self._note(job, f"{error}")
            except ClusterError as error:
                failed.append(error)
        if failed:
            raise next((error for error in failed if error.retryable), failed[0])
        return next((restarts for restarts in found if restarts is not None), None)

    async def said_by_platform(self, job_id: str) -> Mapping[str, str]:
        job = await self._to_change(job_id)
        annotations = (await self._group(job))["metadata"].get("annotations") or {}
        return {key: str(annotations[key]) for key in OF_THE_PLATFORM if key in annotations}

    async def tell_platform(self, job_id: str, annotations: Mapping[str, str]) -> None:
        await self._api.patch(pod_group(await self._to_change(job_id)), {"metadata": {"annotations": dict(annotations)}})

    # ---- the parts

    async def _reset(self, job: Workload, words: Words) -> int | None:
        path = f"/api/v1/namespaces/{job.namespace}/configmaps/{reset_config.name_of(job.name)}"
        for left in reversed(range(TRIES)):
            try:
                config = await self._api.get(path)
                content = reset_config.changed(config, words, int(time.time()))
                if content.data is not None:
                    version = {"resourceVersion": config["metadata"]["resourceVersion"]}
                    await self._api.patch(path, {"metadata": version, "data": content.data})
            except NotFound:
                return None
            except BadInput as error:
                self._note(job, f"{path.rpartition('/')[2]}: {error}")
                return None
            except Conflict:
                if not left:
                    raise
            else:
                return content.restarts
        return None

    async def _status(self, job: Workload, words: Words) -> None:
        if words.status is None:
            return
        group = await self._group(job)
        if (group["metadata"].get("annotations") or {}).get(RECOVER_STATUS) != words.status:
            await self._annotated(job, {RECOVER_STATUS: words.status})

    async def _labels(self, job: Workload, words: Words) -> None:
        if not (words.labels or words.over):
            return
        changes: list[Coroutine[object, object, None]] = []
        for pod in await self._operations.reader.pods(job):
            said = (pod["metadata"].get("labels") or {}).get(FAULT_TYPE)
            wanted = words.labels.get(pod["metadata"]["uid"][:HOLDER_LENGTH])
            if words.over and said in set(FaultLabel):
                changes.append(self._labelled(pod, None))
            elif not words.over and wanted and said is None:
                changes.append(self._labelled(pod, wanted))
        await side_by_side(changes)

    async def _labelled(self, pod: Object, value: str | None) -> None:
        try:
            await mark(self._operations, pod, {}, {FAULT_TYPE: value})
        except Conflict:
            return  # another pod has the name by now

    async def _released(self, job: Workload, words: Words) -> None:
        if words.leaving:
            pods = await self._operations.reader.pods(job)
            if said := super_pods.entry(pods, words.leaving, job.uid, int(time.time())):
                await self._told(job, said)
        elif words.over:
            await self._told(job, None)

    async def _told(self, job: Workload, said: str | None) -> None:
        """Writes the job's entry of `fault-job-info`; None removes it. Users create the namespace, and may not have done so."""
        try:
            found = await self._api.get(f"{FAULT_JOBS}/{FAULT_JOB_INFO}")
        except NotFound:
            if said is not None:
                await self._first_entry(job, said)
            return
        before = (found.get("data") or {}).get(job.uid)
        if (before is None) != (said is None):
            await self._api.patch(f"{FAULT_JOBS}/{FAULT_JOB_INFO}", {"data": {job.uid: said}})

    async def _first_entry(self, job: Workload, said: str) -> None:
        try:
            await self._api.create(FAULT_JOBS, {"metadata": {"name": FAULT_JOB_INFO}, "data": {job.uid: said}})
        except NotFound as error:
            self._note(job, f"{FAULT_JOB_INFO}: {error}")

    async def _recovery(self, job: Workload, words: Words) -> None:
        if words.over:
            await switch_recovery(self._operations, job, "pause", "on")

    # ---- what they share

    async def _group(self, job: Workload) -> Object:
        try:
            return await self._api.get(pod_group(job))
        except NotFound:
            return {"metadata": {}}

    async def _annotated(self, job: Workload, annotations: Mapping[str, str]) -> None:
        try:
            await self._api.patch(pod_group(job), {"metadata": {"annotations": dict(annotations)}})
        except NotFound:
            return

    def _note(self, job: Workload, why: str) -> None:
        """Logs why a part is not written, once for each reason."""
        if self._left_alone.get(job.uid) != why:
            self._left_alone[job.uid] = why
            logger.warning("words of the contract left out", extra={"job": job.uid, "error": why})
