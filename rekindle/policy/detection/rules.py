"""Evaluates the rules of the installation for the facts that a cluster shows about nodes and pods. Pure.

Used by `policy.detection.sighting`, which turns the results into faults, and by the explanation of a node.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from rekindle.model.bounds import cut
from rekindle.model.cluster import Condition, Node, NodeReport, Pod
from rekindle.model.fault import CORDONED
from rekindle.model.keys import HEALTH
from rekindle.model.rules import Named, Rule, Rules, Then
from rekindle.policy.detection.device_names import ALSO

WELL = "well"
"""Value of the annotation `rekindle.io/health` that overrides every rule by which something is wrong."""

LONGEST_SAW = 120
LONGEST_CODE = 80
MOST_DEVICES = 64
"""Maximum number of devices of one fact."""

LONGEST_MESSAGE = 10_000
"""Maximum number of characters in which devices are searched."""

ERROR_CODE = re.compile(r"ErrorCode:(\S+)")
"""Error code in a message of NVSentinel. It writes several errors into one condition, each followed by a semicolon."""

MOST_CODES = 10
"""Maximum number of codes of one error that are read."""

NO_ROOM = ";..."
"""End of a message of NVSentinel that would have exceeded its limit of 1,024 bytes."""

NEVER = datetime.min.replace(tzinfo=UTC)


class Fact(NamedTuple):
    """Fact that the cluster shows about a node or a pod."""

    source: str
    """Source of the rules that may take the fact: `condition`, `taint`, ..."""

    values: Mapping[str, str]
    """Values that these rules match."""

    saw: str
    """Description in a few words."""

    code: str
    message: str
    since: datetime | None = None
    devices: tuple[str, ...] = ()
    told: datetime | None = None
    """Time of the last report of the fact. None: unknown."""
    until: datetime | None = None
    """Time at which the fact expires by itself. None: it does not."""

    @property
    def is_condition(self) -> bool:
        """Returns whether this is a condition of a node or a pod, which lasts until its status changes."""
        return self.source in ("condition", "podCondition")


class Finding(NamedTuple):
    """A fact with the rule that gives it a meaning."""

    named: Named
    fact: Fact
    given: float = 0.0
    """Minimum seconds, by the job's own settings, that the fact must last before it counts. The time of the rule applies if it is
    longer."""

    @property
    def then(self) -> Then:
        return self.named.rule.then

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the finding is about, by local id, UUID or PCI address. Several names of one device are joined by `=`.
        Empty: the whole node."""
        if self.fact.devices or not self.named.rule.device:
            return self.fact.devices
        found = [one for one in map(self._named, self.named.rule.device) if one]
        if len(found) > 1 and all(len(names) == 1 for names in found):
            return (ALSO.join(names[0] for names in found),)
        return found[0][:MOST_DEVICES] if found else ()

    def _named(self, expression: str) -> tuple[str, ...]:
        found = _expression(expression).findall(self.fact.message[:LONGEST_MESSAGE])
        return tuple(dict.fromkeys(filter(None, found)))


@lru_cache(maxsize=500)
def _expression(text: str) -> re.Pattern[str]:
    return re.compile(text)


def of_node(node: Node, rules: Rules) -> list[Finding]:
    """Returns what is wrong with a node by the rules that are believed. Readiness is not included, since no rule decides about
    it."""
    return [one for one in said_of(node, rules) if one.named.name not in rules.unbelieved]


def said_of(node: Node, rules: Rules) -> list[Finding]:
    """Returns what is wrong with a node by all rules. If a person has marked it as well, only maintenance is returned."""
    found = _findings(node_facts(node, rules), rules)
    return [one for one in found if one.then is Then.MAINTENANCE] if is_silenced(node) else found


def of_pod(pod: Pod, rules: Rules) -> list[Finding]:
    """Returns what is wrong with a pod, except for its end."""
    return _findings(_pod_facts(pod), rules)


def is_silenced(node: Node) -> bool:
    said = node.metadata.annotations.get(HEALTH, "")
    return said == WELL or said.startswith(f"{WELL}:")


def unused(node: Node, rules: Rules) -> list[Fact]:
    """Returns the facts of a node that no rule takes. Labels and annotations are not included."""
    marks = ("label", "annotation")
    return [fact for fact, named in decisions(node, rules) if named is None and fact.source not in marks]


