"""Computes the current faults of a job: the differences between its observed state and the state that its workflow expects. Pure.

The watcher's faults are replaced as a whole by each sighting. The faults of others (training side, people) stand until their
source clears them or an incident has dealt with them. Every fault is stamped with the workflow's clock when it is taken.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from rekindle.model import bounds
from rekindle.model.fault import (
    EXPECTED_HOLDER,
    HOLDER_LENGTH,
    HOLDERS,
    TRAINING_SIDE,
    UNKNOWN_HOLDER,
    WATCHER,
    Fault,
    FaultKind,
    FaultReport,
    FaultType,
    FaultyRanks,
    Sighting,
)
from rekindle.model.incident import Incident
from rekindle.model.job import Job
from rekindle.model.mode import Outcome
from rekindle.model.situation import Handled
from rekindle.model.state import MENDED, JobState, Standing, Told
from rekindle.policy.drain import drain_verdicts
from rekindle.policy.modes.cases import Case
from rekindle.policy.training_sides.table import side_of
from workflows import attachments

Key = tuple[str, str, tuple[int, ...]]
Occurrence = tuple[Key, datetime | None]

LOST_MANAGER = "manager/"
"""Prefix of the id of the fault of a lost manager."""

REPORTED_BYTES = 12 * 1024
"""Maximum bytes of JSON of the reported faults at a time, without the training side's own, which are merged into one.

A report beyond it is refused, so that its sender notices.
"""

MOST_TOLD = 16
"""Maximum number of reports of the training side about its processes that are distinguished within one incident."""

MOST_HELD = 16
"""Maximum number of disappeared faults of rules that are kept, as they may come back.

A flapping fault beyond these is a new fault each time.
"""

KEPT_OF_AN_INCIDENT = 3
KEPT_RANKS = 64
"""Maximum number of faults of an incident, and of ranks of a fault, in the history.

