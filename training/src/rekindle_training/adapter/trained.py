"""Objects that are trained, as the user gave them to the session, with all ways in which their state is read and written."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from rekindle_training.adapter import own, state
from rekindle_training.adapter.attributes import Attributes
from rekindle_training.adapter.gradients import Gradients
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.own_buffers import OwnBuffers
from rekindle_training.adapter.state import State, Stateful
from rekindle_training.data.shares import Shares
from rekindle_training.wire import LARGEST_OWN

OWN_BUFFERS, ATTRIBUTES, FULLY_SHARDED = "own buffers", "attributes", "fully_shard"
GRADIENTS = "use of gradients"
"""Parts of a state that the session adds by itself."""
ZEROS = "zero gradients"
"""Part of a state without gradients: types of those that are zero, by name."""


@dataclass(frozen=True)
class Trained:
    model: torch.nn.Module
    optimizer: Stateful
    data: Stateful | None = None
    """Data position that differs from rank to rank, such as a sampler's. None: there is none."""
    shared: Mapping[str, Stateful] = field(default_factory=dict)
    """Other objects whose state data parallel ranks share, such as a scheduler, by their names in the session."""
    accelerator: str | None = None
    """Name of the module `torch.<accelerator>`, which has its own random number generators. None: the CPU is used."""
    own_buffers: OwnBuffers = field(init=False)
    """Buffers that each rank has for itself."""
    attributes: Attributes = field(init=False)
    """Attributes of modules that the script changes."""
    gradients: Gradients = field(init=False, default_factory=Gradients)
    """Gradients that are held between two steps."""
    carried: dict[int, Own] = field(init=False, default_factory=dict)
    """State of the shares that this rank carries besides its own one, by share."""

    def __post_init__(self) -> None:
        given = {"optimizer": self.optimizer, **self.shared}
        state.refuse(self.model, given if self.data is None else {**given, "data": self.data})
        modules = {name: thing for name, thing in self.shared.items() if isinstance(thing, torch.nn.Module)}
        object.__setattr__(self, "own_buffers", OwnBuffers({"model": self.model, **modules}))
        object.__setattr__(self, "attributes", Attributes({"model": self.model, **modules}))
        state.refuse_content(self.collect())
        if self.accelerator is not None:
            device = torch.device(self.accelerator, getattr(torch, self.accelerator).current_device())
            state.refuse_other_device(self.model, device)
        size = len(self.take_own().pickled) * self.parts
        if size > LARGEST_OWN:
            raise ValueError(
                f"session(data): the state of {type(self.data).__name__} has {size / 1e6:.1f} MB, of which a pause can take "
                f"{LARGEST_OWN / 1e6:.1f} MB along; keep what it is made from, such as a seed and a position"
            )

    @property
    def parts(self) -> int:
        """Number of shares of each rank at full size."""
        return self.data.parts if isinstance(self.data, Shares) else 1

    @property
    def objects(self) -> list[object]:
        """Returns all objects that the session was given."""
        return [self.model, self.optimizer, self.data, *self.shared.values()]

    @property
    def modules(self) -> list[torch.nn.Module]:
        """Returns the model and all other given modules."""
        return [thing for thing in (self.model, *self.shared.values()) if isinstance(thing, torch.nn.Module)]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Returns all given optimizers of torch."""
        return [thing for thing in (self.optimizer, *self.shared.values()) if isinstance(thing, torch.optim.Optimizer)]

    def updates_others_than(self, parameters: Collection[torch.nn.Parameter]) -> bool:
        """Returns whether an optimizer updates parameters that are none of these."""
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        known = set(parameters)
        return any(one.requires_grad and one not in known for group in groups for one in group["params"])

    def collect(self) -> State:
        """Returns the state that all data parallel ranks share."""
        common = state.collect(self.model, self.optimizer, self.shared)
        return {**common, **{name: part.state_dict() for name, part in self._parts.items()}}

    def collect_without_gradients(self) -> State:
        """Returns the state as `collect`, for steps that do not add to the gradients of the step before.

        Only which of them are set to zero is kept: an optimizer updates a parameter whose gradient is zero, and leaves out one
        that has none.
        """
        kept = ((name, one.grad) for name, one in self._parameters() if self.gradients.are_kept(one))
        return {**self.collect(), "gradients": {}, ZEROS: {name: held.dtype for name, held in kept if held is not None}}

    def place(self, common: State) -> None:
        state.place(common, self.model, self.optimizer, self.shared)
        zeros = common.get(ZEROS, {})
        for name, parameter in self._parameters():
            if name in zeros:
                parameter.grad = torch.zeros_like(parameter, dtype=zeros[name])
        for name, part in self._parts.items():
            if name in common:  # a checkpoint of an earlier release has not all
                part.load_state_dict(common[name])

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return state.parameters_of(self.model, self.shared)

    @property
    def _parts(self) -> Mapping[str, Stateful]:
        """Parts of a state that the session adds by itself."""
        return {OWN_BUFFERS: self.own_buffers, ATTRIBUTES: self.attributes, GRADIENTS: self.gradients}

    def take_own(self) -> Own:
        mine = own.take(self.data, self.accelerator, self.own_buffers.take())
        return replace(mine, carried=tuple(sorted(self.carried.items()))) if self.carried else mine

    def put_own(self, then: Own, *, random_numbers: bool = True) -> None:
        own.put(then, self.data, self.accelerator, random_numbers=random_numbers)
        self.own_buffers.put(then.described, then.buffers)
        self.carried.clear()
        self.carried.update(then.carried)

    def take_random_numbers(self) -> Own:
        return own.take(None, self.accelerator)
