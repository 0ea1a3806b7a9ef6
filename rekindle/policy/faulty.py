"""Which ranks are faulty by the faults that stand, and what the job's owner allows to be done about them.

Asked before a mode is chosen (`eligibility`) and while faults are announced (`opening`).
"""

from collections.abc import Iterable

from rekindle.model.fault import Fault, FaultKind, FaultType
from rekindle.model.job import Job, SubHealthStrategy, TrainingSide
from rekindle.model.keys import FAULT_RETRY_TIMES, PROCESS_RECOVER_ENABLE, RECOVER_STRATEGY
from rekindle.model.recovery import FaultRank, Strategy

IN_PLACE = "recover-in-place"
"""The word of the job's annotation, and of an order, for processes that start again in their pods. Source: the wire contract."""


def together(found: Iterable[FaultRank]) -> tuple[FaultRank, ...]:
    """Every rank once. The last word on its type holds, but a process that has ended stays ended."""
    types: dict[int, FaultType] = {}
    for one in found:
        if types.get(one.rank) is not FaultType.OTHER:
            types[one.rank] = one.type
    return tuple(FaultRank(rank=rank, type=types[rank]) for rank in sorted(types))


def ranks_of(job: Job, fault: Fault) -> list[FaultRank]:
    """A real fault's ranks: those that it names, or all of its pods. A sub-health and the end of a backup pod have none."""
    if fault.kind is FaultKind.SUB_HEALTH or fault.backup:
        return []
    types = {rank: detail.type for detail in fault.details for rank in detail.ranks}
    ranks = fault.ranks or job.layout.ranks_of_all(fault.pod_ranks)
    return [FaultRank(rank=rank, type=types.get(rank, FaultType.OTHER)) for rank in ranks]


def pods_of(job: Job, faults: Iterable[FaultRank]) -> tuple[int, ...]:
    """Pod ranks of faulty ranks."""
    return job.layout.pods_of(one.rank for one in faults)


def is_retryable(faults: Iterable[FaultRank]) -> bool:
    """Whether repeating the step may mend them: faults of memory, or of the network, and not of both."""
    types = {one.type for one in faults}
    return len(types) < 2 and FaultType.OTHER not in types


def lost_pods(job: Job, faults: Iterable[Fault]) -> tuple[int, ...]:
    """Pod ranks whose pod, or its node, is lost: nothing starts again in them."""
    return pods_of(job, (one for fault in faults if _ends_pods(fault) for one in ranks_of(job, fault)))


def is_nobody_left(job: Job, faults: Iterable[Fault]) -> bool:
    """Whether every pod is lost: then nobody answers any more."""
    return len(lost_pods(job, faults)) >= job.pods


def allows(job: Job, word: str) -> bool:
    """Whether the job's owner names this strategy. Who names none allows our own training side all that it offers, and MindIO to
    `recover` where it may switch hot: the Ascend Operator sets its processes up for that. Source: the Kubernetes contract."""
    named = job.annotations.get(RECOVER_STRATEGY)
    if named is None:
        switches = job.sub_health is SubHealthStrategy.HOT_SWITCH and word == Strategy.RECOVER
        return job.training_side is TrainingSide.REKINDLE or switches
    return word in (one.strip() for one in named.split(","))


def may_pods_fail(job: Job) -> bool:
    """Whether the Ascend Operator bears a pod that fails; otherwise it ends the whole job for good. And whether Volcano ends no
    other pod with it: the Operator turns process-level recovery on for who names strategies. Source: the Kubernetes contract."""
    is_on = RECOVER_STRATEGY in job.annotations or job.labels.get(PROCESS_RECOVER_ENABLE) == "on"
    return is_on and job.labels.get(FAULT_RETRY_TIMES, "0").strip() not in ("", "0")


def _ends_pods(fault: Fault) -> bool:
    return fault.kind in (FaultKind.POD, FaultKind.NODE)
