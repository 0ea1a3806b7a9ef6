"""Content of the opening of a fault recovery: the faulty ranks, whether the step can be repeated, which pods leave, and how long
to wait. Used by `workflows.opening`."""

from collections.abc import Iterable, Sequence
from datetime import timedelta

from rekindle.model.dialogue import FaultRank, Order, Strategy
from rekindle.model.fault import EXPECTED_HOLDER, TRAINING_SIDE, UNKNOWN_HOLDER, Fault, FaultType
from rekindle.model.job import Job
from rekindle.model.mode import Mode
from rekindle.model.situation import Situation
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import faulty_ranks
from rekindle.policy.training_sides.table import side_of

HEALTHY = (FaultRank(rank=0, type=FaultType.NETWORK),)
"""Announcement if nothing is faulty after all: training has stopped, and repeats its step. Source: tried with real clients."""


# ---- faulty ranks


def updated(job: Job, situation: Situation, faults: Sequence[Fault], named: Sequence[FaultRank] = ()) -> Situation:
    """Returns the situation with the present faults.

    Args:
        named: faulty ranks in an answer of the training side.
    """
    told = [one for fault in faults if fault.source == TRAINING_SIDE for one in faulty_ranks.ranks_of(job, fault)]
    reported = faulty_ranks.together((*situation.reported, *_own_words(situation, (*told, *named))))
    seen = [one for fault in faults if fault.source != TRAINING_SIDE for one in faulty_ranks.ranks_of(job, fault)]
    standing = faulty_ranks.together(one for one in (*seen, *reported) if one.rank < job.ranks)
    pods = faulty_ranks.pods_of(job, standing)
    healed = tuple(one.rank for one in situation.announced if job.layout.pod_of(one.rank) not in pods)
    return situation.with_(faults=tuple(faults), faulty=standing, reported=reported, healed=healed)


def _own_words(situation: Situation, told: Iterable[FaultRank]) -> list[FaultRank]:
    """Returns the ranks that the training side found by itself. After an announcement it also repeats the announced ranks, which
    are left out."""
    announced = {one.rank for one in situation.announced}
    return [one for one in told if one.rank not in announced]


def may_retry(job: Job, situation: Situation) -> bool:
    """Returns whether the step can be repeated for all faulty ranks, so that no process ends. It cannot if one fault needs more,
    or if there are both memory and network faults. Neither can it if the job does not allow a retry, or if one was tried."""
    is_open = faulty_ranks.allows(job, Strategy.RETRY) and Strategy.RETRY not in situation.ordered
    return is_open and faulty_ranks.is_retryable(situation.faulty)


def is_told_at_once(job: Job, situation: Situation, strategy: Strategy) -> bool:
    """Returns whether this strategy is ordered at once, before anything was announced. A training side that acts unasked stands
    at a fault, and can then execute any strategy. It refuses what it cannot do, but does not check whether a retry repairs all
    faults."""
    mends = strategy is not Strategy.RETRY or may_retry(job, situation)
    return mends and side_of(job).acts_unasked and bool(situation.faulty) and not situation.announced


# ---- announcement of the faults


def pods_leave(job: Job, in_place: bool) -> bool:
    """Returns whether all ranks of a pod leave with a normal fault. In an in-place recovery they stay.
    Source: the wire contract, `globalFault`."""
    return side_of(job).pods_leave and not in_place


def announcement(job: Job, situation: Situation, *, leave: bool) -> tuple[FaultRank, ...]:
    """Returns the ranks of `globalFault`, as normal faults or as faults that may be retried.

    Args:
        leave: True if all ranks of the pods of normal faults leave.
    """
    if not situation.faulty:
        return HEALTHY
    if may_retry(job, situation):
        return situation.faulty
    if not leave:
        return tuple(FaultRank(rank=one.rank) for one in situation.faulty)
    return tuple(FaultRank(rank=rank) for rank in job.layout.ranks_of_all(faulty_ranks.pods_of(job, situation.faulty)))


