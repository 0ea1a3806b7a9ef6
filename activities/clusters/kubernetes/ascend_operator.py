"""Strategies for the pods of an AscendJob, which other components manage: the Ascend Operator creates them, Volcano deletes them,
and annotations and labels request both.

Every call ends in the same state, however often it is repeated and wherever the previous one was interrupted. A component that
does not answer is not waited for long. Volcano is asked only for what it would do to this job; the rest is done directly. Volcano
chooses the nodes, as it knows the faulty ones.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import REPLICA_INDEX, Places, PodAccess, Workload
from activities.clusters.kubernetes.missing_rank import LostRank, is_active, is_backup
from activities.clusters.kubernetes.objects import node_of
from activities.clusters.kubernetes.pod_operations import is_on, path_of
from rekindle.errors import Conflict, NotFound
from rekindle.model.job import SubHealthStrategy
from rekindle.model.keys import (
    BACKUP_SOURCE,
    PLATFORM_STRATEGY,
    POD_TYPE,
    PROCESS_RECOVER_ENABLE,
    RANK_INDEX,
    REPLICA_TYPE,
    SUB_HEALTHY_STRATEGY,
)
from rekindle.model.sizes import LONGEST_RANK
from rekindle.policy.detection.sighting import is_lost

IN_HOT_SWITCH = "inHotSwitchFlow"
"""Annotation of the old pod and of its backup, from the first step to the last."""

ASK_OPERATOR = "needOperatorOpe"
"""Annotation: `create` on the old pod, `delete` on the backup pod."""

ASK_VOLCANO = "needVolcanoOpe"
"""Annotation of the old pod: `delete`."""

BACKUP_NAME = "backupNewPodName"
"""Annotation of the old pod that names its backup. The Operator writes it after it has created the backup."""

FAULT_TYPE = "fault-type"
"""Label of a pod with the reason why Volcano should treat it as faulty."""

FAULT_SCHEDULING = "fault-scheduling"
"""Label of a job: `force` or `grace`; with any other value Volcano deletes none of its pods."""

POD_RESCHEDULING = "pod-rescheduling"
"""Label of a job: with `on`, Volcano at first keeps pods that are not faulty."""

UPPER_LIMIT = "huawei.com/recover_policy_path"
"""Annotation of a job: with `pod`, Volcano always keeps pods that are not faulty."""

MARKS = (IN_HOT_SWITCH, ASK_OPERATOR, ASK_VOLCANO, BACKUP_NAME, BACKUP_SOURCE)
"""Annotations of a hot switch. The pods of a job without a hot switch have none of them."""

PROMOTED_MARKS = (POD_TYPE, *MARKS)

BACKUP_MADE = 6.0
"""Seconds to wait for the Operator to create a backup pod. It reconciles at once; if it takes longer, the activity is retried."""

BACKUP_NAMED = 1.0
"""Seconds to wait for the Operator to name the backup on the old pod.

It does this right after it has created the backup. Later than that, its second write failed, and would be repeated with a second
backup pod.
"""

ASKED_BEFORE = 1.0
"""Seconds in which a backup may still appear after its request was withdrawn, because the Operator had already begun."""

DELETED_BY_OTHERS = 5.0
"""Seconds until Volcano or the Operator has deleted what it was asked to. Volcano looks once a second; a training side that waits
for its order has 30 s in all."""

PROMOTED_BY_OPERATOR = 2.0
"""Seconds to wait for the Operator to notice the end of the old pod.

If it missed the event it never will, and considers the rank empty.
"""

SWEPT = 9.0
"""Seconds for the whole clean-up; less than the activity's time, so that the error says what is left."""

RECREATED = 9.0
"""Seconds to wait for the Operator to recreate the job's pods; less than the activity's time."""

logger = logging.getLogger("cluster")


