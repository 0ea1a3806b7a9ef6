"""Kills at every event of a recovery of each mode, and between events: all (`make kills`), or a sample of the committed code.

`REKINDLE_KILLS=all` kills at all points of every mode, `REKINDLE_KILLS=online-retry,hot-switch` at all points of these modes;
what was run is written into `docs/evidence/kills.md`, where the sections of other modes stay.
"""

import os
import random
import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import pytest
import pytest_asyncio

from rekindle.model.cluster import Pod
from rekindle.model.keys import POD_TYPE, RANK_INDEX
from rekindle.model.maintenance import Stage
from rekindle.model.mode import Mode, Outcome
from rekindle.model.training_side import TrainingSide
from tests.fakes.peer import name_of
from tests.kills.calls import DONE, POLL_ACTIVITY, RECOVERIES, Journal, Side
from tests.kills.events import Happened, Place, happened, places
from tests.kills.maintaining import SWITCHES, Maintained, maintain
from tests.kills.managers import MANAGER
from tests.kills.modes import HOT_SWITCH, IN_PLACE, LINK_FAILOVER, MODES, ONLINE_RETRY, SECTIONS, Struck
from tests.kills.table import Row, Table, does, where, write
from tests.kills.trial import Kill, Result, Trials
from tests.support.processes import CONTROL, GATEWAY, SERVER, processes
from tests.support.sampling import committed_code
from workflows.asked import LOST

ASKED = os.environ.get("REKINDLE_KILLS", "")
ALL = bool(ASKED)
CHOSEN = [struck for struck in MODES if ASKED in ("", "all") or struck.word in ASKED.split(",")]
MAINTAINED = ASKED in ("", "all") or LINK_FAILOVER.word in ASKED.split(",")
assert CHOSEN or MAINTAINED, f"REKINDLE_KILLS={ASKED}: it is `all`, or some of {', '.join(one.word for one in SECTIONS)}"
SAMPLE = 2
"""Number of kills of each mode."""

BOUND = 3.0 if ALL else 15.0
"""Seconds that a kill may add, on a machine on which a process starts in `START`."""

START = 2.0
"""Seconds of a normal process start. A busy machine receives as much more time as a process took longer to start."""

UNDISTURBED = 3 if ALL else 2
WRITTEN_LATER = ("ActivityTaskStarted", "WorkflowTaskScheduled", "WorkflowTaskStarted")
"""The server writes these events when the activity, or the task of an update, has ended: a killed one may have none."""

OURS, MINDIO = TrainingSide.REKINDLE, TrainingSide.MINDIO
Victims = tuple[str, ...]

pytestmark = [pytest.mark.kills, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(3 * 3600 if ALL else 120)]
each_mode = pytest.mark.parametrize("struck", CHOSEN, ids=[struck.word for struck in CHOSEN])


@dataclass
class Reference:
    """Runs of one mode without a kill."""

    struck: Struck
    side: TrainingSide
    results: list[Result]

    @property
    def seconds(self) -> float:
        return statistics.median(result.seconds for result in self.results)

    @property
    def events(self) -> list[Happened]:
        return _events(self.results[-1])

    @property
    def places(self) -> list[Place]:
        """Returns every point at which a kill is tried."""
        result = self.results[-1]
        of_the_job = places("job", result.job, result.calls, result.first)
        named = zip(RECOVERIES, result.recoveries, strict=False)
        return [*of_the_job, *(place for name, history in named for place in places(name, history, result.calls))]


class References:
    """Creates each reference when it is first requested."""

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self._made: dict[tuple[Mode, TrainingSide], Reference] = {}

    async def of(self, struck: Struck, side: TrainingSide = OURS) -> Reference:
        if (struck.mode, side) not in self._made:
            results = [await self._trials.run(struck, None, side) for _ in range(UNDISTURBED)]
            self._made[struck.mode, side] = Reference(struck, side, results)
        return self._made[struck.mode, side]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trials(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trials]:
    journal = Journal()
    async with processes(tmp_path_factory.mktemp("kills"), journal) as world:
        runs = Trials(world, journal)
        async with runs.watching():
            await runs.run(HOT_SWITCH, None)  # everything is imported
            yield runs


@pytest.fixture(scope="module")
def references(trials: Trials) -> References:
    return References(trials)


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    made = Table()
    yield made
    if ALL and made.rows:
        write(made)