def is_of_matter(report: NodeReport, rules: Rules) -> bool:
    """Returns whether a report can have an effect: a rule gives it a meaning, or reads it beside another report. Reports other
    than events are always kept, so that they can be shown as unused."""
    fact = _reported(report)
    is_asked_for = any(
        (rule.beside and rule.beside.takes(fact.values)) or (rule.healed and rule.healed.takes("report", fact.values))
        for rule in (named.rule for named in rules.rules)
    )
    means = any(rule.then is not Then.NOTHING for rule in _perhaps(fact, rules))
    return is_asked_for or report.source != "event" or means


def _perhaps(fact: Fact, rules: Rules) -> Iterator[Rule]:
    """Yields the rules of which one decides about a report, whatever else is reported."""
    for rule in (named.rule for named in rules.by_source["report"] if named.rule.takes(fact.values)):
        yield rule
        if rule.beside is None:
            return  # later rules never decide


def of_matter(conditions: Iterable[Condition], source: str, rules: Rules) -> tuple[Condition, ...]:
    """Returns the conditions that can have an effect, whatever else is shown: a rule gives them a meaning, or they end a fault.

    Args:
        source: `condition` or `podCondition`.
    """
    judging = [named.rule for named in rules.by_source[source] if named.rule.then is not Then.NOTHING]
    healing = [named.rule.healed for named in rules.by_source["report"] if named.rule.healed]

    def matters(fact: Fact) -> bool:
        return any(rule.takes(fact.values) for rule in judging) or any(one.takes(source, fact.values) for one in healing)

    return tuple(one for one in conditions if any(map(matters, _conditions((one,), source))))


def over_at(report: NodeReport, rules: Rules) -> datetime | None:
    """Returns when the report expires, by its own time or by the rules that may take it. None: it lasts as long as its object
    contains it."""
    lasting = [rule.lasts(report.source) for rule in _perhaps(_reported(report), rules) if rule.then is not Then.NOTHING]
    told = report.told or report.since
    known = [one for one in lasting if one is not None]
    by_rule = told + max(known) if told and known and len(known) == len(lasting) else None
    return min((moment for moment in (report.until, by_rule) if moment), default=None)


def decisions(node: Node, rules: Rules) -> list[tuple[Fact, Named | None]]:
    """Returns every fact with the rule that decides about it, even if a person has marked the node as well. Healed facts are left
    out."""
    return _decided(list(node_facts(node, rules)), rules)


def _findings(facts: Iterable[Fact], rules: Rules) -> list[Finding]:
    decided = _decided(list(facts), rules)
    return [Finding(named, fact) for fact, named in decided if named and named.rule.then is not Then.NOTHING]


def _decided(shown: Sequence[Fact], rules: Rules) -> list[tuple[Fact, Named | None]]:
    """Returns every fact with the rule that decides about it. A node may have thousands of events, so that each rule matches each
    event only once."""
    reports = [one for one in shown if one.source == "report"]
    beside = {
        named.name: [one for one in reports if named.rule.beside.takes(one.values)] for named in rules.rules if named.rule.beside
    }
    found = [(fact, _decides(fact, rules, beside)) for fact in shown]
    deciding = {named.name: named for _, named in found if named}
    over = {
        name: [one for one in shown if named.rule.healed.takes(one.source, one.values)]
        for name, named in deciding.items()
        if named.rule.healed
    }
    return [(fact, named) for fact, named in found if named is None or not _has_healed(fact, named, over.get(named.name, ()))]


def _has_healed(fact: Fact, named: Named, over: Iterable[Fact]) -> bool:
    """Returns whether a fact in `over` ended this one. It must not be older, and must be about all devices of this fact or about
    the whole node."""
    later = [one for one in over if one is not fact and _told(one) >= _told(fact)]
    devices = set(Finding(named, fact).devices) if later else set()
    return any(not (of := Finding(named, one).devices) or (devices and devices <= set(of)) for one in later)


def _told(fact: Fact) -> datetime:
    return fact.told or fact.since or NEVER


def _decides(fact: Fact, rules: Rules, beside: Mapping[str, Sequence[Fact]]) -> Named | None:
    """Returns the first rule that takes the fact, given the reports beside it. None: no rule does."""

    def takes(named: Named) -> bool:
        rule = named.rule
        return rule.takes(fact.values) and (rule.beside is None or any(one is not fact for one in beside[named.name]))

    return next(filter(takes, rules.by_source[fact.source]), None)


# ---- facts


