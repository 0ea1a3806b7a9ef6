"""Ranks of the devices that people name, and the state of switched links."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.elastic import Small
from rekindle.model.fault import EXPECTED_HOLDER, UNKNOWN_HOLDER
from rekindle.model.job import Job, JobId
from rekindle.model.links import MOST_ON_BACKUP, NodeLinks, OnBackup, Placed, RankLinks
from rekindle.model.state import JobState
from rekindle.policy.detection.devices import DeviceOfRank
from rekindle.policy.operations import links

NOW = datetime(2026, 1, 2, tzinfo=UTC)
JOB = Job(id=JobId("job"), name="gpt", pods=3, ranks_per_pod=2)
DEVICES = [DeviceOfRank(rank, rank // 2, f"node-{rank // 2}", str(rank % 2), "holder") for rank in range(6)]
RANKS = st.sets(st.integers(0, 30), max_size=12).map(lambda ranks: tuple(sorted(ranks)))


def test_devices_are_found_with_their_ranks_in_the_order_of_the_request() -> None:
    """The result has one entry for each node and direction."""
    asked = (
        NodeLinks(node="node-2", devices=("1", "0"), backup=True),
        NodeLinks(node="node-0", devices=("0",), backup=False),
    )
    found = links.resolved(DEVICES, asked)
    assert [one.ranks for one in found.links] == [((5,), (4,)), ((0,),)]
    assert links.ranks_of(found.links) == RankLinks(backup=(4, 5), first=(0,))


def test_a_device_that_several_ranks_share_moves_all_of_them() -> None:
    """Ranks share a device where there are more ranks than devices."""
    shared = [DeviceOfRank(rank, 0, "node-0", "0", "holder") for rank in range(2)]
    found = links.resolved(shared, (NodeLinks(node="node-0", devices=("0",), backup=True),))
    assert links.ranks_of(found.links).backup == (0, 1)


@given(before=st.dictionaries(st.sampled_from("abc"), RANKS, max_size=3), backup=RANKS, first=RANKS)
def test_a_rank_is_on_its_backup_link_by_the_last_who_moved_it(
    before: dict[str, tuple[int, ...]], backup: tuple[int, ...], first: tuple[int, ...]
) -> None:
    """A rank that was moved back is on its backup link by no maintenance."""
    known = tuple(OnBackup(ranks=ranks, maintenance=name) for name, ranks in before.items())
    move = RankLinks(backup=backup, first=tuple(rank for rank in first if rank not in backup))
    now = {rank: one.maintenance for one in links.moved(known, move, "m") for rank in one.ranks}
    assert all(now[rank] == "m" for rank in move.backup)
    assert not set(now) & set(move.first)
    others = {rank for ranks in before.values() for rank in ranks} - set(move.ranks)
    assert set(now) == others | set(move.backup)


@pytest.mark.parametrize(
    ("before", "now", "is_reset"),
    [
        ("aaaa", "aaaa", False),
        ("aaaa", "bbbb", True),
        ("aaaa", "", False),
        ("aaaa", UNKNOWN_HOLDER, False),
        ("", "bbbb", False),
        ("aaaa", EXPECTED_HOLDER, True),
        (EXPECTED_HOLDER, "bbbb", False),
    ],
)
def test_a_rank_is_on_its_first_link_again_when_another_pod_holds_it(before: str, now: str, *, is_reset: bool) -> None:
    """A pod that is not seen for a moment is no other one."""
    state = JobState.of(JOB).with_(links=(OnBackup(ranks=(1, 2, 3), maintenance="m"),), holders=("xxxx", before, "yyyy"))
    found = links.reset(state, state.with_(holders=("xxxx", now, "yyyy")))
    assert found == ((OnBackup(ranks=(2, 3), maintenance="m"),) if is_reset else ())


def test_a_rank_whose_pod_has_left_is_on_no_link_and_its_next_pod_begins_on_the_first_one() -> None:
    """A rank that left has no holder, so that no exchange of its holder would be seen when it comes back."""
    state = JobState.of(JOB).with_(links=(OnBackup(ranks=(1, 2, 3), maintenance="m"),), holders=("xxxx", "aaaa", "yyyy"))
    small = state.with_(holders=("xxxx", "", "yyyy"), small=Small(since=NOW, missing=(1,)))
    assert links.reset(state, small) == (OnBackup(ranks=(2, 3), maintenance="m"),)


def test_what_somebody_else_has_moved_is_not_moved_again() -> None:
    """The maintenance that moved a rank may move it again, as after a fault in between. Another one is refused."""
    known = (OnBackup(ranks=(2, 3), maintenance="m"),)
    assert links.taken(known, RankLinks(backup=(2,)), "m") == ""
    assert links.taken(known, RankLinks(backup=(1, 2)), "n") == "on the backup link already: rank 2, moved by m"
    assert links.taken(known, RankLinks(first=(2,)), "n") == ""
    assert "at most" in links.taken((), RankLinks(backup=tuple(range(MOST_ON_BACKUP + 1))), "n")


def test_a_maintenance_knows_what_is_still_on_the_backup_link() -> None:
    """Device by device; what was lost with its pod is not moved back."""
    over = (Placed(node="node-1", devices=("0", "1"), ranks=((2,), (3,)), backup=True),)
    here = links.after((), over)
    (left,) = links.after(here, links.back(here, (NodeLinks(node="node-1", devices=("0",), backup=False),)))
    assert (left.devices, left.ranks) == (("1",), ((3,),))
    assert links.after(here, links.of_ranks(here, (2, 3))) == ()
    assert links.after(here, links.back(here, ())) == ()
    assert links.back_problem(here, (NodeLinks(node="node-1", devices=("7",), backup=False),)) == (
        "device: 7 of node-1 is not on its backup link by this maintenance"
    )


def test_a_rank_that_returns_takes_all_its_devices_with_it() -> None:
    """A rank with two devices on their backup links uses the first link of both when one of them is named."""
    there = (Placed(node="node-1", devices=("0", "1", "2"), backup=True, ranks=((4,), (4,), (5,))),)
    moves = links.back(there, (NodeLinks(node="node-1", devices=("0",), backup=False),))
    (left,) = links.after(there, moves)
    assert (left.devices, left.ranks) == (("2",), ((5,),))
