"""`rekindle_training.batches`: batches of loaders of all kinds, with a position that a session puts back."""

import functools
import os
import pickle
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
)
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import rekindle_training
from tests.training.scripts.batched import LOADERS, Counting, Resumable, Rows, Stream, content, taken

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
"""A warning of torch when torchdata makes a loader."""


MORE: dict[str, Callable[[int], Any]] = {
    **LOADERS,
    "single samples": lambda rank: DataLoader(Rows(), None, sampler=DistributedSampler(Rows(), 2, rank), num_workers=1),
    "batch sampler": lambda _: DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(range(54)), 5, drop_last=False)),
    "stream without workers": lambda rank: DataLoader(Stream(rank), 4),
    "resumable without workers": lambda rank: StatefulDataLoader(Resumable(rank), 4),
    "stateful over a stream": lambda rank: StatefulDataLoader(Stream(rank), 4, num_workers=2),
    "a node": lambda _: nodes.Batcher(nodes.IterableWrapper(range(54)), 4),
    "own": lambda _: Counting(),
}


def numbers() -> tuple[Any, ...]:
    """Returns the positions of the random generators of this process."""
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state(legacy=False))


@pytest.mark.parametrize("kind", MORE)
def test_batches_follow_as_they_did_before(kind: str) -> None:
    """Batches after any batch of any epoch are the same again, in the process that drew them and in another one. The states that
    come with them are the same, too."""
    batches = rekindle_training.batches(MORE[kind](0))
    states, before = [], []
    for _ in range(32):
        states.append(pickle.dumps(batches.state_dict()))
        before += taken(batches, 1)
    assert batches.epoch > 0 or kind == "single samples"
    for first in (0, 7, 8, 14):  # at ends of epochs, too
        torch.manual_seed(first)  # which the state brings along
        for again in (batches, rekindle_training.batches(MORE[kind](0))):
            again.load_state_dict(pickle.loads(states[first]))
            assert pickle.dumps(again.state_dict()) == states[first]
            for number in range(first, first + 3):
                assert taken(again, 1) == [before[number]]
                assert pickle.dumps(again.state_dict()) == states[number + 1]


@pytest.mark.parametrize("kind", MORE)
def test_random_numbers_of_a_step_are_left_alone(kind: str) -> None:
    """A loader draws some when an epoch begins, and a sample when it is augmented: none of them is the step's."""
    batches = rekindle_training.batches(MORE[kind](0))
    before = numbers()
    first = taken(batches, 15)
    batches.load_state_dict(rekindle_training.batches(MORE[kind](0)).state_dict())
    assert taken(batches, 1) == first[:1]
    assert numbers() == before


def test_a_batch_does_not_depend_on_who_loads_it() -> None:
    """Samples have the same random numbers without workers, and with any number of them."""
    of = [rekindle_training.batches(DataLoader(Rows(), 4, shuffle=True, num_workers=workers)) for workers in (0, 1, 2)]
    first, *others = (taken(batches, 20) for batches in of)
    assert all(other == first for other in others)


