"""What a script trains and its session was not given: refused with words, before a replacement would lack it."""

import pytest
import torch

from rekindle_training.adapter.forgotten import Optimizers, refuse_strange_parameters


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_an_optimizer_that_updates_in_step_after_step_is_refused() -> None:
    """A second one, or another than the one that was given."""
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
    """As one that looks for a disturbance of the input."""
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
    """What a script trains, as one object with a state."""

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
    """Nothing of it is left behind a step."""
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
