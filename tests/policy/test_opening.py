"""The opening of a fault recovery: its announcement, the pods that leave, and its waiting times."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.dialogue import FaultRank, Heard, Order, Report, ReportKind, Strategy
from rekindle.model.fault import EXPECTED_HOLDER, UNKNOWN_HOLDER, Fault, FaultKind, FaultType, FaultyRanks
from rekindle.model.job import Job, JobId
from rekindle.model.keys import FAULT_RETRY_TIMES, RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.situation import Situation, SituationChanges
from rekindle.model.training_side import TrainingSide
from rekindle.policy.dialogue import reports
from rekindle.policy.modes import faulty_ranks, recovery_opening

MEMORY, OTHER, NETWORK = FaultType.MEMORY, FaultType.OTHER, FaultType.NETWORK
JOB = Job(id=JobId("j"), name="gpt", pods=4, ranks_per_pod=2, annotations={RECOVER_STRATEGY: "retry, recover"})
MINDIO = JOB.model_copy(update={"training_side": TrainingSide.MINDIO, "labels": {FAULT_RETRY_TIMES: "3"}})
WITHOUT_RETRY = MINDIO.model_copy(update={"annotations": {RECOVER_STRATEGY: "recover,dump"}})
HELD = ("a", "b", "c", "d")

fault_ranks = st.lists(st.builds(FaultRank, rank=st.integers(0, 9), type=st.sampled_from(FaultType)), max_size=12)
holders = st.lists(st.sampled_from(["a", "b", "", UNKNOWN_HOLDER, EXPECTED_HOLDER]), min_size=4, max_size=4)


def processes(kind: FaultType, *ranks: int) -> Fault:
    return Fault(
        id="p", kind=FaultKind.PROCESS, ranks=ranks, details=(FaultyRanks(ranks=ranks, type=kind),), source="training-side"
    )


def about(kind: FaultKind, *pod_ranks: int, backup: bool = False) -> Fault:
    return Fault(id=f"{kind}{pod_ranks}", kind=kind, pod_ranks=pod_ranks, backup=backup, source="watcher")


def situation(job: Job, *faults: Fault, named: tuple[FaultRank, ...] = (), **before: Any) -> Situation:
    return recovery_opening.updated(job, Situation(**before), faults, named)


def written(found: tuple[FaultRank, ...]) -> list[str]:
    return [f"{one.rank}:{one.type}" for one in found]


@given(st.lists(fault_ranks, max_size=4), holders, holders)
def test_every_faulty_rank_is_announced_once_and_no_pod_is_named_twice(
    rounds: list[list[FaultRank]], before: list[str], now: list[str]
) -> None:
    """The property holds over all announcements of an incident. Only a pod that still is the one that became faulty is named."""
    here = Situation()
    named: list[int] = []
    for told in rounds:
        here = here.with_(faulty=faulty_ranks.together((*here.faulty, *(one for one in told if one.rank < JOB.ranks))))
        ranks = [one.rank for one in recovery_opening.announcement(JOB, here, leave=True)]
        assert len(ranks) == len(set(ranks))
        assert {one.rank for one in here.faulty} <= set(ranks)
        leaving = recovery_opening.leaving(MINDIO, here, before, now)
        assert all(before[rank] == now[rank] and before[rank] in ("a", "b") for rank in leaving)
        named += leaving
        here = here.with_(leaving=tuple(sorted((*here.leaving, *leaving))))
    assert len(named) == len(set(named))


@given(fault_ranks)
def test_a_process_that_has_ended_stays_ended(told: list[FaultRank]) -> None:
    """A rank has one entry: type 1 if it was ever reported, otherwise the type reported last."""
    for one in faulty_ranks.together(told):
        types = [other.type for other in told if other.rank == one.rank]
        assert one.type is (OTHER if OTHER in types else types[-1])


def test_faults_of_any_source_become_ranks_with_a_type() -> None:
    """Processes as the training side says, pods and nodes with all of their ranks; sub-healths and backup pods have none."""
    faults = (
        processes(NETWORK, 1),
        about(FaultKind.POD, 1),
        about(FaultKind.SUB_HEALTH, 2),
        about(FaultKind.POD, 3, backup=True),
    )
    named = (FaultRank(rank=7, type=MEMORY), FaultRank(rank=8))
    assert written(situation(JOB, *faults, named=named).faulty) == ["1:2", "2:1", "3:1", "7:0"]


@pytest.mark.parametrize(
    ("job", "found", "expected"),
    [
        (MINDIO, situation(MINDIO, processes(MEMORY, 1, 5)), True),
        (MINDIO, situation(MINDIO, processes(NETWORK, 1)), True),
        (MINDIO, situation(MINDIO, processes(OTHER, 1)), False),
        (MINDIO, situation(MINDIO, processes(MEMORY, 1), about(FaultKind.NODE, 2)), False),
        (MINDIO, situation(MINDIO, processes(MEMORY, 1), processes(NETWORK, 2)), False),
        (MINDIO, situation(MINDIO, processes(MEMORY, 1), ordered=("retry",)), False),
        (
            MINDIO.model_copy(update={"annotations": {RECOVER_STRATEGY: "recover,dump"}}),
            situation(JOB, processes(MEMORY, 1)),
            False,
        ),
        (MINDIO.model_copy(update={"annotations": {}}), situation(JOB, processes(MEMORY, 1)), False),
        (JOB, situation(JOB, processes(MEMORY, 1)), True),
    ],
)
def test_a_step_is_repeated_only_if_that_may_mend_everything(job: Job, found: Situation, expected: bool) -> None:
    """A normal fault, faults of both types, a retry that was tried, or a job without it: then all are normal faults."""
    assert recovery_opening.may_retry(job, found) is expected


@pytest.mark.parametrize(
    ("job", "faults", "before", "told"),
    [
        (JOB, (MEMORY,), {}, ["retry", "recover"]),
        (JOB, (OTHER,), {}, ["recover"]),
        (JOB, (MEMORY, OTHER), {}, ["recover"]),
        (JOB, (), {}, []),
        (JOB, (MEMORY,), {"announced": (FaultRank(rank=1),)}, []),
        (MINDIO, (MEMORY,), {}, []),
    ],
)
def test_ours_is_told_at_once_what_mends_all_that_is_faulty(
    job: Job, faults: tuple[FaultType, ...], before: dict[str, Any], told: list[str]
) -> None:
    """Our training side receives the strategy at once, unless faults were announced already, or none are known. MindIO is asked
    first. A retry never hides a fault that needs more."""
    found = situation(job, *(processes(kind, rank) for rank, kind in enumerate(faults)), **before)
    assert [word for word in (Strategy.RETRY, Strategy.RECOVER) if recovery_opening.is_told_at_once(job, found, word)] == told


def test_a_normal_fault_of_mindio_takes_its_pod_with_it() -> None:
    """Announces all ranks of the pods as type 1. Faults that may be retried stay as they are."""
    assert written(recovery_opening.announcement(MINDIO, situation(MINDIO, processes(OTHER, 1, 4)), leave=True)) == [
        "0:1",
        "1:1",
        "4:1",
        "5:1",
    ]
    assert written(recovery_opening.announcement(MINDIO, situation(MINDIO, processes(MEMORY, 1)), leave=True)) == ["1:0"]
    assert written(
        recovery_opening.announcement(MINDIO, situation(MINDIO, processes(MEMORY, 1), ordered=("retry",)), leave=True)
    ) == [
        "0:1",
        "1:1",
    ]


def test_a_normal_fault_of_ours_leaves_its_neighbours_alone() -> None:
    """Announces only the faulty ranks, and so with MindIO where processes start again in their pods."""
    assert [recovery_opening.pods_leave(job, in_place=here) for job in (JOB, MINDIO) for here in (False, True)] == [
        False,
        False,
        True,
        False,
    ]
    found = situation(JOB, processes(OTHER, 1, 4))
    assert written(recovery_opening.announcement(JOB, found, leave=False)) == ["1:1", "4:1"]


def test_a_job_that_is_healthy_after_all_repeats_its_step() -> None:
    """The training side has stopped: one rank is announced with a network fault, and no pod leaves."""
    assert written(recovery_opening.announcement(JOB, Situation(), leave=True)) == ["0:2"]
    assert recovery_opening.leaving(MINDIO, Situation(), HELD, HELD) == ()


def test_a_pod_that_was_replaced_or_told_already_is_not_told_to_leave() -> None:
    """The exit would wait, and end the pod that came in its place."""
    found = situation(MINDIO, processes(OTHER, 0, 3, 4, 6), leaving=(0,))
    assert recovery_opening.leaving(MINDIO, found, HELD, ("a", "b", "x", "")) == (1,)
    assert recovery_opening.leaving(MINDIO, found, HELD, ()) == ()
    assert recovery_opening.leaving(MINDIO, found, (), HELD) == ()


def test_no_pod_is_told_to_leave_whose_end_would_fail_the_job() -> None:
    """The Ascend Operator ends a job without `fault-retry-times` for good with its first pod that fails."""
    found = situation(MINDIO, processes(OTHER, 3))
    assert recovery_opening.leaving(MINDIO.model_copy(update={"labels": {}}), found, HELD, HELD) == ()
    assert recovery_opening.leaving(MINDIO, found, HELD, HELD) == (1,)


def test_only_normal_faults_of_mindio_settle() -> None:
    """The settling times of 1 s and 10 s are for a training side that watches its devices. Ours has none."""
    assert recovery_opening.settling(MINDIO, situation(MINDIO, processes(OTHER, 1))) == timedelta(seconds=11)
    assert recovery_opening.settling(MINDIO, situation(MINDIO, processes(MEMORY, 1))) == timedelta(0)
    assert recovery_opening.settling(JOB, situation(JOB, processes(OTHER, 1))) == timedelta(0)


def test_settling_fits_into_the_patience_of_the_training_side() -> None:
    """Otherwise the limits are refused, and the message says which."""
    with pytest.raises(ValueError, match=r"settle .* release .* look .* must together be shorter than nextOrder"):
        Limits(release=timedelta(seconds=30))


def test_mindio_waits_longer_for_the_order_behind_a_network_fault() -> None:
    """30 s, and 33 s where the announcement gave it so much time."""
    assert recovery_opening.patience(MINDIO, Situation()) == timedelta(seconds=30)
    assert recovery_opening.patience(MINDIO, Situation(announced=(FaultRank(rank=1, type=NETWORK),))) == timedelta(seconds=33)


def test_exit_is_no_offer() -> None:
    """The strategy `exit` is always possible, so that it is not among the offers."""
    assert recovery_opening.offers(("exit", "dump", "recover", "dump")) == ("dump", "recover")


def test_nobody_answers_when_every_pod_is_lost() -> None:
    """Failed pods and lost nodes count; processes of every pod leave the agents there."""
    assert faulty_ranks.is_nobody_left(JOB, (about(FaultKind.POD, 0, 1), about(FaultKind.NODE, 2, 3)), None)
    assert not faulty_ranks.is_nobody_left(JOB, (about(FaultKind.POD, 0, 1), about(FaultKind.NODE, 2)), None)
    assert not faulty_ranks.is_nobody_left(JOB, (processes(OTHER, *range(8)),), None)


def test_another_announcement_is_another_attempt() -> None:
    """The new attempt after 405 has another uuid. Training stays stopped, and pods that left stay named."""
    before = Situation(
        attempt="u", stopped=True, announced=recovery_opening.HEALTHY, leaving=(1,), offered=True, offers=("retry",)
    )
    assert recovery_opening.again(before) == Situation(stopped=True, leaving=(1,))


def test_ranks_that_were_announced_and_are_well_again_are_told() -> None:
    """Ranks of pods without a standing fault are reported as healed. A rank that left with its pod is as faulty as the pod."""
    announced = tuple(FaultRank(rank=rank) for rank in (0, 1, 2, 3))
    assert situation(JOB, about(FaultKind.NODE, 1), announced=announced).healed == (0, 1)


def test_what_the_training_side_repeats_is_no_word_of_its_own() -> None:
    """The training side repeats announced ranks in a fault report and beside its offers. Only additional ranks are its own
    findings."""
    announced = (FaultRank(rank=0), FaultRank(rank=1))
    found = situation(JOB, processes(OTHER, 0, 1, 4), named=(*announced, FaultRank(rank=6)), announced=announced)
    assert (written(found.faulty), found.healed) == (["4:1", "6:1"], (0, 1))
    assert situation(JOB, announced=announced, reported=announced).healed == ()


def test_every_field_of_a_situation_can_be_changed() -> None:
    """The changes that `with_` takes are the fields that there are."""
    assert set(SituationChanges.__annotations__) == set(Situation.model_fields)


def test_a_report_is_known_again_by_its_call_and_by_what_it_says() -> None:
    """A report with the same content in another attempt is an answer. A report from the same call stays a repetition."""
    first = Report(kind=ReportKind.STRATEGIES, strategies=("recover",))
    heard = [Heard(id="1", mark=reports.mark(first))]
    again = Heard(id="2", mark=reports.mark(first))
    assert reports.is_repeated(again, heard)
    assert not reports.is_repeated(again, reports.of_an_earlier_attempt(heard))
    assert reports.is_repeated(Heard(id="1", mark="other"), reports.of_an_earlier_attempt(heard))


def test_orders_without_an_answer_ask_for_nothing() -> None:
    """`stop switch` and `kill` are answered by no report."""
    assert reports.answer_to(Order(job_id="j", uuid="u", signal_type="killMaster")) is None
    assert reports.answer_to(Order(job_id="j", uuid="u", signal_type="hot-switch", actions=("stop switch",))) is None


@pytest.mark.parametrize(
    ("announced", "strategy"),
    [
        (FaultRank(rank=3, type=MEMORY), Strategy.RETRY),
        (FaultRank(rank=0, type=NETWORK), Strategy.RETRY),
        (FaultRank(rank=3, type=OTHER), Strategy.RECOVER),
    ],
    ids=["memory", "network", "other"],
)
def test_offers_that_were_lost_are_those_that_the_announcement_allows(announced: FaultRank, strategy: Strategy) -> None:
    """A client that received faults which a repetition repairs accepts no other strategy. Any other strategy restarts the job."""
    assert recovery_opening.presumed(Situation(announced=(announced,))) == (strategy,)
