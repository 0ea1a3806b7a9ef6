"""Summary of the accounts of jobs: goodput, costs of faults, and times to recovery. Pure.

Every number of `rekindle report` is computed here, whatever the output.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from rekindle.model.account import Account, Bucket, Row
from rekindle.model.base import Value
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.account import marks

HOUR = 3600.0

DAMAGE = (Outcome.RECOVERED, Outcome.GIVEN_UP, Outcome.ESCALATE, Outcome.CANCELLED)
"""Outcomes of incidents in which something was done. In the others training was left alone."""


class Share(Value):
    """Seconds of a bucket."""

    bucket: Bucket
    seconds: float
    """Seconds of the job, or accelerator seconds of all jobs."""
    percent: float


class Cost(Value):
    """Costs of the incidents that have something in common."""

    name: str
    incidents: int
    seconds: float
    """Seconds in which training stood or did steps again because of them."""


class Times(Value):
    """Times in seconds from the start of an incident to its verdict, of incidents that recovered the job."""

    count: int
    median: float
    p95: float
    """Ninety-five of a hundred incidents were faster (nearest rank)."""
    worst: float


class RestartsAlone(Value):
    """Estimate of the same time, if each recovered fault had led to a restart of the job."""

    seconds_of_one: float
    """Seconds that a restart costs: the median of the job's own ones, or its start-up if it has had none."""
    measured: int
    """Number of restarts of the job on which that is based."""
    goodput: float


class Incidents(Value):
    count: int
    restarts: int
    """Number of incidents in which processes of the whole job began again."""
    seconds_between_faults: float | None
    """Mean time between the starts of incidents that a fault began, in seconds of wall time in which incidents are known one by
    one. None: there was no fault."""
    recovery: Times | None
    """Times to recovery. None: nothing was recovered."""
    recovery_without_people: Times | None
    """The same without the time in which a person was waited for."""
    by_cause: tuple[Cost, ...]
    by_mode: tuple[Cost, ...]
    by_node: tuple[Cost, ...]
    by_code: tuple[Cost, ...]


class Summary(Value):
    name: str
    """Name of the job; `all jobs` for several."""
    id: str = ""
    since: float
    until: float
    ranks: int
    """Number of accelerators: the ranks of the job, or of all jobs."""
    seconds: float
    """Wall time of the job, or accelerator seconds of all jobs. The buckets sum to it."""
    accelerator_hours: float
    goodput: float
    """Share of the time that was training, from 0 to 1."""
    buckets: tuple[Share, ...]
    incidents: Incidents
    restarts_alone: RestartsAlone | None = None
    lost_price: float | None = None
    """Price of the time that was not training. None: no price was given."""
    complete_since: float | None = None
    """Time since which incidents are known one by one. None: all are."""


def of_job(name: str, job_id: str, account: Account, *, since: float = 0.0, price: float | None = None) -> Summary:
    """Returns the summary of a job.

    Args:
        account: as of now.
        since: start of the time to report. Earlier incidents are left out.
        price: price of one accelerator for an hour.
    """
    begins = min(max(since, account.since), account.until)
    wall = account.until - begins
    rows = [row for row in account.rows if row.since >= since]
    seconds, complete_since = marks.within(account, begins), _complete_since(account, since)
    known = max(begins, complete_since or 0.0)
    ranks = max(account.ranks, 1)
    return Summary(
        name=name,
        id=job_id,
        since=begins,
        until=account.until,
        ranks=account.ranks,
        seconds=wall,
        accelerator_hours=wall * ranks / HOUR,
        goodput=_ratio(seconds.get(Bucket.TRAINING, 0.0), wall),
        buckets=_shares(seconds, wall),
        incidents=_incidents(rows, account.until - known),
        restarts_alone=_restarts_alone(rows, account, known),
        lost_price=_price(seconds, ranks, price),
        complete_since=complete_since,
    )


