"""What a replacement gets of its replica, and a restarted job of its checkpoint: everything that the next step depends on, in
place, and not one bit otherwise.
"""

import copy
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from rekindle_training.adapter import copying, state
from rekindle_training.adapter import digest as digest_module
from rekindle_training.adapter.checkpoint import Checkpoints
from rekindle_training.adapter.copying import ALONE
from rekindle_training.adapter.digest import CHUNK, digest, sums
from rekindle_training.adapter.skeleton import Slot, slot_of
from rekindle_training.adapter.trained import Trained
from tests.training.pair import handed_over


class Counted(torch.nn.Module):
    """A module with state that is no tensor, as one that scales to eight bits has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.count = 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return given * self.weight

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, state: int) -> None:
        self.count = state


class Growing(torch.nn.Module):
    """Registers a buffer in its first pass, and lets it grow."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, given.detach().sum().reshape(1)])
        if not hasattr(self, "first"):
            self.register_buffer("first", given.detach().clone())
        return given * self.weight


class Masters(torch.optim.Optimizer):
    """Steps in 32 bits for parameters of 16."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                master = self.state[parameter].setdefault("master", parameter.detach().float())
                master -= group["lr"] * parameter.grad.float()
                parameter.data.copy_(master)


def a_model(kind: type[torch.nn.Module] = Counted) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), kind())


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def masters(model: torch.nn.Module) -> torch.optim.Optimizer:
    return Masters(model.to(torch.bfloat16).parameters())


def a_rank(
    kind: type[torch.nn.Module] = Counted, optimizer_of: Callable[[torch.nn.Module], torch.optim.Optimizer] = adam
) -> Trained:
    """The model of a rank that begins, with an optimizer, a scheduler, a scaler and an average."""
    model = a_model(kind)
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2)
    shared: dict[str, Any] = {"scheduler": scheduler, "scaler": scaler}
    if kind is not Growing:  # torch cannot average what grows
        shared["average"] = torch.optim.swa_utils.AveragedModel(model)
    return Trained(model, optimizer, shared=shared)


def step(rank: Trained, number: int) -> None:
    shared: dict[str, Any] = dict(rank.shared)
    given = torch.full((4, 3), float(number)) + torch.arange(12).view(4, 3)
    rank.optimizer.zero_grad()
    loss = rank.model(given.to(next(rank.model.parameters()).dtype)).pow(2).mean()
    shared["scaler"].scale(loss).backward()
    shared["scaler"].step(rank.optimizer)
    shared["scaler"].update()
    if "average" in shared:
        shared["average"].update_parameters(rank.model)
    shared["scheduler"].step()


@pytest.fixture
def group() -> Iterator[None]:
    """Of one rank: checkpoints are written by all ranks together."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


Way = Callable[[Trained, Trained, Path], None]


def handed(theirs: Trained, mine: Trained, _: Path) -> None:
    mine.place(copy.deepcopy(theirs.collect()))


def written_and_read(theirs: Trained, mine: Trained, folder: Path) -> None:
    theirs.write(Checkpoints(folder, 0), 3)
    mine.read(Checkpoints(folder, 0), 3)


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


class Plain(torch.optim.Optimizer):
    """Written by somebody who never heard of closures."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter].setdefault("kept", torch.zeros_like(parameter))
            parameter.data -= 0.01 * kept.add_(parameter.grad)


def a_table(optimizer_of: Callable[..., torch.optim.Optimizer], *, sparse: bool) -> Trained:
    torch.manual_seed(0)
    model = torch.nn.Embedding(5, 3, sparse=sparse)
    return Trained(model, optimizer_of(model.parameters()))


def look_up(rank: Trained) -> None:
    def loss() -> torch.Tensor:
        rank.optimizer.zero_grad()
        found: torch.Tensor = rank.model(torch.tensor([0, 3])).pow(2).sum()
        found.backward()
        return found

    if isinstance(rank.optimizer, torch.optim.LBFGS):
        rank.optimizer.step(loss)
    else:
        loss()
        rank.optimizer.step()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("optimizer_of", [torch.optim.LBFGS, torch.optim.SparseAdam, Plain])
def test_optimizers_that_cannot_step_without_a_gradient_go_on_from_a_checkpoint(
    tmp_path: Path, optimizer_of: Callable[..., torch.optim.Optimizer]
) -> None:
    """What torch's own reading begins with, a step that makes their state, is nothing that they can do."""
    before, after = (a_table(optimizer_of, sparse=optimizer_of is torch.optim.SparseAdam) for _ in range(2))
    for _ in range(2):
        look_up(before)
    written_and_read(before, after, tmp_path)
    for rank in (before, after):
        look_up(rank)
    assert digest(after.collect()) == digest(before.collect())


