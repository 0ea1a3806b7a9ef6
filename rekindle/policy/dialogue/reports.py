"""Assigns reports to orders, and recognizes repeated reports. Used by `workflows.dialogue`."""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from rekindle.model.dialogue import Heard, Order, Report, ReportKind

KEPT = 20
"""Number of reports that are remembered. A client repeats one within milliseconds, a gateway within 5 s."""

ANSWERS = {
    "stop_train": ReportKind.STOP_COMPLETE,
    "pause_train": ReportKind.STOP_COMPLETE,
    "switch links": ReportKind.LINKS,
    "stress test": ReportKind.STRESS,
    "on_global_rank": ReportKind.STRATEGIES,
    "hot switch": ReportKind.STRATEGIES,
    "change_strategy": ReportKind.STATUS,
    "fault_nodes_exit": ReportKind.STATUS,
}
"""Kinds of reports by the first action of an order. `new pod running` and `stop switch` are not answered."""


def answer_to(order: Order) -> ReportKind | None:
    """Returns the kind of report that answers an order. None: no report does."""
    return ANSWERS.get(order.actions[0]) if order.actions else None


def mark(report: Report) -> str:
    """Returns a digest of the report, which is equal for reports with equal content."""
    return sha256(report.model_dump_json().encode()).hexdigest()[:16]


def is_repeated(heard: Heard, before: Iterable[Heard]) -> bool:
    """Returns whether the report came before, either in the same call, which had no answer in time, or in another one of this
    attempt."""
    return any(heard.id == one.id or heard.mark == one.mark for one in before)


def of_an_earlier_attempt(heard: Sequence[Heard]) -> list[Heard]:
    """Returns the records for a new attempt. Repeated calls are still recognized. Equal content is not, since it may answer a new
    order."""
    return [Heard(id=one.id, mark="") for one in heard]
