"""Content of a job's ConfigMap `reset-config-NAME`. The job's owner creates it, ClusterD and Volcano write it, and the Device
Plugin mirrors it into the job's pods. Source: the Kubernetes contract."""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from activities.clusters.api_server import Object
from rekindle.errors import BadInput
from rekindle.model.contract import Words

LABEL = ("reset", "true")
"""Label of a reset-config. A ConfigMap without it is another one of that name."""

DATA, CHECK = "reset.json", "checkCode"

HOT_RESET = ("reset", "restart")
"""Policies of a rank by which the Device Plugin resets devices. Its writes and ours exclude each other."""

LONGEST = 900_000
"""Maximum number of characters of the content. A ConfigMap takes 1 MiB."""


@dataclass(frozen=True)
class Content:
    data: dict[str, str] | None
    """New values. None: nothing changes."""

    restarts: int
    """`RetryTime`, as it is now."""


def name_of(job: str) -> str:
    return f"reset-config-{job}"


def changed(config: Object, words: Words, now: int) -> Content:
    """Returns the content for these words. Members that we do not know stay.

    Args:
        now: time in seconds since 1970, for `UpdateTime`.

    Raises:
        BadInput: the ConfigMap is not a reset-config that can be written.
    """
    before = _read(config)
    restarts = _count(before.get("RetryTime", 0), "RetryTime")
    said = {
        "RankList": [_faulty(rank) for rank in words.faulty],
        "UpdateTime": before.get("UpdateTime", 0),
        "RetryTime": restarts if words.restarts is None else words.restarts,
        "FaultFlushing": words.flushing,
        "GracefulExit": 0,
        "RestartFaultProcess": words.in_place,
    }
    after = {**said, **{key: value for key, value in before.items() if key not in said}}
    data = config.get("data") or {}
    if after == before and data.get(CHECK) == _check(data.get(DATA, "")):
        return Content(None, restarts)
    text = _written({**after, "UpdateTime": now})
    if len(text) > LONGEST:
        text = _written({**after, "UpdateTime": now, "RankList": []})
    return Content({DATA: text, CHECK: _check(text)}, int(said["RetryTime"]))


def _faulty(rank: int) -> dict[str, Any]:
    return {
        "RankId": rank,
        "LogicId": 0,
        "Status": "fault",
        "Policy": "",
        "InitialPolicy": "",
        "ErrorCode": None,
        "ErrorCodeHex": "",
    }


def _read(config: Object) -> dict[str, Any]:
    label, value = LABEL
    if (config["metadata"].get("labels") or {}).get(label) != value:
        raise BadInput(f"metadata.labels: {label}: {value} is missing")
    text = (config.get("data") or {}).get(DATA, "") or "{}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"data.{DATA}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadInput(f"data.{DATA}: must be an object")
    ranks = found.get("RankList") or []
    if not isinstance(ranks, list) or not all(isinstance(one, dict) for one in ranks):
        raise BadInput(f"data.{DATA}.RankList: must be a list of objects")
    if policy := next((one["Policy"] for one in ranks if one.get("Policy") in HOT_RESET), None):
        raise BadInput(f"data.{DATA}.RankList: the policy {policy} is the Device Plugin's: hotReset=1 is not accepted, use 2")
    return found


def _check(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise BadInput(f"data.{DATA}.{name}: {str(value)[:40]!r} is not accepted, must be a whole number from 0")
    return value


def _written(content: dict[str, Any]) -> str:
    """Returns the text as ClusterD writes it, since readers compare its check code."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
