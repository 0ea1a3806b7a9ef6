"""Picture of an incident: what its histories, the job's record and the ranks' step logs say, on lanes."""

import gzip
import json
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from rekindle.histories import recovery
from rekindle.model.account import Bucket, Row
from rekindle.model.approval import Question
from rekindle.model.fault import Fault
from rekindle.model.incident import Begun, Incident
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.picture import Item, Lane, Part, Picture, Recovery, StepRecord
from rekindle.model.situation import Phase
from rekindle.model.state import JobState, JobStatus
from rekindle.model.verdict import Verdict
from rekindle.policy.incidents.axis import Axis
from rekindle.policy.incidents.chronicle import MANY, entries
from rekindle.policy.incidents.pictures import Known
from rekindle.policy.incidents.standing import MOST_LANES, lanes_of

FOLDER = Path(__file__).parents[1] / "replay" / "histories"
JOB = Job(id=JobId("job-1"), name="gpt", pods=2, ranks_per_pod=2)
NOW = 2e9


def events_of(name: str) -> list[dict[str, Any]]:
    """Returns a recorded history of the replay tests, as Temporal writes it in JSON."""
    (file,) = FOLDER.glob(f"{name}.json.gz")
    events: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))["history"]["events"]
    return events


HOT_SWITCH = events_of("recovered.1.HotSwitch")


def read(events: Iterable[dict[str, Any]], now: float = NOW) -> Recovery:
    """Returns what is read in a history."""
    return recovery(WorkflowHistory.from_json("", {"events": list(events)}).events, now)


def all_of(scene: str) -> list[Recovery]:
    """Returns the recoveries of a scene."""
    names = (path.name.removesuffix(".json.gz") for path in sorted(FOLDER.glob(f"{scene}.*.json.gz")))
    return [read(events_of(name)) for name in names if not name.endswith("TrainingJob")]


def incident_of(recoveries: Iterable[Recovery], seconds: float) -> Incident:
    """Returns the record of an incident that began 10 ms before its first mode."""
    found = list(recoveries)
    ladder = tuple(one.verdict for one in found if one.verdict)
    return Incident(
        number=1,
        summary="sub-health node-1",
        started_at=datetime.fromtimestamp(found[0].since - 0.01, UTC),
        seconds=seconds,
        verdict=ladder[-1].outcome,
        ladder=ladder,
        policy_after=SubHealthStrategy.HOT_SWITCH,
    )


def known(number: int, record: Begun | Incident | None, recoveries: Iterable[Recovery], now: float = NOW, **more: Any) -> Known:
    """Returns what is known of an incident of a job with this record, which is its only one."""
    over = (record,) if isinstance(record, Incident) else ()
    running = record if isinstance(record, Begun) else None
    return Known(JobStatus(state=JobState.of(JOB).with_(history=over, **more), begun=running), number, now, recoveries)


def lane(picture: Picture, name: str) -> list[str]:
    """Returns the texts of a lane."""
    return [item.text for one in picture.lanes if one.name == name for item in one.items]


def steps(rank: int, ends: Iterable[float], pid: int = 1, generation: int = 1) -> list[StepRecord]:
    """Returns steps of 50 ms that end at these times."""
    place = {"pod": f"gpt-{pid}", "pod_uid": f"uid-{pid}", "node": f"node-{pid}", "generation": generation}
    return [
        StepRecord.model_validate({"rank": rank, "step": step, "start": end - 0.05, "end": end, "pid": pid, **place})
        for step, end in enumerate(ends, 1)
    ]


def test_a_hot_switch_is_shown_with_its_calls_orders_and_reports() -> None:
    """Items are in the lane of the one who does them, in the order of time, with the words of the Temporal UI."""
    picture = known(1, None, all_of("recovered")).picture()
    assert picture.outcome is Outcome.RECOVERED
    assert lane(picture, "order") == ["order hot switch", "order new pod running", "order migration"]
    reports = [text for text in lane(picture, "manager") if text.startswith("reports")]
    assert reports == ["reports strategies migration", "reports status migration scripted"]
    assert lane(picture, "phase")[0] == "training side prepares"
    assert "start backup pod for pod rank 1" in lane(picture, "cluster")
    assert lane(picture, "wait") == ["wait for the report that training resumed"]
    for one in picture.lanes:
        times = [(item.since, item.until) for item in one.items]
        assert times == sorted(times)
        assert all(picture.since <= since <= until <= picture.until for since, until in times)


