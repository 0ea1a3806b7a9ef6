"""Policy decides which mode follows one that has not recovered training, from how that left training."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.job import Job, JobId
from rekindle.model.keys import POD_RESCHEDULING
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes.mode_table import LAST
from rekindle.policy.modes.succession import next_after
from workflows import faults

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKFLOWS = Path(__file__).parents[2] / "workflows"
IN_PLACE, ELSEWHERE, RETRY, SWITCH = Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING, Mode.ONLINE_RETRY, Mode.HOT_SWITCH
AGAIN = Mode.POD_RESCHEDULING
PLANNED = (IN_PLACE, ELSEWHERE, LAST.mode)


def failed(mode: Mode, training: Training | None = None, outcome: Outcome = Outcome.ESCALATE) -> Verdict:
    return Verdict(mode=mode, outcome=outcome, reason="it failed", training=training)


def state(*kinds: FaultKind) -> JobState:
    """A job with a stream, of which these things are faulty."""
    job = JobState.of(Job(id=JobId("j"), name="gpt", pods=2, ranks_per_pod=2)).with_(registered=True)
    told = tuple(Fault(id=f"f{kind}", kind=kind, ranks=(3,), source="test") for kind in kinds)
    return faults.reported(job, FaultReport(faults=told), NOW)


@pytest.mark.parametrize(
    ("verdict", "tried", "follows"),
    [
        (failed(IN_PLACE), (IN_PLACE,), ELSEWHERE),
        (failed(IN_PLACE, Training.LOST), (IN_PLACE,), LAST.mode),
        (failed(ELSEWHERE), (IN_PLACE, ELSEWHERE), LAST.mode),
        (failed(LAST.mode), (IN_PLACE, ELSEWHERE, LAST.mode), None),
        (failed(Mode.STRESS_TEST, Training.SUSPECT), (Mode.STRESS_TEST,), ELSEWHERE),
        (failed(Mode.LINK_SWITCH, Training.WHOLE), (Mode.LINK_SWITCH, RETRY), IN_PLACE),
    ],
)
def test_what_follows_is_decided_by_how_training_was_left(
    verdict: Verdict, tried: tuple[Mode, ...], follows: Mode | None
) -> None:
    """The next mode of the plan, or the one that mends training as it is; none twice."""
    assert next_after(state(), [verdict], PLANNED, tried, NOW) is follows


def test_what_a_fault_interrupted_is_followed_by_what_mends_that_fault() -> None:
    """The cheapest one, though it is not in the plan of the switch."""
    interrupted = failed(SWITCH, Training.FAULTED, Outcome.CANCELLED)
    assert interrupted.was_interrupted
    assert next_after(state(FaultKind.PROCESS), [interrupted], (SWITCH, LAST.mode), (SWITCH,), NOW) is not None
    assert next_after(state(), [interrupted], (SWITCH, LAST.mode), (SWITCH,), NOW) is LAST.mode


def test_suspect_ranks_leave_their_nodes() -> None:
    """A repair in place would train on with a device that computes wrongly, in this step of the ladder and in every later one."""
    faulty, found = state(FaultKind.PROCESS), failed(Mode.STRESS_TEST, Training.SUSPECT)
    assert next_after(faulty, [found], PLANNED, (Mode.STRESS_TEST,), NOW) is ELSEWHERE
    verdicts, tried = [found, failed(ELSEWHERE)], (Mode.STRESS_TEST, ELSEWHERE)
    assert next_after(faulty, verdicts, PLANNED, tried, NOW) is LAST.mode
    assert next_after(state(), [found], (Mode.STRESS_TEST,), (Mode.STRESS_TEST,), NOW) is LAST.mode


def test_nothing_follows_the_last_mode() -> None:
    """The incident is given up, also if a cheaper mode would repair a known fault: the pods were just recreated."""
    assert next_after(state(FaultKind.PROCESS), [failed(LAST.mode)], (SWITCH, LAST.mode), (SWITCH, LAST.mode), NOW) is None


def test_no_procedure_names_its_successor() -> None:
    """A mode's own name, in its `MODE`, is the only one that its file has."""
    others = set()
    for file in WORKFLOWS.glob("*.py"):
        text = file.read_text()
        if len(re.findall(r"\bMode\.[A-Z_]+", text)) > len(re.findall(r"^    MODE = Mode\.", text, re.MULTILINE)):
            others.add(file.name)
    assert others <= ASKED_FOR


ASKED_FOR = {"front.py", "link_failover.py", "opening.py"}
"""Files that ask for a mode, or differ for one: fronts and maintenances ask, and the opening differs where pods stay."""


@pytest.mark.parametrize(
    ("outcome", "named", "training"),
    [
        ("escalate", "job rescheduling", Training.LOST),
        ("escalate", "online retry", Training.WHOLE),
        ("escalate", "process rescheduling", Training.SUSPECT),
        ("cancelled", "job rescheduling", Training.FAULTED),
        ("escalate", None, None),
    ],
)
def test_a_verdict_of_an_earlier_version_is_read(outcome: str, named: str | None, training: Training | None) -> None:
    """The older verdict names the next mode, in place of how training was left."""
    written = {"mode": "hot switch", "outcome": outcome, "reason": "it failed", "next_mode": named}
    assert Verdict.model_validate(written).training is training


def of_pods(*kinds: FaultKind) -> JobState:
    """A job of which only faulty pods are to be replaced."""
    faulty = state(*kinds)
    job = faulty.job.model_copy(update={"labels": {POD_RESCHEDULING: "on"}})
    here = Attachment(queue="gateway/1", session="s", since=NOW)
    progress = Progress(incarnation="life-1", step=1)
    return faulty.with_(job=job, introduced=True, attachment=here, progress=progress)


def test_the_state_is_saved_before_pods_are_replaced_and_nothing_cheaper_follows() -> None:
    """The order holds for each fault that a cheaper mode did not repair. After a failure the whole job is restarted."""
    faulty, planned = of_pods(FaultKind.POD), (ELSEWHERE, Mode.DYING_GASP, AGAIN, LAST.mode)
    assert next_after(faulty, [failed(ELSEWHERE)], planned, (ELSEWHERE,), NOW) is Mode.DYING_GASP
    verdicts, tried = [failed(ELSEWHERE), failed(Mode.DYING_GASP)], (ELSEWHERE, Mode.DYING_GASP)
    assert next_after(faulty, verdicts, planned, tried, NOW) is AGAIN
    assert next_after(faulty, verdicts[1:], (Mode.DYING_GASP, LAST.mode), (Mode.DYING_GASP,), NOW) is AGAIN
    lost = [*verdicts, failed(AGAIN, Training.LOST)]
    assert next_after(faulty, lost, planned, (*tried, AGAIN), NOW) is LAST.mode
    unanswered = [failed(ELSEWHERE), failed(Mode.DYING_GASP, Training.LOST)]
    assert next_after(faulty, unanswered, planned, tried, NOW) is LAST.mode
