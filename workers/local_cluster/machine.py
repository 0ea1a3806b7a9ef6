"""The whole local cluster: nodes, controllers, and their one loop. Everything is judged again whenever anything changed."""

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import TypeVar

from rekindle.errors import MALFORMED, ClusterError
from rekindle.model.cluster import ClusterEvent, Condition, JobObject, Node, NodePatch, NodeStatus, ObjectMeta, Pod
from rekindle.policy.pod_ranks import is_standby
from workers.local_cluster.conditions import with_condition
from workers.local_cluster.jobs import Jobs
from workers.local_cluster.options import Options
from workers.local_cluster.pods import Pods
from workers.local_cluster.scheduling import ready
from workers.local_cluster.store import Store, now
from workers.own_jobs import live

STOP_GRACE = 4
"""Seconds for pods when the cluster itself is told to stop: whoever tells it waits 10 s at most."""

MOST_CHARACTERS = 1000
"""Of an event's message."""

Thing = TypeVar("Thing", JobObject, Pod)

logger = logging.getLogger("cluster")


class Machine:
    def __init__(self, options: Options) -> None:
        self.store = Store(self._changed)
        self.pods = Pods(self.store, options, uuid.uuid4().hex)
        self.jobs = Jobs(self.store, self.pods, options)
        self._due = False
        self._options = options

    def start(self) -> None:
        self.pods.processes.start()
        for index in range(self._options.nodes):
            self.store.put(_node(f"node-{index}", self._options.accelerators_per_node))

    async def stop(self, at_once: asyncio.Event) -> None:
        """Ends all pods, each with a short grace, or at once when the event is set; then breaks the watches."""
        for job in list(self.store.jobs.values()):
            self.jobs.delete(job.metadata.uid, STOP_GRACE)
        hurry = asyncio.create_task(self._hurry(at_once))
        with self.store.watching() as watch:
            events = watch.events()
            while self.store.pods:
                await anext(events)
        hurry.cancel()
        await self.pods.processes.close()
        self.store.break_watches("the cluster is shutting down")

    async def _hurry(self, at_once: asyncio.Event) -> None:
        await at_once.wait()
        for job in list(self.store.jobs.values()):
            self.jobs.delete(job.metadata.uid, 0)

    # ---- nodes

    def patch_node(self, name: str, patch: NodePatch) -> Node:
        """Conditions replace those of their type; a node that is no longer ready takes its pods with it."""
        node = self.store.node(name)
        conditions = node.status.conditions
        for condition in patch.conditions:
            conditions = with_condition(conditions, condition)
            words = f"{condition.type} is {condition.status} {condition.reason} {condition.message}".rstrip()
            self.store.record(ClusterEvent(name=name, kind="Node", reason=condition.type, message=words))
            logger.info("node", extra={"node": name, "condition": words})
        capacity = node.status.accelerators if patch.accelerators is None else patch.accelerators
        status = NodeStatus(accelerators=capacity, conditions=conditions)
        node = self.store.put(node.model_copy(update={"status": status}))
        if not ready(node):
            self._lose_pods(node)
        return node

    def _lose_pods(self, node: Node) -> None:
        for pod in list(self.store.pods.values()):
            if pod.spec.node_name == node.metadata.name and self.pods.processes.running(pod.metadata.uid):
                self.pods.lose(pod, f"node {node.metadata.name} is lost")

    # ---- the loop

    def _changed(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._reconcile)

    def _reconcile(self) -> None:
        self._due = False
        for pod in sorted(self.store.pods.values(), key=is_standby):  # they give way to others
            if live(pod) and not pod.spec.node_name:
                self._alone("Pod", pod, lambda pod: self.pods.schedule(pod, self.store.job(pod.metadata.owner_uid)))
        for job in list(self.store.jobs.values()):
            self._alone(job.kind, job, self.jobs.reconcile)

    def _alone(self, kind: str, thing: Thing, work: Callable[[Thing], None]) -> None:
        """Here, and nowhere else, an exception ends that one object has caused: all others are judged behind it."""
        try:
            work(thing)
        except (ClusterError, OSError, *MALFORMED) as error:
            name = thing.metadata.name
            logger.exception("an object cannot be served", extra={"kind": kind, "object_name": name})
            message = f"it cannot be served: {type(error).__name__}: {error}"[:MOST_CHARACTERS]
            self.store.record(ClusterEvent(name=name, kind=kind, reason="NotServed", message=message, type="Warning"))


def _node(name: str, accelerators: int) -> Node:
    conditions = (
        Condition(type="Ready", status="True", last_transition_time=now()),
        Condition(type="SubHealthy", status="False", last_transition_time=now()),
    )
    metadata = ObjectMeta(name=name, uid=str(uuid.uuid4()), creation_timestamp=now())
    return Node(metadata=metadata, status=NodeStatus(accelerators=accelerators, conditions=conditions))
