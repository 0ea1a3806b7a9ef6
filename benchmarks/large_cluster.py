"""Objects of a large cluster, of realistic size, and a writer that puts 16,000 of them into etcd. Used by `benchmarks.watcher`.

They are written into etcd as JSON, which the API server can read. Through the API server it would be 26,000 requests (objects,
and the status of each), which take minutes and do not concern the watcher.
"""

import asyncio
import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import aiohttp

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kinds.batch_job import BATCH_JOB_NAME, COMPLETION_INDEX
from rekindle.model import keys

NAMESPACE = "training"
DEVICE = "nvidia.com/gpu"
MOMENT = "2026-11-20T08:00:00Z"
MANAGED_FIELDS, OF_A_NODE = 40, 20
"""Number of `managedFields` entries of an object, and of a node."""

IMAGES = 50
"""Number of images in a node's status: the default of the kubelet."""

AT_ONCE = 50
"""Objects in one transaction of etcd, which accepts 1.5 MiB."""

WRITERS = 8

Keyed = tuple[str, Object]
"""Key in etcd and the object to store there."""


@dataclass(frozen=True)
class Size:
    pods: int
    jobs: int
    nodes: int
    largest: int
    """Number of pods of the first job; the others share the rest."""

    def pods_of(self, job: int) -> int:
        if job == 0:
            return self.largest
        each, more = divmod(self.pods - self.largest, self.jobs - 1)
        return each + (job <= more)


def everything(size: Size) -> Iterator[Keyed]:
    """Yields the namespace, jobs, pods and nodes. Every second job is a Job of batch/v1, the others are TrainingJobs."""
    yield f"/registry/namespaces/{NAMESPACE}", _namespace()
    for number in range(size.nodes):
        yield node_key(number), node(number)
    place = 0
    for number in range(size.jobs):
        yield _job_key(number), job(number, size.pods_of(number))
        for rank in range(size.pods_of(number)):
            yield pod_key(number, rank), pod(number, rank, place % size.nodes)
            place += 1


def pod_key(job: int, rank: int) -> str:
    return f"/registry/pods/{NAMESPACE}/{_job_name(job)}-{rank}"


def job_uid(number: int) -> str:
    return _uid("job", number)


def node_key(number: int) -> str:
    return f"/registry/minions/{_node_name(number)}"


def _job_key(number: int) -> str:
    return f"/registry/{'jobs' if _is_batch(number) else 'rekindle.io/trainingjobs'}/{NAMESPACE}/{_job_name(number)}"


def _is_batch(job: int) -> bool:
    return job % 2 == 1


def _job_name(number: int) -> str:
    return f"pretrain-{number:04}"


def _node_name(number: int) -> str:
    return f"gpu-node-{number:04}.cluster.example"


def _uid(*what: object) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "/".join(map(str, what))))


def _namespace() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "uid": _uid("namespace"), "creationTimestamp": MOMENT},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


# ---- jobs


def job(number: int, pods: int) -> Object:
    batch = _is_batch(number)
    metadata = {
        "name": _job_name(number),
        "namespace": NAMESPACE,
        "uid": job_uid(number),
        "generation": 1,
        "creationTimestamp": MOMENT,
        "labels": {keys.MANAGED: "true", keys.SUB_HEALTHY_STRATEGY: "hotSwitch", "team": f"team-{number % 20}"},
        "annotations": {keys.RANKS_PER_POD: "8", "example.com/submitted-by": "a.person@example.com"} if batch else {},
        "managedFields": _managed_fields("submit", "controller"),
    }
    if not batch:
        command = ["torchrun", "--nnodes", str(pods), "train.py"]
        pod_spec = {"volumes": [{"name": f"data-{one}", "persistentVolumeClaim": {"claimName": "data"}} for one in range(4)]}
        spec: Object = {"pods": pods, "ranksPerPod": 8, "command": command, "env": dict(_environment())}
        spec["kubernetes"] = {"image": "registry.example/training:1.0", "acceleratorResource": DEVICE, "pod": pod_spec}
        status: Object = {"phase": "Running", "observedGeneration": 1, "conditions": [_condition("Training", "Running")]}
        return {"apiVersion": "rekindle.io/v1", "kind": "TrainingJob", "metadata": metadata, "spec": spec, "status": status}
    template = {"metadata": {"labels": {BATCH_JOB_NAME: _job_name(number)}}, "spec": _pod_spec("")}
    selector = {"matchLabels": {"batch.kubernetes.io/controller-uid": job_uid(number)}}
    spec = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "backoffLimit": 6, "suspend": False}
    spec |= {"selector": selector, "template": template}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": spec,
        "status": {"active": pods, "ready": pods, "startTime": MOMENT, "uncountedTerminatedPods": {}},
    }