All of them, for twenty incidents, would not fit into one payload.
"""


def short(uid: str) -> str:
    """Returns the shortened UID by which the holder of a rank is remembered; see `Sighting.holders`."""
    return uid[:HOLDER_LENGTH]


# ---- taken


def seen(state: JobState, sighting: Sighting, now: datetime, *, restarting: bool) -> JobState:
    """Returns the state after a sighting.

    The watcher's faults are those of the sighting, and the ranks whose holder changed without a recovery.
    """
    holders = _grown(state.holders, sighting.holders)
    changed = [] if restarting else _changed(holders, sighting)
    if changed and _is_another_life(holders, sighting.holders):
        holders, changed = _grown((), sighting.holders), []
        lasting = tuple(one for one in state.faults if not _is_of_the_last_life(one, state))
        state = attachments.restarted(state).with_(
            client="", manager=sighting.manager, manager_lost="", progress=None, faults=lasting
        )
    lost = [_lost(state, changed, sighting)] if changed else []
    others = [one for one in state.faults if one.fault.source != WATCHER]
    known = [one for one in state.faults if one.fault.source == WATCHER]
    found = [fault for fault in sighting.faults if not _is_of_left_pods(state, fault)]
    before = _by_key(one for one in known if not has_gone(one, now))
    taken = [_taken(before.get(_key(fault)), fault, now) for fault in (*found, *lost)]
    there = _by_key(taken)
    held = () if restarting else _held((one for key, one in before.items() if key not in there), holders, sighting, now)
    after = state.with_(holders=holders, faults=(*others, *taken, *held))
    return _after_news(after, state.faults)


def has_gone(one: Standing, now: datetime) -> bool:
    """Returns whether the fault has been absent for as long as its rule keeps it."""
    return one.over_at is not None and one.over_at <= now


def without_over(state: JobState, now: datetime) -> JobState:
    left = tuple(one for one in state.faults if not has_gone(one, now))
    return state if len(left) == len(state.faults) else state.with_(faults=left)


def _held(gone: Iterable[Standing], holders: tuple[str, ...], sighting: Sighting, now: datetime) -> tuple[Standing, ...]:
    """Returns the faults that are no longer seen but may come back.

    They stay unchanged as long as the same pods hold their ranks. A fault that was not judged yet when its rule ceased to be
    believed is dropped; if it comes back, its time begins again.
    """

    def stays(one: Standing) -> bool:
        fault, decided = one.fault, one.fault.decided
        same = all(rank < len(holders) and holders[rank] == sighting.holders[rank] for rank in fault.pod_ranks)
        return same and decided is not None and decided.clear > 0 and bool(one.judged or decided.rule not in sighting.unbelieved)

    held = (one for one in gone if stays(one))
    return tuple(one if one.well_since else one.model_copy(update={"well_since": now}) for one in held)[:MOST_HELD]


def reported(state: JobState, report: FaultReport, now: datetime, *, recovering: bool = False) -> JobState:
    """Returns the state with faults of a source that does not see the whole job.

    A repeated fault changes nothing; one from a training side that has ended is dropped.

    Args:
        recovering: an incident is running. What the training side reports of its processes may have happened after their repair,
            also to the same ranks.
    """
    known = [one for one in state.faults if one.fault.id not in report.cleared]
    standing = _by_key(known)
    lasting = (told for told in report.faults if told.session not in state.former)
    lives_on = side_of(state.job).successor_continues  # a stream may have broken while its ranks are recovered
    for fault in (part for told in lasting for part in _split(told)):
        same = standing.pop(_key(fault), None)
        if same and fault.kind is FaultKind.PROCESS and fault.session != same.fault.session and not (recovering and lives_on):
            same = None  # the earlier report was about other processes
        merged = _merged(same.fault, fault) if same else fault
        if recovering and _adds_up(fault):
            standing[_key(fault)] = _taken(None, merged, now).model_copy(update={"told": _told(same, fault, now)})
        else:
            standing[_key(fault)] = _taken(same, merged, now)
    return _after_news(state.with_(faults=tuple(standing.values())), known)


def room_problem(state: JobState, report: FaultReport) -> str:
    """Returns why a report does not fit into the job's state; empty: it fits."""
    news = [part for told in report.faults if not _adds_up(told) for part in _split(told)]
    standing = [one.fault for one in state.faults if one.fault.source != WATCHER and one.fault.id not in report.cleared]
    told_again = {_key(fault) for fault in news}
    kept = [fault for fault in standing if not _adds_up(fault) and _key(fault) not in told_again]
    if not news or sum(len(fault.model_dump_json()) for fault in (*kept, *news)) <= REPORTED_BYTES:
        return ""
    return f"faults: {len(news)} more do not fit beside the {len(kept)} that stand: clear some, or tell the worst of them alone"


def _adds_up(fault: Fault) -> bool:
    """Returns whether the fault is merged with earlier reports of the training side.

    All other sources name each process fault separately.
    """
    return fault.kind is FaultKind.PROCESS and fault.source == TRAINING_SIDE


def _is_of_left_pods(state: JobState, fault: Fault) -> bool:
    """Returns whether the fault is only about pods that recoveries replaced and could not delete. Such pods are no fault."""
    left = {pod.uid for pod in state.left_behind}
    return bool(fault.pod_uids) and left.issuperset(fault.pod_uids)


def _split(fault: Fault) -> list[Fault]:
    """Splits a sub-health into one per rank, as policy decides each separately."""
    if fault.kind is not FaultKind.SUB_HEALTH or len(fault.pod_ranks) < 2:
        return [fault]
    return [fault.model_copy(update={"pod_ranks": (rank,)}) for rank in fault.pod_ranks]


