"""Entry of a job in the ConfigMap `fault-job-info`: by it NodeD has the healthy nodes of a super pod release what they share with
faulty devices. Source: the Kubernetes contract."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from activities.clusters.api_server import Object
from rekindle.model.keys import RANK_INDEX

DEVICES = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
"""Annotation of a pod by the Device Plugin: its devices, as JSON. Products that need no release have another one."""

LONGEST = 200_000
"""Maximum number of characters of an entry. All jobs share one ConfigMap, which takes 1 MiB."""

MOST_DEVICES = 64
"""Maximum number of devices of one pod that are named."""


@dataclass
class _SuperPod:
    devices: set[str] = field(default_factory=set)
    faulty: set[str] = field(default_factory=set)
    healthy: set[str] = field(default_factory=set)


def entry(pods: Iterable[Object], leaving: Collection[int], job_id: str, now: int) -> str:
    """Returns the entry for pods that leave. Empty: none of them is in a super pod, or it has no other node of the job.

    Args:
        leaving: pod ranks.
        now: time in seconds since 1970.
    """
    found: dict[int, _SuperPod] = defaultdict(_SuperPod)
    for pod in pods:
        super_pod, devices = _devices(pod)
        node, rank = pod["spec"].get("nodeName"), pod["metadata"].get("annotations", {}).get(RANK_INDEX, "")
        if super_pod is None or not node:
            continue
        if rank.isascii() and rank.isdigit() and int(rank[:9]) in leaving:
            found[super_pod].devices |= devices
            found[super_pod].faulty.add(node)
        else:
            found[super_pod].healthy.add(node)
    said = {str(number): _written(found[number], job_id, now) for number in sorted(found) if found[number].devices}
    text = json.dumps(said, separators=(",", ":")) if said else ""
    return text if len(text) <= LONGEST else ""


def _written(super_pod: _SuperPod, job_id: str, now: int) -> dict[str, Any]:
    return {
        "SdIds": sorted(super_pod.devices),
        "FaultNodes": {node: {} for node in sorted(super_pod.faulty)},
        "NodeNames": sorted(super_pod.healthy - super_pod.faulty),
        "FaultTimes": now,
        "JobId": job_id,
    }


def _devices(pod: Object) -> tuple[int | None, set[str]]:
    """Returns the super pod of a pod and the ids of its devices in it. None: it is in none, or the annotation is malformed."""
    try:
        said = json.loads(pod["metadata"].get("annotations", {}).get(DEVICES, "{}"))
        number, devices = said["super_pod_id"], said["devices"][:MOST_DEVICES]
        ids = {str(one["super_device_id"]) for one in devices}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, set()
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        return None, set()
    return number, {one for one in ids if one.isascii() and one.isdigit() and len(one) < 20}
