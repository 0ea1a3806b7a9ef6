"""Account of a job: each second is in one bucket, whatever arrives in which order."""

import ast
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rekindle.model.account import KEPT_ROWS, SILENT, Account, Bucket, Span, Stretch, TimeReport
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import Incident, Waited
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Phase, PodRef, Switched
from rekindle.model.verdict import Verdict
from rekindle.policy.account import ledger, marks, spans, summary

WORKFLOWS = Path(__file__).parents[2] / "workflows"

START = datetime(2026, 11, 28, 12, tzinfo=UTC)
ZERO = START.timestamp()


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def stretch(began: float, ended: float, steps: int = 1, *, checkpoint: float = 0.0, again: float = 0.0) -> Stretch:
    return Stretch(began=ZERO + began, ended=ZERO + ended, steps=steps, checkpoint=checkpoint, again=again)


def report(now: Stretch, before: Stretch | None = None, *, ranks: int = 4, final: bool = False) -> TimeReport:
    return TimeReport(step=now.steps, ranks=ranks, now=now, before=before, final=final)


def verdict(mode: Mode, outcome: Outcome, *phases: tuple[str, float, float], restarted: bool = False) -> Verdict:
    listed = tuple(Phase(name=name, at=at(began), seconds=seconds) for name, began, seconds in phases)
    restarted_at = at(phases[0][1]) if restarted else None
    return Verdict(mode=mode, outcome=outcome, reason="as told", phases=listed, restarted_at=restarted_at)


def incident(number: int, began: float, seconds: float, *ladder: Verdict, waits: tuple[Waited, ...] = ()) -> Incident:
    fault = Fault(id="f", source="watcher", kind=FaultKind.NODE, node="node-1", code="0x1", seen_at=at(began))
    return Incident(
        number=number,
        summary="node-1 is lost",
        started_at=at(began),
        seconds=seconds,
        verdict=ladder[-1].outcome,
        ladder=ladder,
        policy_after=SubHealthStrategy.IGNORE,
        waits=waits,
        faults=(fault,),
    )


def rounded(seconds: dict[Bucket, float]) -> dict[str, float]:
    return {bucket.value: round(spent, 6) for bucket, spent in seconds.items() if round(spent, 6)}


def restarted_job() -> Account:
    """Returns the account of a job that a restart has brought back: computed by hand below."""
    account = ledger.registered(Account(), ZERO)
    first = stretch(10, 110, 100, checkpoint=5)
    account = ledger.told(account, report(stretch(10, 11)), recovering=False)
    restart = verdict(
        Mode.JOB_RESCHEDULING,
        Outcome.RECOVERED,
        ("all pods stop", 125.0, 3.0),
        ("pods start on healthy nodes", 128.0, 7.0),
        ("training resumes from its last checkpoint", 136.0, 12.0),
        restarted=True,
    )
    waited = Waited(since=at(115), until=at(124))
    account = ledger.told(account, report(stretch(140, 141), first), recovering=True)
    account = ledger.concluded(account, incident(1, 113, 35, restart, waits=(waited,)), reports_steps=True)
    return ledger.told(account, report(stretch(140, 200, 60, again=20), first, final=True), recovering=False)


def test_a_restart_is_counted_as_computed_by_hand() -> None:
    """Start-up of 10 s, 100 s of steps with 5 s of checkpoints, a restart of 30 s for which a person was asked, 60 s of steps."""
    account = ledger.as_of(restarted_job(), ZERO + 500, None)
    assert rounded(account.seconds) == {
        "start-up": 10.0,
        "training": 95.0 + 40.0,
        "checkpoint": 5.0,
        "steps done again": 20.0,
        "detection": 3.0,  # 110 to 113
        "decision": 2.0 + 1.0 + 1.0,  # 113 to 115, 124 to 125, 135 to 136
        "waiting for a person": 9.0,
        "waiting for pods": 10.0,
        "loading": 4.0,  # 136 to 140
    }
    assert account.until - account.since == pytest.approx(200)
    (row,) = account.rows
    assert (row.waited, row.again, row.restarts) == (9.0, 20.0, True)
    assert row.cost == pytest.approx(30.0 + 20.0)


