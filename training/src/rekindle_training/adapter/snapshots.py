"""Snapshots of one rank's whole state in memory, for shards that no other rank holds. Used by the loop and by `membership.py`.

All ranks take them after the same steps. What an update changes is copied beside the next forward and backward pass, and that
update waits for the copy. All else is copied at the boundary. Each copy goes to the pod's own memory first, and from there to a
rank in another failure domain. Where replicas hold each shard nothing is copied.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from rekindle_training.adapter.checkpoint_beside import Beside
from rekindle_training.adapter.communicator import Communicator
from rekindle_training.adapter.copies import versions
from rekindle_training.adapter.copying import in_memory
from rekindle_training.adapter.failure_text import FAILURES, in_words
from rekindle_training.adapter.host_memory import COPIES, GIB, Need, TooLarge, free, refuse_too_large
from rekindle_training.adapter.keepers import Domain, SameDomain, keepers
from rekindle_training.adapter.sharding import local
from rekindle_training.adapter.skeleton import destinations, put_together, slot_of, taken_apart
from rekindle_training.adapter.snapshot_copies import checked, give, received
from rekindle_training.adapter.snapshot_format import Head, opened
from rekindle_training.adapter.snapshot_lines import Address, SnapshotLines
from rekindle_training.adapter.snapshot_size import bytes_of
from rekindle_training.adapter.state import StateMismatch
from rekindle_training.adapter.trained import Trained
from rekindle_training.adapter.wards import Ward
from rekindle_training.environment import RankEnvironment
from rekindle_training.snapshot_memory import OWN_COPIES, Copy, Kind, SnapshotMemory
from rekindle_wire.training_pb2 import Snapshot

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
_HEADS = 1024 * 1024
"""Bytes that are reserved for what is pickled. A snapshot may have more."""


class _Said(NamedTuple):
    """Message of a rank to all others when they join a generation."""

    domain: Domain
    pod: str
    is_unique: bool
    bytes: int
    has: int
    free: tuple[int, int | None]
    own: tuple[int, ...]
    kept: tuple[tuple[int, int], ...]
    """Ranks and steps."""
    doubted: bool


class _Agreed(NamedTuple):
    """Agreement of all ranks on a snapshot that is due."""

    all_idle: bool
    all_have: bool
    common: int
    """Newest step of which all have a snapshot. -1: there may be none."""
    is_written: bool
    """True if a checkpoint is to be written from it."""


@dataclass
class _Taken:
    """Snapshot that is being taken."""

    place: int
    step: int
    length: int
    later: list[tuple[torch.Tensor, torch.Tensor]]
    """Tensors that are copied beside the computation, and their places."""
    originals: list[torch.Tensor]
    """Parameters and moments whose content these tensors are. Torch counts changes of shards with them alone."""
    versions: list[int]
    stream: AbstractContextManager[Any]
    agreed: _Agreed
    copied: threading.Event = field(default_factory=threading.Event)


class Snapshots:
    """Snapshots as one rank takes part in them."""

    def __init__(
        self, environment: RankEnvironment, communicator: Communicator, trained: Trained, replicas: Sequence[int]
    ) -> None:
        self._environment, self._communicator, self._trained = environment, communicator, trained
        self._rank = environment.rank
        self._is_unique = len(replicas) == 1
        self._memory = memory_of(environment)
        self._is_on = False
        """True if a rank of this generation has what no other one has."""
        self._is_beside = True
        """False if what an update changes has been seen to change before the update."""
        self._lines: SnapshotLines | None = None
        self._taken: _Taken | None = None
        self._worker: threading.Thread | None = None
        """Thread that copies and sends the latest snapshot."""
        self._said: list[_Said] = []
        self.beside: Beside | None = None
        """Checkpoints that are written from snapshots. None: the script has its own storage of checkpoints."""

    def is_due(self, step: int) -> bool:
        return self._is_on and step % (self._environment.snapshot_every or 1) == 0

    @property
    def is_on(self) -> bool:
        """Returns whether snapshots are taken: a rank of this generation has what no other one has."""
        return self._is_on

    @property
    def writes_checkpoints(self) -> bool:
        return self._is_on and self.beside is not None

    def join(self, *, is_first: bool) -> None:
        """Begins a generation. Called by all its ranks together.

        Args:
            is_first: True for the first one of a job. A job that has trained is not ended by where its pods are placed later.

        Raises:
            SameDomain: on all ranks, if one could not have its snapshots kept in another failure domain.
            TooLarge: on all ranks, if the snapshots do not fit into the memory of a host.
            RuntimeError: the other ranks could not be reached.
        """
        if self._memory is None:
            return
        self.close()
        self._said = _gathered(self._say(self._memory))
        self._is_on = any(one.is_unique for one in self._said)
        if not self._is_on:
            return
        keeper = self._keepers(is_first=is_first)
        if is_first:
            self._reserve(self._memory, keeper)
            if self._rank == 0:
                self._state_sizes(keeper)
        host = self._communicator.host()
        if self.beside is not None:
            self.beside.open(host)
        self._lines = SnapshotLines(self._memory, self._rank, host)
        addresses: dict[int, Address] = dict(_gathered((self._rank, self._lines.address)))
        self._lines.begin(addresses[keeper[self._rank]] if keeper else None)

    def close(self) -> None:
        """Ends what goes on beside the computation."""
        self.settle()
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        if self._worker is not None:
            self._worker.join()
            self._worker = None
        if self.beside is not None:  # the worker may have begun a checkpoint until now
            self.beside.call_off()

    def finish(self, is_over: Callable[[], bool]) -> None:
        """Waits until the checkpoint of the last snapshot is written.

        Args:
            is_over: returns whether the generation is over, which gives it up.
        """
        while self._worker is not None and self._worker.is_alive() and not is_over():
            self._worker.join(_LOOK_SECONDS)
        if self.beside is not None:
            self.beside.finish()

    def _say(self, memory: SnapshotMemory) -> _Said:
        here = self._environment
        return _Said(
            domain=Domain(self._rank, here.node or here.launcher, here.rack),
            pod=here.launcher,
            is_unique=self._is_unique,
            bytes=bytes_of(self._trained),
            has=memory.capacity,
            free=free(),
            own=tuple(copy.step for copy in memory.copies(Kind.OWN) if copy.rank == self._rank),
            kept=tuple((copy.rank, copy.step) for copy in memory.copies(Kind.KEPT)),
            doubted=memory.doubted,
        )

    def _keepers(self, *, is_first: bool) -> Mapping[int, int]:
        """Returns the rank that keeps the snapshots of each rank. Raises as `join`."""
        try:
            keeper = keepers([one.domain for one in self._said])
            self._refuse_too_large(keeper)
        except (SameDomain, TooLarge) as error:
            if is_first:
                raise
            if self._rank == 0:
                log.warning("snapshots in the memory of their own pods only: %s", error)
            return {}
        return keeper

    def _refuse_too_large(self, keeper: Mapping[int, int]) -> None:
        kept = self._kept_bytes(keeper)
        refuse_too_large(
            Need(rank, one.domain.node, one.pod, one.bytes, kept.get(rank, 0), one.has, *one.free)
            for one in self._said
            for rank in [one.domain.rank]
        )

    def _kept_bytes(self, keeper: Mapping[int, int]) -> Mapping[int, int]:
        """Returns the size of the snapshots that each rank keeps for another one."""
        sizes = {one.domain.rank: one.bytes for one in self._said}
        return {kept_by: sizes[rank] for rank, kept_by in keeper.items()}

    def _reserve(self, memory: SnapshotMemory, keeper: Mapping[int, int]) -> None:
        memory.reserve(Kind.OWN, bytes_of(self._trained) + _HEADS)
        if (kept := self._kept_bytes(keeper).get(self._rank)) is not None:
            memory.reserve(Kind.KEPT, kept + _HEADS)

    def _state_sizes(self, keeper: Mapping[int, int]) -> None:
        sizes = {one.domain.rank: one.bytes for one in self._said}
        largest = max(sizes, key=lambda rank: sizes[rank])
        log.warning(  # ranks show no less, and who sees memory shrink looks for the reason
            "snapshots in memory every %d steps: %.3f GiB of rank %d, %.3f GiB of all ranks, %d copies of each",
            self._environment.snapshot_every,
            sizes[largest] / GIB,
            largest,
            sum(sizes.values()) / GIB,
            COPIES * (2 if keeper else 1),
        )
        if not keeper:
            log.warning("snapshots in the memory of one node only, where all ranks are: if it is lost, the checkpoint is read")

    # Taking.

    def take(self, step: int, *, gathers: bool, checkpoint: bool) -> None:
        """Begins a snapshot of the state after this step. Called by all ranks together, at the boundary.

        All ranks leave it out if one of them still copies, sends or writes one that would be overwritten. The newest one that all
        ranks have is not overwritten, also if ranks have a newer one that another rank could not take.

        Args:
            gathers: gradients that are held now are part of the next step.
            checkpoint: a checkpoint is to be written from it, beside training.

        Raises:
            RuntimeError: the other ranks could not be reached.
        """
        assert self._memory is not None
        has = self._memory.find(Kind.OWN, self._rank, step) is not None
        agreed = self._agree(self._memory, has=has, checkpoint=checkpoint)
        is_written = self._is_written(step, agreed, checkpoint=checkpoint)
        if has or agreed.all_have:
            if is_written and agreed.all_have:
                self._write(step)
            return
        if not agreed.all_idle:
            if self._rank == 0:
                log.warning("snapshot after step %d left out, those before are still being sent or written", step)
            return
        if agreed.common >= 0:
            self._memory.forget(agreed.common, (Kind.OWN,))  # what is kept for others is dropped when the next one is offered
        try:
            self._begin(self._memory, step, agreed._replace(is_written=is_written), gathers=gathers)
        except FAILURES as error:
            _not_taken(step, error)
            if is_written:
                self._write(step)

    def _agree(self, memory: SnapshotMemory, *, has: bool, checkpoint: bool) -> _Agreed:
        own = [copy.step for copy in memory.copies(Kind.OWN) if copy.rank == self._rank]
        writes = self.beside.step if self.beside else None
        next_is_read = len(own) == OWN_COPIES and own[-1] == writes
        idle = not next_is_read and (self._worker is None or not self._worker.is_alive())
        wants = self.beside is not None and (checkpoint or self.beside.is_wanted)
        said = torch.tensor([idle, has, max(own, default=-1), writes is None, not wants], dtype=torch.int64, device="cpu")
        dist.all_reduce(said, dist.ReduceOp.MIN)
        all_idle, all_have, common, none_writes, none_wants = said.tolist()
        return _Agreed(bool(all_idle), bool(all_have), common, is_written=not none_wants and bool(none_writes))

    def _is_written(self, step: int, agreed: _Agreed, *, checkpoint: bool) -> bool:
        """Returns whether a checkpoint is written from this snapshot, and notes whether one is from the next."""
        if self.beside is None:
            return False
        if checkpoint and not agreed.is_written and self._rank == 0:
            log.warning("checkpoint after step %d left out, the one before is still being written", step)
        self.beside.is_wanted = agreed.is_written
        return agreed.is_written

    def _write(self, step: int) -> None:
        """Writes a checkpoint from the snapshot after this step. Without a snapshot all ranks give it up."""
        assert self.beside is not None
        self.beside.begin(step, lambda: self._kept(Kind.OWN, self._rank, step))

    def settle(self) -> None:
        """Waits until the state is copied, because an update follows."""
        if self._taken is not None:
            self._taken.copied.wait()
            self._taken = None

    def send_newest(self) -> None:
        """Sends the newest snapshot to the rank that is to keep it, beside the computation, unless that rank has it."""
        if self._memory is None or self._lines is None:
            return
        own = [copy for copy in self._memory.copies(Kind.OWN) if copy.rank == self._rank]
        if own:
            self._worker = _started(_send, self._lines, own[0])

    def _begin(self, memory: SnapshotMemory, step: int, agreed: _Agreed, *, gathers: bool) -> None:
        taken = self._begun(memory, step, agreed, gathers=gathers)
        self._worker = _started(self._complete, memory, taken, self._lines)
        self._taken = taken
        if not self._is_beside:
            self.settle()

    def _begun(self, memory: SnapshotMemory, step: int, agreed: _Agreed, *, gathers: bool) -> _Taken:
        state = self._trained.collect() if gathers else self._trained.collect_without_gradients()
        skeleton, tensors = taken_apart(state)
        slots = [slot_of(tensor) for tensor in tensors]
        head = Head(skeleton, slots, self._trained.take_own())
        place, content = memory.begin(Kind.OWN, self._rank, head.length)
        parts = [(tensor, part) for tensor, part in zip(tensors, head.put(content), strict=True) if part.numel()]
        changed_by_update = self._changed_by_update()
        now: list[tuple[torch.Tensor, torch.Tensor]] = []
        later: list[tuple[torch.Tensor, torch.Tensor]] = []
        for tensor, part in parts:
            (later if local(tensor).data_ptr() in changed_by_update else now).append((tensor, part))
        _copy(now)
        originals = [changed_by_update[local(tensor).data_ptr()] for tensor, _ in later]
        stream = _side_stream(self._trained.accelerator)
        return _Taken(place, step, head.length, later, originals, versions(originals), stream, agreed)

    def _changed_by_update(self) -> Mapping[int, torch.Tensor]:
        """Returns tensors that nothing changes between two updates, by their address: parameters that train, and moments."""
        found: dict[int, torch.Tensor] = {}
        for optimizer in self._trained.optimizers:
            parameters = (one for group in optimizer.param_groups for one in group["params"] if one.requires_grad)
            moments = (value for entry in optimizer.state.values() if isinstance(entry, dict) for value in entry.values())
            found |= {local(one).data_ptr(): one for one in chain(parameters, moments) if isinstance(one, torch.Tensor)}
        return found

    def _complete(self, memory: SnapshotMemory, taken: _Taken, lines: SnapshotLines | None) -> None:
        """Copies, completes and sends a snapshot, and begins its checkpoint. Runs in a thread of its own."""
        if (copy := self._completed(memory, taken)) is not None and lines is not None:
            _send(lines, copy, taken.agreed.common)
        if taken.agreed.is_written:
            self._write(taken.step)

    def _completed(self, memory: SnapshotMemory, taken: _Taken) -> Copy | None:
        try:
            with taken.stream:
                _copy(taken.later)
            is_whole = versions(taken.originals) == taken.versions
        except FAILURES as error:
            _not_taken(taken.step, error)
            return None
        finally:
            taken.copied.set()
        if not is_whole:
            self._is_beside = False
            log.warning("snapshot after step %d given up, what it copies changes before the update: later ones wait", taken.step)
            return None
        return memory.seal(taken.place, self._rank, taken.step, taken.length)

    # Going back.

    def held(self) -> list[Snapshot]:
        """Returns the snapshots of this rank, and those that it keeps for another one."""
        return [] if self._memory is None else held(self._memory, self._rank)

    def common(self) -> list[int]:
        """Returns the steps after which all ranks had a snapshot when they joined this generation, the newest first."""
        if not self._is_on or any(one.doubted for one in self._said):
            return []
        found = {one.domain.rank: set(one.own) for one in self._said}
        for rank, step in chain.from_iterable(one.kept for one in self._said):
            found.setdefault(rank, set()).add(step)
        return sorted(set.intersection(*(found[one.domain.rank] for one in self._said)), reverse=True)

    def restore(self, step: int) -> str:
        """Restores the state of all ranks after this step. Called by all of them together.

        Returns why that is not possible, the same on all ranks. Empty: it is done. Damaged copies are dropped.

        Raises:
            RuntimeError: the other ranks could not be reached.
        """
        assert self._memory is not None
        began = time.monotonic()
        self.settle()
        own = checked(self._memory, Kind.OWN, self._rank, step)
        kept = [copy.rank for copy in self._memory.copies(Kind.KEPT) if copy.step == step]
        said: dict[int, tuple[bool, list[int]]] = dict(_gathered((self._rank, (own is not None, kept))))
        for rank in sorted(rank for rank, (has, _) in said.items() if not has):
            keeper = next((one for one, (_, theirs) in said.items() if rank in theirs), None)
            if keeper == self._rank:
                give(self._memory, rank, step, self._communicator.team.index(rank))
            elif keeper is not None and rank == self._rank:
                own = received(self._memory, rank, step, self._communicator.team.index(keeper))
        without = [rank for rank, has in sorted(_gathered((self._rank, own is not None))) if not has]
        if without or own is None:
            return f"no good snapshot of rank {without[0]} after step {step} is left"
        self._place(own)
        self._memory.forget(after=step)
        log.info("snapshot restored", extra={"step": step, "seconds": round(time.monotonic() - began, 3)})
        return ""

    def go_back_alone(self, step: int) -> None:
        """Restores the state of this rank after this step. Raises StateMismatch if no good snapshot of it is here."""
        self.settle()
        own = None if self._memory is None else checked(self._memory, Kind.OWN, self._rank, step)
        if own is None:
            raise StateMismatch(f"rank {self._rank} has no good snapshot of itself after step {step}")
        self._place(own)

    def ward(self, rank: int, step: int) -> Ward:
        """Returns the state of another rank. Raises StateMismatch if no good snapshot of it is here."""
        return self._kept(Kind.KEPT, rank, step)

    def _kept(self, kind: Kind, rank: int, step: int) -> Ward:
        content = None if self._memory is None else checked(self._memory, kind, rank, step)
        if content is None:
            raise StateMismatch(f"rank {self._rank} keeps no good snapshot of rank {rank} after step {step}")
        found = opened(content)
        return Ward(rank, found.skeleton, found.slots, found.tensors(), found.own)

    def forget(self) -> None:
        """Drops all snapshots, because training has begun at a checkpoint."""
        if self._memory is not None:
            self._memory.forget()
            self._memory.doubted = False

    def doubt(self) -> None:
        """Marks all snapshots, because training was refused: none is used before the next checkpoint was read."""
        if self._memory is not None and self._is_on:
            self._memory.doubted = True

    def _place(self, content: memoryview) -> None:
        found = opened(content)
        tensors = destinations(found.skeleton, found.slots, self._trained.collect())
        with torch.no_grad():
            for tensor, part in zip(tensors, found.parts, strict=True):
                if part.numel():
                    in_memory(tensor).view(torch.uint8).copy_(part)
        self._trained.place(put_together(found.skeleton, tensors))
        self._trained.put_own(found.own)


def memory_of(environment: RankEnvironment) -> SnapshotMemory | None:
    """Returns the memory of snapshots. None: none are taken."""
    if environment.snapshot_every is None or environment.snapshots is None:
        return None
    return SnapshotMemory(environment.snapshots)


def held(memory: SnapshotMemory, rank: int) -> list[Snapshot]:
    own = [copy for copy in memory.copies(Kind.OWN) if copy.rank == rank]
    return [Snapshot(rank=copy.rank, step=copy.step) for copy in [*own, *memory.copies(Kind.KEPT)]]


def _gathered(mine: Any) -> list[Any]:
    """Returns what each rank of the group says, in the order of ranks."""
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, mine)
    return said


def _started(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    worker = threading.Thread(target=work, args=arguments, name="rekindle-snapshot", daemon=True)
    worker.start()
    return worker


def _not_taken(step: int, error: BaseException) -> None:
    log.warning("snapshot after step %d not taken: %s", step, in_words(error))


def _send(lines: SnapshotLines, copy: Copy, common: int = -1) -> None:
    try:
        if not lines.send(copy, common):
            log.warning("snapshot after step %d not kept by another rank: it arrived damaged", copy.step)
    except OSError as error:
        level = logging.INFO if lines.closed else logging.WARNING
        log.log(level, "snapshot after step %d not kept by another rank: %s", copy.step, in_words(error))


def _copy(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, part in pairs:
            part.copy_(in_memory(tensor).view(torch.uint8))


def _side_stream(accelerator: str | None) -> AbstractContextManager[Any]:
    """Returns a stream on which copies are made that follow what was begun until now, and not what follows."""
    if accelerator is None:
        return nullcontext()
    module = getattr(torch, accelerator)
    stream = module.Stream()
    stream.wait_stream(module.current_stream())
    streamed: AbstractContextManager[Any] = module.stream(stream)
    return streamed
