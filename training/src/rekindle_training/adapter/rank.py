"""Parts of one rank that its loop, its steps and its membership share. Created by the session."""

from collections.abc import Callable
from dataclasses import dataclass

from rekindle_training.adapter import sharding
from rekindle_training.adapter.communicator import Communicator
from rekindle_training.adapter.data_parallel import DataParallel
from rekindle_training.adapter.entry import Entry
from rekindle_training.adapter.fully_sharded import FullySharded
from rekindle_training.adapter.launcher_memory import LauncherMemory
from rekindle_training.adapter.peer_backup import PeerBackup
from rekindle_training.adapter.playing import Playing, first_shares
from rekindle_training.adapter.sharding import Ranks
from rekindle_training.adapter.snapshots import Snapshots
from rekindle_training.adapter.sums import Sums
from rekindle_training.adapter.trained import Trained
from rekindle_training.adapter.whole_replicas import WholeReplicas, problem, refuse_indivisible
from rekindle_training.data.shares import Shares
from rekindle_training.environment import RankEnvironment
from rekindle_training.processor.gate import Gate
from rekindle_training.processor.processor import Processor


@dataclass(frozen=True)
class Rank:
    entry: Entry
    trained: Trained
    wrappers: DataParallel
    sharded: FullySharded
    launcher_memory: LauncherMemory
    peer_backup: PeerBackup
    snapshots: Snapshots
    replicas: tuple[int, ...]
    """Ranks that hold the same state as this one, itself among them; empty: all."""
    after_update: Callable[[], None] | None
    shares: Shares | None
    """Data that are divided into shares. None: the number of ranks cannot change."""
    whole_replicas: WholeReplicas | None
    """Modules that are sharded within each replica, whose number may change. None: there are none."""
    fixed_by_shards: str
    """Reason why the number of replicas of sharded modules cannot change. Empty: there are no such modules, or it can."""
    keeps_own_checkpoints: bool
    """True if the script has its own storage of checkpoints."""

    @classmethod
    def of(  # noqa: PLR0913  # its parts
        cls,
        entry: Entry,
        trained: Trained,
        wrappers: DataParallel,
        sharded: FullySharded,
        declared: Ranks | None,
        after_update: Callable[[], None] | None,
        *,
        keeps_own_checkpoints: bool,
    ) -> "Rank":
        everybody = entry.environment.world_size
        held = sharding.replicas(trained.collect(), everybody)
        if declared is not None:
            held &= declared
        replicas = () if len(held) == everybody else tuple(sorted(held))
        launcher_memory = LauncherMemory(entry.environment.own_state)
        peer_backup = PeerBackup(entry.environment, entry.communicator)
        shares = trained.data if isinstance(trained.data, Shares) else None
        whole, fixed = None, ""
        if shares is not None:
            communicator = entry.communicator
            wrappers.sums = Sums(lambda: communicator.team, entry.environment.rank, communicator.places)
            if sharded.mesh_infos:
                refuse_indivisible(sharded, everybody, shares.parts)
                if not (fixed := problem(sharded, (one for root in trained.modules for one in root.parameters()), everybody)):
                    whole = WholeReplicas(sharded, wrappers.sums, entry.environment.rank)
                    peer_backup.keeps_own = whole.spans_pods(entry.environment.ranks_per_pod)
            _divide(entry, shares.parts)
        return cls(
            entry,
            trained,
            wrappers,
            sharded,
            launcher_memory,
            peer_backup,
            Snapshots(entry.environment, entry.communicator, trained, replicas),
            replicas,
            after_update,
            shares,
            whole,
            fixed,
            keeps_own_checkpoints,
        )

    def playing(self) -> Playing | None:
        """Returns what draws the batches of shares. None: the data are not divided into shares."""
        if self.shares is None:
            return None
        reduced = self.whole_replicas or self.wrappers
        return Playing(self.trained, self.shares, reduced, self.environment.rank, lambda: self.communicator.team)

    def begin_shares(self) -> None:
        """Gives this rank its further shares before its first step, unless it has them."""
        if self.shares is not None and self.shares.parts > 1 and self.gate.completed == 0 and not self.trained.carried:
            first_shares(self.trained, self.shares)

    def tell_update(self) -> None:
        """Calls the script's function that informs other ranks of an update, if there is one."""
        if self.after_update is not None:
            self.after_update()

    @property
    def environment(self) -> RankEnvironment:
        return self.entry.environment

    @property
    def communicator(self) -> Communicator:
        return self.entry.communicator

    @property
    def gate(self) -> Gate:
        return self.entry.gate

    @property
    def processor(self) -> Processor:
        return self.entry.processor


def _divide(entry: Entry, parts: int) -> None:
    """Tells a rank how many shares it has. Raises ValueError where its manager was met already and told otherwise."""
    if parts == 1:
        return
    if entry.met is not None:
        raise ValueError(
            f"session(data=shares): shares(parts={parts}) are not accepted after rekindle_training.init_process_group(), which "
            "has told the manager of one part; leave that call out, or give parts=1"
        )
    entry.communicator.divide(parts)
    entry.processor.parts = parts
