"""Valid objects of Kubernetes, one of each kind that is read, to be used unchanged or modified."""

import copy
from typing import Any

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Kind
from activities.clusters.kubernetes.kinds import ASCEND_JOB, BATCH_JOB, JOB_SET, PYTORCH_JOB, TRAIN_JOB, TRAINING_JOB
from activities.clusters.kubernetes.kinds.batch_job import COMPLETION_INDEX
from rekindle.model import keys

MOMENT = "2026-01-02T03:04:05Z"


def _metadata(name: str, **more: Any) -> Object:
    metadata: Object = {"name": name, "namespace": "default", "uid": f"uid-of-{name}", "resourceVersion": "7"}
    return {**metadata, "creationTimestamp": MOMENT, "labels": {}, "annotations": {}, **more}


def pod(job_id: str, name: str) -> Object:
    """Returns a running pod of rank 0; without a job id its job follows from its owner references."""
    mine = {keys.JOB_ID: job_id} if job_id else {}
    labels = {**mine, keys.BARE_JOB_NAME: "loose", "batch.kubernetes.io/job-name": "job"}
    annotations = {keys.RANK_INDEX: "0", COMPLETION_INDEX: "0", keys.PODS: "2"}
    ready = {"type": "Ready", "status": "True", "reason": "Works", "message": "well", "lastTransitionTime": MOMENT}
    terminated = {"exitCode": 1, "reason": "Error", "message": "it broke"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(name, labels=labels, annotations=annotations, deletionTimestamp=None),
        "spec": {**_pod_spec(), "nodeName": "node-0"},
        "status": {
            "phase": "Running",
            "conditions": [ready],
            "containerStatuses": [{"name": "main", "state": {"terminated": terminated}}],
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "hostIP": "192.168.0.1",
            "reason": "",
            "message": "",
        },
    }


def _pod_spec() -> Object:
    term = {
        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-9"]}],
    }
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    reference = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {
        "name": "main",
        "image": "training",
        "command": ["train"],
        "args": ["--fast"],
        "env": [{"name": "LOCAL_WORLD_SIZE", "value": "2"}, reference],
        "resources": {"limits": {"huawei.com/Ascend910": "2", "cpu": "1"}, "requests": {"cpu": "1"}},
    }
    return {
        "containers": [container],
        "affinity": {"nodeAffinity": required},
        "terminationGracePeriodSeconds": 10,
        "hostNetwork": False,
    }


def node(name: str) -> Object:
    conditions = [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready", "lastTransitionTime": MOMENT},
        {"type": "SubHealthy", "status": "False", "lastTransitionTime": MOMENT},
    ]
    allocatable = {"cpu": "8", "huawei.com/Ascend910": "8"}
    return {"metadata": _metadata(name), "status": {"allocatable": allocatable, "conditions": conditions}}


def namespace(name: str) -> Object:
    return {"metadata": _metadata(name, labels={keys.MODE: "observe"}), "status": {"phase": "Active"}}


def _template() -> Object:
    return {"metadata": {"labels": {keys.REPLICA_TYPE: "worker"}, "annotations": {}}, "spec": _pod_spec()}


def _job(kind: Kind, spec: Object) -> Object:
    annotations = {keys.RANKS_PER_POD: "2", keys.LIMITS: '{"pause": 60}', keys.TRAINING_SIDE: "rekindle"}
    metadata = _metadata("job", labels={keys.MANAGED: "true", keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}, annotations=annotations)
    running = {"type": "Running", "status": "True", "reason": "Runs", "message": "it runs"}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": metadata,
        "spec": spec,
        "status": {"conditions": [running]},
    }


def _training_job() -> Object:
    body = _job(
        TRAINING_JOB,
        {
            "pods": 2,
            "ranksPerPod": 2,
            "command": ["train"],
            "env": {"A": "b"},
            "accelerators": 0,
            "manager": ["manage"],
            "trainingSide": "rekindle",
            "capabilities": ["watchdog"],
            "limits": {"pause": 60},
            "kubernetes": {
                "image": "training",
                "pod": {"affinity": _pod_spec()["affinity"], "tolerations": []},
                "container": {"resources": {"limits": {"cpu": "1"}}},
            },
        },
    )
    body["metadata"]["annotations"] = {keys.CAPABILITIES: "watchdog"}
    return {**body, "status": {}}


_INDEXED = {"template": _template(), "completions": 2, "parallelism": 2, "suspend": False}

JOBS: dict[Kind, Object] = {
    TRAINING_JOB: _training_job(),
    ASCEND_JOB: _job(ASCEND_JOB, {"replicaSpecs": {"Master": {"replicas": 1, "template": _template()}}}),
    BATCH_JOB: _job(BATCH_JOB, copy.deepcopy(_INDEXED)),
    JOB_SET: _job(
        JOB_SET, {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": copy.deepcopy(_INDEXED)}}]}
    ),
    PYTORCH_JOB: _job(
        PYTORCH_JOB,
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": _template()}}, "runPolicy": {"suspend": False}},
    ),
    TRAIN_JOB: _job(
        TRAIN_JOB,
        {
            "trainer": {
                "numNodes": 2,
                "numProcPerNode": 2,
                "image": "training",
                "command": ["train"],
                "args": [],
                "env": [{"name": "A", "value": "b"}],
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": "2"}},
            }
        },
    ),
}
