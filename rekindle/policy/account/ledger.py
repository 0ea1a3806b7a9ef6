"""Ledger of a job: each report and each incident is entered once. Pure.

Time is counted up to the beginning of the last stretch. What comes after it may still be changed by an incident.
"""

import math
from collections.abc import Sequence

from rekindle.model.account import KEPT_ROWS, SILENT, Account, Bucket, Row, Stand, Stretch, TimeReport
from rekindle.model.incident import Incident
from rekindle.model.mode import Outcome
from rekindle.policy.account import marks, spans

KEPT_SPANS = 3
"""Number of latest incidents whose spans are kept until training goes on. The time of older ones is then not yet recovered."""

MOST_STANDS = 20
"""Maximum number of stretches that wait for the end of an incident to be counted."""

CLOCKS = 60.0
"""Seconds by which the clock of a rank may be ahead, so that its first step begins after it was reported."""

STEPS_SILENT = 3
"""Number of usual steps by which the time of a silent job is longer, as a slow step is reported after its end."""

TIMED = 10
"""Number of steps that a stretch needs to time a step."""

FAILED = (Outcome.CANCELLED, Outcome.ESCALATE, Outcome.GIVEN_UP)
"""Outcomes of incidents after which training stands if it stood before."""

TRAINED = {Bucket.TRAINING, Bucket.CHECKPOINT, Bucket.AGAIN}


def registered(account: Account, now: float) -> Account:
    """Begins to count when the job is registered."""
    return account if account.since else account.model_copy(update={"since": now, "until": now})


def told(account: Account, report: TimeReport, *, recovering: bool) -> Account:
    """Enters a report of the training side. Repeated and outdated ones change nothing.

    Args:
        recovering: an incident is running, so that it is not known yet why training stood.
    """
    account = registered(account, (report.before or report.now).began)  # an earlier version did not count
    before, current, now = account, account.current, report.now
    if current and (now.began < current.began or (now.began == current.began and now.ended < current.ended)):
        return account
    is_new = current is None or now.began > current.began
    final = report.final or (account.final and not is_new)
    holding = report.holding or account.holding
    paced = _paced(account.paced, report)
    known = {"step": report.step, "ranks": report.ranks, "final": final, "current": now, "holding": holding, "paced": paced}
    account = account.model_copy(update=known)
    if is_new:
        account = account.model_copy(update={"stands": (*account.stands, *_ended(before, report))})
    return account if recovering and len(account.stands) < MOST_STANDS else settled(account)


def _paced(before: Stretch | None, report: TimeReport) -> Stretch | None:
    """Returns the stretch by which a step is timed. The first step after a recovery says little, as it waits for other ranks."""
    timed = [one for one in (before, report.before, report.now) if one and one.step_seconds]
    long = [one for one in timed if one.steps >= TIMED]
    return long[-1] if long else max(timed, key=lambda one: one.steps, default=None)


def _ended(account: Account, report: TimeReport) -> tuple[Stand, ...]:
    """Returns what has ended, as far as it is known: two stretches, if no report of the last one has arrived."""
    current, before, until = account.current, report.before, report.now.began
    known = current or Stretch(began=account.until, ended=account.until)
    if before is None or min(before.ended, until) < known.ended:
        return (Stand(stretch=known, until=until),)
    before = before.model_copy(update={"began": min(before.began, until), "ended": min(before.ended, until)})
    if current and before.began <= current.ended:
        return (Stand(stretch=before.model_copy(update={"began": current.began}), until=until),)
    lost = (Stand(stretch=current, until=before.began),) if current else ()
    return (*lost, Stand(stretch=before, until=until))


def stepped(account: Account, now: float) -> Account:
    """Notes that a job has completed its first step. An earlier version of the training side reports no times."""
    return account if account.current or account.stepped_at else account.model_copy(update={"stepped_at": now})


def attached(account: Account, now: float, ranks: int) -> Account:
    """Takes a job to train from now on whose training side does not report its steps."""
    if account.current:
        return account
    account = registered(account, now)
    began = max(now, account.since)
    stand = Stand(stretch=Stretch(began=account.until, ended=account.until), until=began)
    return account.model_copy(update={"current": Stretch(began=began, ended=began), "ranks": ranks, "stands": (stand,)})


def concluded(account: Account, incident: Incident, *, reports_steps: bool) -> Account:
    """Enters an incident that has ended.

    Args:
        reports_steps: the training side reports when training stood. Otherwise that is derived from the incident.
    """
    row, stood, current = spans.row_of(incident), spans.stood(incident), account.current
    if stood and current and not reports_steps:
        ended, began = max(stood[0], current.began), max(stood[1], stood[0], current.began)
        stand = Stand(stretch=current.model_copy(update={"ended": ended, "steps": 1}), until=began)
        account = account.model_copy(update={"stands": (*account.stands, stand), "current": Stretch(began=began, ended=began)})
    uncounted = len(account.rows) + 1 - KEPT_SPANS
    rows = (*(_without_spans(one) if place < uncounted else one for place, one in enumerate(account.rows)), row)
    dropped = max(len(rows) - KEPT_ROWS, 0)
    return settled(account.model_copy(update={"rows": rows[dropped:], "older_rows": account.older_rows + dropped}))