@each_mode
async def test_undisturbed_recoveries_have_one_history_and_a_kill_for_each_of_its_events(
    references: References, struck: Struck
) -> None:
    """Undisturbed runs agree in every event, and every event after the fault is met by a kill."""
    ours = await references.of(struck)
    assert {tuple(_events(result)) for result in ours.results} == {tuple(ours.events)}
    assert [event for place in ours.places for event in place.events] == ours.events
    for result in ours.results:
        _once(result, ours)


@each_mode
async def test_a_killed_process_neither_loses_a_recovery_nor_repeats_it(
    trials: Trials, references: References, table: Table, struck: Struck, subtests: pytest.Subtests
) -> None:
    """The control worker, gateway, Temporal server or manager is killed at any point: the job recovers, nothing is done twice,
    and the delay is bounded."""
    ours = await references.of(struck)
    for place, victims in _chosen(_kills(ours), struck):
        with subtests.test(f"{' and '.join(victims)} at {where(place)}: {does(place)}"):
            result = await trials.run(struck, Kill(place.point, victims))
            _note(table, place, victims, result, ours)
            _met(result, place, ours)
            _once(result, ours, victims)
            _soon(result, ours)


async def test_an_order_follows_the_stream_to_the_next_gateway_without_an_error_in_the_log(
    trials: Trials, references: References
) -> None:
    """An order that was handed out to a gateway which then died is sent by its successor, and the log shows no stray error."""
    ours = await references.of(HOT_SWITCH)
    handed_out = next(place for place in ours.places if place.point.call.method == POLL_ACTIVITY)
    result = await trials.run(HOT_SWITCH, Kill(handed_out.point, (GATEWAY,)))
    _met(result, handed_out, ours)
    _once(result, ours)
    assert "never retrieved" not in trials.log(CONTROL)


@pytest.mark.parametrize(
    "struck",
    [
        pytest.param(
            struck, id=struck.word, marks=() if ALL else pytest.mark.same_path("a report that is given up ends in its fallback")
        )
        for struck in (HOT_SWITCH, ONLINE_RETRY, IN_PLACE)
        if struck in CHOSEN
    ],
)
async def test_a_report_that_is_given_up_ends_in_its_rules_fallback(
    trials: Trials, references: References, table: Table, struck: Struck, subtests: pytest.Subtests
) -> None:
    """A training side never repeats a report, and a gateway is killed: the job recovers, or the fallback of the rule applies; it
    is never stuck."""
    mindio = await references.of(struck, MINDIO)
    assert [len(result.incident.ladder) for result in mindio.results] == [1] * UNDISTURBED, "undisturbed there is no fallback"
    kills = [place for place in mindio.places if place.point.call.caller == GATEWAY and place.point.call.workflow == "recovery"]
    written = [place for place in kills if (place.point.call.method, place.point.side) == (DONE, Side.BEFORE)]
    for place in kills if ALL else written[-1:]:
        with subtests.test(f"gateway at {where(place)}: {does(place)}"):
            result = await trials.run(struck, Kill(place.point, (GATEWAY,)), MINDIO)
            _note(table, place, (GATEWAY,), result, mindio)
            assert result.met == place.words  # what it finds when faults are announced comes at any time: no one history
            if LOST in result.incident.ladder[0].reason:
                _asked(result, mindio)
            elif result.incident.ladder[0].outcome is Outcome.RECOVERED:
                _once(result, mindio)
                assert "status" in result.accepted
            else:
                _fallen_back(result, struck)


@pytest.mark.skipif(not MAINTAINED, reason="other kills are asked for")
async def test_a_killed_process_neither_loses_a_maintenance_nor_repeats_what_it_does(
    trials: Trials, table: Table, subtests: pytest.Subtests
) -> None:
    """The same holds at every event of a maintenance, which moves devices to their backup link and back."""
    undisturbed = [await maintain(trials, None) for _ in range(UNDISTURBED)]
    events = [happened("maintenance", one.history) for one in undisturbed]
    assert all(one == events[-1] for one in events)
    kills = [
        (place, victims)
        for place in places("maintenance", undisturbed[-1].history, undisturbed[-1].calls)
        for victims in _victims_at(place)
    ]
    assert [event for place in dict.fromkeys(place for place, _ in kills) for event in place.events] == events[-1]
    seconds = statistics.median(one.seconds for one in undisturbed)
    for place, victims in _chosen(kills, LINK_FAILOVER):
        with subtests.test(f"{' and '.join(victims)} at {where(place)}: {does(place)}"):
            result = await maintain(trials, Kill(place.point, victims))
            added = result.seconds - seconds
            outcome = "refused, asked again" if result.refused else "recovered"
            _add(table, Row(LINK_FAILOVER, OURS, place, victims, outcome, added, result.start, seconds))
            assert MANAGER in victims or not result.refused
            assert result.met == place.words
            _same_until(place, happened("maintenance", result.history), events[-1])
            _moved_once(result, victims)
            assert added - max(0.0, result.start - START) < BOUND