def _merged(known: Fault, told: Fault) -> Fault:
    """Merges a report with a known fault. Reports about processes add up by rank; any other fault is replaced."""
    if told.kind is not FaultKind.PROCESS:
        return told
    ranks = tuple(sorted({*known.ranks, *told.ranks}))
    groups: dict[tuple[FaultType, str, str], set[int]] = {}
    claimed: set[int] = set()
    for detail in (*told.details, *known.details):  # the newer report about a rank counts
        fresh = {rank for rank in detail.ranks if rank not in claimed}
        claimed |= fresh
        groups.setdefault((detail.type, detail.device, detail.code), set()).update(fresh)
    details = tuple(
        FaultyRanks(ranks=tuple(sorted(of)), type=kind, device=device, code=code)
        for (kind, device, code), of in sorted(groups.items())
        if of
    )
    pod_ranks = tuple(sorted({*known.pod_ranks, *told.pod_ranks}))
    return told.model_copy(update={"ranks": ranks, "pod_ranks": pod_ranks, "details": details})


def _taken(before: Standing | None, fault: Fault, now: datetime) -> Standing:
    """Returns the fault as accepted now. A known fault keeps its time, and its judgement unless it grew."""
    if before is None:
        return Standing(fault=fault.model_copy(update={"accepted_at": now}))
    stamped = fault.model_copy(update={"accepted_at": before.fault.accepted_at})
    if stamped.is_part_of(before.fault):
        return Standing(fault=stamped, judged=before.judged)
    return Standing(fault=fault.model_copy(update={"accepted_at": now}))


def _told(before: Standing | None, fault: Fault, now: datetime) -> tuple[Told, ...]:
    """Returns when each rank of a fault was last reported.

    A running repair may fix the ranks reported before it, and none reported later. If there are more than `MOST_TOLD` reports,
    the last ones count as one.
    """
    if before is None or before.fault.accepted_at is None:
        return ()
    ranks, known = set(fault.ranks), before.told or (Told(ranks=before.fault.ranks, at=before.fault.accepted_at),)
    older = [Told(ranks=left, at=one.at) for one in known if (left := tuple(r for r in one.ranks if r not in ranks))]
    for one in older[MOST_TOLD - 1 :]:
        ranks.update(one.ranks)
    return (*older[: MOST_TOLD - 1], Told(ranks=tuple(sorted(ranks)), at=now))


def _told_after(one: Standing, moment: datetime, job: Job) -> Standing:
    """Returns the part of a fault that was reported after the given time, with only the ranks of these reports."""
    late = {rank for told in one.told if told.at > moment for rank in told.ranks}
    if not late:
        return one
    pods = job.layout.pods_of(late)
    details = (d.model_copy(update={"ranks": tuple(r for r in d.ranks if r in late)}) for d in one.fault.details)
    left = {
        "ranks": tuple(sorted(late)),
        "pod_ranks": tuple(rank for rank in one.fault.pod_ranks if rank in pods),
        "details": tuple(detail for detail in details if detail.ranks),
    }
    return one.model_copy(update={"fault": one.fault.model_copy(update=left)})


def _key(fault: Fault) -> Key:
    """Returns the key by which the same fault is recognized. A sub-health is the same only on the same rank."""
    return fault.source, fault.id, fault.pod_ranks if fault.kind is FaultKind.SUB_HEALTH else ()


def _by_key(standing: Iterable[Standing]) -> dict[Key, Standing]:
    return {_key(one.fault): one for one in standing}


def _after_news(state: JobState, known: Sequence[Standing]) -> JobState:
    """Returns the state after changes of faults.

    A real fault that is new or has grown causes the others, and sub-healths, to be judged again.
    """
    since = {_key(one.fault): one.fault.accepted_at for one in known}
    real = (one.fault for one in state.faults if one.fault.kind is not FaultKind.SUB_HEALTH and not one.fault.backup)
    is_news = any(since.get(_key(fault)) != fault.accepted_at for fault in real)
    return rejudged(state, every=True) if is_news else state


# ---- holders of ranks


