"""Devices of a pod are read from what the Ascend Device Plugin writes on it, and are copied to no other pod."""

import json

import pytest

from activities.clusters.kubernetes.devices import OF_NVSENTINEL, devices_of, uuids_of
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import BARE
from activities.clusters.kubernetes.objects import pod_of
from activities.clusters.kubernetes.pod_objects import backup_of, standby_of
from rekindle.errors import BadInput

CONFIGURATION = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
MOUNTED = "huawei.com/AscendReal"
WRITTEN = json.dumps(
    {
        "pod_name": "gpt-worker-0",
        "server_id": "10.0.0.7",
        "devices": [{"device_id": "4", "device_ip": "192.168.0.4"}, {"device_id": "2", "device_ip": "192.168.0.2"}],
    }
)
POD = {
    "metadata": {"name": "gpt-0", "namespace": "default", "uid": "u", "annotations": {CONFIGURATION: WRITTEN, "own": "kept"}},
    "spec": {"containers": [{"image": "train"}], "nodeName": "node-3"},
}
JOB = Workload(BARE, {"metadata": {"name": "gpt", "namespace": "default", "uid": "job"}, "spec": {}})


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        ({CONFIGURATION: WRITTEN}, ("4", "2")),
        ({CONFIGURATION: WRITTEN, MOUNTED: "Ascend910-7"}, ("4", "2")),
        ({CONFIGURATION.replace("910", "npu"): WRITTEN}, ("4", "2")),
        ({MOUNTED: "Ascend910-0,Ascend910-1"}, ("0", "1")),
        ({CONFIGURATION: '{"devices": [{"device_id": 3}]}'}, ("3",)),
        ({}, ()),
        ({MOUNTED: ""}, ()),
        ({CONFIGURATION: "{", MOUNTED: "Ascend910-7"}, ("7",)),
        ({CONFIGURATION: '{"devices": "01"}'}, ()),
        ({CONFIGURATION: '{"devices": [{"device_id": "../1"}]}'}, ()),
        ({MOUNTED: "Ascend910-1,Ascend910-1"}, ()),
        ({MOUNTED: ",".join(f"Ascend910-{number}" for number in range(2000))}, ()),
    ],
)
def test_devices_are_read_as_far_as_they_make_sense(annotations: dict[str, str], found: tuple[str, ...]) -> None:
    """The configuration has precedence over the list of mounted devices. A value that cannot be parsed is ignored."""
    assert devices_of(annotations) == found


def test_a_pods_devices_are_part_of_its_status() -> None:
    """Devices are part of a pod's status, as in the local cluster."""
    assert pod_of(POD, JOB, ()).status.devices == ("4", "2")


def test_the_priority_of_a_pod_is_read() -> None:
    """Kubernetes writes it by the pod's priority class. A value of another kind is refused."""
    spec = {"containers": [{"image": "train"}], "priority": 1000}
    assert pod_of({**POD, "spec": spec}, JOB, ()).spec.priority == 1000
    assert pod_of(POD, JOB, ()).spec.priority == 0
    with pytest.raises(BadInput, match="priority"):
        pod_of({**POD, "spec": {**spec, "priority": "high"}}, JOB, ())


def test_pods_with_the_same_demands_can_use_the_same_nodes() -> None:
    """Labels of nodes and kinds of accelerators count. Nodes that a pod avoids by name, and tolerations of every pod, do not."""

    def demands(**changes: object) -> str:
        known = {"containers": [{"image": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
        return pod_of({**POD, "spec": {**known, **changes}}, JOB, ()).spec.demands

    def placed(**term: object) -> dict[str, object]:
        terms = {"nodeSelectorTerms": [term]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    avoiding = placed(matchFields=[{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}])
    usual = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]
    assert demands() == demands(affinity=avoiding) == demands(tolerations=usual)
    zone = placed(matchExpressions=[{"key": "zone", "operator": "In", "values": ["a"]}])
    others = [demands(nodeSelector={"kind": "h100"}), demands(affinity=zone), demands(tolerations=[{"key": "own"}])]
    assert len({demands(), *others}) == 4
    assert pod_of(POD, JOB, ()).spec.demands == ""


def test_devices_are_not_cloned_with_a_pod() -> None:
    """A backup and a standby get devices of their own, on a node of their own."""
    for clone in (backup_of(POD, JOB, "gpt-0-b", "0", {}), standby_of(POD, JOB, "gpt-s", {}, ())):
        assert clone["metadata"]["annotations"]["own"] == "kept"
        assert CONFIGURATION not in clone["metadata"]["annotations"]


ONE, TWO = "GPU-455d8f70-2051-db6c-0430-ffc457bff834", "GPU-11111111-2051-db6c-0430-ffc457bff834"
HEALTH = [{"allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": [{"resourceID": TWO, "health": "Healthy"}]}]}]


@pytest.mark.parametrize(
    ("annotation", "statuses", "found"),
    [
        (f'{{"devices":{{"nvidia.com/gpu":["{ONE}","{TWO}"]}}}}', [], (ONE, TWO)),
        (f'{{"devices":{{"nvidia.com/gpu":["{ONE}"]}}}}', HEALTH, (ONE,)),
        ("", HEALTH, (TWO,)),
        (f'{{"devices":{{"nvidia.com/gpu":["{ONE}::3"]}}}}', [], (ONE,)),
        ("{", HEALTH, (TWO,)),
        ("[]", [], ()),
        ('{"devices":{"nvidia.com/gpu":["MIG-1"]}}', [], ()),
        ('{"devices":{"nvidia.com/gpu":[7]}}', [], ()),
        ("", [{"allocatedResourcesStatus": [{"resources": [{"resourceID": "x" * 500}]}]}], ()),
    ],
)
def test_uuids_of_gpus_are_read_from_nvsentinel_s_annotation_and_the_kubelet(
    annotation: str, statuses: list[dict[str, object]], found: tuple[str, ...]
) -> None:
    """A part of a GPU is no GPU, and a value that cannot be parsed is ignored."""
    assert uuids_of({OF_NVSENTINEL: annotation}, statuses) == found
    status = {"containerStatuses": [{"name": "main", **one} for one in statuses]}
    metadata = {**POD["metadata"], "annotations": {OF_NVSENTINEL: annotation}}  # type: ignore[dict-item]
    assert pod_of({**POD, "metadata": metadata, "status": status}, JOB, ()).status.uuids == found
