"""Interface for scripts: `with session(model, optimizer) as training: for step in training.steps(total): ...`.

A backup process enters the same session, waits there for the order to take over, and then enters the loop at the right step.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Never

import torch

from rekindle_training import environment
from rekindle_training.adapter import communicator, given, sharding, unregistered_state
from rekindle_training.adapter.checkpoint import Checkpoints, CheckpointStore
from rekindle_training.adapter.comparison import Comparison
from rekindle_training.adapter.data_parallel import DataParallel
from rekindle_training.adapter.entry import Entry
from rekindle_training.adapter.fully_sharded import FullySharded
from rekindle_training.adapter.loop import Training
from rekindle_training.adapter.places import EARLY
from rekindle_training.adapter.rank import Rank
from rekindle_training.adapter.state import Stateful, require
from rekindle_training.adapter.trained import FULLY_SHARDED, Trained
from rekindle_training.data.kinds import refuse_raw
from rekindle_training.data.shares import Shares


def session(  # noqa: PLR0913  # what is trained, and how
    model: torch.nn.Module = given.MISSING,
    optimizer: Stateful = given.MISSING,
    *,
    state: Sequence[Stateful] = (),
    data: Stateful | None = None,
    checkpoint_every: int | None = None,
    checkpoints: CheckpointStore | None = None,
    unique_shards: bool = False,
    replicas: Collection[int] | None = None,
    after_update: Callable[[], None] | None = None,
    switch_link: Callable[[bool], None] | None = None,
    repeat_updates: bool = False,
    accept: Collection[str] = (),
    **unknown: Never,
) -> "Session":
    """Makes this process a rank of the job. Inside, it has the default process group and the current state of training.

    Args:
        model: The bare module; wrap it (DDP) inside the session.
        optimizer: Its state is taken from a replica or from a checkpoint. One that is not torch's calls `Training.agree` before
            it updates.
        state: Anything else with `state_dict` that all ranks have in common: schedulers, a GradScaler, an average of the model.
        data: `rekindle_training.batches(loader)`, or anything else with `state_dict` that each rank has for itself. With
            `rekindle_training.shares(make_loader)` training may go on with fewer ranks.
        checkpoint_every: Steps between two checkpoints, 0 for none; by default what `REKINDLE_CHECKPOINT_EVERY` says.
        checkpoints: Storage that writes and reads them in its own format; by default they are written to `REKINDLE_JOB_DIR`.
        unique_shards: Shards may be held by one rank alone; where such a rank is lost all begin again at the last checkpoint.
        replicas: The ranks that have the same state as this one, itself among them. Needed if tensors do not show that, as for an
            optimizer that spreads its state over ranks without DTensors. By default all, or as the model's DTensors show.
        after_update: Function in which ranks send each other the update that each has done, such as the new parameters of its
            shard. Called at the end of each `with step:`, after each rebuild, and after a checkpoint was read; a second call
            changes nothing.
        switch_link: Function for a communication library that has its own call to move from one link to another. It is called
            with True for the backup link, with False for the first one, on the ranks that are to move, at a step boundary. It is
            also called after each rebuild, on a rank that is on its backup link. It raises if it cannot switch. A second
            call changes nothing. Without it the groups are made again on another interface.
        repeat_updates: Copies of parameters and of the optimizers' state are kept, so that a step is repeated whatever
            failed in it: for steps with several updates, or with collectives after one. They take memory, and time in each step.
        accept: Rules that the script may break, although a recovery then is not exact or not possible:
            `early-collectives`, `late-collectives`, `late-draws`, `carried-variables`, `unrepeatable`.

    Raises:
        EnvironmentIncomplete: the process was not started by `rekindle-train`.
        TypeError: something has no state that a replacement could be given, or not the methods that are asked for, or is wrapped;
            the message names it.
        ValueError: an optimizer updates what no module has, or the interval of checkpoints is not set, or a shard is held
            by one rank alone, or `replicas` names ranks that there are not.
        RuntimeError: there is a default process group already.
    """
    given.refuse_unknown(unknown)
    options: dict[str, Any] = {
        "state": state,
        "unique_shards": unique_shards,
        "repeat_updates": repeat_updates,
        "after_update": after_update,
        "switch_link": switch_link,
        "replicas": replicas,
        "accept": accept,
    }
    refuse_raw(data)
    given.check(model, optimizer, options)
    if checkpoint_every is not None:
        given.interval(checkpoint_every)
    environment.require_launcher()
    every = given.interval(environment.checkpoint_every(checkpoint_every))
    return Session(_opened(model, optimizer, data, checkpoints, every, **options))


class Session(AbstractContextManager["Training"]):
    """A session that is entered by `with`."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def __enter__(self) -> "Training":
        training: Training = self._opened.__enter__()
        return training

    def __exit__(self, *error: object) -> bool | None:
        ended: bool | None = self._opened.__exit__(*error)
        return ended

    def __getattr__(self, name: str) -> Never:
        raise AttributeError(
            f"session(...).{name}: a session is entered by `with`, as in: with rekindle_training.session(...) as training:"
        )


