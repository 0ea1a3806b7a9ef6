"""Estimated costs of the modes of a job, as `rekindle explain` shows them."""

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.cli import cost_table
from rekindle.model.account import Account, Bucket, Holding, Row, Stretch
from rekindle.model.attachment import Progress
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import Incident, Waited
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.keys import POD_RESCHEDULING, PROCESS_RECOVER_ENABLE
from rekindle.model.mode import Mode, Outcome
from rekindle.model.sizes import MOST_RANKS
from rekindle.model.standby import Standby
from rekindle.model.state import JobState, Standing
from rekindle.model.training_side import TrainingSide
from rekindle.model.verdict import Verdict
from rekindle.policy.modes.chances import chances
from rekindle.policy.modes.costs import STEP, USUAL, Cost, Costs, costs
from rekindle.policy.modes.mode_table import LADDER
from tests.stored.golden import STATE, versions
from tests.support.harness import a_job, a_mindio_job, node_fault

START = datetime(2026, 11, 28, 12, tzinfo=UTC)
ZERO = START.timestamp()
TRAINED = Account(since=ZERO, until=ZERO, ranks=4, paced=Stretch(began=ZERO, ended=ZERO + 20, steps=10))
"""Account of a job whose steps take 2 s, and of which nothing else is known."""

ESTIMATES = ("stands", "least", "most", "steps", "seconds", "accelerator_seconds")


def of(*history: Incident, account: Account = TRAINED, **job: Any) -> JobState:
    return JobState.of(a_job(**job)).with_(account=account, history=history)


def all_of(state: JobState) -> Costs:
    return costs(state, chances(state))


def cost(state: JobState, mode: Mode) -> Cost:
    return next(one for one in all_of(state).modes if one.mode is mode)


def verdict(mode: Mode, outcome: Outcome = Outcome.RECOVERED, **fields: Any) -> Verdict:
    return Verdict(mode=mode, outcome=outcome, reason="as told", **fields)


def incident(number: int, *ladder: Verdict, seconds: float = 9.0, waited: float = 0.0) -> Incident:
    fault = Fault(id="f", source="watcher", kind=FaultKind.NODE, node="node-1")
    waits = (Waited(since=START, until=START + timedelta(seconds=waited)),) if waited else ()
    return Incident(
        number=number,
        summary="node-1 is lost",
        started_at=START,
        seconds=seconds,
        verdict=ladder[-1].outcome,
        ladder=ladder,
        policy_after=SubHealthStrategy.IGNORE,
        faults=(fault,),
        waits=waits,
    )


def counted(*rows: tuple[int, dict[Bucket, float]]) -> Account:
    """Returns the account of a job whose incidents have stopped training for so long."""
    listed = tuple(
        Row(number=number, mode=Mode.IN_PLACE, outcome=Outcome.RECOVERED, cause="process", stood=stood) for number, stood in rows
    )
    return TRAINED.model_copy(update={"rows": listed})


def gasp(*, saved: bool, seconds: float = 1.5) -> Verdict:
    return verdict(Mode.DYING_GASP, Outcome.ESCALATE, saved=saved, seconds=seconds)


# ---- order, and what may run


def test_costs_have_the_order_of_the_ladder() -> None:
    """The table has one row for each mode, whatever it costs."""
    assert [one.mode for one in all_of(of()).modes] == [row.mode for row in LADDER]
    assert list(USUAL) == [row.mode for row in LADDER]


def test_a_mode_has_the_reasons_against_it() -> None:
    """The reasons are those of the chances. A mode that is possible for one pod of several has none."""
    found = {one.mode: one.against for one in all_of(of(capabilities=())).modes}
    assert found[Mode.JOB_RESCHEDULING] == ()
    assert any("never attached" in reason for reason in found[Mode.IN_PLACE])
    assert {"pod rank 0", "the training side"} == {" ".join(reason.split()[:3]) for reason in found[Mode.HOT_SWITCH][:2]}
    ready = of(capabilities=()).with_(attachment=STATE.attachment, progress=STATE.progress)
    assert [bool(chance.against) for chance in chances(ready) if chance.mode is Mode.HOT_SWITCH] == [True, False]
    assert cost(ready, Mode.HOT_SWITCH).against == ()


