"""Which order a report answers, and whether it was heard before. Asked by `workflows.dialogue`."""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from rekindle.model.recovery import Heard, Order, Report, ReportKind

KEPT = 20
"""Reports that are known again. A client repeats one within milliseconds, a gateway within 5 s."""

ANSWERS = {
    "stop_train": ReportKind.STOP_COMPLETE,
    "pause_train": ReportKind.STOP_COMPLETE,
    "switch links": ReportKind.LINKS,
    "stress test": ReportKind.STRESS,
    "on_global_rank": ReportKind.STRATEGIES,
    "hot switch": ReportKind.STRATEGIES,
    "change_strategy": ReportKind.STATUS,
}
"""By the first action of an order. `new pod running` and `stop switch` are answered by nothing of their own."""


def answer_to(order: Order) -> ReportKind | None:
    """The kind of report that answers an order; None: none does."""
    return ANSWERS.get(order.actions[0]) if order.actions else None


def mark(report: Report) -> str:
    """The same for two reports that say the same."""
    return sha256(report.model_dump_json().encode()).hexdigest()[:16]


def is_repeated(heard: Heard, before: Iterable[Heard]) -> bool:
    """Whether it came before: in the same call, which was not answered in time, or in another one of this attempt."""
    return any(heard.id == one.id or heard.mark == one.mark for one in before)


def of_an_earlier_attempt(heard: Sequence[Heard]) -> list[Heard]:
    """The calls are known again; what they said may be said again, as the answer to an order of the new attempt."""
    return [Heard(id=one.id, mark="") for one in heard]