def test_accelerators_that_are_not_there_train_nothing() -> None:
    """A quarter of the ranks is missing in the second stretch. Its checkpoint is written by the others."""
    account = ledger.registered(Account(), ZERO)
    account = ledger.told(account, report(stretch(0, 100, 100)), recovering=False)
    small = stretch(100, 180, 40, checkpoint=8).model_copy(update={"missing": 0.25})
    account = ledger.as_of(ledger.told(account, report(small, final=True), recovering=False), ZERO + 180, None)
    assert rounded(account.seconds) == {"training": 100.0 + 54.0, "checkpoint": 6.0, "missing replicas": 20.0}


def test_a_summary_says_what_a_restart_has_cost() -> None:
    """Goodput, times to recovery with and without waiting for people, costs by node and code, and the price."""
    account = ledger.as_of(restarted_job(), ZERO + 500, None)
    found = summary.of_job("gpt", "id", account, price=2.0)
    assert found.goodput == pytest.approx(135 / 200)
    assert found.ranks == 4
    assert found.accelerator_hours == pytest.approx(200 * 4 / 3600)
    assert found.lost_price == pytest.approx(65 * 4 / 3600 * 2)
    incidents = found.incidents
    assert incidents.recovery
    assert incidents.recovery_without_people
    assert (incidents.recovery.worst, incidents.recovery_without_people.worst) == (35.0, 26.0)
    assert [(cost.name, cost.incidents, round(cost.seconds, 6)) for cost in incidents.by_node] == [("node-1", 1, 50.0)]
    assert [cost.name for cost in incidents.by_code] == ["0x1"]
    assert incidents.seconds_between_faults == pytest.approx(200)


def test_a_hot_switch_costs_only_its_pause() -> None:
    """Training goes on while the backup pod starts. The report may come before the end of the incident, or after it."""
    switch = verdict(
        Mode.HOT_SWITCH,
        Outcome.RECOVERED,
        ("backup pod is scheduled", 50.0, 2.0),
        ("backup pod runs", 52.0, 6.0),
        ("backup loads, training pauses", 58.0, 3.0),
        ("training resumes", 61.0, 0.5),
    )
    told = report(stretch(61, 100, 40), stretch(0, 60.5, 60))
    ended = incident(1, 50, 11.6, switch)
    begun = ledger.told(ledger.registered(Account(), ZERO), report(stretch(0, 1)), recovering=False)
    early = ledger.concluded(ledger.told(begun, told, recovering=True), ended, reports_steps=True)
    late = ledger.told(ledger.concluded(begun, ended, reports_steps=True), told, recovering=False)
    for account in (early, late):
        assert rounded(ledger.as_of(account, ZERO + 100, None).seconds) == {"training": 99.5, "rebuilding": 0.5}
        assert account.rows[0].cost == pytest.approx(0.5)


def test_a_step_is_timed_by_a_long_stretch() -> None:
    """A stretch of one step is the one in which ranks met again. It counts only while there is no longer one. A stretch in which
    all the time went into a checkpoint times nothing."""
    account = ledger.told(Account(), report(stretch(0, 9, 1)), recovering=False)
    assert account.paced == stretch(0, 9, 1)
    account = ledger.told(account, report(stretch(20, 25, 1)), recovering=False)
    assert account.paced == stretch(0, 9, 1)
    account = ledger.told(account, report(stretch(20, 40, 20)), recovering=False)
    assert account.paced == stretch(20, 40, 20)
    last, meets = stretch(20, 60, 40), stretch(70, 79, 1)
    account = ledger.told(account, report(meets, last), recovering=False)
    assert account.paced == last
    account = ledger.told(account, report(stretch(90, 95, 10, checkpoint=6)), recovering=False)
    assert account.paced == last
    assert ledger.told(Account(), report(stretch(0, 1, 1, checkpoint=2)), recovering=False).paced is None


