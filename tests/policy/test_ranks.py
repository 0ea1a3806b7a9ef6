"""Ranks are one short text in a payload, and only what is a set of ranks is read as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rekindle.model.fault import Fault, FaultKind
from rekindle.model.sizes import MOST_RANKS


def a_fault(ranks: object) -> Fault:
    return Fault.model_validate({"id": "e", "kind": FaultKind.PROCESS, "source": "test", "ranks": ranks})


def test_ranks_are_a_text_in_json_and_numbers_in_memory() -> None:
    """Runs become ranges; the same text is read again."""
    fault = a_fault([12, 0, 1, 2, 3, 12, 14, 15])
    assert fault.ranks == (0, 1, 2, 3, 12, 14, 15)
    assert '"ranks":"0-3,12,14-15"' in fault.model_dump_json()
    assert Fault.model_validate_json(fault.model_dump_json()) == fault
    assert fault.model_dump()["ranks"] == fault.ranks


def test_all_ranks_of_the_largest_job_are_a_few_characters() -> None:
    """A list of numbers would take 50 kB."""
    assert f'"ranks":"0-{MOST_RANKS - 1}"' in a_fault(range(MOST_RANKS)).model_dump_json()


@given(st.sets(st.integers(0, MOST_RANKS - 1), max_size=200))
def test_every_set_of_ranks_survives_a_payload(ranks: set[int]) -> None:
    """A set of ranks survives whatever its gaps."""
    fault = a_fault(list(ranks))
    assert Fault.model_validate_json(fault.model_dump_json()).ranks == tuple(sorted(ranks))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ("0-", "'0-' is not accepted"),
        ("3-1", "'3-1' is not accepted: ranks ascend"),
        ("5,3", "'3' is not accepted: ranks ascend"),
        ("0-9,9", "'9' is not accepted: ranks ascend"),
        ("-1", "'-1' is not accepted"),
        (" 1", "' 1' is not accepted"),
        ("0-1-2", "'0-1-2' is not accepted"),
        ("x" * 50, "is not accepted"),
        (f"0-{MOST_RANKS}", f"from 0 to {MOST_RANKS - 1}"),
        ("0-99999999999999999999", f"from 0 to {MOST_RANKS - 1}"),
        ("1," * MOST_RANKS * 5, "characters are too many"),
        ([-1], "'-1' is not a rank"),
        ([MOST_RANKS], "is not a rank"),
        ([True], "is not a rank"),
        (["1"], "is not a rank"),
        (range(2 * MOST_RANKS), f"at most {MOST_RANKS} numbers"),
        (7, "must be ranks such as '0-9,12'"),
        ({"0": 1}, "must be ranks such as '0-9,12'"),
    ],
)
def test_what_is_no_set_of_ranks_is_refused_with_what_is_accepted(ranks: object, words: str) -> None:
    """The error is short, however long the text is."""
    with pytest.raises(ValidationError) as refused:
        a_fault(ranks)
    assert words in refused.value.errors()[0]["msg"]
    assert len(refused.value.errors()[0]["msg"]) < 200