@pytest.mark.same_path("workers are started by other means")
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_may_be_started_by_other_means(context: str) -> None:
    """The loader's `multiprocessing_context`: indices, and the seed that comes with them, are pickled on their way."""
    forked, started = (
        rekindle_training.batches(DataLoader(Rows(), 16, num_workers=1, multiprocessing_context=one)) for one in (None, context)
    )
    assert taken(started, 3) == taken(forked, 3)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_order_is_that_of_the_loader(persistent: bool) -> None:
    """The order is the loader's over several epochs, where the script gave it a generator or a sampler that knows its epoch."""

    rows = TensorDataset(torch.arange(20))

    def loader(sampler: Any = None) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(4)
        return DataLoader(
            rows, 3, sampler is None, sampler, generator=generator, num_workers=1, persistent_workers=persistent, drop_last=True
        )

    shuffled, plain = rekindle_training.batches(loader()), loader()
    assert [content(batch) for _ in range(3) for batch in plain] == taken(shuffled, 18)
    sampler: DistributedSampler[Any] = DistributedSampler(rows, 2, 1)
    ranks, plain = rekindle_training.batches(loader(DistributedSampler(rows, 2, 1))), loader(sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert [content(batch) for batch in plain] == taken(ranks, 3)
        assert (ranks.epoch, ranks.position) == (epoch, 3)


class Pids(Dataset[tuple[int, int]]):
    """Returns with each sample the process that loads it. `dies` names a file. The first process to load the sixth sample creates
    that file and is killed."""

    def __init__(self, dies: Path | None = None) -> None:
        self.dies = dies

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 5 and self.dies is not None and not self.dies.exists():
            self.dies.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index, os.getpid()


def test_who_goes_back_keeps_the_workers() -> None:
    """Workers load again what is to be drawn again, and nothing that they have loaded ahead is lost."""
    batches = rekindle_training.batches(DataLoader(Pids(), None, num_workers=2))
    taken(batches, 10)
    state = batches.state_dict()
    by = {pid for _, pid in (next(batches) for _ in range(6))}
    for _ in range(3):
        batches.load_state_dict(state)
        again = [next(batches) for _ in range(9)]
        assert [index for index, _ in again] == list(range(10, 19))
        assert {pid for _, pid in again} == by
    rest = [next(batches)[0] for _ in range(21)]
    assert rest == list(range(19, 40))
    batches.load_state_dict(state)
    assert next(batches)[0] == 10


def test_what_a_worker_that_died_was_to_load_is_loaded_by_another_one(tmp_path: Path) -> None:
    """The step fails, and its repetition has the same batches."""
    batches = rekindle_training.batches(DataLoader(Pids(tmp_path / "died"), None, num_workers=1, persistent_workers=True))
    taken(batches, 3)
    state = batches.state_dict()
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        taken(batches, 5)
    batches.load_state_dict(state)
    assert [next(batches)[0] for _ in range(5)] == [3, 4, 5, 6, 7]


MODULE_WIDE = np.random.default_rng(1)


def shaken(row: torch.Tensor) -> torch.Tensor:
    return row + sum(MODULE_WIDE.random() for _ in range(2))


class Holds(Dataset[torch.Tensor]):
    """Draws from generators that it holds in many places, and from one of its module."""

    def __init__(self, length: int = 24) -> None:
        self.length = length
        own, deep = np.random.RandomState(2), torch.Generator().manual_seed(3)
        self.transforms: list[Callable[[torch.Tensor], torch.Tensor]] = [
            functools.partial(self.shifted, random.Random(1)),
            self.turned,
            lambda row: row + own.rand(),
        ]
        self.deep = {"inside": [deep]}

    @staticmethod
    def shifted(numbers: random.Random, row: torch.Tensor) -> torch.Tensor:
        return row + numbers.random()

    def turned(self, row: torch.Tensor) -> torch.Tensor:
        return row + torch.rand(1, generator=self.deep["inside"][0])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        row = shaken(torch.tensor([float(index)]))
        for transform in self.transforms:
            row = transform(row)
        return row


@pytest.mark.parametrize("workers", [0, 2])
def test_generators_that_a_dataset_holds_draw_the_same_again(workers: int) -> None:
    """Generators of the dataset, its transforms and its module draw the same again. Without workers, those of the script are left
    as they were."""
    data = Holds()
    batches = rekindle_training.batches(DataLoader(data, 4, num_workers=workers))
    theirs = data.deep["inside"][0].get_state()
    before = taken(batches, 12)
    state = batches.state_dict()
    assert torch.equal(data.deep["inside"][0].get_state(), theirs)
    another = rekindle_training.batches(DataLoader(Holds(), 4, num_workers=workers))
    assert taken(another, 12) == before
    assert len({*before}) == 12
    behind = taken(batches, 4)
    another.load_state_dict(state)
    assert taken(another, 4) == behind


class Buckets(Sampler[list[int]]):
    """Orders samples as a user's own sampler may: `how` says by which means."""

    def __init__(self, how: str) -> None:
        self.how, self.generator, self.order, self.times = how, np.random.default_rng(5), list(range(24)), 0

    def __iter__(self) -> Iterator[list[int]]:
        self.times += 1
        order = list(self.order)
        match self.how:
            case "a generator of its own":
                self.generator.shuffle(order)
            case "everybody's generator":
                random.shuffle(order)
            case "in place":
                random.shuffle(self.order)
            case "how often":
                order = order[self.times :] + order[: self.times]
        for first in range(0, 24, 4):
            yield order[first : first + 4] if self.how != "everybody's generator" else random.sample(order, 4)

    def __len__(self) -> int:
        return 6


@pytest.mark.parametrize("how", ["a generator of its own", "everybody's generator"])
def test_a_sampler_of_the_script_gives_the_same_order_again(how: str) -> None:
    """The order is the same in another process, and in a later epoch."""
    batches = rekindle_training.batches(DataLoader(Rows(), batch_sampler=Buckets(how)))
    taken(batches, 15)
    state = batches.state_dict()
    another = rekindle_training.batches(DataLoader(Rows(), batch_sampler=Buckets(how)))
    another.load_state_dict(state)
    assert taken(another, 12) == taken(batches, 12)


@pytest.mark.parametrize("sampler", [Buckets("in place"), Buckets("how often"), iter([[1], [2]])])
def test_a_sampler_that_gives_another_order_each_time_is_refused_at_once(sampler: Any) -> None:
    """The sampler is refused with the first batch, and not in the first recovery."""
    batches = rekindle_training.batches(DataLoader(Rows(), batch_sampler=sampler))
    with pytest.raises(
        TypeError, match=rf"batches\(loader\): {type(sampler).__name__} gives other indices when it is gone through"
    ):
        next(batches)


def test_data_that_changed_is_refused_where_training_goes_on() -> None:
    """Changed data is refused, since the batches would silently be others."""
    state = after_ten(DataLoader(Rows(), 2, shuffle=True))
    changed = rekindle_training.batches(DataLoader(Subset(Rows(), range(50)), 2, shuffle=True))
    changed.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"BatchSampler gives other indices in epoch 0 than before"):
        next(changed)
    state = after_ten(DataLoader(Stream(0), 2))
    shorter = rekindle_training.batches(DataLoader(Stream(0), 4))
    shorter.load_state_dict(state)
    with pytest.raises(RuntimeError, match="Stream has 7 batches in epoch 0, and training has drawn 10"):
        next(shorter)
    state = after_ten(StatefulDataLoader(Stream(0), 2))
    shorter = rekindle_training.batches(StatefulDataLoader(Stream(0), 4))
    shorter.load_state_dict(state)
    with pytest.raises(RuntimeError, match="StatefulDataLoader has 7 batches in epoch 0, and training has drawn 10"):
        next(shorter)
    state = after_ten(DataLoader(Rows(), 2, shuffle=True, generator=torch.Generator()))
    other = rekindle_training.batches(DataLoader(Rows(), 2, shuffle=True))
    other.load_state_dict(state)
    with pytest.raises(RuntimeError, match="the state is that of 1 generators, and the loader and its sampler hold 0"):
        next(other)


