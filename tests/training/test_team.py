"""Which rank carries whose share when ranks leave and come back."""

import random
import time

import pytest

from rekindle_training.adapter.team import Team
from rekindle_training.manager.replacements import CannotRepair
from rekindle_training.manager.team import sent, with_, without
from rekindle_wire.training_pb2 import Share


def test_the_share_of_a_rank_goes_to_the_rank_with_the_fewest() -> None:
    """The lowest of several is taken. A rank that leaves hands over what it has carried as well."""
    assert without((0, 1, 2, 3), {3}) == (0, 1, 2, 0)
    assert without((0, 1, 2, 0), {1}) == (0, 2, 2, 0)
    assert without((0, 2, 2, 0), {2}) == (0, 0, 0, 0)


def test_the_first_rank_carries_the_first_share() -> None:
    """Wrappers take buffers from the first rank of their group, which at full size is rank 0."""
    assert without((0, 1, 2, 3), {0}) == (1, 1, 2, 3)
    assert without((1, 1, 2, 3), {1}) == (2, 3, 2, 3)
    assert with_((2, 3, 2, 3), {1}) == (1, 1, 2, 3)


def test_no_rank_may_be_left() -> None:
    """At least one rank trains."""
    with pytest.raises(CannotRepair, match="no rank would be left to train"):
        without((0, 1), {0, 1})


def test_a_rank_is_sent_what_it_does_not_have() -> None:
    """The missing rank itself holds the share, or the rank that has carried it. The state of a holder is sent once."""
    own, another = Share(share=3, holder=3, own_state=b"3"), Share(share=3, holder=0)
    at_first = sent((0, 1, 2, 0), (0, 1, 2, 3), {0: (), 1: (), 2: ()}, {3: b"3"})
    assert at_first == {0: [own]}
    assert sent((0, 1, 2, 0), (0, 1, 2, 0), {0: (3,), 1: (), 2: ()}, {}) == {}
    assert sent((1, 1, 2, 1), (0, 1, 2, 0), {1: (), 2: ()}, {0: b"0"}) == {1: [Share(share=0, holder=0, own_state=b"0"), another]}


def test_the_state_of_a_share_must_be_somewhere() -> None:
    """The message names the rank whose state is lost."""
    with pytest.raises(CannotRepair, match="no process has the random numbers and the data position of rank 3"):
        sent((0, 1, 2, 0), (0, 1, 2, 3), {0: (), 1: (), 2: ()}, {1: b"1"})


def test_a_rank_that_comes_back_is_sent_its_own_share() -> None:
    """The rank that has carried it sends what it has."""
    assert sent((0, 1, 2, 3), (0, 1, 2, 0), {0: (3,), 1: (), 2: (), 3: ()}, {0: b"0"}) == {
        3: [Share(share=3, holder=0, own_state=b"0")]
    }


@pytest.mark.parametrize("seed", range(20))
def test_each_share_is_carried_once_whatever_leaves_and_comes_back(seed: int) -> None:
    """Ranks that train carry their own share, and the first one carries the first share."""
    chance, ranks = random.Random(seed), 8
    carriers = tuple(range(ranks))
    for _ in range(200):
        there, missing = sorted(set(carriers)), sorted(set(range(ranks)) - set(carriers))
        if missing and (len(there) == 1 or chance.random() < 0.5):
            carriers = with_(carriers, chance.sample(missing, chance.randint(1, len(missing))))
        else:
            carriers = without(carriers, chance.sample(there, chance.randint(1, len(there) - 1)))
        team = Team.of(carriers, ranks)
        assert sorted(share for rank in team.members for share in team.shares(rank)) == list(range(ranks))
        assert all(rank in team.shares(rank) for rank in team.members)
        assert carriers[0] == team.members[0]


def test_thousands_of_ranks_are_shared_out_in_a_moment() -> None:
    """The manager answers no rank meanwhile, and each rank asks in each bucket of a step who carries what."""
    ranks, began = 10_000, time.process_time()
    team = Team.of(without(tuple(range(ranks)), range(0, ranks, 4)), ranks)
    assert {len(team.shares(rank)) for rank in team.members} == {1, 2}
    assert time.process_time() - began < 2