@pytest.mark.parametrize(
    ("names", "standbys"),
    [
        ((), False),
        (("gpt-standby-0",), True),
        (("gpt-standby-0", "gpt-standby-12"), True),
        (("gpt-standby-0", "gpt-worker-1-hot-0001"), False),
        (("-standby-0",), False),
        (("gpt-standby-0-worker-1",), False),
    ],
    ids=str,
)
def test_a_row_says_whether_standbys_took_over(names: tuple[str, ...], standbys: bool) -> None:
    """A pod keeps the name under which it stood by."""
    before = PodRef(name="gpt-worker-1", uid="b")
    moved = tuple(Switched(pod_rank=1, before=before, after=PodRef(name=name, uid=name)) for name in names)
    ended = verdict(Mode.PROCESS_RESCHEDULING, Outcome.RECOVERED).with_(switched=moved)
    assert spans.row_of(incident(1, 0, 1, ended)).standbys is standbys


def test_repeated_and_outdated_reports_change_nothing() -> None:
    """A manager repeats a report until it is answered, and another one follows it with the same stretch."""
    account = restarted_job()
    for again in (report(stretch(140, 141), stretch(10, 110)), report(stretch(10, 110)), report(stretch(140, 200, 60, again=20))):
        repeated = ledger.told(account, again, recovering=False)
        assert rounded(ledger.as_of(repeated, ZERO + 500, None).seconds) == rounded(
            ledger.as_of(account, ZERO + 500, None).seconds
        )


def test_training_that_stood_for_no_known_reason_is_unknown() -> None:
    """Somebody else has restarted the job: no incident says why it stood."""
    account = ledger.told(ledger.registered(Account(), ZERO), report(stretch(0, 10, 10)), recovering=False)
    account = ledger.told(account, report(stretch(15, 20, 5)), recovering=False)
    assert rounded(ledger.as_of(account, ZERO + 20, None).seconds) == {"training": 15.0, "unknown": 5.0}


def test_a_recovery_that_failed_leaves_time_that_is_not_recovered() -> None:
    """The job stands from the end of a given-up recovery until another one brings it back, or until now."""
    failed = verdict(Mode.JOB_RESCHEDULING, Outcome.GIVEN_UP, ("all pods stop", 20.0, 10.0))
    account = ledger.told(ledger.registered(Account(), ZERO), report(stretch(0, 19, 10)), recovering=False)
    account = ledger.concluded(account, incident(1, 20, 10, failed), reports_steps=True)
    now = ledger.as_of(account, ZERO + 100, ZERO + 20)
    assert rounded(now.seconds) == {"training": 20.0, "waiting for pods": 10.0, "not yet recovered": 70.0}
    back = verdict(Mode.JOB_RESCHEDULING, Outcome.RECOVERED, ("pods start on healthy nodes", 60.0, 10.0))
    account = ledger.told(account, report(stretch(72, 73), stretch(0, 19, 10)), recovering=True)
    account = ledger.concluded(account, incident(2, 60, 13, back), reports_steps=True)
    seconds = rounded(ledger.as_of(account, ZERO + 73, None).seconds)
    assert seconds == {
        "training": 20.0, "detection": 1.0, "waiting for pods": 20.0, "not yet recovered": 30.0, "decision": 2.0,
    }  # fmt: skip


def test_a_job_of_an_earlier_version_is_counted_from_its_next_report_on() -> None:
    """The state of a job that was registered before times were counted has no beginning."""
    account = ledger.told(Account(), report(stretch(40, 41), stretch(10, 35, 25)), recovering=False)
    assert rounded(ledger.as_of(account, ZERO + 50, None).seconds) == {"training": 35.0, "unknown": 5.0}
    never = ledger.as_of(ledger.registered(Account(), ZERO), ZERO, None)
    assert summary.of_job("gpt", "id", never).seconds == 0


