"""Rules of detection, as a person writes them. They map facts that Kubernetes shows to their meaning for training.

The first rule that takes a fact decides about it; a fact that no rule takes has no effect. `rekindle.model.rule_file` reads the
rules, `rekindle.policy.detection.rules` evaluates them. docs/detection.md describes the language and the ready-made sets.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    field_validator,
    model_validator,
)

from rekindle.model.base import Value, Written, no_truth
from rekindle.model.keys import HEALTH

MOST_RULES = 500
LONGEST_NAME = 60
LONGEST_WORD = 300
LONGEST_TIME = timedelta(days=1)

EVENT_LASTS = timedelta(minutes=10)
"""Duration for which an event counts after it was reported last, if its rule does not set one."""

MAX_UNHEALTHY = 50
"""Percent of the cluster's nodes. A rule that calls more of them unhealthy at once is not believed."""


class Then(StrEnum):
    """Meaning of a fact."""

    NOTHING = "nothing"
    """The fact is known and no fault."""
    SUB_HEALTH = "sub-health"
    """The node or device is slow or degraded, but works. Pods move away by the policy of their job."""
    MAINTENANCE = "maintenance"
    """Nothing is wrong, but pods have to leave the node soon. Handled as a sub-health."""
    FAULT = "fault"
    """The node, or the device that is named, is broken. Its pods have to leave it."""
    PROCESS = "process-fault"
    """Processes on the node or device failed, and may be restarted in place."""
    MEMORY = "memory-fault"
    """Memory error. If all faults of the job are of this type, the step can be retried."""
    NETWORK = "network-fault"
    """Network error. If all faults of the job are of this type, the step can be retried."""


def is_like(text: str, pattern: str) -> bool:
    """Returns whether a text matches a pattern, in which `*` stands for any text. A regular expression could take very long for a
    text that others write."""
    first, *words = pattern.split("*")
    if not words:
        return text == pattern
    if not text.startswith(first):
        return False
    at = len(first)
    for word in words[:-1]:
        if (found := text.find(word, at)) < 0:
            return False
        at = found + len(word)
    return len(text) - at >= len(words[-1]) and text.endswith(words[-1])


def listed(value: object) -> object:
    """Returns a single text or number as a tuple, and any other value unchanged."""
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


def _words(value: object) -> object:
    """Rejects booleans and numbers: YAML reads `True` and 010001001 as these, although words are meant."""
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, bool | int | float):
            raise ValueError("is no word for YAML: put it in quotes")  # noqa: TRY004  (Pydantic wants this one)
    return listed(value)


Word = Annotated[str, Field(min_length=1, max_length=LONGEST_WORD)]
Words = Annotated[tuple[Word, ...], BeforeValidator(_words), Field(min_length=1, max_length=100)]
"""Patterns, of which one has to match."""
ANYTHING: tuple[str, ...] = ("*",)


class Match(Written):
    """Selects the facts of one source that a rule takes. A field that is not written accepts any value."""

    def takes(self, fact: Mapping[str, str]) -> bool:
        return all(any(is_like(fact.get(name, ""), one) for one in getattr(self, name)) for name in type(self).model_fields)

    def covers(self, other: Self) -> bool:
        """Returns whether this takes all facts that the other one takes."""
        fields = type(self).model_fields
        return all(all(any(is_like(o, own) for own in getattr(self, f)) for o in getattr(other, f)) for f in fields)