@dataclass(frozen=True)
class AskedByMarks:
    """Strategy for pods that the Ascend Operator counts.

    The Operator creates and deletes backups, and Volcano deletes the old pod.
    """

    labels: ClassVar[tuple[str, ...]] = ()
    finalizers: ClassVar[tuple[str, ...]] = ()
    makes_pods: ClassVar[bool] = True

    async def ensure_backup(self, ops: PodAccess, job: Workload, old: Object, name: str, avoid_nodes: Sequence[str]) -> Object:
        """Returns the backup pod.

        The Operator chooses its name, and Volcano its node, avoiding nodes that it knows to be faulty.
        """
        pods = await ops.reader.pods(job)
        if not _backups(pods, old):
            await self._ask_for_backup(ops, _now(pods, old))
            pods = await ops.reader.until(job, lambda pods: bool(_backups(pods, old)), BACKUP_MADE)
        if not _backups(pods, old):
            raise Conflict(f"the Ascend Operator made no backup of pod {old['metadata']['name']} within {BACKUP_MADE:g} s")
        pods = await ops.reader.until(job, lambda pods: _named(pods, old) is not None, BACKUP_NAMED)
        return await self._keep_one(ops, pods, old)

    async def _ask_for_backup(self, ops: PodAccess, old: Object) -> None:
        """Asks the Operator for a backup, once.

        A repeated request would create a second backup, so the patch requires the resource version that was read.
        """
        marks = _annotations(old)
        if marks.get(ASK_OPERATOR) == "create" and marks.get(IN_HOT_SWITCH) == "true":
            return
        asking = {IN_HOT_SWITCH: "true", ASK_OPERATOR: "create", ASK_VOLCANO: None, BACKUP_NAME: None}
        change = {"resourceVersion": old["metadata"]["resourceVersion"], "annotations": asking}
        await ops.api.patch(path_of(old), {"metadata": change})

    async def _keep_one(self, ops: PodAccess, pods: Sequence[Object], old: Object) -> Object:
        """Repairs the state that a failed patch of the Operator leaves: one backup pod is kept, and the old pod names it."""
        backups = _backups(pods, old)
        if not backups:
            raise Conflict(f"the backup of pod {old['metadata']['name']} is gone")
        kept = _named(pods, old) or _called(backups, _annotations(_now(pods, old)).get(BACKUP_NAME, "")) or backups[0]
        for extra in backups:
            if extra is not kept:  # at its end the Operator would remove the marks of the old pod, if it knew that pod
                await mark(ops, extra, {ASK_OPERATOR: "delete", BACKUP_SOURCE: None})
        if _named(pods, old) is None:
            await mark(ops, old, {IN_HOT_SWITCH: "true", ASK_OPERATOR: None, BACKUP_NAME: kept["metadata"]["name"]})
        return kept

    async def ensure_replacement(
        self, ops: PodAccess, job: Workload, lost: LostRank, name: str, avoid_nodes: Sequence[str]
    ) -> Object:
        """Waits for the pod that replaces a lost one.

        The Operator creates it by itself, as the pod of its rank, when the lost one is gone. A second pod beside it, as for a hot
        switch, would not help. Volcano may have placed it on a node that is to be avoided.
        """
        if lost.old and not await self._may_live(ops, lost.old):
            await ops.delete(lost.old, 0)

        def made(pods: Sequence[Object]) -> list[Object]:
            return [pod for pod in _holders(pods) if _annotations(pod).get(RANK_INDEX) == str(lost.rank)]

        pods = made(await ops.reader.until(job, lambda pods: bool(made(pods)), RECREATED))
        if not pods:
            raise Conflict(f"the Ascend Operator has not recreated the pod of rank {lost.rank} of AscendJob {job.name} yet")
        return pods[0]

    async def _may_live(self, ops: PodAccess, pod: Object) -> bool:
        try:
            node = await ops.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}") if is_active(pod) else None
        except NotFound:
            return False
        return node is not None and not is_lost(node_of(node))

    async def ensure_promoted(self, ops: PodAccess, job: Workload, pod: Object) -> None:
        """Promotes a backup pod to the pod of its rank.

        Deletes the other pods of the rank: a second backup, or one that the Operator created meanwhile.
        """
        uid = pod["metadata"]["uid"]
        pods = await ops.reader.until(job, lambda pods: not is_backup(_now(pods, pod)), PROMOTED_BY_OPERATOR)
        current = _now(pods, pod)
        if is_backup(current):
            logger.warning(
                "backup pod promoted in place of the Operator",
                extra={"job": job.uid, "pod": current["metadata"]["name"], "asked": "the Operator"},
            )
        await _unmark(ops, current, PROMOTED_MARKS)
        for other in await ops.reader.pods(job):
            if _place(other) == _place(current) and other["metadata"]["uid"] != uid and not _terminating(other):
                await self.ensure_deleted(ops, job, other, 0)

    async def ensure_deleted(self, ops: PodAccess, job: Workload, pod: Object, grace_seconds: int) -> None:
        """Deletes a pod through the component that the contract names.

        Deletes it directly if that component does not answer or no component is responsible.
        """
        if _terminating(pod):
            await ops.delete(pod, grace_seconds)
        elif is_backup(pod):
            await self._end_backups(ops, job, [pod], grace_seconds)
        elif _annotations(pod).get(IN_HOT_SWITCH) == "true" and _would_end_only(await _group(ops, job), pod):
            await mark(ops, pod, {ASK_VOLCANO: "delete"}, {FAULT_TYPE: "SubHealth"})
            await self._see_deleted(ops, job, [pod], "Volcano", 0)
        else:
            await ops.delete(pod, grace_seconds)

    async def _end_backups(self, ops: PodAccess, job: Workload, backups: Sequence[Object], grace_seconds: int) -> None:
        """Deletes backups. One that was promoted meanwhile is the pod of its rank, and stays."""
        for backup in backups:
            await mark(ops, backup, {ASK_OPERATOR: "delete"})
        await self._see_deleted(ops, job, backups, "the Operator", grace_seconds)

    async def _see_deleted(self, ops: PodAccess, job: Workload, doomed: Sequence[Object], asked: str, grace_seconds: int) -> None:
        """Waits until another component has deleted the pods.

        Deletes those that are left, as that component may be unavailable.
        """
        was = {pod["metadata"]["uid"]: is_backup(pod) for pod in doomed}

        def left(pods: Iterable[Object]) -> list[Object]:
            return [pod for pod in pods if was.get(pod["metadata"]["uid"]) is is_backup(pod)]

        for pod in left(await ops.reader.until(job, lambda pods: not left(pods), DELETED_BY_OTHERS)):
            logger.warning(
                "pod deleted in place of the Operator", extra={"job": job.uid, "pod": pod["metadata"]["name"], "asked": asked}
            )
            await ops.delete(pod, grace_seconds)

    async def ensure_no_backups(self, ops: PodAccess, job: Workload, pods: Sequence[Object], grace_seconds: int) -> None:
        """Deletes all backups.

        Requests are withdrawn first, so that no new backup is created meanwhile; then the pods are checked again.
        """
        try:
            async with asyncio.timeout(SWEPT):
                while any(_needs_sweeping(pod) for pod in pods):
                    with suppress(Conflict):  # the name belongs to another pod meanwhile
                        await self._sweep(ops, job, pods, grace_seconds)
                    pods = await ops.reader.pods(job)
        except TimeoutError:
            left = ", ".join(pod["metadata"]["name"] for pod in pods if _needs_sweeping(pod))
            raise Conflict(f"a hot switch has left its marks on {left}") from None

    async def _sweep(self, ops: PodAccess, job: Workload, pods: Sequence[Object], grace_seconds: int) -> None:
        asked = any(_annotations(pod).get(ASK_OPERATOR) == "create" for pod in pods)
        for pod in pods:
            if not is_backup(pod):
                await _unmark(ops, pod, MARKS)
        if asked:
            pods = await ops.reader.until(job, lambda pods: any(is_backup(pod) for pod in pods), ASKED_BEFORE)
        if backups := [pod for pod in pods if is_backup(pod) and not _terminating(pod)]:
            await self._end_backups(ops, job, backups, grace_seconds)


