"""DistributedDataParallel in one generation after the other: the object stays, the group under it changes.

DDP sums gradients in buckets, and finds their layout in its first backward pass. With another layout the same sums differ in
their last bits. So the layout is a part of the training state. A replacement, and a job that begins again at a checkpoint,
wrap their models with the layout that training has. DDP would change the layout somewhere in the next step. Here it changes
before the agreement of the step that found it, so that all ranks have the new layout or none has.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import Any
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rekindle_training.adapter.sums import Sums

Layout = str
"""Indices of the parameters that need gradients, as DDP writes them: "2 1, 0" are two buckets, in the order of reduction."""

Flags = dict[str, bool]
FLAGS = ("require_forward_param_sync", "require_backward_grad_sync")
"""Attributes by which DDP decides about the collectives of its next passes."""

UNWRAPPED = (
    "an optimizer updates parameters of no model that is wrapped in DistributedDataParallel over the default process group"
)
STATIC = "DistributedDataParallel(static_graph=True) has to sum in its first pass, not after those of other shares"
SAMPLE_RATE = 100
"""Number of iterations from one record of DDP's statistics to the next."""


@dataclass
class _Wrapper:
    """Wrapper of a model, over the default process group."""

    ddp: "ReferenceType[DistributedDataParallel]"
    layout: Layout
    """Layout of the latest agreement."""
    needs: list[bool]
    """True for each parameter that needed gradients when the wrapper was made. DDP reduces them, even if frozen later."""
    found: bool = False
    """True if the first backward pass is over and the buckets are final."""

    @property
    def reduced(self) -> list[torch.nn.Parameter]:
        """Parameters that train, and whose gradients the wrapper reduces. It may have been told to ignore others."""
        if (ddp := self.ddp()) is None:
            return []
        named = zip(ddp.module.named_parameters(), self.needs, strict=False)
        return [one for (name, one), need in named if need and one.requires_grad and name not in ddp.parameters_to_ignore]


