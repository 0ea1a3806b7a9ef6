"""Builders for faults, verdicts and incidents, for tests of a job's memory."""

from datetime import UTC, datetime

from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, Pending
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import cases
from workflows import job_reducers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(id=JobId("job"), name="gpt", pods=3, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH)
STATE = JobState.of(JOB)
ASKED = Pending(id="r1", request=ModeRequest(mode=Mode.HOT_SWITCH, pod_rank=1, force=True))


def a_fault(name: str = "e", kind: FaultKind = FaultKind.NODE, **fields: object) -> Fault:
    return Fault.model_validate({"id": name, "kind": kind, "source": "test", **fields})


def told(state: JobState, *found: Fault, at: datetime = NOW) -> JobState:
    return job_reducers.reported(state, FaultReport(faults=found), at)


def an_incident(*verdicts: Verdict, at: datetime = NOW, number: int = 1, about: tuple[Fault, ...] = ()) -> Incident:
    return Incident(
        number=number,
        summary="s",
        started_at=at,
        seconds=1.0,
        verdict=verdicts[-1].outcome,
        ladder=verdicts,
        policy_after=SubHealthStrategy.HOT_SWITCH,
        faults=about,
    )


def a_verdict(mode: Mode = Mode.JOB_RESCHEDULING, outcome: Outcome = Outcome.RECOVERED, **fields: object) -> Verdict:
    return Verdict.model_validate({"mode": mode, "outcome": outcome, "reason": "r", **fields})


def concluded(state: JobState, *verdicts: Verdict, number: int = 1, about: tuple[Fault, ...] = ()) -> JobState:
    case = cases.next_case(state, NOW)
    assert case
    return job_reducers.concluded(state, case, an_incident(*verdicts, number=number, about=about))
