"""One hot switch, from the order to prepare it to its end. Started by the conductor, one at a time.

Training goes on until every backup is loaded; then it pauses by itself, the control plane decides, and the backups take over.
Until the migration is ordered the old processes stay as they are: they are the rescue when a backup dies.
"""

import asyncio
import logging
from dataclasses import dataclass

from rekindle_training.injection import Injection
from rekindle_training.manager import procedures
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.procedures import CannotPause, NoReplica, Plan, Standstill, TrainingEnds
from rekindle_training.manager.rank_process import LOST_SECONDS, RankLost, RankProcess, RebuildFailed, StepFailed
from rekindle_training.manager.reports import CONTINUE, EXIT, FAILED, MIGRATION, RECOVERED, Reports
from rekindle_training.manager.roster import Members, Roster
from rekindle_training.manager.store import Store
from rekindle_wire.training_pb2 import RankMessage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Means:
    """What a hot switch works with."""

    roster: Roster
    pods: Pods
    alone: bool
    """There is no control plane: this manager decides which ranks are replaced."""
    ranks_per_pod: int
    store: "asyncio.Future[Store]"
    reports: Reports
    injection: Injection
    rebuild_timeout: float
    order_timeout: float
    decides_without_orders: bool
    """About a fault, when no order came in that time; otherwise ranks wait."""
    stall_seconds: float
    """How long ranks may wait for another one before it is replaced, where this manager decides that; 0: as long as it takes."""


class HotSwitch:
    """Of all ranks of one pod. `run` is the procedure; `migrate` and `stop` are the orders that it waits for."""

    def __init__(self, ranks: frozenset[int], means: Means) -> None:
        self.ranks = ranks
        self._means = means
        self._roster = means.roster
        self._migrate = asyncio.Event()
        self._transfers: tuple[tuple[int, int], ...] = ()
        """From which survivor which rank takes its state; known when all stand still."""
        self.paused = False
        """From here on the old processes may be deleted at any time, and nobody reports them as lost."""

    def migrate(self) -> None:
        self._migrate.set()

    async def run(self) -> None:
        await self._roster.until(self._loaded)
        if self._means.injection.pause_hangs:
            log.warning("injected: the pause hangs")
            return
        try:
            standstill = await self._pause()
        except TrainingEnds as error:
            log.info("nothing is switched any more", extra={"reason": error})
            procedures.release(self._roster)
            return
        except (CannotPause, RankLost, TimeoutError) as error:
            self._means.reports.strategies(EXIT)
            self.stop(f"training could not pause: {error}")
            return
        if not self._migrate.is_set():
            self._means.reports.strategies(MIGRATION)
        if await self._ordered():
            await self._carry_out(standstill)

    def stop(self, reason: str) -> None:
        """Everything is as it was before."""
        log.info("hot switch stopped", extra={"reason": reason})
        self._dismiss_backups(reason)
        procedures.release(self._roster)

    # Until the pause.

    def _loaded(self) -> bool:
        return self._roster.training and self.ranks <= self._roster.backups.keys()

    async def _pause(self) -> Standstill:
        if not self._survivors():
            raise CannotPause("no rank would be left to hand its state over")
        standstill = await procedures.pause(self._roster)
        try:
            self._transfers = procedures.sources(self._survivors(), self.ranks, standstill.replicas)
        except NoReplica as error:
            raise CannotPause(str(error)) from None
        self.paused = True
        if self._means.injection.backup_fails_paused:
            await self._fail_backups()
        return standstill

    async def _fail_backups(self) -> None:
        log.warning("injected: the backup fails while training is paused")
        backups = self._backups()
        self._roster.dismiss(backups, "injected", exit_code=1)
        await self._roster.until(lambda: not any(process.connected for process in backups))

    # Between the pause and the order.

    async def _ordered(self) -> bool:
        try:
            async with asyncio.timeout(self._means.order_timeout):
                await self._migrate.wait()
        except TimeoutError:
            self.stop("no order came")
            return False
        return True

    # The migration.

    async def _carry_out(self, standstill: Standstill) -> None:
        if self._means.injection.resume_fails:
            self._means.reports.status(FAILED, "injected: training cannot resume")
            return
        try:
            async with asyncio.timeout(self._means.rebuild_timeout):
                strategy = await self._go_on(standstill)
        except (RankLost, RebuildFailed, StepFailed) as error:
            self._means.reports.status(FAILED, str(error))
        except TimeoutError:
            self._means.reports.status(FAILED, f"no step was completed within {self._means.rebuild_timeout:g} s")
        else:
            where = "the backup" if strategy == MIGRATION else "the old pod: the backup died"
            self._means.reports.status(RECOVERED, f"training goes on behind step {standstill.step}, on {where}", strategy)

    async def _go_on(self, standstill: Standstill) -> str:
        """The strategy that was carried out."""
        if gone := [rank for rank in self._survivors() if self._roster.members[rank].lost]:
            raise RankLost(f"rank {gone[0]} is gone")
        if await self._backups_alive():
            await self._switch(standstill)
            self._dismiss_backups("another pod has these ranks")
            self._roster.turn_away(self._means.pods.forget_standbys())
            return MIGRATION
        await procedures.resume(self._roster)
        self._dismiss_backups("another process of the backup died")
        return CONTINUE

    async def _switch(self, standstill: Standstill) -> None:
        roster = self._roster
        members: Members = {**roster.members, **{rank: roster.backups[rank] for rank in self.ranks}}
        plan = Plan(standstill.step, self._transfers, standstill.own_states)
        store = await self._means.store
        await procedures.rebuild(roster, store, members, plan, self._means.rebuild_timeout)

    async def _backups_alive(self) -> bool:
        """Asked, not assumed: who died a moment ago looks connected still, and a connection that broke may come back."""
        answers = procedures.greet(self._backups())
        try:
            async with asyncio.timeout(LOST_SECONDS):
                await self._roster.until(lambda: self._answered(answers) or self._only_old_connected())
        except TimeoutError:
            log.warning("the backups do not answer")
        return self._answered(answers)

    def _answered(self, answers: list[asyncio.Future[RankMessage]]) -> bool:
        return bool(self.ranks) and len(answers) == len(self.ranks) and all(map(procedures.succeeded, answers))

    def _only_old_connected(self) -> bool:
        return self._old_connected() and not self._backups_connected()

    def _backups_connected(self) -> bool:
        return len(self._backups()) == len(self.ranks) and all(process.connected for process in self._backups())

    def _old_connected(self) -> bool:
        return all(process.connected for process in self._roster.members.values())

    def _backups(self) -> list[RankProcess]:
        return [process for rank, process in self._roster.backups.items() if rank in self.ranks]

    def _survivors(self) -> list[int]:
        return sorted(self._roster.members.keys() - self.ranks)

    def _dismiss_backups(self, reason: str) -> None:
        self._roster.dismiss([process for process in self._roster.all_backups if process.rank in self.ranks], reason)
