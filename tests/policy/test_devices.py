"""Which device of which node belongs to which rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.cluster import JobView, Pod
from rekindle.policy.devices import DeviceOfRank, devices
from tests.support.job_views import job, manager, pod, view


def told(shown: JobView) -> list[tuple[int, str, str]]:
    """Rank, node and device."""
    return [(one.rank, one.node, one.device) for one in devices(shown)]


def test_each_rank_has_the_device_that_its_pod_was_given() -> None:
    """The n-th device of a pod belongs to its n-th local rank; pod rank and holder are told with it."""
    shown = view(pod(1, "one-and-some-more", devices=("6", "2")), pod(0, devices=("0", "1"), node="node-1"), manager())
    assert devices(shown) == (
        DeviceOfRank(rank=0, pod_rank=0, node="node-1", device="0", holder="pod-0"),
        DeviceOfRank(rank=1, pod_rank=0, node="node-1", device="1", holder="pod-0"),
        DeviceOfRank(rank=2, pod_rank=1, node="node-0", device="6", holder="one-and-"),
        DeviceOfRank(rank=3, pod_rank=1, node="node-0", device="2", holder="one-and-"),
    )


def test_devices_are_counted_on_each_node_where_nobody_says_them() -> None:
    """The pods of a node have its devices one behind the other, by their pod ranks."""
    shown = view(pod(2), pod(0), pod(1, node="node-1"), of=job(pods=3))
    on_0 = [(0, "node-0", "0"), (1, "node-0", "1"), (4, "node-0", "2"), (5, "node-0", "3")]
    assert told(shown) == sorted([*on_0, (2, "node-1", "0"), (3, "node-1", "1")])


def test_more_devices_than_ranks_are_shared_out_in_order() -> None:
    """A rank that drives two devices has two rows."""
    shown = view(pod(devices=("0", "1", "2", "3")), of=job(pods=1))
    assert told(shown) == [(0, "node-0", "0"), (0, "node-0", "1"), (1, "node-0", "2"), (1, "node-0", "3")]


def test_more_ranks_than_devices_share_one() -> None:
    """Each rank has a row of its own."""
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
    """Whatever is left of its pods."""
    assert devices(JobView(pods=(pod(0),))) == ()


@given(each=st.integers(1, 9), given=st.lists(st.integers(0, 9).map(str), unique=True))
def test_every_rank_has_a_device_and_every_device_a_rank(each: int, given: list[str]) -> None:
    """However many a pod was given."""
    rows = devices(view(pod(devices=tuple(given)), of=job(pods=1, each=each)))
    assert {row.rank for row in rows} == set(range(each))
    assert {row.device for row in rows} == (set(given) or {str(number) for number in range(each)})
