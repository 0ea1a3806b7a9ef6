"""State that a step changes before its update, as it was at the start of the step. A rank needs it to begin the same step again.

It consists of random numbers, the data position, buffers (which a forward pass changes), extra state, and plain attributes of
modules (counters and modes). Gradients that are being gathered, the options of optimizers, and the state of small objects such as
a scheduler belong to it too.

Parameters and large averages change in an update only. Single elements of some of them are watched. If one has changed, the rank
cannot go back, and reports that. Moments are not watched. Parameters that no optimizer updates are copied once they were seen to
change.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.modules import module as torch_modules

from rekindle_training.adapter.attributes import PLAIN
from rekindle_training.adapter.copies import LOOKS, Moving, Updated, copied, versions
from rekindle_training.adapter.data_parallel import DataParallel, Flags
from rekindle_training.adapter.digest import leaf_digest
from rekindle_training.adapter.fully_sharded import FullySharded
from rekindle_training.adapter.gradients import CannotGoBack
from rekindle_training.adapter.leaves import values
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.sample import middle
from rekindle_training.adapter.settings import Settings
from rekindle_training.adapter.sharding import local, spread_as, version
from rekindle_training.adapter.state import Stateful, has_extra_state
from rekindle_training.adapter.trained import Trained
from rekindle_training.adapter.uncounted import may_write_uncounted

SMALL = 1024 * 1024
"""Maximum bytes of a buffer, or of all objects of `state` together, for a copy at each boundary.

Larger ones are only watched for changes.
"""

MANY = 1000
"""Maximum number of tensors of all objects of `state` that are copied, and of which one element is watched."""

WATCHED = 32
"""Number of parameters of a module, and of an optimizer's group, of which one element is watched.

An update changes all parameters. If it fails in the middle, it has changed the first ones or the last ones.
"""

Slots = dict[str, torch.Tensor | None]
"""Parameters or buffers of one module, as it keeps them."""


@dataclass(frozen=True)
class _Buffer:
    tensor: torch.Tensor
    version: int | None
    """Change count of the tensor. None: its changes are not counted."""
    content: torch.Tensor


@dataclass
class _Moment:
    own: Own
    buffers: list[dict[str, _Buffer | None]]
    options: list[list[dict[str, Any]]]
    small: dict[str, dict[str, Any]]
    modes: list[bool]
    trains: list[bool]
    extra: list[tuple[torch.nn.Module, Any]]
    sample: list[torch.Tensor]
    large: list[object]
    """Plain values of large objects of `state`, and change counters of their tensors."""
    moments: list[int]
    """Change counters of the optimizers' state, for the parameters that are watched."""
    flags: list[list[Flags]]