IN_PARTS = [(0,), (1,), (2,), (3,)]
"""Four ranks, each of which is a replica."""


def test_the_parts_of_a_rank_are_spread_over_all_others() -> None:
    """Three of four ranks carry four of twelve shares each. At full size rank r has the shares r, r + 4 and r + 8."""
    whole = Team.of((), 4, 3)
    assert whole.carriers == (0, 1, 2, 3) * 3
    assert whole.shares(1) == (1, 5, 9)
    without_3 = without(whole.carriers, {3}, IN_PARTS)
    assert sorted(without_3.count(rank) for rank in range(3)) == [4, 4, 4]
    assert all(without_3[share] == share % 4 for share in range(12) if share % 4 != 3)
    assert with_(without_3, {3}, IN_PARTS) == whole.carriers


def test_what_is_missing_is_evened_out_when_a_rank_comes_back() -> None:
    """Two of four ranks are missing, and carry six shares each. With three ranks each carries four."""
    carriers = without(Team.of((), 4, 3).carriers, {2, 3}, IN_PARTS)
    assert [carriers.count(rank) for rank in range(2)] == [6, 6]
    carriers = with_(carriers, {3}, IN_PARTS)
    assert [carriers.count(rank) for rank in (0, 1, 3)] == [4, 4, 4]
    assert with_(carriers, {2}, IN_PARTS) == Team.of((), 4, 3).carriers


def test_shares_of_a_group_that_follow_each_other_are_sent_as_one_sum() -> None:
    """Sums are added up from the left, so that only the first shares of a group are one. Groups follow each other on a rank."""
    assert Team.of((), 2, 3).units(1) == ((1, 3, 5),)
    team = Team((0, 0, 0, 0, 0, 2, 0, 1, 2, 0, 2, 2), 3)  # of four ranks
    assert team.world_size == 4
    assert team.units(0) == ((0, 4), (1,), (9,), (2, 6), (3,))
    assert team.units(2) == ((8,), (5,), (10,), (11,))
    assert [share for share in range(12) if team.is_followed(share)] == [0, 2]


def test_the_parts_of_sharded_replicas_stay_together() -> None:
    """Each share of a replica is carried by the ranks of one other replica that hold the same shards."""
    replicas = [(0, 1), (2, 3), (4, 5)]
    carriers = without(Team.of((), 6, 2).carriers, {2, 3}, replicas)
    assert carriers == (0, 1, 0, 1, 4, 5, 0, 1, 4, 5, 4, 5)
    assert with_(carriers, {2, 3}, replicas) == Team.of((), 6, 2).carriers


def test_carriers_of_another_number_of_shares_are_refused() -> None:
    """A manager of an earlier release does not know of parts."""
    with pytest.raises(ValueError, match="carriers: those of 4 shares are not accepted, there are 12"):
        Team.of((0, 1, 2, 0), 4, 3)


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_evened_out_whatever_leaves_and_comes_back(seed: int) -> None:
    """Ranks that train carry their own shares, and none carries two more than another one."""
    chance, ranks, parts = random.Random(seed), 6, random.Random(seed).randint(2, 4)
    carriers = full = Team.of((), ranks, parts).carriers
    whole = [(rank,) for rank in range(ranks)]
    for _ in range(100):
        there, missing = sorted(set(carriers)), sorted(set(range(ranks)) - set(carriers))
        if missing and (len(there) == 1 or chance.random() < 0.5):
            carriers = with_(carriers, chance.sample(missing, chance.randint(1, len(missing))), whole)
        else:
            carriers = without(carriers, chance.sample(there, chance.randint(1, len(there) - 1)), whole)
        team = Team.of(carriers, ranks, parts)
        assert sorted(share for rank in team.members for share in team.shares(rank)) == list(range(ranks * parts))
        assert all(carriers[share] == share % ranks for share in range(ranks * parts) if share % ranks in team.members)
        assert carriers[0] == team.members[0] == team.carriers[team.shares(team.members[0])[0]]
        assert team.shares(team.members[0])[0] == 0
        counts = [len(team.shares(rank)) for rank in team.members]
        assert max(counts) - min(counts) < 2
        assert carriers == full or missing or len(team.members) < ranks
