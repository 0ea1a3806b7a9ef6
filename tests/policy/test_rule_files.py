"""Content of a file of rules, and the refusal of what means nothing."""

from typing import Any

import pytest

from rekindle.errors import BadInput
from rekindle.model.rule_file import parse, plain, rules_of
from rekindle.policy.detection import rules as policy
from tests.support.job_views import node, pod, view
from tests.support.rules import HEAD, faults, shows, written


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("condition: {type: A}, then: bad", "spec.rules.0.then: input should be 'nothing', 'sub-health'"),
        ("condition: {typ: A}, then: fault", "spec.rules.0.condition.typ: unknown field (accepted: type,"),
        ("conditon: {type: A}, then: fault", "spec.rules.0.conditon: unknown field, did you mean condition?"),
        ("then: fault", "names no source: a rule has one of condition, taint, cordoned"),
        ("condition: {type: A}, cordoned: true, then: fault", "names condition and cordoned: a rule has one of"),
        ("condition: {type: Ready}, then: fault", "no rule decides about Ready"),
        ("condition: {type: A, status: yes please}, then: fault", "is no status of a condition"),
        ("taint: {key: a, effect: Never}, then: fault", "is no effect (accepted: NoSchedule"),
        ("report: {source: rumour}, then: fault", "is no source of reports (accepted: event"),
        ("container: {}, then: fault", "says nothing: accepted are waiting, exitCode and restarts"),
        ("condition: {type: A}, then: nothing, settle: 3", "contradicts itself"),
        ("condition: {type: A}, then: fault, settle: -1", "spec.rules.0.settle: "),
        ("condition: {type: A}, then: fault, settle: P2D", "spec.rules.0.settle: "),
        ("condition: {type: A}, then: fault, device: '('", "is no regular expression"),
        ("condition: {type: A}, then: fault, device: 'GPU'", "must have one group"),
        ("label: {key: 'a*'}, then: fault", "spec.rules.0.label.key: "),
        ("condition: {type: A}, then: fault, expires: 5", "expires and healed are a report's"),
        ("report: {source: event}, then: nothing, expires: 5", "what means nothing has no settle, clear, expires"),
        ("report: {source: event}, then: fault, settle: 900", "never counts: it is over after 600 seconds (expires)"),
        ("report: {source: noded}, then: fault, settle: 9, expires: 9", "never counts: it is over after 9 seconds"),
        ("report: {source: noded}, then: fault, expires: 0", "spec.rules.0.expires: "),
        (
            "report: {source: event}, then: fault, healed: {report: {source: event}}",
            "never counts: healed takes all that the rule",
        ),
        (
            "report: {source: public-fault, code: 220001001}, then: fault",
            "spec.rules.0.report.code: is no word for YAML: put it in quotes",
        ),
        ("condition: {type: [A, 7]}, then: fault", "spec.rules.0.condition.type: is no word for YAML: put it in quotes"),
        ("cordoned: true, then: fault, device: '(x)'", "contradicts itself: a cordon names no device"),
        ("cordoned: false, then: fault", "spec.rules.0.cordoned: input should be True (got False)"),
        ("pod_condition: {type: A}, then: fault", "spec.rules.0.pod_condition: unknown field, did you mean podCondition?"),
        ("cordoned: true, then: sub_health", "spec.rules.0.then: input should be 'nothing', 'sub-health'"),
        ("condition: {type: A}, then: fault, clear: yes", "spec.rules.0.clear: must be a number of seconds"),
        ("condition: {type: A}, then: fault, settle: 5m", "must be a number of seconds or an ISO 8601 duration such as PT15M"),
        ("condition: {type: A}, then: fault, settle: .nan", "spec.rules.0.settle: "),
        ("condition: {type: A}, then: fault, device: ['(x)', y]", "spec.rules.0.device.1: must have one group"),
        ("condition: {type: A}, then: fault, settle: 90000", "spec.rules.0.settle: must be 0 to 86400 seconds"),
        ("condition: {type: A}, then: fault, expires: 0", "spec.rules.0.expires: must be 1 to 86400 seconds"),
        ("label: {key: 'example.com/*'}, then: fault", "spec.rules.0.label.key: must be the exact key"),
        ("container: {restarts: 0}, then: fault", "spec.rules.0.container.restarts: "),
        ("condition: {type: []}, then: fault", "spec.rules.0.condition.type: "),
        ("report: {source: event}, then: fault, healed: {}", "spec.rules.0.healed: has one of condition, report"),
    ],
)
def test_what_means_nothing_is_refused_by_its_field(rule: str, words: str) -> None:
    """The file is refused when it is read, with an error that names the field."""
    with pytest.raises(BadInput, match="spec") as refused:
        written(rule)
    assert words in str(refused.value)


