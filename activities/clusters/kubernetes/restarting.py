"""Strategies that stop all pods of a job and create them again, directly or through the controller that creates the job's pods.

A controller is handled as queueing systems do it: suspend, change the template, resume.
"""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import pod_objects as made
from activities.clusters.kubernetes.asking import may_pass, refuse_what_is_refused, words_of_controllers
from activities.clusters.kubernetes.kind import Places, PodAccess, Workload
from activities.clusters.kubernetes.missing_rank import is_active, is_standby, is_terminating
from activities.clusters.kubernetes.pod_operations import CONTROLLER_LIMIT, generation_of, is_on, side_by_side
from rekindle.errors import Conflict, Forbidden, Invalid, Withheld
from rekindle.model import keys

SAYS_WHY = 2.0
"""Seconds after which a controller that has not created all pods is asked why. It tries at once."""


@dataclass(frozen=True)
class ByOurHand:
    """Base strategy, in which we delete the pods.

    The subclass of a kind defines what comes before that, and how the pods are recreated.
    """

    @property
    def suspend(self) -> tuple[str, ...]:
        return ()

    async def ensure_stopped(
        self, ops: PodAccess, job: Workload, pods: Sequence[Object], grace_seconds: int, lost_nodes: Collection[str] = ()
    ) -> None:
        if not job.annotation(keys.STOPPED):
            await refuse_what_is_refused(ops, job, pods)
        await ops.delete_all([pod for pod in pods if is_standby(pod)], 0)  # so that their nodes are free
        await self.prepare(ops, job, pods, grace_seconds)
        # Managers last: our controller recreates a manager that ends while workers run.
        for group in ([pod for pod in pods if not made.is_manager(pod)], [pod for pod in pods if made.is_manager(pod)]):
            await side_by_side(ops.delete(pod, 0 if is_on(pod, lost_nodes) else grace_seconds) for pod in group)

    async def ensure_pods(self, ops: PodAccess, job: Workload, generation: str, places: Places) -> list[Object]:
        there = await ops.reader.pods(job)
        if job.was_resumed:
            await ops.ensure_metadata(job, {}, {keys.STOPPED: "resumed"})
        late = [pod for pod in there if is_standby(pod) and not _is_new(pod, job, generation)]
        await ops.delete_all(late, 0)  # created by another party while the job was stopped
        if left := [pod for pod in there if not _is_new(pod, job, generation) and self.is_in_the_way(pod)]:
            raise Conflict(f"pod {left[0]['metadata']['name']} of job {job.name} is still there")
        try:
            return await self.make(ops, job, there, generation, places)
        except Forbidden as error:
            if may_pass(error):
                raise Withheld(str(error)) from error
            raise

    def is_in_the_way(self, old: Object) -> bool:
        """Returns whether new pods must wait until this one is gone, for example because of its name."""
        return True

    async def prepare(self, ops: PodAccess, job: Workload, pods: Sequence[Object], grace_seconds: int) -> None:
        """Prepares the job before its pods are deleted. The default does nothing."""

    async def let_go(self, ops: PodAccess, job: Workload) -> None:
        """Restores the job's object as its owner wrote it."""

    @abstractmethod
    async def make(self, ops: PodAccess, job: Workload, there: Sequence[Object], generation: str, places: Places) -> list[Object]:
        """Returns the job's pods of this generation. The pods in `there` already belong to it."""


@dataclass(frozen=True)
class Suspending(ByOurHand):
    """Strategy for a controller that deletes the pods of a suspended job, and creates them from the current templates when it is
    resumed."""

    field: tuple[str, ...] = ("suspend",)
    forgets_its_start: bool = False
    """True if the start of a suspended Job must be cleared before its template is changed.

    Before Kubernetes 1.36 the template can be changed only if the Job seems never to have started. The Job's controller sets
    the start again. Source: KEP-2926, and how JobSet resumes its Jobs.
    """

    generates_names: bool = False
    """True if new pods have other names, so that they need not wait for the objects of ended pods, which a finalizer may keep."""

    @property
    def suspend(self) -> tuple[str, ...]:
        return self.field

    def is_in_the_way(self, old: Object) -> bool:
        return not (self.generates_names and old["status"].get("phase") in ("Succeeded", "Failed"))

    async def prepare(self, ops: PodAccess, job: Workload, pods: Sequence[Object], grace_seconds: int) -> None:
        _refuse_held(job)
        await self._suspend(ops, job)
        await _given_up(ops, job)
        await ops.delete_all(await ops.reader.managers(job), grace_seconds)

    async def let_go(self, ops: PodAccess, job: Workload) -> None:
        if job.annotation(keys.STOPPED):
            metadata = {"uid": job.uid, "annotations": {keys.STOPPED: None}}
            await ops.api.patch(job.path, {"metadata": metadata, "spec": _nested(self.field, False)})

    async def _suspend(self, ops: PodAccess, job: Workload) -> None:
        """Suspends the job, unless its spec has changed since it was read.

        An outdated attempt that continues after the job was resumed would leave it suspended forever. Changes of its status are
        ignored, as it changes constantly while pods fail.
        """
        seen = job
        while True:
            metadata = {"uid": job.uid, **_as_read(seen), "annotations": {keys.STOPPED: "yes"}}
            try:
                await ops.api.patch(job.path, {"metadata": metadata, "spec": _nested(self.field, True)})
            except Conflict:
                seen = Workload(job.kind, await ops.api.get(job.path))
                if (seen.uid, seen.metadata.get("generation")) != (job.uid, job.metadata.get("generation")):
                    raise
            else:
                return

    async def make(self, ops: PodAccess, job: Workload, there: Sequence[Object], generation: str, places: Places) -> list[Object]:
        if job.is_suspended:
            _refuse_held(job)
            await self.resume(ops, job, generation, places)
        return await _made_by_the_controller(ops, job, generation)

    async def resume(self, ops: PodAccess, job: Workload, generation: str, places: Places) -> None:
        spec = deepcopy(job.object["spec"])
        for one in job.kind.templates(spec):
            change_template(one.body, generation, places)
        await self.change(ops, job, {**spec, **_nested_in(spec, self.field)})

    async def change(self, ops: PodAccess, job: Workload, spec: Object) -> None:
        """Changes the job's spec, only if the job is unchanged since it was read. Removes the mark that we suspended it."""
        if self.forgets_its_start:
            job = await _never_started(ops, job)
        metadata = {**_as_read(job), "annotations": {keys.STOPPED: None}}
        await ops.api.patch(job.path, {"metadata": metadata, "spec": spec})


