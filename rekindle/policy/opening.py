"""What the opening of a fault recovery tells the training side: which ranks are faulty, whether the step may just be repeated,
which pods leave, how long to wait. Asked by `workflows.opening`."""

from collections.abc import Iterable, Sequence
from datetime import timedelta

from rekindle.model.fault import EXPECTED_HOLDER, TRAINING_SIDE, UNKNOWN_HOLDER, Fault, FaultType
from rekindle.model.job import Job, TrainingSide
from rekindle.model.recovery import FaultRank, Mode, Order, Situation, Strategy
from rekindle.policy import faulty, orders

HEALTHY = (FaultRank(rank=0, type=FaultType.NETWORK),)
"""What is announced where nothing is faulty after all: training has stopped, and repeats its step. Source: tried with MindIO."""


# ---- what is faulty


def updated(job: Job, situation: Situation, faults: Sequence[Fault], named: Sequence[FaultRank] = ()) -> Situation:
    """The situation with the faults that stand now.

    Args:
        named: what the training side names in an answer.
    """
    told = [one for fault in faults if fault.source == TRAINING_SIDE for one in faulty.ranks_of(job, fault)]
    reported = faulty.together((*situation.reported, *_own_words(situation, (*told, *named))))
    seen = [one for fault in faults if fault.source != TRAINING_SIDE for one in faulty.ranks_of(job, fault)]
    standing = faulty.together(one for one in (*seen, *reported) if one.rank < job.ranks)
    pods = faulty.pods_of(job, standing)
    healed = tuple(one.rank for one in situation.announced if job.layout.pod_of(one.rank) not in pods)
    return situation.with_(faults=tuple(faults), faulty=standing, reported=reported, healed=healed)


def _own_words(situation: Situation, told: Iterable[FaultRank]) -> list[FaultRank]:
    """Behind an announcement the training side repeats what it was told; what is more has been found by itself."""
    announced = {one.rank for one in situation.announced}
    return [one for one in told if one.rank not in announced]


def may_retry(job: Job, situation: Situation) -> bool:
    """Whether the step may be repeated for all that is faulty: then no process ends. One fault that needs more makes them all
    normal faults, and so do faults of both types, a job that allows no retry, and a retry that was tried."""
    is_open = faulty.allows(job, Strategy.RETRY) and Strategy.RETRY not in situation.ordered
    return is_open and faulty.is_retryable(situation.faulty)


def is_told_at_once(job: Job, situation: Situation, strategy: Strategy) -> bool:
    """Whether this strategy is ordered without a question, as long as nothing was announced. Our manager cuts the collectives
    when it learns of a fault, and carries out a strategy from wherever it finds the ranks: its answer says what it cannot do.
    Whether a retry mends all that is faulty by now it does not ask."""
    mends = strategy is not Strategy.RETRY or may_retry(job, situation)
    return mends and job.training_side is TrainingSide.REKINDLE and bool(situation.faulty) and not situation.announced


# ---- what is announced


def pods_leave(job: Job, in_place: bool) -> bool:
    """Whether a normal fault takes all ranks of its pod with it. In pods of ours, and where processes start again in their pods,
    nothing has to leave. Source: the wire contract, `globalFault`."""
    return job.training_side is TrainingSide.MINDIO and not in_place


def announcement(job: Job, situation: Situation, *, leave: bool) -> tuple[FaultRank, ...]:
    """The ranks of `globalFault`, as normal faults or as those that may be retried.

    Args:
        leave: the pods of normal faults leave.
    """
    if not situation.faulty:
        return HEALTHY
    if may_retry(job, situation):
        return situation.faulty
    if not leave:
        return tuple(FaultRank(rank=one.rank) for one in situation.faulty)
    return tuple(FaultRank(rank=rank) for rank in job.layout.ranks_of_all(faulty.pods_of(job, situation.faulty)))


