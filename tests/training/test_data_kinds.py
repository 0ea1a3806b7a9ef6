"""Loaders that `rekindle_training.batches` accepts, its errors for others, and the detection of a loader that was not given."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.state import GradientState
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.data.datapipes.iter import IterableWrapper
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import rekindle_training
from rekindle_training.adapter import own
from rekindle_training.adapter.places import Places
from rekindle_training.adapter.unregistered_loaders import Loaders
from rekindle_training.data import pickled
from rekindle_training.data.kinds import refuse_raw
from tests.training.scripts.batched import Counting, Rows, Stream, content, taken

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
"""A warning of torch when torchdata makes a loader."""


class Moves(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch * 2


def prepared(loader: DataLoader[Any], **options: Any) -> Any:
    return prepare_data_loader(loader, num_processes=2, process_index=1, put_on_device=True, **options)


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (lambda: [1, 2], "accepted are a DataLoader"),
        (Rows, "accepted are a DataLoader"),
        (lambda: Moves(Rows()), "it has an __iter__ of its own; give a plain DataLoader"),
        (lambda: DataLoader(Rows(), num_workers=1, in_order=False), "leave it out"),
        (lambda: DataLoader(IterableWrapper([1])), "give a Dataset"),
        (lambda: prepared(DataLoader(Rows(), shuffle=True), rng_types=["generator"]), "use_seedable_sampler=True"),
        (lambda: prepared(DataLoader(Rows()), dispatch_batches=True), "dispatch_batches=False"),
        (lambda: skip_first_batches(prepared(DataLoader(Stream(0))), 2), "give the loader itself|skip_first_batches"),
        (lambda: prepared(DataLoader(Stream(0)), dispatch_batches=False), "give the loader itself, not prepared"),
    ],
)
def test_what_cannot_give_its_batches_again_is_refused(loader: Callable[[], Any], says: str) -> None:
    """The error names the loader, and says what to write instead."""
    with pytest.raises(TypeError, match=rf"^batches\(loader\): \w+ is not accepted: .*({says})"):
        rekindle_training.batches(loader())


@pytest.mark.parametrize("stateful", [False, True])
def test_a_loader_that_accelerate_prepared_gives_its_batches(stateful: bool) -> None:
    """Batches are on the rank's device and evened out, and have the end of an epoch that `Accelerator.accumulate` asks for."""

    def loader() -> Any:
        rows = TensorDataset(torch.arange(22))
        plain = DataLoader(rows, 4, shuffle=True, generator=torch.Generator().manual_seed(1), num_workers=1)
        return prepared(plain, device=torch.device("cpu"), use_seedable_sampler=True, use_stateful_dataloader=stateful)

    theirs, batches = loader(), rekindle_training.batches(loader())
    before, ends = [], []
    for _ in range(6):
        before += taken(batches, 1)
        ends.append(GradientState().end_of_dataloader)
    assert ends == [False, False, True] * 2
    expected = [content(batch) for _ in range(2) for batch in theirs]
    assert before[3:] == expected[3:]  # in its first epoch, a stateful one has another order than accelerate's own sampler
    assert stateful or before == expected
    again = rekindle_training.batches(loader())
    assert taken(again, 4) == before[:4]
    again.load_state_dict(batches.state_dict())
    assert taken(again, 4) == taken(batches, 4)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (lambda: DataLoader(Rows()), "DataLoader"),
        (lambda: StatefulDataLoader(Rows()), "StatefulDataLoader"),
        (lambda: DistributedSampler(Rows(), 2, 0), "DistributedSampler"),
        (lambda: nodes.Loader(nodes.IterableWrapper([1])), "Loader"),
        (lambda: nodes.IterableWrapper([1]), "IterableWrapper"),
        (lambda: prepared(DataLoader(Rows())), "DataLoaderShard"),
    ],
)
def test_a_session_takes_no_loader_itself(data: Callable[[], object], named: str) -> None:
    """A session refuses a loader and a sampler, whose positions are ahead of training."""
    with pytest.raises(
        TypeError, match=rf"session\(data\): {named} is not accepted, .* write batches = rekindle_training\.batches"
    ):
        refuse_raw(data())