class ConditionMatch(Match):
    """Selects conditions of a node or a pod."""

    type: Words
    status: Words = ("True",)
    reason: Words = ANYTHING
    message: Words = ANYTHING

    @field_validator("status", mode="before")
    @classmethod
    def _in_words(cls, status: object) -> object:
        """Converts booleans into words: YAML reads True as a boolean."""
        words = status if isinstance(status, list | tuple) else [status]
        return [str(word) if isinstance(word, bool) else word for word in words]

    @field_validator("status")
    @classmethod
    def _is_a_status(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            if word not in ("True", "False", "Unknown", "*"):
                raise ValueError(f'{word!r} is no status of a condition (accepted: "True", "False", "Unknown", "*")')
        return words


class NodeConditionMatch(ConditionMatch):
    @field_validator("type")
    @classmethod
    def _is_not_ready(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if "Ready" in words:
            raise ValueError("no rule decides about Ready: a node that is not ready is lost after the limit nodeLost")
        return words


class TaintMatch(Match):
    key: Words
    value: Words = ANYTHING
    effect: Words = ANYTHING

    @field_validator("effect")
    @classmethod
    def _is_an_effect(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            if word not in ("NoSchedule", "PreferNoSchedule", "NoExecute", "*"):
                raise ValueError(f"{word!r} is no effect (accepted: NoSchedule, PreferNoSchedule, NoExecute)")
        return words


class MarkMatch(Match):
    """Selects a label or an annotation of a node."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_WORD)]
    value: Words = ANYTHING

    @field_validator("key")
    @classmethod
    def _is_exact(cls, key: str) -> str:
        if "*" in key:
            raise ValueError("must be the exact key: `*` is accepted in values only")
        return key

    def takes(self, fact: Mapping[str, str]) -> bool:
        return fact["key"] == self.key and any(is_like(fact["value"], one) for one in self.value)

    def covers(self, other: Self) -> bool:
        return self.key == other.key and all(any(is_like(o, own) for own in self.value) for o in other.value)


ExitCode = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class ContainerMatch(Written):
    """Selects the state of containers of a pod that has not ended."""

    name: Words | None = None
    """Names of containers. By default only containers that train: others may start and end at any time."""

    waiting: Words | None = None
    """Reasons for which the container is waiting, such as `CrashLoopBackOff`."""

    exit_code: Annotated[tuple[ExitCode, ...], BeforeValidator(listed), Field(min_length=1, max_length=100)] | None = None
    """Exit codes of the last termination."""

    restarts: int | None = Field(default=None, ge=1)
    """Minimum number of restarts."""

    def takes(self, fact: Mapping[str, str]) -> bool:
        waits = self.waiting is None or any(is_like(fact["waiting"], one) for one in self.waiting)
        ended = self.exit_code is None or fact["exit_code"] in map(str, self.exit_code)
        is_it = any(is_like(fact["name"], one) for one in self.name) if self.name else bool(fact["trains"])
        return is_it and waits and ended and (self.restarts is None or int(fact["restarts"]) >= self.restarts)

    def covers(self, other: Self) -> bool:
        waits = self.waiting is None or (
            other.waiting is not None and all(any(is_like(o, own) for own in self.waiting) for o in other.waiting)
        )
        ended = self.exit_code is None or (other.exit_code is not None and set(other.exit_code) <= set(self.exit_code))
        named = self.name == other.name or (
            self.name is not None and all(any(is_like(o, own) for own in self.name) for o in other.name or ANYTHING)
        )
        return (
            named
            and waits
            and ended
            and (self.restarts is None or (other.restarts is not None and other.restarts >= self.restarts))
        )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.waiting is None and self.exit_code is None and self.restarts is None:
            raise ValueError("says nothing: accepted are waiting, exitCode and restarts, with a name or without")
        return self


class ReportMatch(Match):
    """Selects reports about a node in another object: an event, a ConfigMap of MindCluster, a public fault."""

    source: Words
    """Sources of the report: `event`, `device-plugin`, `switch`, `noded`, `public-fault`."""

    code: Words = ANYTHING
    """Reason of an event, or code of a fault."""

    level: Words = ANYTHING
    """`Normal` or `Warning` of an event, or the source's own level of a fault."""

    by: Words = ANYTHING
    """Component that wrote an event, or sender of a public fault."""

    message: Words = ANYTHING

    @field_validator("source")
    @classmethod
    def _is_a_source(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            if word not in REPORTERS:
                raise ValueError(f"{word!r} is no source of reports (accepted: {', '.join(REPORTERS)})")
        return words


class Healed(Written):
    """Selects a later fact of the same node that ends the fault."""

    condition: NodeConditionMatch | None = None
    report: ReportMatch | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.condition is None) == (self.report is None):
            raise ValueError("has one of condition, report")
        return self

    def takes(self, source: str, fact: Mapping[str, str]) -> bool:
        match: Match | None = {"condition": self.condition, "report": self.report}.get(source)
        return match is not None and match.takes(fact)


REPORTERS = ("event", "device-plugin", "switch", "noded", "public-fault")

SOURCES = ("condition", "taint", "cordoned", "label", "annotation", "podCondition", "container", "report")
"""Sources of facts. A rule names exactly one of them."""


def _one_group(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from error
    if groups != 1:
        raise ValueError("must have one group in parentheses, which is the device")
    return text


def _is_a_name(text: str) -> str:
    if not re.fullmatch(rf"[a-z0-9]([-a-z0-9.]{{0,{LONGEST_NAME - 2}}}[a-z0-9])?", text):
        raise ValueError(
            f"accepted are 1 to {LONGEST_NAME} small letters, digits, hyphens and dots, with a letter or digit at both ends"
        )
    return text


def _percent(value: object) -> int:
    if not isinstance(value, str) or not re.fullmatch("100%|[1-9]?[0-9]%", value):
        raise ValueError("must be a whole percent from 0% to 100%, such as 50%")
    return int(value[:-1])


Percent = Annotated[int, BeforeValidator(_percent), PlainSerializer(lambda percent: f"{percent}%")]
Expression = Annotated[str, Field(min_length=1, max_length=LONGEST_WORD), AfterValidator(_one_group)]
Time = Annotated[timedelta, BeforeValidator(no_truth)]


def _within(shortest: timedelta) -> AfterValidator:
    def checked(time: timedelta) -> timedelta:
        if not shortest <= time <= LONGEST_TIME:
            raise ValueError(f"must be {shortest.total_seconds():.0f} to {LONGEST_TIME.total_seconds():.0f} seconds")
        return time

    return AfterValidator(checked)


Seconds = Annotated[Time, _within(timedelta(0))]
Lasting = Annotated[Time, _within(timedelta(seconds=1))]


class Rule(Written):
    name: Annotated[str, AfterValidator(_is_a_name)]
    condition: NodeConditionMatch | None = None
    taint: TaintMatch | None = None
    cordoned: Literal[True] | None = None
    label: MarkMatch | None = None
    annotation: MarkMatch | None = None
    pod_condition: ConditionMatch | None = None
    container: ContainerMatch | None = None
    report: ReportMatch | None = None
    beside: ReportMatch | None = None
    """Report that has to exist for the same node as well. None: no other report is needed."""

    then: Then
    settle: Seconds = timedelta(0)
    """Duration that a fact must last before it counts."""

    clear: Seconds = timedelta(0)
    """Duration that a fact must be gone before the fault is over. A fact that returns earlier is the same fault."""

    expires: Lasting | None = None
    """Duration for which a report counts after it was sent last. By default ten minutes for an event, and as long as it is shown
    for others."""

    healed: Healed | None = None
    """Later fact of the same node that ends the fault of a report."""

    device: Annotated[tuple[Expression, ...], BeforeValidator(listed), Field(max_length=10)] = ()
    """Regular expressions with one group, which is a device of the node in the message. All matches of the first expression
    count. If several expressions match, their matches are names of the same device."""

    max_unhealthy: Percent | None = None
    """Percent of the cluster's nodes. While the rule calls more of them unhealthy it is not believed. By default the value of its
    file."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        named = [name for name in SOURCES if self.match(name) is not None]
        if len(named) != 1:
            said = f"names {' and '.join(named)}" if named else "names no source"
            raise ValueError(f"{said}: a rule has one of {', '.join(SOURCES)}")
        if self.then is Then.NOTHING and (self.settle or self.clear or self.device or self.expires or self.healed):
            raise ValueError("contradicts itself: what means nothing has no settle, clear, expires, healed or device")
        return self

    @model_validator(mode="after")
    def _can_count(self) -> Self:
        """Rejects a rule whose facts end before they could count."""
        if self.cordoned and self.device:
            raise ValueError("contradicts itself: a cordon names no device")
        if self.report is None:
            if self.expires or self.healed:
                raise ValueError("expires and healed are a report's: other facts last as long as they are shown")
            return self
        if self.healed and self.healed.report and self.healed.report.covers(self.report):
            raise ValueError("never counts: healed takes all that the rule itself takes")
        for source in self.report.source:
            lasts = self.lasts(source)
            if lasts is not None and lasts <= self.settle:
                raise ValueError(
                    f"never counts: it is over after {lasts.total_seconds():g} seconds (expires) and settles after "
                    f"{self.settle.total_seconds():g}"
                )
        return self

    @model_validator(mode="after")
    def _may_be_doubted(self) -> Self:
        if self.max_unhealthy is not None and not self.is_doubtful:
            raise ValueError("is always believed: maxUnhealthy is for rules by which a node is faulty or sub-healthy")
        return self

    @cached_property
    def is_doubtful(self) -> bool:
        """True if the rule can be disbelieved: it calls nodes unhealthy, and is not about the mark of a person."""
        is_a_persons = self.annotation is not None and self.annotation.key == HEALTH
        is_of_nodes = self.source not in ("cordoned", "podCondition", "container")
        return is_of_nodes and not is_a_persons and self.then not in (Then.NOTHING, Then.MAINTENANCE)

    def lasts(self, reporter: str) -> timedelta | None:
        """Returns how long a report of this source counts after it was sent last. None: as long as its object contains it."""
        return self.expires or (EVENT_LASTS if reporter == "event" else None)

    @cached_property
    def source(self) -> str:
        return next(name for name in SOURCES if self.match(name) is not None)

    def match(self, source: str) -> Any:
        return getattr(self, {"podCondition": "pod_condition"}.get(source, source))

    def takes(self, fact: Mapping[str, str]) -> bool:
        """Returns whether the rule decides about a fact of its source. A fact that ends its fault is not taken."""
        is_over = self.healed is not None and self.healed.takes(self.source, fact)
        return self.cordoned is not None or (not is_over and bool(self.match(self.source).takes(fact)))

    def covers(self, other: "Rule") -> bool:
        """Returns whether the rule takes all facts that a later rule would take."""
        if self.source != other.source or (self.beside and self.beside != other.beside):
            return False
        if self.healed and self.healed.report and other.report and self.healed.report.covers(other.report):
            return False
        return self.cordoned is not None or bool(self.match(self.source).covers(other.match(other.source)))


class Named(Value):
    """A rule with its full name. The name of a rule of a ready-made set begins with the name of the set."""

    name: str
    rule: Rule


class Unbelieved(Value):
    """A rule that calls so many nodes of the cluster unhealthy that it is not believed."""

    rule: str
    then: Then
    called: int
    nodes: int
    """Number of nodes of the cluster with accelerators, of which `called` are called unhealthy."""

    max_unhealthy: int

    @property
    def words(self) -> str:
        sick = "sub-healthy" if self.then is Then.SUB_HEALTH else "faulty"
        many = f"{self.called} of {self.nodes} nodes {sick}"
        return f"rule {self.rule} calls {many}, more than maxUnhealthy {self.max_unhealthy}%"


class Rules(Value):
    """All rules of an installation, in the order in which they are evaluated."""

    rules: tuple[Named, ...] = ()
    max_unhealthy: int = MAX_UNHEALTHY
    """Percent for rules that do not set their own."""

    unbelieved: frozenset[str] = frozenset()
    """Names of the rules that are not believed now."""

    @cached_property
    def doubtful(self) -> Mapping[str, Rule]:
        """Rules that can be disbelieved, by name."""
        return {one.name: one.rule for one in self.rules if one.rule.is_doubtful}

    def most(self, doubtful: str) -> int:
        """Returns the percent of the cluster's nodes that a rule may call unhealthy and still be believed."""
        own = self.doubtful[doubtful].max_unhealthy
        return self.max_unhealthy if own is None else own

    @cached_property
    def by_source(self) -> Mapping[str, tuple[Named, ...]]:
        return {source: tuple(one for one in self.rules if one.rule.source == source) for source in SOURCES}

    @cached_property
    def labels(self) -> frozenset[str]:
        """Keys of node labels that rules read."""
        return frozenset(one.rule.label.key for one in self.rules if one.rule.label)

    @cached_property
    def annotations(self) -> frozenset[str]:
        return frozenset(one.rule.annotation.key for one in self.rules if one.rule.annotation)

    @cached_property
    def reporters(self) -> frozenset[str]:
        """Sources of reports whose objects have to be read."""
        healed = (one.rule.healed.report for one in self.rules if one.rule.healed)
        matches = (match for match in (*(m for one in self.rules for m in (one.rule.report, one.rule.beside)), *healed) if match)
        return frozenset(word for match in matches for word in match.source)