@dataclass(frozen=True)
class StoppedByVolcano:
    suspend: ClassVar[tuple[str, ...]] = ()

    async def ensure_stopped(
        self, ops: PodAccess, job: Workload, pods: Sequence[Object], grace_seconds: int, lost_nodes: Collection[str] = ()
    ) -> None:
        """Stops all pods of the job.

        With a grace period, Volcano deletes them: the first rank is marked as faulty, which means all pods while
        process-level recovery is paused. The mark `SubHealth` does not work, as the sub-health strategy may be `ignore` by
        now. Without a grace period, the pods are deleted directly. A pod on a lost node is deleted at once: its mark would
        disappear with it before Volcano looks.
        """
        await switch_recovery(ops, job, "on", "pause")
        stays = (pod for pod in pods if _holds_rank(pod) and not is_on(pod, lost_nodes))
        first = min(stays, key=lambda pod: int(_annotations(pod)[RANK_INDEX]), default=None)
        for manager in await ops.reader.managers(job):
            await ops.delete(manager, grace_seconds)
        if not grace_seconds or not first or not _would_end_all(await _group(ops, job), first):
            for pod in pods:
                await ops.delete(pod, 0 if is_on(pod, lost_nodes) else grace_seconds)
            return
        for pod in pods:
            if is_backup(pod):
                await mark(ops, pod, {ASK_OPERATOR: "delete"})
            else:
                await _unmark(ops, pod, MARKS)
        await mark(ops, first, {}, {FAULT_TYPE: "Separate"})
        for pod in pods:
            if is_on(pod, lost_nodes):
                await ops.delete(pod, 0)

    async def let_go(self, ops: PodAccess, job: Workload) -> None:
        await switch_recovery(ops, job, "pause", "on")

    async def ensure_pods(self, ops: PodAccess, job: Workload, generation: str, places: Places) -> list[Object]:
        """Waits until the Operator has created the missing pods. It numbers generations by itself."""
        count = sum(template.pods for template in job.templates)
        pods = await ops.reader.until(job, lambda pods: len(_holders(pods)) >= count, RECREATED)
        if (there := len(_holders(pods))) < count:
            raise Conflict(f"{there} of {count} pods of AscendJob {job.name} are there")
        await switch_recovery(ops, job, "pause", "on")
        for pod in pods:
            if is_backup(pod):
                await ops.delete(pod, 0)
        return _holders(pods)