# ---- own recoveries


def test_the_median_of_the_own_recoveries_counts() -> None:
    """Training stood for 1, 2 and 9 s. The time in which a person was waited for is no cost of the mode."""
    history = [incident(number, verdict(Mode.IN_PLACE)) for number in (1, 2, 3)]
    account = counted(
        (1, {Bucket.REBUILDING: 1.0}), (2, {Bucket.DETECTION: 0.5, Bucket.REBUILDING: 1.5}), (3, {Bucket.PODS: 9.0})
    )
    found = cost(of(*history, account=account), Mode.IN_PLACE)
    assert (found.stands, found.samples, found.least, found.most) == (2.0, 3, 1.0, 9.0)
    assert found.source == "median of its own: 3"
    waits = counted((1, {Bucket.REBUILDING: 1.0, Bucket.PERSON: 600.0}))
    assert cost(of(history[0], account=waits), Mode.IN_PLACE).stands == 1.0


def test_a_recovery_whose_time_is_not_counted_yet_has_that_of_the_control_plane() -> None:
    """The account has no time of an incident until a step is reported after it. That is not what it has cost."""
    ended = incident(1, verdict(Mode.IN_PLACE, went_on_at=START + timedelta(seconds=7)), waited=2)
    for account in (TRAINED, counted((1, {}))):
        found = cost(of(ended, account=account), Mode.IN_PLACE)
        assert (found.stands, found.samples) == (5.0, 1)


def test_a_clock_that_went_back_makes_no_sample() -> None:
    """A recovery that ended before it began tells nothing."""
    back = incident(1, verdict(Mode.IN_PLACE, went_on_at=START - timedelta(hours=1)))
    assert cost(of(back), Mode.IN_PLACE).samples == 0


def test_failures_are_counted_and_are_no_samples() -> None:
    """A history of failures only leaves the default. How often a mode has failed is said beside it."""
    failed = [incident(number, verdict(Mode.IN_PLACE, Outcome.GIVEN_UP)) for number in (1, 2)]
    refused = incident(3, verdict(Mode.IN_PLACE, Outcome.REFUSED))
    found = cost(of(*failed, refused), Mode.IN_PLACE)
    assert (found.samples, found.failed) == (0, 2)
    assert found.source.startswith("benchmark: kill -9 of a rank, no spare waits")


def test_an_incident_of_two_modes_is_a_sample_of_neither() -> None:
    """The time of such an incident has parts of both modes."""
    both = incident(1, verdict(Mode.IN_PLACE, Outcome.ESCALATE), verdict(Mode.PROCESS_RESCHEDULING))
    state = of(both, account=counted((1, {Bucket.PODS: 60.0})))
    assert cost(state, Mode.PROCESS_RESCHEDULING).samples == 0
    assert cost(state, Mode.IN_PLACE).failed == 1


def test_a_restart_after_a_dying_gasp_is_counted_without_it() -> None:
    """The gasp has a row of its own. One that has saved nothing is no sample of a gasp, and a failure of it."""
    restarts = [
        incident(1, gasp(saved=True), verdict(Mode.JOB_RESCHEDULING, steps_lost=0)),
        incident(2, gasp(saved=False, seconds=4.0), verdict(Mode.JOB_RESCHEDULING, steps_lost=30)),
        incident(3, verdict(Mode.JOB_RESCHEDULING, steps_lost=10)),
    ]
    stood = [(1, {Bucket.PODS: 11.5}), (2, {Bucket.PODS: 16.0}), (3, {Bucket.PODS: 20.0})]
    state = of(*restarts, account=counted(*stood))
    saves, restart = cost(state, Mode.DYING_GASP), cost(state, Mode.JOB_RESCHEDULING)
    assert (saves.stands, saves.samples, saves.failed, saves.steps) == (1.5, 1, 1, 0.0)
    assert (restart.stands, restart.least, restart.most, restart.samples) == (12.0, 10.0, 20.0, 3)
    assert (restart.steps, restart.steps_source) == (20.0, "median of its own: 2")
    assert restart.seconds == 12.0 + 20 * 2.0
    assert restart.accelerator_seconds == 4 * 52.0