# ---- which kills


def _kills(reference: Reference) -> list[tuple[Place, Victims]]:
    """Returns the places with their victims. A place that only one victim could notice is not tried with the others."""
    return [(place, victims) for place in reference.places for victims in _victims_at(place)]


def _victims_at(place: Place) -> list[Victims]:
    whom: list[Victims] = [(CONTROL,), (GATEWAY,)]
    if place.point.call.caller == GATEWAY:
        whom.append((CONTROL, GATEWAY))
    if place.events:
        whom.append((SERVER,))
        if place.point.call.workflow != "job":
            whom.append((MANAGER,))
    return whom


def _chosen(kills: Sequence[tuple[Place, Victims]], struck: Struck) -> Sequence[tuple[Place, Victims]]:
    if ALL:
        return kills
    seed = f"{committed_code()} {struck.word}"
    print(f"a sample of {SAMPLE} of {len(kills)} kills, seeded by {seed}")
    return random.Random(seed).sample(kills, SAMPLE)


# ---- what must be true


def _met(result: Result, place: Place, reference: Reference) -> None:
    """Checks that the kill happened at its place: the history up to there is that of an undisturbed run."""
    assert result.met == place.words
    workflow = place.point.call.workflow
    _same_until(
        place, *([event for event in events if event.workflow == workflow] for events in (_events(result), reference.events))
    )


def _same_until(place: Place, events: Sequence[Happened], reference: Sequence[Happened]) -> None:
    undisturbed = [event for event in reference if event.id <= place.earlier]
    while undisturbed and undisturbed[-1].name in WRITTEN_LATER:
        undisturbed.pop()
    assert [event.name for event in events[: len(undisturbed)]] == [event.name for event in undisturbed]


def _once(result: Result, reference: Reference, victims: Victims = ()) -> None:
    """Checks that the job recovered by these modes alone: every order was carried out once, every report was consumed once, and
    nothing remains."""
    struck, ladder = reference.struck, result.incident.ladder
    assert _ladder(result) == struck.ladder, [verdict.reason for verdict in ladder]
    assert (result.incidents, result.standing) == (1, ())
    phases = [(verdict.mode, phase.name) for verdict in ladder for phase in verdict.phases]
    assert len(phases) == len(set(phases)) == struck.phases(reference.side), phases
    _ordered_once(result, reference, victims)
    acknowledged = {kind for kind, code in result.peer.acknowledged if code == 0}
    assert acknowledged - {"fault"} <= set(result.accepted)
    assert set(result.accepted) == set(struck.reports(reference.side)) or not result.peer.tireless
    assert not any(verdict.unread for verdict in ladder)
    _pods_once(result, struck)


def _asked(result: Result, reference: Reference) -> None:
    """Checks that a lost status led to a question to the training side, which repeated a step: each order once, and no process
    ended for it."""
    (verdict,) = result.incident.ladder
    assert (verdict.mode, verdict.outcome) == (reference.struck.mode, Outcome.RECOVERED), verdict.reason
    assert (result.incidents, result.standing) == (1, ())
    attempts = dict.fromkeys((order.uuid, name_of(order)) for order in result.peer.received)
    assert [name for _, name in attempts] == [*reference.struck.orders(reference.side), "stop_train", "on_global_rank", "retry"]
    assert not result.peer.exited
    _pods_once(result, reference.struck)