def node_facts(node: Node, rules: Rules) -> Iterator[Fact]:
    """Yields the facts of a node. Labels and annotations are included only if a rule reads them."""
    yield from _conditions(node.status.conditions, "condition")
    if node.spec.unschedulable:
        yield Fact("cordoned", {}, CORDONED, "Cordoned", f"node {node.metadata.name} is cordoned")
    for taint in node.spec.taints:
        values = {"key": taint.key, "value": taint.value, "effect": taint.effect}
        saw = f"taint {taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
        yield Fact("taint", values, cut(saw, LONGEST_SAW), cut(taint.key, LONGEST_CODE), saw, taint.time_added)
    labels, annotations = (node.metadata.labels, rules.labels), (node.metadata.annotations, rules.annotations)
    for source, (marks, read) in (("label", labels), ("annotation", annotations)):
        for key, value in sorted((key, marks[key]) for key in read if key in marks):
            saw = cut(f"{source} {key}={value}", LONGEST_SAW)
            yield Fact(source, {"key": key, "value": value}, saw, cut(key, LONGEST_CODE), value)
    yield from map(_reported, node.status.reports)


def _reported(one: NodeReport) -> Fact:
    values = {"source": one.source, "code": one.code, "level": one.level, "by": one.by, "message": one.message}
    saw = f"{one.source} {one.code}{f' ({one.level})' if one.level else ''}"
    code = cut(one.code, LONGEST_CODE)
    return Fact("report", values, cut(saw, LONGEST_SAW), code, one.message, one.since, one.devices, one.told, one.until)


def _pod_facts(pod: Pod) -> Iterator[Fact]:
    yield from _conditions(pod.status.conditions, "podCondition")
    for one in pod.status.containers:
        ended = "" if one.exit_code is None else str(one.exit_code)
        values = {"name": one.name, "trains": "yes" if one.trains else "", "waiting": one.waiting}
        values |= {"exit_code": ended, "restarts": str(one.restarts)}
        words = [one.waiting and f"waits: {one.waiting}", ended and f"ended with {ended}"]
        words.append(f"started again {one.restarts} times" if one.restarts else "")
        saw = f"container {one.name} {', '.join(filter(None, words))}"
        code = one.waiting or (f"exit {ended}" if ended else "restarted")
        code = code if one.trains else f"{one.name} {code}"
        yield Fact("container", values, cut(saw, LONGEST_SAW), cut(code, LONGEST_CODE), one.message or saw)


def _conditions(conditions: Iterable[Condition], source: str) -> Iterator[Fact]:
    for one in conditions:
        if source == "condition" and one.type == "Ready":
            continue
        saw = cut(f"condition {one.type}={one.status}", LONGEST_SAW)
        for message, code in _messages(one):
            values = {"type": one.type, "status": one.status, "reason": one.reason, "message": message}
            yield Fact(source, values, saw, cut(code, LONGEST_CODE), message, one.last_transition_time)


def _messages(condition: Condition) -> Iterator[tuple[str, str]]:
    """Yields the messages of a condition with their codes, one for each error, since errors may be about different devices. A
    part without a code belongs to the error before it."""
    parts, reason = _parts(condition.message), condition.reason or condition.type
    if not any(map(ERROR_CODE.search, parts)):
        yield "; ".join(parts) if NO_ROOM in condition.message else condition.message, reason
        return
    errors: list[str] = []
    for part in parts:
        if errors and not ERROR_CODE.search(part):
            errors[-1] = f"{errors[-1]}; {part}"
        else:
            errors.append(part)
    for error in errors[:MOST_DEVICES]:
        codes = list(dict.fromkeys(ERROR_CODE.findall(error)))
        for code in codes[:MOST_CODES]:
            yield _with_code_alone(error, code), f"{reason} {code}"
        if not codes:
            yield error, reason


def _with_code_alone(error: str, code: str) -> str:
    """Returns the error without other codes. A rule for a mild code must not decide about a worse one in the same error."""
    return ERROR_CODE.sub(lambda found: found[0] if found[1] == code else "", error)


def _parts(message: str) -> list[str]:
    """Returns the parts of a message. If the message was cut, the last word is dropped: it is incomplete and might name another
    device."""
    whole, no_room, _ = message.partition(NO_ROOM)
    parts = whole.split(";")
    if no_room:
        parts[-1] = parts[-1][: parts[-1].rfind(" ") + 1]
    return [part.lstrip() for part in parts if part.strip()]