def after_ten(loader: DataLoader[Any]) -> dict[str, Any]:
    batches = rekindle_training.batches(loader)
    taken(batches, 10)
    return batches.state_dict()


class Knows(Dataset[int]):
    """A dataset that receives its epoch."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.epoch


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_is_told_which_epoch_begins(workers: int) -> None:
    """A dataset receives its epoch in persistent workers too. A replacement's workers thus know no more than those before."""
    loader = DataLoader(Knows(), 4, num_workers=workers, persistent_workers=workers > 0)
    batches = rekindle_training.batches(loader)
    assert [int(next(batches)[0]) for _ in range(3)] == [0, 1, 2]


def test_a_state_is_small_and_holds_no_data() -> None:
    """A state has numbers, and at most the generators with which the epoch began, since it is taken twice in each step."""
    batches = rekindle_training.batches(DataLoader(TensorDataset(torch.zeros(100_000, 8)), 100, shuffle=True))
    taken(batches, 3)
    assert set(batches.state_dict()) == {"epoch", "position", "seed", "generators", "order"}
    assert len(pickle.dumps(batches.state_dict())) < 200


def test_a_state_that_no_message_holds_is_refused() -> None:
    """A state that is too large is refused by the loader's name when it is taken for the first time."""

    class Large(Counting):
        def state_dict(self) -> dict[str, Any]:
            return {"drawn": torch.zeros(18_000_000)}

    with pytest.raises(ValueError, match=r"batches\(loader\): the state of Large has 72\.0 MB; accepted are 66\.1 MB"):
        next(rekindle_training.batches(Large()))


def test_a_position_counts_batches_and_epochs() -> None:
    """An uneven tail is a batch; where an epoch ends the next one follows by itself."""
    batches = rekindle_training.batches(DataLoader(Rows(), 20))
    assert (len(batches), batches.epoch, batches.position) == (3, 0, 0)
    sizes = [len(rows) for _, (rows, _) in zip(range(4), batches, strict=False)]
    assert (sizes, batches.epoch, batches.position) == ([20, 20, 14, 20], 1, 1)
    assert batches.same_on_all_ranks == {"batches of an epoch": 3}


def test_a_length_that_is_not_known_is_said() -> None:
    """The error says what to write instead."""
    batches = rekindle_training.batches(DataLoader(Stream(0), 4))
    with pytest.raises(TypeError, match=r"len\(batches\): DataLoader does not say how many batches an epoch has"):
        len(batches)
    assert batches.same_on_all_ranks == {"batches of an epoch": None}


def test_a_loader_without_batches_is_refused() -> None:
    """A loader without batches is refused, since it would be asked for ever."""
    empty = rekindle_training.batches(DataLoader(Rows(), 60, drop_last=True))
    with pytest.raises(RuntimeError, match=r"next\(batches\): DataLoader gives no batch in epoch 0"):
        next(empty)


def test_another_thread_than_that_of_training_may_not_draw() -> None:
    """A thread that loads ahead would move the position of training."""
    batches = rekindle_training.batches(DataLoader(Rows(), 4))
    batches.state_dict()
    raised: list[str] = []

    def draw() -> None:
        with pytest.raises(RuntimeError) as refused:
            next(batches)
        raised.append(str(refused.value))

    thread = threading.Thread(target=draw)
    thread.start()
    thread.join()
    assert raised[0].startswith("next(batches): another thread draws than the one that trains")
    next(batches)


def test_the_state_of_another_kind_of_loader_is_refused() -> None:
    """A state of another loader is refused, such as one of a checkpoint from before the script's loader was replaced."""
    batches = rekindle_training.batches(DataLoader(Rows(), 4))
    with pytest.raises(ValueError, match=r"a state with drawn is not accepted for DataLoader: .* epoch, generators, order"):
        batches.load_state_dict({"drawn": 3})
