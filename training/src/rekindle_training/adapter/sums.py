"""Gradients of a rank, summed over the shares of a batch in the order of the shares. Used for DistributedDataParallel, and for
models that are sharded within each replica.

A sum of floating-point numbers depends on its order. Here the order is that of the ranks of the job at full size, whichever of
them are there. So a step has the same gradients, bit for bit, while some ranks carry the shares of others.

If ranks have several shares each, those of one rank at full size are a group. A share is summed up by itself, then the shares of
each group in their order, then the groups. Where each share has one pass, a rank that carries the shares of a group adds them up
as they are computed, and keeps nothing apart. The sum is the same.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from rekindle_training.adapter.gradients import largest
from rekindle_training.adapter.mean import Mean
from rekindle_training.adapter.places import Places
from rekindle_training.adapter.sharding import local, version
from rekindle_training.adapter.team import Team, Unit

OUTSIDE = "a backward pass is outside of `for batch in training.batches():`: make it before the next batch is drawn"
GATHERS = "with shares(parts=...), gradients are gathered over several steps: put all passes of one update into one `with step:`"
AGAIN = (
    "with shares(parts=...), gradients are summed over ranks several times in one step: put all passes of a batch but its last "
    "one, and all loops over training.batches() but the last, into `no_sync()`"
)
AGAIN_IN_LOOP = (
    "gradients of a batch are summed over ranks several times: put all passes of a batch but its last one into `no_sync()`"
)
UNSUMMED = (
    "gradients are not summed over ranks by a pass of a rank's last batch: put `no_sync()` around `for batch in "
    "training.batches():` and not inside, and make a backward pass of each batch"
)
WRITTEN = (
    "gradients are changed inside `for batch in training.batches():`, before those of all shares are summed: clip them, unscale "
    "them and the like after that loop"
)
DROPPED = (
    "gradients of shares that are added up are dropped inside `for batch in training.batches():`: call `zero_grad()` before or "
    "after that loop"
)
MIXED = (
    "some models are in `no_sync()` in a loop over training.batches(), and others are not: put `no_sync()` of all models around "
    "that loop, or of none"
)
EARLY = (
    "gradients are summed over ranks by a pass of a batch that others may follow: leave `require_backward_grad_sync` as it is "
    "inside `for batch in training.batches():`"
)
COLLECTIVE = (
    "ranks make a collective inside `for batch in training.batches():`, which they go through a different number of times: make "
    "it after that loop"
)
LOOKS = 4
"""Steps in which it is looked what a script does around its passes, in each of its loops over the batches. While ranks are
missing, it is looked in each step."""


class Sums:
    """Gradients of one rank, apart for each share, and their sum over all ranks."""

    def __init__(self, team: Callable[[], Team], rank: int, places: Places) -> None:
        self._team, self._rank, self._places = team, rank, places
        places.in_step = self._notice_collective
        self._apart: dict[int, dict[torch.Tensor, torch.Tensor]] = {}
        """Gradients of shares that are not summed yet, by the last share of those that are added up, and by parameter."""
        self.has_batch = False
        """True while the script goes through the batches of a step."""
        self._is_open = False
        """True if it has begun to go through them, and the gradients of a sharded model are not summed over replicas yet."""
        self.misuse = ""
        """Reason why this script could not carry the shares of others. Empty: none was seen."""
        self.same_part: Collection[int] = ()
        """Ranks that hold the same part of what is trained as this one, and sum its gradients. Empty: all do, and DDP sums."""
        self._looks = 0
        self._is_new_step = True
        """True until the script goes through the batches of a step for the first time."""
        self._ended: dict[torch.Tensor, object] | None = {}
        """Gradients at the end of the latest step, as `_versions` has them. The script may drop them late, or add to them.

        None: it is not known what they were.
        """
        self._is_apart = False
        """True while passes are made that sum nothing, since those of another share follow."""
        self._has_several_passes = False
        """True if a batch has several passes that add to one gradient."""
        self._adds_up = False
        """True if this loop over the batches of a step may add up shares of a group as they are computed."""
        self._joined = self._has_joined = False
        """True if the gradients of the next share are added to those of the one before; and if any were in this loop."""
        self._reduced = set[torch.Tensor]()
        """Parameters whose gradients were summed in this step, or in this loop if each rank has one share. They are left so."""
        self._means: list[tuple[Mean, torch.futures.Future[torch.Tensor]]] = []
        """Means of the buckets of this pass that are being computed, in their order."""
        self._has_passes = self._has_summed = False
        """True if a pass of this loop has added to a gradient; and if passes of the last share have summed them over ranks."""

    def begin_batches(self, parameters: Callable[[], Collection[torch.nn.Parameter]]) -> None:
        """Begins a loop over the batches of a step.

        Args:
            parameters: returns those of which gradients are summed.

        Raises:
            Refused: ranks are missing, or a rank has several shares, and a pass was made before the first loop.
        """
        self._looks += self._is_new_step
        if self._is_new_step and self._is_looked_at:
            self._note_passes_before(parameters())
        self._is_new_step = False
        self.has_batch, self._is_open = True, bool(self.same_part)
        if self._team().parts == 1:  # each share has the sums of earlier loops
            self._reduced.clear()

    def _note_passes_before(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Notes gradients that are there before a step draws its first batch, unless they are those of the step before."""
        if self._ended is None:
            return
        there = [one for one in parameters if one.grad is not None]
        news = [one.grad for one, now in zip(there, _versions(there), strict=True) if self._ended.get(one) != now]
        held = [gradient for gradient in news if gradient is not None]
        if held and largest(held).item():
            self.note(OUTSIDE)

    def begin(self, parameters: Collection[torch.nn.Parameter], *, is_last: bool) -> None:
        """Lets each group of shares add to the gradients that are there, such as sums of earlier passes of the step.

        Args:
            is_last: the gradients are summed over ranks in this loop over the batches of the step.
        """
        self._adds_up, self._joined = is_last and not self._apart and not _are_changed_in_passes(parameters), False
        self._has_joined = self._has_passes = False
        if not self._apart:  # later each share has added to them already
            self._share_out(self._without_complete(parameters))

    def _share_out(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Gives gradients that are there to the first share of each group."""
        there = [parameter for parameter in parameters if parameter.grad is not None]
        shares = self._team().shares(self._rank)
        begins = [share for share in shares if share < self._team().world_size]
        finds = shares[0] == begins[0]
        for share in begins[finds:]:  # the first share of all finds them where they are
            self._apart[share] = {parameter: parameter.grad.clone() for parameter in there if parameter.grad is not None}
        if not finds:
            for parameter in there:
                parameter.grad = None

    @property
    def is_in_first_steps(self) -> bool:
        return self._looks <= LOOKS

    @property
    def _is_looked_at(self) -> bool:
        return self.is_in_first_steps or not self._team().is_whole

    @contextmanager
    def looking(self, parameters: Iterable[torch.nn.Parameter], *, is_last: bool) -> Iterator[None]:
        """Looks whether passes inside the block, those of a share, add to a gradient several times. Such a share is summed up by
        itself.

        Args:
            is_last: it is the last of several shares of this rank. Its passes sum the gradients, which the script may change.

        Raises:
            Refused: it was added to others, or batches had one pass in the first steps, while ranks are missing; or something
                else changed the gradients before they were summed.
        """
        if not self._is_looked_at:
            yield
            return
        look = _Look()
        hooks = [parameter.register_post_accumulate_grad_hook(look) for parameter in parameters]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if not is_last:
            self.note_changes(look.passed)
        if self._team().parts > 1:
            self._note_several(look.several)

    def note_changes(self, passed: "Passed") -> None:
        """Notes gradients that something else than passes has changed."""
        if passed.finds_changes():
            self.note(WRITTEN)

    def _note_several(self, several: Collection[torch.Tensor]) -> None:
        """Notes parameters to whose gradients the passes of a share have added several times."""
        if several and (self._joined or (self._looks > LOOKS and not self._has_several_passes)):
            self.note("some batches have several backward passes and others one: make as many of each, from the first step on")
        self._has_several_passes |= bool(several)

    @contextmanager
    def share(self, number: int, parameters: Collection[torch.nn.Parameter]) -> Iterator[None]:
        """Keeps the gradients of a share apart from those of others, for passes inside the block that sum nothing.

        They stay where they are if those of the next share are added to them.
        """
        parameters = self._without_complete(parameters)
        self.take(number, parameters)
        self._is_apart = True
        try:
            with self._noticing_passes(parameters):
                yield
        finally:
            self._is_apart = False
        self._joined = self._adds_up and not self._has_several_passes and self._team().is_followed(number)
        self._has_joined = self._has_joined or self._joined
        if not self._joined:
            self._keep(number, parameters)

    @contextmanager
    def last_share(
        self, number: int, parameters: Collection[torch.nn.Parameter], filled: Iterable[torch.nn.Parameter]
    ) -> Iterator[None]:
        """Lets passes inside the block, those of the last share of a rank, sum the gradients of all its shares.

        If they do not, as in `no_sync()`, its gradients are kept apart as well.

        Args:
            filled: parameters of wrappers that refuse a last pass that leaves them out, if other shares have gradients of them.

        Raises:
            Refused: nothing was summed, and the gradients of several shares are added up already.
        """
        parameters = self._without_complete(parameters)
        self.take(number, parameters)
        self._fill(filled)
        self._has_summed = False
        with self._noticing_passes(parameters):
            yield
        if self._has_passes and not self._has_summed:
            if self._has_joined:
                self.note(UNSUMMED)
            self._keep(number, parameters)
            return
        self._put_back_untouched()
        self.drop()

    def _keep(self, number: int, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Keeps the gradients of a share apart."""
        self._apart[number] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                self._apart[number][parameter] = parameter.grad.clone()  # it may be a view of a bucket
                parameter.grad = None

    def _put_back_untouched(self) -> None:
        """Puts gradients back that were there when the loop began, and had no part in it."""
        for held in self._apart.values():
            for parameter, gradient in held.items():
                if parameter.grad is None and parameter not in self._reduced:
                    parameter.grad = gradient

    def _without_complete(self, parameters: Collection[torch.nn.Parameter]) -> Collection[torch.nn.Parameter]:
        """Returns the parameters without those whose gradients are complete, as of another model in an earlier loop."""
        return [one for one in parameters if one not in self._reduced] if self._reduced else parameters

    @contextmanager
    def _noticing_passes(self, parameters: Collection[torch.nn.Parameter]) -> Iterator[None]:
        """Notices whether passes inside the block add to gradients."""
        before = _versions(parameters)
        yield
        self._has_passes = self._has_passes or _versions(parameters) != before

    def take(self, number: int, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Puts the gradients of a share back to which further passes add."""
        held = self._apart.pop(number, {})
        for parameter in parameters:
            if parameter in held:
                parameter.grad = held[parameter]

    def give_up(self) -> None:
        """Drops what is apart, since the step is repeated."""
        self.drop()
        self.end_step()
        self._ended = None  # gradients may be put back, which counts as a change

    def refuse_drop(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Raises Refused where the script is about to drop gradients to which those of the next share are added."""
        if self.has_batch and self._joined and any(one.grad is not None and one not in self._reduced for one in parameters):
            self._places.refuse(DROPPED)

    def end_step(self) -> None:
        self._reduced.clear()
        self._is_new_step = True

    def is_done(self, parameters: Callable[[], Collection[torch.nn.Parameter]]) -> None:
        """Notes the gradients with which a step ends, also those that its update has unscaled.

        Args:
            parameters: returns those of which gradients are summed.
        """
        self.end_step()
        held = parameters() if self._is_looked_at else None
        self._ended = None if held is None else dict(zip(held, _versions(held), strict=True))

    def _fill(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Gives zeros to parameters that have gradients of other shares only. DDP refuses a last pass that leaves them out."""
        held = {parameter for of_share in self._apart.values() for parameter in of_share}
        for parameter in parameters:
            if parameter.grad is None and parameter in held:
                parameter.grad = torch.zeros_like(parameter)

    def drop(self) -> None:
        """Drops what is apart: it is summed, or the step is repeated."""
        self._apart.clear()
        self._means.clear()
        self._is_open = False

    def before_update(self, *, gathers: bool) -> None:
        """Notes an update that does not have the gradients of all shares.

        Args:
            gathers: the step has added to gradients of the step before.
        """
        if self.has_batch or self._is_open:
            self.note("the script updates before its loop over training.batches() has ended: update after that loop")
        self.end_step()
        is_apart = any(self._apart.values())
        if self._team().parts > 1 and (gathers or is_apart):
            self._places.refuse(GATHERS)
        if is_apart:
            self._places.refuse(UNSUMMED)

    def note(self, misuse: str) -> None:
        """Notes what a job of full size can do only.

        Raises:
            Refused: ranks are missing, as the update would be another one; or the model is sharded or a rank has several shares,
                as nothing but the loop over the batches sums their gradients.
        """
        self.misuse = misuse
        if self.same_part or self._team().parts > 1 or not self._team().is_whole:
            self._places.refuse(misuse)

    def _notice_collective(self, group: object) -> None:
        """Notes a collective of all ranks inside the loop over the batches. Called at each collective of the script in a step.

        Raises:
            Refused: ranks are missing, so that others would wait for it without end.
        """
        if self.has_batch and group == dist.group.WORLD:
            self.misuse = self.misuse or COLLECTIVE
            if not self._team().is_whole:
                self._places.refuse(COLLECTIVE)

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Returns the mean of a bucket's gradients over all shares. Called by DDP in the last pass of a step.

        Each rank sums one part of the bucket, so that each gradient is sent twice, as in an all-reduce. The pass goes on
        meanwhile. With the last bucket, all means are there.
        """
        if not self.has_batch:
            self.note(OUTSIDE)
        if self._is_apart:
            self.note(EARLY)
        self._look_for_sums_of_sums(bucket)
        device = bucket.buffer().device
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[device] if device.type != "cpu" else [])
        with self._places.ours():
            mean = self._mean(self._of_units(bucket))
            for before, _ in self._means[-1:]:  # its pieces have come while this bucket was computed
                before.gather()
            self._means.append((mean, future))
            if bucket.is_last():
                self._complete()
        return future

    def _complete(self) -> None:
        """Waits for all means. No collective is under way then."""
        for mean, future in self._means:
            future.set_result(mean.result())
        self._means.clear()

    def _look_for_sums_of_sums(self, bucket: dist.GradBucket) -> None:
        """Notes a bucket that was summed already: that sum would be divided by all shares again."""
        parameters = bucket.parameters()
        if not self._reduced.isdisjoint(parameters):
            self.note(AGAIN if self._team().parts > 1 else AGAIN_IN_LOOP)
        self._reduced.update(parameters)
        self._has_summed = True

    def _of_units(self, bucket: dist.GradBucket) -> list[torch.Tensor]:
        """Returns the bucket's gradients for each unit of this rank. Those of its last share are in the bucket."""
        units = self._team().units(self._rank)
        return [self._of_unit(unit, bucket, is_last=unit is units[-1]) for unit in units]

    def _of_unit(self, unit: Unit, bucket: dist.GradBucket, *, is_last: bool) -> torch.Tensor:
        held = [_flat_in(bucket, self._apart[share]) for share in unit if share in self._apart]
        summed, *others = [*held, bucket.buffer()] if is_last else held
        for one in others:
            summed += one
        return summed

    def over_replicas(self, parameters: Collection[torch.nn.Parameter]) -> None:
        """Puts the mean over all shares into the gradients of a sharded model, which FSDP has reduced within each replica.

        Called by all ranks together, when the last share of this rank has its gradients and those of the others are apart.
        """
        by_kind: defaultdict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = defaultdict(list)
        held = set[torch.nn.Parameter]().union(*self._apart.values())
        for parameter in parameters:
            if parameter.grad is None and parameter in held:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                by_kind[parameter.grad.dtype, parameter.grad.device].append(parameter)
        with self._places.ours(), torch.no_grad():
            for alike in by_kind.values():
                apart = [{one: held.get(one) for one in alike} for _, held in sorted(self._apart.items())]
                mine = [_flat(alike, gradients) for gradients in [*apart, {one: one.grad for one in alike}]]
                _spread_out(self._mean(mine).result(), alike)
        self.drop()

    def _mean(self, mine: Sequence[torch.Tensor]) -> Mean:
        """Begins the mean over all shares, by the ranks that hold the same part.

        Args:
            mine: gradients of each unit of this rank.
        """
        team = self._team()
        return Mean(mine, team, [rank for rank in team.members if not self.same_part or rank in self.same_part])


def _flat_in(bucket: dist.GradBucket, held: Mapping[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Returns gradients as they lie in a bucket, with zeros for those that are not there."""
    flat, at = torch.zeros_like(bucket.buffer()), 0
    for parameter in bucket.parameters():
        alike = _real(parameter.detach())
        if parameter in held:
            flat.as_strided(alike.size(), _strides(alike), at).copy_(_real(held[parameter]))
        at += alike.numel()
    return flat


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor as it lies in a bucket: complex numbers are pairs there."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns the strides that DDP gives a gradient in its bucket: those of the parameter, as with `channels_last`, unless there
    are gaps in it."""
    strides = tensor.stride()
    is_dense = torch.empty_like(tensor, device="meta").stride() == strides
    return strides if is_dense else torch.empty(tensor.shape, device="meta").stride()


def _flat(parameters: Iterable[torch.nn.Parameter], gradients: Mapping[torch.nn.Parameter, torch.Tensor | None]) -> torch.Tensor:
    """Returns this rank's part of some gradients in one tensor, with zeros for those that are not there."""
    found = ((parameter, gradients[parameter]) for parameter in parameters)
    return torch.cat(
        [
            (torch.zeros_like(local(parameter), dtype=parameter.grad.dtype) if gradient is None else local(gradient)).reshape(-1)
            for parameter, gradient in found
            if parameter.grad is not None
        ]
    )


def _spread_out(flat: torch.Tensor, parameters: Iterable[torch.nn.Parameter]) -> None:
    """Puts this rank's part of some gradients back into their tensors."""
    at = 0
    for parameter in parameters:
        assert parameter.grad is not None
        held = local(parameter.grad)
        held.copy_(flat[at : at + held.numel()].view(held.shape))
        at += held.numel()


class _Look:
    """Hook of parameters, which is called when a pass has added to their gradients."""

    def __init__(self) -> None:
        self.several = set[torch.Tensor]()
        """Parameters to whose gradients passes have added several times."""
        self._seen = dict[torch.Tensor, None]()
        self.passed = Passed(self._seen, _versions)

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter in self._seen:
            self.several.add(parameter)
        self._seen[parameter] = None
        self.passed.notice()


class Passed:
    """Gradients as they were at the end of the latest pass."""

    def __init__(self, parameters: Collection[torch.Tensor], seen: Callable[[Collection[torch.Tensor]], list[object]]) -> None:
        """Args:
        seen: returns what changes with the gradients of parameters.
        """
        self._parameters, self._seen = parameters, seen
        self._ended: list[object] = []
        self._is_under_way = False

    def notice(self) -> None:
        """Notes that a pass is under way. Called in it, any number of times."""
        if not self._is_under_way:
            self._is_under_way = True
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._end))  # twice: DDP puts its sums into gradients at the end of a pass, too

    def _end(self) -> None:
        """Notes all gradients, since those in one bucket have their change counter in common."""
        self._ended, self._is_under_way = self._seen(self._parameters), False

    def finds_changes(self) -> bool:
        """Returns whether gradients were changed since the latest pass."""
        return bool(self._ended) and not self._is_under_way and self._ended != self._seen(self._parameters)


def _are_changed_in_passes(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Returns whether the script has hooks that may change gradients when a pass has added to them, such as those of a share to
    those of others."""
    return any(one._post_accumulate_grad_hooks for one in parameters)


def _versions(parameters: Iterable[torch.Tensor]) -> list[object]:
    """Returns what changes when a pass adds to a gradient."""
    return [None if one.grad is None else (id(one.grad), version(one.grad)) for one in parameters]