def test_a_rule_that_never_decides_is_refused() -> None:
    """A rule that an earlier one covers entirely is refused: the file contradicts itself, or repeats itself."""
    with pytest.raises(BadInput) as refused:
        written(
            "condition: {type: Gpu*}, then: fault",
            "condition: {type: [GpuXid, GpuMem], reason: XID48}, then: nothing",
            "condition: {type: Other}, then: fault",
            "container: {restarts: 2}, then: fault",
            "container: {restarts: 3, waiting: CrashLoopBackOff}, then: fault",
        )
    assert str(refused.value).splitlines()[-2:] == [
        "spec.rules.1: r1 never decides: spec.rules.0 (r0) takes all that it would, and says fault instead of nothing",
        "spec.rules.4: r4 never decides: spec.rules.3 (r3) takes all that it would",
    ]
    twice = f"{HEAD}  rules:\n" + 2 * "    - {name: a, cordoned: true, then: nothing}\n"
    with pytest.raises(BadInput, match=r"spec.rules.1.name: a is the name of spec.rules.0 already"):
        parse(twice)


def test_a_name_that_is_none_is_refused_with_what_is_one() -> None:
    """The error describes an accepted name in plain language, without a pattern."""
    for name in ("Bad_Cable", "plain/cordoned", "ünder", "x" * 61, "-"):
        with pytest.raises(BadInput, match=r"spec.rules.0.name: accepted are 1 to 60 small letters, digits, hyphens and dots"):
            parse(f"{HEAD}  rules:\n    - {{name: {name!r}, cordoned: true, then: nothing}}\n")


def test_one_is_a_list_of_one() -> None:
    """A word, a number, a set."""
    found = parse(f"{HEAD}  use: plain\n  rules:\n    - {{name: a, container: {{exitCode: 137}}, then: fault}}\n").rules[0].rule
    assert found.container is not None
    assert found.container.exit_code == (137,)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "a: *b", f"{HEAD}  use: [gold]\n", "apiVersion: v1\nkind: Rules\nspec: {}\n", "\x00"]
)
def test_what_is_no_file_of_rules_is_refused(text: str) -> None:
    """The text is refused as bad input."""
    with pytest.raises(BadInput):
        parse(text)


def test_own_rules_come_before_the_sets_that_they_use() -> None:
    """An own rule can differ from the set, since it is applied first."""
    rules = written("condition: {type: SubHealthy}, then: nothing", use="[plain]")
    assert faults(view(pod(), nodes=(node(sick="slow"),)), rules) == ()
    assert faults(view(pod(), nodes=(shows(cordoned=True),)), rules)


def test_a_set_or_a_file_is_named_by_the_installation(tmp_path: Any) -> None:
    """A value that is neither a set nor a readable file is refused, with what is accepted."""
    assert rules_of("plain") == plain()
    (tmp_path / "rules.yaml").write_text(f"{HEAD}  rules: []\n")
    assert rules_of(str(tmp_path / "rules.yaml")) == plain()
    with pytest.raises(BadInput, match="there is no set 'gold' \\(accepted: plain, nvidia, ascend, or the path of a YAML file"):
        rules_of("gold")
    with pytest.raises(BadInput, match="cannot be read"):
        rules_of(str(tmp_path / "none.yaml"))


def test_a_status_may_be_written_without_quotes() -> None:
    """YAML reads an unquoted status as a truth value, and the rule matches all the same."""
    for status, text in (("True", "True"), ("false", "False"), ("[True, Unknown]", "Unknown")):
        rules = written(f"condition: {{type: Slow, status: {status}}}, then: fault")
        assert policy.of_node(shows(conditions={"Slow": (text, "", "")}), rules)
