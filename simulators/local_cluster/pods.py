"""Lifecycle of pods: created, scheduled, started, ended, deleted. Called by the API and by the controller of jobs."""

import asyncio
import logging
import re
import signal
import uuid
from pathlib import Path
from typing import Literal

from rekindle.errors import Conflict, Invalid
from rekindle.model.cluster import (
    ClusterEvent,
    Condition,
    JobObject,
    MetadataChange,
    ObjectMeta,
    Pod,
    PodPhase,
    PodRole,
    PodStatus,
)
from rekindle.model.keys import REPLICA_TYPE
from simulators.local_cluster.conditions import with_condition
from simulators.local_cluster.environment import environment_of, log_of
from simulators.local_cluster.networks import Networks
from simulators.local_cluster.options import Options
from simulators.local_cluster.processes import Place, Processes
from simulators.local_cluster.scheduling import free_devices, in_the_way, place
from simulators.local_cluster.store import Store, now

LAST_LINE = 500
"""Longest part of the last log line that a failed pod's message repeats, in characters."""

LONGEST_GRACE = 86_400
"""Longest grace period in seconds."""

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

logger = logging.getLogger("cluster")


class Pods:
    def __init__(self, store: Store, options: Options, instance: str, networks: Networks | None = None) -> None:
        self.processes = Processes(instance, self._ended)
        self._store = store
        self._options = options
        self._networks = networks
        self._kills: dict[str, asyncio.TimerHandle] = {}
        self._lost: dict[str, str] = {}
        self._completed: set[str] = set()

    # ---- what the API asks for

    def create(self, pod: Pod) -> Pod:
        """Creates a pod with a new UID; the controller schedules it.

        Raises:
            Conflict: the name is taken, perhaps by a pod that is still terminating.
            Invalid: its job ended or is being deleted, or a field means nothing.
        """
        _check(pod)
        job = self._store.job(pod.metadata.owner_uid)
        if job.metadata.deletion_timestamp:
            raise Invalid(f"metadata.ownerUid: job {job.metadata.name} is being deleted, it takes no new pods")
        name = pod.metadata.name
        if taken := self._store.pods.get(name):
            state = "still terminating" if taken.metadata.deletion_timestamp else f"there, {taken.status.phase}"
            raise Conflict(f"metadata.name: pod {name} (uid {taken.metadata.uid}) is {state}")
        born = {"uid": str(uuid.uuid4()), "creation_timestamp": now(), "deletion_timestamp": None}
        spec = pod.spec.model_copy(update={"node_name": ""})
        metadata = pod.metadata.model_copy(update=born)
        return self._store.put(Pod(metadata=metadata, spec=spec, status=PodStatus()))

    def patch(self, name: str, uid: str, change: MetadataChange) -> Pod:
        pod = self._the_very(name, uid)
        return self._store.put(pod.model_copy(update={"metadata": merged(pod.metadata, change)}))

    def delete(self, name: str, uid: str, grace: int | None) -> Pod:
        """Marks the pod as terminating, ends its processes, and removes it when they are gone. A second call may only shorten
        the grace.

        Raises:
            NotFound: there is no such pod.
            Conflict: the name belongs to another pod now.
        """
        pod = self._the_very(name, uid)
        if pod.metadata.deletion_timestamp is None:
            marked = pod.metadata.model_copy(update={"deletion_timestamp": now()})
            pod = self._store.put(pod.model_copy(update={"metadata": marked}))
        if self.processes.running(pod.metadata.uid):
            self._stop(pod, pod.spec.termination_grace_period_seconds if grace is None else grace)
        else:
            self._store.remove(pod)
        return pod

    def _the_very(self, name: str, uid: str) -> Pod:
        pod = self._store.pod(name)
        if uid and pod.metadata.uid != uid:
            raise Conflict(f"uid: pod {name} has the UID {pod.metadata.uid}, not {uid}")
        return pod

    # ---- what the controller does

    def schedule(self, pod: Pod, job: JobObject) -> None:
        """Binds a pending pod to a node and starts it, or records why there is no node for it."""
        placement = place(pod, job, self._store.nodes.values(), self._store.pods.values())
        if not placement.node:
            condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=placement.message)
            if condition.message not in {known.message for known in pod.status.conditions}:
                self._record(pod, "FailedScheduling", placement.message, "Warning")
            self._with_status(pod, conditions=with_condition(pod.status.conditions, condition))
            self._preempt(pod, job)
            return
        bound = pod.model_copy(update={"spec": pod.spec.model_copy(update={"node_name": placement.node})})
        scheduled = Condition(type="PodScheduled", status="True")
        conditions = with_condition(pod.status.conditions, scheduled)
        bound = self._with_status(bound, conditions=conditions, devices=free_devices(bound, self._store.pods.values()))
        self._record(pod, "Scheduled", f"assigned {pod.metadata.name} to {placement.node}")
        self._start(bound, job)

    def _preempt(self, pod: Pod, job: JobObject) -> None:
        """Deletes standbys whose accelerators a pod without a node needs; it is scheduled when they are gone."""
        for standby in in_the_way(pod, job, self._store.nodes.values(), self._store.pods.values()):
            words = f"preempted by {pod.metadata.name} on {standby.spec.node_name}: a standby gives way"
            self._record(standby, "Preempted", words, "Warning")
            self.delete(standby.metadata.name, standby.metadata.uid, 0)

    def _start(self, pod: Pod, job: JobObject) -> None:
        network, addresses = None, dict[str, str]()
        if self._networks:
            network = self._networks.namespace(pod)
            addresses = self._networks.environment(pod, job, self._store.pods_of(job.metadata.uid))
        environment = environment_of(pod, job, self._options, addresses)
        try:
            pid = self.processes.spawn(pod.metadata.uid, pod.spec.command, environment, log_of(pod, job), Place(network))
        except (OSError, ValueError) as error:
            message = f"cannot start {pod.spec.command[0]!r}: {error}"
            self._record(pod, "Failed", message, "Warning")
            self._with_status(pod, phase=PodPhase.FAILED, reason="StartError", message=message, exit_code=127)
            return
        ready = with_condition(pod.status.conditions, Condition(type="Ready", status="True"))
        self._with_status(pod, phase=PodPhase.RUNNING, conditions=ready, pid=pid, start_time=now())
        self._record(pod, "Started", f"started process {pid} on {pod.spec.node_name}")

    def lose(self, pod: Pod, message: str) -> None:
        """Kills a pod whose node is lost. Its status will have this message."""
        self._lost[pod.metadata.uid] = message
        self.processes.signal(pod.metadata.uid, signal.SIGKILL)

    def complete(self, pod: Pod) -> None:
        """Stops a pod whose job has succeeded. It counts as succeeded whatever its exit code."""
        if self.processes.running(pod.metadata.uid) and pod.metadata.uid not in self._completed:
            self._completed.add(pod.metadata.uid)
            self._stop(pod, pod.spec.termination_grace_period_seconds)

    def _stop(self, pod: Pod, grace: int) -> None:
        uid = pod.metadata.uid
        loop = asyncio.get_running_loop()
        limit = loop.time() + grace
        pending = self._kills.get(uid)
        if pending and pending.when() <= limit:
            return
        if pending:
            pending.cancel()
        elif grace:
            self._record(pod, "Killing", f"stopping {pod.metadata.name}, at most {grace} s")
            self.processes.signal(uid, signal.SIGTERM)
        kill = self.processes.signal
        self._kills[uid] = loop.call_at(limit, kill, uid, signal.SIGKILL)
        if not grace:
            kill(uid, signal.SIGKILL)

    # ---- what processes do

    def _ended(self, uid: str, code: int) -> None:
        """Handles the end of a pod's last process."""
        if timer := self._kills.pop(uid, None):
            timer.cancel()
        lost, completed = self._lost.pop(uid, ""), uid in self._completed
        self._completed.discard(uid)
        pod = next(pod for pod in self._store.pods.values() if pod.metadata.uid == uid)
        ready = with_condition(pod.status.conditions, Condition(type="Ready", status="False", reason="PodCompleted"))
        exit_code = code if code >= 0 else 128 - code
        if lost:
            pod = self._with_status(
                pod, phase=PodPhase.FAILED, reason="NodeLost", message=lost, exit_code=exit_code, conditions=ready
            )
        elif code == 0 or completed:
            pod = self._with_status(pod, phase=PodPhase.SUCCEEDED, reason="Completed", exit_code=exit_code, conditions=ready)
        else:
            message = self._last_words(pod, code)
            pod = self._with_status(
                pod, phase=PodPhase.FAILED, reason="Error", message=message, exit_code=exit_code, conditions=ready
            )
        if pod.metadata.deletion_timestamp:
            self._store.remove(pod)
        elif pod.status.phase is PodPhase.FAILED:
            self._record(pod, "Failed", f"exit code {exit_code}: {pod.status.message}", "Warning")

    def _last_words(self, pod: Pod, code: int) -> str:
        line = last_line(log_of(pod, self._store.job(pod.metadata.owner_uid)))
        if code >= 0:
            return line
        killed = f"killed by {signal.Signals(-code).name}"
        return f"{killed}; last line: {line}" if line else killed

    def _with_status(self, pod: Pod, **changes: object) -> Pod:
        return self._store.put(pod.model_copy(update={"status": pod.status.model_copy(update=changes)}))

    def _record(self, pod: Pod, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal") -> None:
        event = ClusterEvent(name=pod.metadata.name, kind="Pod", reason=reason, message=message, type=kind)
        self._store.record(event)
        logger.info("pod event recorded", extra={"pod": pod.metadata.name, "event_reason": reason, "event_message": message})


def checked_name(name: str) -> str:
    """Returns the name of an object, which becomes a part of paths.

    Raises:
        Invalid: it is not one that Kubernetes would admit.
    """
    if not NAME.fullmatch(name):
        raise Invalid(f"metadata.name: {name[:40]!r} is not accepted: lower-case letters, digits, hyphens and dots, at most 253")
    return name


def _check(pod: Pod) -> None:
    checked_name(pod.metadata.name)
    role = pod.metadata.labels.get(REPLICA_TYPE, PodRole.WORKER)
    if role not in set(PodRole):
        raise Invalid(f"metadata.labels.{REPLICA_TYPE}: {role[:40]!r} is not accepted (accepted: {', '.join(PodRole)})")
    if pod.spec.termination_grace_period_seconds > LONGEST_GRACE:
        raise Invalid(f"spec.terminationGracePeriodSeconds: at most {LONGEST_GRACE} are accepted")


def merged(metadata: ObjectMeta, change: MetadataChange) -> ObjectMeta:
    """Returns the metadata after a merge patch of labels and annotations."""
    labels = {key: value for key, value in {**metadata.labels, **change.labels}.items() if value is not None}
    annotations = {key: value for key, value in {**metadata.annotations, **change.annotations}.items() if value is not None}
    return metadata.model_copy(update={"labels": labels, "annotations": annotations})


def last_line(log: Path) -> str:
    """Returns the last line of a log that is not blank; empty: there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8 * LAST_LINE))
            lines = file.read().decode(errors="replace").split("\n")
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:LAST_LINE]