def test_a_wrapper_of_a_loader_is_refused_with_what_to_give() -> None:
    """Lightning Fabric's has the attributes of its DataLoader, and the DataLoader in one of its own."""

    class FabricLoader:
        def __init__(self, loader: DataLoader[Any]) -> None:
            self.__dict__.update(loader.__dict__)
            self._dataloader = loader

        def __iter__(self) -> Iterator[Any]:
            return iter(self._dataloader)

    with pytest.raises(TypeError, match=r"FabricLoader is not accepted: .*batches\(loader\._dataloader\).*fabric\.to_device"):
        rekindle_training.batches(FabricLoader(DataLoader(Rows(), 4)))


def test_a_session_takes_what_has_a_position_of_training() -> None:
    """Batches, an object of the script's own, or nothing."""
    for data in (rekindle_training.batches(DataLoader(Rows())), Counting(), None):
        refuse_raw(data)


def test_a_loader_that_turn_after_turn_draws_from_is_refused() -> None:
    """Loaders of torch and torchdata are found, unless they were given."""
    given = rekindle_training.batches(DataLoader(Rows(), 4))
    turn = [1]
    for forgotten in (DataLoader(Rows(), 4), StatefulDataLoader(Rows(), 4, num_workers=1)):
        turn[0], drawn = 1, iter(forgotten)
        with Loaders(given, lambda: turn[0], Places()).watched():
            taken(given, 2)
            next(drawn)
            next(drawn)
            turn[0] = 2
            taken(given, 2)
            with pytest.raises(TypeError, match=r"a DataLoader gives batches in step after step, .* session\(data=batches\)"):
                next(drawn)
        next(drawn)


def test_a_loader_that_one_turn_draws_from_is_accepted() -> None:
    """An evaluation may have workers that stay, and may come between two turns of the loop."""
    evaluation = DataLoader(Rows(), 18, num_workers=1, persistent_workers=True)
    between = iter(DataLoader(Rows(), 18))
    turn = [0]
    with Loaders(None, lambda: turn[0], Places()).watched():
        for turn[0] in (1, 2):
            assert len(list(evaluation)) == 3
        turn[0] = 0
        assert len(list(between)) == 3


def test_an_object_of_the_script_may_draw_from_loaders_inside() -> None:
    """An object of the script that was given keeps the position of the loaders from which it draws."""
    turn = [1]
    drawn = iter(DataLoader(Rows(), 4))
    with Loaders(Counting(), lambda: turn[0], Places()).watched():
        for turn[0] in (1, 2, 3):
            next(drawn)


class Drawing:
    """Loader that draws numbers, and whose state is that of its generator: a tensor."""

    def __init__(self) -> None:
        self._numbers = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.rand(2, generator=self._numbers)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"numbers": self._numbers.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._numbers.set_state(state["numbers"])


def test_a_loader_whose_state_has_tensors_comes_to_the_same_position() -> None:
    """The position after a repeated batch has the bytes of the first time, as the session compares them."""
    batches = rekindle_training.batches(Drawing())
    next(batches)
    before = own.take(batches, None)
    first, position = next(batches), own.take(batches, None).data
    own.put(before, batches, None)
    assert torch.equal(next(batches), first)
    assert own.take(batches, None).data == position


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 3, dtype=torch.int64),
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor([True, False]),
    ],
    ids=["transposed", "without dimensions", "empty", "parameter", "boolean"],
)
def test_a_tensor_of_a_state_is_read_as_it_was(tensor: torch.Tensor) -> None:
    """Type, shape and content are those of the tensor. Equal plain tensors have equal bytes."""
    read = pickle.loads(pickled.dumps({"tensor": tensor}))["tensor"]
    assert (type(read), read.dtype, read.shape, read.requires_grad) == (
        type(tensor),
        tensor.dtype,
        tensor.shape,
        tensor.requires_grad,
    )
    assert torch.equal(read, tensor)
    if type(tensor) is torch.Tensor:
        assert pickled.dumps(tensor) == pickled.dumps(tensor.clone())
