"""Strategies for how a backup takes the place of a pod, depending on which controller counts the pods of the job.

For a controller that counts pods by their labels, two patches move a rank: one releases the old pod, one puts the backup in its
place. Their order depends on the controller: it must leave no pod too many.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import pod_objects as made
from activities.clusters.kubernetes.asking import DRY_RUN, is_refusal, words_of_controllers
from activities.clusters.kubernetes.kind import PodAccess, Workload, number, rank_of
from activities.clusters.kubernetes.missing_rank import LostRank, is_active, is_backup, is_terminating, lost_rank
from activities.clusters.kubernetes.pod_operations import CONTROLLER_LIMIT, job_id_of, path_of, pods_path, side_by_side, taken_as
from rekindle.errors import Conflict, Forbidden, Invalid, NotFound, Withheld
from rekindle.model import keys
from rekindle.settings import Settings

Unseen = Callable[[Workload, LostRank, Settings], Object | None]
"""Returns the pod of a rank of which nothing is left, as it was created; None: only its owner knows how."""


@dataclass(frozen=True)
class ByNobody:
    """Strategy for pods that no controller counts.

    A backup is a pod of the job from its creation, and the old pod until its deletion.
    """

    unseen: Unseen | None = None
    labels: ClassVar[tuple[str, ...]] = ()
    finalizers: ClassVar[tuple[str, ...]] = ()
    makes_pods: ClassVar[bool] = False

    async def ensure_backup(self, ops: PodAccess, job: Workload, old: Object, name: str, avoid_nodes: Sequence[str]) -> Object:
        return await _make_backup(ops, job, old, name, avoid_nodes)

    async def ensure_replacement(
        self, ops: PodAccess, job: Workload, lost: LostRank, name: str, avoid_nodes: Sequence[str]
    ) -> Object:
        if backup := _begun(lost, name):
            return backup
        template = _shown(lost) or (self.unseen and self.unseen(job, lost, ops.settings))
        if not template:
            raise Invalid(f"nothing is left of the pod of rank {lost.rank} of job {job.name}: who made it has to make it again")
        return await _make_replacement(ops, job, replace(lost, old=template), name, avoid_nodes)

    async def ensure_promoted(self, ops: PodAccess, job: Workload, pod: Object) -> None:
        await _unmark(ops, pod)

    async def ensure_deleted(self, ops: PodAccess, job: Workload, pod: Object, grace_seconds: int) -> None:
        await ops.delete(pod, grace_seconds)

    async def ensure_no_backups(self, ops: PodAccess, job: Workload, pods: Sequence[Object], grace_seconds: int) -> None:
        await ops.delete_all([pod for pod in pods if is_backup(pod)], grace_seconds)


@dataclass(frozen=True)
class ByLabels:
    """Strategy for pods that a controller counts by these labels. The controller creates a pod that is missing."""

    labels: tuple[str, ...]
    finalizers: tuple[str, ...] = ()
    lets_two_be: bool = False
    """True if the controller never deletes a second pod of an index, and fills an empty index at once."""

    place: tuple[str, ...] = ()
    """Labels that identify the pods of one index of one object.

    Set if the controller deletes one of two such pods by itself, but only after a delay.
    """

    unseen: Unseen | None = None
    makes_pods: ClassVar[bool] = True

    async def ensure_backup(self, ops: PodAccess, job: Workload, old: Object, name: str, avoid_nodes: Sequence[str]) -> Object:
        return await _make_backup(ops, job, old, name, avoid_nodes)

    async def ensure_replacement(
        self, ops: PodAccess, job: Workload, lost: LostRank, name: str, avoid_nodes: Sequence[str]
    ) -> Object:
        """Creates a backup that the controller counts at once, so that it creates no other pod.

        Deletes a pod that it had created before, so that its node is free for the backup.
        """
        backup = _begun(lost, name)
        if not backup:
            template = _shown(lost) or (self.unseen and self.unseen(job, lost, ops.settings))
            if not template:
                lost = await _filled(ops, job, lost, avoid_nodes)
            backup = await _make_replacement(ops, job, replace(lost, old=template or _shown(lost)), name, avoid_nodes)
        await self._take_place(ops, job, [pod for pod in (*lost.more, lost.old) if pod and is_active(pod)], backup)
        await ops.delete_all(lost.more, 0)
        return backup

    async def ensure_promoted(self, ops: PodAccess, job: Workload, pod: Object) -> None:
        await _join(ops, job, pod)
        await self._end_doubles(ops, job, pod)
        await _unmark(ops, pod)

    async def ensure_deleted(self, ops: PodAccess, job: Workload, pod: Object, grace_seconds: int) -> None:
        """Deletes a pod. If it has a backup, the controller counts the backup from now on."""
        selector = f"{made.BACKUP_OF}={pod['metadata']['uid']}"
        for backup in (await ops.api.list(pods_path(job.namespace), labelSelector=selector)).items:
            if not is_terminating(backup):
                await self._take_place(ops, job, [pod], backup)
        await ops.delete(pod, grace_seconds)

    async def ensure_no_backups(self, ops: PodAccess, job: Workload, pods: Sequence[Object], grace_seconds: int) -> None:
        """Deletes all backups.

        One that is counted already is released first, so that its end does not count as a failure of the job.
        """
        backups = [pod for pod in pods if is_backup(pod)]
        await side_by_side(_release(ops, job, pod) for pod in backups if made.controller_of(pod))
        await ops.delete_all(backups, grace_seconds)

    async def _take_place(self, ops: PodAccess, job: Workload, olds: Sequence[Object], backup: Object) -> None:
        if self.lets_two_be:
            await _join(ops, job, backup)
        for old in olds:
            await _release(ops, job, old)
        if not self.lets_two_be:
            await _join(ops, job, backup)

    async def _end_doubles(self, ops: PodAccess, job: Workload, backup: Object) -> None:
        """Deletes the pod that the controller may have created between the two patches of a hand-over, when the index was empty.

        Until one of both is deleted, two pods hold the rank. A pod that the controller counts must not fail.
        """
        labels = backup["metadata"].get("labels", {})
        if not (self.place and set(self.place) <= labels.keys()):
            return
        selector = ",".join(f"{label}={labels[label]}" for label in self.place)
        for pod in (await ops.api.list(pods_path(job.namespace), labelSelector=selector)).items:
            if pod["metadata"]["uid"] != backup["metadata"]["uid"] and made.controller_of(pod) and is_active(pod):
                await _release(ops, job, pod)
                await ops.delete(pod, 0)


# ---- what both do


async def _make_backup(ops: PodAccess, job: Workload, old: Object, name: str, avoid_nodes: Sequence[str]) -> Object:
    if claim := made.shared_claim(old):
        raise Invalid(
            f"pod {old['metadata']['name']} uses ResourceClaim {claim} by its name, whose devices are on its node; "
            "a pod that is to move needs a claim of its own (resourceClaimTemplateName)"
        )
    here = old["spec"].get("nodeName")
    avoid = {*avoid_nodes, *([here] if here else [])}
    body = await _backup_of(ops, job, old, name, avoid)
    taken = await ops.taken(job, body, avoid)
    return taken or await ops.create(job.namespace, body, lambda found: _is_backup_of(found, old))


async def _backup_of(ops: PodAccess, job: Workload, old: Object, name: str, avoid: Collection[str]) -> Object:
    affinity = made.placed(old["spec"].get("affinity", {}), avoid, await ops.topology(job, old))
    rank = rank_of(job, old, ops.settings.rank_keys)
    return made.backup_of(await ops.as_made(job, old), job, name, rank, affinity)


async def refusal_of_backup(ops: PodAccess, job: Workload, old: Object) -> str:
    """Returns why the API server would refuse a backup of this pod; empty: it would not."""
    body = await _backup_of(ops, job, old, "", ())
    named = {key: value for key, value in body["metadata"].items() if key != "name"}
    try:
        await ops.api.create(pods_path(job.namespace), {**body, "metadata": {**named, "generateName": DRY_RUN}}, dry_run=True)
    except (Forbidden, Invalid) as error:
        return str(error) if is_refusal(error) else ""
    return ""


def _begun(lost: LostRank, name: str) -> Object | None:
    """Returns the backup that an earlier call created; None: there is none."""
    return next((pod for pod in lost.backups if name in (pod["metadata"]["name"], taken_as(pod))), None)


def _shown(lost: LostRank) -> Object | None:
    """Returns a pod that a backup can be cloned from: the last one of the rank, or another pod of it; None: there is none."""
    return lost.old or next(iter(lost.more), None)


async def _make_replacement(ops: PodAccess, job: Workload, lost: LostRank, name: str, avoid_nodes: Sequence[str]) -> Object:
    """Creates a backup modelled on a lost pod, or on the last known state of one."""
    template = lost.old
    assert template
    same = await ops.topology(job, lost.neighbour or template)
    affinity = made.placed(template["spec"].get("affinity", {}), avoid_nodes, same)
    template = await ops.as_made(job, template) if template["metadata"].get("uid") else template
    body = made.backup_of(template, job, name, str(lost.rank), affinity)
    taken = await ops.taken(job, body, avoid_nodes)
    return taken or await ops.create(job.namespace, body, lambda found: is_backup(found) and job_id_of(found) == job.uid)


async def _filled(ops: PodAccess, job: Workload, lost: LostRank, lost_nodes: Sequence[str]) -> LostRank:
    """Waits until the controller has created a pod in place of one of which nothing is left, and returns the rank with it."""

    def seen(pods: Sequence[Object]) -> LostRank:
        return lost_rank(lost.rank, [(number(rank_of(job, pod, ops.settings.rank_keys)), pod) for pod in pods], lost_nodes)

    found = seen(await ops.reader.until(job, lambda pods: seen(pods).is_shown, CONTROLLER_LIMIT))
    if not found.is_shown and (words := await words_of_controllers(ops, job)):
        raise Withheld(f"{job.kind.name} {job.name} has no pod of rank {lost.rank}: {words}")
    if not found.is_shown:
        raise Conflict(f"{job.kind.name} {job.name} has no pod of rank {lost.rank}, and its controller has made none yet")
    return found


async def _release(ops: PodAccess, job: Workload, pod: Object) -> None:
    with suppress(NotFound):
        await ops.api.patch(path_of(pod), made.released(pod, job))


async def _join(ops: PodAccess, job: Workload, backup: Object) -> None:
    if change := made.joined(backup, job):
        await ops.api.patch(path_of(backup), change)


async def _unmark(ops: PodAccess, pod: Object) -> None:
    """Removes the marks of a backup from a pod that was promoted."""
    marks = (keys.POD_TYPE, keys.BACKUP_SOURCE, keys.TAKEN_AS)
    if any(mark in pod["metadata"].get("annotations", {}) for mark in marks):
        labels = dict.fromkeys((made.BACKUP_OF, keys.STANDBY_OF))
        change = {"uid": pod["metadata"]["uid"], "annotations": dict.fromkeys(marks), "labels": labels}
        await ops.api.patch(path_of(pod), {"metadata": change})


def _is_backup_of(pod: Object, old: Object) -> bool:
    return bool(pod["metadata"].get("labels", {}).get(made.BACKUP_OF) == old["metadata"]["uid"])
