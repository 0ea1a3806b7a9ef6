"""What of a cluster is a fault: rules, as a person writes them, from what Kubernetes shows to what it means for training.

The first rule that takes a fact decides about it; a fact that none takes means nothing. `rekindle.model.rule_file` reads them,
`rekindle.policy.rules` decides by them. docs/detection.md has the language and the ready-made sets.
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
"""How long an event counts that was told once, where its rule does not say so."""

MAX_UNHEALTHY = 50
"""Percent of the cluster's nodes: a rule that calls more of them sick at once is not believed."""


class Then(StrEnum):
    """What a fact means."""

    NOTHING = "nothing"
    """It is known, and no fault."""
    SUB_HEALTH = "sub-health"
    """Slow or degraded, and works: pods move away by the policy of their job."""
    MAINTENANCE = "maintenance"
    """Nothing is wrong, and the node is to be left soon: handled as a sub-health."""
    FAULT = "fault"
    """The node, or the device that is named, is broken: its pods have to leave it."""
    PROCESS = "process-fault"
    """What ran there is broken; it may start again where it was."""
    MEMORY = "memory-fault"
    """The same by an error of memory: where all faults are such, the step may just be repeated."""
    NETWORK = "network-fault"
    """The same by an error of the network."""


def is_like(text: str, pattern: str) -> bool:
    """Whether a text is what a pattern says, in which `*` stands for anything. A regular expression would try a long text of
    somebody's in every way."""
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
    """One word, or one number, is a list of one."""
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


def _words(value: object) -> object:
    """YAML reads `True` and 010001001 as what they are not meant to be."""
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, bool | int | float):
            raise ValueError("is no word for YAML: put it in quotes")  # noqa: TRY004  (Pydantic wants this one)
    return listed(value)


Word = Annotated[str, Field(min_length=1, max_length=LONGEST_WORD)]
Words = Annotated[tuple[Word, ...], BeforeValidator(_words), Field(min_length=1, max_length=100)]
"""Patterns, of which one has to fit."""
ANYTHING: tuple[str, ...] = ("*",)


class Match(Written):
    """Which facts of one source a rule takes. A field that is not written takes anything."""

    def takes(self, fact: Mapping[str, str]) -> bool:
        return all(any(is_like(fact.get(name, ""), one) for one in getattr(self, name)) for name in type(self).model_fields)

    def covers(self, other: Self) -> bool:
        """Whether it takes whatever the other one takes."""
        fields = type(self).model_fields
        return all(all(any(is_like(o, own) for own in getattr(self, f)) for o in getattr(other, f)) for f in fields)


