"""Reads the settings of a job's owner for rules: which ones do not apply to the job, and which faults are given time. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rekindle.model.cluster import Node, NodeSpec, NodeStatus, ObjectMeta
from rekindle.model.keys import FILTER_CODES, FILTER_LEVELS, IGNORE_RULES
from rekindle.model.rules import Rules
from rekindle.policy.detection.rules import Finding, of_node

DEFAULT, LONGEST = 60.0, 86_400.0
"""Seconds that a fault is given by default, and at most. Source: the Kubernetes contract."""

CORDONED = Node(metadata=ObjectMeta(name=""), spec=NodeSpec(unschedulable=True), status=NodeStatus(accelerators=0))
"""A cordoned node without any other property."""


class Filters(NamedTuple):
    ignored: frozenset[str]
    codes: Mapping[str, float]
    levels: Mapping[str, float]

    def applied(self, findings: Iterable[Finding]) -> list[Finding]:
        return [self._given(one) for one in findings if one.named.name not in self.ignored]

    def _given(self, finding: Finding) -> Finding:
        code, level = finding.fact.code, finding.fact.values.get("level", "")
        given = max(self.codes.get(code, 0.0), self.levels.get(level, 0.0))
        return finding._replace(given=given) if given else finding


def filters(annotations: Mapping[str, str]) -> Filters:
    """Reads the settings from the job's annotations. Invalid entries are ignored."""
    ignored = (one.strip() for one in annotations.get(IGNORE_RULES, "").split(","))
    codes, levels = annotations.get(FILTER_CODES, ""), annotations.get(FILTER_LEVELS, "")
    return Filters(frozenset(filter(None, ignored)), _times(codes), _times(levels))


def heeds_cordons(annotations: Mapping[str, str], rules: Rules) -> bool:
    """Returns whether a cordon of its node has an effect on the job, by the rules and the job's own settings. Otherwise its ranks
    stay."""
    return bool(filters(annotations).applied(of_node(CORDONED, rules)))


def _times(text: str) -> dict[str, float]:
    found = {}
    for entry in text.split(","):
        word, _, seconds = (part.strip() for part in entry.partition(":"))
        known = float(seconds[:10]) if seconds.isascii() and seconds.isdecimal() else DEFAULT if not seconds else 0.0
        if word and 0 < known <= LONGEST:
            found[word] = known
    return found