def test_all_modes_of_an_incident_are_shown_with_what_was_decided_between_them() -> None:
    """Five modes follow each other, and the job's record says when the incident began and ended."""
    recoveries = all_of("from-mode-to-mode")
    recoveries.sort(key=lambda one: one.since)
    seconds = recoveries[-1].until - recoveries[0].since + 0.02
    picture = known(1, incident_of(recoveries, seconds), all_of("from-mode-to-mode")).picture()
    assert [text.split(":")[0] for text in lane(picture, "mode")] == [
        "online retry",
        "in-place recovery",
        "process rescheduling",
        "dying gasp",
        "job rescheduling",
    ]
    assert [text.split(": ")[1].split(",")[0] for text in lane(picture, "mode")] == ["escalate"] * 4 + ["recovered"]
    decisions = lane(picture, "decision")
    assert decisions[0] == "fault accepted: process rank 3: reported by the training side"
    assert decisions[1:] == ["decides"] * len(recoveries) + ["concludes"]


def test_the_verdict_of_a_recovery_that_gave_up_is_in_its_failure() -> None:
    """A recovery that gave up is a failed workflow without a result."""
    picture = known(1, None, all_of("given-up")).picture()
    (mode,) = (item for one in picture.lanes if one.name == "mode" for item in one.items)
    assert picture.outcome is Outcome.GIVEN_UP
    assert mode.failed


@pytest.mark.parametrize(
    "file",
    sorted(path.name for path in FOLDER.glob("*.json.gz") if "TrainingJob" not in path.name and "front.0" not in path.name),
)
def test_every_recorded_recovery_is_read(file: str) -> None:
    """A history of each way to end has its mode, and items within its time."""
    found = read(events_of(file.removesuffix(".json.gz")))
    assert found.mode
    assert not found.is_running
    for item in (*found.calls, *found.orders, *found.waits, *found.reports, *found.phases):
        assert found.since <= item.since <= item.until <= found.until
        assert not item.running


def test_a_running_recovery_is_shown_up_to_now() -> None:
    """Items that have begun and not ended are marked as running, and have no outcome."""
    cut = next(number for number, event in enumerate(HOT_SWITCH) if event["eventType"] == "EVENT_TYPE_TIMER_STARTED")
    now = read(HOT_SWITCH).until
    picture = known(1, None, [read(HOT_SWITCH[: cut + 1], now)], now).picture()
    running = [(one.name, item.text) for one in picture.lanes for item in one.items if item.running]
    assert picture.outcome is None
    assert running == [
        ("mode", "hot switch"),
        ("phase", "training resumes"),
        ("wait", "wait for the report that training resumed"),
    ]
    assert picture.until == now


def test_what_the_job_remembers_is_shown_when_histories_are_gone() -> None:
    """Modes and phases come from the job's record, and the picture says which histories are gone."""
    began = datetime(2026, 11, 1, tzinfo=UTC)
    phases = (Phase(name="training pauses", seconds=0.5, at=began), Phase(name="training goes on", seconds=0.5, at=began))
    verdict = Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.RECOVERED, reason="moved", seconds=1.0, phases=phases)
    record = Incident(
        number=7,
        summary="drain",
        started_at=began,
        seconds=1.2,
        verdict=Outcome.RECOVERED,
        ladder=(verdict,),
        policy_after=SubHealthStrategy.HOT_SWITCH,
    )
    picture = known(7, record, []).picture()
    assert lane(picture, "mode") == ["hot switch: recovered, moved"]
    assert lane(picture, "phase") == ["training pauses", "training goes on"]
    assert lane(picture, "all ranks") == ["stood"]
    assert any("no history of hot switch" in one for one in picture.missing)
    assert picture.pause
    assert picture.pause.accelerator_seconds == pytest.approx(4 * 1.2)