def _grown(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the holders, in which ranks without a known holder get the first one that is seen."""
    known = before if len(before) == len(now) else ("",) * len(now)
    pairs = zip(known, now, strict=True)
    return tuple(new if old in ("", EXPECTED_HOLDER) and new not in ("", UNKNOWN_HOLDER) else old for old, new in pairs)


def _changed(holders: tuple[str, ...], sighting: Sighting) -> list[int]:
    """Returns the ranks that are held by another pod than before, and that no other fault of this sighting explains."""
    explained = {rank for fault in sighting.faults if not fault.backup and _explains(fault) for rank in fault.pod_ranks}
    pairs = enumerate(zip(holders, sighting.holders, strict=True))
    return [rank for rank, (old, new) in pairs if old and new not in (old, UNKNOWN_HOLDER) and rank not in explained]


def _explains(fault: Fault) -> bool:
    return fault.kind in (FaultKind.POD, FaultKind.NODE) and fault.decided is None


def _is_another_life(holders: tuple[str, ...], now: tuple[str, ...]) -> bool:
    """Returns whether another party restarted the whole job: every rank has a holder again, and each has a new one."""
    return all(new not in ("", UNKNOWN_HOLDER, old) for old, new in zip(holders, now, strict=True))


def _is_of_the_last_life(one: Standing, state: JobState) -> bool:
    """Returns whether the fault was reported of processes that have certainly ended: nothing more was to be done about it, or its
    stream has ended too. Faults of the new processes may have arrived already."""
    was_told = one.fault.source != WATCHER and one.fault.kind is not FaultKind.SUB_HEALTH
    return was_told and bool(one.judged or _of_an_older_stream(one.fault, state))


def _lost(state: JobState, ranks: Sequence[int], sighting: Sighting) -> Fault:
    named = ", ".join(str(rank) for rank in ranks[:10]) + (f" and {len(ranks) - 10} more" if len(ranks) > 10 else "")
    whose = "pod rank" if len(ranks) == 1 else "pod ranks"
    held = all(sighting.holders[rank] for rank in ranks)
    lost, passed = ("the pod that held it", "another pod") if len(ranks) == 1 else ("the pods that held them", "other pods")
    what = f"passed to {passed}, whose processes are new" if held else f"lost {lost}"
    return Fault(
        id=HOLDERS,
        kind=FaultKind.POD,
        pod_ranks=tuple(ranks),
        ranks=state.job.layout.ranks_of_all(ranks),
        generation=sighting.generation,
        message=f"{whose} {named} {what}",
        source=WATCHER,
    )


# ---- judged, and over


def rejudged(state: JobState, *, every: bool = False, mended: bool = False) -> JobState:
    """Returns the state in which declined sub-healths are judged again: after an attach, the first step, or when a downgrade is
    lifted.

    A drain that a person cancelled stays cancelled.

    Args:
        every: real faults are judged again too, because the job itself changed.
        mended: also those that an incident has repaired, because a person wants that.
    """

    def is_meant(one: Standing) -> bool:
        stays = drain_verdicts.is_cancelled(one) or (one.is_mended and not mended)
        return (every or one.fault.kind is FaultKind.SUB_HEALTH) and not stays

    again = (one.model_copy(update={"judged": ""}) if is_meant(one) else one for one in state.faults)
    return state.with_(faults=tuple(again))


def judged(standing: Iterable[Standing], about: Iterable[Fault], why: str) -> list[Standing]:
    short = bounds.note(why)  # the note is stored with each of up to a hundred faults
    same = _occurrences(about)
    return [one.model_copy(update={"judged": short}) if _occurrence(one.fault) in same else one for one in standing]


def _occurrences(faults: Iterable[Fault]) -> set[Occurrence]:
    return {_occurrence(fault) for fault in faults}


def _occurrence(fault: Fault) -> Occurrence:
    """Returns the identity of one occurrence of a fault. A fault that came back or has grown is another occurrence."""
    return _key(fault), fault.accepted_at


def left(state: JobState, case: Case, incident: Incident) -> list[Standing]:
    """Returns the faults that remain after an incident.

    Those of the watcher stay until its next sighting, unless they are about replaced pods. Faults of processes that a restart
    ended are dropped, even if the incident failed.
    """
    recovered = incident.verdict is Outcome.RECOVERED
    restarted = max((v.restarted_at for v in incident.ladder if v.restarted_at), default=None)
    handled = {one for verdict in incident.ladder for one in verdict.handled}
    interrupted = restarted is None and any(verdict.was_interrupted for verdict in incident.ladder)
    about = set() if interrupted else _occurrences(case.faults)  # the faults of an interrupted mode remain
    went_on = max((verdict.went_on_at for verdict in incident.ladder if verdict.went_on_at), default=None)
    switched = [one for verdict in incident.ladder for one in verdict.switched]
    moved, replaced = {one.pod_rank for one in switched}, [(one.before.uid,) for one in switched]

    def is_over(one: Standing) -> bool:
        fault = one.fault
        if fault.source == WATCHER:
            of_old_holders = fault.id == HOLDERS and restarted is not None and _before(fault, restarted)
            return of_old_holders or (fault.kind is FaultKind.SUB_HEALTH and fault.pod_uids in replaced)
        if restarted is not None and fault.id.startswith(LOST_MANAGER):
            return True  # even if it was seen afterwards, as a restart creates another manager
        if _adds_up(fault) and went_on is not None:
            return fault.accepted_at is not None and fault.accepted_at <= went_on
        if not recovered:
            return restarted is not None and fault.kind is FaultKind.PROCESS and _before(fault, restarted)
        left_its_place = fault.kind is FaultKind.SUB_HEALTH and set(fault.pod_ranks) <= moved
        if left_its_place or Handled.of(fault) in handled or _occurrence(fault) in about:
            return True
        return restarted is not None and (_before(fault, restarted) or _of_an_older_stream(fault, state))

    left = [_mended(one, about, incident) if recovered else one for one in state.faults if not is_over(one)]
    mended = went_on if recovered else None
    return [_told_after(one, mended, state.job) if mended and _adds_up(one.fault) else one for one in left]


def _mended(one: Standing, about: set[Occurrence], incident: Incident) -> Standing:
    """Returns the fault as repaired if the incident dealt with it.

    A device may show such a fault for days, and it must not be repaired again.
    """
    of_a_rule = one.fault.decided is not None and one.fault.kind is FaultKind.PROCESS
    if not of_a_rule or _occurrence(one.fault) not in about:
        return one
    return one.model_copy(update={"judged": f"{MENDED} {incident.number}, and shown still"})


def of_a_new_life(state: JobState) -> JobState:
    """Returns the state after another party restarted the job, with only new processes.

    Faults that were reported about the old ones are over, and the new holders of ranks are accepted.
    """
    lost = {rank for one in state.faults if one.fault.id == HOLDERS for rank in one.fault.pod_ranks}
    holders = tuple(EXPECTED_HOLDER if rank in lost else uid for rank, uid in enumerate(state.holders))

    def is_over(fault: Fault) -> bool:
        return fault.id == HOLDERS or (fault.source != WATCHER and fault.kind is not FaultKind.SUB_HEALTH)

    return state.with_(holders=holders, faults=tuple(one for one in state.faults if not is_over(one.fault)))


def _before(fault: Fault, moment: datetime) -> bool:
    return fault.accepted_at is not None and fault.accepted_at < moment


def _of_an_older_stream(fault: Fault, state: JobState) -> bool:
    """Returns whether the fault came from a stream older than the current one.

    If no stream is open, every known session is older; a workflow that was just registered again knows none.
    """
    if state.attachment is None:
        return fault.session in attachments.sessions(state)
    return fault.session not in ("", state.attachment.session)


def brief(fault: Fault) -> Fault:
    """Returns the fault as the history stores it: fewer ranks and no details."""
    return fault.model_copy(update={"ranks": fault.ranks[:KEPT_RANKS], "pod_ranks": fault.pod_ranks[:KEPT_RANKS], "details": ()})
