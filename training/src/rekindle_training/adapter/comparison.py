"""Comparison of the state that ranks share: after the first step, after the first step of each recovery, before each checkpoint.

Each rank sends one digest for each set of ranks that hold the same state. If two ranks of a set differ, its ranks send the
digest of each tensor and value. All ranks then raise the same error, which names the first difference. Buffers are compared
separately: those that differ belong to each rank alone from then on.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.tensor import DTensor

from rekindle_training.adapter.digest import leaf_digest
from rekindle_training.adapter.leaves import leaves
from rekindle_training.adapter.own_buffers import LARGEST, Name
from rekindle_training.adapter.reported_loss import Finite, problem
from rekindle_training.adapter.sharding import Ranks, holders, local
from rekindle_training.adapter.team import Team
from rekindle_training.adapter.trained import ATTRIBUTES, OWN_BUFFERS, Trained

log = logging.getLogger(__name__)

Digests = Mapping[str, bytes]
"""Digest of each tensor or value, by its path."""
_Group = tuple[tuple[int, ...], bool]
"""Ranks that hold the same state, and True if it is their buffers."""


class ReplicasDiffer(RuntimeError):
    """Ranks that should hold the same state do not. Raised on all ranks."""


class LossNotFinite(RuntimeError):
    """A loss is not finite in the first step after a recovery, and was finite before. Raised on all ranks."""


class Comparison:
    """Comparison of one rank's state with that of the others. `run` is called by all ranks together."""

    def __init__(self, trained: Trained, rank: int, team: Callable[[], Team], declared: Ranks | None) -> None:
        """Args:
        declared: the ranks that have the same state as this one; None: the tensors show it.
        """
        self._trained, self._rank, self._team, self._declared = trained, rank, team, declared
        self.state_bytes = 0
        """Bytes of the tensors that were compared last, those of this rank."""

    def run(self, *, gradients: bool, recovered: bool, loss: Finite | None = None) -> None:
        """Args:
            gradients: those that are held now are part of the next step.
            recovered: a rank has taken another one's state since the last comparison.
            loss: of this rank, if this is the first step after a recovery. It travels with the digests.

        Raises:
            ReplicasDiffer: on all ranks, where one of them differs.
            LossNotFinite: on all ranks, where that of one of them is not, and was before.
            RuntimeError: another rank could not be reached.
        """
        state = self._trained.collect()
        del state[OWN_BUFFERS], state[ATTRIBUTES]  # attributes may be another one on each rank
        if not gradients:
            del state["gradients"]
        state["data"] = getattr(self._trained.data, "same_on_all_ranks", {})
        self.state_bytes = sum(local(leaf).nbytes for _, leaf in leaves(state, "") if isinstance(leaf, torch.Tensor))
        mine = self._digests(state)
        differing, losses = self._differing(mine, loss)
        self._refuse_state([group for group in differing if not group[1]], mine, recovered=recovered)
        if words := problem(losses):
            raise LossNotFinite(words)
        self._settle_buffers([group for group in differing if group[1]], mine, recovered=recovered)

    def gradients(self, held: Mapping[str, torch.Tensor]) -> None:
        """Compares gradients to which steps add. Raises as `run`."""
        mine = self._digests({"gradients": held})
        self._refuse_state(self._differing(mine)[0], mine, recovered=False)

    def _differing(self, mine: Mapping[_Group, Digests], loss: Finite | None = None) -> tuple[list[_Group], list[Finite | None]]:
        """Returns the groups of ranks whose digests differ, and the losses of all ranks. Called by all ranks together."""
        said: list[tuple[dict[_Group, bytes], Finite | None]] = [({}, None) for _ in range(dist.get_world_size())]
        dist.all_gather_object(said, ({group: _combined(digests) for group, digests in mine.items()}, loss))
        everyone = dict(zip(self._team().members, said, strict=True))
        digests = {rank: held for rank, (held, _) in everyone.items()}
        differing = [group for group in sorted(set().union(*digests.values())) if _differs(group, digests)]
        return differing, [everyone[rank][1] if rank in everyone else None for rank in range(self._team().world_size)]

    def _digests(self, state: Mapping[str, Any]) -> dict[_Group, Digests]:
        buffers = _buffer_paths(self._trained)
        there = frozenset(self._team().members)
        everybody = there if self._declared is None else there & self._declared
        found: defaultdict[_Group, dict[str, bytes]] = defaultdict(dict)
        for path, leaf in leaves(state, ""):
            ranks = everybody & holders(leaf) if isinstance(leaf, DTensor) else everybody
            found[tuple(sorted(ranks)), path in buffers][path] = leaf_digest(leaf)
        return dict(found)

    def _refuse_state(self, differing: list[_Group], mine: Mapping[_Group, Digests], *, recovered: bool) -> None:
        if not differing:
            return
        (ranks, _), *_ = differing
        everyone = _told(mine.get((ranks, False)) if self._rank in ranks else None)
        one, other, path = _first_difference([(rank, everyone[self._team().index(rank)]) for rank in ranks])
        words = f"{_label(path)} differs between rank {one} and rank {other}"
        if recovered:
            raise ReplicasDiffer(
                f"{words} after a recovery: the state of this training is not proved any more; something that the step "
                "depends on was not given to the session"
            )
        raise ReplicasDiffer(f"{words}, which the session takes for the same on ranks {_ranks(ranks)}; {_advice(path)}")

    def _settle_buffers(self, differing: list[_Group], mine: Mapping[_Group, Digests], *, recovered: bool) -> None:
        """Raises ReplicasDiffer where a replacement may have been given another rank's."""
        buffers = self._trained.own_buffers
        found: set[Name] = set()
        for ranks, of_buffers in differing:
            everyone = [held for held in _told(mine.get((ranks, of_buffers)) if self._rank in ranks else None) if held]
            paths = _buffer_paths(self._trained)
            found |= {paths[path] for path in everyone[0] if len({held.get(path) for held in everyone}) > 1}
        if not (buffers.settled and recovered):
            self._adopt(found)
        elif strange := sorted(found - set(buffers.names) - buffers.late):
            raise ReplicasDiffer(
                f"buffer {strange[0][1]} of {strange[0][0]} differs between ranks after a recovery, and did not before"
            )

    def _adopt(self, found: set[Name]) -> None:
        buffers = self._trained.own_buffers
        if (late := sorted(found & buffers.late)) and not buffers.settled and self._rank == self._team().members[0]:
            log.warning(
                "buffers differ from rank to rank and change after the update, such as %s of %s: a rank that is replaced goes on "
                "with those of another rank, and not with the bits of an undisturbed run",
                *reversed(late[0]),
            )
        found -= buffers.late
        buffers.keep(found | set(buffers.names) if buffers.settled else found)
        buffers.settled = True
        if buffers.size > LARGEST:
            raise ReplicasDiffer(
                f"session(model): {len(buffers.names)} buffers differ from rank to rank and have {buffers.size / 1e6:.1f} MB, of "
                f"which {LARGEST / 1e6:.1f} MB are carried for each rank; make them the same on all ranks, as SyncBatchNorm does"
            )