@pytest.mark.usefixtures("group")
def test_a_checkpoint_is_read_by_other_tools(tmp_path: Path) -> None:
    """By torch's own reader of distributed checkpoints, with the names that parameters have in the model, also of tied ones."""
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "last": torch.nn.Linear(2, 2)})
    model["last"].weight = model["first"].weight
    rank = Trained(model, adam(model))
    model["first"](model["last"](torch.ones(1, 2))).sum().backward()
    rank.optimizer.step()
    rank.write(Checkpoints(tmp_path, 0), 3)
    found = {"model": {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}}
    moment = {"state.first.weight.exp_avg": torch.zeros(2, 2)}
    dcp.load({**found, "optimizer": moment}, checkpoint_id=tmp_path / "checkpoints" / "step-00000003")
    assert digest(found["model"]) == digest(dict(model.state_dict()))
    assert torch.equal(moment["state.first.weight.exp_avg"], rank.optimizer.state[model.get_parameter("first.weight")]["exp_avg"])


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
    """Where a turn of the loop is a part of a batch, what the parts before have brought belongs to the next step."""
    replica, replacement = a_rank(), a_rank()
    replica.model(torch.ones(4, 3)).sum().backward()
    replacement.place(copy.deepcopy(replica.collect()))
    for theirs, mine in zip(replica.model.parameters(), replacement.model.parameters(), strict=True):
        assert theirs.grad is not None
        assert mine.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_a_buffer_that_is_gone_is_gone_on_a_replacement() -> None:
    """What was kept for the first steps only is no reason for a switch to fail."""
    replica, replacement = (Trained(model, adam(model)) for model in (Remembering(), Remembering()))
    replica.model.register_buffer("seen", None)
    replacement.place(copy.deepcopy(replica.collect()))
    assert dict(replacement.model.named_buffers()).keys() == {"last"}
    assert digest(replacement.collect()) == digest(replica.collect())