def leaving(job: Job, situation: Situation, before: Sequence[str], now: Sequence[str]) -> tuple[int, ...]:
    """The pods that an exit order may name: held by the pod that became faulty, and named by no earlier order. An exit for a pod
    that has left waits for the next one of its rank, and ends that. A pod that leaves has failed: where that would end its whole
    job, none is told to.

    Args:
        before: who held each pod rank before the incident.
        now: who holds it at this moment.
    """
    if not faulty.may_pods_fail(job):
        return ()
    unnamed = (rank for rank in faulty.pods_of(job, situation.faulty) if rank not in situation.leaving)
    return tuple(rank for rank in unnamed if _holds_on(rank, before, now))


def _holds_on(rank: int, before: Sequence[str], now: Sequence[str]) -> bool:
    if rank >= len(before) or rank >= len(now):
        return False
    return before[rank] == now[rank] and before[rank] not in ("", UNKNOWN_HOLDER, EXPECTED_HOLDER)


def settling(job: Job, situation: Situation) -> timedelta:
    """How long to wait behind the report that training has stopped, for the sake of those who watch a MindIO job's devices."""
    if job.training_side is not TrainingSide.MINDIO or may_retry(job, situation):
        return timedelta(0)
    return job.limits.settle + job.limits.release


def patience(job: Job, situation: Situation) -> timedelta:
    """How long a MindIO client waits for the next order after its report; longer where the announcement gave it time."""
    given = orders.ROUTES if any(one.type is FaultType.NETWORK for one in situation.announced) else 0
    return max(job.limits.next_order, timedelta(seconds=given))


# ---- what is offered


def unasked(job: Job, situation: Situation, attempt: str, strategy: Strategy) -> Situation:
    """The situation in which this strategy is ordered without a question; its order names all that is faulty."""
    announced = announcement(job, situation, leave=False)
    return situation.with_(attempt=attempt, announced=announced, offered=True, offers=(strategy,), presumed=True)


UNASKED = {Mode.ONLINE_RETRY: Strategy.RETRY, Mode.IN_PLACE: Strategy.RECOVER}
"""Strategies that are ordered without a question, by the modes whose order follows from the faults alone."""


def repair(job: Job, situation: Situation, mode: Mode) -> Order:
    """Returns the order of one of these modes for all that is announced."""
    pods = faulty.pods_of(job, situation.announced)
    if mode is Mode.IN_PLACE:
        return orders.recover_in_place(job.id, situation.attempt, situation.announced, pods)
    return orders.change_strategy(job.id, situation.attempt, UNASKED[mode], situation.announced, pods)


def first_order(job: Job, situation: Situation, mode: Mode, attempt: str) -> Order | None:
    """Returns the order with which a mode begins for the faults of a situation; None: it asks or waits before.

    Args:
        attempt: uuid of the order.
    """
    now, strategy = updated(job, situation, situation.faults), UNASKED.get(mode)
    if strategy is None or not is_told_at_once(job, now, strategy) or faulty.lost_pods(job, now.faults):
        return None
    return repair(job, unasked(job, now, attempt, strategy), mode)


def told(situation: Situation, order: Order) -> Situation:
    """Returns the situation in which this first order was given: a fault that it does not name is a second one."""
    return situation.with_(
        attempt=order.uuid,
        announced=order.fault_ranks,
        offered=True,
        offers=(order.change_strategy,),
        presumed=True,
        ordered=(order.change_strategy,),
    )


def presumed(situation: Situation) -> tuple[Strategy, ...]:
    """Returns the strategies of a MindIO client whose report of them was lost, where its job recovers processes. A client that
    was told to repeat the step can do nothing else. Source: tried, with lost reports."""
    return (Strategy.RETRY,) if faulty.is_retryable(situation.announced) else (Strategy.RECOVER,)


def offers(strategies: Iterable[str]) -> tuple[str, ...]:
    """What the training side could carry out, as it reports it: `exit` is always possible, and no offer."""
    return tuple(dict.fromkeys(strategy for strategy in strategies if strategy != Strategy.EXIT))


def again(situation: Situation) -> Situation:
    """Behind a strategy that failed, where the training side bears another one: training stands, and the faults are announced
    under a new uuid. What left has left."""
    return situation.with_(attempt="", announced=(), healed=(), offered=False, offers=(), presumed=False)
