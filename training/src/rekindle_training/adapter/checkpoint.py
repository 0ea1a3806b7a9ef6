"""Checkpoints in a folder: written by all ranks together, complete or absent, bit-exact to continue from. Used by `periodic.py`.

`checkpoints/step-00000020/` appears by one rename when everything in it is on the disk, so a folder of that name is complete.
The newest of them is where a restarted job begins; the last two are kept. `load.py` reads one without a job.
"""

import logging
import os
import pickle
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.tensor import DTensor

from rekindle_training.adapter.failure_text import FAILURES, cause_in_words, in_words
from rekindle_training.adapter.launcher_memory import LauncherMemory
from rekindle_training.adapter.meeting import Meeting, MeetingFailed, nothing
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.sharding import Ranks
from rekindle_training.adapter.skeleton import Slot, destinations, named, put_together, slot_of, taken_apart
from rekindle_training.adapter.state import State
from rekindle_training.adapter.team import Team
from rekindle_training.adapter.trained import FULLY_SHARDED, Trained
from rekindle_training.adapter.wards import Planner, Shard, Ward

log = logging.getLogger(__name__)

KEEP = 2
COMMON = "common"
_NAME = re.compile(r"step-(\d{8})")


Kept = tuple[Mapping[int, bytes], Sequence[Ward]]
"""State that only single ranks have, by share; and the whole state of ranks that are gone."""
T = TypeVar("T")


class CheckpointFailed(RuntimeError):
    """Failure of a rank, which all ranks raise together. The message names the rank, the checkpoint, and what is wrong."""


class CheckpointUnreadable(CheckpointFailed):
    """Failure to read a checkpoint."""


class CheckpointNotWritten(CheckpointFailed):
    """Failure to write. No part of the checkpoint is left."""


class CheckpointStore(Protocol):
    """Storage of checkpoints in the script's own format. All ranks of a generation make each call together."""

    def newest(self) -> int:
        """Returns the step of the newest complete checkpoint, the same on all ranks. 0: there is none."""

    def write(self, step: int) -> None:
        """Writes the state of training after this step."""

    def read(self, step: int) -> None:
        """Restores the state of this checkpoint, including random numbers and positions."""


