"""Accelerators among the resources of nodes and pods: ranks are counted by them, and nodes that train are known by them."""

from collections.abc import Iterator

import pytest

from activities.clusters.kubernetes import accelerators
from activities.clusters.kubernetes.objects import node_of


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    accelerators.is_accelerator.cache_clear()
    yield
    accelerators.is_accelerator.cache_clear()


@pytest.mark.parametrize(
    ("amounts", "ranks"),
    [
        ({"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}, 8),
        ({"nvidia.com/gpu": 8, "rdma/rdma_shared_device_a": 1}, 8),
        ({"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8"}, 8),
        ({"huawei.com/Ascend910": "8", "cpu": "64"}, 8),
        ({"huawei.com/Ascend910-4c": "2"}, 2),
        ({"nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-2g.10gb": "1"}, 8),
        ({"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32", "aws.amazon.com/neurondevice": "16"}, 32),
        ({"vpc.amazonaws.com/pod-eni": "54", "cpu": "8", "hugepages-2Mi": "0"}, 0),
        ({"example.com/npu": "4"}, 0),
    ],
    ids=["efa", "rdma", "hostdev", "ascend", "part of an ascend", "mig", "neuron", "none", "unknown"],
)
def test_only_accelerators_are_counted(amounts: dict[str, object], ranks: int) -> None:
    """Network devices are extended resources as well, and no ranks are counted for them."""
    assert accelerators.count(amounts) == ranks


def test_the_installation_may_name_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation may name further accelerators by a pattern, in addition to the known ones."""
    monkeypatch.setenv("REKINDLE_ACCELERATORS", '["example.com/*"]')
    assert accelerators.count({"example.com/npu": "4", "nvidia.com/gpu": "1"}) == 5


def test_a_node_of_a_network_device_has_no_accelerators() -> None:
    """A node with a network device only has no accelerators: no job trains there."""
    metadata = {"name": "node-0", "uid": "u", "resourceVersion": "1"}
    node = node_of({"metadata": metadata, "status": {"capacity": {"vpc.amazonaws.com/pod-eni": "54"}}})
    assert node.status.accelerators == 0
