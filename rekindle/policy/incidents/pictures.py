"""Composes the picture of an incident from the job's record of it, from histories of its recoveries, and from step logs. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from rekindle.model.account import Row
from rekindle.model.fault import TRAINING_SIDE, WATCHER, Fault
from rekindle.model.incident import Incident
from rekindle.model.job import Job
from rekindle.model.mode import Outcome
from rekindle.model.picture import Item, Lane, Part, Pause, Picture, Recorded, StepRecord
from rekindle.model.ranks import written_ranks
from rekindle.model.verdict import Verdict
from rekindle.policy.account import spans
from rekindle.policy.incidents.histories import Recovery
from rekindle.policy.incidents.standing import lanes_of
from rekindle.policy.modes.cases import describe

DISTINCT = 0.001
"""Seconds between two modes that count as a decision. A shorter time is none."""

SEES = {WATCHER: Part.CLUSTER, TRAINING_SIDE: Part.MANAGER}
"""Lane in which a fault is seen, by its source. Other sources, such as people, tell the control plane itself."""


class Known:
    """Knowledge of one incident.

    Args:
        incident: the job's record. None: the incident is running, or is not in the record any more.
        recorded: histories of its recoveries, as far as they are kept.
    """

    def __init__(self, job: Job, number: int, now: float, incident: Incident | None, recorded: Iterable[Recorded]) -> None:
        self.job, self.number, self.incident = job, number, incident
        found = sorted((Recovery(one, now) for one in recorded), key=lambda recovery: recovery.since)
        self.recoveries = [one for one in found if one.mode]
        self.faults = incident.faults if incident and incident.faults else self.recoveries[0].faults if self.recoveries else ()
        self.now = now if not incident and self.recoveries[-1].is_running else None
        self.began = incident.started_at.timestamp() if incident else self.recoveries[0].since
        self.ends = self.began + incident.seconds if incident else max(one.until for one in self.recoveries)

    def picture(self, records: Sequence[StepRecord] = (), row: Row | None = None) -> Picture:
        """Returns the picture of the incident.

        Args:
            records: step logs of the ranks; empty where they are not visible.
            row: the incident in the job's account. None: it has none.
        """
        incident, began, ends = self.incident, self.began, self.ends
        lanes = self._lanes()
        stood = self._ranks(records, lanes)
        edges = [edge for lane in (*lanes, *stood) for item in lane.items for edge in (item.since, item.until)]
        last_verdict = incident.ladder[-1] if incident else self.recoveries[-1].verdict
        return Picture(
            job=self.job.name,
            number=self.number,
            summary=incident.summary if incident else self.recoveries[0].summary,
            outcome=incident.verdict if incident else last_verdict.outcome if last_verdict and not self.now else None,
            began=began,
            since=min([began, *edges]),
            until=max([ends, *edges]),
            seconds=ends - began,
            pause=self._pause(records, row),
            steps_lost=last_verdict.steps_lost if last_verdict else None,
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
            Lane(
                part=Part.CONTROL,
                name="decision",
                items=_ordered([*told, *accepted, *self._waits(), *_between(modes, self.began, self.ends)]),
            ),
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
        if not self.incident:
            return [_mode(one, one.verdict) for one in self.recoveries]
        found: list[Item] = []
        for verdict in self.incident.ladder:
            if history := self._history_of(verdict):
                found.append(_mode(history, verdict))
                continue
            before = found[-1].until if found else self.began
            since = min((phase.at.timestamp() for phase in verdict.phases if phase.at), default=before)
            text, failed = _words(verdict.mode, verdict)
            found.append(Item(since=since, until=since + verdict.seconds, text=text, failed=failed))
        return found

    def _history_of(self, verdict: Verdict) -> Recovery | None:
        return next((one for one in self.recoveries if one.mode is verdict.mode), None)

    def _without_history(self) -> list[Verdict]:
        """Returns the verdicts of modes that have run, and whose histories are gone."""
        ladder = self.incident.ladder if self.incident else ()
        return [verdict for verdict in ladder if verdict.phases and not self._history_of(verdict)]

    def _waits(self) -> list[Item]:
        waits = self.incident.waits if self.incident else ()
        return [Item(since=one.since.timestamp(), until=one.until.timestamp(), text="waits for a person") for one in waits]

    def _ranks(self, records: Sequence[StepRecord], lanes: Sequence[Lane]) -> list[Lane]:
        if records:
            since = min([self.began, *(item.since for lane in lanes for item in lane.items)])
            return lanes_of(records, since, self.ends, self.now)
        stood = spans.stood(self.incident) if self.incident else None
        ladder = self.incident.ladder if self.incident else ()
        moved = {one.pod_rank: one for verdict in ladder for one in verdict.switched}
        found, per_pod = [], self.job.ranks_per_pod
        for pod_rank, one in sorted(moved.items()):
            ranks = written_ranks(range(pod_rank * per_pod, (pod_rank + 1) * per_pod))
            text = f"moved: {one.before.name} on {one.before.node} -> {one.after.name} on {one.after.node}"
            found.append(_standing(f"ranks {ranks}", text, stood or (self.ends, self.ends)))
        if stood:
            found.append(_standing("other ranks" if moved else "all ranks", "stood", stood))
        return found

    # ---- price

    def _pause(self, records: Sequence[StepRecord], row: Row | None) -> Pause | None:
        ranks = len({record.rank for record in records}) or self.job.ranks
        if row and row.stood:
            return Pause(seconds=sum(row.stood.values()), ranks=ranks, source="the job's account")
        stood = spans.stood(self.incident) if self.incident else None
        return Pause(seconds=stood[1] - stood[0], ranks=ranks, source="the control plane") if stood else None

    def _missing(self, records: Sequence[StepRecord]) -> Iterable[str]:
        if not self.incident and not self.now:
            yield "the job keeps no record of the incident any more: its decisions are not shown"
        if gone := [verdict.mode.value for verdict in self._without_history()]:
            yield f"Temporal has no history of {', '.join(gone)} (retention): its calls, orders and reports are not shown"
        if not records:
            yield "no step log of the job is visible from here: times of ranks are those that the control plane knows"


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


def _between(modes: Sequence[Item], began: float, ends: float) -> Iterable[Item]:
    """Returns the times in which no mode was running: the job's workflow decides what is next."""
    since = began
    for mode in [*modes, Item(since=ends, until=ends, text="end")]:
        if mode.since - since >= DISTINCT:
            text = "decides" if mode.text != "end" or not modes else "concludes"
            yield Item(since=since, until=mode.since, text=text)
        since = max(since, mode.until)


def _standing(name: str, text: str, stood: tuple[float, float]) -> Lane:
    return Lane(part=Part.RANKS, name=name, items=(Item(since=stood[0], until=stood[1], text=text),))


def _ordered(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda item: item.since))