def leaving(job: Job, situation: Situation, before: Sequence[str], now: Sequence[str]) -> tuple[int, ...]:
    """Returns the pod ranks that an exit order may name: the faulty pod still holds the rank, and no earlier order named it. An
    exit for a pod that has left would end the next pod of its rank. A pod that leaves has failed: empty if that would end the
    whole job.

    Args:
        before: holder of each pod rank before the incident.
        now: present holder of each pod rank.
    """
    if not faulty_ranks.may_pods_fail(job):
        return ()
    unnamed = (rank for rank in faulty_ranks.pods_of(job, situation.faulty) if rank not in situation.leaving)
    return tuple(rank for rank in unnamed if _holds_on(rank, before, now))


def _holds_on(rank: int, before: Sequence[str], now: Sequence[str]) -> bool:
    if rank >= len(before) or rank >= len(now):
        return False
    return before[rank] == now[rank] and before[rank] not in ("", UNKNOWN_HOLDER, EXPECTED_HOLDER)


def settling(job: Job, situation: Situation) -> timedelta:
    """Returns how long to wait after the report that training has stopped, for the components that watch the devices of the
    job."""
    if not side_of(job).devices_settle or may_retry(job, situation):
        return timedelta(0)
    return job.limits.settle + job.limits.release


def patience(job: Job, situation: Situation) -> timedelta:
    """Returns how long the training side waits for the next order after its report, if it exits without one. It is longer after
    an announcement with network faults."""
    given = orders.ROUTES if any(one.type is FaultType.NETWORK for one in situation.announced) else 0
    return max(job.limits.next_order, timedelta(seconds=given))


# ---- strategies that the training side offers


def unasked(job: Job, situation: Situation, attempt: str, strategy: Strategy) -> Situation:
    """Returns the situation in which this strategy is ordered without an announcement. The order names all faulty ranks."""
    announced = announcement(job, situation, leave=False)
    return situation.with_(attempt=attempt, announced=announced, offered=True, offers=(strategy,), presumed=True)


UNASKED = {Mode.ONLINE_RETRY: Strategy.RETRY, Mode.IN_PLACE: Strategy.RECOVER}
"""Strategies that are ordered without an announcement, by mode. The order of these modes follows from the faults alone."""


def repair(job: Job, situation: Situation, mode: Mode) -> Order:
    """Returns the order of one of these modes for all announced ranks."""
    pods = faulty_ranks.pods_of(job, situation.announced)
    if mode is Mode.IN_PLACE:
        return orders.recover_in_place(job.id, situation.attempt, situation.announced, pods)
    return orders.change_strategy(job.id, situation.attempt, UNASKED[mode], situation.announced, pods)


def first_order(job: Job, situation: Situation, mode: Mode, attempt: str) -> Order | None:
    """Returns the order with which a mode begins for the faults of a situation. None: the mode begins with an announcement or a
    wait.

    Args:
        attempt: uuid of the order.
    """
    now, strategy = updated(job, situation, situation.faults), UNASKED.get(mode)
    if strategy is None or not is_told_at_once(job, now, strategy) or faulty_ranks.lost_pods(job, now.faults):
        return None
    return repair(job, unasked(job, now, attempt, strategy), mode)


def told(situation: Situation, order: Order) -> Situation:
    """Returns the situation after this first order. A fault that the order does not name is a second fault."""
    return situation.with_(
        attempt=order.uuid,
        announced=order.fault_ranks,
        offered=True,
        offers=(order.change_strategy,),
        presumed=True,
        ordered=(order.change_strategy,),
    )


def presumed(situation: Situation) -> tuple[Strategy, ...]:
    """Returns the strategies that a client offers whose report was lost, if its job recovers processes. A client that was ordered
    to repeat the step can do nothing else. Source: tried, with lost reports."""
    return (Strategy.RETRY,) if faulty_ranks.is_retryable(situation.announced) else (Strategy.RECOVER,)


def offers(strategies: Iterable[str]) -> tuple[str, ...]:
    """Returns the offered strategies, without duplicates and without `exit`, which is always possible."""
    return tuple(dict.fromkeys(strategy for strategy in strategies if strategy != Strategy.EXIT))


def again(situation: Situation) -> Situation:
    """Returns the situation for another strategy after one that failed. Training stands, and the faults are announced again under
    a new uuid. Pods that left are not ordered to leave again."""
    return situation.with_(attempt="", announced=(), healed=(), offered=False, offers=(), presumed=False)
