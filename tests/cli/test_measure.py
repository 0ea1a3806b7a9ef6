"""Measurements of a demo are computed from what the ranks wrote."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rekindle.cli.demos import measure
from rekindle.cli.demos.link_failover import BACKUP, FIRST, LinkFailover
from rekindle.cli.demos.process_faults import ProcessFaults, Strike
from rekindle.cli.demos.scenario import Options
from rekindle.cli.demos.sub_health import SubHealth
from rekindle.model.incident import Incident
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.picture import StepRecord
from rekindle.model.verdict import Verdict


def struck(mode: Mode, fault: Strike) -> ProcessFaults:
    return ProcessFaults(mode=mode, fault=fault)


NO_SPARE = ProcessFaults(mode=Mode.PROCESS_RESCHEDULING, fault=Strike.KILL, no_spare=True)


def record(step: int, end: float, rank: int = 0, pid: int = 1) -> StepRecord:
    place = {"pod": f"gpt-worker-{pid}", "pod_uid": f"uid-{pid}", "node": f"node-{pid}", "generation": 0}
    return StepRecord.model_validate({"rank": rank, "step": step, "start": end - 0.05, "end": end, "pid": pid, **place})


def test_replicas_are_counted_over_time() -> None:
    """A rebuild that leaves the number of replicas as it was begins no other size."""
    sizes = [(1, [0, 1, 2, 3]), (2, [0, 1, 2, 3]), (3, [0, 1]), (4, [0, 1, 2, 3])]
    records = [
        record(generation, float(generation), rank).model_copy(update={"generation": generation})
        for generation, ranks in sizes
        for rank in ranks
    ]
    found = [(size.replicas, size.since, size.until) for size in measure.replicas(records, ranks_per_replica=2)]
    assert found == [(2, 0.0, 1.05), (1, 2.0, 2.05), (2, 3.0, 3.05)]
    assert measure.replicas([], ranks_per_replica=2) == []


def write_final(directory: Path, content: bytes, rank: int = 0) -> Path:
    (directory / "final").mkdir(parents=True, exist_ok=True)
    (directory / "final" / f"rank-{rank:05d}.bin").write_bytes(content)
    return directory


def write_steps(directory: Path, *lines: bytes, rank: int = 0) -> Path:
    (directory / "steps").mkdir(exist_ok=True)
    (directory / "steps" / f"rank-{rank:05d}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return directory


@pytest.mark.parametrize(
    "line",
    [
        b"12",
        b"null",
        b"{}",
        b'{"rank": 0, "st',
        b"\0\0\0",
        b"\xff\xfe",
        b"1" * 5_000,
        b"[" * 100_000,
        record(2, 2.0).model_dump_json().replace('"rank":0', '"rank":"x"').encode(),
        record(2, 2.0).model_dump_json().replace("2.0", "NaN").encode(),
        record(2, 2.0).model_dump_json().replace("2.0", "Infinity").encode(),
    ],
)
def test_lines_that_are_no_steps_are_left_out(line: bytes, tmp_path: Path) -> None:
    """A log may be torn, and its directory belongs to the job, which may write anything there."""
    good = [record(step, float(step)).model_dump_json().encode() for step in (1, 3)]
    write_steps(tmp_path, good[0], line, good[1])
    assert [one.step for one in measure.read_steps(tmp_path)] == [1, 3]


def test_logs_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    """A directory with the name of a log hides none of the others."""
    write_steps(tmp_path, record(1, 1.0).model_dump_json().encode())
    (tmp_path / "steps" / "rank-00001.jsonl").mkdir()
    assert len(measure.read_steps(tmp_path)) == 1


def test_the_steps_around_a_time_are_read_too(tmp_path: Path) -> None:
    """A rank that stood for the whole time has no step in it."""
    write_steps(tmp_path, *(record(step, float(step)).model_dump_json().encode() for step in (1, 2, 90, 91)))
    assert [one.step for one in measure.read_steps(tmp_path, 30.0, 60.0)] == [2, 90]
    assert [one.step for one in measure.read_steps(tmp_path, 1.5, 2.5)] == [1, 2, 90]


def test_the_pause_is_the_largest_gap_less_the_median_gap() -> None:
    """The pause is half a second for steps that end 0.1 s apart with one gap of 0.6 s."""
    ends = [0.1, 0.2, 0.3, 0.9, 1.0, 1.1]
    assert round(measure.pause_seconds([record(step, end) for step, end in enumerate(ends, 1)], since=0.2), 6) == 0.5


def test_what_was_slow_before_the_fault_is_no_pause() -> None:
    """The first checkpoint takes two seconds, the pause after the fault half a second."""
    ends = [0.1, 0.2, 2.3, *(2.4 + step / 10 for step in range(20)), 4.9, 5.0]
    assert round(measure.pause_seconds([record(step, end) for step, end in enumerate(ends, 1)], since=4.3), 6) == 0.5


def test_steps_that_are_quicker_after_the_fault_make_no_pause_longer() -> None:
    """The demo keeps a pace until its recovery has ended: the usual duration of a step is measured before the fault."""
    ends = [0.1, 0.2, 0.3, 0.4, 1.0, *(1.1 + step / 100 for step in range(20))]
    assert round(measure.pause_seconds([record(step, end) for step, end in enumerate(ends, 1)], since=0.45), 6) == 0.5


def test_a_step_is_completed_when_its_last_rank_has_completed_it() -> None:
    """The slowest rank decides when a step is over."""
    records = [record(1, 1.0), record(1, 2.0, rank=1), record(2, 3.0), record(2, 3.0, rank=1)]
    assert measure.pause_seconds(records, since=0.0) == 0.0


def test_steps_that_were_executed_twice_are_lost() -> None:
    """A rank that went back from step 5 to step 3 has lost two steps."""
    assert measure.steps_lost([record(step, float(i)) for i, step in enumerate([1, 2, 3, 4, 3, 4, 5])]) == 2


def test_training_goes_on_with_the_first_step_that_all_began_behind_the_fault() -> None:
    """Training continues at 2.5: two ranks fail at 1.0 in step 2, which rank 1 never completes, and step 3 ends at 2.5. A later
    restart with the same step changes nothing."""
    records = [record(1, 0.9), record(1, 0.9, rank=1), record(2, 1.02), record(3, 2.4), record(3, 2.5, rank=1)]
    records += [record(3, 9.0), record(3, 9.0, rank=1)]
    assert measure.first_step_since(records, 1.0, ranks=2) == 2.5


def test_a_rank_with_another_process_was_switched() -> None:
    """Rank 1 has another pid, pod and node at its end; rank 0 is where it was."""
    records = [record(1, 1.0), record(2, 2.0), record(1, 1.0, rank=1, pid=2), record(2, 2.0, rank=1, pid=3)]
    (moved,) = measure.switched(records)
    assert (moved.rank, moved.before.pid, moved.after.node) == (1, 2, "node-3")


def test_one_flipped_bit_makes_parameters_unequal(tmp_path: Path) -> None:
    """Equality is of every bit of every rank."""
    content = bytes(range(200))
    one = write_final(tmp_path / "one", content)
    same = write_final(tmp_path / "same", content)
    flipped = write_final(tmp_path / "flipped", content[:-1] + bytes([content[-1] ^ 1]))
    assert measure.parameters_equal(one, same, ranks=1)
    assert not measure.parameters_equal(one, flipped, ranks=1)


def test_missing_parameters_are_unequal(tmp_path: Path) -> None:
    """A rank that wrote nothing, or an empty file, is a difference, even if both runs did."""
    one, other = write_final(tmp_path / "one", b""), write_final(tmp_path / "other", b"")
    assert not measure.parameters_equal(one, other, ranks=1)
    assert not measure.parameters_equal(write_final(one, b"x"), write_final(other, b"x"), ranks=2)


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    """A step log may be read while its rank writes it."""
    (tmp_path / "steps").mkdir()
    line = json.dumps(record(1, 1.0).model_dump())
    (tmp_path / "steps" / "rank-00000.jsonl").write_text(f'{line}\n{{"rank": 0, "st')
    assert [found.step for found in measure.read_steps(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("options", "ladder", "met"),
    [
        (SubHealth(), [("hot switch", "recovered")], True),
        (SubHealth(), [("hot switch", "cancelled"), ("job rescheduling", "recovered")], False),
        (SubHealth(), [("job rescheduling", "recovered")], False),
        (SubHealth(resume_fails=True), [("hot switch", "escalate"), ("online retry", "recovered")], True),
        (SubHealth(resume_fails=True), [("hot switch", "recovered")], False),
        (SubHealth(pause_hangs=True), [("hot switch", "escalate"), ("job rescheduling", "recovered")], True),
        (SubHealth(no_spare=True), [("hot switch", "ignored")], True),
        (struck(Mode.IN_PLACE, Strike.KILL), [("in-place recovery", "recovered")], True),
        (struck(Mode.IN_PLACE, Strike.MEMORY), [("online retry", "recovered")], False),
        (struck(Mode.ONLINE_RETRY, Strike.MEMORY), [("online retry", "recovered")], True),
        (struck(Mode.ONLINE_RETRY, Strike.KILL), [("in-place recovery", "recovered")], True),
        (NO_SPARE, [("process rescheduling", "escalate"), ("job rescheduling", "recovered")], True),
        (NO_SPARE, [("process rescheduling", "recovered")], False),
    ],
    ids=str,
)
def test_a_run_is_as_expected_when_each_mode_ended_so(options: Options, ladder: list[tuple[str, str]], met: bool) -> None:
    """A run is as expected if each mode ended as expected. A restart after a hot switch that was meant to succeed is no success;
    nor are different parameters."""
    tried = [{"mode": mode, "verdict": verdict} for mode, verdict in ladder]
    assert options.is_met_by({"ladder": tried, "parameters_equal": True, "steps_lost": 0}) is met
    assert not options.is_met_by({"ladder": tried, "parameters_equal": False, "steps_lost": 0})


LADDER = [{"mode": mode, "verdict": "recovered"} for mode in ("link switch", "in-place recovery", "link switch")]


def carried(first: int, backup: int) -> dict[str, dict[str, int]]:
    return {FIRST: {"bytes": first}, BACKUP: {"bytes": backup}}


@pytest.mark.parametrize(
    ("between", "after", "met"),
    [
        (carried(0, 900), carried(900, 0), True),
        (carried(300, 900_000), carried(900_000, 300), True),
        (carried(900, 900), carried(900, 0), False),
        (carried(0, 900), carried(0, 900), False),
        (carried(0, 0), carried(900, 0), False),
    ],
    ids=["all of it", "but for some noise", "not all moved", "none returned", "nobody sent anything"],
)
def test_traffic_must_have_been_where_it_was_to_be(
    between: dict[str, dict[str, int]], after: dict[str, dict[str, int]], met: bool
) -> None:
    """Moved links that carry no traffic, or only part of it, are no failover, whatever the verdicts are."""
    times = {"links_before": carried(900, 0), "links_between": between, "links_after": after}
    assert LinkFailover().is_met_by({"ladder": LADDER, "parameters_equal": True, "steps_lost": 0, **times}) is met


def test_the_pause_of_an_incident_has_nothing_of_what_follows_it() -> None:
    """The steps end 0.1 s apart, with a gap of 0.3 s in the incident and one of 0.9 s after it."""
    ends = [9.8, 9.9, 10.0, 10.3, 10.4, 10.5, 11.4, 11.5]
    verdict = Verdict(mode=Mode.LINK_SWITCH, outcome=Outcome.RECOVERED, reason="they moved")
    incident = Incident(
        number=1,
        summary="a link switch",
        started_at=datetime.fromtimestamp(10.05, UTC),
        seconds=0.3,
        verdict=verdict.outcome,
        ladder=(verdict,),
        policy_after=SubHealthStrategy.HOT_SWITCH,
    )
    pause = measure.pause_of([record(step, end) for step, end in enumerate(ends, 1)], incident)
    assert round(pause, 6) == 0.2


def test_steps_are_lost_only_where_the_job_began_again() -> None:
    """Recovered processes continue where training stopped."""
    in_place = {"ladder": [{"mode": "in-place recovery", "verdict": "recovered"}], "parameters_equal": True, "steps_lost": 1}
    assert not struck(Mode.IN_PLACE, Strike.KILL).is_met_by(in_place)
    restart = [("process rescheduling", "escalate"), ("job rescheduling", "recovered")]
    tried = [{"mode": mode, "verdict": verdict} for mode, verdict in restart]
    assert NO_SPARE.is_met_by({"ladder": tried, "parameters_equal": True, "steps_lost": 5})
