"""Kills at every event of a hot switch, and between events: all of them (`make kills`), or a sample seeded by the commit."""

import os
import random
import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import pytest
import pytest_asyncio

from rekindle.model.cluster import Pod
from rekindle.model.job import TrainingSide
from rekindle.model.keys import POD_TYPE, RANK_INDEX
from rekindle.model.recovery import Mode, Outcome
from tests.kills.calls import DECIDED, DONE, POLL_ACTIVITY, Journal, Side
from tests.kills.events import Happened, Place, happened, places
from tests.kills.table import Row, Table, does, where
from tests.kills.trial import Kill, Result, Trials
from tests.support.processes import CONTROL, GATEWAY, SERVER, processes
from tests.support.sampling import commit

ALL = os.environ.get("REKINDLE_KILLS") == "all"
SAMPLE = 6
BOUND = 5.0 if ALL else 15.0
"""Seconds that a kill may add, on a machine on which a process starts in `START`."""

START = 2.0
"""A machine that does other work besides is given what a process took longer to start."""

UNDISTURBED = 3
ORDERS = ["hot switch", "new pod running", "migration"]
WRITTEN_LATER = ("ActivityTaskStarted", "WorkflowTaskScheduled", "WorkflowTaskStarted")
"""The server writes these events when the activity, or the task of an update, has ended: a killed one may have none."""

OURS, MINDIO = TrainingSide.REKINDLE, TrainingSide.MINDIO

pytestmark = [pytest.mark.kills, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(3 * 3600 if ALL else 120)]


