"""State of training as one value, taken from the objects that a user gave to the session, and restored into them.

A state is mappings and sequences of tensors and plain values. Its tensors are the objects' own, not copies.
"""

import pickle
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rekindle_training.adapter.leaves import leaves
from rekindle_training.adapter.sharding import can_be_sent, local

State = dict[str, Any]
"""`model`, `extra`, `trains`, `gradients`, `optimizer`, and what else data parallel ranks have in common, by its name."""


class Stateful(Protocol):
    """Object with a state: an optimizer, a scheduler, a scaler, a sampler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class StateMismatch(RuntimeError):
    """A replacement's state differs from its replica's. The migration has failed and the job has to be restarted."""


def refuse(model: torch.nn.Module, objects: Mapping[str, object]) -> None:
    """Refuses objects at the start whose state could not be sent in a recovery.

    Args:
        objects: what else was given to the session, by its name there.

    Raises:
        TypeError: an object has no state, or a tensor of the model is of a kind that cannot be sent.
    """
    for name, thing in objects.items():
        require(name, thing, "state_dict", "load_state_dict")
    for name, tensor in _tensors(model):
        if kind := _unsendable(tensor):
            raise TypeError(
                f"session(model): {name} is a {kind}, which a replacement could not be given; "
                "keep it dense, or recreate it in `on_rebuild` and not as a buffer"
            )


def require(name: str, thing: object, *methods: str) -> None:
    """Raises TypeError where an object that was given to the session as `name` has not all of these."""
    if missing := [method for method in methods if not callable(getattr(thing, method, None))]:
        kind = getattr(thing, "__qualname__", type(thing).__qualname__)
        raise TypeError(
            f"session({name}): {kind} has no {' and no '.join(missing)}, so training could not go on where it was; "
            f"give an object that has {', '.join(methods)}"
        )


def refuse_other_device(model: torch.nn.Module, here: torch.device) -> None:
    """Raises ValueError where a tensor of the model is on another accelerator than the one with which this process works: the
    session waits for the stream of that one, and takes its random numbers along."""
    for name, tensor in _tensors(model):
        if tensor.device.type == here.type and tensor.device != here:
            raise ValueError(
                f"session(model): {name} is on {tensor.device}, and the device of this process is {here}; a rank works with one "
                f"accelerator: call torch.{here.type}.set_device({tensor.device.index}) before the model is made"
            )


def refuse_content(state: State) -> None:
    """Refuses objects whose state contains values that cannot be sent.

    Raises:
        TypeError: something in a state can be sent to no other process.
    """
    for name, content in state.items():
        for path, leaf in leaves(content, ""):
            if kind := _unsendable(leaf) if isinstance(leaf, torch.Tensor) else _unpicklable(leaf):
                raise TypeError(f"session({name}): {path} is a {kind}, which a replacement could not be given")


def collect(model: torch.nn.Module, optimizer: Stateful, shared: Mapping[str, Stateful]) -> State:
    """Returns the whole state that ranks share: parameters, all buffers, persistent or not, extra state, and all other objects.

    Args:
        shared: what data parallel ranks have in common besides, by name.
    """
    keeps_more = {name: module for name, module in model.named_modules() if has_extra_state(module)}
    return {
        "model": {name: tensor.detach() for name, tensor in _tensors(model)},
        "extra": {name: module.get_extra_state() for name, module in keeps_more.items()},
        "trains": {name: parameter.requires_grad for name, parameter in model.named_parameters()},
        "gradients": {name: parameter.grad for name, parameter in parameters_of(model, shared) if _is_dense(parameter.grad)},
        "optimizer": _by_names(optimizer, model),
        **{name: _content(thing) for name, thing in shared.items()},
    }


def _by_names(optimizer: Stateful, model: torch.nn.Module) -> dict[str, Any]:
    """Returns the state of an optimizer. Parameter numbers are replaced by names, so that other tools can read a checkpoint."""
    state = optimizer.state_dict()
    if not isinstance(optimizer, torch.optim.Optimizer) or not _loads_as_torch(optimizer):
        return state
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    indices = chain.from_iterable(group["params"] for group in state["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    label = {index: names.get(id(parameter), index) for index, parameter in zip(indices, parameters, strict=True)}
    groups = [{**group, "params": [label[index] for index in group["params"]]} for group in state["param_groups"]]
    return {**state, "state": {label.get(index, index): entry for index, entry in state["state"].items()}, "param_groups": groups}


def _content(thing: Stateful) -> dict[str, Any]:
    if not isinstance(thing, torch.nn.Module):
        return thing.state_dict()
    return {"state": thing.state_dict(), "buffers": dict(thing.named_buffers())}


def place(state: State, model: torch.nn.Module, optimizer: Stateful, shared: Mapping[str, Stateful]) -> None:
    """Restores a state that `collect` returned. Its tensors become the optimizer's own; the model's are filled, if not yet done.

    Raises:
        StateMismatch: the state is that of other objects.
    """
    _place_model(state["model"], model, state["trains"])
    for name, parameter in parameters_of(model, shared):
        parameter.grad = state["gradients"].get(name)
    modules = dict(model.named_modules())
    for name, extra in state["extra"].items():
        if name not in modules:
            raise StateMismatch(f"this rank's model has no module {name!r}, which has extra state on its replica")
        modules[name].set_extra_state(extra)
    if "optimizer" in state:
        _place_optimizer(state["optimizer"], optimizer)
    for name, thing in shared.items():
        if name in state:  # a checkpoint of an earlier release has not all that the session adds by itself
            _place_content(state[name], thing)


def _place_content(content: dict[str, Any], thing: Stateful) -> None:
    if isinstance(thing, torch.nn.Module):
        _place_tensors(content["buffers"], dict(thing.named_buffers()), thing)
        thing.load_state_dict(content["state"])
    else:
        _place_optimizer(content, thing)


def _place_model(tensors: Mapping[str, torch.Tensor], model: torch.nn.Module, trains: Mapping[str, bool]) -> None:
    parameters = dict(model.named_parameters())
    _place_tensors(tensors, dict(_tensors(model)), model, trains.keys() - parameters.keys())
    for name, parameter in parameters.items():
        if name not in trains:
            raise StateMismatch(f"parameter {name} is here only, and not in the state that this rank takes")
        parameter.requires_grad_(trains[name])


def _place_tensors(
    tensors: Mapping[str, torch.Tensor], mine: Mapping[str, torch.Tensor], model: torch.nn.Module, unknown: Collection[str] = ()
) -> None:
    """Fills the model's tensors.

    Args:
        unknown: parameters that only the replica has.
    """
    with torch.no_grad():
        for name, tensor in tensors.items():
            here = mine.get(name)
            if here is not None and _alike(here, tensor):
                if local(here).data_ptr() != local(tensor).data_ptr():  # otherwise it was received in place
                    local(here).copy_(local(tensor))
            elif isinstance(here, torch.nn.Parameter):
                mine_is, theirs_is = (f"{tuple(one.shape)} {one.dtype}" for one in (here, tensor))
                raise StateMismatch(f"parameter {name} is {mine_is} here and {theirs_is} on the replica")
            elif name in unknown:
                raise StateMismatch(f"parameter {name} is on the replica only")
            else:
                _replace_buffer(model, name, tensor)
        for name in mine.keys() - tensors.keys():
            if not isinstance(mine[name], torch.nn.Parameter):
                _replace_buffer(model, name, None)


def _alike(here: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Returns whether one tensor can be filled from the other. An expanded tensor cannot: its elements share memory."""
    held = local(here)
    expanded = any(stride == 0 and size > 1 for stride, size in zip(held.stride(), held.shape, strict=True))
    return (here.shape, here.dtype) == (tensor.shape, tensor.dtype) and not expanded


