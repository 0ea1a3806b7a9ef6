"""State that a replacement takes from its replica, and a restarted job from its checkpoint: everything on which the next step
depends."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rekindle_training.adapter import state
from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.trained import Trained
from tests.training.trained_ranks import (
    Counted,
    Growing,
    Masters,
    a_model,
    a_rank,
    adam,
    masters,
    step,
    torch_optimizer,
    written_and_read,
)

Way = Callable[[Trained, Trained, Path], None]


def handed(theirs: Trained, mine: Trained, _: Path) -> None:
    mine.place(copy.deepcopy(theirs.collect()))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("way", [handed, written_and_read])
@pytest.mark.parametrize(
    ("kind", "optimizer_of"),
    [(Counted, adam), (Growing, adam), (Counted, masters)],
    ids=["extra state", "buffers that grow", "masters of 32 bits"],
)
def test_a_replacement_goes_on_as_its_replica_would(
    tmp_path: Path, kind: type[torch.nn.Module], optimizer_of: Callable[[torch.nn.Module], torch.optim.Optimizer], way: Way
) -> None:
    """Scaler, average, schedule, extra state and what the optimizer keeps come along: further steps are the same to the bit."""
    replica, replacement = a_rank(kind, optimizer_of), a_rank(kind, optimizer_of)
    for number in range(3):
        step(replica, number)
    way(replica, replacement, tmp_path)
    assert digest(replacement.collect()) == digest(replica.collect())
    for number in range(3, 6):
        step(replica, number)
        step(replacement, number)
    assert digest(replacement.collect()) == digest(replica.collect())


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("way", [handed, written_and_read])
def test_what_a_script_has_named_before_its_session_sets_options_after_it(tmp_path: Path, way: Way) -> None:
    """A group of parameters, and a learning rate that is a tensor, stay the same objects when a state is taken."""
    rates = [torch.tensor(0.01), torch.tensor(0.01)]
    made = iter(rates)

    def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=next(made), foreach=False)

    replica, replacement = a_rank(Counted, optimizer_of), a_rank(Counted, optimizer_of)
    optimizer: Any = replacement.optimizer
    group = optimizer.param_groups[0]
    step(replica, 1)
    way(replica, replacement, tmp_path)
    assert digest(replacement.collect()) == digest(replica.collect())
    group["weight_decay"] = 0.5
    rates[1].fill_(0.5)
    assert optimizer.param_groups[0]["weight_decay"] == 0.5
    assert optimizer.param_groups[0]["lr"].item() == 0.5


class Remembering(torch.nn.Module):
    """Keeps a buffer that grows, and one that no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.seen: torch.Tensor | None
        self.register_buffer("seen", torch.zeros(2))
        self.last: torch.Tensor
        self.register_buffer("last", torch.zeros(2), persistent=False)


def two_of_each(kind: type[torch.nn.Module] = Remembering) -> tuple[Trained, torch.nn.Module, torch.optim.Optimizer]:
    """A rank with a second model and its optimizer, whose masters have 32 bits, such as the other half of a GAN."""
    model, second = a_model(), kind().to(torch.bfloat16)
    optimizer = Masters(second.parameters())
    return Trained(model, adam(model), shared={"state[0]": second, "state[1]": optimizer}), second, optimizer


def test_a_second_model_and_its_optimizer_are_carried_as_the_first_ones() -> None:
    """Buffers that grew or that no checkpoint has come along, and masters keep their type."""
    (replica, theirs, optimizer), (replacement, mine, _) = two_of_each(), two_of_each()
    for parameter in theirs.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    theirs.seen, theirs.last = torch.ones(5), torch.ones(2)
    replacement.place(copy.deepcopy(replica.collect()))
    assert digest(replacement.collect()) == digest(replica.collect())
    assert torch.equal(mine.get_buffer("seen"), torch.ones(5))
    assert torch.equal(mine.get_buffer("last"), torch.ones(2))


def test_a_parameter_that_was_frozen_or_freed_is_so_on_a_replacement() -> None:
    """A model whose layers are freed one after the other trains the same layers."""
    replica, replacement = a_rank(), a_rank()
    replica.model.get_parameter("0.weight").requires_grad = False
    replacement.model.get_parameter("0.bias").requires_grad = False
    replacement.place(copy.deepcopy(replica.collect()))
    trains = {name: parameter.requires_grad for name, parameter in replacement.model.named_parameters()}
    assert trains == {name: name != "0.weight" for name in trains}