@dataclass
class Reference:
    """Runs that nobody disturbed."""

    results: list[Result]

    @property
    def seconds(self) -> float:
        return statistics.median(result.seconds for result in self.results)

    @property
    def events(self) -> list[Happened]:
        return _events(self.results[-1])

    @property
    def places(self) -> list[Place]:
        """Every point at which a kill is tried."""
        result = self.results[-1]
        of_the_job = places("job", result.job, result.calls, result.first)
        return [*of_the_job, *places("recovery", result.recovery, result.calls)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trials(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trials]:
    journal = Journal()
    async with processes(tmp_path_factory.mktemp("kills"), journal) as world:
        runs = Trials(world, journal)
        async with runs.watching():
            await runs.run(None)  # everything is imported
            yield runs


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(trials: Trials) -> Reference:
    return Reference([await trials.run(None) for _ in range(UNDISTURBED)])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mindio(trials: Trials) -> Reference:
    found = Reference([await trials.run(None, MINDIO) for _ in range(UNDISTURBED)])
    assert [len(result.incident.ladder) for result in found.results] == [1] * UNDISTURBED, "undisturbed there is no fallback"
    return found


@pytest.fixture(scope="module")
def table(ours: Reference) -> Iterator[Table]:
    made = Table(undisturbed=ours.seconds)
    yield made
    if ALL and made.rows:
        made.write()


async def test_undisturbed_hot_switches_have_one_history_and_a_kill_for_each_of_its_events(ours: Reference) -> None:
    """Undisturbed runs agree in every event, and every event after the fault is met by a kill."""
    assert {tuple(_events(result)) for result in ours.results} == {tuple(ours.events)}
    assert [event for place in ours.places for event in place.events] == ours.events
    for result in ours.results:
        _once(result)


async def test_a_killed_process_neither_loses_a_hot_switch_nor_repeats_it(
    trials: Trials, ours: Reference, table: Table, subtests: pytest.Subtests
) -> None:
    """Control worker, gateway, or both, killed at any point: recovered, nothing done twice, and soon."""
    whom = ((CONTROL,), (GATEWAY,), (CONTROL, GATEWAY))
    kills = [(place, victims) for place in ours.places for victims in whom]
    for place, victims in _chosen(kills, SAMPLE):
        with subtests.test(f"{' and '.join(victims)} at {where(place)}: {does(place)}"):
            result = await trials.run(Kill(place.point, victims))
            _note(table, place, victims, result, result.seconds - ours.seconds)
            _met(result, place, ours)
            _once(result)
            _soon(result, ours)


async def test_an_order_follows_the_stream_to_the_next_gateway_without_an_error_in_the_log(
    trials: Trials, ours: Reference
) -> None:
    """An order that was handed out to a gateway which then died is sent by its successor, and the log shows no stray error."""
    handed_out = next(place for place in ours.places if place.point.call.method == POLL_ACTIVITY)
    result = await trials.run(Kill(handed_out.point, (GATEWAY,)))
    _met(result, handed_out, ours)
    _once(result)
    assert "never retrieved" not in trials.log(CONTROL)


async def test_a_killed_server_comes_back_on_its_database_and_goes_on(
    trials: Trials, ours: Reference, table: Table, subtests: pytest.Subtests
) -> None:
    """The Temporal server, killed behind a decision of the hot switch: recovered, and nothing done twice."""
    decisions = [
        place
        for place in ours.places
        if place.point.call.workflow == "recovery" and place.point.call.method == DECIDED and place.point.side is Side.AFTER
    ]
    for place in decisions if ALL else decisions[len(decisions) // 2 :][:1]:
        with subtests.test(f"server at {where(place)}: {does(place)}"):
            result = await trials.run(Kill(place.point, (SERVER,)))
            _note(table, place, (SERVER,), result, result.seconds - ours.seconds)
            _met(result, place, ours)
            _once(result)
            _soon(result, ours)


async def test_a_report_that_is_given_up_ends_in_its_rules_fallback(
    trials: Trials, mindio: Reference, table: Table, subtests: pytest.Subtests
) -> None:
    """A training side that never repeats a report, and a killed gateway: recovered, or the fallback of the rule; never stuck."""
    kills = [(place, (GATEWAY,)) for place in mindio.places if place.point.call.caller == GATEWAY]
    written = [kill for kill in kills if (kill[0].point.call.method, kill[0].point.side) == (DONE, Side.BEFORE)]
    for place, victims in kills if ALL else written[-1:]:
        with subtests.test(f"{' and '.join(victims)} at {where(place)}: {does(place)}"):
            result = await trials.run(Kill(place.point, victims), MINDIO)
            _note(table, place, victims, result, result.seconds - mindio.seconds, MINDIO)
            _met(result, place, mindio)
            if result.incident.ladder[0].outcome is Outcome.RECOVERED:
                _once(result)
                assert "status" in result.accepted
            else:
                _fallen_back(result)


# ---- what must be true


def _met(result: Result, place: Place, reference: Reference) -> None:
    """It was killed where it should be: the history up to there is that of an undisturbed run."""
    assert result.met == place.words
    workflow = place.point.call.workflow
    undisturbed = [event for event in reference.events if event.workflow == workflow and event.id <= place.earlier]
    while undisturbed and undisturbed[-1].name in WRITTEN_LATER:
        undisturbed.pop()
    same = [event for event in _events(result) if event.workflow == workflow][: len(undisturbed)]
    assert [event.name for event in same] == [event.name for event in undisturbed]


def _once(result: Result) -> None:
    """Recovered by one swap; every order carried out once, every report consumed once."""
    (verdict,) = result.incident.ladder
    assert (verdict.mode, verdict.outcome) == (Mode.HOT_SWITCH, Outcome.RECOVERED), verdict.reason
    assert result.peer.carried_out == [order for order in ORDERS if result.peer.tireless or order != "new pod running"]
    assert len({order.uuid for order in result.peer.received}) == 1
    assert not result.peer.exited
    phases = [phase.name for phase in verdict.phases]
    assert len(phases) == len(set(phases)) == 7, phases
    acknowledged = {kind for kind, code in result.peer.acknowledged if code == 0}
    assert acknowledged <= set(result.accepted)
    assert set(result.accepted) == {"strategies", "status"} or not result.peer.tireless
    assert verdict.unread == ()
    backups = [pod for pod in result.born if _rank(pod) == 1 and pod.metadata.uid != result.before.metadata.uid]
    assert len(result.born) == 3
    assert len(backups) == 1
    assert result.died == [result.before.metadata.uid]
    assert {_rank(pod): POD_TYPE in pod.metadata.annotations for pod in result.left} == {0: False, 1: False}
    assert backups[0].metadata.uid in {pod.metadata.uid for pod in result.left}


def _soon(result: Result, reference: Reference) -> None:
    """The delay is within its bound."""
    assert result.seconds - reference.seconds - max(0.0, result.start - START) < BOUND


def _fallen_back(result: Result) -> None:
    """The report of the pause, or of the resumption, was lost: the job was rescheduled, all of its pods once."""
    first, last = result.incident.ladder
    assert (first.mode, first.outcome) == (Mode.HOT_SWITCH, Outcome.ESCALATE)
    paused = "migration" in result.peer.carried_out
    assert ("nothing shows that the manager is" if paused else "pausing failed: no report of the pause") in first.reason
    assert (last.mode, last.outcome) == (Mode.JOB_RESCHEDULING, Outcome.RECOVERED), last.reason
    assert len(set(result.peer.carried_out)) == len(result.peer.carried_out)
    assert sorted(_rank(pod) for pod in result.left) == [0, 1]
    assert not {pod.metadata.uid for pod in result.left} & set(result.died)


# ---- helpers


def _events(result: Result) -> list[Happened]:
    """After the fault, counted from there."""
    return [*happened("job", result.job, result.first), *happened("recovery", result.recovery)]


def _rank(pod: Pod) -> int:
    return int(pod.metadata.annotations[RANK_INDEX])


def _chosen(kills: Sequence[tuple[Place, tuple[str, ...]]], number: int) -> Sequence[tuple[Place, tuple[str, ...]]]:
    if ALL:
        return kills
    seed = commit()
    print(f"a sample of {number} of {len(kills)} kills, seeded by {seed}")
    return random.Random(seed).sample(kills, number)


def _note(table: Table, place: Place, victims: tuple[str, ...], result: Result, added: float, side: TrainingSide = OURS) -> None:
    outcomes = [verdict.outcome for verdict in result.incident.ladder]
    outcome = "recovered" if outcomes == [Outcome.RECOVERED] else f"fallback: {result.incident.ladder[-1].mode}"
    table.rows.append(Row(place, victims, side.value, outcome, added, result.start))
    sys.stderr.write(
        f"\n{added:+6.2f} s, start {result.start:.2f} s, {outcome}: {' and '.join(victims)} at {where(place)}: {does(place)} "
    )
