"""Reads the rules that `REKINDLE_RULES` names: a ready-made set, or a YAML file. An error names all wrong fields at once."""

from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from rekindle.errors import MALFORMED, BadInput
from rekindle.model.base import Written
from rekindle.model.manifest import Loader, refusal
from rekindle.model.problems import problems
from rekindle.model.rules import MAX_UNHEALTHY, MOST_RULES, Named, Percent, Rule, Rules, listed

MOST_BYTES = 1024 * 1024
"""Maximum number of characters of a file. A ConfigMap is not larger either."""


class ReadyMade(StrEnum):
    """Sets of rules that are part of the product, in `rekindle/rule_sets`."""

    PLAIN = "plain"
    NVIDIA = "nvidia"
    ASCEND = "ascend"


class Spec(Written):
    use: Annotated[tuple[ReadyMade, ...], BeforeValidator(listed)] = (ReadyMade.PLAIN,)
    """Ready-made sets that are evaluated after the rules of the file, in this order."""

    rules: Annotated[tuple[Rule, ...], Field(max_length=MOST_RULES)] = ()

    max_unhealthy: Percent = MAX_UNHEALTHY
    """Percent of the cluster's nodes. A rule of the file or of a set that calls more of them unhealthy is not believed."""


class RulesFile(Written):
    api_version: Literal["rekindle.io/v1"]
    kind: Literal["Rules"]
    spec: Spec


def rules_of(named: str) -> Rules:
    """Returns the rules of a ready-made set or of a file.

    Args:
        named: the name of a ready-made set, or the path of a file.

    Raises:
        BadInput: there is no such set or readable file; or one line for every wrong field.
    """
    if named in set(ReadyMade):
        return ready_made(ReadyMade(named))
    path = Path(named)
    if path.suffix not in (".yaml", ".yml") and "/" not in named:
        raise BadInput(f"rules: there is no set {named!r} (accepted: {', '.join(ReadyMade)}, or the path of a YAML file)")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"rules: {named} cannot be read: {error}") from error
    return parse(text)


@cache
def ready_made(name: ReadyMade) -> Rules:
    return parse((files("rekindle") / "rule_sets" / f"{name}.yaml").read_text(), f"{name}/")


def plain() -> Rules:
    """Returns the rules that apply by default."""
    return ready_made(ReadyMade.PLAIN)


def parse(text: str, prefix: str = "") -> Rules:
    """Returns the rules of a file, followed by the sets that it uses.

    Args:
        prefix: text that is put in front of the names of the file's own rules.

    Raises:
        BadInput: one line for every wrong field, and for every rule that can never decide.
    """
    if len(text) > MOST_BYTES:
        raise BadInput(f"rules: more than {MOST_BYTES} characters are too many")
    try:
        document = yaml.load(text, Loader)  # noqa: S506  # a safe one
    except (yaml.YAMLError, *MALFORMED) as error:
        raise BadInput(f"the rules are not YAML: {type(error).__name__}: {error}") from error
    if not isinstance(document, dict):
        raise BadInput("the rules are not a mapping: they begin with `apiVersion: rekindle.io/v1` and `kind: Rules`")
    try:
        written = RulesFile.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise refusal(problems(error, RulesFile)) from error
    if wrong := contradictions(written.spec.rules):
        raise refusal(wrong)
    own = tuple(Named(name=f"{prefix}{rule.name}", rule=rule) for rule in written.spec.rules)
    behind = dict.fromkeys(one for used in written.spec.use for one in ready_made(used).rules)
    return Rules(rules=(*own, *behind), max_unhealthy=written.spec.max_unhealthy)


def contradictions(rules: tuple[Rule, ...]) -> list[str]:
    """Returns an error for each duplicate name, and for each rule that never decides since an earlier one takes
    all of its facts."""
    wrong = []
    for number, rule in enumerate(rules):
        where = f"spec.rules.{number}"
        earlier = list(enumerate(rules[:number]))
        wrong += [
            f"{where}.name: {rule.name} is the name of spec.rules.{one} already" for one, o in earlier if o.name == rule.name
        ][:1]
        for one, other in [(one, other) for one, other in earlier if other.covers(rule)][:1]:
            differs = f", and says {other.then} instead of {rule.then}" if other.then is not rule.then else ""
            wrong.append(f"{where}: {rule.name} never decides: spec.rules.{one} ({other.name}) takes all that it would{differs}")
    return wrong
