"""Events about objects of Kubernetes, as `kubectl get events` shows them. Written by the port and by `workers.operator`."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.kind import Workload
from rekindle.errors import Conflict
from rekindle.model.cluster import ClusterEvent

REPORTER = "rekindle"

LONGEST_STEM = 236
"""Maximum length of the object's name in the name of an event, which has 253 characters."""


@dataclass(frozen=True)
class About:
    """The object that an event is about."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    word: str
    """Prefix of the reasons of events about this object, such as `Job`."""

    version: str = ""
    """Resource version of the object when it was read."""


def about_job(job: Workload) -> About:
    kind, name = job.kind.name, job.name
    if not job.kind.has_object:
        kind, name = "Pod", job.object["status"]["speaker"]
    return About(kind, job.kind.api_version, job.namespace, name, job.uid, "Job", _version(job.metadata))


def about_other(kind: str, thing: Object) -> About:
    """Describes a pod, a node or a namespace. Events of objects without a namespace are in `default`."""
    metadata = thing["metadata"]
    return About(kind, "v1", metadata.get("namespace") or "default", metadata["name"], metadata["uid"], kind, _version(metadata))


def _version(metadata: Object) -> str:
    return str(metadata.get("resourceVersion", ""))


async def record(api: Api, about: About, event: ClusterEvent) -> None:
    """Writes an event once.

    Its name is derived from its content, so that a repeated call finds it. So does another process of ours that reports the same
    for the same version of the object.
    """
    moment = (event.timestamp or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = moment if event.timestamp else about.version or moment
    key = hashlib.sha256(f"{about.uid}{event.reason}{event.message}{state}".encode()).hexdigest()[:16]
    of_one_pod = about.word == "Job" and about.kind == "Pod"  # this pod represents its job, whose UID differs
    involved = {"apiVersion": about.api_version, "kind": about.kind, "namespace": about.namespace, "name": about.name}
    body = {
        "metadata": {"name": f"{about.name[:LONGEST_STEM].rstrip('-.')}.{key}", "namespace": about.namespace},
        "involvedObject": involved if of_one_pod else {**involved, "uid": about.uid},
        "reason": event.reason,
        "message": event.message[:1024],
        "type": event.type,
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
    try:
        await api.create(f"/api/v1/namespaces/{about.namespace}/events", body)
    except Conflict:
        return