def test_the_price_of_a_pause_is_that_of_the_account() -> None:
    """The report of the job and the picture of its incident show the same number."""
    row = Row(
        number=1,
        mode=Mode.HOT_SWITCH,
        outcome=Outcome.RECOVERED,
        cause="sub_health",
        stood={Bucket.REBUILDING: 0.2, Bucket.PODS: 0.1},
        again=0.2,
    )
    pause = known(1, incident_of([read(HOT_SWITCH)], 1.0), all_of("recovered")).picture((), row).pause
    assert pause
    assert (round(pause.seconds, 6), pause.ranks) == (0.3, 4)
    assert pause.accelerator_seconds == pytest.approx(4 * row.cost)
    assert row.cost == pytest.approx(0.5)


def test_messages_of_strangers_are_no_reports() -> None:
    """Any client may send a signal or an update with any payload to a workflow; the picture is made all the same."""
    at = HOT_SWITCH[-1]["eventTime"]
    odd = [
        {"signalName": name, "input": {"payloads": [{"data": "WzFd"}]}}
        for name in ("faults", "progressed", "attached", "drop tables")
    ]
    signals = [
        {"eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED", "eventTime": at, "workflowExecutionSignaledEventAttributes": one}
        for one in odd
    ]
    found = read((*HOT_SWITCH[:-1], *signals, HOT_SWITCH[-1]))
    assert [item.text for item in found.reports][2:] == ["stream attached"]


def with_event(kind: str, **attributes: Any) -> Recovery:
    """Returns a recovery with another event before its end."""
    name = "".join(part.title() for part in kind.split("_"))
    event = {
        "eventType": f"EVENT_TYPE_{kind}",
        "eventTime": HOT_SWITCH[-1]["eventTime"],
        f"{name[0].lower()}{name[1:]}EventAttributes": attributes,
    }
    return read((*HOT_SWITCH[:-1], event, HOT_SWITCH[-1]))


@pytest.mark.parametrize("content", [b"", b"\x80", b"not json", b"[" * 100_000, b"1" * 5_000, b'"\\ud800"'])
def test_payloads_that_are_no_json_are_no_reports(content: bytes) -> None:
    """Any client may send bytes that nobody can read; the picture is made all the same."""
    given = {"payloads": [{"data": b64encode(content).decode()}]}
    for name in ("faults", "progressed"):
        assert len(with_event("WORKFLOW_EXECUTION_SIGNALED", signalName=name, input=given).reports) == 2


def test_a_recovery_that_was_reset_is_read() -> None:
    """An update that was admitted again has its request in that event, and none in the next one."""
    request = {"input": {"name": "report", "args": {"payloads": []}}}
    assert len(with_event("WORKFLOW_EXECUTION_UPDATE_ADMITTED", request=request).reports) == 3
    assert len(with_event("WORKFLOW_EXECUTION_UPDATE_ACCEPTED", protocolInstanceId="1").reports) == 2


def test_workflows_of_strangers_are_no_recovery() -> None:
    """A workflow with the id of a recovery and another argument is not taken for it."""
    strange = {**HOT_SWITCH[0], "workflowExecutionStartedEventAttributes": {"input": {"payloads": [{"data": "WzFd"}]}}}
    assert known(1, None, [read([strange])]).is_nothing


def begun(*ladder: Verdict) -> Begun:
    """Returns the record of an incident that began 2 s after the beginning of time."""
    return Begun(number=3, summary="node-1 is lost", started_at=datetime.fromtimestamp(2.0, UTC), ladder=ladder)


def asking(storm: str = "") -> Question:
    """Returns a question that was asked 3 s after the beginning of time."""
    since = datetime.fromtimestamp(3.0, UTC)
    mode = Mode.PROCESS_RESCHEDULING
    return Question(mode=mode, incident=3, about="", since=since, until=since, storm=storm)


@pytest.mark.parametrize(("storm", "words"), [("", "waits for a person"), ("9 nodes", "held by a storm: 9 nodes")])
def test_an_incident_that_waits_before_its_first_mode_is_shown(storm: str, words: str) -> None:
    """The incident has neither a verdict nor a history, and is running."""
    picture = known(3, begun(), [], 10.0, question=asking(storm)).picture()
    assert (picture.outcome, picture.summary, picture.seconds) == (None, "node-1 is lost", 8.0)
    (decision,) = (one for one in picture.lanes if one.name == "decision")
    assert [(item.since, item.until, item.text, item.running) for item in decision.items] == [
        (2.0, 10.0, "decides", True),
        (3.0, 10.0, f"{words} (process rescheduling)", True),
    ]