def test_a_parameter_that_was_added_later_is_no_buffer_on_a_replacement() -> None:
    """It is refused by its name."""
    replica, replacement = a_rank(), a_rank()
    replica.model.register_parameter("added", torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(state.StateMismatch, match="parameter added"):
        replacement.place(copy.deepcopy(replica.collect()))


def test_what_hooks_add_to_an_optimizers_state_is_carried() -> None:
    """By the hooks that take it out again."""

    def a_rank_with_hooks(kept: int) -> Trained:
        rank = a_rank()
        rank.optimizer.defaults["kept"] = kept
        rank.optimizer.register_state_dict_post_hook(lambda one, content: {**content, "kept": one.defaults["kept"]})
        rank.optimizer.register_load_state_dict_pre_hook(lambda one, content: one.defaults.update(kept=content["kept"]))
        return rank

    replica, replacement = a_rank_with_hooks(1), a_rank_with_hooks(0)
    replacement.place(copy.deepcopy(replica.collect()))
    assert replacement.optimizer.defaults["kept"] == 1


def test_a_default_device_is_nothing_to_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script whose tensors are made on an accelerator has its state handed over all the same."""
    sent: list[torch.Tensor] = []
    monkeypatch.setattr("torch.distributed.send", lambda tensor, _: sent.append(tensor.clone()))
    monkeypatch.setattr("torch.distributed.recv", lambda tensor, _: tensor.copy_(sent.pop(0)))
    theirs = {"a": torch.arange(3), "b": torch.ones(3)}
    digest_module._weights.cache_clear()
    with torch.device("meta"):
        copying.send(theirs, 1)
        received, expected = copying.receive(0, {})
        assert digest(received) == expected


def test_tensors_that_are_there_are_filled_in_place() -> None:
    """Whoever holds one of the model's tensors, such as DDP or a compiled graph, holds the right one afterwards."""
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
    """By the name of the argument, or of the tensor, with what to do."""
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


class Pair(NamedTuple):
    first: Any
    second: Any


STATE = {
    "words": torch.arange(2 * CHUNK + 3, dtype=torch.int64),
    "odd": torch.arange(5, dtype=torch.bfloat16)[1:],
    "array": np.arange(4),
    "bytes": b"abc",
    "set": {3, 1},
    "pair": Pair(1, (2.0, None)),
    "counts": Counter("abba"),
    "defaults": defaultdict(list, {"a": [1]}),
    "last": deque([torch.ones(2), 1], 3),
    "scalar": np.float32(1),
    "empty": {},
}


def changed(key: str, value: Any) -> dict[str, Any]:
    return {**STATE, key: value}


def swapped(tensor: torch.Tensor, one: int, other: int) -> torch.Tensor:
    found = tensor.clone()
    found[one], found[other] = tensor[other], tensor[one]
    return found


@pytest.mark.parametrize(
    "other",
    [
        changed("words", swapped(torch.arange(2 * CHUNK + 3), 5, 6)),
        changed("words", swapped(torch.arange(2 * CHUNK + 3), 5, 5 + CHUNK)),
        changed("words", torch.arange(2 * CHUNK + 3).view(torch.int32)),
        changed("words", torch.arange(2 * CHUNK + 3).view(1, -1)),
        changed("odd", torch.tensor([1, 2, 3, 4.03125], dtype=torch.bfloat16)),
        changed("odd", torch.tensor([1, 2, 3, 4], dtype=torch.float16)),
        changed("array", np.arange(4) + 1),
        changed("array", np.arange(4).reshape(2, 2)),
        changed("bytes", b"abd"),
        changed("set", {3, 2}),
        changed("pair", Pair(1, (2.0, 0))),
        changed("pair", Pair(True, (2.0, None))),
        changed("pair", Pair("1", (2.0, None))),
        changed("last", deque([torch.zeros(2), 1], 3)),
        changed("scalar", np.float32(2)),
        changed("empty", []),
        changed("pair", {0: 1, 1: (2.0, None)}),
    ],
    ids=[
        "neighbours",
        "chunks",
        "type",
        "shape",
        "last bits",
        "half",
        "array",
        "array's shape",
        "bytes",
        "set",
        "none",
        "bool",
        "text",
        "deque",
        "scalar",
        "empty",
        "mapping",
    ],
)
def test_the_digest_sees_every_difference(other: dict[str, Any]) -> None:
    """Content, order, shape and type of tensors and arrays, and every plain value."""
    assert digest(other) != digest(STATE)


def test_the_digest_is_of_the_content_only() -> None:
    """Not of how a tensor lies in memory, nor of the order of a mapping or a set."""
    turned = torch.arange(6).view(2, 3).T.contiguous().T
    assert digest({"a": turned, "b": {1, 2}}) == digest({"b": {2, 1}, "a": torch.arange(6).view(2, 3)})
    assert digest(dict(reversed(STATE.items()))) == digest(STATE)


Hashed = Callable[[torch.Tensor], bytes]
of_hosts_and_of_accelerators = pytest.mark.parametrize("hashed", [digest, sums])


@of_hosts_and_of_accelerators
def test_one_changed_bit_changes_the_digest(hashed: Hashed) -> None:
    """Wherever it is: in the first word, the last one, or the bytes behind it."""
    content = torch.zeros(CHUNK * 8 + 8 + 3, dtype=torch.uint8)
    digests = {hashed(content)}
    for place in (0, CHUNK * 8 - 1, CHUNK * 8, CHUNK * 8 + 7, CHUNK * 8 + 8, CHUNK * 8 + 10):
        flipped = content.clone()
        flipped[place] ^= 128
        digests.add(hashed(flipped))
    assert len(digests) == 7


@of_hosts_and_of_accelerators
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex128, torch.int64, torch.uint8])
def test_the_digest_sees_the_highest_bits(dtype: torch.dtype, hashed: Hashed) -> None:
    """Signs and exponents as well as what is lowest: two words whose upper bits change do not make up for each other."""
    content = torch.arange(1, 65).to(dtype)
    words = content.view(torch.uint8).view(-1, 8)
    digests = {hashed(content)}
    for bit in range(8):
        flipped = words.clone()
        flipped[2:4, 7] ^= 1 << bit
        digests.add(hashed(flipped.view(-1).view(dtype)))
    assert len(digests) == 9


@of_hosts_and_of_accelerators
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_digest_sees_signs(dtype: torch.dtype, hashed: Hashed) -> None:
    """Of a tensor that is negated, and of zeros."""
    content = torch.arange(1, 17).to(dtype)
    zeros = torch.zeros(16, dtype=dtype)
    assert hashed(content) != hashed(-content)
    assert hashed(zeros) != hashed(-zeros)