def _replace_buffer(model: torch.nn.Module, name: str, tensor: torch.Tensor | None) -> None:
    """Replaces a buffer by the replica's. It has grown, or a forward pass has registered it or left it out."""
    path, _, own_name = name.rpartition(".")
    try:
        module = model.get_submodule(path)
    except AttributeError as error:
        raise StateMismatch(f"this rank's model has no module {path!r}, which has buffer {name} on its replica") from error
    if hasattr(module, own_name):
        setattr(module, own_name, tensor)  # persistent or not, as it was
    else:
        module.register_buffer(own_name, tensor)


def _place_optimizer(state: dict[str, Any], optimizer: Stateful) -> None:
    """Restores an optimizer.

    Torch's `load_state_dict` would copy every tensor, and cast masters to the type of their parameters. The groups stay the same
    objects, since the script may have given them names before its session.
    """
    if not isinstance(optimizer, torch.optim.Optimizer) or not _loads_as_torch(optimizer):
        optimizer.load_state_dict(state)
        return
    mine, theirs = optimizer.param_groups, state["param_groups"]
    if [len(group["params"]) for group in mine] != [len(group["params"]) for group in theirs]:
        raise StateMismatch("the optimizer's groups have other numbers of parameters here than on the replica")
    indices = chain.from_iterable(group["params"] for group in theirs)
    parameters = chain.from_iterable(group["params"] for group in mine)
    by_index = dict(zip(indices, parameters, strict=True))
    entries = {by_index.get(index, index): entry for index, entry in state["state"].items()}
    for own, group in zip(mine, theirs, strict=True):
        options = {name: _option(own.get(name), value, mine) for name, value in group.items()}
        params = own["params"]
        own.clear()
        own.update({**options, "params": params})
    optimizer.__setstate__({"state": defaultdict(dict, entries), "param_groups": mine})


