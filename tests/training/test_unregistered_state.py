"""State that a script trains and did not give to its session: refused before a replacement would lack it."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from rekindle_training.adapter.unregistered_state import (
    Optimizers,
    ScalersAndAverages,
    Schedulers,
    refuse_strange_parameters,
)


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_an_optimizer_that_updates_in_step_after_step_is_refused() -> None:
    """A second optimizer, or another than the given one, is refused."""
    (_, given), (_, forgotten) = trained(), trained()
    step = [1]
    for parameter in forgotten.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    with Optimizers([given], lambda: step[0]).watched():
        given.step()
        forgotten.step()
        forgotten.step()
        step[0] = 2
        given.step()
        with pytest.raises(TypeError, match="SGD updates, and was not given to the session"):
            forgotten.step()
    forgotten.step()


def test_an_optimizer_of_one_step_or_outside_of_steps_is_nobody_s_affair() -> None:
    """An optimizer that looks for a disturbance of the input is accepted."""
    _, given = trained()
    step = [0]
    with Optimizers([given], lambda: step[0]).watched():
        for step[0] in (1, 2, 3):
            trained()[1].step()
        step[0] = 0
        _, elsewhere = trained()
        for _ in range(3):
            elsewhere.step()


class Keeps:
    """An object of the script's own, whose state has what is in it in some form."""

    def __init__(self, form: Callable[[torch.Tensor], object]) -> None:
        self.model, self.optimizer = trained()
        self._form = form

    def state_dict(self) -> dict[str, object]:
        moments = [entry["momentum_buffer"] for entry in self.optimizer.state.values()]
        return {"held": [self._form(one.detach()) for one in (*self.model.parameters(), *moments)]}


class HasMore(torch.nn.Linear):
    """A module with extra state."""

    keeps: Keeps

    def __init__(self, keeps: Keeps) -> None:
        super().__init__(2, 2)
        object.__setattr__(self, "keeps", keeps)  # not as a part of the module

    def get_extra_state(self) -> object:
        return self.keeps.state_dict()


FORMS: dict[str, Callable[[torch.Tensor], object]] = {
    "tensors": lambda tensor: tensor,
    "copies": torch.clone,
    "a form of its own": lambda tensor: tensor.numpy().tobytes(),
}


def steps(optimizer: torch.optim.Optimizer, given: list[object]) -> None:
    """Updates in two steps of a session that was given some objects."""
    step = [0]
    with Optimizers(given, lambda: step[0]).watched():
        for step[0] in (1, 2):
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("holder", [lambda keeps: keeps, HasMore], ids=["an object", "a module's extra state"])
def test_what_an_object_of_the_script_carries_may_update(
    holder: Callable[[Keeps], object], form: Callable[[torch.Tensor], object]
) -> None:
    """The session was given the object around it, of which the state has its tensors."""
    (model, given), keeps = trained(), Keeps(form)
    steps(keeps.optimizer, [model, given, holder(keeps)])
    refuse_strange_parameters([model, given, keeps.optimizer, holder(keeps)])


def test_an_object_of_the_script_hides_no_forgotten_optimizer_or_module() -> None:
    """An object in `state`, such as an average, has nothing of the optimizer and of the loss that were not given."""
    (model, given), (_, forgotten), average = trained(), trained(), Keeps(torch.clone)
    with pytest.raises(TypeError, match="SGD updates, and was not given to the session"):
        steps(forgotten, [model, given, average])
    with pytest.raises(ValueError, match=r"session\(optimizer\): SGD updates 2 tensors that are no parameters of the model"):
        refuse_strange_parameters([model, forgotten, average])


class Around(torch.optim.Optimizer):
    """An optimizer around another one, in the way of SAM: its own state has nothing of the other one's."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.schedulers = [torch.optim.lr_scheduler.StepLR(self, 1)]

    def step(self, closure: Any = None) -> Any:
        self.base.step()


class Whole(Around):
    """The same with the state of the other one, as accelerate's optimizers have it."""

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()


def test_an_optimizer_around_another_one_has_the_state_of_both() -> None:
    """A replacement, or a restart, would begin with the moments of the inner one again, if they are in no state."""
    model, _ = trained()
    steps(whole := Whole(model.parameters()), [model, whole])
    with pytest.raises(TypeError, match=r"SGD updates, and was not given .* add it to session\(state="):
        steps(around := Around(model.parameters()), [model, around])
    steps(around := Around(model.parameters()), [model, around, around.base])


def test_an_optimizer_of_a_library_hides_no_forgotten_module_scheduler_or_scaler() -> None:
    """The checks are those for torch's own optimizers. A scheduler that the optimizer itself contains is accepted."""
    model, _ = trained()
    optimizer, loss = Around(model.parameters()), torch.nn.Linear(2, 1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    with Schedulers([model, optimizer]).watched():
        optimizer.schedulers[0].step()
        with pytest.raises(TypeError, match="StepLR sets the options of an optimizer, and was not given"):
            scheduler.step()
    with (
        ScalersAndAverages([model, optimizer]).watched(),
        pytest.raises(TypeError, match="GradScaler scales losses, and was not"),
    ):
        torch.amp.GradScaler("cpu").update()
    optimizer.add_param_group({"params": loss.parameters()})
    with pytest.raises(ValueError, match=r"session\(optimizer\): Around updates 2 tensors that are no parameters of the model"):
        refuse_strange_parameters([model, optimizer])
    refuse_strange_parameters([model, optimizer, loss])


def test_an_optimizer_without_a_state_of_tensors_that_are_not_trained_may_update() -> None:
    """An optimizer that keeps nothing after a step is accepted."""
    model, given = trained()
    disturbance = torch.zeros(2, requires_grad=True)
    disturbance.grad = torch.ones(2)
    finds = torch.optim.SGD([disturbance], lr=0.1)
    step = [0]
    with Optimizers([model, given], lambda: step[0]).watched():
        for step[0] in (1, 2):
            finds.step()


def test_an_optimizer_of_other_tensors_than_the_model_s_is_refused() -> None:
    """The session was given another model than the one that is trained."""
    model, optimizer = trained()
    other, _ = trained()
    with pytest.raises(ValueError, match=r"session\(optimizer\): SGD updates 2 tensors that are no parameters of the model"):
        refuse_strange_parameters([other, optimizer])
    refuse_strange_parameters([other, optimizer, model])


def test_an_average_of_the_model_that_was_not_given_is_refused() -> None:
    """A replacement would average from the beginning again; an average of another model is not refused."""
    model, optimizer = trained()
    average, other = AveragedModel(model), torch.nn.Linear(2, 2)
    with ScalersAndAverages([model, optimizer, average]).watched():
        average.update_parameters(model)
    with ScalersAndAverages([model, optimizer]).watched():
        AveragedModel(other).update_parameters(other)
        with pytest.raises(TypeError, match=r"AveragedModel averages the model, and was not given .* session\(state="):
            average.update_parameters(torch.nn.Sequential(model))


def test_a_scaler_that_was_not_given_is_refused_unless_it_is_disabled() -> None:
    """A replacement would scale losses by another number than the other ranks."""
    model, optimizer = trained()
    scaler, disabled = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    with ScalersAndAverages([model, optimizer]).watched():
        disabled.update()
        with pytest.raises(TypeError, match=r"GradScaler scales losses, and was not given to the session"):
            scaler.update()
    with ScalersAndAverages([model, optimizer, scaler]).watched():
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
