"""Checks of what a session is given: each error names the argument, what was wrong with it, and what is accepted."""

import difflib
import inspect
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from rekindle_training import names
from rekindle_training.adapter.places import check_accepted

MISSING: Any = object()
"""An argument that was not given."""
ARGUMENTS = (
    *("model", "optimizer", "state", "data", "checkpoint_every", "checkpoints", "unique_shards", "replicas"),
    *("after_update", "switch_link", "repeat_updates", "accept"),
)


def refuse_unknown(keywords: Collection[str]) -> None:
    """Raises TypeError where there is no such argument."""
    for name in keywords:
        alike = difflib.get_close_matches(name, ARGUMENTS, n=1)
        meant = f"; did you mean {alike[0]}?" if alike else ""
        raise TypeError(f"session({name}=...): there is no such argument{meant} Accepted are {', '.join(ARGUMENTS)}")


def check(model: object, optimizer: object, given: Mapping[str, Any]) -> None:
    """Args:
        given: the other arguments, by their names.

    Raises:
        TypeError: one is of a kind that is not accepted.
        ValueError: `accept` has a word that there is not.
    """
    _check_model(model)
    _check_optimizer(optimizer)
    if isinstance(given["state"], str) or not isinstance(given["state"], Sequence):
        raise TypeError(f"session(state): {type(given['state']).__name__} is not accepted; give a list, as in state=[scheduler]")
    for name, thing in [("model", model), *((f"state[{index}]", thing) for index, thing in enumerate(given["state"]))]:
        _refuse_wrapped(name, thing)
        _refuse_sharded_optimizer(name, thing)
    for name in ("unique_shards", "repeat_updates"):
        if not isinstance(given[name], bool):
            raise TypeError(f"session({name}): {given[name]!r} is not accepted; give True or False")
    for name in ("after_update", "switch_link"):
        if given[name] is not None and not callable(given[name]):
            raise TypeError(f"session({name}): {given[name]!r} is not accepted; give a function")
    _check_replicas(given["replicas"])
    check_accepted(given["accept"])


def interval(checkpoint_every: object) -> int:
    """Returns the steps between two checkpoints; raises ValueError or TypeError where it is no number of steps."""
    wanted = (
        "give the steps between two checkpoints, or 0 for none: a restart of the job begins from the first step then "
        f"({names.CHECKPOINT_EVERY} says it for scripts that do not)"
    )
    if checkpoint_every is None:
        raise ValueError(f"session(checkpoint_every): missing; {wanted}")
    if isinstance(checkpoint_every, bool) or not isinstance(checkpoint_every, int):
        raise TypeError(f"session(checkpoint_every): {checkpoint_every!r} is not accepted; {wanted}")
    if checkpoint_every < 0:
        raise ValueError(f"session(checkpoint_every): {checkpoint_every} is not accepted; {wanted}")
    return checkpoint_every


def count(what: str, value: object) -> int:
    """Returns a whole number from 1; raises TypeError or ValueError, which begin with `what`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}: {value!r} is not accepted; give a whole number from 1")
    if value < 1:
        raise ValueError(f"{what}: {value} is not accepted; give a whole number from 1")
    return int(value)


def function(what: str, value: object, given: str) -> None:
    """Raises TypeError, which begins with `what`, where a value cannot be called with one argument, which is `given`."""
    wanted = f"give a function of one argument, {given}"
    if not callable(value):
        raise TypeError(f"{what}: {value!r} is not accepted; {wanted}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(f"{what}: {_called(value)} is a coroutine function, which is never awaited; {wanted}")
    try:
        signature = inspect.signature(value)
    except ValueError:  # some builtin functions have none
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise TypeError(f"{what}: {_called(value)}{signature} cannot be called with one argument, {error}; {wanted}") from None


def _called(value: object) -> str:
    name: str = getattr(value, "__name__", type(value).__name__)
    return name


def _check_model(model: object) -> None:
    if model is MISSING:
        raise TypeError("session(model): missing; give the module that is trained, as in session(model, optimizer)")
    if isinstance(model, torch.optim.Optimizer):
        raise TypeError("session(model): this is an optimizer; the model comes first, as in session(model, optimizer)")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"session(model): {type(model).__name__} is not accepted; give a torch.nn.Module")


def _check_optimizer(optimizer: object) -> None:
    if optimizer is MISSING:
        raise TypeError(
            "session(optimizer): missing; give what updates the model, as in session(model, optimizer): an optimizer of torch's, "
            "or anything with state_dict and load_state_dict that calls training.agree() before it updates"
        )
    if isinstance(optimizer, torch.nn.Module):
        raise TypeError("session(optimizer): this is a module; give the optimizer, as in session(model, optimizer)")
    if isinstance(optimizer, list | tuple | dict):
        raise TypeError(
            f"session(optimizer): a {type(optimizer).__name__} is not accepted; give one optimizer, and the others in `state`"
        )
    _refuse_sharded_optimizer("optimizer", optimizer)


def _refuse_wrapped(name: str, thing: object) -> None:
    if isinstance(thing, DistributedDataParallel):
        raise TypeError(f"session({name}): give the bare module and wrap it in DistributedDataParallel inside the session")
    if isinstance(thing, torch.nn.DataParallel):
        raise TypeError(f"session({name}): torch.nn.DataParallel is not accepted; use DistributedDataParallel inside the session")
    if isinstance(thing, torch.nn.Module) and any(_is_fsdp1(module) for module in thing.modules()):
        raise TypeError(
            f"session({name}): FullyShardedDataParallel (FSDP1) is not accepted; use torch.distributed.fsdp.fully_shard (FSDP2)"
        )


def _is_fsdp1(module: torch.nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel)


def _refuse_sharded_optimizer(name: str, thing: object) -> None:
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(thing).__mro__):
        raise TypeError(
            f"session({name}): ZeroRedundancyOptimizer is not accepted: each rank has the state of other parameters; use "
            "torch.distributed.fsdp.fully_shard, or the optimizer that it wraps"
        )


def _check_replicas(replicas: object) -> None:
    if replicas is None:
        return
    if isinstance(replicas, str) or not isinstance(replicas, Iterable) or not all(map(_is_rank, replicas)):
        raise TypeError(f"session(replicas): {replicas!r} is not accepted; give a list of ranks, as in replicas=[0, 2]")


def _is_rank(rank: object) -> bool:
    return isinstance(rank, int) and not isinstance(rank, bool)
