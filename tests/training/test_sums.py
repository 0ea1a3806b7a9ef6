"""Gradients of the shares of one rank are summed as the mean over all of them, or training ends with the reason."""

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from rekindle_training.adapter import own
from rekindle_training.adapter.data_parallel import DataParallel
from rekindle_training.adapter.places import COLLECTIVES, Place, Places, Refused
from rekindle_training.adapter.playing import Playing
from rekindle_training.adapter.sums import LOOKS, Sums
from rekindle_training.adapter.team import Team
from rekindle_training.adapter.trained import Trained
from rekindle_training.data.shares import shares

SMALL, SMALL_WITH_PARTS, WITH_PARTS = Team.of((0, 0), 2), Team.of((0,) * 4, 2, 2), Team.of((), 1, 2)
"""Teams of one rank. It carries the share of a missing one, or has two shares itself, or both."""
WHOLE = Team.of((), 1)


class Scene:
    """Rank without others in its process group, with a wrapped model."""

    def __init__(self, wrappers: DataParallel, model: nn.Module, team: Team, rows: torch.Tensor, **of_ddp: Any) -> None:
        self.rows, self.model, self.places, self.wrappers = rows, model, Places(), wrappers
        self.sums = wrappers.sums = Sums(lambda: team, 0, self.places)
        self.ddp: Any = DistributedDataParallel(model, **of_ddp)
        data = shares(self._loader, team.parts)
        data.attach(0, team.world_size)
        trained = Trained(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
        trained.carried.update({share: own.take(data.of(share), None) for share in team.shares(0)[1:]})
        self.playing = Playing(trained, data, wrappers, 0, lambda: team)
        self.drawn: list[torch.Tensor] = []

    def _loader(self, share: int, of: int) -> DataLoader[Any]:
        samples: Any = self.rows
        return DataLoader(samples, 2, sampler=DistributedSampler(samples, of, share))

    def batches(self) -> Generator[torch.Tensor]:
        for batch in self.playing.batches():
            self.drawn.append(batch)
            yield batch

    def trains(self) -> None:
        """Makes the passes of a step."""
        for batch in self.batches():
            loss(self.ddp, batch).backward()

    def agrees(self) -> None:
        """Ends a step that has all its gradients. Its update unscales them."""
        self.sums.before_update(gathers=False)
        with torch.no_grad():
            for gradient in _gradients(self.model):
                gradient.mul_(1)
        self.sums.is_done(lambda: self.wrappers.parameters)

    def is_mean(self, loops: int = 1) -> bool:
        """Returns whether the gradients are the mean over the shares, for the sum of the losses of all loops."""
        plain = copy.deepcopy(self.model)
        plain.zero_grad()
        for batch in self.drawn:
            (loss(plain, batch) * loops / len(self.drawn)).backward()
        pairs = zip(_gradients(self.model), _gradients(plain), strict=True)
        return all(torch.allclose(one, other) for one, other in pairs)


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [one.grad for one in model.parameters() if one.grad is not None]


def loss(model: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
    return model(batch).abs().square().mean()


class Turned(nn.Module):
    """Has a parameter with the strides of its transpose, and one with gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3).t())
        self.gaps = nn.Parameter(torch.randn(3, 4)[:, ::2])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight.t() @ self.gaps


class Complex(nn.Module):
    """Has complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(4, 3, dtype=torch.complex64)) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(torch.complex64) @ (self.first + self.second * 2)


@pytest.fixture
def wrappers(group: None, monkeypatch: pytest.MonkeyPatch) -> DataParallel:
    """Watches wrappers, and whatever else a test watches, until the test ends."""
    for kind, names in ((DistributedDataParallel, ("__init__", "register_comm_hook")), (dist.ProcessGroup, COLLECTIVES)):
        for name in names:
            monkeypatch.setattr(kind, name, getattr(kind, name, None), raising=False)
    wrappers = DataParallel()
    wrappers.watch()
    torch.manual_seed(0)
    return wrappers


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("team", [SMALL, SMALL_WITH_PARTS, WITH_PARTS], ids=["small", "small with parts", "parts"])
@pytest.mark.parametrize("kind", ["channels last", "turned", "complex"])
def test_gradients_of_parameters_are_summed_however_they_lie(
    kind: str, team: Team, wrappers: DataParallel, rows: torch.Tensor
) -> None:
    """Strides other than those of a contiguous tensor, and pairs of numbers, lie in buckets as in the gradients."""
    models: dict[str, tuple[nn.Module, Sequence[int]]] = {
        "channels last": (nn.Conv2d(2, 3, (1, 2)).to(memory_format=torch.channels_last), (2, 1, 2)),
        "turned": (Turned(), (4,)),
        "complex": (Complex(), (4,)),
    }
    model, shape = models[kind]
    scene = Scene(wrappers, model, team, rows.view(16, *shape))
    scene.trains()
    assert scene.is_mean()


class Layers(nn.Module):
    """Model whose layers lie in a bucket each, and note when their backward pass begins."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))
        self._heard = heard
        self.fails_at = -1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            inputs = layer(inputs)
            inputs.register_hook(lambda _, number=number: self._note(number))
        return inputs.sum()

    def _note(self, number: int) -> None:
        self._heard.append(f"layer {number}")
        if number == self.fails_at:
            raise RuntimeError("out of memory")


LAST_PASS = ["layer 3", "send", "layer 2", "send", "gather", "layer 1", "send", "gather", "layer 0", "send", "gather", "gather"]
"""Passes of the layers of a rank's last share, and the collectives that its hook begins meanwhile."""


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collectives in the order in which they begin, and what else notes itself there."""
    names = {"all_to_all_single": "send", "all_gather_into_tensor": "gather"}
    heard: list[str] = []
    for name, short in names.items():
        begin = getattr(dist, name)

        def begins(*arguments: Any, begin: Callable[..., Any] = begin, short: str = short, **options: Any) -> Any:
            heard.append(short)
            return begin(*arguments, **options)

        monkeypatch.setattr(dist, name, begins)
    return heard


def test_gradients_are_sent_while_the_pass_goes_on(wrappers: DataParallel, rows: torch.Tensor, heard: list[str]) -> None:
    """The sum of a bucket is awaited when the next one is complete. So the pass of a layer never waits for the one before."""
    model = Layers(heard)
    scene = Scene(wrappers, model, SMALL, rows, bucket_cap_mb=1e-6, find_unused_parameters=True)
    scene.trains()
    assert heard[4:] == LAST_PASS
    assert scene.is_mean()


def test_sums_that_were_under_way_when_a_step_failed_are_dropped(
    wrappers: DataParallel, rows: torch.Tensor, heard: list[str]
) -> None:
    """The repeated step has the gradients of its own batches."""
    model = Layers(heard)
    scene = Scene(wrappers, model, WITH_PARTS, rows, bucket_cap_mb=1e-6, find_unused_parameters=True)
    batches = scene.batches()
    loss(scene.ddp, next(batches)).backward()
    last = next(batches)
    model.fails_at = 1
    with pytest.raises(RuntimeError, match="out of memory"):
        loss(scene.ddp, last).backward()
    batches.close()
    scene.sums.give_up()
    model.fails_at = -1
    wrappers.regroup()
    model.zero_grad()
    for former in (scene.drawn, heard):
        former.clear()
    scene.trains()
    assert heard[4:] == LAST_PASS
    assert scene.is_mean()


def accumulates(scene: Scene, inside: Callable[[], AbstractContextManager[None]]) -> None:
    """Goes through the batches twice, the first time without a sum over ranks."""
    for batch in scene.batches():
        with inside():
            loss(scene.ddp, batch).backward()
    scene.trains()
    scene.agrees()


def test_passes_may_say_one_by_one_that_they_sum_nothing(wrappers: DataParallel, rows: torch.Tensor) -> None:
    """`no_sync()` inside the loop over the batches keeps the gradients of shares apart, as around it."""
    scene = Scene(wrappers, nn.Linear(4, 3), SMALL, rows)
    accumulates(scene, scene.ddp.no_sync)
    assert scene.is_mean(2)


@pytest.mark.parametrize("team", [SMALL_WITH_PARTS, WITH_PARTS], ids=["small", "full size"])
def test_shares_that_are_added_up_are_summed_by_their_last_pass(team: Team, wrappers: DataParallel, rows: torch.Tensor) -> None:
    """Refuses `no_sync()` inside the loop where each rank has several shares, with what to write."""
    scene = Scene(wrappers, nn.Linear(4, 3), team, rows)
    with pytest.raises(Refused, match=r"put `no_sync\(\)` around `for batch in training.batches\(\):` and not inside"):
        accumulates(scene, scene.ddp.no_sync)


def test_an_update_without_the_gradients_of_some_shares_is_refused(wrappers: DataParallel, rows: torch.Tensor) -> None:
    """The last batch has no backward pass, and the gradients of the other one would be dropped."""
    scene = Scene(wrappers, nn.Linear(4, 3), SMALL, rows)
    loss(scene.ddp, next(batches := scene.batches())).backward()
    assert len(list(batches)) == 1
    with pytest.raises(Refused, match="make a backward pass of each batch"):
        scene.agrees()


@pytest.mark.parametrize("team", [SMALL, SMALL_WITH_PARTS, WITH_PARTS], ids=["small", "small with parts", "parts"])
def test_a_loop_without_backward_passes_changes_no_gradient(team: Team, wrappers: DataParallel, rows: torch.Tensor) -> None:
    """A look at all batches after those passes, as for a loss, leaves the mean where it is."""
    scene = Scene(wrappers, nn.Linear(4, 3), team, rows)
    scene.trains()
    assert len(list(scene.playing.batches())) == len(team.carriers)
    scene.agrees()
    assert scene.is_mean()


@pytest.mark.parametrize(("team", "is_refused"), [(SMALL, True), (WITH_PARTS, False)], ids=["small", "full size"])
def test_a_collective_inside_the_loop_is_noted(team: Team, is_refused: bool, wrappers: DataParallel, rows: torch.Tensor) -> None:
    """Ranks would wait for others without end while some are missing. At full size it only fixes the size."""
    scene = Scene(wrappers, nn.Linear(4, 3), team, rows)
    scene.places.watch()
    scene.places.now = Place.IN_STEP
    dist.all_reduce(torch.ones(()))
    assert scene.sums.misuse == ""
    next(batches := scene.batches())
    with pytest.raises(Refused, match="a collective inside") if is_refused else nullcontext():
        dist.all_reduce(torch.ones(()))
    assert "a collective inside `for batch in training.batches():`" in scene.sums.misuse
    batches.close()


def test_a_parameter_that_a_wrapper_ignores_is_none_that_it_reduces(wrappers: DataParallel) -> None:
    """A script sums its gradient by itself, which is not apart for each share. So the number of ranks is fixed."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[1].bias.requires_grad_(False)
    ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(model, ["0.weight"])  # type: ignore[no-untyped-call]
    ddp = DistributedDataParallel(model)
    model[1].bias.requires_grad_(True)
    assert wrappers.living == [ddp]
    assert {id(one) for one in wrappers.parameters} == {id(model[0].bias), id(model[1].weight)}


def test_a_layer_with_sparse_gradients_is_refused(wrappers: DataParallel, rows: torch.Tensor) -> None:
    """The message names its parameter, and what is accepted."""
    model = nn.Sequential(nn.Embedding(4, 3, sparse=True), nn.Linear(3, 2))
    with pytest.raises(TypeError, match=r"the sparse gradient of 0.weight is not accepted .*; give its layer sparse=False"):
        Scene(wrappers, model, SMALL, rows)


def test_random_numbers_drawn_outside_of_the_loop_are_noticed_in_each_step_of_a_small_job(
    wrappers: DataParallel, rows: torch.Tensor
) -> None:
    """A share that another rank carries would not draw them, also if the script begins to draw late."""
    scene = Scene(wrappers, nn.Linear(4, 3), SMALL, rows)
    for _ in range(6):
        scene.trains()
        scene.agrees()
    torch.rand(1)
    with pytest.raises(Refused, match="random numbers are drawn outside of"):
        scene.trains()


def clips(scene: Scene) -> None:
    """Makes the passes of a step, and clips after each of them."""
    for batch in scene.batches():
        loss(scene.ddp, batch).backward()
        nn.utils.clip_grad_norm_(scene.model.parameters(), 0.01)


def test_gradients_that_are_changed_in_the_loop_fix_the_size(wrappers: DataParallel, rows: torch.Tensor) -> None:
    """The script would clip each share by itself once ranks carry those of others. It is seen in the first steps."""
    scene = Scene(wrappers, nn.Linear(4, 3), Team.of((), 1), rows)
    scene.trains()
    assert scene.sums.misuse == ""
    clips(scene)
    assert scene.sums.misuse.startswith("gradients are changed inside")


@pytest.mark.parametrize("team", [SMALL, SMALL_WITH_PARTS, WITH_PARTS], ids=["small", "small with parts", "parts"])
def test_gradients_that_are_changed_before_they_are_summed_are_refused(
    team: Team, wrappers: DataParallel, rows: torch.Tensor
) -> None:
    """Clipping inside the loop would clip each share by itself, where a job of full size clips the mean."""
    scene = Scene(wrappers, nn.Linear(4, 3), team, rows)
    with pytest.raises(Refused, match="gradients are changed inside"):
        clips(scene)


def test_all_loops_of_the_first_steps_are_looked_at(wrappers: DataParallel, rows: torch.Tensor) -> None:
    """A step has more loops than steps are looked at, and the script clips in the last one."""
    scene = Scene(wrappers, nn.Linear(4, 3), WHOLE, rows)
    for _ in range(LOOKS + 1):
        with scene.ddp.no_sync():
            scene.trains()
    assert scene.sums.misuse == ""
    clips(scene)
    assert scene.sums.misuse.startswith("gradients are changed inside")


def test_random_numbers_drawn_after_many_loops_of_a_step_fix_the_size(wrappers: DataParallel, rows: torch.Tensor) -> None:
    """The loops of the first steps count, however many a step has."""
    scene = Scene(wrappers, nn.Linear(4, 3), WHOLE, rows)
    for _ in range(2):
        for _ in range(LOOKS + 1):
            with scene.ddp.no_sync():
                scene.trains()
        assert scene.sums.misuse == ""
        scene.agrees()
        scene.model.zero_grad()
    torch.rand(1)
    scene.trains()
    assert scene.sums.misuse.startswith("random numbers are drawn outside of")


ALL = pytest.mark.parametrize(
    ("team", "is_refused"),
    [(WHOLE, False), (SMALL, True), (SMALL_WITH_PARTS, True), (WITH_PARTS, True)],
    ids=["full size", "small", "small with parts", "parts"],
)


@ALL
@pytest.mark.parametrize("is_wrapped", [True, False], ids=["no_sync", "bare"])
def test_a_pass_before_the_batches_is_noted(
    is_wrapped: bool, team: Team, is_refused: bool, wrappers: DataParallel, rows: torch.Tensor
) -> None:
    """No hook of the wrapper sees it. Its gradients would be divided by the number of parts, or be lost with their rank."""
    scene = Scene(wrappers, nn.Linear(4, 3), team, rows)
    with scene.ddp.no_sync():
        loss(scene.ddp if is_wrapped else scene.model, rows[:2]).backward()
    scene.model.zero_grad(set_to_none=False)
    scene.trains()
    scene.agrees()
    assert scene.sums.misuse == ""
    with scene.ddp.no_sync():
        loss(scene.ddp if is_wrapped else scene.model, rows[:2]).backward()
    with pytest.raises(Refused, match="a backward pass is outside") if is_refused else nullcontext():
        scene.trains()
    assert scene.sums.misuse.startswith("a backward pass is outside")


@pytest.mark.parametrize("team", [WHOLE, SMALL], ids=["full size", "small"])
def test_gradients_of_the_step_before_may_be_dropped_in_the_loop(team: Team, wrappers: DataParallel, rows: torch.Tensor) -> None:
    """Gradients of the step before are there when a step draws its first batch. A step that is repeated has copies of them."""
    scene = Scene(wrappers, nn.Linear(4, 3), team, rows)
    for repeated in (False, False, True, False):
        if repeated:
            scene.sums.give_up()
            for parameter in scene.model.parameters():
                parameter.grad = torch.ones_like(parameter)
        scene.drawn.clear()
        for batch in scene.batches():
            scene.model.zero_grad()
            loss(scene.ddp, batch).backward()
        scene.agrees()
    assert scene.sums.misuse == ""
    assert scene.is_mean()


@ALL
def test_models_that_are_summed_while_others_are_not_are_noted(
    team: Team, is_refused: bool, wrappers: DataParallel, rows: torch.Tensor
) -> None:
    """A rank that carries shares has one pass that sums, for all models. The gradients of the first model would be lost."""
    scene = Scene(wrappers, nn.Linear(4, 3), team, rows)
    other = DistributedDataParallel(nn.Linear(4, 3))
    with other.no_sync(), pytest.raises(Refused, match="others are not") if is_refused else nullcontext():
        scene.trains()
    assert scene.sums.misuse.startswith("some models are in `no_sync()`")


@pytest.mark.parametrize("team", [WHOLE, SMALL, WITH_PARTS], ids=["full size", "small", "parts"])
def test_a_model_that_does_not_train_may_be_in_no_sync(team: Team, wrappers: DataParallel, rows: torch.Tensor) -> None:
    """A teacher has no gradients that could be lost. Those of the model beside it are summed."""
    scene = Scene(wrappers, nn.Linear(4, 3), team, rows)
    other = DistributedDataParallel(nn.Linear(4, 3))
    other.requires_grad_(False)
    with other.no_sync():
        scene.trains()
    scene.agrees()
    assert scene.sums.misuse == ""
    assert scene.is_mean()


@pytest.mark.parametrize("team", [SMALL, SMALL_WITH_PARTS, WITH_PARTS], ids=["small", "small with parts", "parts"])
def test_a_pass_that_sums_too_early_is_refused(team: Team, wrappers: DataParallel, rows: torch.Tensor) -> None:
    """The script sets the flag of the wrapper in the loop, as if each batch were the last one."""
    scene = Scene(wrappers, nn.Linear(4, 3), team, rows)
    batch = next(batches := scene.batches())
    scene.ddp.require_backward_grad_sync = True
    with pytest.raises(Refused, match="leave `require_backward_grad_sync` as it is inside"):
        loss(scene.ddp, batch).backward()
    batches.close()


@pytest.mark.parametrize("team", [SMALL, SMALL_WITH_PARTS, WITH_PARTS], ids=["small", "small with parts", "parts"])
def test_hooks_that_change_gradients_see_those_of_one_share(team: Team, wrappers: DataParallel, rows: torch.Tensor) -> None:
    """Hooks clip a gradient when a pass has added to it. Sums of several shares depend on which rank carries them."""
    model = nn.Linear(4, 3)
    scene = Scene(wrappers, model, team, rows)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(clip)
    scene.trains()
    plain, found = copy.deepcopy(model), []
    for batch in scene.drawn:
        plain.zero_grad()
        loss(plain, batch).backward()
        found.append([one.clamp(-0.05, 0.05) for one in _gradients(plain)])
    means = [torch.stack(of_shares).mean(0) for of_shares in zip(*found, strict=True)]
    assert all(torch.allclose(one, mean) for one, mean in zip(_gradients(model), means, strict=True))


def clip(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.05, 0.05)