def test_stretches_that_wait_for_an_incident_are_bounded() -> None:
    """A manager that reports one stretch after the other in an incident that never ends does not fill the state."""
    account = ledger.registered(Account(), ZERO)
    for number in range(500):
        account = ledger.told(account, report(stretch(number, number + 0.5)), recovering=True)
    assert len(account.stands) <= ledger.MOST_STANDS
    assert sum(ledger.as_of(account, ZERO + 500, None).seconds.values()) == pytest.approx(500)


PARTS = st.lists(st.tuples(st.floats(0.001, 50), st.floats(0, 20), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8)


@given(PARTS, st.booleans(), st.floats(-5, 5))
def test_buckets_sum_to_the_wall_time(parts: list[tuple[float, float, float, float]], late: bool, skew: float) -> None:
    """Whatever stretches, pauses and incidents there are, in which order they arrive, and how clocks differ."""
    account, clock, before = ledger.registered(Account(), ZERO), 0.0, None
    for number, (trains, stands, checkpoint, share) in enumerate(parts, 1):
        now = stretch(clock, clock + trains, 3, checkpoint=checkpoint * trains, again=share * trains)
        account = ledger.told(account, report(now, before), recovering=late)
        fault = verdict(Mode.ONLINE_RETRY, Outcome.RECOVERED, ("training stops", clock + trains * share, stands * share))
        ended = incident(number, max(clock + trains * share + skew, 0.0), stands + 1, fault)
        account = ledger.concluded(account, ended, reports_steps=True)
        clock, before = clock + trains + stands, now
    counted = ledger.as_of(account, ZERO + clock, None)
    assert sum(counted.seconds.values()) == pytest.approx(counted.until - counted.since, abs=1e-4)
    assert counted.until == pytest.approx(max(ZERO + clock, counted.until), abs=1e-4)
    assert min(counted.seconds.values()) >= 0
    for since in (0, clock / 3, clock):
        whole = summary.of_job("gpt", "id", counted, since=ZERO + since)
        assert sum(share.seconds for share in whole.buckets) == pytest.approx(whole.seconds, abs=1e-4)


def test_a_side_that_reports_no_steps_is_counted_by_its_incidents() -> None:
    """MindIO trains from its first stream on. A real fault stops it when it is seen, and a hot switch when training pauses."""
    account = ledger.attached(ledger.registered(Account(), ZERO), ZERO + 5, 8)
    assert ledger.attached(account, ZERO + 9, 8) is account
    crash = verdict(Mode.ONLINE_RETRY, Outcome.RECOVERED, ("training stops", 20.5, 1.0), ("the step is repeated", 21.5, 2.0))
    account = ledger.concluded(account, incident(1, 20, 4, crash), reports_steps=False)
    slow = verdict(
        Mode.HOT_SWITCH, Outcome.RECOVERED, ("backup pod runs", 50.0, 8.0), ("backup loads, training pauses", 58.0, 3.0)
    )
    switched = incident(2, 50, 11, slow).model_copy(update={"faults": ()})
    account = ledger.as_of(ledger.concluded(account, switched, reports_steps=False), ZERO + 100, None)
    assert rounded(account.seconds) == {
        "start-up": 5.0, "training": 15.0 + 34.0 + 39.0, "decision": 0.5 + 0.5, "rebuilding": 3.0 + 3.0,
    }  # fmt: skip
    assert account.ranks == 8


def test_rows_of_old_incidents_are_dropped_and_their_sums_stay() -> None:
    """A job with thousands of incidents has a state of bounded size. The summary says since when incidents are known."""
    account = ledger.registered(Account(), ZERO)
    for number in range(KEPT_ROWS + 5):
        retried = verdict(Mode.ONLINE_RETRY, Outcome.RECOVERED, ("training stops", number, 0.5))
        account = ledger.concluded(account, incident(number + 1, number, 0.5, retried), reports_steps=True)
    assert (len(account.rows), account.older_rows) == (KEPT_ROWS, 5)
    found = summary.of_job("gpt", "id", ledger.as_of(account, ZERO + 500, None))
    assert found.complete_since == ZERO + 5


def test_every_phase_has_a_bucket() -> None:
    """A phase that the table does not name would be counted as something else."""
    named = set()
    for path in WORKFLOWS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "phase" and node.args:
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}: a phase is named by a constant"
                named.add(node.args[0].value)
    assert named == spans.PHASES.keys()


