"""Computes the faulty ranks of the present faults, and what the job's owner allows to be done about them.

Used before a mode is chosen (`eligibility`) and while faults are announced (`opening`).
"""

from collections.abc import Iterable

from rekindle.model.dialogue import FaultRank
from rekindle.model.elastic import Small
from rekindle.model.fault import Fault, FaultKind, FaultType
from rekindle.model.job import Job
from rekindle.model.keys import FAULT_RETRY_TIMES, PROCESS_RECOVER_ENABLE, RECOVER_STRATEGY
from rekindle.policy.training_sides.table import side_of

IN_PLACE = "recover-in-place"
"""Name of in-place recovery in the job's annotation and in an order. Source: the wire contract."""


def together(found: Iterable[FaultRank]) -> tuple[FaultRank, ...]:
    """Returns every rank once. The last reported type of its fault holds, but a process that has ended stays ended."""
    types: dict[int, FaultType] = {}
    for one in found:
        if types.get(one.rank) is not FaultType.OTHER:
            types[one.rank] = one.type
    return tuple(FaultRank(rank=rank, type=types[rank]) for rank in sorted(types))


def ranks_of(job: Job, fault: Fault) -> list[FaultRank]:
    """Returns the ranks of a real fault: those that it names, or all of its pods. A sub-health and a fault of a backup pod have
    none."""
    if fault.kind is FaultKind.SUB_HEALTH or fault.backup:
        return []
    types = {rank: detail.type for detail in fault.details for rank in detail.ranks}
    ranks = fault.ranks or job.layout.ranks_of_all(fault.pod_ranks)
    return [FaultRank(rank=rank, type=types.get(rank, FaultType.OTHER)) for rank in ranks]


def pods_of(job: Job, faults: Iterable[FaultRank]) -> tuple[int, ...]:
    """Returns the pod ranks of faulty ranks."""
    return job.layout.pods_of(one.rank for one in faults)


def is_retryable(faults: Iterable[FaultRank]) -> bool:
    """Returns whether repeating the step may repair these faults: all are memory faults, or all are network faults."""
    types = {one.type for one in faults}
    return len(types) < 2 and FaultType.OTHER not in types


def lost_pods(job: Job, faults: Iterable[Fault]) -> tuple[int, ...]:
    """Returns the pod ranks whose pod or node is lost, so that nothing can be restarted in place."""
    return pods_of(job, (one for fault in faults if _ends_pods(fault) for one in ranks_of(job, fault)))


def is_nobody_left(job: Job, faults: Iterable[Fault], small: Small | None) -> bool:
    """Returns whether all pods are lost, so that no training side answers any more.

    Args:
        small: state of a job that trains with fewer pods than it was started with.
    """
    missing = small.missing if small else ()
    return len({*lost_pods(job, faults), *missing}) >= job.pods


def allows(job: Job, word: str) -> bool:
    """Returns whether the job's owner allows a strategy. If none is named, the training side has its own rule."""
    named = job.annotations.get(RECOVER_STRATEGY)
    if named is None:
        return side_of(job).usually_allows(job, word)
    return word in (one.strip() for one in named.split(","))


def may_pods_fail(job: Job) -> bool:
    """Returns whether pods may fail without the end of the job. Otherwise the Ascend Operator ends the job for good, or Volcano
    ends other pods too: the Operator turns process-level recovery on if strategies are named. Source: the Kubernetes contract."""
    is_on = RECOVER_STRATEGY in job.annotations or job.labels.get(PROCESS_RECOVER_ENABLE) == "on"
    return is_on and job.labels.get(FAULT_RETRY_TIMES, "0").strip() not in ("", "0")


def _ends_pods(fault: Fault) -> bool:
    return fault.kind in (FaultKind.POD, FaultKind.NODE)
