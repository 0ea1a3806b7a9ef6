"""Scripted simulation of the Ascend Operator: a controller over the real API server, for the jobs of one namespace.

It creates PodGroups and pods, and does its part of a hot switch including its weak points. It creates a backup pod in one write
and stores its name in another. It acts on the end of a pod only if it sees the event. Keys are spelled out again here, so that a
misspelling of ours is noticed. Source: Ascend Operator.
"""

import contextlib
import logging
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from activities.clusters.api_server import Object
from rekindle.errors import Conflict, NotFound
from tests.fakes.controller import Controller, annotations_of, is_terminating, labels_of
from tests.kubernetes.world.control_plane import ACCELERATOR, Namespace

LEADERS = ("Master", "Scheduler", "Chief")
GATE = "volcano"
"""Scheduling gate. A pod is scheduled by the real scheduler after Volcano has removed this gate."""

WATCHDOG = {"HCCL_ASYNC_ERROR_HANDLING": "0"}
RECOVER = {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}
WORDS = {
    "recover": ("recover", RECOVER),
    "retry": ("retry", RECOVER),
    "recover-in-place": ("recover", {**RECOVER, "ENABLE_RESTART_FAULT_PROCESS": "on"}),
    "dump": ("dump", RECOVER),
    "exit": ("recover", RECOVER),
    "elastic-training": ("elastic-training", {"PROCESS_RECOVER": "on"}),
}
"""Effect of each word of recover-strategy for PyTorch: the word for HIGH_AVAILABILITY, and the environment."""

logger = logging.getLogger("peers")


def jobs_path(namespace: str, name: str = "") -> str:
    return f"/apis/mindxdl.gitee.com/v1/namespaces/{namespace}/ascendjobs" + (f"/{name}" if name else "")


def groups_path(namespace: str, name: str = "") -> str:
    return f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups" + (f"/{name}" if name else "")


def group_of(job: Object) -> str:
    """Returns the name of a job's PodGroup."""
    return f"{job['metadata']['name']}-{job['metadata']['uid']}"


async def submit_ascend_job(
    namespace: Namespace,
    name: str = "demo",
    *,
    workers: int = 1,
    accelerators: int = 1,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    command: tuple[str, ...] = ("sleep", "1000"),
) -> Object:
    """Creates a PyTorch job of one Master and some Workers."""
    resources = {"limits": {ACCELERATOR: str(accelerators)}} if accelerators else {}
    container = {"name": "ascend", "image": "none", "command": list(command), "resources": resources}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    replicas = {"Master": {"replicas": 1, "template": template}, "Worker": {"replicas": workers, "template": template}}
    body = {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": name, "labels": {"framework": "pytorch", **(labels or {})}, "annotations": annotations or {}},
        "spec": {"schedulerName": "volcano", "replicaSpecs": {key: one for key, one in replicas.items() if one["replicas"]}},
    }
    return await namespace.api.create(jobs_path(namespace.name), body)