# ---- pods


def pod(job: int, rank: int, place: int, *, failed: bool = False) -> Object:
    """Returns a pod of a job, on the node with the number `place`."""
    name, batch, uid = _job_name(job), _is_batch(job), job_uid(job)
    labels = {
        keys.GENERATION: "0",
        "app.kubernetes.io/name": "training",
        "app.kubernetes.io/instance": name,
        "team": f"team-{job % 20}",
        "topology.kubernetes.io/zone": f"zone-{place % 4}",
        keys.REPLICA_TYPE: "worker",
    }
    if batch:
        labels |= {BATCH_JOB_NAME: name, "job-name": name, COMPLETION_INDEX: str(rank)}
        labels |= {"batch.kubernetes.io/controller-uid": uid, "controller-uid": uid}
    else:
        labels |= {keys.JOB_ID: uid}
    annotations = {COMPLETION_INDEX: str(rank)} if batch else {keys.RANK_INDEX: str(rank)}
    annotations |= {
        "k8s.v1.cni.cncf.io/network-status": json.dumps([{"name": f"rdma-{one}", "interface": f"net{one}"} for one in range(8)]),
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9400",
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job"} if batch else {"apiVersion": "rekindle.io/v1", "kind": "TrainingJob"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{rank}",
            "namespace": NAMESPACE,
            "uid": _uid("pod", job, rank),
            "creationTimestamp": MOMENT,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{**owner, "name": name, "uid": uid, "controller": True, "blockOwnerDeletion": True}],
            "managedFields": _managed_fields("controller", "kubelet"),
        },
        "spec": _pod_spec(_node_name(place)),
        "status": _pod_status(job, rank, failed=failed),
    }


