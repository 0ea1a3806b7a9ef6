"""Averages of the model that a script keeps by itself: found by how they move, wherever its variables hold them."""

import copy
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rekindle_training.adapter.averages import Averages

Model = torch.nn.Module
Turn = Callable[[Any, Any, torch.optim.Optimizer], Any]
"""Turn of the loop, given what the script keeps, the model and its optimizer. It may return a new object to keep."""
TURNS = 8


def a_model() -> Model:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))


def found(kept: Any, turn: Turn, model: Model, *given: Any, lr: float = 0.01) -> str:
    """Returns the name that is found while a model is trained. Empty: none is."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    modules = [one for one in given if isinstance(one, Model)]
    averages = Averages([model, *modules], [model, optimizer, *given])
    for _ in range(TURNS):
        if name := averages.look([sys._getframe(0)]):
            return name
        model(torch.randn(8, 8)).pow(2).mean().backward()
        with torch.no_grad():
            kept = turned if (turned := turn(kept, model, optimizer)) is not None else kept
        optimizer.zero_grad()
    return ""


def follows(kept: Model, model: Model, optimizer: torch.optim.Optimizer, part: float = 0.1) -> None:
    optimizer.step()
    for slow, fast in zip(kept.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, part)


def follows_slowly(kept: Model, model: Model, optimizer: torch.optim.Optimizer) -> None:
    follows(kept, model, optimizer, 0.001)


def follows_before_the_update(kept: Model, model: Model, optimizer: torch.optim.Optimizer) -> None:
    for slow, fast in zip(kept.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, 0.1)
    optimizer.step()


def is_created_again(kept: Any, model: Model, optimizer: torch.optim.Optimizer) -> Any:
    optimizer.step()
    return {name: 0.9 * kept[name] + 0.1 * tensor for name, tensor in model.state_dict().items()}


class Shadow:
    """An average as scripts write it."""

    def __init__(self, model: Model) -> None:
        self.tensors = [one.detach().clone() for one in model.parameters()]

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": self.tensors}


def is_in_place(kept: Shadow, model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    for slow, fast in zip(kept.tensors, model.parameters(), strict=True):
        slow.lerp_(fast, 0.1)


def is_in_an_object(kept: Shadow, model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    kept.tensors = [0.9 * slow + 0.1 * fast for slow, fast in zip(kept.tensors, model.parameters(), strict=True)]


def as_state(model: Model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("keep", "turn", "name"),
    [
        (copy.deepcopy, follows, "kept"),
        (copy.deepcopy, follows_slowly, "kept"),
        (copy.deepcopy, follows_before_the_update, "kept"),
        (as_state, is_created_again, "kept"),
        (Shadow, is_in_an_object, "kept.tensors"),
    ],
)
def test_an_average_is_found_however_it_is_kept(keep: Callable[[Model], Any], turn: Turn, name: str) -> None:
    """A copy of the model, a dictionary of tensors, or an attribute of an object of the script."""
    model = a_model()
    assert found(keep(model), turn, model) == name


def test_an_average_of_what_trains_in_part_is_found() -> None:
    """A layer that is frozen does not move, and has the same shape as one that trains."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8).requires_grad_(False), torch.nn.Linear(8, 8))
    assert found(copy.deepcopy(model), follows, model) == "kept"


class Slotted:
    """Has no dictionary of its attributes."""

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def state_dict(self) -> dict[str, Any]:
        return {"of": [{"content": self.content}]}


@pytest.mark.parametrize(
    "give",
    [
        lambda shadow: shadow,
        lambda shadow: SimpleNamespace(state_dict=shadow.state_dict),
        lambda shadow: SimpleNamespace(state_dict=lambda: copy.deepcopy(shadow.state_dict())),
        lambda shadow: Slotted(shadow.tensors),
    ],
    ids=["itself", "its methods", "copies", "slots"],
)
def test_an_average_that_was_given_to_the_session_may_move(give: Callable[[Shadow], Any]) -> None:
    """Averages are looked for in the objects that the session has, and in the states of these."""
    model = a_model()
    shadow = Shadow(model)
    assert found(shadow, is_in_place, model, give(shadow)) == ""
    assert found(Shadow(model), is_in_place, model, give(shadow)) == "kept.tensors"