# ---- defaults


def test_a_default_has_half_a_step_of_this_job() -> None:
    """A fault interrupts a step, which is repeated. A hot switch waits for the end of one."""
    state = of()
    assert cost(state, Mode.ONLINE_RETRY).stands == pytest.approx(0.253 - STEP + 1.0)
    assert cost(state, Mode.HOT_SWITCH).stands == 0.184
    assert cost(state, Mode.HOT_SWITCH).accelerator_seconds == pytest.approx(4 * 0.184)


def test_without_a_step_a_default_is_unknown_and_not_zero() -> None:
    """A job that has not trained has no step time. What is unknown is said with its reason."""
    found = all_of(of(account=Account()))
    assert (found.step_seconds, found.step_samples, found.ranks) == (None, 0, 4)
    retry = next(one for one in found.modes if one.mode is Mode.ONLINE_RETRY)
    assert (retry.stands, retry.seconds, retry.accelerator_seconds) == (None, None, None)
    assert "was not reported yet" in retry.source


def test_what_nothing_has_measured_is_unknown() -> None:
    """No benchmark has pod rescheduling. It becomes known with the job's own recoveries."""
    assert (cost(of(), Mode.POD_RESCHEDULING).stands, cost(of(), Mode.POD_RESCHEDULING).steps) == (None, None)
    own = incident(1, verdict(Mode.POD_RESCHEDULING, steps_lost=5))
    found = cost(of(own, account=counted((1, {Bucket.LOADING: 8.0}))), Mode.POD_RESCHEDULING)
    assert (found.stands, found.steps, found.seconds) == (8.0, 5.0, 18.0)


def test_another_training_side_has_no_default() -> None:
    """Benchmarks are those of our own training side. With MindIO a mode is unknown until the job has recovered by it."""
    state = JobState.of(a_mindio_job())
    assert {one.stands for one in all_of(state).modes} == {None}
    assert "no benchmark has measured it with MindIO" in cost(state, Mode.HOT_SWITCH).source
    own = incident(1, verdict(Mode.PROCESS_RESCHEDULING), seconds=45.0)
    found = cost(state.with_(history=(own,)), Mode.PROCESS_RESCHEDULING)
    assert (found.stands, found.seconds, found.accelerator_seconds) == (45.0, 45.0, 180.0)


def test_a_restart_takes_as_long_as_the_start_unless_it_is_known_better() -> None:
    """A job without a restart takes its start-up, as the report does. A restart of its own counts more."""
    started = TRAINED.model_copy(update={"seconds": {Bucket.START_UP: 300.0}})
    found = cost(of(account=started), Mode.JOB_RESCHEDULING)
    assert (found.stands, found.samples, found.source) == (301.0, 0, "its own start-up, half a step")
    assert (found.steps, found.seconds, found.accelerator_seconds) == (None, None, None)
    assert cost(of(), Mode.JOB_RESCHEDULING).stands == pytest.approx(6.442 - STEP + 1.0)
    own = incident(1, verdict(Mode.JOB_RESCHEDULING, steps_lost=0))
    known = counted((1, {Bucket.PODS: 40.0})).model_copy(update={"seconds": started.seconds})
    assert cost(of(own, account=known), Mode.JOB_RESCHEDULING).seconds == 40.0


@pytest.mark.parametrize(
    ("standbys", "lost", "seconds"),
    [
        ((), 1, 4.056),
        ((Standby(name="s", uid="s", runs=True),), 0, 0.402),
        ((Standby(name="s", uid="s", runs=True),), 1, 0.402),
        ((Standby(name="s", uid="s", runs=True),), 2, 4.056),
        ((Standby(name="s", uid="s"),), 1, 4.056),
        ((Standby(name="s", uid="s", runs=True, wrong="its node is sick"),), 1, 4.056),
    ],
    ids=["none", "no fault", "one of one", "one of two", "it starts", "it is sick"],
)
def test_standbys_make_a_replacement_cheaper(standbys: Sequence[Standby], lost: int, seconds: float) -> None:
    """Standbys help if as many are ready as pods are faulty."""
    faults = [
        Standing(fault=node_fault(f"node-{rank}", f"n{rank}").model_copy(update={"pod_ranks": (rank,)})) for rank in range(lost)
    ]
    state = of(pods=3).with_(standbys=tuple(standbys), faults=tuple(faults))
    assert cost(state, Mode.PROCESS_RESCHEDULING).stands == pytest.approx(seconds - STEP + 1.0)


