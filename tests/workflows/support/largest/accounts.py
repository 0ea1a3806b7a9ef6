"""Largest account of a job's time."""

from rekindle.model import account
from rekindle.model.account import Account, Bucket, Holding, Row, Span, Stand, Stretch
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.account import marks
from rekindle.policy.account.ledger import KEPT_SPANS
from rekindle.policy.account.spans import LONGEST_CODE, LONGEST_NODE

STRETCH = Stretch(began=1e9 / 3, ended=2e9 / 3, steps=10**9, checkpoint=1e9 / 7, again=1e9 / 7)
HOLDING = Holding(state_bytes=2**63 - 1, checkpoint_every=2**63 - 1)


def worn_account() -> Account:
    """Returns the account of a job with as many incidents as are kept, of which some are not counted yet."""
    everything = dict.fromkeys(Bucket, 1000000000.0 / 3)
    spans = tuple(Span(since=1e9 / 3, until=2e9 / 3, bucket=Bucket.NOT_RECOVERED) for _ in range(30))
    rows = [
        Row(
            number=10**6 + number,
            since=1e9 / 3,
            seconds=1e6 / 3,
            mode=Mode.PROCESS_RESCHEDULING,
            outcome=Outcome.RECOVERED,
            cause="sub_health",
            code="c" * LONGEST_CODE,
            node="n" * LONGEST_NODE,
            standbys=True,
            stopped=1e9 / 3,
            waited=1e6 / 3,
            spans=spans if number >= account.KEPT_ROWS - KEPT_SPANS else (),
            stood=dict(list(everything.items())[:6]),
            again=1e6 / 3,
        )
        for number in range(account.KEPT_ROWS)
    ]
    return Account(
        since=1e9 / 3,
        until=2e9 / 3,
        seconds=everything,
        stands=(Stand(stretch=STRETCH, until=1e9 / 3),) * 5,
        current=STRETCH,
        rows=tuple(rows),
        holding=HOLDING,
        paced=STRETCH,
        marks=(account.Mark(until=1e9 / 3, seconds=everything),) * marks.MOST,
    )
