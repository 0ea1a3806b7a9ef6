"""Texts of a job and of a recovery in the Temporal UI follow from what is known, and from nothing else."""

from datetime import UTC, datetime
from typing import Any

import pytest

from rekindle.model import bounds
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.incident import Incident
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.sizes import LONGEST_NAME
from rekindle.model.standby import Standby
from rekindle.model.state import Downgrade, JobState
from rekindle.model.verdict import Verdict
from rekindle.policy.modes.cases import next_case
from workflows import job_reducers, ui_text

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(id=JobId("uid"), name="gpt", pods=2, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH)
STATE = JobState(
    job=JOB,
    attachment=Attachment(queue="gateway/gateway-0", session="s", since=NOW),
    progress=Progress(incarnation="life-1", step=1),
)
ILL = Fault(id="ill", kind=FaultKind.SUB_HEALTH, pod_ranks=(1,), node="node-1", code="80E18005", source="test")
DOWN = Downgrade(reason="no spare", since=NOW, before=SubHealthStrategy.HOT_SWITCH)


def told(*faults: Fault) -> JobState:
    return job_reducers.reported(STATE, FaultReport(faults=faults), NOW)


def lines(state: JobState, running: Mode | None = None, recovery: str = "") -> list[str]:
    return ui_text.job_page(state, running, recovery).splitlines()


def incident(number: int, *outcomes: Outcome) -> Incident:
    ladder = tuple(
        Verdict(mode=mode, outcome=outcome, reason="r")
        for mode, outcome in zip((Mode.HOT_SWITCH, Mode.JOB_RESCHEDULING), outcomes, strict=False)
    )
    return Incident(
        number=number,
        summary=f"fault {number}",
        started_at=NOW,
        seconds=1.25,
        verdict=outcomes[-1],
        ladder=ladder,
        policy_after=SubHealthStrategy.HOT_SWITCH,
    )


@pytest.mark.parametrize(
    ("known", "running", "words"),
    [
        ({}, None, "training"),
        ({}, Mode.HOT_SWITCH, "recovering"),
        ({"downgrade": DOWN}, None, "sub-health ignored"),
        ({"downgrade": DOWN}, Mode.JOB_RESCHEDULING, "recovering"),
        ({"job": JOB.model_copy(update={"observe": True}), "downgrade": DOWN}, None, "observed"),
        ({"job": JOB.model_copy(update={"observe": True}), "ended": "the job succeeded"}, None, "ended"),
    ],
)
def test_a_job_is_one_or_two_words_in_the_list(known: dict[str, Any], running: Mode | None, words: str) -> None:
    """A running mode is shown rather than how the job is handled, and the end of the job rather than anything else."""
    assert ui_text.job_phase(STATE.model_copy(update=known), running) == words


def test_the_page_of_a_quiet_job_is_three_lines() -> None:
    """Nothing is said of what is not wrong."""
    assert lines(STATE) == ["**gpt**: training", "- sub-health policy: hotSwitch", "- stream: gateway/gateway-0"]


def test_the_page_says_what_is_wrong_and_what_is_done_about_it() -> None:
    """The recovery with its workflow, problems, the downgrade with its reason, a lost manager, no stream."""
    state = STATE.with_(problems=("twice",), downgrade=DOWN, manager_lost="another process", attachment=None)
    assert lines(state, Mode.JOB_RESCHEDULING, "recovery/x") == [
        "**gpt**: recovering",
        "- running: job rescheduling (workflow `recovery/x`)",
        "- cannot be recovered: twice",
        "- sub-health policy: ignore",
        "  (downgraded 2026-01-01 00:00:00: no spare)",
        "- its manager was lost: another process",
        "- stream: not attached",
    ]


def test_the_page_says_how_many_stand_by() -> None:
    """The line names how many standbys run, how many are wanted, and their nodes."""
    standby = Standby(name="gpt-standby-0", uid="a", node="node-3", runs=True)
    state = STATE.with_(job=JOB.model_copy(update={"standbys": 2}), standbys=(standby,))
    assert "- standbys: 1 of 2 (node-3)" in lines(state)


def test_a_fault_stands_on_the_page_since_when_and_as_it_was_judged() -> None:
    """The line has the time, the fault and its judgement, and stays as long as the fault stands."""
    state = told(ILL)
    case = next_case(state, NOW)
    assert case
    assert lines(state)[3:] == ["- fault since 2026-01-01 00:00:00: sub-health node-1 80E18005"]
    assert lines(job_reducers.judged(state, case, "refused: no step yet"))[3:] == [
        "- fault since 2026-01-01 00:00:00: sub-health node-1 80E18005 (refused: no step yet)"
    ]


def test_of_many_faults_and_incidents_the_page_shows_some() -> None:
    """The page says how many more faults there are, and shows the last five incidents, newest first."""
    many = told(*(ILL.model_copy(update={"id": f"{number}"}) for number in range(23)))
    state = many.with_(history=tuple(incident(number, Outcome.ESCALATE, Outcome.RECOVERED) for number in range(1, 8)))
    shown = lines(state)
    assert len([line for line in shown if line.startswith("- fault")]) == ui_text.SHOWN_FAULTS
    assert "- and 3 more faults" in shown
    assert shown[-5:][0] == "- incident 7: fault 7 -> hot switch escalate, job rescheduling recovered in 1.2 s"
    assert [line.split(":")[0] for line in shown[-5:]] == [f"- incident {number}" for number in (7, 6, 5, 4, 3)]


def test_the_page_of_a_recovery_names_fault_ladder_and_limits() -> None:
    """The running mode is highlighted, and its one line says which job and why."""
    case = next_case(told(ILL), NOW)
    assert case
    text = ui_text.recovery_details(Mode.JOB_RESCHEDULING, JOB, 3, case)
    assert text.startswith("Incident 3 of job `gpt` (uid), 2 pods, 4 ranks, training side rekindle")
    assert "- sub_health node-1 80E18005 (seen by test)" in text
    assert "hot switch -> **job rescheduling**" in text
    assert "- pause: 900 s" in text
    assert ui_text.recovery_summary(Mode.HOT_SWITCH, JOB, case) == "hot switch of gpt: sub-health node-1 80E18005"


def test_whatever_is_known_fits_where_it_is_shown() -> None:
    """The server ends a workflow that sets a longer text."""
    job = JOB.model_copy(update={"name": "é" * LONGEST_NAME})
    many = told(*(ILL.model_copy(update={"id": f"{n}", "node": "é" * 253, "message": "é" * 300}) for n in range(50)))
    state = many.with_(job=job, problems=("é" * 1000,) * 21)
    case = next_case(many, NOW)
    assert case
    assert len(ui_text.job_page(state, None, "").encode()) <= bounds.DETAILS
    assert len(ui_text.recovery_summary(Mode.HOT_SWITCH, job, case).encode()) <= bounds.SUMMARY
    assert len(ui_text.recovery_details(Mode.HOT_SWITCH, job, 1, case).encode()) <= bounds.DETAILS