def holding(state_bytes: int, checkpoint_every: int) -> Account:
    told = Holding(state_bytes=state_bytes, checkpoint_every=checkpoint_every)
    return TRAINED.model_copy(update={"holding": told, "step": 70})


def test_a_copy_of_the_state_takes_time() -> None:
    """A replacement takes its state from another rank. A step that is repeated needs none."""
    account = holding(10 * 2**30, 0)
    for mode, seconds in ((Mode.HOT_SWITCH, 0.184), (Mode.IN_PLACE, 0.318 - STEP + 1.0)):
        found = cost(of(account=account), mode)
        assert found.stands == pytest.approx(seconds + 3.4)
        assert "the copy of its state" in found.source
        assert "the copy of a small state" in cost(of(), mode).source
    assert cost(of(account=account), Mode.ONLINE_RETRY).stands == cost(of(), Mode.ONLINE_RETRY).stands


def test_a_restart_goes_back_to_the_last_checkpoint() -> None:
    """A checkpoint every 60 steps leaves 0 to 59 to be executed again. That is known better than from a few restarts. Before the
    first checkpoint it is all of them."""
    own = incident(1, verdict(Mode.JOB_RESCHEDULING, steps_lost=3))
    for mode in (Mode.POD_RESCHEDULING, Mode.JOB_RESCHEDULING):
        found = cost(of(own, account=holding(0, 60)), mode)
        assert (found.steps, found.steps_source) == (29.5, "a checkpoint every 60")
        assert cost(of(own, account=holding(0, 1)), mode).steps == 0
        assert cost(of(own, account=holding(0, 10**9)), mode).steps == 70
    assert cost(of(account=holding(0, 1)), Mode.JOB_RESCHEDULING).seconds == pytest.approx(6.442 - STEP + 1.0)


def test_without_checkpoints_a_restart_goes_back_to_the_start() -> None:
    """The job began at step 21, and its 70th step was reported last. A restart of its own says more."""
    state = of(account=holding(0, 0)).with_(progress=Progress(incarnation="life-1", step=21))
    assert cost(state, Mode.JOB_RESCHEDULING).steps == 50
    assert cost(state.with_(progress=Progress(incarnation="life-1", step=900)), Mode.JOB_RESCHEDULING).steps == 0
    assert cost(state.with_(progress=None), Mode.JOB_RESCHEDULING).steps is None
    own = incident(1, verdict(Mode.JOB_RESCHEDULING, steps_lost=3))
    assert cost(state.with_(history=(own,)), Mode.JOB_RESCHEDULING).steps == 3


def test_recoveries_by_standbys_say_nothing_about_those_without() -> None:
    """A standby has loaded before. Own recoveries count if they had standbys as the next one would."""
    ready = (Standby(name="gpt-standby-1", uid="s", runs=True),)
    by_standby, by_new_pod = (incident(number, verdict(Mode.PROCESS_RESCHEDULING)) for number in (1, 2))
    account = counted((1, {Bucket.PODS: 0.5}), (2, {Bucket.PODS: 40.0}))
    rows = tuple(row.model_copy(update={"standbys": row.number == 1}) for row in account.rows)
    state = of(by_standby, by_new_pod, account=account.model_copy(update={"rows": rows}))
    found = cost(state, Mode.PROCESS_RESCHEDULING)
    assert (found.stands, found.source) == (40.0, "median of its own: 1")
    found = cost(state.with_(standbys=ready), Mode.PROCESS_RESCHEDULING)
    assert (found.stands, found.source) == (0.5, "median of its own by standbys: 1")
    assert cost(state.with_(history=(by_standby,)), Mode.PROCESS_RESCHEDULING).samples == 0


# ---- any state