def test_an_incident_between_two_modes_is_running() -> None:
    """The first mode has ended, and the next one waits for a person."""
    failed = Verdict(mode=Mode.IN_PLACE, outcome=Outcome.ESCALATE, reason="it died again", seconds=1.0)
    picture = known(3, begun(failed), [], 10.0, question=asking()).picture()
    assert picture.outcome is None
    assert lane(picture, "mode") == ["in-place recovery: escalate, it died again"]
    assert lane(picture, "decision") == ["waits for a person (process rescheduling)", "decides"]
    assert not any("no record" in one for one in picture.missing)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00", "9999-12-31T23:59:59", "2026-11-01T00:00:00"])
def test_a_time_without_a_zone_is_utc(time: str) -> None:
    """Any client may report a fault with such a time, which Python neither compares with others nor always converts."""
    fault = Fault.model_validate({"id": "f", "kind": "node", "source": "test", "seen_at": time})
    assert fault.seen_at == datetime.fromisoformat(time).replace(tzinfo=UTC)
    picture = known(3, begun().model_copy(update={"faults": (fault,)}), [], 10.0).picture()
    assert any(text.startswith("fault seen") for text in lane(picture, "decision"))


def test_a_clock_that_is_behind_turns_no_time_round() -> None:
    """An incident that runs is shown until its last event, if the clock of the reader says that this is still to come."""
    last = datetime.fromisoformat(HOT_SWITCH[-2]["eventTime"]).timestamp()
    picture = known(1, None, [read(HOT_SWITCH[:-1], 5.0)], 5.0).picture()
    assert picture.outcome is None
    assert (picture.until, picture.seconds > 0) == (last, True)
    assert all(item.seconds >= 0 for one in picture.lanes for item in one.items)


def test_a_recovery_that_was_terminated_is_not_running() -> None:
    """The recovery has no verdict, and the job keeps no record of it."""
    end = {
        "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED",
        "eventTime": HOT_SWITCH[-1]["eventTime"],
        "workflowExecutionTerminatedEventAttributes": {},
    }
    picture = known(1, None, [read((*HOT_SWITCH[:-1], end))]).picture()
    assert picture.outcome is Outcome.CANCELLED
    assert lane(picture, "mode") == ["hot switch: terminated"]


def test_the_price_counts_ranks_whose_step_logs_are_missing() -> None:
    """Step logs of two of four ranks are there; the others are named, and cost as much."""
    record = incident_of([read(HOT_SWITCH)], 1.0)
    row = Row(number=1, mode=Mode.HOT_SWITCH, outcome=Outcome.RECOVERED, cause="x", stood={Bucket.PODS: 0.5})
    picture = known(1, record, all_of("recovered")).picture([*steps(0, (1.0, 1.1)), *steps(2, (1.0, 1.1))], row)
    assert picture.pause
    assert picture.pause.ranks == 4
    assert picture.missing == ("no step log of ranks 1,3 is visible from here",)


def test_ranks_that_stood_alike_share_a_lane() -> None:
    """The ranks of the pod that moved come first; the others stood in their pods."""
    records = [record for rank in (0, 1) for record in (*steps(rank, (1.0, 1.1)), *steps(rank, (1.6, 1.7), generation=2))]
    records += [record for rank in (2, 3) for record in (*steps(rank, (1.0, 1.1), 2), *steps(rank, (1.61, 1.7), 3, 2))]
    moved, others = lanes_of(records, 0.0, 2.0)
    assert (moved.name, [item.text for item in moved.items]) == ("ranks 2-3", ["moved: gpt-2 on node-2 -> gpt-3 on node-3"])
    assert (others.name, [item.text for item in others.items]) == ("ranks 0-1", ["stood: gpt-1 on node-1"])
    assert (others.items[0].since, round(others.items[0].until, 6)) == (1.1, 1.55)