class ConditionMatch(Match):
    """A condition of a node or a pod."""

    type: Words
    status: Words = ("True",)
    reason: Words = ANYTHING
    message: Words = ANYTHING

    @field_validator("status", mode="before")
    @classmethod
    def _in_words(cls, status: object) -> object:
        """YAML reads True as a truth value."""
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
    """A label or an annotation of a node."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_WORD, pattern=r"^[^*]*$")]
    value: Words = ANYTHING

    def takes(self, fact: Mapping[str, str]) -> bool:
        return fact["key"] == self.key and any(is_like(fact["value"], one) for one in self.value)

    def covers(self, other: Self) -> bool:
        return self.key == other.key and all(any(is_like(o, own) for own in self.value) for o in other.value)


ExitCode = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class ContainerMatch(Written):
    """How a container of a pod is that has not ended as a whole."""

    name: Words | None = None
    """By default only the containers that train: what runs beside them may come and go."""

    waiting: Words | None = None
    """Reasons for which it waits: `CrashLoopBackOff`."""

    exit_code: Annotated[tuple[ExitCode, ...], BeforeValidator(listed), Field(min_length=1, max_length=100)] | None = None
    """With which it ended last."""

    restarts: int | None = Field(default=None, ge=1)
    """At least so often it was started again."""

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
    """What somebody else says of a node in an object of its own: an event, a ConfigMap of MindCluster, a public fault."""

    source: Words
    """`event`, `device-plugin`, `switch`, `noded`, `public-fault`."""

    code: Words = ANYTHING
    """The reason of an event; a code of a fault."""

    level: Words = ANYTHING
    """`Normal` or `Warning`; the source's own level of a fault."""

    by: Words = ANYTHING
    """The component that wrote an event; who sent a public fault."""

    message: Words = ANYTHING

    @field_validator("source")
    @classmethod
    def _is_a_source(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            if word not in REPORTERS:
                raise ValueError(f"{word!r} is no source of reports (accepted: {', '.join(REPORTERS)})")
        return words


class Healed(Written):
    """What says of the same node, later, that something is over."""

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
"""Of which a rule names one."""


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
Seconds = Annotated[Time, Field(ge=timedelta(0), le=LONGEST_TIME)]
Lasting = Annotated[Time, Field(ge=timedelta(seconds=1), le=LONGEST_TIME)]


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
    """Only where somebody reports this of the same node, too: faults that are associated."""

    then: Then
    settle: Seconds = timedelta(0)
    """It has to last so long until something is done."""

    clear: Seconds = timedelta(0)
    """It has to be gone so long until it is over: what comes and goes within that is one fault."""

    expires: Lasting | None = None
    """Of a report that is told once: it counts so long after it was told last. An event that has none here counts ten minutes."""

    healed: Healed | None = None
    """Of a report: what says of the same node, not before it, that it is over."""

    device: Annotated[tuple[Expression, ...], BeforeValidator(listed), Field(max_length=10)] = ()
    """Regular expressions with one group: a device of the node, as the message names it. Every one that the first of them finds
    counts; where each finds one, these are names of one device."""

    max_unhealthy: Percent | None = None
    """Percent of the cluster's nodes: while it calls more of them sick it is not believed. By default what its file says."""

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
        """What is told once lasts no longer than its rule says."""
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
        """Whether it is not believed when it says too much: it says of nodes that they are sick, and is no person's word."""
        is_a_persons = self.annotation is not None and self.annotation.key == HEALTH
        is_of_nodes = self.source not in ("cordoned", "podCondition", "container")
        return is_of_nodes and not is_a_persons and self.then not in (Then.NOTHING, Then.MAINTENANCE)

    def lasts(self, reporter: str) -> timedelta | None:
        """How long a report of this source counts after it was told last; None: as long as its object says it."""
        return self.expires or (EVENT_LASTS if reporter == "event" else None)

    @cached_property
    def source(self) -> str:
        return next(name for name in SOURCES if self.match(name) is not None)

    def match(self, source: str) -> Any:
        return getattr(self, {"podCondition": "pod_condition"}.get(source, source))

    def takes(self, fact: Mapping[str, str]) -> bool:
        """Whether it decides about a fact of its source. What says that it has healed is none of its faults."""
        is_over = self.healed is not None and self.healed.takes(self.source, fact)
        return self.cordoned is not None or (not is_over and bool(self.match(self.source).takes(fact)))

    def covers(self, other: "Rule") -> bool:
        """Whether it leaves nothing for another one that comes behind it."""
        if self.source != other.source or (self.beside and self.beside != other.beside):
            return False
        if self.healed and self.healed.report and other.report and self.healed.report.covers(other.report):
            return False
        return self.cordoned is not None or bool(self.match(self.source).covers(other.match(other.source)))


class Named(Value):
    """A rule with the name by which it is known: that of a ready-made one begins with its set."""

    name: str
    rule: Rule


class Unbelieved(Value):
    """A rule that calls too many nodes of the cluster sick for all of them to be so."""

    rule: str
    then: Then
    called: int
    nodes: int
    """Of the cluster that train, of which it calls so many sick."""

    max_unhealthy: int

    @property
    def words(self) -> str:
        sick = "sub-healthy" if self.then is Then.SUB_HEALTH else "faulty"
        many = f"{self.called} of {self.nodes} nodes {sick}"
        return f"rule {self.rule} calls {many}, more than maxUnhealthy {self.max_unhealthy}%"


class Rules(Value):
    """All rules of an installation, in the order in which they are asked."""

    rules: tuple[Named, ...] = ()
    max_unhealthy: int = MAX_UNHEALTHY
    """Percent, for rules without a word of their own."""

    unbelieved: frozenset[str] = frozenset()
    """Names of the rules that are not believed now."""

    @cached_property
    def doubtful(self) -> Mapping[str, Rule]:
        """Rules that may be believed or not, by name."""
        return {one.name: one.rule for one in self.rules if one.rule.is_doubtful}

    def most(self, doubtful: str) -> int:
        """Percent of the cluster's nodes that such a rule may call sick and be believed."""
        own = self.doubtful[doubtful].max_unhealthy
        return self.max_unhealthy if own is None else own

    @cached_property
    def by_source(self) -> Mapping[str, tuple[Named, ...]]:
        return {source: tuple(one for one in self.rules if one.rule.source == source) for source in SOURCES}

    @cached_property
    def labels(self) -> frozenset[str]:
        """Keys of labels of nodes that are read."""
        return frozenset(one.rule.label.key for one in self.rules if one.rule.label)

    @cached_property
    def annotations(self) -> frozenset[str]:
        return frozenset(one.rule.annotation.key for one in self.rules if one.rule.annotation)

    @cached_property
    def reporters(self) -> frozenset[str]:
        """Whose objects have to be read."""
        healed = (one.rule.healed.report for one in self.rules if one.rule.healed)
        matches = (match for match in (*(m for one in self.rules for m in (one.rule.report, one.rule.beside)), *healed) if match)
        return frozenset(word for match in matches for word in match.source)