def test_the_largest_job_has_costs() -> None:
    """The number of ranks is the one that the training side has reported last."""
    account = TRAINED.model_copy(update={"ranks": MOST_RANKS})
    found = cost(of(pods=MOST_RANKS // 2, account=account), Mode.HOT_SWITCH)
    assert found.accelerator_seconds == pytest.approx(MOST_RANKS * 0.184)


def test_a_number_of_steps_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps are counted in millions. What is unknown is not printed as 0."""
    account = holding(0, 10**9).model_copy(update={"step": 12_345_678})
    cost_table.show_costs(all_of(of(account=account)))
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(Mode.POD_RESCHEDULING))
    assert row.split()[2:7] == ["no", "unknown", "12345678", "unknown", "unknown"]


def _is_sound(found: Costs) -> None:
    for one in found.modes:
        values = [getattr(one, name) for name in ESTIMATES]
        assert all(value is None or (value >= 0 and math.isfinite(value)) for value in values)
        assert one.stands != 0.0
        assert one.source
        assert (one.least is None) == (one.samples == 0)
        assert (one.seconds is None) == (one.stands is None or one.steps is None or (one.steps > 0 and not found.step_seconds))
        assert (one.accelerator_seconds is None) == (one.seconds is None)


@pytest.mark.parametrize("path", versions("job-state"), ids=lambda path: path.stem)
def test_each_stored_state_has_costs(path: Path) -> None:
    """States of earlier versions have costs too."""
    _is_sound(all_of(JobState.model_validate(json.loads(path.read_text())["example"])))


MOMENTS = st.floats(-1e6, 1e6).map(lambda seconds: START + timedelta(seconds=seconds))
SECONDS = st.floats(0, 1e6)
VERDICTS = st.builds(
    Verdict,
    mode=st.sampled_from(Mode),
    outcome=st.sampled_from(Outcome),
    reason=st.just("as told"),
    seconds=SECONDS,
    steps_lost=st.none() | st.integers(0, 10**9),
    saved=st.booleans(),
    went_on_at=st.none() | MOMENTS,
)
INCIDENTS = st.builds(
    lambda ladder, number, seconds, waited: incident(number, *ladder, seconds=seconds, waited=waited),
    st.lists(VERDICTS, min_size=1, max_size=4),
    st.integers(1, 5),
    SECONDS,
    SECONDS,
)
ROWS = st.builds(
    Row,
    number=st.integers(0, 5),
    mode=st.sampled_from(Mode),
    outcome=st.sampled_from(Outcome),
    cause=st.just("node"),
    stood=st.dictionaries(st.sampled_from(Bucket), SECONDS, max_size=3),
)
STRETCHES = st.builds(
    lambda began, length, steps: Stretch(began=began, ended=began + length, steps=steps), SECONDS, SECONDS, st.integers(0, 10**6)
)
ACCOUNTS = st.builds(
    Account,
    seconds=st.dictionaries(st.sampled_from(Bucket), SECONDS, max_size=3),
    paced=st.none() | STRETCHES,
    ranks=st.integers(0, MOST_RANKS),
    step=st.integers(0, 10**9),
    holding=st.none() | st.builds(Holding, state_bytes=st.integers(0, 2**63), checkpoint_every=st.integers(0, 2**31)),
    rows=st.lists(ROWS, max_size=6).map(tuple),
)
JOBS = st.builds(
    Job,
    id=st.just(JobId("j")),
    name=st.just("gpt"),
    pods=st.integers(1, 6),
    ranks_per_pod=st.integers(1, 4),
    training_side=st.sampled_from(TrainingSide),
    labels=st.sampled_from([{}, {POD_RESCHEDULING: "on", PROCESS_RECOVER_ENABLE: "on"}]),
)
STATES = st.builds(
    lambda job, history, account, state: state.with_(job=job, history=tuple(history), account=account),
    JOBS,
    st.lists(INCIDENTS, max_size=6),
    ACCOUNTS,
    st.sampled_from([STATE, JobState.of(STATE.job)]),
)


@given(STATES)
def test_no_state_is_without_costs(state: JobState) -> None:
    """Whatever has happened, each mode has an estimate or the reason why there is none. No estimate is negative or endless."""
    _is_sound(all_of(state))
