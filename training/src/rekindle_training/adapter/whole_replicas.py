"""Models that are sharded over the ranks of a replica (HSDP), in a job whose number of replicas may change.

FSDP2 reduces gradients within each replica only, so that a replica computes the same bits for a share as any other one. The
gradients of the replicas are summed in the order of the shares, once for each pass over the batches of a step.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from rekindle_training.adapter.digest import leaf_digest
from rekindle_training.adapter.fully_sharded import FullySharded
from rekindle_training.adapter.sharding import Ranks
from rekindle_training.adapter.sums import OUTSIDE, Passed, Sums


class WholeReplicas:
    """Sharded modules of one rank, of which the number of replicas may change. Made only where `problem` finds none."""

    living: tuple[DistributedDataParallel, ...] = ()
    """Wrappers that send buffers. FSDP sends none."""
    is_last, sums_some = True, False
    """The gradients of all modules are summed after each loop over the batches of a step."""

    def __init__(self, sharded: FullySharded, sums: Sums, rank: int) -> None:
        self.sums, self._sharded = sums, sharded
        ranks = sharded.mesh_infos[0].mesh.mesh
        self._replicas: list[Ranks] = [frozenset(row) for row in ranks.tolist()]
        self._same_parts: list[Ranks] = [frozenset(column) for column in ranks.T.tolist()]
        self._rank = rank
        sums.same_part = _with(rank, self._same_parts)
        self._passed: Passed | None = None
        """Look at the gradients of the current share. None: the first steps are over."""
        sharded.reduce_within_replicas(self._notice_pass)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return self._sharded.parameters

    @property
    def groups(self) -> list[Ranks]:
        """Ranks of the groups of the device mesh: those of each replica, and those that hold the same part."""
        return [*self._replicas, *self._same_parts]

    def spans_pods(self, ranks_per_pod: int) -> bool:
        """Returns whether the replica of this rank has ranks in several pods."""
        return len({one // ranks_per_pod for one in _with(self._rank, self._replicas)}) > 1

    @contextmanager
    def passes(self, share: int, _go_on: Callable[[], bool], *, sums: bool) -> Iterator[None]:
        """Keeps the gradients of passes inside the block apart from those of other shares.

        Args:
            sums: True for the last share of a rank, whose gradients stay where they are.
        """
        if sums:
            self.sums.take(share, self.parameters)
            yield
        else:
            with self.sums.share(share, self.parameters):
                yield
                self._refuse_unreduced()

    @contextmanager
    def looking(self, _is_last: bool) -> Iterator[None]:
        """Looks whether something but passes changes gradients inside the block, before those of the replicas are summed.

        Raises:
            Refused: something does.
        """
        passed = self._passed = Passed(self.parameters, _contents) if self.sums.is_in_first_steps else None
        try:
            yield
        finally:
            self._passed = None
        if passed is not None:
            self.sums.note_changes(passed)

    def conclude(self) -> None:
        """Sums the gradients of all shares. Called by all ranks when they have gone through the batches of a step."""
        self._refuse_unreduced()
        self.sums.over_replicas(self.parameters)

    def _refuse_unreduced(self) -> None:
        if self._sharded.keeps_gradients:
            self.sums.note(
                "gradients are kept back by set_requires_gradient_sync(False): leave it out, since the batch of another share "
                "may follow"
            )

    def _notice_pass(self, _gradients: torch.Tensor) -> None:
        if not self.sums.has_batch:
            self.sums.note(OUTSIDE)
        if self._passed is not None:
            self._passed.notice()


def _contents(parameters: Collection[torch.Tensor]) -> list[object]:
    """Returns a digest of each gradient. Clipping writes lists of DTensors, which no counter shows."""
    return [None if one.grad is None else leaf_digest(one.grad) for one in parameters]


def problem(sharded: FullySharded, trained: Iterable[torch.nn.Parameter], world_size: int) -> str:
    """Returns why the number of replicas of sharded modules cannot change. Empty: it can.

    Args:
        trained: all parameters of the session.
    """
    mesh, *others = [info.mesh for info in sharded.mesh_infos]
    found = {
        "ranks hold different parts of what is trained, and the device mesh has no replicas of them": not sharded.has_replicas,
        "modules are sharded over several device meshes": any(other != mesh for other in others),
        f"the device mesh has {mesh.ndim} dimensions; accepted are two, replicas and shards": mesh.ndim != 2,
        f"the device mesh has {mesh.size()} of {world_size} ranks": mesh.size() != world_size,
        "reshard_after_forward is a number of ranks; accepted are True and False": sharded.reshards_otherwise,
        "set_all_reduce_hook() is for the session, and comes with torch 2.7: leave it out": not sharded.can_be_noticed,
        "some parameters that train are not sharded by fully_shard": not all(
            isinstance(one, DTensor) and one.device_mesh == mesh for one in trained if one.requires_grad
        ),
    }
    return next((words for words, holds in found.items() if holds), "") or _wrong_order(mesh.mesh)


def _wrong_order(ranks: torch.Tensor) -> str:
    """Returns what is wrong with the order of ranks in a device mesh, of which the manager knows the columns. Empty: nothing."""
    columns = sorted(tuple(sorted(column)) for column in ranks.T.tolist())
    if {frozenset(row) for row in zip(*columns, strict=True)} == {frozenset(row) for row in ranks.tolist()}:
        return ""
    return f"the device mesh has the ranks {ranks.tolist()}; accepted are replicas in ascending order"


def refuse_indivisible(sharded: FullySharded, world_size: int, parts: int) -> None:
    """Raises ValueError where the ranks of the job cannot be divided into whole replicas, or their shares are divided."""
    if parts > 1:
        raise ValueError(
            f"session(data=shares): shares(parts={parts}) are not accepted for a model that is sharded by fully_shard; accepted "
            "is parts=1"
        )
    for info in sharded.mesh_infos:
        if world_size % (shards := info.mesh.size(info.shard_mesh_dim)):
            raise ValueError(
                f"session(data=shares): {world_size} ranks are no multiple of the {shards} ranks over which a replica is "
                "sharded; start the job with whole replicas"
            )


def _with(rank: int, groups: Iterable[Ranks]) -> Ranks:
    return next(ranks for ranks in groups if rank in ranks)