class AscendOperator(Controller):
    """Simulated operator: `async with AscendOperator(namespace) as operator:`. Its script may be changed at any time."""

    def __init__(self, namespace: Namespace, server_ip: str = "127.0.0.1") -> None:
        """Args:
        server_ip: address at which its jobs find the gateway.
        """
        self._jobs, self._groups, self._pods = jobs_path(namespace.name), groups_path(namespace.name), namespace.path("pods")
        super().__init__(namespace, self._jobs, self._groups, self._pods)
        self._server_ip = server_ip
        self._versions: dict[str, int] = {}
        self.failing_patches = 0
        """Number of times that writing the backup's name to the old pod fails. The round is then repeated with another backup."""
        self.misses_the_end_of: set[str] = set()
        """Names of pods whose deletion it does not notice."""

    async def round(self) -> None:
        for job in self.known(self._jobs):
            if not is_terminating(job) and not self._has(job, "Failed"):
                await self._reconcile(job)

    async def _reconcile(self, job: Object) -> None:
        group = await self._ensure_group(job)
        pods = self._pods_of(job)
        for pod in pods:
            await self._serve(job, pod)
        if group.get("status", {}).get("phase", "Pending") != "Pending":
            for kind, index in self._missing(job):
                await self._create(job, kind, index, f"{job['metadata']['name']}-{kind.lower()}-{index}", {})
        await self._tell_status(job)

    # ---- gang

    async def _ensure_group(self, job: Object) -> Object:
        for group in self.known(self._groups):
            if group["metadata"]["name"] == group_of(job):
                return group
        labels, annotations = dict(labels_of(job)), dict(annotations_of(job))
        if "recover-strategy" in annotations:
            labels["process-recover-enable"] = "on"
        policy = job["spec"].get("runPolicy", {}).get("schedulingPolicy", {})
        body = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {
                "name": group_of(job),
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [_owner(job)],
            },
            "spec": {"minMember": policy.get("minAvailable") or len(list(_places(job)))},
        }
        group = await self.api.create(self._groups, body)
        self.remember(self._groups, group)
        return group

    # ---- pods

    def _pods_of(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        return [pod for pod in self.known(self._pods) if uid in {o["uid"] for o in pod["metadata"].get("ownerReferences", ())}]

    def _missing(self, job: Object) -> list[tuple[str, int]]:
        """Returns replica types and indices without a pod. A backup pod holds no place until it is promoted."""
        taken = {_place_of(pod) for pod in self._pods_of(job) if not _is_backup(pod)}
        return [(kind, index) for kind, index in _places(job) if (kind.lower(), str(index)) not in taken]

    async def _create(self, job: Object, kind: str, index: int, name: str, marks: dict[str, str]) -> Object:
        template = deepcopy(job["spec"]["replicaSpecs"][kind]["template"])
        metadata, spec = template.get("metadata", {}), template["spec"]
        rank = _rank(job, kind, index)
        labels = {
            "training.kubeflow.org/job-name": job["metadata"]["name"],
            "training.kubeflow.org/replica-type": kind.lower(),
            "training.kubeflow.org/replica-index": str(index),
            "training.kubeflow.org/operator-name": "ascendjob-controller",
            **({"training.kubeflow.org/job-role": "master"} if kind in LEADERS else {}),
            "version": str(self._version(job)),
        }
        annotations = {
            "volcano.sh/task-spec": kind.lower(),
            "scheduling.k8s.io/group-name": group_of(job),
            **({"hccl/rankIndex": str(rank)} if rank is not None else {}),
            **marks,
        }
        for container in spec["containers"]:
            if container["name"] == "ascend":
                container["env"] = [*container.get("env", ()), *self._environment(job, kind, index)]
        policy = job["spec"]["replicaSpecs"][kind].get("restartPolicy", "Never")
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {**metadata.get("labels", {}), **labels},
                "annotations": {**metadata.get("annotations", {}), **annotations},
                "ownerReferences": [_owner(job)],
            },
            "spec": {"restartPolicy": policy, **spec, "schedulingGates": [{"name": GATE}]},
        }
        pod = await self.api.create(self._pods, body)
        self.remember(self._pods, pod)
        return pod

    def _environment(self, job: Object, kind: str, index: int) -> list[Object]:
        chips = [_chips(job, kind) for kind, _ in _places(job)]
        variables = {
            "MINDX_TASK_ID": job["metadata"]["uid"],
            "MINDX_SERVER_IP": self._server_ip,
            "REPLICA_TYPE": kind,
            "MASTER_ADDR": "127.0.0.1",  # all pods are processes of one machine
            "MASTER_PORT": "2222",
            "WORLD_SIZE": str(sum(chips)),
            "RANK": str(_rank(job, kind, index) or 0),
            "LOCAL_WORLD_SIZE": str(_chips(job, kind)),
            "LOCAL_RANK": ",".join(str(chip) for chip in range(_chips(job, kind))),
            **_recovery(job),
        }
        return [{"name": name, "value": value} for name, value in variables.items()]

    # ---- hot switch

    async def _serve(self, job: Object, pod: Object) -> None:
        marks = annotations_of(pod)
        if _is_backup(pod):
            if marks.get("needOperatorOpe") == "delete" and not is_terminating(pod):
                with contextlib.suppress(NotFound, Conflict):  # Volcano may delete it at the same time
                    await self.api.delete(f"{self._pods}/{pod['metadata']['name']}", pod["metadata"]["uid"], 0)
        elif marks.get("needOperatorOpe") == "create" and marks.get("needVolcanoOpe") != "delete":
            backup = await self.make_backup(job, pod)
            if self.failing_patches:
                self.failing_patches -= 1
                raise Conflict("scripted: the old pod is not told of its backup")
            name = backup["metadata"]["name"]
            await self._annotate(pod["metadata"]["name"], {"needOperatorOpe": None, "backupNewPodName": name})

    async def make_backup(self, job: Object, old: Object) -> Object:
        """Creates a backup pod, the first half of its answer to `create`. A test that calls it simulates an Operator that died
        then."""
        kind, index = _place_of(old)
        (name,) = (name for name in job["spec"]["replicaSpecs"] if name.lower() == kind)
        source = old["metadata"]["name"]
        marks = {"inHotSwitchFlow": "true", "podType": "backup", "backupSourcePodName": source}
        return await self._create(job, name, int(index), f"{source}-hot-{random.randrange(10_000):04d}", marks)

    async def deleted(self, path: str, thing: Object) -> None:
        name = thing["metadata"]["name"]
        if path != self._pods or name in self.misses_the_end_of:
            return
        owners = {owner["uid"] for owner in thing["metadata"].get("ownerReferences", ())}
        for job in self.known(self._jobs):
            if job["metadata"]["uid"] in owners and labels_of(thing).get("version") == str(self._version(job)):
                self._versions[job["metadata"]["uid"]] += 1
        marks = annotations_of(thing)
        if _is_backup(thing):
            await self._annotate(marks.get("backupSourcePodName", ""), {"inHotSwitchFlow": None, "backupNewPodName": None})
        elif marks.get("inHotSwitchFlow") == "true":
            await self._annotate(marks.get("backupNewPodName", ""), {"podType": None, "backupSourcePodName": None})

    async def _annotate(self, name: str, annotations: dict[str, str | None]) -> None:
        """Annotates a pod, unless the name is empty or the pod is gone."""
        if not name:
            return
        try:
            patched = await self.api.patch(f"{self._pods}/{name}", {"metadata": {"annotations": annotations}})
        except NotFound:
            logger.info("no pod to annotate", extra={"pod": name})
        else:
            self.remember(self._pods, patched)

    # ---- status

    def _version(self, job: Object) -> int:
        return self._versions.setdefault(job["metadata"]["uid"], 0)

    def _has(self, job: Object, kind: str) -> bool:
        return any(one["type"] == kind and one["status"] == "True" for one in job.get("status", {}).get("conditions", ()))

    async def _tell_status(self, job: Object) -> None:
        """Writes the status of a job. A failed pod fails it unless the pod is restarted; so do more generations than allowed."""
        pods = [pod for pod in self._pods_of(job) if not _is_backup(pod)]
        failed = any(pod["status"].get("phase") == "Failed" and not is_terminating(pod) for pod in pods)
        running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
        retries = int(labels_of(job).get("fault-retry-times", "0"))
        limit = job["spec"].get("runPolicy", {}).get("backoffLimit") or retries or -1
        lost = 0 < limit < self._version(job)
        again = failed and (retries > 0 or self._has(job, "Restarting"))
        word = "Failed" if lost or (failed and not again) else "Restarting" if again else ""
        wanted = len(list(_places(job)))
        done = sum(pod["status"].get("phase") == "Succeeded" for pod in pods) >= wanted
        word = word or ("Succeeded" if done else "Running" if len(running) >= wanted else "")
        conditions = [{"type": kind, "status": "True"} for kind in ("Created", word) if kind]
        if conditions != job.get("status", {}).get("conditions"):
            path = f"{self._jobs}/{job['metadata']['name']}/status"
            self.remember(self._jobs, await self.api.patch(path, {"status": {"conditions": conditions}}))


