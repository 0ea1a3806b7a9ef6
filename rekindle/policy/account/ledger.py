"""Ledger of a job: each report and each incident is entered once. Pure.

Time is counted up to the beginning of the last stretch. What comes after it may still be changed by an incident.
"""

from collections.abc import Sequence

from rekindle.model.account import KEPT_ROWS, Account, Bucket, Row, Stand, Stretch, TimeReport
from rekindle.model.incident import Incident
from rekindle.policy.account import spans

KEPT_SPANS = 3
"""Number of latest incidents whose spans are kept until training goes on. The time of older ones is then not yet recovered."""

MOST_STANDS = 20
"""Maximum number of stretches that wait for the end of an incident to be counted."""


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
    account = account.model_copy(update={"step": report.step, "ranks": report.ranks, "final": final, "current": now})
    if is_new:
        stand = Stand(stretch=_ended(before, report.before), until=now.began)
        account = account.model_copy(update={"stands": (*account.stands, stand)})
    return account if recovering and len(account.stands) < MOST_STANDS else settled(account)


def _ended(account: Account, before: Stretch | None) -> Stretch:
    """Returns the stretch that has ended, as far as it is known. It has no length if the job did not train."""
    current = account.current
    if before and before.ended >= (current.ended if current else account.until):
        return before.model_copy(update={"began": current.began}) if current else before
    return current or Stretch(began=account.until, ended=account.until)


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
        account = _with_stretch(account, stand.stretch)
        account = _with_stand(account, account.until, stand.until, first=not stand.stretch.steps)
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
    return account.model_copy(update={"seconds": _sum(account.seconds, seconds), "rows": rows, "until": ended})


def _with_stand(account: Account, since: float, until: float, *, first: bool) -> Account:
    rows, seconds = account.rows, account.seconds
    for span, number in spans.split(since, until, account.rows, first=first):
        spent = {span.bucket: span.until - span.since}
        seconds = _sum(seconds, spent)
        if row := next((row for row in rows if row.number == number), None):
            rows = _replaced(rows, row.model_copy(update={"stood": _sum(row.stood, spent)}))
    return account.model_copy(update={"seconds": seconds, "rows": rows, "until": max(until, since)})


def as_of(account: Account, now: float, stands_since: float | None) -> Account:
    """Returns the account with everything counted up to now, as far as it is known.

    Training is taken to go on since the last report, unless a fault stands.

    Args:
        stands_since: start of the incident, or of the fault, because of which training stands. None: it trains.
    """
    account = settled(account)
    current = account.current
    if current is None:
        return _with_stand(account, account.until, now, first=True) if account.since else account
    if account.final:
        return _with_stretch(account, current)
    trains_until = now if stands_since is None else min(max(stands_since, current.ended), now)
    account = _with_stretch(account, current.model_copy(update={"ended": max(current.ended, trains_until)}))
    left = max(now - account.until, 0.0)
    spent = {Bucket.NOT_RECOVERED: left} if left else {}
    return account.model_copy(update={"seconds": _sum(account.seconds, spent), "until": account.until + left})


def _without_spans(row: Row) -> Row:
    return row.model_copy(update={"spans": ()}) if row.spans else row


def _replaced(rows: Sequence[Row], row: Row) -> tuple[Row, ...]:
    return tuple(row if one.number == row.number else one for one in rows)


def _sum(one: dict[Bucket, float], other: dict[Bucket, float]) -> dict[Bucket, float]:
    return {bucket: found for bucket in Bucket if (found := one.get(bucket, 0.0) + other.get(bucket, 0.0))}
