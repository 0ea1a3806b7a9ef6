"""Copies of what small objects keep."""

from typing import Any

import pytest
import torch

from rekindle_training.adapter.copies import copied

ONE: list[Any] = [1.0, 2.0]
STATES: list[Any] = [
    {"factor": 0.5, "name": "warm", "ended": None, "rates": [0.1, 0.2], 3: True},
    {"rates": [[0.1], [0.2]], "more": {"deep": [1]}},
    {"average": torch.ones(3), "count": 2},
    {"one": ONE, "same": ONE},
    [1, [2]],
    {},
]


@pytest.mark.parametrize("state", STATES, ids=["flat", "deep", "tensor", "one list twice", "no mapping", "empty"])
def test_a_copy_has_the_same_content_and_shares_nothing_that_changes(state: Any) -> None:
    """Plain values, lists of them, and what needs `copy.deepcopy` are copied apart from the original."""
    found = copied(state)
    assert repr(found) == repr(state)
    assert found is not state
    if isinstance(state, dict):
        kept = [key for key, value in state.items() if isinstance(value, list | dict | torch.Tensor)]
        assert all(found[key] is not state[key] for key in kept)


def test_what_was_one_list_is_one_list_in_the_copy() -> None:
    """One list in two places stays one list, as by `copy.deepcopy`."""
    found = copied({"one": ONE, "same": ONE})
    assert found["one"] is found["same"]
