"""Plays the kubelet of some nodes: runs their pods as processes of this machine, and reports their status to the API server.

A pod is its first container: command, arguments, environment, readiness probe, and projected tokens. Other volumes, other probes
and limits are ignored. An image is at most a folder of Python packages (`container.py`). Annotations of a node make its kubelet
fail, so that a script needs only the API.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path

from activities.clusters.api_server import Api, Object
from rekindle.errors import ClusterUnavailable, Conflict, NotFound, WatchExpired
from simulators.kubernetes.container import DEFAULT_ACCOUNT, Containers, account_of
from simulators.kubernetes.network import LOOPBACK, Network, is_ready
from simulators.kubernetes.probes import FAILURES, PERIOD, STARTING, passes
from simulators.kubernetes.projected import REPLACED_AFTER, Projection, as_mounted, projections, write
from simulators.kubernetes.servers import Endpoint
from simulators.local_cluster.pods import last_line
from simulators.local_cluster.processes import Place, Processes

LOST = "kubelet.rekindle.io/lost"
"""Annotation of a node: the node is lost with its pods, and sends nothing any more."""

REFUSE = "kubelet.rekindle.io/refuse"
"""Annotation of a node: new pods fail to start, with this reason."""

START_AFTER = "kubelet.rekindle.io/start-after"
"""Annotation of a node: seconds that a new pod takes to start, as if an image were pulled."""

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_SECONDS = 2.0
RESTART_SECONDS = 1.0
RETRY_SECONDS = 0.5

logger = logging.getLogger("kubelet")


class Kubelet:
    """Kubelet of all nodes of this machine."""

    def __init__(self, api: Api, endpoint: Endpoint, logs: Path, instance: str) -> None:
        """Args:
        endpoint: the API server, for pods with an account of their own.
        instance: a value that no other cluster of this machine has.
        """
        self._api = api
        self._logs = logs
        self._processes = Processes(instance, self._ended)
        self._nodes: dict[str, Object] = {}
        self._pods: dict[str, Object] = {}
        """Last seen state of the pods on our nodes, by UID."""
        self._network = Network(api, self._pods.values)
        self._containers = Containers(api, endpoint, logs, self._network)
        self._passed: dict[str, bool] = {}
        """Whether a pod with a readiness probe is ready, by UID."""
        self._restarts: dict[str, int] = {}
        self._begun: set[str] = set()
        self._kills: dict[str, asyncio.TimerHandle] = {}
        self._writes: dict[str, asyncio.Lock] = {}
        self._work: set[asyncio.Task[None]] = set()

    async def run(self, names: Sequence[str], capacity: dict[str, str], ready: asyncio.Event) -> None:
        """Registers the nodes and serves them until it is cancelled; then ends all their pods on this machine."""
        self._logs.mkdir(parents=True, exist_ok=True)
        self._processes.start()
        try:
            for name in names:
                await self._register(name, capacity)
            ready.set()
            await asyncio.gather(self._follow("nodes"), self._follow("pods"), self._renew_leases())
        finally:
            self._network.close()
            for task in self._work:
                task.cancel()
            for uid in self._pods:
                self._processes.signal(uid, signal.SIGKILL)
            await self._processes.close()

    # ---- nodes

    async def _register(self, name: str, capacity: dict[str, str]) -> None:
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        with contextlib.suppress(Conflict):
            await self._api.create("/api/v1/nodes", body)
        amounts = {"pods": "1000", "cpu": "64", "memory": "256Gi", **capacity}
        addresses = [{"type": "InternalIP", "address": LOOPBACK}, {"type": "Hostname", "address": name}]
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [_ready()], "addresses": addresses}
        await self._api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        self._nodes[name] = await self._api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        await self._renew_lease(name)

    async def _renew_leases(self) -> None:
        """Renews the leases of all nodes that are not lost. A node without a renewed lease is lost for the cluster."""
        while True:
            await asyncio.sleep(LEASE_SECONDS)
            for name in self._nodes:
                if not self._says(name, LOST):
                    with contextlib.suppress(ClusterUnavailable, Conflict):
                        await self._renew_lease(name)

    async def _renew_lease(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 10, "renewTime": _now(micro=True)}
        try:
            await self._api.patch(f"{LEASES}/{name}", {"spec": spec})
        except NotFound:
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
            with contextlib.suppress(NotFound):  # the namespace comes a moment after the server
                await self._api.create(LEASES, body)

    def _says(self, node: str, annotation: str) -> str:
        return str(self._nodes[node]["metadata"].get("annotations", {}).get(annotation, ""))

    # ---- the watch

    async def _follow(self, kind: str) -> None:
        take = self._take_node if kind == "nodes" else self._take_pod
        while True:
            try:
                listing = await self._api.list(f"/api/v1/{kind}")
                for thing in listing.items:
                    take("ADDED", thing)
                if kind == "pods":
                    self._forget_all_but({pod["metadata"]["uid"] for pod in listing.items})
                async for change in self._api.watch(f"/api/v1/{kind}", listing.resource_version):
                    take(change.type, change.object)
            except (ClusterUnavailable, WatchExpired) as error:
                logger.info("watch interrupted", extra={"kind": kind, "reason": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    def _take_node(self, change: str, node: Object) -> None:
        name = node["metadata"]["name"]
        if name not in self._nodes or change not in ("ADDED", "MODIFIED"):
            return
        was_lost = self._says(name, LOST)
        self._nodes[name] = node
        if self._says(name, LOST):
            for pod in self._pods_on(name):
                self._processes.signal(pod["metadata"]["uid"], signal.SIGKILL)
        elif was_lost:
            self._spawn(self._come_back(name))
        elif not is_ready(node):
            self._spawn(self._say_ready(node))

    async def _say_ready(self, node: Object) -> None:
        """Reports a node as ready again, which was considered lost because its lease came late while many pods started."""
        name = node["metadata"]["name"]
        await self._renew_lease(name)
        others = [one for one in node["status"].get("conditions", ()) if one["type"] != "Ready"]
        body = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "status": {"conditions": [*others, _ready()]},
        }
        await self._until_told(lambda: self._api.patch(f"/api/v1/nodes/{name}/status", body))

    async def _come_back(self, name: str) -> None:
        """Brings a lost node back as after a reboot: the node is ready, and the pods that ran on it have ended."""
        await self._say_ready(self._nodes[name])
        for pod in self._pods_on(name):
            if pod["metadata"].get("deletionTimestamp"):
                await self._remove(pod)
            elif pod["status"].get("phase") == "Running" and not self._processes.running(pod["metadata"]["uid"]):
                await self._tell_end(pod, 128 + signal.SIGKILL)

    def _pods_on(self, node: str) -> list[Object]:
        return [pod for pod in self._pods.values() if pod["spec"]["nodeName"] == node]

    def _take_pod(self, change: str, pod: Object) -> None:
        if pod["spec"].get("nodeName") not in self._nodes:
            return
        uid = pod["metadata"]["uid"]
        if change == "DELETED":
            self._pods.pop(uid, None)
            self._writes.pop(uid, None)
            self._passed.pop(uid, None)
            self._processes.signal(uid, signal.SIGKILL)
            return
        self._pods[uid] = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._stop(pod)
        elif uid not in self._begun:
            self._begun.add(uid)
            self._spawn(self._begin(pod))
        elif self._is_given_up(pod):
            self._spawn(self._say_running(pod))

    def _is_given_up(self, pod: Object) -> bool:
        """Returns whether the pod runs and counts as not ready, although it has passed its probe."""
        uid = pod["metadata"]["uid"]
        runs = pod["status"].get("phase") == "Running" and self._processes.running(uid)
        return runs and not is_ready(pod) and self._passed.get(uid, True)

    async def _say_running(self, pod: Object) -> None:
        """Reports a pod as ready again, whose node was considered lost: disruption budgets count only ready pods."""
        if not self._says(pod["spec"]["nodeName"], LOST):
            await self._tell_running(pod)

    def _forget_all_but(self, there: set[str]) -> None:
        """Kills and removes pods that were deleted while no watch was open."""
        for uid in self._pods.keys() - there:
            self._processes.signal(uid, signal.SIGKILL)
            del self._pods[uid]

    # ---- the life of a pod

    async def _begin(self, pod: Object) -> None:
        if pod["status"].get("phase") != "Pending":
            return  # it ran under an earlier kubelet, whose end killed its processes
        node = pod["spec"]["nodeName"]
        if delay := self._says(node, START_AFTER):
            await self._tell(pod, _waiting(pod, "ContainerCreating"))
            await asyncio.sleep(float(delay))
        if reason := self._says(node, REFUSE):
            await self._tell(pod, _ended(pod, 128, 0, reason, f"the kubelet of {node} refuses to start it"))
        elif not self._says(node, LOST):
            await self._start(pod)

    async def _start(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if not self._is_wanted(uid):
            await self._remove(pod)
            return
        container = pod["spec"]["containers"][0]
        command = [*container.get("command", []), *container.get("args", [])]
        restarts = self._restarts.get(uid, 0)
        found = projections(pod, self._logs / uid)
        await self._until_told(lambda: self._project(pod, found))
        if (environment := await self._environment(pod)) is None:
            await self._remove(pod)
            return
        try:
            place = Place() if account_of(pod) == DEFAULT_ACCOUNT else Place(nice=0)  # accounts are for pods of the control plane
            self._processes.spawn(uid, command, as_mounted(environment, found), self._log(pod), place)
        except (OSError, ValueError, IndexError) as error:
            await self._tell(pod, _ended(pod, 127, restarts, "StartError", f"cannot start {command}: {error}"))
            return
        if probe := container.get("readinessProbe"):
            self._passed[uid] = False
            self._spawn(self._keep_probing(pod, probe))
        await self._tell_running(pod)
        for one in found:
            self._spawn(self._keep_projected(pod, one))

    async def _environment(self, pod: Object) -> dict[str, str] | None:
        """Returns the environment of a pod as soon as all that it names is there; None: the pod was deleted before."""
        environment = None
        while self._is_wanted(pod["metadata"]["uid"]):
            if environment is not None:
                return environment
            try:
                environment = await self._containers.environment(pod)
            except NotFound:
                await self._tell(pod, _waiting(pod, "CreateContainerConfigError"))
                await asyncio.sleep(RETRY_SECONDS)
            except ClusterUnavailable as error:
                logger.info("pod environment not read, retrying", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_SECONDS)
        return None

    def _is_wanted(self, uid: str) -> bool:
        return uid in self._pods and not self._pods[uid]["metadata"].get("deletionTimestamp")

    async def _keep_probing(self, pod: Object, probe: Object) -> None:
        """Probes a pod as long as this process of it runs, and reports whether it is ready.

        Until it has passed, it is probed as a container that starts.
        """
        uid, failures = pod["metadata"]["uid"], 0
        restarts = self._restarts.get(uid, 0)
        while self._processes.running(uid) and self._restarts.get(uid, 0) == restarts:
            passed = await passes(probe, pod, self._network.address_of(pod))
            failures = 0 if passed else failures + 1
            ready = passed or (self._passed.get(uid, False) and failures < probe.get("failureThreshold", FAILURES))
            if ready != self._passed.get(uid) and self._processes.running(uid):
                self._passed[uid] = ready
                await self._tell_running(pod)
            await asyncio.sleep(probe.get("periodSeconds", PERIOD) if ready else STARTING)

    async def _tell_running(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        ready, state = self._passed.get(uid, True), {"running": {"startedAt": _now()}}
        status = _status(pod, "Running", state, self._restarts.get(uid, 0), ready=ready)
        address = self._network.address_of(pod)
        own = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": LOOPBACK}
        await self._tell(pod, {**status, "startTime": _now(), **own})

    async def _project(self, pod: Object, found: Sequence[Projection]) -> None:
        for one in found:
            await write(self._api, pod, one)

    async def _keep_projected(self, pod: Object, one: Projection) -> None:
        """Renews a projected token as long as this process of the pod runs."""
        uid = pod["metadata"]["uid"]
        restarts = self._restarts.get(uid, 0)
        while True:
            await asyncio.sleep(one.seconds * REPLACED_AFTER)
            if not self._processes.running(uid) or self._restarts.get(uid, 0) != restarts:
                return
            await self._until_told(lambda: self._project(pod, [one]))

    def _stop(self, pod: Object) -> None:
        """Sends SIGTERM, and SIGKILL after the grace period. A second deletion may only shorten it."""
        uid, grace = pod["metadata"]["uid"], pod["metadata"].get("deletionGracePeriodSeconds") or 0
        if self._says(pod["spec"]["nodeName"], LOST):
            return
        if not self._processes.running(uid):
            self._spawn(self._remove(pod))
            return
        loop = asyncio.get_running_loop()
        pending = self._kills.get(uid)
        if pending is None and grace:
            self._processes.signal(uid, signal.SIGTERM)
        if pending is None or pending.when() > loop.time() + grace:
            if pending:
                pending.cancel()
            self._kills[uid] = loop.call_later(grace, self._processes.signal, uid, signal.SIGKILL)

    def _ended(self, uid: str, code: int) -> None:
        """Handles the end of a pod's last process."""
        if timer := self._kills.pop(uid, None):
            timer.cancel()
        if (pod := self._pods.get(uid)) and not self._says(pod["spec"]["nodeName"], LOST):
            self._spawn(self._tell_end(pod, code if code >= 0 else 128 - code))

    async def _tell_end(self, pod: Object, code: int) -> None:
        uid = pod["metadata"]["uid"]
        again = {"Always": True, "OnFailure": code != 0}.get(pod["spec"].get("restartPolicy", "Always"), False)
        if again and not pod["metadata"].get("deletionTimestamp"):
            self._restarts[uid] = self._restarts.get(uid, 0) + 1
            last = _terminated(code, "Error" if code else "Completed", last_line(self._log(pod)))
            await self._tell(pod, _waiting(pod, "CrashLoopBackOff", self._restarts[uid], last))
            await asyncio.sleep(RESTART_SECONDS)
            await self._start(pod)
            return
        reason = "Completed" if code == 0 else "Error"
        await self._tell(pod, _ended(pod, code, self._restarts.get(uid, 0), reason, last_line(self._log(pod)) if code else ""))
        if self._pods.get(uid, pod)["metadata"].get("deletionTimestamp"):
            await self._remove(pod)

    async def _remove(self, pod: Object) -> None:
        """Removes a terminated pod from the API server."""
        await self._until_told(lambda: self._api.delete(_path(pod), pod["metadata"]["uid"], 0))

    async def _tell(self, pod: Object, status: Object) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        async with self._writes.setdefault(pod["metadata"]["uid"], asyncio.Lock()):
            await self._until_told(lambda: self._api.patch(f"{_path(pod)}/status", body))

    async def _until_told(self, tell: Callable[[], Awaitable[object]]) -> None:
        """Retries a request until the API server answers. Requests for a pod that is gone or was replaced are dropped."""
        while True:
            try:
                await tell()
            except (NotFound, Conflict):
                return
            except ClusterUnavailable as error:
                logger.info("pod status not written, retrying", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _log(self, pod: Object) -> Path:
        metadata = pod["metadata"]
        return self._logs / f"{metadata['namespace']}_{metadata['name']}.{metadata['uid'][:8]}.log"

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("pod abandoned", exc_info=error)


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _waiting(pod: Object, reason: str, restarts: int = 0, last: Object | None = None) -> Object:
    phase = "Running" if restarts else "Pending"
    status = _status(pod, phase, {"waiting": {"reason": reason}}, restarts)
    status["containerStatuses"][0]["lastState"] = last or {}
    return status


def _terminated(code: int, reason: str, message: str) -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": _now()}}


def _ended(pod: Object, code: int, restarts: int, reason: str, message: str) -> Object:
    state = _terminated(code, reason, message)
    status = _status(pod, "Succeeded" if code == 0 else "Failed", state, restarts)
    return {**status, **({"reason": reason, "message": message} if code else {})}


def _status(pod: Object, phase: str, state: Object, restarts: int, *, ready: bool = False) -> Object:
    container = pod["spec"]["containers"][0]
    told = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": restarts,
        "state": state,
    }
    word = "True" if ready else "False"
    reason = "" if ready else "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
    kept = [known for known in pod["status"].get("conditions", []) if known["type"] == "PodScheduled"]
    ours = [_condition(kind, word, reason, "") for kind in ("Ready", "ContainersReady")]
    initialized = _condition("Initialized", "True", "", "")
    return {"phase": phase, "conditions": [*kept, initialized, *ours], "containerStatuses": [told]}


def _ready() -> Object:
    return _condition("Ready", "True", "KubeletReady", "pods run as processes of this machine")


def _condition(kind: str, status: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": _now()}


def _now(*, micro: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
