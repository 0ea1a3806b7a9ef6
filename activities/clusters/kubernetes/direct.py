"""Pods of a job made, moved and ended by our own hand, beside whatever controller the job has.

A controller that counts its pods is told in two patches who holds a rank: the old pod is released and the backup takes its place,
in the order after which the controller leaves no pod too many. A restart of the whole job is suspend, change the template,
resume, as queueing systems do it; pods that nobody controls are remembered as PodTemplates.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Protocol, TypeVar

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes import pod_objects as made
from activities.clusters.kubernetes.kinds import (
    BARE,
    BATCH_JOB,
    BATCH_JOB_NAME,
    COMPLETION_INDEX,
    TRAINING_JOB,
    Workload,
    rank_of,
)
from activities.clusters.kubernetes.lost_rank import LostRank, is_active, is_backup, is_standby, lost_rank
from activities.clusters.kubernetes.objects import failure_of
from activities.clusters.kubernetes.pod_objects import Places
from activities.clusters.kubernetes.reader import Reader
from rekindle.errors import Conflict, Forbidden, Invalid, NotFound
from rekindle.model import keys
from rekindle.model.sizes import LONGEST_RANK
from rekindle.settings import Settings

AT_ONCE = 20
"""Requests in flight: the API server's own share for one client is about that."""

CONTROLLER_LIMIT = 9.0
"""Seconds to wait for what a controller should do; less than the activity's time, so that it says what it waited for."""

T = TypeVar("T")


