"""Which nodes a public fault concerns, as it is told that it occurs, recovers, or came once. Pure, with the moment given.

What is kept of a fault is one value, so that a gateway that dies forgets nothing: also the end that is to come.
"""

from collections.abc import Mapping, Sequence

from rekindle.model.base import Value
from rekindle.model.public_fault import LEAST_SECONDS, LEVELS, SENDERS, PublicFault
from rekindle.model.rules import Rules

SHOWN = int(1000 * LEAST_SECONDS)


class Concerned(Value):
    """One node of a fault. Moments are milliseconds by the gateway's clock."""

    devices: tuple[int, ...]
    told_at: int
    fault_time: int = 0
    """By the sender's clock, as it was told with the fault or its end."""

    until: int = 0
    """When it is over; 0: nobody says."""

    hidden: bool = False
    """It was told that it is over before it was told that it occurs."""

    def is_over(self, now: int) -> bool:
        return bool(self.until) and self.until <= now


Concerns = Mapping[str, Concerned]
"""By node."""


def told(known: Concerns, fault: PublicFault, now: int) -> Concerns:
    """Whom the fault concerns, behind one more message of it. Repeated, a message changes nothing."""
    found = {node: one for node, one in known.items() if not one.is_over(now)}
    named: dict[str, tuple[int, ...]] = {}
    for at in fault.influence:
        named[at.node] = tuple(sorted({*named.get(at.node, ()), *at.device_ids}))
    for node, devices in named.items():
        before = found.get(node)
        if fault.assertion == "recover":
            found[node] = _recovered(before, fault, devices, now)
        elif before is None or (before.until and fault.fault_time > before.fault_time):
            until = now + SHOWN if fault.assertion == "once" else 0
            found[node] = Concerned(devices=devices, told_at=now, fault_time=fault.fault_time, until=until)
        else:
            joined = tuple(sorted({*before.devices, *devices}))
            found[node] = before.model_copy(update={"devices": joined, "hidden": False})
    return found


def _recovered(before: Concerned | None, fault: PublicFault, devices: tuple[int, ...], now: int) -> Concerned:
    if before is None:
        return Concerned(devices=devices, told_at=now, fault_time=fault.fault_time, until=now + SHOWN, hidden=True)
    ends = before.until or max(now, before.told_at + SHOWN)
    return before.model_copy(update={"until": ends, "fault_time": max(before.fault_time, fault.fault_time)})


def is_shown(known: Concerns, now: int) -> bool:
    """Whether it stands on any node."""
    return any(not one.hidden and not one.is_over(now) for one in known.values())


def senders(rules: Rules) -> frozenset[str]:
    """Who may send them: ClusterD's own, and whom a rule names."""
    return frozenset(SENDERS) | _named(rules, "by")


def problem_of_code(code: str, rules: Rules) -> str:
    """Why nobody knows what the code means; empty: somebody does."""
    if code in LEVELS or code in _named(rules, "code"):
        return ""
    return f"faultCode: {code!r} has no level, and no rule for public faults names it"


def _named(rules: Rules, field: str) -> frozenset[str]:
    """Words without a pattern in rules for public faults."""
    matches = (one.rule.report for one in rules.by_source["report"] if one.rule.report)
    words: Sequence[str] = [word for one in matches if "public-fault" in one.source for word in getattr(one, field)]
    return frozenset(word for word in words if "*" not in word)