def is_copied(kept: Model, model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    kept.load_state_dict(model.state_dict())


def averages_gradients(kept: Model, model: Model, optimizer: torch.optim.Optimizer) -> None:
    for slow, parameter in zip(kept.parameters(), model.parameters(), strict=True):
        slow.lerp_(parameter.grad, 0.1)  # type: ignore[arg-type]
    optimizer.step()


def is_before_the_update(_: Any, model: Model, optimizer: torch.optim.Optimizer) -> Any:
    before = [one.detach().clone() for one in model.parameters()]
    optimizer.step()
    return before


def is_the_last_move(_: Any, model: Model, optimizer: torch.optim.Optimizer) -> Any:
    before = [one.detach().clone() for one in model.parameters()]
    optimizer.step()
    return [now - then for now, then in zip(model.parameters(), before, strict=True)]


def trains_alike(kept: Model, model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    for twin, parameter in zip(kept.parameters(), model.parameters(), strict=True):
        twin.sub_(parameter.grad, alpha=0.01)  # type: ignore[arg-type]


def stands_still(_kept: Model, _model: Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


@pytest.mark.parametrize(
    "turn", [is_copied, averages_gradients, is_before_the_update, is_the_last_move, trains_alike, stands_still]
)
def test_what_has_the_shapes_of_the_model_and_is_no_average_may_move(turn: Turn) -> None:
    """A copy, statistics of gradients, the parameters of before, another model."""
    model = a_model()
    assert found(copy.deepcopy(model), turn, model) == ""


@pytest.mark.parametrize("lr", [0.0001, 0.001, 0.01])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_copy_of_less_precision_is_no_average(dtype: torch.dtype, lr: float) -> None:
    """Weights for inference are copied in each turn. Where an update is smaller than their precision, some stand still."""

    def is_rounded(_: Any, model: Model, optimizer: torch.optim.Optimizer) -> Any:
        optimizer.step()
        return {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}

    model = a_model()
    assert found(None, is_rounded, model, lr=lr) == ""


def test_parameters_of_before_an_update_are_no_average_of_a_model_that_moves_steadily() -> None:
    """Parameters of the update before lie between those of two updates ago and those of now."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    averages = Averages([model], [model, optimizer])
    before: list[torch.Tensor] = []
    for _ in range(TURNS):
        assert averages.look([sys._getframe(0)]) == ""
        before = [one.detach().clone() for one in model.parameters()]
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(before) == 2


class Temperature(Model):
    """Has one number that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.logarithm = torch.nn.Parameter(torch.tensor(0.0))


def test_a_loss_that_falls_is_no_average_of_one_number_that_trains() -> None:
    """Any number moves by a part of its difference to another one."""

    def falls(kept: dict[str, torch.Tensor], model: Model, optimizer: torch.optim.Optimizer) -> Any:
        optimizer.step()
        return {"loss": kept["loss"] * 0.99}

    model = a_model()
    assert found({"loss": torch.tensor(2.3)}, falls, model, Temperature()) == ""


def test_a_layer_that_has_not_seen_its_first_input_does_not_end_training(caplog: pytest.LogCaptureFixture) -> None:
    """Parameters of such a layer have no elements yet. The look goes on."""
    model, later = a_model(), torch.nn.Sequential(*(torch.nn.LazyLinear(3) for _ in range(6)))
    averages = Averages([model], [model])
    assert averages.look([sys._getframe(0)]) == ""
    assert (averages.is_over, len(later), caplog.text) == (False, 6, "")


def test_a_look_that_fails_ends_no_training(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Training needs no look. The log has the error, and no further look is made."""
    model = a_model()
    averages = Averages([model], [model])
    monkeypatch.setattr(averages, "_copies", lambda _: next(iter([])))
    assert averages.look([sys._getframe(0)]) == ""
    assert averages.is_over
    assert "averages of the model not looked for" in caplog.text


def test_a_large_collection_of_the_script_is_not_looked_into() -> None:
    """A dataset in a variable costs nothing. What stands beside it is found."""
    model, dataset = a_model(), [0] * 1_000_000
    averages = Averages([model], [model])
    assert averages.look([sys._getframe(0)]) == ""
    assert len(dataset) == 1_000_000
    assert found(copy.deepcopy(model), follows, model) == "kept"