def _owner(job: Object) -> Object:
    metadata = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**owner, "controller": True, "blockOwnerDeletion": True}


def _places(job: Object) -> Iterator[tuple[str, int]]:
    """Yields the replica type and index of each of its pods, the leader first."""
    replicas: dict[str, Any] = job["spec"]["replicaSpecs"]
    for kind in sorted(replicas, key=lambda kind: (kind not in LEADERS, kind)):
        for index in range(int(replicas[kind].get("replicas", 1))):
            yield kind, index


def _place_of(pod: Object) -> tuple[str, str]:
    labels = labels_of(pod)
    return labels["training.kubeflow.org/replica-type"], labels["training.kubeflow.org/replica-index"]


def _is_backup(pod: Object) -> bool:
    return annotations_of(pod).get("podType") == "backup"


def _chips(job: Object, kind: str) -> int:
    containers = job["spec"]["replicaSpecs"][kind]["template"]["spec"]["containers"]
    limits = [container.get("resources", {}).get("limits", {}) for container in containers]
    return sum(int(amount) for limit in limits for name, amount in limit.items() if name.startswith("huawei.com/"))


def _rank(job: Object, kind: str, index: int) -> int | None:
    """Returns the rank of a pod. Workers follow a leader that mounts chips; a leader without chips has no rank (None)."""
    if kind in LEADERS:
        return 0 if _chips(job, kind) else None
    leaders = (leader for leader in LEADERS if leader in job["spec"]["replicaSpecs"])
    return index + sum(1 for leader in leaders if _chips(job, leader))


def _recovery(job: Object) -> dict[str, str]:
    """Returns the variables that it injects for PyTorch, by the values of recover-strategy and the sub-health strategy."""
    said = annotations_of(job).get("recover-strategy", "")
    words = [word for word in said.split(",") if word in WORDS]
    able = {WORDS[word][0] for word in words}
    variables: dict[str, str] = dict(WATCHDOG) if said else {}
    for word in words:
        variables |= WORDS[word][1]
    if labels_of(job).get("subHealthyStrategy") == "hotSwitch":
        able.add("recover")
        variables |= RECOVER
    return {**variables, "HIGH_AVAILABILITY": ",".join(sorted(able))} if said or able else variables
