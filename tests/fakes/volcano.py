"""Scripted simulation of Volcano's rescheduling: which pods are faulty, and which are deleted because of it.

It runs a session after every change instead of each second, and lists everything for each, so that writes are seen in their
order. Scheduling is the real scheduler's; Volcano adds an affinity, and opens a gate. Not simulated: cards (a node's condition
`SubHealthy` stands for them), super pods, escalation by waiting, and everything that needs the time of day. Source: Volcano
plugin.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from activities.clusters.api_server import Object
from rekindle.errors import Conflict, NotFound
from tests.fakes.ascend_operator import GATE, AscendOperator, groups_path
from tests.fakes.controller import Controller, annotations_of, apply_crds, is_terminating, labels_of
from tests.kubernetes.world.control_plane import Namespace

NODES = "/api/v1/nodes"
FORCED = ("forceExit", "hotSwitch")
"""Sub-health strategies without a grace period."""


@dataclass(frozen=True)
class Handled:
    """Job whose pods were deleted: it is left alone until they are replaced."""

    deleted: frozenset[str]
    known: frozenset[str]
    """UIDs of all pods at that time; a later pod may fail again."""


class Volcano(Controller):
    """Simulated Volcano: `async with Volcano(namespace) as volcano:`. While it is deaf it neither schedules nor deletes."""

    def __init__(self, namespace: Namespace) -> None:
        self._groups, self._pods = groups_path(namespace.name), namespace.path("pods")
        super().__init__(namespace, self._groups, self._pods, NODES)
        self._handled: dict[str, Handled] = {}
        self._retries: dict[str, int] = {}
        self._sessions = 0

    async def round(self) -> None:
        self._sessions += 1
        pods = (await self.api.list(self._pods)).items
        groups = (await self.api.list(self._groups)).items
        nodes = {node["metadata"]["name"]: node for node in (await self.api.list(NODES)).items}
        for group in groups:
            own = [pod for pod in pods if annotations_of(pod).get("scheduling.k8s.io/group-name") == group["metadata"]["name"]]
            phase = await self._tell_phase(group, own)
            await self._open_gates(group, own, nodes)
            if phase in ("Running", "Unknown") and any(_asks_for_chips(pod) for pod in own):
                await self._reschedule(group, own, nodes)

    # ---- scheduling

    async def _tell_phase(self, group: Object, pods: Sequence[Object]) -> str:
        before = str(group.get("status", {}).get("phase", ""))
        allocated = sum(1 for pod in pods if _is_allocated(pod))
        if allocated >= group["spec"]["minMember"]:
            phase = "Running"
        else:
            phase = "Unknown" if allocated and before in ("Running", "Unknown") else "Inqueue"
        if phase != before:
            path = f"{self._groups}/{group['metadata']['name']}/status"
            await self.api.patch(path, {"status": {"phase": phase}})
        return phase

    async def _open_gates(self, group: Object, pods: Sequence[Object], nodes: dict[str, Object]) -> None:
        refused = sorted(name for name, node in nodes.items() if _is_refused(node, group))
        for pod in pods:
            if {"name": GATE} in pod["spec"].get("schedulingGates", ()) and not is_terminating(pod):
                elsewhere = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": refused}
                terms = {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}
                affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
                spec = {"schedulingGates": None, **({"affinity": affinity} if refused else {})}
                with contextlib.suppress(NotFound):
                    await self.api.patch(f"{self._pods}/{pod['metadata']['name']}", {"spec": spec})

    # ---- rescheduling

    async def _reschedule(self, group: Object, pods: Sequence[Object], nodes: dict[str, Object]) -> None:
        reasons = {pod["metadata"]["uid"]: reason for pod in pods if (reason := self._fault(group, pod, nodes))}
        mode = labels_of(group).get("fault-scheduling", "off")
        if not reasons or not self._may_act(group, pods, reasons) or "ProcessRecoverStrategy" in annotations_of(group):
            return
        faulty = [pod for pod in pods if pod["metadata"]["uid"] in reasons]
        if mode in ("external-force", "external-grace"):
            await self._tell_others(faulty, reasons)
        elif mode in ("force", "grace"):
            if set(reasons.values()) == {"PodFailed"} and not self._spend_retry(group):
                return
            await self._delete(group, pods, faulty, _is_forced(group, reasons))

    def _fault(self, group: Object, pod: Object, nodes: dict[str, Object]) -> str:
        """Returns why a pod is faulty, the first reason that holds; empty: it is not."""
        if not (name := pod["spec"].get("nodeName")) or is_terminating(pod):
            return ""
        node = nodes.get(name)
        if node and annotations_of(node).get("NodeHealthyStatus") == "UnHealthy":
            return "NodeUnhealthy"
        if self._sessions > 1 and (node is None or not _has(node, "Ready")):
            return "NodeUnhealthy"
        if _retry_times(group) and _has_failed(pod):
            return "PodFailed"
        if labels_of(pod).get("fault-type") == "Separate":
            return "RelationFaultSeparate"
        return "SubHealthFault" if _is_sub_health_fault(group, pod, node) else ""

    def _may_act(self, group: Object, pods: Sequence[Object], reasons: dict[str, str]) -> bool:
        """Returns whether the job may be rescheduled: once, and again when all deleted pods were replaced or a later pod
        fails."""
        uid = group["metadata"]["uid"]
        if (handled := self._handled.get(uid)) is None:
            return True
        there = {pod["metadata"]["uid"] for pod in pods}
        allocated = sum(1 for pod in pods if _is_allocated(pod))
        if handled.deleted.isdisjoint(there) and allocated >= group["spec"]["minMember"]:
            del self._handled[uid]
            return True
        labels = labels_of(group)
        watched = "on" in (labels.get("pod-rescheduling"), labels.get("process-recover-enable"))
        return watched and not handled.known.issuperset(reasons)

    def _spend_retry(self, group: Object) -> bool:
        left = self._retries.setdefault(group["metadata"]["uid"], _retry_times(group))
        self._retries[group["metadata"]["uid"]] = max(0, left - 1)
        return left > 0

    async def _delete(self, group: Object, pods: Sequence[Object], faulty: Sequence[Object], forced: bool) -> None:
        doomed = [pod for pod in (faulty if _keeps_others(group, faulty) else pods) if not is_terminating(pod)]
        uids = frozenset(pod["metadata"]["uid"] for pod in doomed)
        self._handled[group["metadata"]["uid"]] = Handled(uids, frozenset(pod["metadata"]["uid"] for pod in pods))
        for pod in doomed:
            with contextlib.suppress(NotFound, Conflict):  # another controller may delete it at the same time
                path = f"{self._pods}/{pod['metadata']['name']}"
                await self.api.delete(path, pod["metadata"]["uid"], 0 if forced else None)

    async def _tell_others(self, faulty: Sequence[Object], reasons: dict[str, str]) -> None:
        for pod in faulty:
            said = {"huawei.com/pod-status": f"Unhealthy-{reasons[pod['metadata']['uid']]}"}
            if not said.items() <= annotations_of(pod).items():
                path = f"{self._pods}/{pod['metadata']['name']}"
                await self.api.patch(path, {"metadata": {"uid": pod["metadata"]["uid"], "annotations": said}})


@contextlib.asynccontextmanager
async def operator_and_volcano(namespace: Namespace) -> AsyncIterator[tuple[AscendOperator, Volcano]]:
    """Runs both simulated controllers in a namespace, with the kinds that they use."""
    await apply_crds(namespace.api)
    async with AscendOperator(namespace) as operator, Volcano(namespace) as volcano:
        yield operator, volcano


def _keeps_others(group: Object, faulty: Sequence[Object]) -> bool:
    """Returns whether only faulty pods are deleted; the first condition that holds decides."""
    if annotations_of(group).get("huawei.com/recover_policy_path") == "pod":
        return True
    leads = (
        annotations_of(pod).get("hccl/rankIndex") == "0" and labels_of(pod).get("training.kubeflow.org/replica-type") != "worker"
        for pod in faulty
    )
    return not any(leads) and labels_of(group).get("process-recover-enable") == "on"


def _is_forced(group: Object, reasons: dict[str, str]) -> bool:
    if set(reasons.values()) == {"SubHealthFault"}:
        return _strategy(group) in FORCED
    return labels_of(group).get("fault-scheduling") == "force"


def _is_sub_health_fault(group: Object, pod: Object, node: Object | None) -> bool:
    sub_healthy = labels_of(pod).get("fault-type") == "SubHealth" or (node is not None and _has(node, "SubHealthy"))
    asked = annotations_of(pod).get("needVolcanoOpe") == "delete" or _strategy(group) != "hotSwitch"
    return sub_healthy and asked and _strategy(group) in ("graceExit", *FORCED)


def _is_refused(node: Object, group: Object) -> bool:
    """Returns whether new pods avoid the node. The scheduler itself refuses a node that is not ready."""
    sub_healthy = _has(node, "SubHealthy") and _strategy(group) in ("graceExit", *FORCED)
    return sub_healthy or annotations_of(node).get("NodeHealthyStatus") == "UnHealthy"


def _strategy(group: Object) -> str:
    return labels_of(group).get("subHealthyStrategy", "ignore")


def _retry_times(group: Object) -> int:
    said = labels_of(group).get("fault-retry-times", "0")
    return int(said) if said.isdecimal() else 0


def _has(node: Object, condition: str) -> bool:
    return any(one["type"] == condition and one["status"] == "True" for one in node["status"].get("conditions", ()))


def _has_failed(pod: Object) -> bool:
    ends = (one.get("lastState", {}).get("terminated", {}) for one in pod["status"].get("containerStatuses", ()))
    return pod["status"].get("phase") == "Failed" or any(end.get("exitCode") for end in ends)


def _is_allocated(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName")) and not is_terminating(pod) and pod["status"].get("phase") != "Failed"


def _asks_for_chips(pod: Object) -> bool:
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return any(name.startswith("huawei.com/") for limit in limits for name in limit)