def settled(account: Account) -> Account:
    """Counts each stretch that has ended, and the time until training went on."""
    for stand in account.stands:
        account = _with_stand(account, stand.stretch.began)  # no report of an earlier time has arrived
        account = _with_stand(_with_stretch(account, stand.stretch), stand.until)
    rows = tuple(_without_spans(row) if row.until <= account.until else row for row in account.rows)
    return account.model_copy(update={"stands": (), "rows": rows})


def _with_stretch(account: Account, stretch: Stretch) -> Account:
    began = max(stretch.began, account.until)  # clocks differ, and a job may be registered after it has begun
    ended = max(stretch.ended, began)
    seconds = stretch.model_copy(update={"began": began, "ended": ended}).seconds
    before = next((row for row in reversed(account.rows) if row.since <= stretch.began), None)
    rows = account.rows
    if before and seconds[Bucket.AGAIN]:
        rows = _replaced(rows, before.model_copy(update={"again": before.again + seconds[Bucket.AGAIN]}))
    return marks.marked(account.model_copy(update={"seconds": _sum(account.seconds, seconds), "rows": rows, "until": ended}))


def _with_stand(account: Account, until: float) -> Account:
    """Counts the time up to `until`, in which training stood."""
    is_first = not account.seconds.keys() & TRAINED
    if not (is_first and 0 < account.stepped_at < until - CLOCKS):
        return _divided(account, until, is_first=is_first)
    return _with(_divided(account, min(until, account.stepped_at), is_first=True), Bucket.UNKNOWN, until)


def _divided(account: Account, until: float, *, is_first: bool) -> Account:
    """Counts the time up to `until` as the incidents divide it."""
    for span, number in spans.split(account.until, until, account.rows, first=is_first):
        account = _with(account, span.bucket, span.until)
        if row := next((row for row in account.rows if row.number == number), None):
            row = row.model_copy(update={"stood": _sum(row.stood, {span.bucket: span.until - span.since})})
            account = account.model_copy(update={"rows": _replaced(account.rows, row)})
    return account


def _with(account: Account, bucket: Bucket, until: float) -> Account:
    """Counts the time up to `until` in one bucket."""
    until = max(until, account.until)
    seconds = _sum(account.seconds, {bucket: until - account.until})
    return marks.marked(account.model_copy(update={"seconds": seconds, "until": until}))


def as_of(account: Account, now: float, stands_since: float | None) -> Account:
    """Returns the account with everything counted up to now, as far as it is known.

    Training is taken to go on since the last report, unless a fault stands, or reports that are due have not arrived.

    Args:
        stands_since: start of the incident, or of the fault, because of which training stands. None: it trains.
    """
    account = settled(account)
    current = account.current
    if current is None:
        return _with_stand(account, now) if account.since else account
    if account.final:
        return _with_stretch(account, current)
    failed = _not_recovered(account.rows, current, stands_since)
    stands = min((began for began in (stands_since, *(row.stopped for row in failed)) if began), default=now)
    trains_until = min(stands, _heard_until(current), now)
    account = _with_stretch(account, current.model_copy(update={"ended": max(current.ended, trains_until)}))
    account = _with(account, Bucket.UNKNOWN, min(stands, now))
    return _divided(account, now, is_first=False) if failed else _with(account, Bucket.NOT_RECOVERED, now)


def as_reported(account: Account) -> Account:
    """Returns the account up to the end of the last report. Seconds of a bucket never decrease from report to report.

    A time of which it is not known yet why training stood is left out with what follows it.
    """
    stretch = account.stands[0].stretch if account.stands else account.current
    return _with_stretch(_with_stand(account, stretch.began), stretch) if stretch else account


def _heard_until(current: Stretch) -> float:
    """Returns the time until which training goes on without another report. A side that reports no steps is silent for ever."""
    each = current.step_seconds
    return current.ended + SILENT + STEPS_SILENT * each if each is not None else math.inf


def _not_recovered(rows: Sequence[Row], current: Stretch, stands_since: float | None) -> Sequence[Row]:
    """Returns the latest incidents that have stopped training and did not bring it back, as far as no step has followed.

    A side that reports no steps may have trained on, unless a fault stands, or the job has ended in the incident.
    """
    found: list[Row] = []
    for row in reversed(rows):
        if row.outcome not in FAILED or row.until <= current.ended or row.stopped < current.began:
            break
        found.insert(0, row)
    is_sure = current.steps or stands_since or (found and found[-1].outcome is Outcome.CANCELLED)
    return found if is_sure else ()


def _without_spans(row: Row) -> Row:
    return row.model_copy(update={"spans": ()}) if row.spans else row


def _replaced(rows: Sequence[Row], row: Row) -> tuple[Row, ...]:
    return tuple(row if one.number == row.number else one for one in rows)


def _sum(one: dict[Bucket, float], other: dict[Bucket, float]) -> dict[Bucket, float]:
    return {bucket: found for bucket in Bucket if (found := one.get(bucket, 0.0) + other.get(bucket, 0.0))}
