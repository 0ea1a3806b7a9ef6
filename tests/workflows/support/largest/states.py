"""Largest states of jobs, and what a job's workflow passes on."""

from datetime import timedelta
from typing import Any

from rekindle.model.approval import Question
from rekindle.model.contract import Announced, PlatformAnswer, PlatformRequest, Words, WordsRequest, WordsWritten
from rekindle.model.dialogue import FaultRank
from rekindle.model.elastic import Small
from rekindle.model.fault import (
    HOLDER_LENGTH,
    FaultKind,
    FaultReport,
    FaultsNow,
    ManagerGone,
    Sighting,
)
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.links import OnBackup
from rekindle.model.mode import Mode
from rekindle.model.situation import Situation
from rekindle.model.sizes import LONGEST_NAME
from rekindle.model.state import KEPT_INCIDENTS, JobState, Standing
from rekindle.policy.detection.pod_ranks import TOLD_PROBLEMS
from rekindle.policy.modes import cases, contract_words, elastic
from rekindle.policy.modes.mode_table import LAST
from tests.workflows.support.largest.accounts import worn_account
from tests.workflows.support.largest.common import NOTE, NOW, STORM, TEXT, a_name, long_fault, process_fault
from tests.workflows.support.largest.links import EVERY_SECOND
from tests.workflows.support.largest.recoveries import incident_of, situation, verdict
from workflows import faults, job_reducers
from workflows.incident import IncidentRun
from workflows.job_context import JobContext
from workflows.platform import Platform


def worn(job: Job, sighting: Sighting) -> JobState:
    """Returns the state of a job with twenty bad incidents and as many requests, which now has all faults again."""
    found = JobState.of(job.model_copy(update={"sub_health": SubHealthStrategy.HOT_SWITCH}))
    answer = verdict(job)
    for number in range(KEPT_INCIDENTS + 1):
        found = bad(found, sighting)
        case = cases.next_case(found.with_(problems=()), NOW)
        assert case
        found = job_reducers.concluded(job_reducers.begun(found, case), case, incident_of(job, number, case, found.policy))
        found = job_reducers.answered(found, "r" * 36, answer)
    found = found.with_(account=worn_account())
    question = Question(mode=LAST.mode, incident=1, about=NOTE, since=NOW, until=NOW, storm=STORM)
    found = bad(found, sighting).with_(links=(OnBackup(ranks=EVERY_SECOND, maintenance=TEXT),), question=question)
    case = cases.next_case(found.with_(problems=()), NOW)
    assert case
    return elastic.without_missing(job_reducers.judged(found, case, f"given_up: {TEXT}").with_(small=smallest(job)))


def smallest(job: Job) -> Small:
    """Returns the state of a job that has lost every second pod."""
    missing = tuple(range(0, job.pods, 2))
    return Small(
        since=NOW,
        missing=missing,
        nodes=tuple(a_name(number) for number in range(elastic.MOST_NODES)),
        places=(missing[-elastic.MOST_PLACED :],) * elastic.MOST_NODES,
        by_hand=True,
        size=999_999,
        attempt="u" * 50,
        old=dict.fromkeys(missing[-elastic.MOST_HOLDERS :], "u" * HOLDER_LENGTH),
        lingering=missing,
        there=missing[: elastic.MOST_THERE],
        hurried=elastic.MOST_HURRIED,
        try_at=NOW,
        last_try=TEXT,
    )


def bad(found: JobState, sighting: Sighting) -> JobState:
    """Adds all faults that the watcher, the training side and operators can report."""
    job = found.job
    problems = tuple(f"pod {a_name(number)} carries no rank" for number in range(TOLD_PROBLEMS + 1))
    found = job_reducers.sighted(found, sighting.model_copy(update={"problems": problems}), NOW, restarting=False)
    of_failed_pods = [rank for pod_rank in range(0, job.pods, 4) for rank in job.layout.ranks_of(pod_rank)]
    found = job_reducers.reported(found, FaultReport(faults=(process_fault(of_failed_pods),)), NOW)
    for number in range(40):
        for kind in (FaultKind.NODE, FaultKind.SUB_HEALTH):
            report = FaultReport(faults=(long_fault(job, number, kind),))
            if not faults.room_problem(found, report):
                found = job_reducers.reported(found, report, NOW)
    return found


def of_a_recovery(job: Job, found: JobState) -> list[Any]:
    """Returns what the job's workflow passes to a mode, and sends to it while it runs."""
    case = cases.next_case(found.with_(problems=(), faults=tuple(Standing(fault=one.fault) for one in found.faults)), NOW)
    assert case
    run = IncidentRun.__new__(IncidentRun)
    run.case, run._known, run._number = case, JobContext(found), 1  # without a workflow
    run._situation, run._platform = situation(job).with_(faults=case.faults), Platform(case, run._known)
    gone = ManagerGone(how=f"manager {'u' * LONGEST_NAME}/{NOW.isoformat()} is another process")
    return [run._context(NOW), FaultsNow(faults=case.faults), gone]


def said_to_others(job: Job, found: JobState) -> list[Any]:
    """Returns what is written for other components, and asked of a platform."""
    every_second = tuple(range(0, job.ranks, 2))
    faults = tuple(one.fault for one in found.faults)
    begun = contract_words.begins(Words(), Mode.PROCESS_RESCHEDULING, found, Situation(faults=faults))
    words = begun.model_copy(update={"faulty": every_second, "leaving": tuple(range(0, job.pods, 2))})
    everything = tuple(FaultRank(rank=rank) for rank in every_second)
    return [
        WordsRequest(job_id=job.id, words=words),
        WordsWritten(restarts=1),
        Announced(ranks=every_second, in_place=True),
        PlatformRequest(job_id=job.id, key=TEXT, confirm=everything, within=timedelta(minutes=1)),
        PlatformAnswer(answered=True, value=TEXT * 9, faults=everything, problem=TEXT * 9),
    ]
