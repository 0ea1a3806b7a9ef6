"""State that a script trains and did not give to its session: refused before a replacement would lack it."""

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from rekindle_training.adapter.unregistered_state import Optimizers, ScalersAndAverages, refuse_strange_parameters


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
    """An object with a state that holds what a script trains."""

    def __init__(self) -> None:
        self.model, self.optimizer = trained()


class HasMore(torch.nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize("holder", [Keeps(), HasMore(2, 2)], ids=["an object", "a module's extra state"])
def test_what_an_object_of_the_script_carries_may_update(holder: object) -> None:
    """The session was given what is around it, and its tensors may be its own."""
    (model, given), (_, carried) = trained(), trained()
    step = [0]
    with Optimizers([model, given, holder], lambda: step[0]).watched():
        for step[0] in (1, 2):
            carried.step()
    refuse_strange_parameters([model, carried, holder])


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
