"""Metrics of a gateway: its streams, the orders on them, and what it refuses."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge

from rekindle.ids import ErrorTypes

STREAMS = Gauge("rekindle_streams", "Streams of training sides at this gateway.")
UNANSWERED = Gauge(
    "rekindle_orders_unanswered", "Streams whose last order wants a report, and on which no report has arrived since."
)
OLDEST = Gauge("rekindle_oldest_unanswered_seconds", "Age of the oldest order without a report; 0: there is none.")
REFUSED = Counter("rekindle_refused", "Calls and messages that were refused.", ("reason",))

SENDER = "sender.refused"
"""Reason if the caller may not speak for the job."""

REASONS = {SENDER, *(value for name, value in vars(ErrorTypes).items() if name.isupper())}


for _reason in REASONS:  # so that `increase` sees the first refusal
    REFUSED.labels(_reason)


def expose(streams: Callable[[], int], unanswered: Callable[[], list[float]]) -> None:
    """Lets the gauges show the number of streams, and the ages of orders without a report in seconds."""
    STREAMS.set_function(streams)
    UNANSWERED.set_function(lambda: len(unanswered()))
    OLDEST.set_function(lambda: max(unanswered(), default=0.0))


def refused(reason: str) -> None:
    """Counts a refusal. A workflow of others may give any reason."""
    REFUSED.labels(reason if reason in REASONS else "other").inc()