class DataParallel:
    """Wrappers of one rank, in the order in which they were made. A `Stateful` whose state all ranks share."""

    def __init__(self) -> None:
        self._wrappers: list[_Wrapper] = []
        self._awaited: list[Layout] = []
        """Layouts of wrappers that are still to be made here."""
        self._awaited_flags: list[Flags] = []
        self._awaited_needs: list[list[bool]] = []
        self.sums: Sums | None = None
        """Sums of gradients of a job whose number of ranks may change. None: DDP sums them."""
        self.alone = False
        """True if no other rank wraps a model now: the others are in their loops, and have the same state as this one."""

    def watch(self) -> None:
        """Starts to record all wrappers that are made."""
        wrap = DistributedDataParallel.__init__

        @wraps(wrap)
        def watched(ddp: DistributedDataParallel, *args: Any, **options: Any) -> None:
            if self.alone:
                options["init_sync"] = False
            module: torch.nn.Module = options["module"] if "module" in options else args[0]
            with (
                _needing(module, self._awaited_needs[0] if self._awaited_needs else []),
                _layout(self._awaited[0] if self._awaited else None) as used,
            ):
                wrap(ddp, *args, **options)
                needs = _needs(module)
            if used and ddp.process_group is dist.group.WORLD:
                self._awaited = self._awaited[1:]
                self._awaited_needs = self._awaited_needs[1:]
                self._wrappers.append(_Wrapper(ref(ddp), used[0], needs))
                if self.sums is not None:
                    _refuse_sparse(ddp)
                    register(ddp, None, self.sums.hook)
                if self._awaited_flags:
                    vars(ddp).update(self._awaited_flags.pop(0))

        DistributedDataParallel.__init__ = watched  # type: ignore[method-assign,assignment]
        register = DistributedDataParallel.register_comm_hook

        @wraps(register)
        def registered(ddp: DistributedDataParallel, *args: Any, **options: Any) -> None:
            if self.sums is not None and ddp._comm_hooks:
                raise TypeError(
                    "DistributedDataParallel: a communication hook is not accepted in a session whose data are shares, since the "
                    "session sums gradients in the order of the shares; leave out `register_comm_hook`"
                )
            register(ddp, *args, **options)
            _refuse_state(ddp)

        DistributedDataParallel.register_comm_hook = registered  # type: ignore[method-assign,assignment]

    @contextmanager
    def passes(self, share: int, go_on: Callable[[], bool], *, sums: bool) -> Iterator[None]:
        """Keeps the gradients of passes inside the block apart from those of other shares.

        Args:
            go_on: returns whether the step has not been given up meanwhile. Otherwise the session puts the flags back.
            sums: True for the last share of a rank. Its last pass sums the gradients of all shares, unless the script has said
                that further passes follow (`no_sync`).
        """
        assert self.sums is not None
        ddps, parameters = self.living, self.parameters
        if sums and self.is_last:
            with self.sums.last_share(share, parameters, self._unused_at_times):
                yield
            return
        flags = [ddp.require_backward_grad_sync for ddp in ddps]
        for ddp in ddps:
            ddp.require_backward_grad_sync = False
        try:
            with self.sums.share(share, parameters):
                yield
        finally:
            if go_on():
                for ddp, before in zip(ddps, flags, strict=True):
                    ddp.require_backward_grad_sync = before

    def looking(self, is_last: bool) -> AbstractContextManager[None]:
        """See `Sums.looking`."""
        assert self.sums is not None
        return self.sums.looking(self.parameters, is_last=is_last)

    @property
    def is_last(self) -> bool:
        """Returns whether passes that follow sum gradients over ranks: the script has not said `no_sync`."""
        return False not in self._sync_flags

    @property
    def sums_some(self) -> bool:
        """Returns whether passes that follow sum the gradients of some models, and not those of others."""
        return len(self._sync_flags) > 1

    @property
    def _sync_flags(self) -> set[bool]:
        """Values of the flag that `no_sync` changes, without those of models that do not train, such as a teacher."""
        flags = {ddp.require_backward_grad_sync for ddp in self.living}
        if len(flags) < 2:
            return flags
        training = (wrapper.ddp() for wrapper in self._wrappers if wrapper.reduced)
        return {ddp.require_backward_grad_sync for ddp in training if ddp is not None}

    def conclude(self) -> None:
        """Called when the batches of a step were gone through. Does nothing: the passes of the last share have summed."""

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Parameters that wrappers reduce."""
        return [one for wrapper in self._wrappers for one in wrapper.reduced]

    @property
    def _unused_at_times(self) -> Iterator[torch.nn.Parameter]:
        """Parameters of wrappers whose passes may leave some out."""
        for wrapper in self._wrappers:
            if (ddp := wrapper.ddp()) is not None and ddp.find_unused_parameters:
                yield from wrapper.reduced

    @property
    def has_static_graph(self) -> bool:
        """Returns whether a wrapper was told that its graph does not change. Torch fails then if its first pass sums nothing."""
        return any(ddp.static_graph for ddp in self.living)

    @property
    def count(self) -> int:
        """Number of models that are wrapped."""
        return len(self.living)

    def settle(self) -> None:
        """Called by all ranks when a step has its gradients. Buckets become those that the first backward pass has found.

        Raises:
            RuntimeError: another rank could not be reached; or DDP's own, where parameters had no part in the step's loss.
        """
        for _, ddp in self._unfound():
            if ddp.reducer._rebuild_buckets():
                ddp._has_rebuilt_buckets = True

    @property
    def is_settled(self) -> bool:
        """Returns whether all wrappers have found their buckets."""
        return not any(True for _ in self._unfound())

    def agreed(self) -> None:
        """Stores the new layouts. Called when all ranks have completed `settle`."""
        for wrapper, ddp in self._unfound():
            if ddp._has_rebuilt_buckets:
                wrapper.layout, wrapper.found = _found(ddp), True

    def regroup(self) -> None:
        """Begins again with the new default process group. State of the former group is dropped."""
        for wrapper in self._wrappers:
            if (ddp := wrapper.ddp()) is not None:
                with _needing(ddp.module, wrapper.needs):
                    _begin_again(ddp, wrapper.layout)
                wrapper.found = False

    @contextmanager
    def wrapped_again(self) -> Iterator[None]:
        """Lets the script wrap its models again inside the block, as all ranks that had wrapped them do at that time."""
        before = self.alone, self._awaited, self._awaited_flags, self._awaited_needs
        state = self.state_dict()
        self.alone, self._awaited, self._awaited_flags, self._awaited_needs = (
            True,
            state["layouts"],
            state["flags"],
            state["needs"],
        )
        try:
            yield
        finally:
            self.alone, self._awaited, self._awaited_flags, self._awaited_needs = before

    def begin_loop(self) -> None:
        """Raises RuntimeError where the script has wrapped fewer models than the ranks whose state this one has taken.
        Raises TypeError where a wrapper has a state that no replacement can be given."""
        self.alone = False
        for ddp in self.living:
            _refuse_state(ddp)
        if self._awaited:
            raise RuntimeError(
                f"{len(self._awaited)} models more are wrapped in DistributedDataParallel on the ranks that train; a replacement "
                "wraps the same ones, between session() and its loop"
            )

    def state_dict(self) -> dict[str, Any]:
        living = [wrapper for wrapper in self._wrappers if wrapper.ddp() is not None]
        return {
            "layouts": [*(wrapper.layout for wrapper in living), *self._awaited],
            "flags": [*self.flags(), *self._awaited_flags],
            "needs": [*(wrapper.needs for wrapper in living), *self._awaited_needs],
        }

    def flags(self) -> list[Flags]:
        """Flags of each wrapper."""
        return [{name: getattr(ddp, name) for name in FLAGS} for ddp in self.living]

    def put_flags(self, flags: list[Flags]) -> None:
        for ddp, then in zip(self.living, flags, strict=False):
            vars(ddp).update(then)

    @property
    def living(self) -> list[DistributedDataParallel]:
        """Wrappers that the script still has."""
        return [ddp for wrapper in self._wrappers if (ddp := wrapper.ddp()) is not None]

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        layouts: list[Layout] = state["layouts"]
        self._wrappers = [wrapper for wrapper in self._wrappers if wrapper.ddp() is not None]
        for wrapper, layout in zip(self._wrappers, layouts, strict=False):
            wrapper.layout = layout
        self._awaited = layouts[len(self._wrappers) :]
        flags: list[Flags] = state.get("flags", [])  # a checkpoint of an earlier release has neither
        self._awaited_needs = state.get("needs", [])[len(self._wrappers) :]
        self.put_flags(flags)
        self._awaited_flags = flags[len(self._wrappers) :]

    def _unfound(self) -> Iterator[tuple[_Wrapper, DistributedDataParallel]]:
        for wrapper in self._wrappers:
            if not wrapper.found and (ddp := wrapper.ddp()) is not None and not ddp.find_unused_parameters:
                yield wrapper, ddp


@contextmanager
def _layout(given: Layout | None) -> Iterator[list[Layout]]:
    """Gives the layout to a DDP that is made inside the block, if it fits the parameters. Otherwise DDP chooses its own.

    Yields a list that holds the layout in use, once the DDP is made.
    """
    used: list[Layout] = []
    assign = dist._compute_bucket_assignment_by_size

    def assigned(parameters: list[torch.Tensor], limits: list[int], *options: Any) -> tuple[list[list[int]], list[int]]:
        buckets, sizes = assign(parameters, limits, *options)
        wanted = _buckets(given or "")
        if sorted(chain(*wanted)) == list(range(len(parameters))):
            buckets, sizes = wanted[::-1], [max(limits)] * len(wanted)  # DDP turns both around
        used.append(", ".join(" ".join(map(str, bucket)) for bucket in buckets[::-1]))
        return buckets, sizes

    dist._compute_bucket_assignment_by_size = assigned  # type: ignore[assignment]
    try:
        yield used
    finally:
        dist._compute_bucket_assignment_by_size = assign


def _needs(module: torch.nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in module.parameters()]


@contextmanager
def _needing(module: torch.nn.Module, needs: list[bool]) -> Iterator[None]:
    """Sets which parameters need gradients inside the block. Does nothing if the number of parameters differs."""
    parameters = list(module.parameters())
    before = _needs(module)
    if len(needs) != len(parameters):
        yield
        return
    for parameter, need in zip(parameters, needs, strict=True):
        parameter.requires_grad_(need)
    try:
        yield
    finally:
        for parameter, need in zip(parameters, before, strict=True):
            parameter.requires_grad_(need)


def _found(ddp: Any) -> Layout:
    """Returns the layout that DDP has found, which torch reports in its statistics only."""
    ddp.reducer._set_ddp_runtime_logging_sample_rate(1)
    ddp.logger.set_runtime_stats_and_log()
    ddp.reducer._set_ddp_runtime_logging_sample_rate(SAMPLE_RATE)
    layout: Layout = ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
    return layout


def _buckets(layout: Layout) -> list[list[int]]:
    return [[int(index) for index in bucket.split()] for bucket in layout.split(",")]


def _begin_again(ddp: Any, layout: Layout) -> None:
    """Restores a wrapper to its state just after wrapping, with this layout."""
    ddp.reducer._remove_autograd_hooks()
    ddp.process_group = dist.group.WORLD
    parameters, sparse = ddp._build_params_for_reducer()
    with _layout(layout):
        ddp._ddp_init_helper(parameters, sparse, ddp._build_debug_param_to_name_mapping(parameters), ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    ddp._comm_hooks = [(hook, dist.group.WORLD if state is not None else None) for hook, state in ddp._comm_hooks]
    for hook, state in ddp._comm_hooks:
        dist._register_comm_hook(ddp.reducer, state, hook)
    if ddp.static_graph:
        ddp.static_graph = False
        ddp._set_static_graph()


def _refuse_sparse(ddp: Any) -> None:
    """Raises TypeError where gradients do not lie in buckets."""
    parameters, sparse = ddp._build_params_for_reducer()
    if any(sparse):
        names = {parameter: name for name, parameter in ddp.module.named_parameters()}
        name = next(names[one] for one, is_sparse in zip(parameters, sparse, strict=True) if is_sparse)
        raise TypeError(
            f"DistributedDataParallel: the sparse gradient of {name} is not accepted in a session whose data are shares, since "
            "the session sums gradients in the order of the shares; give its layer sparse=False"
        )


def _refuse_state(ddp: Any) -> None:
    """Raises TypeError where a wrapper has a state that no replacement can be given."""
    for hook, state in ddp._comm_hooks:
        if state is not None and state is not dist.group.WORLD:
            raise TypeError(
                f"DistributedDataParallel: the communication hook {getattr(hook, '__name__', hook)} has a state "
                f"({type(state).__name__}), which a replacement could not be given; accepted are hooks whose state is None or "
                "the default process group"
            )
    if not ddp._comm_hooks and (builtin := ddp._get_ddp_logging_data().get("comm_hook")):
        raise TypeError(
            f"DistributedDataParallel: the built-in communication hook {builtin} is not registered again after a recovery; "
            "register the hook of torch.distributed.algorithms.ddp_comm_hooks that does the same"
        )
    if ddp._join_config.enable:
        raise TypeError("DistributedDataParallel.join is not accepted: all ranks do the same number of steps")
