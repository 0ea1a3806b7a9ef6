"""Finds and refuses objects that a script trains but did not give to its session. A replacement would not have their state."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel

from rekindle_training.adapter.content import Content
from rekindle_training.adapter.leaves import values
from rekindle_training.adapter.places import Refused
from rekindle_training.adapter.state import has_extra_state


class UnregisteredState(Refused, TypeError):
    """An object that trains was not given to the session."""


def refuse_strange_parameters(given: Iterable[object]) -> None:
    """Raises ValueError where an optimizer updates a tensor that no module has, nor the state of an object of the script's."""
    things = list(given)
    known = _parameters(things)
    for optimizer in things:
        if not isinstance(optimizer, torch.optim.Optimizer):
            continue
        if strange := _lost([one for one in _updated(optimizer) if id(one) not in known], things):
            raise ValueError(
                f"session(optimizer): {type(optimizer).__name__} updates {len(strange)} tensors that are no parameters of the "
                "model nor of a module in `state`, so a replacement would not have them; give the module that is trained"
            )


class Optimizers:
    """Optimizers that the session was given.

    Another optimizer that updates in several steps was forgotten. It counts if it has a state or updates parameters that the
    session trains. Objects of the script's own may contain it: if there are any, it counts if their states have nothing of its
    state. An example is an optimizer around another one that saves its own state only.
    """

    def __init__(self, given: Iterable[object], step: Callable[[], int]) -> None:
        """Args:
        step: returns the number of the current step. 0: no step is being executed.
        """
        self._given = list(given)
        self._trained = _parameters(self._given)
        self._are_plain = all(map(_is_plain, self._given))
        self._step = step
        self._strange: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        """Step in which each unknown optimizer was first seen."""
        self._contained: WeakSet[torch.optim.Optimizer] = WeakSet()
        """Unknown optimizers that objects of the script's own contain."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises TypeError inside the block when a forgotten optimizer updates."""
        hook = register_optimizer_step_pre_hook(self._steps)
        try:
            yield
        finally:
            hook.remove()

    def _steps(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        step = self._step()
        if not step or any(optimizer is one for one in self._given) or self._strange.setdefault(optimizer, step) == step:
            return
        if self._is_forgotten(optimizer):
            raise UnregisteredState(
                f"{type(optimizer).__name__} updates, and was not given to the session: a replacement would not have its state; "
                "add it to session(state=[...])"
            )

    def _is_forgotten(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._are_plain:
            return any(optimizer.state.values()) or any(id(one) in self._trained for one in _updated(optimizer))
        if optimizer in self._contained:
            return False
        found = [leaf for leaf in values(dict(optimizer.state)) if isinstance(leaf, torch.Tensor) and leaf.numel() > 1]
        if not found or len(_lost(found, self._given)) < len(found):
            self._contained.add(optimizer)
            return False
        return True


class Schedulers:
    """Torch's schedulers that the session was given.

    If all given objects are torch's own or optimizers, another scheduler that sets options of a given optimizer was forgotten: a
    replacement would begin its schedule again.
    """

    def __init__(self, given: Iterable[object]) -> None:
        self._given = list(given)
        self._inside = False
        """True while a scheduler steps, which may contain other schedulers."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises TypeError inside the block when a forgotten scheduler steps."""
        if any(map(_is_opaque, self._given)):
            yield
            return
        steps = {kind: vars(kind)["step"] for kind in _kinds(LRScheduler) if "step" in vars(kind)}
        for kind, step in steps.items():
            kind.step = self._watched(step)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for kind, step in steps.items():
                kind.step = step  # type: ignore[method-assign]

    def _watched(self, step: Callable[..., None]) -> Callable[..., None]:
        @wraps(step)
        def watched(scheduler: LRScheduler, *args: object, **keywords: object) -> None:
            outermost, self._inside = not self._inside, True
            try:
                if outermost:
                    self._refuse(scheduler)
                step(scheduler, *args, **keywords)
            finally:
                self._inside = not outermost

        return watched

    def _refuse(self, scheduler: LRScheduler) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        known = any(scheduler is one for one in chain(self._given, _parts(self._given)))
        if not known and any(optimizer is one for one in self._given):
            raise UnregisteredState(
                f"{type(scheduler).__name__} sets the options of an optimizer, and was not given to the session: "
                "a replacement would begin its schedule again; add it to session(state=[...])"
            )


class ScalersAndAverages:
    """GradScalers and averages of the model that the session was given.

    If all given objects are torch's own or optimizers, another one that moves was forgotten: a replacement would begin it again.
    """

    def __init__(self, given: Iterable[object]) -> None:
        self._given = list(given)
        modules = (thing for thing in self._given if isinstance(thing, torch.nn.Module))
        of_modules = chain.from_iterable(module.modules() for module in modules)
        self._known = {id(thing) for thing in chain(self._given, of_modules, _parts(self._given))}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises TypeError inside the block when a forgotten scaler or average moves."""
        if any(map(_is_opaque, self._given)):
            yield
            return
        update, average = torch.amp.GradScaler.update, AveragedModel.update_parameters

        @wraps(update)
        def updated(scaler: torch.amp.GradScaler, *args: Any, **keywords: Any) -> None:
            if scaler.is_enabled():
                self._refuse(scaler, "scales losses")
            update(scaler, *args, **keywords)

        @wraps(average)
        def averaged(averages: AveragedModel, model: torch.nn.Module) -> None:
            if any(id(module) in self._known for module in model.modules()):
                self._refuse(averages, "averages the model")
            average(averages, model)

        torch.amp.GradScaler.update, AveragedModel.update_parameters = updated, averaged  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            torch.amp.GradScaler.update, AveragedModel.update_parameters = update, average  # type: ignore[method-assign]

    def _refuse(self, thing: object, does: str) -> None:
        if id(thing) not in self._known:
            raise UnregisteredState(
                f"{type(thing).__name__} {does}, and was not given to the session: a replacement would begin it again; "
                "add it to session(state=[...])"
            )


def _kinds(kind: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)


def _is_plain(thing: object) -> bool:
    """Returns whether the content of an object's state is known, so that it holds no other object."""
    if isinstance(thing, torch.nn.Module):
        return not any(map(has_extra_state, thing.modules()))
    return type(thing).__module__.startswith(("torch.optim.", "torch.amp."))


def _is_opaque(thing: object) -> bool:
    """Returns whether an object may contain anything. An optimizer of a library contains what its attributes say."""
    return not _is_plain(thing) and not isinstance(thing, torch.optim.Optimizer)


def _parts(things: Iterable[object]) -> Iterator[object]:
    """Yields the attributes of optimizers, and what is in lists and dictionaries among them."""
    for thing in things:
        if isinstance(thing, torch.optim.Optimizer):
            yield from chain(vars(thing).values(), values(dict(vars(thing))))


def _lost(tensors: Sequence[torch.Tensor], given: Iterable[object]) -> Sequence[torch.Tensor]:
    """Returns those tensors that the states of given objects of the script's own do not have."""
    if not tensors:
        return []
    content = Content(thing for thing in given if not _is_plain(thing))
    return [one for one in tensors if not content.may_have(one)]


def _parameters(things: Iterable[object]) -> set[int]:
    return {id(one) for module in things if isinstance(module, torch.nn.Module) for one in module.parameters()}


def _updated(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)
