"""Reads which devices of its node a pod was given, as the Ascend Device Plugin, NVSentinel or the kubelet write it on the pod.

Pure. This is only a hint. Content that cannot be read counts as no content, and no job waits for it.
"""

import json
import re
from collections.abc import Iterable, Mapping

from activities.clusters.api_server import Object
from rekindle.errors import MALFORMED
from rekindle.policy.detection.device_names import is_uuid

CONFIGURATIONS = (
    "ascend.kubectl.kubernetes.io/ascend-910-configuration",
    "ascend.kubectl.kubernetes.io/ascend-npu-configuration",
)
"""`{"server_id": "10.0.0.7", "devices": [{"device_id": "0", "device_ip": "192.168.0.1"}, ...]}`: the source of rank tables."""

MOUNTED = "huawei.com/AscendReal"
"""Annotation with the mounted devices: `Ascend910-0,Ascend910-1`."""

OF_NVSENTINEL = "dgxc.nvidia.com/devices"
"""Annotation of NVSentinel's metadata collector: `{"devices": {"nvidia.com/gpu": ["GPU-6b2c..."]}}`."""

GIVEN = (*CONFIGURATIONS, MOUNTED, OF_NVSENTINEL)
"""Annotations that must not be copied to a clone of a pod, as the clone has other devices."""

SHARED = "::"
"""Separator in the id of a time-shared GPU: the GPU's UUID stands before it, the number of the share after it."""

NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
MOST = 1024
"""Maximum number of devices of one node."""


def devices_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the local ids of the pod's devices, in the order in which they are written; empty: the annotations name none."""
    for key in CONFIGURATIONS:
        if found := _checked(_configured(annotations.get(key, ""))):
            return found
    mounted = annotations.get(MOUNTED, "")
    return _checked([name.strip().rpartition("-")[2] for name in mounted.split(",")])


def uuids_of(annotations: Mapping[str, str], containers: Iterable[Object]) -> tuple[str, ...]:
    """Returns the UUIDs of the pod's GPUs; empty: nothing names them.

    Args:
        containers: their statuses, in which a kubelet with `ResourceHealthStatus` names devices of plugins.
    """
    try:
        named = json.loads(annotations.get(OF_NVSENTINEL, "") or "{}").get("devices", {})
        found = [str(uuid) for some in named.values() for uuid in some]
    except MALFORMED:
        found = []
    given = (one for container in containers for one in container.get("allocatedResourcesStatus", ()))
    found = found or [one.get("resourceID", "") for some in given for one in some.get("resources", ())]
    found = [str(one).partition(SHARED)[0] for one in found]
    right = 0 < len(found) <= MOST and all(map(is_uuid, found))
    return tuple(dict.fromkeys(found)) if right else ()


def _configured(text: str) -> list[str]:
    try:
        return [str(device["device_id"]) for device in json.loads(text)["devices"]] if text else []
    except MALFORMED:
        return []


def _checked(ids: list[str]) -> tuple[str, ...]:
    right = len(ids) <= MOST and len(set(ids)) == len(ids) and all(NUMBER.fullmatch(one) for one in ids)
    return tuple(ids) if right else ()
