"""Plain attributes of modules that a script changes while it trains."""

import torch

from rekindle_training.adapter.attributes import Attributes


def begun() -> tuple[torch.nn.Module, Attributes]:
    """Returns a module with a pointer into a queue, when the loop has begun."""
    module = torch.nn.Linear(1, 1)
    module.pointer = 0  # type: ignore[assignment]
    attributes = Attributes({"model": module})
    attributes.begin_loop()
    return module, attributes


def test_a_replacement_says_the_same_of_a_value_that_is_as_at_first_again() -> None:
    """A pointer that wraps around has changed: a drill compares the words of both, and found a difference."""
    (undisturbed, mine), (replacement, its) = begun(), begun()
    undisturbed.pointer = 4  # type: ignore[assignment]
    its.load_state_dict(mine.state_dict())
    assert replacement.pointer == 4
    undisturbed.pointer = replacement.pointer = 0  # type: ignore[assignment]
    assert mine.state_dict() == its.state_dict() == {"changed": {("model", "", "pointer"): 0}}


def test_a_rank_that_takes_the_state_of_another_one_begins_with_its_values() -> None:
    """An attribute that has changed here only gets the value of the beginning."""
    (ahead, mine), (_, its) = begun(), begun()
    ahead.pointer = 4  # type: ignore[assignment]
    mine.state_dict()
    mine.load_state_dict(its.state_dict())
    assert ahead.pointer == 0
    assert mine.state_dict() == {"changed": {}}