def _option(here: Any, value: Any, groups: list[dict[str, Any]]) -> Any:
    """Returns an option of a group. A tensor of one group only, such as a learning rate, stays the same object and is filled."""
    if not (isinstance(here, torch.Tensor) and isinstance(value, torch.Tensor) and _alike(here, value)):
        return value
    if sum(here is option for group in groups for option in group.values()) > 1:
        return value
    with torch.no_grad():
        return here.copy_(value)


_TORCHS_OWN = torch.optim.Optimizer.load_state_dict


def _loads_as_torch(optimizer: torch.optim.Optimizer) -> bool:
    hooks = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
    return type(optimizer).load_state_dict is _TORCHS_OWN and not any(getattr(optimizer, hook) for hook in hooks)


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields parameters and buffers by all their names. A tied one has several."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def parameters_of(model: torch.nn.Module, shared: Mapping[str, Stateful]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yields the parameters of the model and of all other given modules, by their names for the session."""
    yield from model.named_parameters()
    for root, thing in shared.items():
        if isinstance(thing, torch.nn.Module):
            yield from ((f"{root} {name}", parameter) for name, parameter in thing.named_parameters())


def has_extra_state(module: torch.nn.Module) -> bool:
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _is_dense(gradient: torch.Tensor | None) -> bool:
    """Returns whether a gradient is carried. Sparse gradients are not: their module's optimizer updates in every turn."""
    return gradient is not None and not _unsendable(gradient)


def _unsendable(tensor: torch.Tensor) -> str:
    """Returns what makes the tensor impossible to send. Empty: it can be sent."""
    if is_lazy(tensor):
        return "lazy tensor"
    if isinstance(tensor, DTensor):
        return "" if can_be_sent(tensor) else "DTensor of which ranks hold addends"
    wraps: bool = is_traceable_wrapper_subclass(tensor)
    if wraps:
        return type(tensor).__qualname__
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} tensor"
    kinds = {"nested": tensor.is_nested, "quantized": tensor.is_quantized, "meta": tensor.is_meta}
    return next((f"{kind} tensor" for kind, applies in kinds.items() if applies), "")


def _unpicklable(leaf: object) -> str:
    try:
        pickle.dumps(leaf)
    except (pickle.PicklingError, AttributeError, TypeError):
        return type(leaf).__qualname__
    return ""
