"""Which devices of its node a pod was given, as the Ascend Device Plugin writes it on the pod. Pure.

It is a hint beside the pod, so that what cannot be read is the same as nothing: no job waits for it.
"""

import json
import re
from collections.abc import Mapping

from rekindle.errors import MALFORMED

CONFIGURATIONS = (
    "ascend.kubectl.kubernetes.io/ascend-910-configuration",
    "ascend.kubectl.kubernetes.io/ascend-npu-configuration",
)
"""`{"server_id": "10.0.0.7", "devices": [{"device_id": "0", "device_ip": "192.168.0.1"}, ...]}`: the source of rank tables."""

MOUNTED = "huawei.com/AscendReal"
"""`Ascend910-0,Ascend910-1`."""

GIVEN = (*CONFIGURATIONS, MOUNTED)
"""Annotations of one pod that no clone of it may have: other devices are its own."""

NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
MOST = 1024
"""Devices of one node."""


def devices_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Their local ids, in the order in which they are written; empty: nobody says so."""
    for key in CONFIGURATIONS:
        if found := _checked(_configured(annotations.get(key, ""))):
            return found
    mounted = annotations.get(MOUNTED, "")
    return _checked([name.strip().rpartition("-")[2] for name in mounted.split(",")])


def _configured(text: str) -> list[str]:
    try:
        return [str(device["device_id"]) for device in json.loads(text)["devices"]] if text else []
    except MALFORMED:
        return []


def _checked(ids: list[str]) -> tuple[str, ...]:
    right = len(ids) <= MOST and len(set(ids)) == len(ids) and all(NUMBER.fullmatch(one) for one in ids)
    return tuple(ids) if right else ()