def _pod_spec(node: str) -> Object:
    names = ["data", "checkpoints", "scripts", "cache", "shared-memory"]
    mounts = [{"name": name, "mountPath": f"/mnt/{name}"} for name in names]
    container = {
        "name": "training",
        "image": "registry.example/training@sha256:" + "5e" * 32,
        "imagePullPolicy": "IfNotPresent",
        "command": ["torchrun", "--nnodes", "16", "--nproc-per-node", "8", "train.py"],
        "args": ["--config", "/mnt/scripts/config.yaml", "--resume"],
        "env": [{"name": name, "value": text} for name, text in _environment()]
        + [{"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
        "resources": {key: {"cpu": "96", "memory": "1Ti", DEVICE: "8", "rdma/hca": "8"} for key in ("limits", "requests")},
        "volumeMounts": mounts,
        "ports": [{"containerPort": 29500, "name": "master", "protocol": "TCP"}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    tolerations = [
        {"key": DEVICE, "operator": "Exists", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]
    return {
        "containers": [container],
        "volumes": [{"name": name, "emptyDir": {}} for name in names],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "schedulerName": "default-scheduler",
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "securityContext": {},
        "tolerations": tolerations,
        **({"nodeName": node} if node else {}),
    }


def _environment() -> list[tuple[str, str]]:
    return [(f"NCCL_SETTING_{number}", f"value-of-setting-{number}") for number in range(24)]


def _pod_status(job: int, rank: int, *, failed: bool) -> Object:
    address = f"10.{job % 250}.{rank // 250}.{rank % 250}"
    ended = {"exitCode": 1, "reason": "Error", "startedAt": MOMENT, "finishedAt": _now(), "message": "NCCL error: unhandled"}
    container = {
        "name": "training",
        "image": "registry.example/training",
        "imageID": "registry.example/training@sha256:" + "5e" * 32,
        "containerID": "containerd://" + "7f" * 32,
        "ready": not failed,
        "started": not failed,
        "restartCount": 0,
        "state": {"terminated": ended} if failed else {"running": {"startedAt": MOMENT}},
        "lastState": {},
    }
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Failed" if failed else "Running",
        "conditions": [_condition(kind, "") for kind in kinds],
        "hostIP": f"192.168.{job % 250}.{rank % 250}",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": MOMENT,
        "qosClass": "Guaranteed",
        "containerStatuses": [container],
    }


# ---- nodes


def node(number: int) -> Object:
    """Returns a node as its kubelet and the usual daemons would write it."""
    name = _node_name(number)
    amounts = {"cpu": "192", "memory": "2113428468Ki", "pods": "250", "ephemeral-storage": "7000000Mi", DEVICE: "8"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": f"zone-{number % 4}"}
    labels |= {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{one}": "true" for one in range(60)}
    annotations = {"nfd.node.kubernetes.io/feature-labels": ",".join(f"cpu-cpuid.FEATURE{one}" for one in range(60))}
    names = ("MemoryPressure", "DiskPressure", "PIDPressure", "KernelDeadlock", "ReadonlyFilesystem", "FrequentKubeletRestart")
    well = [{**_condition(name, "NothingIsWrong"), "status": "False", "lastHeartbeatTime": _now()} for name in names]
    digests = [f"registry.example/project/image-{one}@sha256:{one:064}" for one in range(IMAGES)]
    images = [{"names": [digest, f"registry.example/project/image-{one}:1.{one}"]} for one, digest in enumerate(digests)]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": _uid("node", number),
            "creationTimestamp": MOMENT,
            "labels": labels,
            "annotations": annotations,
            "managedFields": _managed_fields("kubelet", "node-problem-detector", "feature-discovery", count=OF_A_NODE),
        },
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": f"cloud://{name}"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [*well, {**_condition("Ready", "KubeletReady"), "lastHeartbeatTime": _now()}],
            "addresses": [{"type": "InternalIP", "address": f"192.168.{number // 250}.{number % 250}"}],
            "images": [{**image, "sizeBytes": 1234567890} for image in images],
            "nodeInfo": {"kubeletVersion": "v1.36.3", "osImage": "Linux", "kernelVersion": "6.8.0", "architecture": "amd64"},
        },
    }


# ---- what all objects have


def _managed_fields(*managers: str, count: int = MANAGED_FIELDS) -> list[Object]:
    return [
        {
            "manager": managers[number % len(managers)],
            "operation": "Update",
            "apiVersion": "v1",
            "time": MOMENT,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:annotations": {f"f:example.com/field-{number}-{one}": {} for one in range(4)}}},
        }
        for number in range(count)
    ]


def _condition(kind: str, reason: str) -> Object:
    said = {"reason": reason, "message": f"{reason} since the beginning"} if reason else {}
    return {"type": kind, "status": "True", "lastTransitionTime": MOMENT, **said}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- etcd


Written = Sequence[bytes]
"""Transactions that are ready to be sent to etcd."""


def written(things: Iterable[Keyed], at_once: int = AT_ONCE) -> Iterator[bytes]:
    """Yields transactions for these objects.

    Changes that a watch has to show are written one by one, as an API server does. Objects of one transaction have the same
    resource version, and a watch that begins in the middle of them misses the rest.
    """
    for batch in _batches(things, at_once):
        puts = [{"requestPut": {"key": _encoded(key), "value": _encoded(json.dumps(one))}} for key, one in batch]
        yield json.dumps({"success": puts}).encode()


class Etcd:
    """Client of etcd's JSON gateway."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def put(self, transactions: Iterable[bytes]) -> None:
        """Sends all transactions, a few at a time."""
        waiting = iter(transactions)
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(self._put_all(session, waiting))

    async def _put_all(self, session: aiohttp.ClientSession, waiting: Iterator[bytes]) -> None:
        for transaction in waiting:
            async with session.post(f"{self._url}/v3/kv/txn", data=transaction) as answer:
                answer.raise_for_status()


def _batches(things: Iterable[Keyed], size: int) -> Iterator[Sequence[Keyed]]:
    waiting = iter(things)
    while batch := list(islice(waiting, size)):
        yield batch


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