# ---- what both do


async def switch_recovery(ops: PodAccess, job: Workload, before: str, after: str) -> None:
    """Changes the label of process-level recovery from `before` to `after`. A job without the label is left unchanged."""
    with suppress(NotFound):
        if await _said(ops, job) != before:
            return
        await ops.api.patch(pod_group(job), {"metadata": {"labels": {PROCESS_RECOVER_ENABLE: after}}})


async def is_recovery_paused(ops: PodAccess, job: Workload) -> bool:
    """Returns whether process-level recovery is on `pause`: Volcano restarts the job as a whole."""
    return await _said(ops, job) == "pause"


async def _said(ops: PodAccess, job: Workload) -> str | None:
    return _labels(await _group(ops, job)).get(PROCESS_RECOVER_ENABLE)


async def _group(ops: PodAccess, job: Workload) -> Object:
    """Returns the job's PodGroup; an empty object if there is none."""
    try:
        return await ops.api.get(pod_group(job))
    except NotFound:
        return {"metadata": {}}


async def mark(
    ops: PodAccess, pod: Object, annotations: dict[str, str | None], labels: dict[str, str | None] | None = None
) -> None:
    """Writes annotations and labels of a pod.

    A pod that is gone is ignored. A pod of the same name with another UID is a Conflict.
    """
    change = {"uid": pod["metadata"]["uid"], "annotations": annotations, "labels": labels or {}}
    with suppress(NotFound):
        await ops.api.patch(path_of(pod), {"metadata": change})


async def _unmark(ops: PodAccess, pod: Object, marks: Iterable[str]) -> None:
    annotations: dict[str, str | None] = {mark: None for mark in marks if mark in _annotations(pod)}
    labels: dict[str, str | None] = {FAULT_TYPE: None} if _is_called_sub_healthy(pod) else {}
    if annotations or labels:
        await mark(ops, pod, annotations, labels)


def pod_group(job: Workload) -> str:
    return f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{job.namespace}/podgroups/{job.name}-{job.uid}"


