"""Chances of the modes of a job, as `rekindle explain` shows them."""

from datetime import UTC, datetime, timedelta

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.fault import FaultKind
from rekindle.model.job import Job, JobId
from rekindle.model.keys import POD_RESCHEDULING, PROCESS_RECOVER_ENABLE, RECOVER_STRATEGY
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.model.training_side import TrainingSide
from rekindle.policy.modes.chances import chances
from rekindle.policy.modes.eligibility import GRACEFUL
from rekindle.policy.modes.ladder import for_real_faults, for_request
from rekindle.policy.modes.mode_table import LADDER

ATTACHED = Attachment(queue="gateway/gateway-0", session="s", since=datetime(2026, 1, 1, tzinfo=UTC))


def of(**job: object) -> JobState:
    return JobState.of(Job.model_validate({"id": JobId("j"), "name": "gpt", "pods": 3, "ranks_per_pod": 2, **job}))


def test_all_modes_are_listed_in_the_order_in_which_they_are_tried() -> None:
    """A mode about pods is listed once, if the same speaks against all pods."""
    assert [chance.mode for chance in chances(of(capabilities=("replace_rank_0",)))] == [row.mode for row in LADDER]


def test_a_pod_with_reasons_of_its_own_is_listed_apart() -> None:
    """Pod rank 0 of MindIO cannot be replaced."""
    found = [chance for chance in chances(of(training_side=TrainingSide.MINDIO)) if chance.mode is Mode.HOT_SWITCH]
    assert [chance.pod_ranks for chance in found] == [(0,), (1, 2)]
    assert any("pod rank 0 cannot be replaced" in reason for reason in found[0].against)


def test_a_job_that_asks_for_graceful_tolerance_is_only_restarted() -> None:
    """Graceful fault tolerance has reached its end of life, and together with the recovery of processes nothing else is possible.
    Each mode gives that reason first, as does the verdict of a restart."""
    state = of(
        graceful_tolerance=True,
        labels={PROCESS_RECOVER_ENABLE: "on", POD_RESCHEDULING: "on"},
        annotations={RECOVER_STRATEGY: "retry,recover,recover-in-place,dump"},
    ).with_(introduced=True, attachment=ATTACHED, progress=Progress(incarnation="life-1", step=1))
    assert [chance.mode for chance in chances(state) if GRACEFUL not in chance.against] == [Mode.JOB_RESCHEDULING]
    plan = for_real_faults(state, (FaultKind.PROCESS,))
    assert plan.modes == (Mode.JOB_RESCHEDULING,)
    assert plan.passed_over.startswith("no online retry: hotReset=1 asks for graceful fault tolerance")
    assert for_request(state, Mode.DYING_GASP, None).refused.startswith("hotReset=1")
    well = state.with_(job=state.job.model_copy(update={"graceful_tolerance": False}))
    assert Mode.DYING_GASP in for_real_faults(well, (FaultKind.PROCESS,)).modes


def test_what_is_not_faulty_yet_speaks_against_nothing() -> None:
    """Chances without a fault are those for a fault to come."""
    assert not [chance for chance in chances(of()) if any("known to be faulty" in reason for reason in chance.against)]


def test_bounds_that_the_next_fault_would_meet_speak_against_modes() -> None:
    """Bounds hold although nothing is faulty at this moment, and no more when their time is over."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    lately = tuple(now - timedelta(minutes=1) for _ in range(50))
    state = of().with_(introduced=True, attachment=ATTACHED, progress=Progress(incarnation="life-1", step=1))
    worn = state.with_(repairs=lately, restarts=lately[:5])

    def against(mode: Mode, moment: datetime) -> str:
        return "; ".join(next(one.against for one in chances(worn, moment) if one.mode is mode))

    assert against(Mode.IN_PLACE, now) == "its processes were recovered 50 times within 1:00:00, and their faults come back"
    assert against(Mode.JOB_RESCHEDULING, now) == "the job was restarted 5 times within 1:00:00: it needs a look by a person"
    assert against(Mode.DYING_GASP, now) == ""
    later = now + timedelta(hours=1)
    assert [against(mode, later) for mode in (Mode.IN_PLACE, Mode.JOB_RESCHEDULING)] == ["", ""]
    queued = of(queue="Kueue").with_(restarts=lately)
    assert [len(one.against) for one in chances(queued, now) if one.mode is Mode.JOB_RESCHEDULING] == [1]