class Driver(Protocol):
    """What a job's pods need of whoever makes them. Objects are the API server's; every call may be repeated."""

    async def ensure_backup(self, job: Workload, old: Object, name: str, avoid_nodes: Sequence[str]) -> Object: ...

    async def ensure_replacement(self, job: Workload, lost: LostRank, name: str, avoid_nodes: Sequence[str]) -> Object: ...

    async def ensure_promoted(self, job: Workload, pod: Object) -> None: ...

    async def ensure_deleted(self, job: Workload, pod: Object, grace_seconds: int) -> None: ...

    async def ensure_no_backups(self, job: Workload, pods: Sequence[Object], grace_seconds: int) -> None: ...

    async def ensure_stopped(
        self, job: Workload, pods: Sequence[Object], grace_seconds: int, lost_nodes: Collection[str] = ()
    ) -> None: ...

    async def ensure_pods(self, job: Workload, generation: str, places: Places) -> list[Object]: ...

    async def ensure_metadata(self, job: Workload, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None: ...


class DirectDriver:
    def __init__(self, api: Api, reader: Reader, settings: Settings) -> None:
        self._api, self._reader, self._settings = api, reader, settings

    # ---- hot switch

    async def ensure_backup(self, job: Workload, old: Object, name: str, avoid_nodes: Sequence[str]) -> Object:
        if claim := made.shared_claim(old):
            raise Invalid(
                f"pod {old['metadata']['name']} uses ResourceClaim {claim} by its name, whose devices are on its node; "
                "a pod that is to move needs a claim of its own (resourceClaimTemplateName)"
            )
        here = old["spec"].get("nodeName")
        same, avoid = await self._topology(job, old), {*avoid_nodes, *([here] if here else [])}
        affinity = made.placed(old["spec"].get("affinity", {}), avoid, same)
        body = made.backup_of(old, job, name, rank_of(job, old, self._settings.rank_keys), affinity)
        taken = await self._taken(job, body, avoid)
        return taken or await self._create(job.namespace, body, lambda found: _is_backup_of(found, old))

    async def ensure_replacement(self, job: Workload, lost: LostRank, name: str, avoid_nodes: Sequence[str]) -> Object:
        """A controller counts the backup at once, so that it makes no other pod: nobody is to be rescued by one. A pod that it
        had made before goes, and its node is free for the backup."""
        backup = next((pod for pod in lost.backups if name in (pod["metadata"]["name"], _taken_as(pod))), None)
        if not backup:
            if not (lost.is_shown or self._never_seen(job, lost)):
                lost = await self._filled(job, lost, avoid_nodes)
            backup = await self._replace(job, lost, name, avoid_nodes)
        if job.kind.withheld:
            await self._take_place(job, [pod for pod in (*lost.more, lost.old) if pod and is_active(pod)], backup)
            await self._delete_all(lost.more, 0)
        return backup

    async def _replace(self, job: Workload, lost: LostRank, name: str, avoid_nodes: Sequence[str]) -> Object:
        template = lost.old or next(iter(lost.more), None) or self._never_seen(job, lost)
        assert template
        affinity = template["spec"].get("affinity", {})
        same = await self._topology(job, lost.neighbour or template)
        body = made.backup_of(template, job, name, str(lost.rank), made.placed(affinity, avoid_nodes, same))
        taken = await self._taken(job, body, avoid_nodes)
        return taken or await self._create(job.namespace, body, lambda found: is_backup(found) and _job_id(found) == job.uid)

    def _never_seen(self, job: Workload, lost: LostRank) -> Object | None:
        """The pod of a rank that nothing is left of, as it was made, in the life that the others say. None: only its controller
        knows how."""
        if job.kind is BATCH_JOB and lost.neighbour:
            return made.of_index(lost.neighbour, job, lost.rank)
        if job.kind.withheld:
            return None
        if job.kind is not TRAINING_JOB:
            raise Invalid(f"nothing is left of the pod of rank {lost.rank} of job {job.name}: who made it has to make it again")
        if not lost.others:
            raise NotFound(f"no pod of job {job.name} is left: it starts anew or not at all")
        youngest = max(lost.others, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        wanted = made.pods_of_training_job(job, _generation(youngest), Places(), self._settings.gateway_address)
        return next(pod for pod in wanted if pod["metadata"]["annotations"].get(keys.RANK_INDEX) == str(lost.rank))

    async def _filled(self, job: Workload, lost: LostRank, lost_nodes: Sequence[str]) -> LostRank:
        """The rank as soon as its controller has made a pod in the place of one of which nothing is left."""

        def seen(pods: Sequence[Object]) -> LostRank:
            return lost_rank(lost.rank, [(_number(rank_of(job, pod, self._settings.rank_keys)), pod) for pod in pods], lost_nodes)

        found = seen(await self._reader.until(job, lambda pods: seen(pods).is_shown, CONTROLLER_LIMIT))
        if not found.is_shown:
            raise Conflict(f"{job.kind.name} {job.name} has no pod of rank {lost.rank}, and its controller has made none yet")
        return found

    async def _topology(self, job: Workload, pod: Object) -> list[tuple[str, str]]:
        key, node = made.topology_of(job, pod), pod["spec"].get("nodeName")
        if not key or not node:
            return []
        labels = (await self._api.get(f"/api/v1/nodes/{node}"))["metadata"].get("labels", {})
        if key not in labels:
            raise Invalid(f"node {node} has no label {key}, which the job's annotation {keys.TOPOLOGY} names")
        return [(key, labels[key])]

    # ---- standbys

    async def _taken(self, job: Workload, backup: Object, avoid_nodes: Collection[str]) -> Object | None:
        """A standby that is this backup pod from now on, or was made so before; None: there is none, or the backup pod itself was
        made before."""
        pods, name = f"/api/v1/namespaces/{job.namespace}/pods", backup["metadata"]["name"]
        listed = (await self._api.list(pods, labelSelector=f"{keys.STANDBY_OF}={job.uid}")).items
        living = [pod for pod in listed if not pod["metadata"].get("deletionTimestamp")]
        if before := next((pod for pod in living if _taken_as(pod) == name), None):
            return before
        ready = [pod for pod in living if made.may_stand_in(pod, backup, avoid_nodes)]
        if not ready or await self._is_there(f"{pods}/{name}"):
            return None
        for standby in ready:
            with suppress(NotFound):
                return await self._api.patch(path_of(standby), made.taken(standby, backup))
        return None

    async def _is_there(self, path: str) -> bool:
        try:
            await self._api.get(path)
        except NotFound:
            return False
        return True

    async def ensure_standbys(
        self, job: Workload, model: Object | None, names: Sequence[str], avoid_nodes: Sequence[str], surplus: Sequence[Object]
    ) -> list[Object]:
        """Ends the surplus, and makes standbys of these names after a pod."""
        await self._delete_all(surplus, 0)
        if not (model and names):
            return []
        affinity = made.placed(model["spec"].get("affinity", {}), avoid_nodes, await self._topology(job, model))
        bodies = [made.standby_of(model, job, name, affinity, self._settings.rank_keys) for name in names]
        return await _all(self._create_standby(job, body) for body in bodies)

    async def _create_standby(self, job: Workload, body: Object) -> Object:
        """Where the priority class is not installed, it has its model's."""

        def same(found: Object) -> bool:
            return _job_id(found) == job.uid and keys.STANDBY_OF in found["metadata"].get("labels", {})

        try:
            return await self._create(job.namespace, body, same)
        except Forbidden as error:
            if made.STANDBY_CLASS not in str(error):
                raise
        spec = {key: value for key, value in body["spec"].items() if key != "priorityClassName"}
        own = body["metadata"]["annotations"].get(made.OWN_CLASS)
        return await self._create(job.namespace, {**body, "spec": {**spec, **({"priorityClassName": own} if own else {})}}, same)

    # ---- the hand-over

    async def ensure_promoted(self, job: Workload, pod: Object) -> None:
        await self._join(pod)
        await self._end_doubles(job, pod)
        marks = (keys.POD_TYPE, keys.BACKUP_SOURCE, keys.TAKEN_AS)
        if any(mark in pod["metadata"].get("annotations", {}) for mark in marks):
            labels = dict.fromkeys((made.BACKUP_OF, keys.STANDBY_OF))
            change = {"uid": pod["metadata"]["uid"], "annotations": dict.fromkeys(marks), "labels": labels}
            await self._api.patch(path_of(pod), {"metadata": change})

    async def ensure_deleted(self, job: Workload, pod: Object, grace_seconds: int) -> None:
        if job.kind.withheld:
            await self._hand_over(job, pod)
        await self._delete(pod, grace_seconds)

    async def _hand_over(self, job: Workload, old: Object) -> None:
        """The controller counts the backup from now on, if there is one."""
        selector = f"{made.BACKUP_OF}={old['metadata']['uid']}"
        for backup in (await self._api.list(f"/api/v1/namespaces/{job.namespace}/pods", labelSelector=selector)).items:
            if not backup["metadata"].get("deletionTimestamp"):
                await self._take_place(job, [old], backup)

    async def _take_place(self, job: Workload, olds: Sequence[Object], backup: Object) -> None:
        if job.kind.lets_two_be:
            await self._join(backup)
        for old in olds:
            await self._release(job, old)
        if not job.kind.lets_two_be:
            await self._join(backup)

    async def _release(self, job: Workload, pod: Object) -> None:
        with suppress(NotFound):
            await self._api.patch(path_of(pod), made.released(pod, job))

    async def _join(self, backup: Object) -> None:
        if change := made.joined(backup):
            await self._api.patch(path_of(backup), change)

    async def _end_doubles(self, job: Workload, backup: Object) -> None:
        """A Job's controller that looked between the two patches of the hand-over made a pod for the empty index. It ends one of
        the two by itself, but a second later, and until then two pods hold the rank. One that it counts must not fail."""
        labels = backup["metadata"].get("labels", {})
        if not {BATCH_JOB_NAME, COMPLETION_INDEX} <= labels.keys():
            return
        selector = f"{BATCH_JOB_NAME}={labels[BATCH_JOB_NAME]},{COMPLETION_INDEX}={labels[COMPLETION_INDEX]}"
        for pod in (await self._api.list(f"/api/v1/namespaces/{job.namespace}/pods", labelSelector=selector)).items:
            if pod["metadata"]["uid"] != backup["metadata"]["uid"] and made.controller_of(pod) and is_active(pod):
                await self._release(job, pod)
                await self._delete(pod, 0)

    async def ensure_no_backups(self, job: Workload, pods: Sequence[Object], grace_seconds: int) -> None:
        """One that is counted already is released first: its end is no failure of the job."""
        backups = [pod for pod in pods if is_backup(pod)]
        if job.kind.withheld:
            await _all(self._release(job, pod) for pod in backups if made.controller_of(pod))
        await self._delete_all(backups, grace_seconds)

    # ---- the whole job

    async def ensure_stopped(
        self, job: Workload, pods: Sequence[Object], grace_seconds: int, lost_nodes: Collection[str] = ()
    ) -> None:
        await self._delete_all([pod for pod in pods if is_standby(pod)], 0)  # so that their nodes are free
        if job.kind.suspend:
            _refuse_held(job)
            mark = {"uid": job.uid, "annotations": {keys.STOPPED: "yes"}}
            await self._api.patch(job.path, {"metadata": mark, "spec": _nested(job.kind.suspend, True)})
            if not failure_of(job):  # then its controller does nothing any more
                await self._given_up(job)
            await self._delete_all(await self._reader.managers(job), grace_seconds)
        if job.kind is BARE:
            await _all(self._remember(pod) for pod in pods if not is_backup(pod))
        # Managers last: one that goes while workers train is made anew by the controller of our own jobs.
        for group in ([pod for pod in pods if not made.is_manager(pod)], [pod for pod in pods if made.is_manager(pod)]):
            await _all(self._delete(pod, 0 if is_on(pod, lost_nodes) else grace_seconds) for pod in group)

    async def _given_up(self, job: Workload) -> None:
        """Its controller has ended its pods itself: one that we end first may count as failed, and fail the job for good."""

        def kept(pods: Sequence[Object]) -> list[Object]:
            return [pod for pod in pods if made.controller_of(pod) and is_active(pod)]

        pods = await self._reader.until(job, lambda pods: not kept(pods), CONTROLLER_LIMIT)
        if left := kept(pods):
            name = left[0]["metadata"]["name"]
            raise Conflict(f"{job.kind.name} {job.name} is suspended, and its controller has not ended pod {name} yet")

    async def ensure_pods(self, job: Workload, generation: str, places: Places) -> list[Object]:
        if problem := failure_of(job):
            raise Invalid(f"{job.kind.name} {job.name} has failed for good: {problem}")
        there = await self._reader.pods(job)
        if job.was_resumed:
            await self.ensure_metadata(job, {}, {keys.STOPPED: "resumed"})
        late = [pod for pod in there if is_standby(pod) and not _is_new(pod, job, generation)]
        await self._delete_all(late, 0)  # somebody made them while the job was stopped
        if left := [pod for pod in there if not _is_new(pod, job, generation)]:
            raise Conflict(f"pod {left[0]['metadata']['name']} of job {job.name} is still there")
        if job.kind is TRAINING_JOB:
            wanted = made.pods_of_training_job(job, generation, places, self._settings.gateway_address)
            return await self._create_all(job, wanted)
        if job.kind is BARE:
            return await self._bring_back(job, there, generation, places)
        await self._resume(job, generation, places)
        return await self._made_by_the_controller(job, generation)

    async def _create_all(self, job: Workload, wanted: Sequence[Object]) -> list[Object]:
        """Each once. A name that another life of the pod has, or a job of this name that was deleted, is a Conflict. What refuses
        one of thousands, such as a quota, is not asked for all of them."""

        def same(body: Object) -> Callable[[Object], bool]:
            return lambda found: (_generation(found), _job_id(found)) == (_generation(body), _job_id(body))

        refused = asyncio.Event()

        async def made_if_others_are(body: Object) -> list[Object]:
            if refused.is_set():
                return []
            try:
                return [await self._create(job.namespace, body, same(body))]
            except Exception:
                refused.set()
                raise

        return [pod for pods in await _all(made_if_others_are(body) for body in wanted) for pod in pods]

    async def _create(self, namespace: str, body: Object, is_ours: Callable[[Object], bool]) -> Object:
        try:
            return await self._api.create(f"/api/v1/namespaces/{namespace}/pods", body)
        except Conflict:
            found = await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{body['metadata']['name']}")
            if not is_ours(found) or found["metadata"].get("deletionTimestamp"):
                raise
            return found

    # ---- suspend, change, resume

    async def _resume(self, job: Workload, generation: str, places: Places) -> None:
        if not job.is_suspended:
            return
        _refuse_held(job)
        spec = deepcopy(job.object["spec"])
        if job.kind.makes_jobs:
            for part in await self._reader.parts(job):
                template = deepcopy(part.object["spec"]["template"])
                _change_template(template, generation, places)
                await self._change_suspended(part, {"template": template})
            await self._change_suspended(job, _nested(job.kind.suspend, False))
            return
        for one in job.kind.templates(spec):
            _change_template(one.body, generation, places)
        await self._change_suspended(job, {**spec, **_nested_in(spec, job.kind.suspend)})

    async def _change_suspended(self, job: Workload, spec: Object) -> None:
        """Only as it was read; that it was we who stopped it is over with that."""
        if job.kind is BATCH_JOB:
            job = await self._never_started(job)
        metadata = {**_as_read(job), "annotations": {keys.STOPPED: None}}
        await self._api.patch(job.path, {"metadata": metadata, "spec": spec})

    async def _never_started(self, job: Workload) -> Workload:
        """Before Kubernetes 1.36 the template of a suspended Job can be changed only if it seems never to have started, so its
        start is forgotten; from then on its controller does so itself. Source: KEP-2926, and how JobSet resumes its Jobs."""
        status = job.object.get("status", {})
        if not status.get("startTime"):
            return job
        if not any(one["type"] == "Suspended" and one["status"] == "True" for one in status.get("conditions", ())):
            raise Conflict(f"Job {job.name} is told to suspend, and its controller has not said yet that it is")
        change = {"metadata": _as_read(job), "status": {"startTime": None}}
        return Workload(job.kind, await self._api.patch(f"{job.path}/status", change))

    async def _made_by_the_controller(self, job: Workload, generation: str) -> list[Object]:
        expected = sum(template.pods for template in job.templates)

        def new(pods: Sequence[Object]) -> list[Object]:
            return [pod for pod in pods if _is_new(pod, job, generation)]

        pods = new(await self._reader.until(job, lambda pods: len(new(pods)) >= expected, CONTROLLER_LIMIT))
        if len(pods) < expected:
            raise Conflict(f"{len(pods)} of {expected} pods of {job.kind.name} {job.name} are there")
        return pods

    # ---- pods that nobody controls

    async def _remember(self, pod: Object) -> None:
        try:
            await self._api.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/podtemplates", made.remembered(pod))
        except Conflict:
            return

    async def _bring_back(self, job: Workload, there: Sequence[Object], generation: str, places: Places) -> list[Object]:
        path = f"/api/v1/namespaces/{job.namespace}/podtemplates"
        templates = (await self._api.list(path, labelSelector=f"{keys.JOB_ID}={job.uid}")).items
        if not templates and not there:
            raise NotFound(f"nothing is known of the pods of job {job.name}: neither they nor their templates are there")
        pods = await self._create_all(job, [made.brought_back(template, generation, places) for template in templates])
        for template in templates:
            await self._api.delete(f"{path}/{template['metadata']['name']}", template["metadata"]["uid"])
        return list({pod["metadata"]["uid"]: pod for pod in [*there, *pods]}.values())

    # ---- all kinds

    async def ensure_metadata(self, job: Workload, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        path, very = job.path, {"uid": job.uid}
        if job.kind is BARE:
            path, very = f"/api/v1/namespaces/{job.namespace}/pods/{job.object['status']['speaker']}", {}
        await self._api.patch(path, {"metadata": {**very, "labels": labels, "annotations": annotations}})

    async def _delete_all(self, pods: Sequence[Object], grace_seconds: int) -> None:
        await _all(self._delete(pod, grace_seconds) for pod in pods)

    async def _delete(self, pod: Object, grace_seconds: int) -> None:
        await delete_pod(self._api, pod, grace_seconds)


async def delete_pod(api: Api, pod: Object, grace_seconds: int) -> None:
    """Asks for its end; one that is gone, or that another has taken the name of, has ended."""
    try:
        await api.delete(path_of(pod), pod["metadata"]["uid"], grace_seconds)
    except (NotFound, Conflict):
        return


def is_on(pod: Object, nodes: Collection[str]) -> bool:
    return pod["spec"].get("nodeName") in nodes


def path_of(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _taken_as(pod: Object) -> str:
    return str(pod["metadata"].get("annotations", {}).get(keys.TAKEN_AS, ""))


def _is_backup_of(pod: Object, old: Object) -> bool:
    return bool(pod["metadata"].get("labels", {}).get(made.BACKUP_OF) == old["metadata"]["uid"])


def _as_read(job: Workload) -> Object:
    """Metadata of a change that is refused when somebody else was faster."""
    return {"resourceVersion": job.metadata["resourceVersion"]}


def _refuse_held(job: Workload) -> None:
    """Raises: Invalid when somebody else keeps the job from running: its owner, or a queue that has given its place away."""
    if job.is_held:
        raise Invalid(f"{job.kind.name} {job.name} is suspended, and not by a restart: who suspended it resumes it")


def _is_new(pod: Object, job: Workload, generation: str) -> bool:
    """Whether it lives and is of this life of the job. Who resumes a job himself says no generation; its old pods are gone."""
    said = job.was_resumed or _generation(pod) == generation
    return said and not pod["metadata"].get("deletionTimestamp")


def _number(rank: str) -> int | None:
    return int(rank) if rank.isdecimal() and len(rank) <= LONGEST_RANK else None


def _generation(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get(keys.GENERATION, "0"))


def _job_id(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get(keys.JOB_ID, ""))


def _change_template(body: Object, generation: str, places: Places) -> None:
    """In place: the label of the generation, and the nodes to avoid. None removes what an earlier restart wrote."""
    body.setdefault("metadata", {}).setdefault("labels", {})[keys.GENERATION] = generation
    affinity = made.placed(body["spec"].get("affinity") or {}, places.avoid, shun_nodes=places.shun)
    of_nodes = affinity.get("nodeAffinity", {})
    written = {key: of_nodes.get(key) for key in (made.REQUIRED, made.PREFERRED)}
    body["spec"]["affinity"] = {**affinity, "nodeAffinity": {**of_nodes, **written}}


def _nested(path: Sequence[str], value: object) -> Object:
    for part in reversed(path):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _nested_in(spec: Object, path: Sequence[str]) -> Object:
    """The field set to False, with what is beside it."""
    head, *rest = path
    return {head: {**spec.get(head, {}), **_nested(rest, False)} if rest else False}


async def _all(work: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """All of it, some at once; the first error is raised when none is in flight any more."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(part: Coroutine[object, object, T]) -> T:
        async with slots:
            return await part

    done = await asyncio.gather(*(one(part) for part in work), return_exceptions=True)
    found: list[T] = []
    for result in done:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