def test_spans_of_an_incident_cover_it_once() -> None:
    """Phases that overlap, or that end after the incident, are cut."""
    both = verdict(Mode.HOT_SWITCH, Outcome.RECOVERED, ("backup pod runs", 1.0, 5.0), ("training resumes", 3.0, 30.0))
    row = spans.row_of(incident(1, 0, 10, both))
    assert [(round(one.since - ZERO, 6), round(one.until - ZERO, 6), one.bucket) for one in row.spans] == [
        (0.0, 1.0, Bucket.DECISION),
        (1.0, 6.0, Bucket.PODS),
        (6.0, 10.0, Bucket.REBUILDING),
    ]
    assert isinstance(row.spans[0], Span)


def test_checkpoints_that_exceed_their_stretch_leave_no_negative_times() -> None:
    """A clock that was set back makes a stretch shorter than what was done in it."""
    short = stretch(0, 10, 5, checkpoint=50, again=50)
    assert short.step_seconds == 0
    assert rounded(short.seconds) == {"checkpoint": 10.0}


@pytest.mark.parametrize("wrong", [{"began": 5, "ended": 4}, {"began": -1, "ended": 4}, {"began": float("nan"), "ended": 4}])
def test_impossible_times_are_refused(wrong: dict[str, float]) -> None:
    """A stretch that ends before it begins, or that is no time at all."""
    with pytest.raises(ValidationError):
        Stretch.model_validate(wrong)


def test_a_summary_says_what_only_the_kept_incidents_say() -> None:
    """The mean time between faults of a job with thousands of them is that of the time in which they are known one by one."""
    account = ledger.told(ledger.registered(Account(), ZERO), report(stretch(0, 1)), recovering=False)
    for number in range(10 * KEPT_ROWS):
        retried = verdict(Mode.ONLINE_RETRY, Outcome.RECOVERED, ("training stops", 10 * number, 0.5))
        account = ledger.concluded(account, incident(number + 1, 10 * number, 0.5, retried), reports_steps=True)
    found = summary.of_job("gpt", "id", ledger.as_of(account, ZERO + 100 * KEPT_ROWS, None))
    assert found.incidents.seconds_between_faults == pytest.approx(10)


def failed(number: int, began: float, outcome: Outcome = Outcome.ESCALATE) -> Incident:
    """Returns an incident of 10 s that did not bring training back."""
    return incident(number, began, 10, verdict(Mode.JOB_RESCHEDULING, outcome, ("all pods stop", began, 10.0)))


def trained(seconds: float, **times: float) -> Account:
    """Returns the account of a job that has trained so long since its registration."""
    return ledger.told(ledger.registered(Account(), ZERO), report(stretch(0, seconds, 10, **times)), recovering=False)


def test_incidents_without_a_step_between_them_are_counted_whole() -> None:
    """Spans are kept for the latest incidents only. The time of older ones counts as not yet recovered."""
    account = trained(19)
    for number in range(1, 8):
        account = ledger.concluded(account, failed(number, 20 * number), reports_steps=True)
    account = ledger.told(account, report(stretch(200, 201), stretch(0, 19, 10)), recovering=False)
    counted = ledger.as_of(account, ZERO + 201, None)
    assert sum(counted.seconds.values()) == pytest.approx(201)
    assert rounded(counted.seconds)["waiting for pods"] == 30.0