def test_hundreds_of_ranks_are_few_lanes() -> None:
    """Pods that were restarted alike are one lane, however many they are."""
    records = [
        record
        for rank in range(512)
        for record in (*steps(rank, (1.0, 1.1), rank // 8), *steps(rank, (5.0, 5.1), 100 + rank // 8, 2))
    ]
    (one,) = lanes_of(records, 0.0, 6.0)
    assert (one.name, one.items[0].text) == ("ranks 0-511", "moved: 64 pods")
    assert len(lanes_of(records[: 8 * 4 * MOST_LANES], 0.0, 6.0)) == MOST_LANES


def test_ranks_that_all_stood_at_other_times_are_few_lanes() -> None:
    """Stragglers stand again and again, and some are replaced: no rank has the same story as another one."""
    records = []
    for rank in range(64):
        ends = [0.1 * step + sum(1.0 for other in range(rank % 32) if other < step) for step in range(1, 40)]
        records += steps(rank, ends)
        records += steps(rank, [100.0], 2 if rank % 2 else 1, 2)
    lanes = lanes_of(records, 0.0, 200.0)
    assert [one.name[:13] for one in lanes] == ["ranks 1,3,5,7", "ranks 0,2,4,6"]
    assert [one.items[0].text for one in lanes] == [
        "moved: gpt-1 on node-1 -> gpt-2 on node-2 (several times)",
        "stood: gpt-1 on node-1 (several times)",
    ]


def test_ranks_that_stand_now_are_shown_as_standing() -> None:
    """Ranks have completed no step after their last one while the incident is running."""
    (one,) = lanes_of(steps(0, (1.0, 1.1)), 0.0, 3.0, 3.0)
    assert [(item.since, item.until, item.running) for item in one.items] == [(1.1, 3.0, True)]
    (over,) = lanes_of(steps(0, (1.0, 1.1)), 0.0, 3.0)
    assert over.items == ()


def a_picture(*times: tuple[float, float]) -> Picture:
    """Returns a picture with one lane of these items."""
    items = tuple(Item(since=since, until=until, text=f"item {number}") for number, (since, until) in enumerate(times))
    lanes = (Lane(part=Part.CLUSTER, name="cluster", items=items),)
    until = max(until for _, until in times)
    return Picture(job="gpt", number=1, summary="", began=0.0, since=0.0, until=until, seconds=until, lanes=lanes)


def test_a_long_wait_takes_little_of_the_axis() -> None:
    """Ten minutes without an event leave most of the axis to the second in which everything happened."""
    axis = Axis(a_picture((0.0, 0.4), (0.4, 600.0), (600.0, 600.6)))
    assert [round(one.until - one.since, 1) for one in axis.shortened] == [599.6]
    assert axis.place(0.4) == pytest.approx(0.34)
    assert axis.place(600.0) == pytest.approx(0.49)
    assert [axis.place(0.0), axis.place(600.6)] == pytest.approx([0.0, 1.0])
    ticks = axis.ticks(6)
    assert [tick.seconds for tick in ticks] == pytest.approx([0.0, 0.2, 0.4, 600.0, 600.2, 600.4, 600.6])
    assert [tick.place for tick in ticks] == sorted(tick.place for tick in ticks)


def test_an_axis_without_a_long_wait_is_even() -> None:
    """The place of a time is proportional to it, also where one thing lasts half of the time."""
    axis = Axis(a_picture((0.0, 1.0), (1.0, 2.0), (2.0, 4.0)))
    assert axis.shortened == []
    assert [axis.place(time) for time in (0.0, 1.0, 3.0, 4.0)] == pytest.approx([0.0, 0.25, 0.75, 1.0])


def test_equal_items_are_one_entry() -> None:
    """A call that was repeated a thousand times has one letter; when letters are used up, entries are starred."""
    items = [Item(since=float(number), until=number + 0.5, text="look again") for number in range(1000)]
    items += [Item(since=float(number), until=float(number), text=f"other {number}") for number in range(60)]
    picture = a_picture((0.0, 1.0)).model_copy(update={"lanes": (Lane(part=Part.CLUSTER, name="cluster", items=tuple(items)),)})
    found = entries(picture)
    assert (found[0].text, found[0].seconds, found[0].mark) == ("look again (1000 times)", 500.0, "a")
    assert [entry.mark for entry in found[51:54]] == ["Z", MANY, MANY]