@of_hosts_and_of_accelerators
def test_words_that_change_places_change_the_digest(hashed: Hashed) -> None:
    """Neighbours, and words of the same place in two chunks."""
    content = torch.arange(2 * CHUNK + 3)
    assert len({hashed(one) for one in (content, swapped(content, 5, 6), swapped(content, 5, 5 + CHUNK))}) == 3


def test_tensors_of_all_types_share_a_message() -> None:
    """Parameters of 16 bits with moments of 32 are one message; a large tensor is one by itself; an empty one is in none."""
    small = [Slot((64,), dtype, "cpu") for _ in range(200) for dtype in (torch.bfloat16, torch.float32, torch.float32)]
    large = Slot((ALONE,), torch.uint8, "cpu")
    assert len(list(copying.buckets(small))) == 1
    assert list(copying.buckets([*small[:2], large, small[2], Slot((0, 3), torch.int8, "cpu")])) == [[2], [0, 1, 3]]


def test_a_state_is_handed_over_between_processes() -> None:
    """Tensors of all kinds arrive, to the digest; those that fit are received where they lie, the others beside."""
    theirs = {
        **STATE,
        "empty": torch.zeros(0, 3),
        "number": torch.tensor(7.5, dtype=torch.float64),
        "flags": torch.tensor([True, False, True]),
        "complex": torch.tensor([1 + 2j]),
        "turned": torch.arange(6.0).view(2, 3).T,
        "expanded": torch.ones(1).expand(4),
        "large": torch.arange(ALONE // 4 + 1, dtype=torch.int32),
    }
    mine = {key: torch.zeros_like(value) for key, value in theirs.items() if isinstance(value, torch.Tensor)}
    del mine["flags"]
    answer = handed_over(theirs, mine)
    assert answer.digest == answer.expected == digest(theirs)
    assert answer.in_place == {"words", "odd", "number", "complex", "turned", "expanded", "large"}
    assert answer.kinds.items() >= {("pair", "Pair"), ("counts", "Counter"), ("defaults", "defaultdict")}


def test_a_tensor_lies_in_memory_as_it_did_on_the_replica() -> None:
    """Fused optimizers walk over memory: a moment in another order than its parameter is that of other elements."""
    theirs = {
        "small": torch.arange(16.0).view(1, 2, 2, 4).contiguous(memory_format=torch.channels_last),
        "large": torch.arange(ALONE * 2.0).view(2, 2, 2, -1).contiguous(memory_format=torch.channels_last),
        "turned": torch.arange(6.0).view(2, 3).T,
        "columns": torch.arange(8.0).view(2, 4)[:, ::2],
    }
    expected = {**{key: tensor.stride() for key, tensor in theirs.items()}, "columns": (2, 1)}
    for mine in ({}, {key: torch.zeros_like(value) for key, value in theirs.items()}):
        answer = handed_over(theirs, mine)
        assert answer.digest == answer.expected == digest(theirs)
        assert answer.strides == expected
        assert answer.in_place == mine.keys()


def test_tensors_that_are_one_on_one_side_only_do_not_mix() -> None:
    """An average that is the parameter itself until its first update, or a rate that all groups have in common."""
    theirs = {"weight": torch.ones(3), "average": torch.full((3,), 2.0)}
    shared = torch.zeros(3)
    answer = handed_over(theirs, {"weight": shared, "average": shared})
    assert answer.digest == answer.expected == digest(theirs)
    assert answer.in_place == {"weight"}


@pytest.mark.parametrize("size", [4, ALONE])
def test_a_conjugated_tensor_is_sent_as_what_it_is(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory holds something else than its elements, until they are asked for; so does that of a negated one."""
    sent: list[torch.Tensor] = []
    monkeypatch.setattr("torch.distributed.send", lambda tensor, _: sent.append(tensor.clone()))
    conjugated = torch.full((size,), 1 + 2j).conj()
    for tensor in (conjugated, conjugated.resolve_conj(), torch._neg_view(torch.ones(size)), -torch.ones(size)):
        copying.send([tensor], 1)
    messages = [torch.cat([one.view(torch.uint8) for one in sent[begin : begin + 5]]) for begin in range(0, 20, 5)]
    assert torch.equal(messages[0], messages[1])
    assert torch.equal(messages[2], messages[3])


def test_slots_say_what_has_to_be_made() -> None:
    """Shape, type and device, and so the bytes."""
    assert slot_of(torch.zeros(2, 3, dtype=torch.bfloat16)) == Slot((2, 3), torch.bfloat16, "cpu")
    assert Slot((2, 3), torch.bfloat16, "cpu").bytes == 12
