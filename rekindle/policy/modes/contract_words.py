"""Decides what MindCluster's contract says of a recovery at each of its moments. Pure; `workflows.contract_words` writes it.
Source: the Kubernetes contract, and recorded dialogues of ClusterD."""

from collections.abc import Sequence

from rekindle.model.contract import Announced, FaultLabel, Status, Words
from rekindle.model.dialogue import FaultRank, Strategy
from rekindle.model.fault import EXPECTED_HOLDER, TRAINING_SIDE, UNKNOWN_HOLDER, Fault
from rekindle.model.job import Job, Trait
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Situation
from rekindle.model.state import JobState
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import faulty_ranks
from rekindle.policy.modes.mode_table import LAST, About, row_of

OVER = Words(over=True)

STRATEGIES = {
    Mode.ONLINE_RETRY: (Strategy.RETRY, Status.RETRY_SUCCESS, Status.RETRY_FAILED),
    Mode.IN_PLACE: (Strategy.RECOVER, Status.RECOVER_SUCCESS, Status.RECOVER_FAILED),
    Mode.PROCESS_RESCHEDULING: (Strategy.RECOVER, Status.RECOVER_SUCCESS, Status.RECOVER_FAILED),
    Mode.DYING_GASP: (Strategy.DUMP, Status.DUMP_SUCCESS, Status.DUMP_FAILED),
}
"""Strategy of each mode, and what is said of its end."""

FLUSHES = (About.RANKS, About.CHECKS)
"""Subjects of modes before which faults are collected."""

MOST_LABELLED = 500
"""Maximum number of pods that are labelled. A fault of more ranks is hardly one of each of them."""

NOBODY = ("", UNKNOWN_HOLDER, EXPECTED_HOLDER)


def are_used(job: Job) -> bool:
    """Returns whether other components read words about this job. A job that is only observed gets none."""
    return job.has(Trait.CONTRACT_WORDS) and not job.observe


def begins(before: Words, mode: Mode, state: JobState, situation: Situation) -> Words:
    """Returns the words at the beginning of a mode.

    Args:
        situation: what earlier modes of the incident have left; its faults are those of the mode.
    """
    if mode is LAST.mode:
        return _restarts(before, situation)
    if row_of(mode).about not in FLUSHES:
        return before
    labels = {**_labels(state, situation.faults), **before.labels}
    leaving = () if mode in (Mode.ONLINE_RETRY, Mode.IN_PLACE) else _pods(state.job, situation.faults)
    is_first = not (before.faulty or before.status)
    flushing = is_first or before.flushing
    return before.model_copy(update={"flushing": flushing, "labels": labels, "leaving": leaving})


def _restarts(before: Words, situation: Situation) -> Words:
    """Returns the words at a restart: no rank is faulty any more, and all processes begin again, once more than before."""
    ordered = bool(situation.ordered)
    status = before.status if not ordered or Strategy.DUMP in situation.ordered else Status.EXIT_COMPLETED
    restarts = before.restarts + 1 if ordered and before.restarts is not None else before.restarts
    return Words(status=status, restarts=restarts, labels=before.labels)


def announced(before: Words, told: Announced) -> Words:
    return before.model_copy(update={"flushing": False, "faulty": told.ranks, "in_place": told.in_place})


def ended(before: Words, verdict: Verdict, ordered: Sequence[str]) -> Words:
    """Returns the words at the end of a mode.

    Args:
        ordered: strategies that were ordered in the incident.
    """
    if verdict.mode not in STRATEGIES:
        return before
    strategy, well, badly = STRATEGIES[verdict.mode]
    if strategy not in ordered:
        return before
    is_well = verdict.saved or verdict.outcome is Outcome.RECOVERED
    return before.model_copy(update={"status": well if is_well else badly})


def over(before: Words) -> Words:
    """Returns the words at the end of an incident: what holds only during a recovery is removed, and its result stays."""
    return Words(status=before.status, restarts=before.restarts, over=True)


def _labels(state: JobState, faults: Sequence[Fault]) -> dict[str, FaultLabel]:
    """Returns the labels of the pods whose processes have reported faults, by their UIDs as holders have them."""
    job = state.job
    told = [one for fault in faults if fault.source == TRAINING_SIDE for one in faulty_ranks.ranks_of(job, fault)]
    holders = {pod: state.holders[pod] for pod in faulty_ranks.pods_of(job, told) if pod < len(state.holders)}
    named = [(pod, uid) for pod, uid in holders.items() if uid not in NOBODY][:MOST_LABELLED]
    return {uid: _type_of(job, told, pod) for pod, uid in named}


def _type_of(job: Job, faults: Sequence[FaultRank], pod_rank: int) -> FaultLabel:
    is_retryable = faulty_ranks.is_retryable(one for one in faults if job.layout.pod_of(one.rank) == pod_rank)
    return FaultLabel.RETRY if is_retryable else FaultLabel.SOFTWARE


def _pods(job: Job, faults: Sequence[Fault]) -> tuple[int, ...]:
    return faulty_ranks.pods_of(job, (one for fault in faults for one in faulty_ranks.ranks_of(job, fault)))
