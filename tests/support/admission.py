"""The admission webhook for tests: a job that it refuses, its clock, and clients that trust its certificates."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

SERVICE = "rekindle-webhook.mindx-dl.svc"


@dataclass
class Clock:
    """Clock that moves when it is told to. It begins at the time of this machine, as TLS compares with that."""

    moved: timedelta = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.moved


def job(strategy: str, name: str = "gpt") -> dict[str, Any]:
    """Returns a Job with this value of `recover-strategy`."""
    container = {"name": "main", "image": "none", "command": ["rekindle-train", "train.py"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {"recover-strategy": strategy}},
        "spec": {
            "parallelism": 2,
            "completions": 2,
            "completionMode": "Indexed",
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def review(strategy: str, **request: Any) -> dict[str, Any]:
    """Returns the API server's review of a new job."""
    asked = {
        "uid": "0",
        "operation": "CREATE",
        "namespace": "training",
        "name": "gpt",
        "object": job(strategy),
        "oldObject": None,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**asked, **request}}


def trusting(authorities: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authorities.decode())