def test_a_replacement_has_the_gradients_that_were_gathered() -> None:
    """Gradients of the earlier parts of a batch belong to the next step, and are carried to a replacement."""
    replica, replacement = a_rank(), a_rank()
    replica.model(torch.ones(4, 3)).sum().backward()
    replacement.place(copy.deepcopy(replica.collect()))
    for theirs, mine in zip(replica.model.parameters(), replacement.model.parameters(), strict=True):
        assert theirs.grad is not None
        assert mine.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_a_buffer_that_is_gone_is_gone_on_a_replacement() -> None:
    """A buffer that exists only for the first steps does not make a switch fail."""
    replica, replacement = (Trained(model, adam(model)) for model in (Remembering(), Remembering()))
    replica.model.register_buffer("seen", None)
    replacement.place(copy.deepcopy(replica.collect()))
    assert dict(replacement.model.named_buffers()).keys() == {"last"}
    assert digest(replacement.collect()) == digest(replica.collect())


def test_a_parameter_that_was_added_later_is_no_buffer_on_a_replacement() -> None:
    """A parameter that was added later is refused by its name."""
    replica, replacement = a_rank(), a_rank()
    replica.model.register_parameter("added", torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(state.StateMismatch, match="parameter added"):
        replacement.place(copy.deepcopy(replica.collect()))


def test_what_hooks_add_to_an_optimizers_state_is_carried() -> None:
    """State that hooks add is carried by the hooks that take it out again."""

    def a_rank_with_hooks(kept: int) -> Trained:
        rank = a_rank()
        torch_optimizer(rank).defaults["kept"] = kept
        torch_optimizer(rank).register_state_dict_post_hook(lambda one, content: {**content, "kept": one.defaults["kept"]})
        torch_optimizer(rank).register_load_state_dict_pre_hook(lambda one, content: one.defaults.update(kept=content["kept"]))
        return rank

    replica, replacement = a_rank_with_hooks(1), a_rank_with_hooks(0)
    replacement.place(copy.deepcopy(replica.collect()))
    assert torch_optimizer(replacement).defaults["kept"] == 1


def test_tensors_that_are_there_are_filled_in_place() -> None:
    """A holder of one of the model's tensors, such as DDP or a compiled graph, holds the right one afterwards."""
    replica, replacement = a_rank(), a_rank()
    step(replica, 1)
    before = {name: tensor.data_ptr() for name, tensor in replacement.collect()["model"].items()}
    replacement.place(copy.deepcopy(replica.collect()))
    assert {name: tensor.data_ptr() for name, tensor in replacement.collect()["model"].items()} == before


def test_another_model_is_refused_by_the_name_of_what_differs() -> None:
    """A parameter of another shape, a module that is not there, an optimizer with other groups."""
    replica = a_rank()
    other = Trained(torch.nn.Sequential(torch.nn.Linear(4, 3)), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1))
    with pytest.raises(state.StateMismatch, match=r"parameter 0\.weight is \(3, 4\) torch\.float32 here and \(3, 3\)"):
        other.place(replica.collect())
    with pytest.raises(state.StateMismatch, match="no module '2'"):
        other.place({**replica.collect(), "model": {}})
    with pytest.raises(state.StateMismatch, match="groups have other numbers of parameters"):
        other.place({**replica.collect(), "model": {}, "extra": {}})


def test_what_could_not_be_handed_over_is_refused_at_the_start() -> None:
    """The error names the argument or the tensor, and says what to do."""
    model = a_model()
    with pytest.raises(TypeError, match=r"session\(data\): DistributedSampler has no state_dict and no load_state_dict"):
        Trained(model, adam(model), data=torch.utils.data.DistributedSampler([1], 1, 0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"session\(state\[0\]\): a_model has no state_dict"):
        Trained(model, adam(model), shared={"state[0]": a_model})  # type: ignore[dict-item]
    optimizer = adam(model)
    optimizer.param_groups[0]["rates"] = {"decay": lambda: 1}
    with pytest.raises(TypeError, match=r"session\(optimizer\): .*/'decay' is a function"):
        Trained(model, optimizer)
    optimizer.param_groups[0]["rates"] = torch.eye(3).to_sparse()
    with pytest.raises(TypeError, match=r"session\(optimizer\): .*/'rates' is a sparse_coo tensor"):
        Trained(model, optimizer)
    lazy = torch.nn.LazyLinear(3)
    with pytest.raises(TypeError, match=r"session\(model\): weight is a lazy tensor"):
        Trained(lazy, adam(lazy))
    model.register_buffer("links", torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="links is a sparse_coo tensor"):
        Trained(model, adam(model))


def test_a_position_that_no_message_holds_is_refused_at_the_start() -> None:
    """A rank that could not say where it stands would be taken for lost in the next pause."""

    class Order:
        def state_dict(self) -> dict[str, Any]:
            return {"order": torch.arange(9_000_000)}

        def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
            raise NotImplementedError

    model = a_model()
    with pytest.raises(ValueError, match=r"session\(data\): the state of Order has 72\.0 MB"):
        Trained(model, adam(model), data=Order())