class Checkpoints:
    """Checkpoints of one job, as one rank uses them: a `CheckpointStore`."""

    def __init__(  # noqa: PLR0913  # place and content of checkpoints
        self,
        job_dir: Path | None,
        rank: int,
        world_size: int,
        trained: Trained,
        declared: Ranks | None,
        launcher_memory: LauncherMemory,
    ) -> None:
        """Args:
        launcher_memory: where a rank leaves what it has read for itself, should it end before its first step.
        declared: the ranks that have the same state as this one; None: the tensors show it.
        """
        self._folder = (job_dir or Path.cwd()) / "checkpoints"
        self._rank, self._world_size = rank, world_size
        self.team: Callable[[], Team] = lambda: Team.of((), world_size)
        """Returns the ranks that train now. A checkpoint has the state of all ranks of the job, whichever are missing."""
        self._trained, self._launcher_memory = trained, launcher_memory
        self._replicas = frozenset(range(world_size)) if declared is None else declared
        """Ranks with the same state as this one, itself among them."""
        self._part = "" if declared is None else f"rank-{min(self._replicas):05d}."
        self._damaged: set[int] = set()
        """Steps of checkpoints that cannot be read."""

    @property
    def _shares(self) -> int:
        """Number of all shares. Each has a state for itself: that of a rank, if each rank has one share."""
        return self._world_size * self._trained.parts

    @property
    def _leads(self) -> bool:
        """Returns whether this rank looks after folders: it is the lowest of all."""
        return self._rank == self.team().members[0]

    def newest(self) -> int:
        """Returns the step of the newest complete checkpoint. 0: there is none. Only one rank looks, so that all ranks agree."""
        return self._newest_of(lambda _: True)

    def older(self, step: int) -> int:
        """Returns the step of the newest complete checkpoint before this one. 0: there is none."""
        return self._newest_of(lambda found: found < step)

    def _newest_of(self, counts: Callable[[int], bool]) -> int:
        found: list[int | CheckpointUnreadable] = [0]
        if self._leads:
            try:
                found = [max(filter(counts, complete(self._folder) - self._damaged), default=0)]
            except OSError as error:
                found = [CheckpointUnreadable(f"checkpoints in {self._folder}: rank 0: {in_words(error)}")]
        dist.broadcast_object_list(found, 0)
        if isinstance(found[0], CheckpointUnreadable):
            raise found[0]
        return found[0]

    def write(self, step: int) -> None:
        """Writes what all ranks have in common, with tensors as other tools read them, and what this rank has for itself.

        Raises:
            CheckpointNotWritten: on all ranks, if one cannot write its part.
        """
        scratch = self._folder / f".{name_of(step)}"
        try:
            self._write_into(scratch, step)
        except CheckpointNotWritten:
            if self._leads:
                shutil.rmtree(scratch, ignore_errors=True)
            raise

    def _write_into(self, scratch: Path, step: int) -> None:
        """Does each part of the work on all ranks, or stops it on all ranks, so that none waits for one that has failed."""

        def together(work: Callable[[], T]) -> T:
            return self._together(CheckpointNotWritten, self._folder / name_of(step), work)

        skeleton, tensors = together(lambda: self._begun(scratch))
        try:
            dcp.save(self._named(skeleton, tensors), storage_writer=_Writer(scratch))
        except CheckpointException as error:  # on all ranks
            raise CheckpointNotWritten(f"checkpoint {self._folder / name_of(step)}: {_said_by_torch(error)}") from None
        together(lambda: self._write_pickled(scratch, step, skeleton, tensors))
        together(lambda: self._publish(scratch, step) if self._leads else None)

    def _begun(self, scratch: Path) -> tuple[Any, list[torch.Tensor]]:
        if self._leads:
            self._make(scratch)
        return taken_apart(self._trained.collect())

    def _make(self, scratch: Path) -> None:
        self._clear()
        scratch.mkdir(parents=True)

    def _write_pickled(self, scratch: Path, step: int, skeleton: Any, tensors: Sequence[torch.Tensor]) -> None:
        if self._writes_common:
            self._write_common(scratch, step, skeleton, tensors)
        for share, mine in self._trained.take_own().apart(self._rank).items():
            _write_durably(scratch / own_name(share), mine.pickled)

    def _write_common(self, scratch: Path, step: int, skeleton: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._write_kinds(scratch / (self._part + COMMON), step, skeleton, [slot_of(tensor) for tensor in tensors])

    def _write_kinds(self, path: Path, step: int, skeleton: Any, slots: Sequence[Slot]) -> None:
        _write_durably(path, pickle.dumps((self._kinds(), skeleton, slots, {"step": step, **self._of_modules()})))

    def _part_of(self, ward: Ward) -> str:
        """Returns the beginning of the names of what only this rank and its replicas have. A rank that is gone has none."""
        return f"rank-{ward.rank:05d}." if self._part and ward.rank != self._rank else self._part

    def _is_whole_in(self, ward: Ward) -> bool:
        """Returns whether this rank writes all that this ward has, and not only its shards."""
        return self._writes_common if ward.rank == self._rank else bool(self._part)

    @property
    def _writes_common(self) -> bool:
        """Returns whether this rank writes what its replicas have as well."""
        return self._rank == min(self._replicas & set(self.team().members))

    def write_snapshot(self, step: int, meeting: Meeting, read: Callable[[], Ward]) -> None:
        """Writes a checkpoint of the snapshots that all ranks have taken of themselves, while training goes on.

        A checkpoint of this step that is there already is left as it is.

        Args:
            read: returns the snapshot of this rank.

        Raises:
            CheckpointNotWritten: on all ranks, if one cannot write its part. No part of the checkpoint is left.
            MeetingOver: the ranks have to do something else.
        """

        def own() -> Kept:
            ward = read()
            return {share: mine.pickled for share, mine in ward.own.apart(self._rank).items()}, [ward]

        self.write_last(step, meeting, (), own)

    def write_last(self, step: int, meeting: Meeting, whole: Collection[int], own: Callable[[], Kept]) -> int:
        """Writes a checkpoint with the ranks of a meeting, because others are gone. It is read as any other.

        A checkpoint of this step that is there already is left as it is.

        Args:
            whole: ranks of the meeting that have the state after the step.
            own: returns state of this rank that only it has, and that of ranks that are gone, if this one keeps it, by share; and
                the whole state of ranks of which this one keeps the snapshots.

        Returns:
            The step of the newest checkpoint that was there before. 0: none was.

        Raises:
            CheckpointNotWritten: on all ranks, if one cannot write its part. No part of the checkpoint is left.
            MeetingOver: the ranks have to do something else.
        """
        scratch = self._folder / f".{name_of(step)}.{uuid.uuid4().hex[:8]}"
        try:
            return self._write_last_into(scratch, step, meeting, whole, own)
        except FAILURES as error:
            if meeting.leads:
                shutil.rmtree(scratch, ignore_errors=True)
            if isinstance(error, MeetingFailed):
                raise CheckpointNotWritten(f"checkpoint {self._folder / name_of(step)}: {error}") from None
            raise

    def _write_last_into(
        self, scratch: Path, step: int, meeting: Meeting, whole: Collection[int], own: Callable[[], Kept]
    ) -> int:
        """Does all work in the meeting, so that no rank waits for one that has failed.

        Args:
            scratch: folder of the first rank. No other try writes there, so that a process that was given up spoils nothing.
        """
        is_whole = self._rank in whole
        taken: list[tuple[Kept, Any, list[torch.Tensor]]] = []

        def begin() -> tuple[int, str]:
            taken.append((own(), *taken_apart(self._trained.collect() if is_whole else {})))
            before = self._newest_before(step, scratch) if meeting.leads else 0
            return before, scratch.name

        before, name = meeting.hold(begin, lambda done: done[:1] * len(done))
        if before == step:
            return before
        scratch = self._folder / name
        (mine, wards), skeleton, tensors = taken[0]
        shards = [shard for one in wards for shard in one.shards(self._part_of(one), whole=self._is_whole_in(one))]
        save_tensors(self._named(skeleton, tensors), _Writer(scratch), meeting, shards)

        def write_pickled() -> None:
            if is_whole and self._rank == min(self._replicas & frozenset(whole)):
                self._write_common(scratch, step, skeleton, tensors)
            for ward in filter(self._is_whole_in, wards):
                self._write_kinds(scratch / (self._part_of(ward) + COMMON), step, ward.skeleton, ward.slots)
            for share, content in mine.items():
                _write_durably(scratch / own_name(share), content)

        def publish(done: Sequence[None]) -> list[None]:
            refuse_incomplete(scratch, self._shares)
            self._publish(scratch, step)
            return nothing(done)

        meeting.hold(write_pickled, publish)
        return before

    def _newest_before(self, step: int, scratch: Path) -> int:
        """Returns the step of the newest checkpoint, and makes the folder for another one unless it has `step` already."""
        found = complete(self._folder) - self._damaged
        if step in found and self._is_whole(step):
            return step
        self._make(scratch)
        return max(found - {step}, default=0)

    def _is_whole(self, step: int) -> bool:
        try:
            refuse_incomplete(self._folder / name_of(step), self._shares)
        except FAILURES:
            return False
        return True

    def read(self, step: int) -> None:
        """Reads a checkpoint. Matching tensors are filled in place.

        Raises:
            CheckpointUnreadable: on all ranks, if one cannot read its part; some of it may be in place.
        """
        folder = self._folder / name_of(step)

        def together(work: Callable[[], T]) -> T:
            return self._together(CheckpointUnreadable, folder, work)

        skeleton, tensors, mine = together(lambda: self._opened(folder))
        together(lambda: _by_torch(lambda: dcp.load(self._named(skeleton, tensors), checkpoint_id=folder)))
        together(lambda: self._place(step, put_together(skeleton, tensors), mine))

    def set_aside(self, damaged: Sequence[int]) -> None:
        """Ignores the checkpoints of these steps from here on. They are kept under another name, if they can be renamed."""
        self._damaged.update(damaged)
        for step in damaged if self._leads else ():
            folder = self._folder / name_of(step)
            shutil.rmtree(aside := folder.with_suffix(".damaged"), ignore_errors=True)
            try:
                folder.rename(aside)
            except OSError as error:
                log.warning("damaged checkpoint %s cannot be renamed, it is ignored: %s", folder, error.strerror)

    def _place(self, step: int, common: State, mine: Own) -> None:
        self._trained.place(common)
        self._trained.put_own(mine)
        self._launcher_memory.leave(step, mine.pickled)

    def _opened(self, folder: Path) -> tuple[Any, list[torch.Tensor], Own]:
        if (parts := _parts_in(folder)) != self._trained.parts:
            raise ValueError(f"written with shares(parts={parts}), and the session has shares(parts={self._trained.parts})")
        if (wrote := len(list(folder.glob("rank-*.own")))) != self._shares:
            raise ValueError(f"written by {wrote // parts} ranks, and there are {self._world_size}")
        kinds, skeleton, slots, *_ = pickle.loads((folder / (self._part + COMMON)).read_bytes())  # written by the same job
        if kinds != (here := self._kinds()):
            theirs, ours = (", ".join(f"{name}: {kind}" for name, kind in one.items()) for one in (kinds, here))
            raise ValueError(f"written of other objects ({theirs}) than the session was given ({ours})")
        mine, *further = (
            pickle.loads((folder / own_name(share)).read_bytes()) for share in range(self._rank, self._shares, self._world_size)
        )
        carried = tuple((self._rank + (part * self._world_size), one) for part, one in enumerate(further, 1))
        return (
            skeleton,
            destinations(skeleton, slots, self._trained.collect()),
            replace(mine, carried=carried) if carried else mine,
        )

    def _kinds(self) -> dict[str, str]:
        """Returns the types of the objects that the session was given, by their names there."""
        given = {"model": self._trained.model, "optimizer": self._trained.optimizer, **self._trained.shared}
        return {name: type(thing).__name__ for name, thing in given.items() if name != FULLY_SHARDED}

    def _of_modules(self) -> dict[str, Any]:
        """Returns facts about the modules, from which a reader makes state dicts without having the modules."""
        shared = [name for name, thing in self._trained.shared.items() if isinstance(thing, torch.nn.Module)]
        parts = {"parts": self._trained.parts} if self._trained.parts > 1 else {}
        return {"modules": shared, "transient": transient_buffers(self._trained.model), **parts}

    def _together(self, kind: type[CheckpointFailed], folder: Path, work: Callable[[], T]) -> T:
        """Returns the result here, once all ranks have succeeded; otherwise raises an error of this kind on all of them."""
        done: T | None = None
        failure = ""
        try:
            done = work()
        except FAILURES as error:  # pickle and whatever loads a state may raise anything
            failure = f"rank {self._rank}: {cause_in_words(error)}"
        failures: list[str] = [""] * self.team().size
        dist.all_gather_object(failures, failure)
        if failed := [one for one in failures if one]:
            raise kind(f"checkpoint {folder}: {failed[0]}")
        return cast("T", done)

    def _named(self, skeleton: Any, tensors: Sequence[torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
        """Returns the tensors by part and name.

        Names of tensors that only replicas of this rank have get a prefix.
        """
        return {
            part: {name if isinstance(tensor, DTensor) else self._part + name: tensor for name, tensor in content.items()}
            for part, content in named(skeleton, tensors).items()
        }

    def _publish(self, scratch: Path, step: int) -> None:
        _sync_folder(scratch)
        final = self._folder / name_of(step)
        if final.exists():
            self._remove(step)
        scratch.rename(final)
        _sync_folder(self._folder)
        self._damaged.discard(step)
        for old in sorted(complete(self._folder))[:-KEEP]:
            try:
                self._remove(old)
            except OSError as error:
                log.warning("older checkpoint %s cannot be removed: %s", self._folder / name_of(old), error.strerror)

    def _remove(self, step: int) -> None:
        """Removes a checkpoint. It is renamed first: a half removed one does not look complete."""
        folder = self._folder / name_of(step)
        shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.removed")))

    def _clear(self) -> None:
        """Removes checkpoints that a killed job left half written or half removed."""
        for leftover in self._folder.glob(".step-*"):
            shutil.rmtree(leftover, ignore_errors=True)


class _Writer(dcp.FileSystemWriter):
    """Writer that reports why it cannot write. Torch reports the position in a file, and drops the cause for other ranks."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        try:
            return super().write_data(plan, planner)
        except Exception as error:  # noqa: BLE001  # another rank receives it, whatever it is
            raise RuntimeError(cause_in_words(error)) from None


def _by_torch(work: Callable[[], object]) -> None:
    """Raises RuntimeError if the block fails on some rank. Torch reports that on all ranks, by no subclass of `Exception`."""
    try:
        work()
    except CheckpointException as error:
        raise RuntimeError(f"on {_said_by_torch(error)}") from None


def _said_by_torch(error: CheckpointException) -> str:
    rank, (failure, _) = min(error.failures.items())
    return f"rank {rank}: {failure if type(failure) is RuntimeError else in_words(failure)}"


def save_tensors(
    tensors: Mapping[str, Any], writer: dcp.FileSystemWriter, meeting: Meeting, shards: Sequence[Shard] = ()
) -> None:
    """Does what `dcp.save` does, with the ranks of a meeting and without a process group.

    Args:
        shards: of ranks that are gone, which this one writes.
    """
    planner, found = Planner(shards), list[Metadata]()

    def plan() -> SavePlan:
        planner.set_up_planner(dict(tensors), storage_meta=writer.storage_meta(), is_coordinator=meeting.leads)
        writer.set_up_storage_writer(meeting.leads)
        return writer.prepare_local_plan(planner.create_local_plan())

    def combine(plans: list[SavePlan]) -> list[SavePlan]:
        together, metadata = planner.create_global_plan(plans)
        found.append(metadata)
        return writer.prepare_global_plan(together)

    def finish(results: list[Any]) -> list[None]:
        writer.finish(found[0], results)
        return nothing(results)

    mine = meeting.hold(plan, combine)
    meeting.hold(lambda: writer.write_data(planner.finish_plan(mine), planner).wait(), finish)


def refuse_incomplete(folder: Path, shares: int) -> None:
    """Raises ValueError where a checkpoint lacks a part: state of a share, a shard of a tensor, or bytes of a file."""
    if absent := [share for share in range(shares) if not (folder / own_name(share)).is_file()]:
        raise ValueError(f"the state that only rank {absent[0]} has is missing")
    metadata = dcp.FileSystemReader(folder).read_metadata()
    for name, about in metadata.state_dict_metadata.items():
        if isinstance(about, TensorStorageMetadata):
            held = sum(chunk.sizes.numel() for chunk in about.chunks)
            if held != about.size.numel():
                raise ValueError(f"{name} has {about.size.numel()} elements, of which {held} are written")
    for index, where in (metadata.storage_data or {}).items():
        if (folder / where.relative_path).stat().st_size < where.offset + where.length:
            raise ValueError(f"the file {where.relative_path} ends before {index.fqn}")


def _parts_in(folder: Path) -> int:
    """Returns the number of shares that each rank had when a checkpoint was written."""
    for common in folder.glob(f"*{COMMON}"):
        _, _, _, *more = pickle.loads(common.read_bytes())  # written by the same job
        about: dict[str, Any] = more[0] if more else {}  # an earlier release has not written it
        return int(about.get("parts", 1))
    return 1


def own_name(share: int) -> str:
    return f"rank-{share:05d}.own"


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def complete(folder: Path) -> set[int]:
    """Returns the steps of the complete checkpoints in a folder."""
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return set()
    return {int(match[1]) for entry in entries if (match := _NAME.fullmatch(entry.name))}


def transient_buffers(model: torch.nn.Module) -> list[str]:
    """Returns the names of buffers that a checkpoint has and the model's `state_dict` leaves out."""
    modules = model.named_modules(remove_duplicate=False)
    left_out = ((path, name) for path, module in modules for name in module._non_persistent_buffers_set)  # noqa: SLF001
    return [f"{path}.{name}".removeprefix(".") for path, name in left_out]


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