def _ordered_once(result: Result, reference: Reference, victims: Victims) -> None:
    """Checks that each manager carried out an order once. Only a manager that died may leave an order to the next."""
    assert len(result.peer.lives) == 1 + reference.struck.restarts + victims.count(MANAGER)
    for life in result.peer.lives:
        assert len(life) == len(set(life)), result.peer.lives
    carried_out = [order for life in result.peer.lives for order in life]
    assert tuple(dict.fromkeys(carried_out)) == reference.struck.orders(reference.side)
    assert len({order.uuid for order in result.peer.received}) == bool(carried_out)
    assert not result.peer.exited


def _pods_once(result: Result, struck: Struck) -> None:
    """Checks that each new pod was created once, and that each old one was deleted once."""
    before = {pod.metadata.uid: _rank(pod) for pod in result.before}
    others = [pod for pod in result.born if pod.metadata.uid not in before]
    assert len(result.born) == len(before) + len(struck.renews)
    assert sorted(map(_rank, others)) == list(struck.renews)
    assert sorted(before[uid] for uid in result.died) == list(struck.ends)
    ranks = (0,) if struck.leaves else (0, 1)
    assert {_rank(pod): POD_TYPE in pod.metadata.annotations for pod in result.left} == dict.fromkeys(ranks, False)
    assert {pod.metadata.uid for pod in others} <= {pod.metadata.uid for pod in result.left}


def _soon(result: Result, reference: Reference) -> None:
    """Checks that the delay is within its bound."""
    assert result.seconds - reference.seconds - max(0.0, result.start - START) < BOUND


def _moved_once(result: Maintained, victims: Victims) -> None:
    """Checks that the devices moved to the backup link and back, each by one switch of links. Every order was carried out once,
    and nothing remains."""
    assert (result.known.stage, result.known.on_backup) == (Stage.OVER, ())
    assert [move.outcome for move in result.known.moves if move.outcome] == [Outcome.RECOVERED for _ in SWITCHES]
    ladders = [[(verdict.mode, verdict.outcome) for verdict in incident.ladder] for incident in result.job.history]
    assert ladders == [[(Mode.LINK_SWITCH, Outcome.RECOVERED)] for _ in SWITCHES]
    assert (result.job.incidents, result.job.faults, result.job.links) == (len(SWITCHES), (), ())
    assert len(result.peer.lives) == 1 + victims.count(MANAGER)
    ordered = dict.fromkeys((order.uuid, name_of(order)) for order in result.peer.received)
    assert [name for _, name in ordered] == [name for _ in SWITCHES for name in LINK_FAILOVER.carries_out]
    assert len({attempt for attempt, _ in ordered}) == len(SWITCHES)
    assert not result.peer.on_backup
    assert not result.peer.exited


def _fallen_back(result: Result, struck: Struck) -> None:
    """Checks that a lost report led to the fallback of its rule: to the next mode, or to a restart of the job, all of its pods
    once."""
    first, last = result.incident.ladder[0], result.incident.ladder[-1]
    assert (first.mode, first.outcome) == (struck.mode, Outcome.ESCALATE)
    if struck is HOT_SWITCH:
        assert "pausing failed: no report of the pause" in first.reason
    assert last.outcome is Outcome.RECOVERED, last.reason
    assert len(set(result.peer.carried_out)) == len(result.peer.carried_out)
    assert sorted(_rank(pod) for pod in result.left) == [0, 1]
    assert not {pod.metadata.uid for pod in result.left} & set(result.died)


# ---- helpers


def _events(result: Result) -> list[Happened]:
    """Returns the events after the fault, counted from there."""
    named = zip(RECOVERIES, result.recoveries, strict=False)
    return [
        *happened("job", result.job, result.first),
        *(event for name, history in named for event in happened(name, history)),
    ]


def _ladder(result: Result) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in result.incident.ladder]


def _rank(pod: Pod) -> int:
    return int(pod.metadata.annotations[RANK_INDEX])


def _note(table: Table, place: Place, victims: Victims, result: Result, reference: Reference) -> None:
    outcome = "recovered" if _ladder(result) == reference.struck.ladder else f"then {result.incident.ladder[-1].mode}"
    added = result.seconds - reference.seconds
    _add(table, Row(reference.struck, reference.side, place, victims, outcome, added, result.start, reference.seconds))


def _add(table: Table, row: Row) -> None:
    table.rows.append(row)
    whom = " and ".join(row.victims)
    sys.stderr.write(
        f"\n{row.added:+6.2f} s, start {row.start:.2f} s, {row.outcome}: {whom} at {where(row.place)}: {does(row.place)} "
    )