@dataclass(frozen=True, kw_only=True)
class SuspendingParts(Suspending):
    """Strategy for pods that are created from the templates of other objects, because the job's own templates belong to a runtime
    or are immutable."""

    parts: Suspending
    """Strategy that changes one of these objects while it is suspended. The job's controller resumes it."""

    async def resume(self, ops: PodAccess, job: Workload, generation: str, places: Places) -> None:
        async def renew(part: Workload) -> None:
            template = deepcopy(part.object["spec"]["template"])
            change_template(template, generation, places)
            await self.parts.change(ops, part, {"template": template})

        await side_by_side(renew(part) for part in await ops.reader.parts(job))  # there may be thousands
        await self.change(ops, job, _nested(self.field, False))


async def _given_up(ops: PodAccess, job: Workload) -> None:
    """Waits until the job's controller has deleted its pods.

    A pod that is deleted by us first may count as failed, and fail the job permanently.
    """

    def kept(pods: Sequence[Object]) -> list[Object]:
        return [pod for pod in pods if made.controller_of(pod) and is_active(pod)]

    pods = await ops.reader.until(job, lambda pods: not kept(pods), CONTROLLER_LIMIT)
    if left := kept(pods):
        name = left[0]["metadata"]["name"]
        raise Conflict(f"{job.kind.name} {job.name} is suspended, and its controller has not ended pod {name} yet")


async def _never_started(ops: PodAccess, job: Workload) -> Workload:
    status = job.object.get("status", {})
    if not status.get("startTime"):
        return job
    if not any(one["type"] == "Suspended" and one["status"] == "True" for one in status.get("conditions", ())):
        raise Conflict(f"{job.kind.name} {job.name} is being suspended, and its controller has not confirmed it yet")
    change = {"metadata": _as_read(job), "status": {"startTime": None}}
    return Workload(job.kind, await ops.api.patch(f"{job.path}/status", change))


async def _made_by_the_controller(ops: PodAccess, job: Workload, generation: str) -> list[Object]:
    expected = sum(template.pods for template in job.templates)

    def new(pods: Sequence[Object]) -> list[Object]:
        return [pod for pod in pods if _is_new(pod, job, generation)]

    there = "no pods are there"
    for limit in (SAYS_WHY, CONTROLLER_LIMIT - SAYS_WHY):
        pods = new(await ops.reader.until(job, lambda pods: len(new(pods)) >= expected, limit))
        if len(pods) >= expected:
            return pods
        there = f"{len(pods)} of {expected} pods of {job.kind.name} {job.name} are there"
        if words := await words_of_controllers(ops, job):
            raise Withheld(f"{there}: {words}")
    raise Conflict(there)


def _as_read(job: Workload) -> Object:
    """Returns metadata that makes the API server refuse a change if the object was changed meanwhile."""
    return {"resourceVersion": job.metadata["resourceVersion"]}


def _refuse_held(job: Workload) -> None:
    """Raises Invalid if another party suspended the job: its owner, or a queue that has given its place away."""
    if job.is_held:
        raise Invalid(f"{job.kind.name} {job.name} is suspended, and not by a restart: who suspended it resumes it")


def _is_new(pod: Object, job: Workload, generation: str) -> bool:
    """Returns whether the pod is not being deleted and belongs to this generation.

    If another party resumed the job, any generation counts: its old pods are gone.
    """
    said = job.was_resumed or generation_of(pod) == generation
    return said and not is_terminating(pod)


def change_template(body: Object, generation: str, places: Places) -> None:
    """Changes a template in place: sets the label of the generation and the nodes to avoid.

    None removes what an earlier restart wrote.
    """
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
    """Returns the field set to False, together with its siblings."""
    head, *rest = path
    return {head: {**spec.get(head, {}), **_nested(rest, False)} if rest else False}