def _acts(group: Object) -> bool:
    """Returns whether Volcano currently deletes any pods of this job. Source: Volcano plugin."""
    configured = _labels(group).get(FAULT_SCHEDULING) in ("force", "grace") and PLATFORM_STRATEGY not in _annotations(group)
    return configured and group.get("status", {}).get("phase") in ("Running", "Unknown")


def _would_end_only(group: Object, pod: Object) -> bool:
    """Returns whether Volcano would delete this pod of a hot switch and no other pod."""
    alone = _labels(group).get(PROCESS_RECOVER_ENABLE) == "on" and not _leads(pod)
    asked = _labels(group).get(SUB_HEALTHY_STRATEGY) == SubHealthStrategy.HOT_SWITCH
    return _acts(group) and asked and (alone or _annotations(group).get(UPPER_LIMIT) == "pod")


def _would_end_all(group: Object, first: Object) -> bool:
    """Returns whether Volcano would delete all pods because of this one, while process-level recovery is paused."""
    together = _leads(first) or _labels(group).get(POD_RESCHEDULING) != "on"
    return _acts(group) and together and _annotations(group).get(UPPER_LIMIT) != "pod"


def _leads(pod: Object) -> bool:
    """Returns whether the pod is the leader of the job. If the leader is faulty, Volcano deletes all pods."""
    return _annotations(pod).get(RANK_INDEX) == "0" and _labels(pod).get(REPLICA_TYPE) != "worker"


def _labels(thing: Object) -> dict[str, str]:
    labels: dict[str, str] = thing["metadata"].get("labels", {})
    return labels


def _place(pod: Object) -> tuple[str | None, str | None]:
    """Returns the replica type and index by which the Operator counts a pod. A backup has those of its source."""
    return _labels(pod).get(REPLICA_TYPE), _labels(pod).get(REPLICA_INDEX)


def _annotations(thing: Object) -> dict[str, str]:
    annotations: dict[str, str] = thing["metadata"].get("annotations", {})
    return annotations


def _terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _now(pods: Iterable[Object], pod: Object) -> Object:
    """Returns the pod as it was last seen.

    Raises:
        NotFound: it is gone.
    """
    for known in pods:
        if known["metadata"]["uid"] == pod["metadata"]["uid"]:
            return known
    raise NotFound(f"pod {pod['metadata']['name']} is gone")


def _backups(pods: Iterable[Object], old: Object) -> list[Object]:
    """Returns the live backups of a pod, the oldest first.

    The place is compared too, as marks can leak into other pods of the Operator.
    """
    alive = (pod for pod in pods if is_backup(pod) and not _terminating(pod) and _place(pod) == _place(old))
    found = [pod for pod in alive if _annotations(pod).get(BACKUP_SOURCE) == old["metadata"]["name"]]
    return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))


def _named(pods: Sequence[Object], old: Object) -> Object | None:
    """Returns the backup that the old pod names, once the Operator has finished; None: there is none yet."""
    marks = _annotations(_now(pods, old))
    if ASK_OPERATOR in marks or marks.get(IN_HOT_SWITCH) != "true":
        return None
    return _called(_backups(pods, old), marks.get(BACKUP_NAME, ""))


def _called(pods: Iterable[Object], name: str) -> Object | None:
    return next((pod for pod in pods if pod["metadata"]["name"] == name), None)


def _is_called_sub_healthy(pod: Object) -> bool:
    return _labels(pod).get(FAULT_TYPE) == "SubHealth"


def _needs_sweeping(pod: Object) -> bool:
    if is_backup(pod):
        return not _terminating(pod)
    return _is_called_sub_healthy(pod) or any(mark in _annotations(pod) for mark in MARKS)


def _holds_rank(pod: Object) -> bool:
    rank = _annotations(pod).get(RANK_INDEX, "")
    return not is_backup(pod) and not _terminating(pod) and rank.isdecimal() and len(rank) <= LONGEST_RANK


def _holders(pods: Iterable[Object]) -> list[Object]:
    """Returns one live pod for each place of the job."""
    return list({_place(pod): pod for pod in pods if not is_backup(pod) and not _terminating(pod)}.values())