def _told(mine: Digests | None) -> list[Digests | None]:
    everyone: list[Digests | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def _differs(group: _Group, everyone: Mapping[int, dict[_Group, bytes]]) -> bool:
    return len({everyone[rank].get(group) for rank in group[0]}) > 1


def _first_difference(held: Iterable[tuple[int, Digests | None]]) -> tuple[int, int, str]:
    (one, first), *others = held
    for other, digests in others:
        theirs, ours = digests or {}, first or {}
        for path in dict.fromkeys([*ours, *theirs]):
            if ours.get(path) != theirs.get(path):
                return one, other, path
    raise AssertionError("no difference")


def _combined(digests: Digests) -> bytes:
    together = xxhash.xxh3_128()
    for path, content in sorted(digests.items()):
        together.update(path.encode() + b"\0" + content)
    return together.digest()


def _buffer_paths(trained: Trained) -> dict[str, Name]:
    """Paths in the state at which buffers of modules are, with their names."""
    paths: dict[str, Name] = {}
    for root, module in trained.own_buffers.roots.items():
        parents = ["/'model'"] if root == "model" else [f"/{root!r}/'state'", f"/{root!r}/'buffers'"]
        for name, _ in module.named_buffers(remove_duplicate=False):
            paths |= dict.fromkeys((f"{parent}/{name!r}" for parent in parents), (root, name))
    return paths


def _label(path: str) -> str:
    return path.strip("/").replace("'", "").replace("/", " ")


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 3 and ranks[-1] - ranks[0] == len(ranks) - 1 else str(list(ranks))


def _advice(path: str) -> str:
    part: Any = path.split("/")[1].strip("'")
    if part == "gradients":
        return (
            "each rank gathers gradients for itself over several turns of the loop: put all backward passes of one update into "
            "one `with step:`"
        )
    if part == "data":
        return "give all ranks as many batches in an epoch: drop_last=True, a DistributedSampler, or the least of all ranks"
    if part in ("model", "optimizer"):
        return (
            "where ranks hold different parts, as with tensor or expert parallel layers, say which ranks hold the same: "
            "session(replicas=[...]); where they are to be the same, make them so before the first step, as "
            "DistributedDataParallel does, and update them with the same gradients, options and schedule"
        )
    return "keep in `state` what all ranks have in common; what each rank has for itself is given as `data`"
