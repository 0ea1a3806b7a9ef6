"""Composes the picture of an incident from the job's record of it, from histories of its recoveries, and from step logs. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from rekindle.model import bounds
from rekindle.model.account import Row
from rekindle.model.fault import TRAINING_SIDE, WATCHER, Fault
from rekindle.model.mode import Outcome
from rekindle.model.picture import Item, Lane, Part, Pause, Picture, Recovery, StepRecord
from rekindle.model.ranks import written_ranks
from rekindle.model.state import JobStatus
from rekindle.model.verdict import Verdict
from rekindle.policy.account import spans
from rekindle.policy.incidents.standing import lanes_of
from rekindle.policy.modes.cases import describe

WAITS = "waits for a person"

RANKS_BYTES = 100
"""Bytes of a list of ranks in a note."""

DISTINCT = 0.001
"""Seconds between two modes that count as a decision. A shorter time is none."""

SEES = {WATCHER: Part.CLUSTER, TRAINING_SIDE: Part.MANAGER}
"""Lane in which a fault is seen, by its source. Other sources, such as people, tell the control plane itself."""


class Known:
    """Knowledge of one incident of a job.

    Args:
        now: seconds since the epoch.
        recoveries: those of the incident, as far as their histories are kept.
    """

    def __init__(self, status: JobStatus, number: int, now: float, recoveries: Iterable[Recovery]) -> None:
        state = status.state
        self.job, self.number = state.job, number
        self.incident = next((one for one in state.history if one.number == number), None)
        running = status.begun if status.begun and status.begun.number == number else None
        self.record = self.incident or running
        self.question = state.question if state.question and running and not self.incident else None
        self.recoveries = sorted((one for one in recoveries if one.mode), key=lambda recovery: recovery.since)
        is_running = not self.incident if self.record else any(one.is_running for one in self.recoveries[-1:])
        times = [self.record.started_at.timestamp()] if self.record else []
        self.now = max([now, *times, *(one.until for one in self.recoveries)]) if is_running else None
        """Time until which it is shown, which is not before what was recorded by another clock. None: it is over."""

    @property
    def is_nothing(self) -> bool:
        return not self.record and not self.recoveries

    @property
    def faults(self) -> tuple[Fault, ...]:
        of_record = self.record.faults if self.record else ()
        return of_record or next((one.faults for one in self.recoveries), ())

    @property
    def began(self) -> float:
        return self.record.started_at.timestamp() if self.record else self.recoveries[0].since

    @property
    def ends(self) -> float:
        if self.incident:
            return self.began + self.incident.seconds
        return self.now or max(one.until for one in self.recoveries)

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the incident. None: it is running."""
        if self.incident or self.now:
            return self.incident.verdict if self.incident else None
        return self._last_verdict.outcome if self._last_verdict else Outcome.CANCELLED

    @property
    def _ladder(self) -> tuple[Verdict, ...]:
        return self.record.ladder if self.record else ()

    @property
    def _last_verdict(self) -> Verdict | None:
        return self._ladder[-1] if self._ladder else self.recoveries[-1].verdict if self.recoveries else None

    def picture(self, records: Sequence[StepRecord] = (), row: Row | None = None) -> Picture:
        """Returns the picture of the incident.

        Args:
            records: step logs of the ranks; empty where they are not visible.
            row: the incident in the job's account. None: it has none.
        """
        began, ends, last = self.began, self.ends, self._last_verdict
        lanes = self._lanes()
        stood = self._ranks(records, lanes)
        edges = [edge for lane in (*lanes, *stood) for item in lane.items for edge in (item.since, item.until)]
        return Picture(
            job=self.job.name,
            number=self.number,
            summary=self.record.summary if self.record else self.recoveries[0].summary,
            outcome=self.outcome,
            began=began,
            since=min([began, *edges]),
            until=max([ends, *edges]),
            seconds=ends - began,
            pause=self._pause(row),
            steps_lost=last.steps_lost if last else None,
            lanes=(*lanes, *stood),
            missing=tuple(self._missing(records)),
        )

    # ---- lanes

    def _lanes(self) -> list[Lane]:
        modes = self._modes()
        seen = [(SEES.get(fault.source), _event("seen", fault, fault.seen_at)) for fault in self.faults if fault.seen_at]
        by_cluster, by_manager, told = (
            [item for part, item in seen if part is one] for one in (Part.CLUSTER, Part.MANAGER, None)
        )
        accepted = [_event("accepted", fault, fault.accepted_at) for fault in self.faults if fault.accepted_at]
        lanes = [
            Lane(part=Part.CLUSTER, name="cluster", items=_ordered([*by_cluster, *self._of_all("calls")])),
            Lane(part=Part.CONTROL, name="decision", items=_ordered([*told, *accepted, *self._waits(), *self._between(modes)])),
            Lane(part=Part.CONTROL, name="mode", items=tuple(modes)),
            Lane(part=Part.CONTROL, name="phase", items=_ordered(self._phases())),
            Lane(part=Part.CONTROL, name="order", items=_ordered(self._of_all("orders"))),
            Lane(part=Part.CONTROL, name="wait", items=_ordered(self._of_all("waits"))),
            Lane(part=Part.MANAGER, name="manager", items=_ordered([*by_manager, *self._of_all("reports")])),
        ]
        return [lane for lane in lanes if lane.items]

    def _of_all(self, name: str) -> list[Item]:
        return [item for recovery in self.recoveries for item in getattr(recovery, name)]

    def _phases(self) -> list[Item]:
        gone = [phase for verdict in self._without_history() for phase in verdict.phases if phase.at]
        of_record = [
            Item(since=at, until=at + phase.seconds, text=phase.name, failed=bool(phase.note))
            for phase in gone
            if phase.at and (at := phase.at.timestamp())
        ]
        return [*of_record, *(item for recovery in self.recoveries for item in recovery.phases)]

    def _modes(self) -> list[Item]:
        """Returns the modes in their order. Those without a history are where their phases are, or follow the one before."""
        found: list[Item] = []
        for verdict in self._ladder:
            if history := self._history_of(verdict):
                found.append(_mode(history, verdict))
                continue
            before = found[-1].until if found else self.began
            since = min((phase.at.timestamp() for phase in verdict.phases if phase.at), default=before)
            text, failed = _words(verdict.mode, verdict)
            found.append(Item(since=since, until=since + verdict.seconds, text=text, failed=failed))
        tried = {verdict.mode for verdict in self._ladder}
        return [*found, *(_mode(one, one.verdict) for one in self.recoveries if one.mode not in tried)]

    def _history_of(self, verdict: Verdict) -> Recovery | None:
        return next((one for one in self.recoveries if one.mode is verdict.mode), None)

    def _without_history(self) -> list[Verdict]:
        """Returns the verdicts of modes that have run, and whose histories are gone."""
        return [verdict for verdict in self._ladder if verdict.phases and not self._history_of(verdict)]

    def _waits(self) -> list[Item]:
        waits = self.record.waits if self.record else ()
        found = [Item(since=one.since.timestamp(), until=one.until.timestamp(), text=WAITS) for one in waits]
        if (asked := self.question) and self.now:
            why = f"held by a storm: {asked.storm}" if asked.storm else WAITS
            since = min(asked.since.timestamp(), self.now)
            found.append(Item(since=since, until=self.now, text=f"{why} ({asked.mode})", running=True))
        return found

    def _between(self, modes: Sequence[Item]) -> Iterable[Item]:
        """Returns the times in which no mode was running: the job's workflow decides what is next."""
        since = self.began
        for mode in modes:
            if mode.since - since >= DISTINCT:
                yield Item(since=since, until=mode.since, text="decides")
            since = max(since, mode.until)
        if self.ends - since >= DISTINCT:
            text = "concludes" if modes and not self.now else "decides"
            yield Item(since=since, until=self.ends, text=text, running=bool(self.now))

    def _ranks(self, records: Sequence[StepRecord], lanes: Sequence[Lane]) -> list[Lane]:
        if records:
            since = min([self.began, *(item.since for lane in lanes for item in lane.items)])
            return lanes_of(records, since, self.ends, self.now)
        stood = spans.stood(self.incident) if self.incident else None
        moved = {one.pod_rank: one for verdict in self._ladder for one in verdict.switched}
        found, per_pod = [], self.job.ranks_per_pod
        for pod_rank, one in sorted(moved.items()):
            ranks = written_ranks(range(pod_rank * per_pod, (pod_rank + 1) * per_pod))
            text = f"moved: {one.before.name} on {one.before.node} -> {one.after.name} on {one.after.node}"
            found.append(_standing(f"ranks {ranks}", text, stood or (self.ends, self.ends)))
        if stood:
            found.append(_standing("other ranks" if moved else "all ranks", "stood", stood))
        return found

    # ---- price

    def _pause(self, row: Row | None) -> Pause | None:
        ranks = self.job.ranks
        if row and row.cost:
            return Pause(seconds=sum(row.stood.values()), again=row.again, ranks=ranks, source="the job's account")
        stood = spans.stood(self.incident) if self.incident else None
        return Pause(seconds=stood[1] - stood[0], ranks=ranks, source="the control plane") if stood else None

    def _missing(self, records: Sequence[StepRecord]) -> Iterable[str]:
        if not self.record and not self.now:
            yield "the job keeps no record of the incident any more: its decisions are not shown"
        if gone := [verdict.mode.value for verdict in self._without_history()]:
            yield f"Temporal has no history of {', '.join(gone)} (retention): its calls, orders and reports are not shown"
        unseen = set(range(self.job.ranks)) - {record.rank for record in records}
        if not records:
            yield "no step log of the job is visible from here: times of ranks are those that the control plane knows"
        elif unseen:
            yield f"no step log of {bounds.cut(f'ranks {written_ranks(unseen)}', RANKS_BYTES)} is visible from here"


def _mode(recovery: Recovery, verdict: Verdict | None) -> Item:
    assert recovery.mode is not None
    text, failed = _words(recovery.mode, verdict)
    if verdict is None and recovery.ended:
        text, failed = f"{recovery.mode}: {recovery.ended}", True
    return Item(since=recovery.since, until=recovery.until, text=text, failed=failed, running=recovery.is_running)


def _words(mode: str, verdict: Verdict | None) -> tuple[str, bool]:
    if verdict is None:
        return mode, False
    return f"{mode}: {verdict.outcome}, {verdict.reason}", verdict.outcome is not Outcome.RECOVERED


def _event(word: str, fault: Fault, moment: datetime) -> Item:
    at = moment.timestamp()
    return Item(since=at, until=at, text=f"fault {word}: {describe(fault)}", failed=True)


def _standing(name: str, text: str, stood: tuple[float, float]) -> Lane:
    return Lane(part=Part.RANKS, name=name, items=(Item(since=stood[0], until=stood[1], text=text),))


def _ordered(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda item: item.since))
