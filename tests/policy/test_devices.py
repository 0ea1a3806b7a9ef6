"""Devices of nodes are matched to ranks."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.cluster import JobView, Node, Pod
from rekindle.model.keys import DEVICES
from rekindle.model.rule_file import rules_of
from rekindle.policy.detection.device_names import known, plain
from rekindle.policy.detection.devices import DeviceOfRank, devices
from rekindle.policy.detection.sighting import sight
from tests.support.job_views import job, manager, pod, view
from tests.support.rules import shows


def told(shown: JobView) -> list[tuple[int, str, str]]:
    """Rank, node and device."""
    return [(one.rank, one.node, one.device) for one in devices(shown)]


def test_each_rank_has_the_device_that_its_pod_was_given() -> None:
    """The n-th device of a pod belongs to its n-th local rank. Pod rank and holder are listed with it."""
    shown = view(pod(1, "one-and-some-more", devices=("6", "2")), pod(0, devices=("0", "1"), node="node-1"), manager())
    assert devices(shown) == (
        DeviceOfRank(rank=0, pod_rank=0, node="node-1", device="0", holder="pod-0"),
        DeviceOfRank(rank=1, pod_rank=0, node="node-1", device="1", holder="pod-0"),
        DeviceOfRank(rank=2, pod_rank=1, node="node-0", device="6", holder="one-and-"),
        DeviceOfRank(rank=3, pod_rank=1, node="node-0", device="2", holder="one-and-"),
    )


def test_devices_are_counted_on_each_node_where_nobody_says_them() -> None:
    """The pods of a node have its devices in the order of their pod ranks, where no pod names its devices."""
    shown = view(pod(2), pod(0), pod(1, node="node-1"), of=job(pods=3))
    on_0 = [(0, "node-0", "0"), (1, "node-0", "1"), (4, "node-0", "2"), (5, "node-0", "3")]
    assert told(shown) == sorted([*on_0, (2, "node-1", "0"), (3, "node-1", "1")])


def test_more_devices_than_ranks_are_shared_out_in_order() -> None:
    """A rank that drives two devices has two rows."""
    shown = view(pod(devices=("0", "1", "2", "3")), of=job(pods=1))
    assert told(shown) == [(0, "node-0", "0"), (0, "node-0", "1"), (1, "node-0", "2"), (1, "node-0", "3")]


def test_more_ranks_than_devices_share_one() -> None:
    """A rank has a row of its own, also on a shared device."""
    shown = view(pod(devices=("5", "7")), of=job(pods=1, each=4))
    assert [device for _, _, device in told(shown)] == ["5", "5", "7", "7"]


@pytest.mark.parametrize(
    "other",
    [
        pod(1, backup=True, devices=("0", "1")),
        pod(None, "waits", standby=True, devices=("0", "1")),
        pod(1, node="", devices=("0", "1")),
        pod(1, deleted=True, devices=("0", "1")),
        pod(2, devices=("0", "1")),
    ],
)
def test_who_holds_no_rank_on_a_node_has_no_device(other: Pod) -> None:
    """Backups, standbys, pods without a node, pods that end, and ranks that the job does not have."""
    assert {one.rank for one in devices(view(pod(0), other))} == {0, 1}


def test_a_rank_that_two_pods_claim_has_no_device() -> None:
    """Nothing is done to a device on a guess."""
    assert {one.rank for one in devices(view(pod(0), pod(1, "one"), pod(1, "other", node="node-1")))} == {0, 1}


def test_a_job_that_is_gone_has_no_devices() -> None:
    """A job that is gone has no devices, whatever is left of its pods."""
    assert devices(JobView(pods=(pod(0),))) == ()


@given(each=st.integers(1, 9), given=st.lists(st.integers(0, 9).map(str), unique=True))
def test_every_rank_has_a_device_and_every_device_a_rank(each: int, given: list[str]) -> None:
    """However many a pod was given."""
    rows = devices(view(pod(devices=tuple(given)), of=job(pods=1, each=each)))
    assert {row.rank for row in rows} == set(range(each))
    assert {row.device for row in rows} == (set(given) or {str(number) for number in range(each)})


# ---- by UUID and PCI address, as NVSentinel names them


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-f1f9-f1a4-1a37-1166234f6e4f"


SMI = "\n".join(f"{number}, {uuid(number)}, 00000000:{0x10 + number:02X}:00.0" for number in range(8))
"""Output of `nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv,noheader`."""

XID = f"ErrorCode:79 PCI:0000:15:00 GPU_UUID:{uuid(5)} kernel: NVRM: Xid (PCI:0000:15:00): 79 Recommended Action=RESTART_BM;"
DCGM = f"ErrorCode:DCGM_FR_X GPU:5 PCI:0000:15:00.0 GPU_UUID:{uuid(5)} it is broken Recommended Action=RESTART_VM;"
BY_ADDRESS = "ErrorCode:79 PCI:0000:15:00 Xid 79 Recommended Action=RESTART_BM;"
ODD, EVEN = tuple(uuid(n) for n in (7, 5, 3, 1)), tuple(uuid(n) for n in (0, 2, 4, 6))


def sick(message: str, smi: str = "") -> Node:
    return shows(conditions={"SysLogsXIDError": ("True", "Xid", message)}, annotations={DEVICES: smi} if smi else {})


def concerned(message: str, smi: str, *pods: Pod) -> tuple[set[int], set[int]]:
    """Pod ranks that have to leave; ranks, where an error ends processes only."""
    shown = view(*pods, nodes=(sick(message, smi),), of=job(pods=len(pods), each=4))
    contained = view(
        *pods, nodes=(sick(message.replace("79", "94").replace("DCGM_FR_X", "94"), smi),), of=job(pods=len(pods), each=4)
    )
    rules = rules_of("nvidia")
    left = {rank for one in sight(shown, rules).faults for rank in one.pod_ranks}
    return left, {rank for one in sight(contained, rules).faults for rank in one.ranks}


@pytest.mark.parametrize(
    ("message", "smi", "pod_ranks", "ranks"),
    [
        (XID, SMI, {1}, {6}),  # the third of GPUs 1, 3, 5, 7, as a process counts them
        (DCGM, SMI, {1}, {6}),
        (BY_ADDRESS, SMI, {1}, {6}),
        (XID, "", {1}, {4, 5, 6, 7}),
        (DCGM, "", {1}, {4, 5, 6, 7}),
        (BY_ADDRESS, "", {0, 1}, set(range(8))),
        (XID[: XID.index(uuid(5)) + 13], "", {0, 1}, set(range(8))),
        (XID, SMI.replace(uuid(5), uuid(99)), {1}, {4, 5, 6, 7}),
    ],
)
def test_a_gpu_that_is_named_by_uuid_or_address_concerns_who_has_it(
    message: str, smi: str, pod_ranks: set[int], ranks: set[int]
) -> None:
    """The rank, where the node says the order of its GPUs; its pod, where pods say their UUIDs; else all pods there."""
    assert concerned(message, smi, pod(0, uuids=EVEN), pod(1, uuids=ODD)) == (pod_ranks, ranks)


def test_a_gpu_of_another_job_concerns_nobody_here() -> None:
    """The pods of this job name their devices."""
    assert concerned(XID, SMI, pod(0, uuids=EVEN)) == (set(), set())
    assert concerned(XID, "", pod(0, uuids=EVEN)) == (set(), set())


def test_where_pods_say_nothing_the_node_s_own_order_counts_if_one_of_them_has_all_of_it() -> None:
    """A pod with all devices of the node has them in the node's order. With several pods no guess is made: all of them are
    concerned."""
    whole = view(pod(0), nodes=(sick(BY_ADDRESS.replace("79", "94"), SMI),), of=job(pods=1, each=8))
    assert {rank for one in sight(whole, rules_of("nvidia")).faults for rank in one.ranks} == {5}
    assert concerned(BY_ADDRESS, SMI, pod(0), pod(1)) == ({0, 1}, set(range(8)))
    assert concerned(BY_ADDRESS, "", pod(0), pod(1)) == ({0, 1}, set(range(8)))
    assert concerned(BY_ADDRESS, SMI, pod(0)) == ({0}, {0, 1, 2, 3})


def test_several_gpus_in_one_condition_are_several_faults() -> None:
    """NVSentinel puts all that is wrong into one message: each has its error and its GPU."""
    both = f"ErrorCode:94 PCI:0000:10:00 GPU_UUID:{uuid(0)} Recommended Action=NONE;{XID}"
    found = sight(
        view(pod(0, uuids=EVEN), pod(1, uuids=ODD), nodes=(sick(both, SMI),), of=job(each=4)), rules_of("nvidia")
    ).faults
    assert {(one.kind.value, one.code, one.pod_ranks) for one in found} == {
        ("process", "Xid 94", (0,)),
        ("node", "Xid 79", (1,)),
    }


def test_a_large_job_whose_nodes_all_name_a_gpu_holds_up_nobody() -> None:
    """A process looks at all jobs in turn, so a slow one delays the others."""
    names = [f"node-{number}" for number in range(1200)]
    pods = [pod(number, f"pod-{number}", node=name, uuids=EVEN) for number, name in enumerate(names)]
    hot = sick(BY_ADDRESS.replace("15:00", "14:00"), SMI)
    nodes = tuple(hot.model_copy(update={"metadata": hot.metadata.model_copy(update={"name": n, "uid": n})}) for n in names)
    began = time.process_time()
    found = sight(view(*pods, nodes=nodes, of=job(pods=1200, each=4)), rules_of("nvidia")).faults
    assert time.process_time() - began < 2.0
    assert {rank for one in found for rank in one.pod_ranks} == set(range(1200))


def test_a_condition_that_has_no_room_for_all_its_errors_is_believed_as_far_as_it_goes() -> None:
    """NVSentinel cuts the last one somewhere, and says so: half a name is no device, and half a code no error."""
    both = f"ErrorCode:94 PCI:0000:10:00 GPU_UUID:{uuid(0)} Recommended Action=NONE;{XID}"
    third = f"ErrorCode:79 PCI:0000:14:00 GPU_UUID:{uuid(4)} "
    pods, errors = (pod(0, uuids=EVEN), pod(1, uuids=ODD)), {("process", "Xid 94", (0,)), ("node", "Xid 79", (1,))}
    for length in range(1, len(third)):
        shown = sick(f"{both}{third[:length]};...", SMI)
        found = {
            (one.kind.value, one.code, one.pod_ranks) for one in sight(view(*pods, nodes=(shown,)), rules_of("nvidia")).faults
        }
        known = "PCI:0000:14:00 " in third[:length] and ("node", "Xid 79", (0,))
        said = "ErrorCode:79 " in third[:length] and ("node", "Xid 79", (0, 1))
        assert found == errors | {one for one in (known or said,) if one}, third[:length]


@pytest.mark.parametrize(
    ("written", "spelling"),
    [
        ("00000000:3B:00.0", "0000:3b:00"),
        ("0000:3b:00", "0000:3b:00"),
        ("3b:00.0", "0000:3b:00"),
        ("0001:3b:00.0", "0001:3b:00"),
        ("GPU-B5F2", "gpu-b5f2"),
        ("gpu:3", "gpu:3"),
    ],
)
def test_an_address_has_one_spelling(written: str, spelling: str) -> None:
    """An address with a domain of four digits, eight, or none has the same spelling."""
    assert plain(written) == spelling


@given(st.text(max_size=200))
def test_whatever_a_node_says_of_its_devices_is_read_as_far_as_it_makes_sense(text: str) -> None:
    """An annotation is a person's word."""
    assert all(local.isdecimal() for local in known(text).values())
