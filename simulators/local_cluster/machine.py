"""The local cluster: nodes, controllers, and one loop, which evaluates everything again whenever anything changed."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from rekindle.errors import MALFORMED, ClusterError, Invalid
from rekindle.model.cluster import (
    ClusterEvent,
    Condition,
    JobObject,
    Link,
    LinkPatch,
    Node,
    NodePatch,
    NodeStatus,
    ObjectMeta,
    Pod,
)
from rekindle.policy.detection.pod_ranks import is_standby
from simulators.local_cluster.conditions import with_condition
from simulators.local_cluster.jobs import Jobs
from simulators.local_cluster.networks import LINKS, Networks
from simulators.local_cluster.options import Options
from simulators.local_cluster.pods import Pods
from simulators.local_cluster.scheduling import ready
from simulators.local_cluster.store import Store, now
from workers.training_job_phase import live

STOP_GRACE = 4
"""Grace period of pods in seconds when the cluster itself is stopped: the program that stops it waits 10 s at most."""

MOST_CHARACTERS = 1000
"""Longest message of an event, in characters."""

Thing = TypeVar("Thing", JobObject, Pod)

logger = logging.getLogger("cluster")


class Machine:
    def __init__(self, options: Options, networks: Networks | None) -> None:
        self.store = Store(self._changed)
        self.pods = Pods(self.store, options, uuid.uuid4().hex, networks)
        self.jobs = Jobs(self.store, self.pods, options)
        self._due = False
        self._options = options
        self._networks = networks

    def start(self) -> None:
        self.pods.processes.start()
        for index in range(self._options.nodes):
            self.store.put(_node(f"node-{index}", self._options.accelerators_per_node, LINKS if self._networks else ()))

    async def stop(self, at_once: asyncio.Event) -> None:
        """Ends all pods, each with a short grace period, or at once when the event is set; then breaks the watches."""
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

    def patch_node(self, name: str, patch: NodePatch) -> None:
        """Patches a node. Conditions replace those of their type; a node that is no longer ready loses its pods."""
        self._plug(name, patch.links)
        node = self.store.node(name)
        conditions = node.status.conditions
        for condition in patch.conditions:
            conditions = with_condition(conditions, condition)
            words = f"{condition.type} is {condition.status} {condition.reason} {condition.message}".rstrip()
            self.store.record(ClusterEvent(name=name, kind="Node", reason=condition.type, message=words))
            logger.info("node condition changed", extra={"node": name, "condition": words})
        if patch.annotations:
            node = _annotated(node, patch.annotations)
            logger.info("node annotations changed", extra={"node": name, "annotations": patch.annotations})
        if patch.unschedulable is not None:
            node = node.model_copy(update={"spec": node.spec.model_copy(update={"unschedulable": patch.unschedulable})})
            logger.info("node cordon changed", extra={"node": name, "unschedulable": patch.unschedulable})
        capacity = node.status.accelerators if patch.accelerators is None else patch.accelerators
        node = self.store.put(_with_status(node, accelerators=capacity, conditions=conditions))
        if not ready(node):
            self._lose_pods(node)

    def _plug(self, name: str, patches: Sequence[LinkPatch]) -> None:
        """Plugs links of a node in, or unplugs them. If one of the names is unknown, nothing is done.

        Raises:
            Invalid: the node has no link of this name.
        """
        known = [link.name for link in self.store.node(name).status.links]
        for number, patch in enumerate(patches):
            if patch.name not in known:
                accepted = ", ".join(known) or "none, nodes have links where the cluster was started with --links"
                raise Invalid(f"links.{number}.name: {patch.name[:40]!r} is no link of {name} (accepted: {accepted})")
        for patch in patches:
            assert self._networks
            self._networks.plug(name, patch.name, up=patch.up)
            self._plugged(self.store.node(name), patch)

    def _plugged(self, node: Node, patch: LinkPatch) -> None:
        before = node.status.links
        links = tuple(link.model_copy(update={"up": patch.up}) if link.name == patch.name else link for link in before)
        if links == before:
            return
        name, words = node.metadata.name, f"link {patch.name} is {'up' if patch.up else 'down'}"
        self.store.put(_with_status(node, links=links))
        self.store.record(ClusterEvent(name=name, kind="Node", reason="LinkUp" if patch.up else "LinkDown", message=words))
        logger.info("node link changed", extra={"node": name, "condition": words})

    def counted(self, nodes: Sequence[Node]) -> list[Node]:
        """Returns the nodes with the bytes that their links have carried until now."""
        carried = self._networks.carried() if self._networks else {}
        return [_counted(node, carried) if node.status.links else node for node in nodes]

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
        for pod in sorted(self.store.pods.values(), key=is_standby):  # standbys come last: they yield to other pods
            if live(pod) and not pod.spec.node_name:
                self._alone("Pod", pod, lambda pod: self.pods.schedule(pod, self.store.job(pod.metadata.owner_uid)))
        for job in list(self.store.jobs.values()):
            self._alone(job.kind, job, self.jobs.reconcile)

    def _alone(self, kind: str, thing: Thing, work: Callable[[Thing], None]) -> None:
        """Reconciles one object. All exceptions that it causes are handled here, so that the other objects are still
        evaluated."""
        try:
            work(thing)
        except (ClusterError, OSError, *MALFORMED) as error:
            name = thing.metadata.name
            logger.exception("stored object rejected", extra={"kind": kind, "object_name": name})
            message = f"it cannot be served: {type(error).__name__}: {error}"[:MOST_CHARACTERS]
            self.store.record(ClusterEvent(name=name, kind=kind, reason="NotServed", message=message, type="Warning"))


def _with_status(node: Node, **changes: object) -> Node:
    return node.model_copy(update={"status": node.status.model_copy(update=changes)})


def _counted(node: Node, carried: Mapping[tuple[str, str], tuple[int, int]]) -> Node:
    name = node.metadata.name
    bytes_of = {link.name: dict(zip(("sent", "received"), carried[name, link.name], strict=True)) for link in node.status.links}
    return _with_status(node, links=tuple(link.model_copy(update=bytes_of[link.name]) for link in node.status.links))


def _node(name: str, accelerators: int, links: Iterable[str]) -> Node:
    conditions = (
        Condition(type="Ready", status="True", last_transition_time=now()),
        Condition(type="SubHealthy", status="False", last_transition_time=now()),
    )
    metadata = ObjectMeta(name=name, uid=str(uuid.uuid4()), creation_timestamp=now())
    status = NodeStatus(accelerators=accelerators, conditions=conditions, links=tuple(Link(name=link) for link in links))
    return Node(metadata=metadata, status=status)


def _annotated(node: Node, changes: Mapping[str, str | None]) -> Node:
    merged = {**node.metadata.annotations, **changes}
    annotations = {key: value for key, value in merged.items() if value is not None}
    return node.model_copy(update={"metadata": node.metadata.model_copy(update={"annotations": annotations})})