def test_a_stretch_of_which_no_report_arrived_leaves_the_time_before_it_unknown() -> None:
    """A manager that dies between two reports tells of neither. The ranks tell of the stretch before theirs."""
    account = ledger.told(trained(19), report(stretch(300, 301), stretch(200, 250, 10)), recovering=False)
    assert rounded(ledger.as_of(account, ZERO + 301, None).seconds) == {"training": 70.0, "unknown": 231.0}
    first = ledger.told(ledger.registered(Account(), ZERO), report(stretch(30, 31), stretch(10, 20)), recovering=False)
    seconds = rounded(ledger.as_of(first, ZERO + 31, None).seconds)
    assert seconds == {"start-up": 10.0, "training": 11.0, "unknown": 10.0}


def test_a_stretch_that_ends_in_the_future_ends_with_the_next_one() -> None:
    """A rank reads in a damaged step log when its predecessor stopped."""
    before = Stretch(began=ZERO, ended=9e9, steps=1)
    account = ledger.told(trained(19), report(stretch(30, 31), before), recovering=False)
    assert rounded(ledger.as_of(account, ZERO + 31, None).seconds) == {"training": 31.0}


@pytest.mark.parametrize("outcome", [Outcome.GIVEN_UP, Outcome.CANCELLED, Outcome.ESCALATE])
def test_a_job_that_ends_in_an_incident_has_stood_since_its_beginning(outcome: Outcome) -> None:
    """The incident divides its time, as no report follows. The time after it is not yet recovered."""
    account = ledger.concluded(trained(19), failed(1, 20, outcome), reports_steps=True)
    counted = ledger.as_of(account, ZERO + 100, None)
    assert rounded(counted.seconds) == {"training": 20.0, "waiting for pods": 10.0, "not yet recovered": 70.0}
    (row,) = counted.rows
    assert row.cost == pytest.approx(80)


def test_a_requested_restart_that_failed_has_stopped_training_itself() -> None:
    """Training went on until the pods stopped. A step that began later shows that it trains again."""
    restart = verdict(Mode.JOB_RESCHEDULING, Outcome.GIVEN_UP, ("ranks save their state", 25, 5), ("all pods stop", 30, 10))
    asked = incident(1, 20, 30, restart).model_copy(update={"faults": ()})
    account = ledger.concluded(trained(19), asked, reports_steps=True)
    stands = ledger.as_of(account, ZERO + 100, ZERO + 50)
    assert rounded(stands.seconds) == {"training": 30.0, "waiting for pods": 10.0, "decision": 10.0, "not yet recovered": 50.0}
    account = ledger.told(account, report(stretch(45, 46), stretch(0, 25, 11)), recovering=False)
    assert rounded(ledger.as_of(account, ZERO + 60, None).seconds)["training"] == 25 + 15


@pytest.mark.parametrize(("outcome", "stood"), [(Outcome.CANCELLED, {"waiting for pods": 10.0}), (Outcome.ESCALATE, {})], ids=str)
def test_a_side_without_reports_has_stood_if_its_job_ended_in_an_incident(outcome: Outcome, stood: dict[str, float]) -> None:
    """Otherwise it may have trained on: a node that was not ready for a while has harmed nothing."""
    account = ledger.attached(ledger.registered(Account(), ZERO), ZERO, 8)
    account = ledger.concluded(account, failed(1, 20, outcome), reports_steps=False)
    trains = {"training": 30.0 - sum(stood.values())}
    assert rounded(ledger.as_of(account, ZERO + 30, None).seconds) == {**trains, **stood}


def test_a_silent_job_is_not_taken_to_train() -> None:
    """Pods were deleted, or the queue has suspended the job, and no fault says so. A side without reports is silent for ever."""
    account = ledger.as_of(trained(20), ZERO + 10_000, None)
    assert rounded(account.seconds) == {"training": 20 + SILENT + 3 * 2.0, "unknown": 10_000 - 26 - SILENT}
    mindio = ledger.attached(ledger.registered(Account(), ZERO), ZERO + 5, 8)
    assert rounded(ledger.as_of(mindio, ZERO + 10_000, None).seconds) == {"start-up": 5.0, "training": 9995.0}


