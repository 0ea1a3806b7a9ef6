"""The pods of a job describe a rank that has lost its pod."""

import pytest

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.missing_rank import lost_rank
from rekindle.model.keys import POD_TYPE


def running(name: str, **annotations: str) -> Object:
    metadata = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(("others", "neighbour"), [([], None), ([running("demo-worker-0-hot-0001")], "demo-worker-0-hot-0001")])
def test_a_standby_is_no_neighbour(others: list[Object], neighbour: str | None) -> None:
    """A standby lacks everything that a controller counts: a pod that is modelled on it would not be counted."""
    standby = running("demo-standby-0", **{POD_TYPE: "standby"})
    found = lost_rank(1, [(None, standby), *((0, pod) for pod in others)], ())
    assert (found.neighbour and found.neighbour["metadata"]["name"]) == neighbour