@contextmanager
def _opened(  # noqa: PLR0913  # what a session is given
    model: torch.nn.Module,
    optimizer: Stateful,
    data: Stateful | None,
    checkpoints: CheckpointStore | None,
    every: int,
    *,
    state: Sequence[Stateful],
    unique_shards: bool,
    replicas: Collection[int] | None,
    after_update: Callable[[], None] | None,
    switch_link: Callable[[bool], None] | None,
    repeat_updates: bool,
    accept: Collection[str],
) -> Iterator["Training"]:
    if _entry is None:
        communicator.refuse_another()
    modules = [thing for thing in (model, *state) if isinstance(thing, torch.nn.Module)]
    wrappers, sharded = DataParallel(), FullySharded(modules)
    shared: dict[str, Stateful] = {
        "DistributedDataParallel": wrappers,
        FULLY_SHARDED: sharded,
        **{f"state[{index}]": thing for index, thing in enumerate(state)},
    }
    if isinstance(data, Shares):
        own = environment.RankEnvironment.read()
        data.attach(own.rank, own.world_size)
    trained = Trained(model, optimizer, data, shared, communicator.accelerator_module())
    unregistered_state.refuse_strange_parameters((model, optimizer, *state))
    entry = _take_entry() or Entry.make()
    entry.communicator.links.function = switch_link
    entry.communicator.places.accept([*accept, EARLY] if unique_shards else accept)
    here = entry.environment
    if not unique_shards:
        sharding.refuse_unique(trained.collect()["model"], here.world_size)
    declared = None if replicas is None else sharding.declared(replicas, here.rank, here.world_size, unique=unique_shards)
    if here.drill_steps:
        checkpoints = None  # a drill leaves the script's own checkpoints alone
    rank = Rank.of(entry, trained, wrappers, sharded, declared, after_update, keeps_own_checkpoints=checkpoints is not None)
    if checkpoints is not None:
        require("checkpoints", checkpoints, "newest", "write", "read")
    else:
        checkpoints = Checkpoints(here.job_dir, here.rank, here.world_size, trained, declared, rank.launcher_memory)
        checkpoints.team = lambda: rank.communicator.team
    comparison = Comparison(trained, here.rank, lambda: rank.communicator.team, declared)
    training = Training(rank, checkpoints, every, comparison, repeats_updates=repeat_updates)
    training.begin()
    with training.refusing_others((model, optimizer, *state)):
        yield training
        training.end()


_entry: Entry | None = None
"""Entry of a process that has joined a generation before its session. None: it has not."""


def _take_entry() -> Entry | None:
    global _entry
    taken, _entry = _entry, None
    return taken


def init_process_group() -> None:
    """Replaces torch's function, for scripts that need the process group or device meshes to build what they train.

    An example is `fully_shard`. The session goes on with this group.

    Between this call and the session's loop, other ranks must not be involved except to make groups and meshes: a replacement is
    alone there.

    Raises:
        EnvironmentIncomplete: the process was not started by `rekindle-train`.
        RuntimeError: there is a default process group already.
    """
    global _entry
    environment.require_launcher()
    communicator.refuse_another()
    _entry = Entry.make()
    _entry.begin()
    _entry.meet()
    _entry.communicator.places.begin_alone(replaces=not _entry.begins)
