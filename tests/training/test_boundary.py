"""State to which a rank goes back when its step is repeated, and cases in which it cannot go back."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import nn

from rekindle_training.adapter.boundary import Boundary
from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.gradients import CannotGoBack
from rekindle_training.adapter.state import Stateful
from rekindle_training.adapter.trained import Trained


class Counter:
    """A small object that moves on in each step."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Large:
    """An average of the model, as scripts have it."""

    def __init__(self) -> None:
        self.average = torch.zeros(400_000)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state["average"]


class Growing(nn.Module):
    """Registers and drops buffers in its forward pass."""

    seen: torch.Tensor
    first: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("first", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x.detach().mean().reshape(1)])
        if hasattr(self, "first"):
            del self.first
            self.register_buffer("second", torch.ones(1))
        return x


class Scaled(nn.Module):
    """Keeps a number that is no tensor, a buffer that changes without being counted, and one whose elements are one."""

    book: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0
        self.register_buffer("book", torch.zeros(60_000))
        self.register_buffer("shared", torch.zeros(1).expand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale *= 2
        self.book.data.add_(1)
        return x * self.scale

    def get_extra_state(self) -> float:
        return self.scale

    def set_extra_state(self, scale: float) -> None:
        self.scale = scale


class Rank:
    """A rank with its model, and with everything that a step changes before its update."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.scaled = Scaled()
        self.model = nn.Sequential(self.linear, nn.BatchNorm1d(4), nn.Dropout(0.5), Growing(), self.scaled)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=torch.tensor(0.1))
        self.counter, self.large, self.data = Counter(), Large(), Counter()
        shared: dict[str, Stateful] = {"state[0]": self.counter, "state[1]": self.large}
        self.trained = Trained(self.model, self.optimizer, data=self.data, shared=shared)
        self.boundary = Boundary(self.trained)

    def begin(self) -> None:
        """Does everything that comes before the update."""
        self.model(torch.rand(8, 4)).sum().backward()
        random.random()
        self.model.eval()
        self.linear.bias.requires_grad_(not self.linear.bias.requires_grad)
        self.counter.count += 1
        self.data.count += 1
        self.optimizer.param_groups[0]["lr"].mul_(0.5)
        self.optimizer.param_groups[0]["weight_decay"] = 0.3

    def step(self) -> None:
        self.begin()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.train()

    def gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def looks(self) -> bytes:
        state = {name: value for name, value in self.trained.collect().items() if name != "gradients"}
        modes = [module.training for module in self.model.modules()]
        return digest([state, self.data.state_dict(), modes])


def test_a_rank_goes_back_to_where_its_step_began() -> None:
    """Random numbers, data, buffers that changed, came or went, options and small objects are as they were, twice as well."""
    rank = Rank()
    for _ in range(2):
        rank.step()
        rank.boundary.remember()
    before, drawn = rank.looks(), []
    for _ in range(3):
        drawn.append((float(torch.rand(1)), random.random()))
        rank.begin()
        rank.boundary.go_back()
        assert rank.looks() == before
        assert rank.gradients() == []
    assert len(set(drawn)) == 1


def test_a_group_of_parameters_that_the_step_has_added_is_removed() -> None:
    """The repeated step adds it again. One that was removed in the step cannot be put back."""
    rank = Rank()
    rank.boundary.remember()
    rank.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    rank.begin()
    rank.boundary.go_back()
    assert len(rank.optimizer.param_groups) == 1
    rank.optimizer.param_groups.clear()
    with pytest.raises(CannotGoBack, match="groups of parameters were removed from an optimizer in the step"):
        rank.boundary.go_back()


def test_counters_of_modules_go_back_with_the_step() -> None:
    """Plain attributes that a forward pass changes, adds, or sets from None; other objects are left."""
    rank = Rank()
    module: Any = rank.scaled
    module.calls, module._loudness, module.seen, module.history = 3, 0.5, None, []
    rank.boundary.remember()
    module.calls, module._loudness, module.seen, module.late = 4, 0.25, True, "new"
    history = module.history = [1]
    rank.boundary.go_back()
    assert (module.calls, module._loudness, module.seen, module.history) == (3, 0.5, None, history)
    assert not hasattr(module, "late")


@pytest.mark.parametrize("gathers", [False, True], ids=["dropped in each step", "gathered over steps"])
def test_gradients_of_the_step_before_are_there_again(gathers: bool) -> None:
    """A loop that adds to the gradients of the turn before gets them back. One that drops them first costs no copy."""
    rank = Rank()
    for _ in range(3):
        rank.boundary.remember()
        if not gathers:
            rank.optimizer.zero_grad()
        rank.begin()
        rank.boundary.has_gradients(is_one_of_several=False)
    rank.boundary.remember()
    before = [gradient.clone() for gradient in rank.gradients()]
    assert rank.boundary.gathers is gathers
    if not gathers:
        rank.optimizer.zero_grad()
    rank.begin()
    rank.boundary.go_back()
    if gathers:
        assert all(now.equal(then) for now, then in zip(rank.gradients(), before, strict=True))
    else:
        assert rank.gradients() == []


@pytest.mark.parametrize("at_end", [False, True], ids=["at the beginning", "at the end"])
def test_gradients_that_a_loop_sets_to_zero_are_zero_again(at_end: bool) -> None:
    """An optimizer updates a parameter whose gradient is zero, and leaves out one that has none. So a rank that goes back has the
    same gradients, as has one that takes its state."""
    rank, replacement = Rank(), Rank()
    for _ in range(4):
        turn_with_zeros(rank, at_end=at_end)
    rank.boundary.remember()
    if not at_end:
        set_to_zero(rank)
    rank.begin()
    rank.boundary.go_back()
    assert [gradient.count_nonzero() for gradient in rank.gradients()] == [0] * 4
    state = copy.deepcopy(rank.trained.collect())
    replacement.trained.place(state)
    assert [gradient.count_nonzero() for gradient in replacement.gradients()] == [0] * 4
    assert digest(replacement.trained.collect()) == digest(state)


@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize("at_end", [False, True], ids=["at the beginning", "at the end"])
def test_a_snapshot_keeps_which_gradients_are_zero(turns: int, at_end: bool) -> None:
    """Its gradients are left out. A parameter may have been used for the first time in its step."""
    rank, restored = Rank(), Rank()
    for _ in range(turns):
        turn_with_zeros(rank, at_end=at_end)
    state = copy.deepcopy(rank.trained.collect_without_gradients())
    restored.trained.place(state)
    assert state["gradients"] == {}
    assert [gradient.count_nonzero() for gradient in restored.gradients()] == [0] * len(rank.gradients())


def test_gradients_that_a_loop_drops_are_no_part_of_a_snapshot() -> None:
    """Gradients would be zero where an undisturbed rank has none."""
    rank, restored = Rank(), Rank()
    turn_with_zeros(rank, at_end=False)
    rank.boundary.drops_gradients(rank.optimizer)
    restored.trained.place(copy.deepcopy(rank.trained.collect_without_gradients()))
    assert restored.gradients() == []


def test_gradients_that_are_not_zero_are_taken_over_as_they_are() -> None:
    """A loop that has set them to zero in each step begins to gather. The next step adds to what is there."""
    rank, replacement = Rank(), Rank()
    for _ in range(3):
        turn_with_zeros(rank, at_end=True)
    rank.boundary.remember()
    rank.begin()
    rank.boundary.has_gradients(is_one_of_several=False)
    held = [gradient.clone() for gradient in rank.gradients()]
    replacement.trained.place(copy.deepcopy(rank.trained.collect()))
    assert all(now.equal(then) for now, then in zip(replacement.gradients(), held, strict=True))
    assert any(gradient.count_nonzero() for gradient in held)


def test_a_step_that_adds_before_it_sets_to_zero_cannot_go_back() -> None:
    """Its update has used gradients that are not there any more."""
    rank = Rank()
    for _ in range(3):
        turn_with_zeros(rank, at_end=False)
    rank.boundary.remember()
    rank.begin()
    set_to_zero(rank)
    with pytest.raises(CannotGoBack, match="gradients"):
        rank.boundary.go_back()


def test_sparse_gradients_are_not_made_dense() -> None:
    """Their optimizers accept no others."""
    embedding = nn.Embedding(4, 2, sparse=True)
    trained = Trained(embedding, torch.optim.SparseAdam(embedding.parameters()))
    boundary = Boundary(trained)
    boundary.drops_gradients(trained.model, set_to_none=False)
    embedding(torch.tensor([1])).sum().backward()
    state = trained.collect_without_gradients()
    assert state["zero gradients"] == {}


def set_to_zero(rank: Rank) -> None:
    rank.boundary.drops_gradients(rank.optimizer, set_to_none=False)
    rank.optimizer.zero_grad(set_to_none=False)


def turn_with_zeros(rank: Rank, *, at_end: bool) -> None:
    rank.boundary.remember()
    if not at_end:
        set_to_zero(rank)
    rank.begin()
    rank.boundary.has_gradients(is_one_of_several=False)
    if at_end:
        set_to_zero(rank)


def test_a_loop_that_begins_to_gather_cannot_go_back_in_that_step() -> None:
    """A rank cannot go back, since its gradients were not copied yet and have changed in place."""
    rank = Rank()
    for _ in range(2):
        rank.boundary.remember()
        rank.optimizer.zero_grad()
        rank.begin()
        rank.boundary.has_gradients(is_one_of_several=False)
    rank.boundary.remember()
    rank.begin()
    with pytest.raises(CannotGoBack, match="gradients"):
        rank.boundary.go_back()


@pytest.mark.parametrize("what", ["parameter", "data", "another tensor", "average", "layer"])
def test_a_rank_whose_state_changed_before_the_update_cannot_go_back(what: str) -> None:
    """A change of parameters and large objects before the update is found, since they are not copied at each step."""
    rank = Rank()
    rank.boundary.remember()
    with torch.no_grad():
        if what == "parameter":
            rank.linear.weight.add_(1)
        elif what == "data":
            rank.linear.weight.data.mul_(0.9)
        elif what == "another tensor":
            rank.linear.weight.data = torch.ones(4, 4)
        elif what == "average":
            rank.large.average.add_(1)
        else:
            rank.linear.register_parameter("late", nn.Parameter(torch.zeros(1)))
    with pytest.raises(CannotGoBack):
        rank.boundary.go_back()


@pytest.mark.parametrize("what", ["another tensor", "a view of it", "resized", "added", "frozen", "freed"])
def test_a_parameter_that_changed_between_two_steps_is_that_of_the_next(what: str) -> None:
    """The step goes back to it, and a change in the step is found."""
    rank = Rank()
    late = nn.Parameter(torch.zeros(6, 4))
    rank.linear.register_parameter("late", late)
    rank.boundary.remember()
    if what == "another tensor":
        rank.linear.weight.data = torch.ones(4, 4)
    elif what == "a view of it":
        rank.linear.weight.data = rank.linear.weight.data.t()
    elif what == "resized":
        late.data.resize_(60, 40).fill_(1)
    elif what == "added":
        rank.linear.register_parameter("later", nn.Parameter(torch.ones(3)))
    elif what == "frozen":
        rank.linear.weight.requires_grad_(False)
    else:
        late.data = torch.zeros(0)
    rank.boundary.remember()
    before = rank.looks()
    rank.begin()
    rank.boundary.go_back()
    assert rank.looks() == before
    assert rank.linear.weight.requires_grad is (what != "frozen")
    rank.linear.weight.data.mul_(0.9)
    with pytest.raises(CannotGoBack):
        rank.boundary.go_back()


@pytest.mark.parametrize("changed", [slice(0, 1), slice(-1, None), slice(100, 110), slice(None)])
def test_an_update_of_many_parameters_that_fails_in_its_middle_is_found(changed: slice) -> None:
    """The first ones, the last ones or some in a row have changed, although not every parameter is watched."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(200)))
    boundary = Boundary(Trained(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    boundary.remember()
    for parameter in list(model.parameters())[changed]:
        parameter.data.add_(1)
    with pytest.raises(CannotGoBack, match="changed before the update"):
        boundary.go_back()


def test_a_parameter_that_is_replaced_in_a_step_is_found() -> None:
    """The value of the new one does not matter."""
    rank = Rank()
    rank.boundary.remember()
    rank.linear.weight = nn.Parameter(rank.linear.weight.detach().clone())
    with pytest.raises(CannotGoBack, match="replaced in the step"):
        rank.boundary.go_back()


def test_layers_that_come_while_training_runs_are_remembered_too() -> None:
    """A buffer is remembered that belongs to a layer added after the first step."""
    rank = Rank()
    rank.boundary.remember()
    late = nn.BatchNorm1d(4)
    rank.model.append(late)
    rank.boundary.remember()
    rank.begin()
    assert late.num_batches_tracked == 1
    rank.boundary.go_back()
    assert late.num_batches_tracked == 0


class Many:
    """A thousand small tensors."""

    def __init__(self) -> None:
        self.sums = [torch.zeros(1) for _ in range(1000)]

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = state["sums"]


def test_objects_that_are_many_together_are_not_copied_in_each_step() -> None:
    """The bound holds for all of them together, not for each; a change of one that is not copied is found."""
    model = nn.Linear(2, 2)
    objects = {f"state[{number}]": Many() for number in range(60)}
    boundary = Boundary(Trained(model, torch.optim.SGD(model.parameters()), None, {**objects, "counter": Counter()}))
    assert set(boundary.small) == {"state[0]", "counter"}
    boundary.remember()
    boundary.go_back()
    objects["state[30]"].sums[500] += 1
    with pytest.raises(CannotGoBack, match="a large object of `state` changed before the update"):
        boundary.go_back()