def of_all(accounts: Sequence[tuple[str, Account]], *, since: float = 0.0, price: float | None = None) -> Summary:
    """Returns the summary of several jobs, weighted by their accelerators.

    Args:
        accounts: name and account of each job, as of now.
    """
    each = [(of_job(name, "", account, since=since), account) for name, account in accounts]
    seconds = dict.fromkeys(Bucket, 0.0)
    for summary, account in each:
        for share in summary.buckets:
            seconds[share.bucket] += share.seconds * max(account.ranks, 1)
    whole = sum(summary.seconds * max(account.ranks, 1) for summary, account in each)
    rows = [row for _, account in each for row in account.rows if row.since >= since]
    kept = [summary.complete_since for summary, _ in each if summary.complete_since]
    return Summary(
        name="all jobs",
        since=min((summary.since for summary, _ in each), default=since),
        until=max((summary.until for summary, _ in each), default=since),
        ranks=sum(account.ranks for _, account in each),
        seconds=whole,
        accelerator_hours=whole / HOUR,
        goodput=_ratio(seconds[Bucket.TRAINING], whole),
        buckets=_shares(seconds, whole),
        incidents=_incidents(rows, sum(summary.until - max(summary.since, summary.complete_since or 0.0) for summary, _ in each)),
        lost_price=_price(seconds, 1, price),
        complete_since=max(kept, default=None),
    )


def _shares(seconds: dict[Bucket, float], whole: float) -> tuple[Share, ...]:
    return tuple(
        Share(bucket=bucket, seconds=seconds.get(bucket, 0.0), percent=100 * _ratio(seconds.get(bucket, 0.0), whole))
        for bucket in Bucket
    )


def _incidents(rows: Sequence[Row], wall: float) -> Incidents:
    damage = [row for row in rows if row.outcome in DAMAGE]
    faults = [row for row in damage if row.cause != "request"]
    recovered = [row for row in damage if row.outcome is Outcome.RECOVERED]
    return Incidents(
        count=len(rows),
        restarts=sum(row.restarts for row in rows),
        seconds_between_faults=wall / len(faults) if faults else None,
        recovery=_times([row.seconds for row in recovered]),
        recovery_without_people=_times([row.seconds - row.waited for row in recovered]),
        by_cause=_costs((row.cause, row) for row in damage),
        by_mode=_costs((row.mode.value, row) for row in damage),
        by_node=_costs((row.node, row) for row in damage),
        by_code=_costs((row.code, row) for row in damage),
    )


def _times(seconds: list[float]) -> Times | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    nearest = -(-95 * len(ordered) // 100) - 1
    return Times(count=len(ordered), median=median(ordered), p95=ordered[nearest], worst=ordered[-1])


def _costs(named: Iterable[tuple[str, Row]]) -> tuple[Cost, ...]:
    """Returns the costs by name, the highest first. Incidents without a name are left out."""
    found: dict[str, list[Row]] = {}
    for name, row in named:
        if name:
            found.setdefault(name, []).append(row)
    costs = (Cost(name=name, incidents=len(rows), seconds=sum(row.cost for row in rows)) for name, rows in found.items())
    return tuple(sorted(costs, key=lambda cost: (-cost.seconds, cost.name)))


def _restarts_alone(rows: Sequence[Row], account: Account, known: float) -> RestartsAlone | None:
    wall = account.until - known
    recovered = [row for row in rows if row.outcome is Outcome.RECOVERED and row.cause != "request"]
    restarts = [row.cost for row in recovered if row.mode is Mode.JOB_RESCHEDULING]
    one = median(restarts) if restarts else account.seconds.get(Bucket.START_UP, 0.0)
    if not recovered or not one or wall <= 0:
        return None
    cheaper = [row for row in recovered if row.mode is not Mode.JOB_RESCHEDULING]
    more = sum(one - row.cost for row in cheaper)
    trained = marks.within(account, known)[Bucket.TRAINING]
    return RestartsAlone(seconds_of_one=one, measured=len(restarts), goodput=_ratio(trained, wall + more))


def _price(seconds: dict[Bucket, float], ranks: int, price: float | None) -> float | None:
    if price is None:
        return None
    return sum(spent for bucket, spent in seconds.items() if bucket is not Bucket.TRAINING) * ranks / HOUR * price


def _complete_since(account: Account, since: float) -> float | None:
    first = account.rows[0].since if account.rows else 0.0
    return first if account.older_rows and since < first else None


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
