"""Largest values of recoveries and of their dialogue with a training side."""

from rekindle.model.dialogue import FaultRank, Heard, Report, ReportKind
from rekindle.model.elastic import Resized
from rekindle.model.fault import (
    FaultKind,
    FaultType,
)
from rekindle.model.incident import Incident, Waited
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Phase, Situation, Switched
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import elastic
from rekindle.policy.modes.cases import Case
from tests.workflows.support.largest.common import NOW, TEXT, a_name, long_fault, pod_ref, process_fault
from tests.workflows.support.largest.device_checks import findings_of, results_of


def ended(outcome: Outcome) -> Verdict:
    """Returns a verdict without the data of each rank."""
    return Verdict(
        mode=Mode.JOB_RESCHEDULING,
        outcome=outcome,
        reason=TEXT * 3,
        phases=tuple(Phase(name="p" * 60, seconds=1.0, note=TEXT, at=NOW) for _ in range(8)),
        look_at=TEXT,
        restarted_at=NOW,
        switched=(Switched(pod_rank=1, before=pod_ref(1), after=pod_ref(2)),),
    )


def verdict(job: Job) -> Verdict:
    found = (long_fault(job, 1, FaultKind.POD), process_fault(range(0, job.ranks, 2)))
    return ended(Outcome.RECOVERED).with_(
        tested=findings_of(job), found=found, unread=reports(job)[:1], situation=situation(job), resized=resized(job)
    )


def resized(job: Job) -> Resized:
    """Returns a change of the size in which every second pod leaves."""
    nodes = tuple(a_name(number) for number in range(elastic.MOST_NODES))
    left = tuple(range(0, job.pods, 2))
    places = (left[-elastic.MOST_PLACED :],) * len(nodes)
    return Resized(left=left, nodes=nodes, places=places, by_hand=True, attempt="u" * 50)


def situation(job: Job) -> Situation:
    """Returns a situation in which every second rank is faulty, alternately by memory and network, which gives the longest texts.
    All pods but one leave."""
    faulty = tuple(FaultRank(rank=rank, type=FaultType(f"{rank % 4}")) for rank in range(0, job.ranks, 2))
    announced = tuple(FaultRank(rank=rank) for rank in range(0, job.ranks, 2))
    return Situation(
        attempt="u" * 60,
        faulty=faulty,
        reported=faulty,
        announced=announced,
        leaving=tuple(range(1, job.pods)),
        offered=True,
        offers=tuple("s" * 64 for _ in range(32)),
        answer_by=NOW,
        told_on="u" * 36,
        unread=reports(job)[:1],
        heard=tuple(Heard(id="u" * 32, mark="m" * 16) for _ in range(20)),
    )


def reports(job: Job) -> tuple[Report, ...]:
    """Returns reports in which every rank is faulty or isolated."""
    everyone = tuple(FaultRank(rank=rank) for rank in range(job.ranks))
    strategies = tuple("s" * 64 for _ in range(32))
    return (
        Report(kind=ReportKind.STOP_COMPLETE, info="i" * 1000, fault_ranks=everyone),
        Report(kind=ReportKind.STRATEGIES, strategies=strategies, fault_ranks=everyone),
        Report(kind=ReportKind.STRESS, info="i" * 1000, results=results_of(job)),
        Report(kind=ReportKind.STATUS, info="i" * 1000, isolate_ranks=tuple(range(job.ranks))),
    )


def incident_of(job: Job, number: int, case: Case, policy: SubHealthStrategy) -> Incident:
    """Returns an incident that escalated, and was recovered by a restart. Both modes have changed the size of the job."""
    ladder = tuple(ended(outcome).with_(resized=resized(job)) for outcome in (Outcome.ESCALATE, Outcome.RECOVERED))
    return Incident(
        number=number,
        summary=case.summary,
        started_at=NOW,
        seconds=1.0,
        verdict=Outcome.RECOVERED,
        ladder=ladder,
        policy_after=policy,
        waits=(Waited(since=NOW, until=NOW),) * 3,
        faults=case.faults,
    )
