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
from rekindle_training.adapter.sharding import Ranks
from rekindle_training.adapter.trained import Trained
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
    replicas: tuple[int, ...]
    """Ranks that hold the same state as this one, itself among them; empty: all."""
    after_update: Callable[[], None] | None

    @classmethod
    def of(  # noqa: PLR0913  # its parts
        cls,
        entry: Entry,
        trained: Trained,
        wrappers: DataParallel,
        sharded: FullySharded,
        declared: Ranks | None,
        after_update: Callable[[], None] | None,
    ) -> "Rank":
        everybody = entry.environment.world_size
        held = sharding.replicas(trained.collect(), everybody)
        if declared is not None:
            held &= declared
        replicas = () if len(held) == everybody else tuple(sorted(held))
        launcher_memory = LauncherMemory(entry.environment.own_state)
        peer_backup = PeerBackup(entry.environment, entry.communicator)
        return cls(entry, trained, wrappers, sharded, launcher_memory, peer_backup, replicas, after_update)

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
