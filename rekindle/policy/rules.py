"""What the facts that a cluster shows of a node or a pod mean by the rules of the installation. Pure.

Asked by `policy.sighting`, which makes faults of the answers, and by whoever explains a node.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from rekindle.model.bounds import cut
from rekindle.model.cluster import Condition, Node, NodeReport, Pod
from rekindle.model.keys import HEALTH
from rekindle.model.rules import Named, Rules, Then

WELL = "well"
"""Of the annotation `rekindle.io/health`: a person's word comes before every rule that something is wrong."""

LONGEST_SAW = 120
LONGEST_CODE = 80
MOST_DEVICES = 64
"""Of one fact."""


class Fact(NamedTuple):
    """One thing that the cluster shows of a node or a pod."""

    source: str
    """Of the rules that may take it: `condition`, `taint`, ..."""

    values: Mapping[str, str]
    """What these rules look at."""

    saw: str
    """In a few words."""

    code: str
    message: str
    since: datetime | None = None
    devices: tuple[str, ...] = ()


class Finding(NamedTuple):
    """A fact that means something, and the rule that says what."""

    named: Named
    fact: Fact
    given: float = 0.0
    """Seconds that the job itself gives it, whatever the rule says."""

    @property
    def then(self) -> Then:
        return self.named.rule.then

    @property
    def devices(self) -> tuple[str, ...]:
        """Local ids of the devices that it is about; empty: all of the node."""
        if self.fact.devices or not self.named.rule.device:
            return self.fact.devices
        found = _expression(self.named.rule.device).findall(self.fact.message[:10_000])
        return tuple(dict.fromkeys(filter(None, found)))[:MOST_DEVICES]


@lru_cache(maxsize=500)
def _expression(text: str) -> re.Pattern[str]:
    return re.compile(text)


def of_node(node: Node, rules: Rules) -> list[Finding]:
    """What is wrong with it. Whether it is ready is nobody's rule; one that is well may be left soon all the same."""
    found = _findings(node_facts(node), rules)
    return [one for one in found if one.then is Then.MAINTENANCE] if is_silenced(node) else found


def of_pod(pod: Pod, rules: Rules) -> list[Finding]:
    """What is wrong with it, beside its end."""
    return _findings(_pod_facts(pod), rules)


def is_silenced(node: Node) -> bool:
    said = node.metadata.annotations.get(HEALTH, "")
    return said == WELL or said.startswith(f"{WELL}:")


def unused(node: Node, rules: Rules) -> list[Fact]:
    """What it shows and no rule knows; labels and annotations are others' business."""
    marks = ("label", "annotation")
    return [fact for fact, named in decisions(node, rules) if named is None and fact.source not in marks]


def is_of_matter(report: NodeReport, rules: Rules) -> bool:
    """Whether it may make a difference: to a rule that does not call it nothing, or to one that asks what is beside it. Of
    others than events it is kept in any case, so that it can be shown as unused."""
    fact = _reported(report)
    takes = next((named for named in rules.by_source["report"] if named.rule.takes(fact.values)), None)
    is_beside = any(named.rule.beside and named.rule.beside.takes(fact.values) for named in rules.rules)
    return is_beside or report.source != "event" or (takes is not None and takes.rule.then is not Then.NOTHING)


def decisions(node: Node, rules: Rules) -> list[tuple[Fact, Named | None]]:
    """Every fact with the rule that decides about it, silenced or not."""
    shown = list(node_facts(node))
    return [(fact, _decides(fact, rules, shown)) for fact in shown]


def _findings(facts: Iterable[Fact], rules: Rules) -> list[Finding]:
    shown = list(facts)
    decided = ((fact, _decides(fact, rules, shown)) for fact in shown)
    return [Finding(named, fact) for fact, named in decided if named and named.rule.then is not Then.NOTHING]


def _decides(fact: Fact, rules: Rules, shown: Sequence[Fact]) -> Named | None:
    """The first rule that takes it, among all that is shown beside it."""

    def takes(named: Named) -> bool:
        rule = named.rule
        beside = rule.beside
        return rule.takes(fact.values) and (
            beside is None or any(beside.takes(one.values) for one in shown if one is not fact and one.source == "report")
        )

    return next(filter(takes, rules.by_source[fact.source]), None)


# ---- facts


def node_facts(node: Node) -> Iterator[Fact]:
    yield from _conditions(node.status.conditions, "condition")
    if node.spec.unschedulable:
        yield Fact("cordoned", {}, "cordoned", "Cordoned", f"node {node.metadata.name} is cordoned")
    for taint in node.spec.taints:
        values = {"key": taint.key, "value": taint.value, "effect": taint.effect}
        saw = f"taint {taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
        yield Fact("taint", values, cut(saw, LONGEST_SAW), cut(taint.key, LONGEST_CODE), saw, taint.time_added)
    for source, marks in (("label", node.metadata.labels), ("annotation", node.metadata.annotations)):
        for key, value in sorted(marks.items()):
            saw = cut(f"{source} {key}={value}", LONGEST_SAW)
            yield Fact(source, {"key": key, "value": value}, saw, cut(key, LONGEST_CODE), value)
    yield from map(_reported, node.status.reports)


def _reported(one: NodeReport) -> Fact:
    values = {"source": one.source, "code": one.code, "level": one.level, "by": one.by, "message": one.message}
    saw = f"{one.source} {one.code}{f' ({one.level})' if one.level else ''}"
    return Fact("report", values, cut(saw, LONGEST_SAW), cut(one.code, LONGEST_CODE), one.message, one.since, one.devices)


def _pod_facts(pod: Pod) -> Iterator[Fact]:
    yield from _conditions(pod.status.conditions, "podCondition")
    for one in pod.status.containers:
        ended = "" if one.exit_code is None else str(one.exit_code)
        values = {"waiting": one.waiting, "exit_code": ended, "restarts": str(one.restarts)}
        words = [one.waiting and f"waits: {one.waiting}", ended and f"ended with {ended}"]
        words.append(f"started again {one.restarts} times" if one.restarts else "")
        saw = f"container {one.name} {', '.join(filter(None, words))}"
        code = one.waiting or (f"exit {ended}" if ended else "restarted")
        yield Fact("container", values, cut(saw, LONGEST_SAW), cut(code, LONGEST_CODE), one.message or saw)


def _conditions(conditions: Iterable[Condition], source: str) -> Iterator[Fact]:
    for one in conditions:
        if source == "condition" and one.type == "Ready":
            continue
        values = {"type": one.type, "status": one.status, "reason": one.reason, "message": one.message}
        saw = cut(f"condition {one.type}={one.status}", LONGEST_SAW)
        code = cut(one.reason or one.type, LONGEST_CODE)
        yield Fact(source, values, saw, code, one.message, one.last_transition_time)
