"""Controller of jobs: creates a job's pods and derives its phase from them. Failed pods stay: recoveries replace them."""

import uuid

from rekindle.errors import BadInput, Conflict, Invalid
from rekindle.model.cluster import (
    ClusterEvent,
    GenerationRequest,
    JobObject,
    JobObjectStatus,
    JobPhase,
    MetadataChange,
    ObjectMeta,
    Pod,
    PodPhase,
    PodRole,
    PodSpec,
    PodTemplate,
)
from rekindle.model.keys import GENERATION, JOB_NAME, RANK_INDEX, REPLICA_TYPE
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from simulators.local_cluster.environment import free_port, job_directory
from simulators.local_cluster.options import Options
from simulators.local_cluster.pods import Pods, checked_name, merged
from simulators.local_cluster.store import Store, now
from workers.training_job_phase import FIRST, MANAGER_RESTARTS, live, phase_of, role_of

LONGEST_NAME = 200
"""Longest name of a job in characters: names of its pods and logs are longer."""


class Jobs:
    def __init__(self, store: Store, pods: Pods, options: Options) -> None:
        self._store = store
        self._pods = pods
        self._options = options
        self._restarts: dict[str, int] = {}

    def submit(self, job: JobObject) -> JobObject:
        """Creates a job, its directory, its port and its first pods.

        Raises:
            Conflict: the name is taken.
            Invalid: a label, an annotation or a limit is invalid.
        """
        name = checked_name(job.metadata.name)
        if name in self._store.jobs:
            raise Conflict(f"metadata.name: job {name} is there already; delete it or choose another name")
        if len(name) > LONGEST_NAME:
            raise Invalid(
                f"metadata.name: {len(name)} characters are too many: names of pods are longer, it has at most {LONGEST_NAME}"
            )
        try:
            job_of(job, Limits())
        except BadInput as error:
            raise Invalid(str(error)) from error
        uid = str(uuid.uuid4())
        born = {"uid": uid, "creation_timestamp": now(), "deletion_timestamp": None, "owner_uid": ""}
        status = JobObjectStatus(
            master_port=free_port({other.status.master_port for other in self._store.jobs.values()}),
            directory=str(job_directory(self._options.state_dir, name, uid)),
        )
        metadata = job.metadata.model_copy(update=born)
        stored = self._store.put(job.model_copy(update={"metadata": metadata, "status": status}))
        self.ensure_generation(uid, GenerationRequest(generation=FIRST))
        return stored

    def patch(self, reference: str, change: MetadataChange) -> JobObject:
        job = self._store.job(reference)
        return self._store.put(job.model_copy(update={"metadata": merged(job.metadata, change)}))

    def delete(self, reference: str, grace: int | None) -> JobObject:
        """Deletes a job; its object is removed when its pods are gone. A second call may shorten the grace period."""
        job = self._store.job(reference)
        marked = job.metadata.model_copy(update={"deletion_timestamp": job.metadata.deletion_timestamp or now()})
        job = self._store.put(job.model_copy(update={"metadata": marked}))
        for pod in self._store.pods_of(job.metadata.uid):
            self._pods.delete(pod.metadata.name, pod.metadata.uid, grace)
        return job

    def ensure_generation(self, reference: str, request: GenerationRequest) -> list[Pod]:
        """Creates one pod for each pod rank and one manager, of this generation. Existing ones are reused.

        Raises:
            Conflict: a pod of another generation still holds a place.
        """
        job = self._store.job(reference)
        wanted = _pods_of(job, request)
        holders = {_place(pod): pod for pod in self._store.pods_of(job.metadata.uid) if role_of(pod) is not PodRole.BACKUP}
        for pod in wanted:
            holder = holders.get(_place(pod))
            if holder and (holder.metadata.labels.get(GENERATION) != request.generation or holder.metadata.deletion_timestamp):
                raise Conflict(f"pod {holder.metadata.name} of job {job.metadata.name} is still there, {holder.status.phase}")
        return [holders.get(_place(pod)) or self._pods.create(pod) for pod in wanted]

    def reconcile(self, job: JobObject) -> None:
        """Updates the job's phase and acts on it. Called whenever something changed."""
        pods = self._store.pods_of(job.metadata.uid)
        if job.metadata.deletion_timestamp:
            if not pods:
                self._store.remove(job)
            return
        self._keep_manager(job, pods)
        phase = phase_of(job, pods)
        if phase is not job.status.phase:
            status = job.status.model_copy(update={"phase": phase})
            self._store.put(job.model_copy(update={"status": status}))
            message = f"job {job.metadata.name} is {phase}"
            self._store.record(ClusterEvent(name=job.metadata.name, kind=job.kind, reason=phase, message=message))
        if phase is JobPhase.SUCCEEDED:
            for pod in pods:
                self._pods.complete(pod)

    def _keep_manager(self, job: JobObject, pods: list[Pod]) -> None:
        """Keeps one manager while ranks live, whatever happened to the last one: nothing is lost with a manager.

        Recoveries replace workers. A job is stopped by ending its workers before its manager, so that it does not get a new one.
        """
        training = [pod for pod in pods if live(pod) and role_of(pod) is PodRole.WORKER]
        managers = [pod for pod in pods if role_of(pod) is PodRole.MANAGER]
        if not job.spec.manager or not training or any(pod.status.phase is not PodPhase.FAILED for pod in managers):
            return
        uid = job.metadata.uid
        if managers and self._restarts.get(uid, 0) >= MANAGER_RESTARTS:
            return
        for failed in managers:
            self._restarts[uid] = self._restarts.get(uid, 0) + 1
            self._pods.delete(failed.metadata.name, failed.metadata.uid, 0)
        generation = training[0].metadata.labels.get(GENERATION, FIRST)
        again = GenerationRequest(generation=generation, avoid_nodes=training[0].spec.avoid_nodes)
        self._pods.create(_pods_of(job, again)[0])


def _place(pod: Pod) -> tuple[PodRole, str]:
    """Returns the role and rank that only one pod of a job may have: its manager, or the holder of a pod rank."""
    return role_of(pod), pod.metadata.annotations.get(RANK_INDEX, "")


def _pods_of(job: JobObject, request: GenerationRequest) -> list[Pod]:
    workers = [_pod(job, request, PodRole.WORKER, rank, job.spec.template) for rank in range(job.spec.pods)]
    manager = [_pod(job, request, PodRole.MANAGER, 0, job.spec.manager)] if job.spec.manager else []
    return manager + workers


def _pod(job: JobObject, request: GenerationRequest, role: PodRole, index: int, template: PodTemplate) -> Pod:
    name = job.metadata.name
    return Pod(
        metadata=ObjectMeta(
            name=f"{name}-{role}-{index}",
            namespace=job.metadata.namespace,
            labels={JOB_NAME: name, REPLICA_TYPE: role, GENERATION: request.generation},
            annotations={RANK_INDEX: str(index)} if role is PodRole.WORKER else {},
            owner_uid=job.metadata.uid,
        ),
        spec=PodSpec(
            command=template.command,
            env=template.env,
            accelerators=template.accelerators,
            avoid_nodes=request.avoid_nodes,
        ),
    )
