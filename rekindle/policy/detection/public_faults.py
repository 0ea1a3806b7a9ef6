"""Tracks the nodes of a public fault through its messages: it occurs, recovers, or came once. Pure, with the time as an argument.

The state of a fault, including its future end, is one value that is stored. A gateway that dies loses nothing.
"""

from collections.abc import Mapping, Sequence

from rekindle.model.base import Value
from rekindle.model.public_fault import LEAST_SECONDS, LEVELS, SENDERS, PublicFault
from rekindle.model.rules import Rules

SHOWN = int(1000 * LEAST_SECONDS)


class Concerned(Value):
    """A node with the fault. Times are milliseconds by the gateway's clock."""

    devices: tuple[int, ...]
    told_at: int
    fault_time: int = 0
    """Latest time in the messages of the fault or its end, by the sender's clock."""

    until: int = 0
    """Time at which the fault is over. 0: unknown."""

    hidden: bool = False
    """True if the end of the fault was reported before its beginning. The fault is not shown."""

    def is_over(self, now: int) -> bool:
        return bool(self.until) and self.until <= now


Concerns = Mapping[str, Concerned]
"""Nodes with the fault, by name."""


def told(known: Concerns, fault: PublicFault, now: int) -> Concerns:
    """Returns the nodes with the fault after one more message. A repeated message changes nothing."""
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
    """Returns whether the fault is present and shown on any node."""
    return any(not one.hidden and not one.is_over(now) for one in known.values())


def senders(rules: Rules) -> frozenset[str]:
    """Returns the accepted senders: those of ClusterD, and those that a rule names."""
    return frozenset(SENDERS) | _named(rules, "by")


def problem_of_code(code: str, rules: Rules) -> str:
    """Returns why the meaning of the code is unknown. Empty: it is known."""
    if code in LEVELS or code in _named(rules, "code"):
        return ""
    return f"faultCode: {code!r} has no level, and no rule for public faults names it"


def _named(rules: Rules, field: str) -> frozenset[str]:
    """Returns the words in rules for public faults that are no patterns."""
    matches = (one.rule.report for one in rules.by_source["report"] if one.rule.report)
    words: Sequence[str] = [word for one in matches if "public-fault" in one.source for word in getattr(one, field)]
    return frozenset(word for word in words if "*" not in word)
