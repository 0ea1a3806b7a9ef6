"""State of a public fault, message by message."""

import pytest

from rekindle.model.public_fault import PublicFault
from rekindle.model.rule_file import parse, rules_of
from rekindle.policy.detection.public_faults import Concerns, problem_of_code, senders, told
from tests.fakes.public_fault_peer import NOW, fault

SECOND = 1000


def after(*messages: tuple[int, str, str], ticks: int = 0) -> dict[str, tuple[int, int]]:
    """Returns when each shown node begins and ends to be shown, in seconds (0: no end). Messages: time, assertion, node.

    Args:
        ticks: Time by which the sender's own time of each message is later than that of the one before it.
    """
    known: Concerns = {}
    for number, (at, assertion, node) in enumerate(messages):
        told_of = fault(assertion=assertion, influence=[{"nodeName": node, "deviceIds": [0, 1]}], faultTime=NOW + ticks * number)
        known = told(known, PublicFault.model_validate(told_of), at * SECOND)
    return {node: (one.told_at // SECOND, one.until // SECOND) for node, one in known.items() if not one.hidden}


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([(100, "occur", "a")], {"a": (100, 0)}),
        ([(100, "occur", "a"), (150, "occur", "a"), (150, "once", "a")], {"a": (100, 0)}),
        ([(100, "occur", "a"), (150, "occur", "b")], {"a": (100, 0), "b": (150, 0)}),
        ([(100, "occur", "a"), (200, "recover", "a")], {"a": (100, 200)}),
        ([(100, "occur", "a"), (102, "recover", "a")], {"a": (100, 105)}),
        ([(100, "occur", "a"), (102, "recover", "a"), (104, "recover", "a")], {"a": (100, 105)}),
        ([(100, "occur", "a"), (102, "recover", "a"), (110, "occur", "a")], {"a": (110, 0)}),
        ([(100, "once", "a")], {"a": (100, 105)}),
        ([(100, "recover", "a")], {}),
        ([(100, "recover", "a"), (103, "occur", "a")], {"a": (100, 105)}),
        ([(100, "recover", "a"), (106, "occur", "a")], {"a": (106, 0)}),
        ([(100, "occur", "a"), (101, "occur", "b"), (200, "recover", "b")], {"a": (100, 0), "b": (101, 200)}),
    ],
)
def test_a_fault_is_shown_from_its_first_word_until_it_has_recovered(
    messages: list[tuple[int, str, str]], shown: dict[str, tuple[int, int]]
) -> None:
    """A node is shown for at least five seconds, in whatever order the start and the end of the fault arrive."""
    assert after(*messages) == shown


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([(100, "occur", "a"), (102, "recover", "a"), (103, "occur", "a")], {"a": (103, 0)}),
        ([(100, "recover", "a"), (103, "occur", "a")], {"a": (103, 0)}),
        ([(100, "once", "a"), (101, "occur", "a")], {"a": (101, 0)}),
        ([(100, "once", "a"), (101, "once", "a")], {"a": (101, 106)}),
        ([(100, "occur", "a"), (101, "occur", "a"), (103, "recover", "a")], {"a": (100, 105)}),
    ],
)
def test_a_fault_that_is_back_before_its_end_was_shown_stands(
    messages: list[tuple[int, str, str]], shown: dict[str, tuple[int, int]]
) -> None:
    """The sender's own time shows that the message is no repetition of an earlier one."""
    assert after(*messages, ticks=1) == shown


def test_a_fault_grows() -> None:
    """A fault that is reported again with more devices concerns these devices too."""
    known: Concerns = {}
    for devices in ([3], [0, 3], [3]):
        influence = [{"nodeName": "a", "deviceIds": devices}]
        known = told(known, PublicFault.model_validate(fault(influence=influence)), SECOND)
    assert known["a"].devices == (0, 3)


def test_devices_of_a_node_that_is_named_twice_are_joined() -> None:
    """A sender may list them one by one."""
    twice = fault(influence=[{"nodeSN": "SN1", "deviceIds": [3]}, {"nodeSN": "SN1", "deviceIds": [0, 3]}])
    (one,) = told({}, PublicFault.model_validate(twice), SECOND).values()
    assert one.devices == (0, 3)


def test_a_rule_that_names_a_sender_or_a_code_makes_it_known() -> None:
    """Senders and codes of a rule are accepted beside those that ClusterD ships with. A pattern makes none known."""
    own = parse(
        "apiVersion: rekindle.io/v1\nkind: Rules\nspec:\n  use: [ascend]\n  rules:\n"
        "    - {name: own, report: {source: public-fault, code: ['310009001', '99*'], by: [our-monitor, x*]}, then: fault}\n"
    )
    assert senders(own) - senders(rules_of("ascend")) == {"our-monitor"}
    known = [code for code in ("310009001", "220001001", "990000001") if not problem_of_code(code, own)]
    assert known == ["310009001", "220001001"]