@dataclass
class Boundary:
    trained: Trained
    repeats_updates: bool = False
    """True if parameters and the state of optimizers are copied, too."""
    _moment: _Moment | None = None
    _modules: list[torch.nn.Module] = field(default_factory=list)
    _parameters: list[torch.nn.Parameter] = field(default_factory=list)
    _with_buffers: list[torch.nn.Module] = field(default_factory=list)
    _buffers: list[torch.Tensor | None] = field(default_factory=list)
    """Buffers of these modules at the last boundary. The next two fields hold copies of those that are tensors."""
    _small_buffers: list[_Buffer] = field(default_factory=list)
    _large_buffers: list[_Buffer] = field(default_factory=list)
    _is_spread: bool = False
    """True if ranks hold shards of some parameters."""
    _keep_extra: list[torch.nn.Module] = field(default_factory=list)
    """Modules with state that is no tensor."""
    _settings: Settings = field(default_factory=Settings)
    _uncounted: set[torch.nn.Module] = field(default_factory=set)
    """Modules that may write tensors of theirs in a way that is not counted."""
    _looks: int = 0
    """Number of boundaries at which large buffers were compared with their copies."""
    moments_changed: bool = False
    """True if the state of an optimizer has changed in this step before its update."""
    _has_grown: bool = True
    _watched: list[torch.nn.Parameter] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)
    """Address of each tensor in `_watched` when `_middles` were found."""
    _middles: list[torch.Tensor] = field(default_factory=list)
    """Views of the middle elements of these tensors."""

    def __post_init__(self) -> None:
        objects = {"optimizer": self.trained.optimizer, **self.trained.shared}
        given = [thing for thing in objects.values() if isinstance(thing, torch.optim.Optimizer)]
        self._optimizers = list(dict.fromkeys(one for optimizer in given for one in _with_inner(optimizer)))
        self._gradients = self.trained.gradients
        self._wrappers = [thing for thing in objects.values() if isinstance(thing, DataParallel | FullySharded)]
        self._scalers = [thing for thing in objects.values() if isinstance(thing, torch.amp.GradScaler)]
        others = {name: thing for name, thing in objects.items() if not _is_known(thing)}
        if self.repeats_updates:  # otherwise a scaler changes after the update only
            others |= {name: thing for name, thing in objects.items() if isinstance(thing, torch.amp.GradScaler)}
        self._updated = Updated(self._optimizers) if self.repeats_updates else None
        knows_all = isinstance(self.trained.optimizer, torch.optim.Optimizer) and self._updated is None
        self._moving = Moving(self._optimizers) if knows_all else None
        self.small = others if self.repeats_updates else _small(others)
        self._large = {name: thing for name, thing in others.items() if name not in self.small}
        for register in (
            torch_modules.register_module_module_registration_hook,
            torch_modules.register_module_parameter_registration_hook,
            torch_modules.register_module_buffer_registration_hook,
        ):
            register(self._grown)

    def remember(self) -> Own:
        """Copies the state at the beginning of a step. Returns the part of it that only this rank has."""
        if self._has_grown:
            self._look_again()
        before = self._moment
        if self._updated is not None:
            self._updated.take(self._parameters)
        if self._moving is not None:
            self._moving.remember(self._parameters)
        self._gradients.remember(self._parameters)
        self.trained.own_buffers.remember()
        self._settings.remember()
        self.moments_changed = False
        self._moment = _Moment(
            own=self.trained.take_own(),
            buffers=self._copy_buffers(before.buffers if before else []),
            options=[[_options(group) for group in optimizer.param_groups] for optimizer in self._optimizers],
            small={name: copied(thing.state_dict()) for name, thing in self.small.items()},
            modes=[module.training for module in self._modules],
            trains=[parameter.requires_grad for parameter in self._parameters],
            extra=[(module, copy.deepcopy(module.get_extra_state())) for module in self._keep_extra],
            sample=self._sample(),
            large=self._large_values(),
            moments=self._moment_versions(),
            flags=[wrappers.flags() for wrappers in self._wrappers],
        )
        return self._moment.own

    def go_back(self) -> None:
        """Restores the state from the beginning of the step.

        Raises:
            CannotGoBack: it is not possible; the message says what has changed.
        """
        moment = self._moment
        assert moment is not None
        before = self._parameters
        self._find_parameters()
        if self._moving is not None and not self._is_spread and (moved := self._moving.uncopied()) is not None:
            raise CannotGoBack(f"the parameter {self._name_of(moved)} changed before the update")
        for copies in (self._updated, self._moving):
            if copies is not None:
                copies.put_back()
        self._refuse_changes(before, moment.sample)
        self._put_parameters(moment)
        self._put_modules(moment)
        for optimizer, groups in zip(self._optimizers, moment.options, strict=True):
            _put_groups(optimizer, groups)
        for name, content in moment.small.items():
            self.small[name].load_state_dict(copy.deepcopy(content))
        self._reset_scalers()
        for wrappers, flags in zip(self._wrappers, moment.flags, strict=True):
            wrappers.put_flags(flags)
        self.trained.put_own(moment.own)

    def _refuse_changes(self, parameters: list[torch.nn.Parameter], sample: list[torch.Tensor]) -> None:
        if len(parameters) == len(self._parameters) and not all(map(is_, parameters, self._parameters)):
            raise CannotGoBack("parameters were replaced in the step")
        now = self._sample()
        if len(now) != len(sample) or not all(map(torch.equal, now, sample)):
            raise CannotGoBack("parameters or a large object of `state` changed before the update")
        if self._moment is not None and self._large_values() != self._moment.large:
            raise CannotGoBack("a large object of `state` changed before the update")
        if any(map(_is_written_uncounted, self._large_buffers)):
            raise CannotGoBack("a large buffer was written by `.data` or as an array, where changes are not counted")

    @property
    def own(self) -> Own | None:
        return self._moment.own if self._moment else None

    def _put_parameters(self, then: _Moment) -> None:
        self._gradients.put_back(self._parameters)
        for parameter, trains in zip(self._parameters, then.trains, strict=True):
            parameter.requires_grad_(trains)

    def _put_modules(self, then: _Moment) -> None:
        self._settings.put_back()
        for module, mode, buffers in zip(self._modules, then.modes, then.buffers, strict=True):
            module.training = mode
            _put_buffers(module._buffers, buffers)
        for module, extra in then.extra:
            module.set_extra_state(copy.deepcopy(extra))

    def forget(self) -> None:
        """Drops the copied state, because this rank has taken the state of another one."""
        self._moment = None
        self._reset_scalers()

    def _reset_scalers(self) -> None:
        """Resets the stage that a scaler has recorded for each optimizer, which is no part of the scaler's state."""
        for scaler in self._scalers:
            if scaler.is_enabled():  # otherwise it has none
                scaler._per_optimizer_states.clear()

    # ---- buffers

    def _copy_buffers(self, before: list[dict[str, _Buffer | None]]) -> list[dict[str, _Buffer | None]]:
        """Copies all buffers.

        If they are the same tensors as at the last boundary, their existing copies are updated in place.
        """
        found = [tensor for module in self._with_buffers for tensor in module._buffers.values()]
        if before and len(found) == len(self._buffers) and all(map(is_, found, self._buffers)) and self._refresh():
            return before
        copies = [
            {
                name: None if tensor is None else _copied(tensor, counts=module not in self._uncounted)
                for name, tensor in module._buffers.items()
            }
            if module._buffers
            else {}
            for module in self._modules
        ]
        buffers = [buffer for of_module in copies for buffer in of_module.values() if buffer is not None]
        self._buffers = found
        self._small_buffers = [buffer for buffer in buffers if buffer.version is None]
        self._large_buffers = [buffer for buffer in buffers if buffer.version is not None]
        return copies

    def _refresh(self) -> bool:
        """Updates the copies of small buffers. Returns whether all copies are now up to date."""
        if any(version(buffer.tensor) != buffer.version for buffer in self._large_buffers):
            return False
        if self._looks < LOOKS:
            self._looks += 1
            self._find_uncounted()
        if not self._small_buffers:
            return True
        try:
            with torch.no_grad():
                torch._foreach_copy_(
                    [buffer.content for buffer in self._small_buffers], [buffer.tensor for buffer in self._small_buffers]
                )
        except RuntimeError:  # one has another shape now
            return False
        return True

    def _find_uncounted(self) -> None:
        """Moves large buffers that a script writes by `.data` or an array to the small ones, which are copied each time."""
        uncounted = [buffer for buffer in self._large_buffers if _is_written_uncounted(buffer)]
        self._small_buffers += uncounted
        self._large_buffers = [buffer for buffer in self._large_buffers if not any(buffer is one for one in uncounted)]

    # ---- gradients

    def _look_again(self) -> None:
        """Looks up the modules and their parameters again. They do not change often."""
        roots = (self.trained.model, *(thing for thing in self.trained.shared.values() if isinstance(thing, torch.nn.Module)))
        self._modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
        self._settings.look(self._modules)
        self._uncounted = {module for module in self._modules if may_write_uncounted(module)}
        if self._moving is not None:
            owned = [parameter for module in self._uncounted for parameter in module.parameters(recurse=False)]
            self._moving.look([list(part.parameters()) for root in roots for part in root.children()], owned)
        self._find_parameters()
        self._watched = self._to_watch([list(root.parameters()) for root in roots])
        self._is_spread = any(isinstance(parameter, DTensor) for parameter in self._watched)
        self._with_buffers = [module for module in self._modules if module._buffers]
        self._keep_extra = [module for module in self._modules if has_extra_state(module)]
        self.trained.own_buffers.look_again()
        self._has_grown = False

    def _find_parameters(self) -> None:
        owned = (parameter for module in self._modules for parameter in module._parameters.values())
        self._parameters = [parameter for parameter in owned if parameter is not None]

    def _to_watch(self, of_modules: list[list[torch.nn.Parameter]]) -> list[torch.nn.Parameter]:
        """Returns parameters to watch: evenly spread over each module and each group of an optimizer, with the first and the
        last one.
        """
        of_groups = [group["params"] for optimizer in self._optimizers for group in optimizer.param_groups]
        lists = [held for held in [*of_modules, *of_groups] if held]
        known = set(self._parameters)
        found = dict.fromkeys(one for held in lists for one in [*held[:: max(1, len(held) // WATCHED)], held[-1]])
        return [one for one in found if one in known]

    @property
    def gathers(self) -> bool:
        """Returns whether a step adds to the gradients of the step before."""
        return self._gradients.are_added

    def held_gradients(self) -> Mapping[str, torch.Tensor]:
        """Returns the gradients to which this step adds, as they were when it began."""
        if not self.gathers:
            return {}
        names = self.parameter_names()
        parameters = dict(zip(names, self._parameters, strict=False))
        return {name: spread_as(held, parameters[name]) for name, held in self._gradients.copied(names).items()}

    def drops_gradients(self, thing: torch.optim.Optimizer | torch.nn.Module, set_to_none: bool = True) -> None:
        """Notes that the script is about to drop the gradients of an optimizer or a module, or to set them to zero."""
        self._gradients.dropped(self._parameters, parameters_of(thing), are_kept=not set_to_none)

    def has_gradients(self, *, is_one_of_several: bool) -> None:
        """Notes what the step has changed so far. Called when it has all its gradients, before its update.

        Args:
            is_one_of_several: True if the step may have other updates.
        """
        self.notice_moving()
        if not self.repeats_updates and self._moment is not None:
            self.moments_changed = self._moment_versions() != self._moment.moments
        self._gradients.notice(self._parameters, is_one_of_several=is_one_of_several)

    def notice_moving(self) -> bool:
        """Returns whether parameters have moved that are copied from the next step on. To be called before the update."""
        return self._moving is not None and not self._is_spread and self._moving.notice()

    def _name_of(self, parameter: torch.nn.Parameter) -> str:
        return next(name for name, one in zip(self.parameter_names(), self._parameters, strict=True) if one is parameter)

    def parameter_names(self) -> list[str]:
        """Returns the name of each parameter, in the order of `_parameters`."""
        names: dict[int, str] = {}
        for root, module in self.trained.own_buffers.roots.items():
            for name, parameter in module.named_parameters():
                names.setdefault(id(parameter), name if root == "model" else f"{root} {name}")
        return [names.get(id(parameter), "?") for parameter in self._parameters]

    # ---- what only an update changes

    def _sample(self) -> list[torch.Tensor]:
        """Returns the middle element of each watched tensor, by device, without waiting for the device.

        Change counters notice neither `.data` nor fused kernels.
        """
        held = [local(parameter) for parameter in self._watched] if self._is_spread else self._watched
        places = [tensor.data_ptr() for tensor in held]
        if places != self._places:
            self._places, self._middles = places, [middle(tensor) for tensor in held if tensor.numel()]
        middles = list(self._middles)
        for thing in self._large.values():
            tensors = [leaf for leaf in values(thing.state_dict()) if isinstance(leaf, torch.Tensor) and leaf.numel()]
            every = 1 + len(tensors) * len(self._large) // MANY
            middles += [middle(local(tensor)) for tensor in tensors[::every]]
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for element in middles:
            by_device.setdefault(element.device, []).append(element)
        return [torch.cat(group) for group in by_device.values()]

    def _large_values(self) -> list[object]:
        """Returns plain values of large objects, and change counters of their tensors."""
        found = [leaf for thing in self._large.values() for leaf in values(thing.state_dict())]
        changes = versions([leaf for leaf in found if isinstance(leaf, torch.Tensor)])
        return [*changes, *(leaf for leaf in found if type(leaf) in PLAIN)]

    def _moment_versions(self) -> list[int]:
        """Returns change counters for the parameters that are watched: scripts change the moments of all parameters."""
        if self.repeats_updates or self._is_spread:
            return []
        states = [optimizer.state for optimizer in self._optimizers]
        held = (state[parameter] for parameter in self._watched for state in states if parameter in state)
        return versions([moment for entry in held for moment in entry.values() if isinstance(moment, torch.Tensor)])

    @property
    def large(self) -> Mapping[str, Stateful]:
        """Objects of `state` that are not copied."""
        return self._large

    def _grown(self, _module: torch.nn.Module, _name: str, _part: object) -> None:
        self._has_grown = True


def _is_known(thing: Stateful) -> bool:
    return isinstance(thing, torch.nn.Module | torch.optim.Optimizer | torch.amp.GradScaler | DataParallel | FullySharded)


def _with_inner(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Returns an optimizer, and the optimizers that it contains."""
    found, ahead = [optimizer], list(vars(optimizer).values())
    for value in ahead:
        if isinstance(value, torch.optim.Optimizer) and value not in found:
            found += _with_inner(value)
        elif isinstance(value, list | tuple):
            ahead += [one for one in value if isinstance(one, torch.optim.Optimizer)]
        elif isinstance(value, dict):
            ahead += [one for one in value.values() if isinstance(one, torch.optim.Optimizer)]
    return found


def parameters_of(thing: torch.optim.Optimizer | torch.nn.Module) -> list[torch.nn.Parameter]:
    """Returns the parameters of an optimizer or a module."""
    if isinstance(thing, torch.nn.Module):
        return list(thing.parameters())
    return [parameter for group in thing.param_groups for parameter in group["params"]]


def _small(things: Mapping[str, Stateful]) -> dict[str, Stateful]:
    """Returns the objects that are copied at each boundary: as many as can be, the smallest first, in their order."""
    sizes = {name: _size(thing) for name, thing in things.items()}
    found, count, total = set[str](), 0, 0
    for name, (tensors, held) in sorted(sizes.items(), key=lambda entry: entry[1]):
        if count + tensors <= MANY and total + held <= SMALL:
            count, total = count + tensors, total + held
            found.add(name)
    return {name: thing for name, thing in things.items() if name in found}


def _size(thing: Stateful) -> tuple[int, int]:
    """Returns the number of tensors, and their bytes."""
    held = [leaf.nbytes for leaf in values(thing.state_dict()) if isinstance(leaf, torch.Tensor)]
    return len(held), sum(held)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Copies the options of a parameter group. A learning rate may be a tensor, which a scheduler changes in place."""
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items() if key != "params"}


def _put_groups(optimizer: torch.optim.Optimizer, then: Sequence[Mapping[str, Any]]) -> None:
    """Restores the options of an optimizer's groups. Raises CannotGoBack if groups were removed."""
    if len(optimizer.param_groups) < len(then):
        raise CannotGoBack("groups of parameters were removed from an optimizer in the step")
    del optimizer.param_groups[len(then) :]  # the repeated step adds them again
    for group, options in zip(optimizer.param_groups, then, strict=True):
        _put_options(group, options)


def _put_options(group: dict[str, Any], then: Mapping[str, Any]) -> None:
    for key, value in then.items():
        if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
            group[key].copy_(value)
        else:
            group[key] = value


def _copied(tensor: torch.Tensor, *, counts: bool) -> _Buffer:
    """Copies a buffer. No change count is kept for small ones, because BatchNorm changes its statistics without counting."""
    count = version(tensor) if counts and tensor.nbytes > SMALL and not tensor.is_inference() else None
    return _Buffer(tensor, count, tensor.detach().clone())


def _is_written_uncounted(buffer: _Buffer) -> bool:
    """Returns whether a buffer differs from its copy although its change counter does not."""
    return version(buffer.tensor) == buffer.version and leaf_digest(buffer.tensor) != leaf_digest(buffer.content)


def _put_buffers(slots: Slots, then: Mapping[str, _Buffer | None]) -> None:
    for name in slots.keys() - then.keys():
        del slots[name]
    for name, buffer in then.items():
        slots[name] = None if buffer is None else _filled(buffer)


def _filled(buffer: _Buffer) -> torch.Tensor:
    """Restores a buffer in place, because others may hold the tensor, and returns it.

    Expanded tensors and tensors of an inference cannot be written, so a copy is returned for them.
    """
    if buffer.tensor.is_inference() or 0 in buffer.tensor.stride():
        return buffer.content.clone()
    with torch.no_grad():
        buffer.tensor.copy_(buffer.content)
    return buffer.tensor