def test_a_training_side_that_reports_no_times_does_not_start_up_for_ever() -> None:
    """An earlier version reports its first step, and nothing more."""
    account = ledger.stepped(ledger.registered(Account(), ZERO), ZERO + 60)
    assert rounded(ledger.as_of(account, ZERO + 3600, None).seconds) == {"start-up": 60.0, "unknown": 3540.0}
    for began, seconds in ((61, {"start-up": 61.0}), (400, {"start-up": 60.0, "unknown": 340.0})):
        told = ledger.told(account, report(stretch(began, began + 10)), recovering=False)
        assert rounded(ledger.as_of(told, ZERO + began + 10, None).seconds) == {**seconds, "training": 10.0}


def test_the_time_since_a_moment_is_counted_as_it_was_spent() -> None:
    """A job that was given up before it has trained no second since. Checkpoints and pauses are counted when they were."""
    account = ledger.concluded(trained(100, checkpoint=50), failed(1, 100, Outcome.GIVEN_UP), reports_steps=True)
    account = ledger.as_of(account, ZERO + 1000, ZERO + 110)
    for since, buckets in (
        (500, {"not yet recovered": 500.0}),
        (105, {"waiting for pods": 5.0, "not yet recovered": 890.0}),
        (50, {"training": 25.0, "checkpoint": 25.0, "waiting for pods": 10.0, "not yet recovered": 890.0}),
        (2000, {}),
    ):
        found = summary.of_job("gpt", "id", account, since=ZERO + since)
        assert {share.bucket.value: round(share.seconds, 6) for share in found.buckets if share.seconds} == buckets
        assert found.seconds == pytest.approx(max(1000 - since, 0))
        assert found.since <= found.until


def test_marks_are_bounded_and_stay_near_to_now() -> None:
    """A month with a thousand pauses has few marks of its beginning, and all of its last hour."""
    account = ledger.registered(Account(), ZERO)
    for number in range(1000):
        account = ledger.told(account, report(stretch(2600 * number, 2600 * number + 2500)), recovering=False)
    assert len(account.marks) <= marks.MOST
    assert {ZERO + 2600 * 998, ZERO + 2600 * 998 + 2500} <= {mark.until for mark in account.marks}
    now = ledger.as_of(account, ZERO + 2600 * 999 + 2500, None)
    for days in (1, 7, 20):
        since = now.until - days * 86400
        found = marks.within(now, since)
        assert sum(found.values()) == pytest.approx(days * 86400)
        assert found[Bucket.UNKNOWN] == pytest.approx(days * 86400 / 26, rel=0.02)


def test_seconds_as_reported_never_decrease() -> None:
    """Prometheus takes a counter that decreases to have begun again. The cause of a pause is known when its incident ends."""
    account, last = trained(19), dict.fromkeys(Bucket, 0.0)
    retried = verdict(Mode.ONLINE_RETRY, Outcome.RECOVERED, ("training stops", 20, 5))
    reports = [report(stretch(0, 20, 11)), report(stretch(26, 27), stretch(0, 20.5, 12)), report(stretch(26, 40, 14))]
    for number, told in enumerate(reports):
        account = ledger.told(account, told, recovering=number > 0)
        found = ledger.as_reported(account).seconds
        assert all(found.get(bucket, 0.0) >= last.get(bucket, 0.0) for bucket in Bucket)
        assert Bucket.UNKNOWN not in found
        last = found
    account = ledger.concluded(account, incident(1, 20, 6.5, retried), reports_steps=True)
    assert rounded(ledger.as_reported(account).seconds) == {"training": 34.5, "rebuilding": 4.5, "decision": 1.0}
