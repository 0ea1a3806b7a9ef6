"""One hot switch, from the order to prepare it to its end. Started by the conductor, one at a time.

Training goes on until every backup is loaded; then it pauses by itself, the control plane decides, and the backups take over.
Until a step is completed with them the old processes stay as they are: they are the rescue when a backup dies.
"""

import asyncio
import logging
from dataclasses import dataclass

from rekindle_training.injection import Injection
from rekindle_training.manager import procedures
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.procedures import CannotPause, NoReplica, Plan, Standstill, TrainingEnds
from rekindle_training.manager.rank_process import LOST_SECONDS, RankLost, RankProcess, RebuildFailed, StepFailed
from rekindle_training.manager.repair import Repair
from rekindle_training.manager.reports import CONTINUE, EXIT, FAILED, MIGRATION, RECOVERED, Reports
from rekindle_training.manager.roster import Members, Roster
from rekindle_training.manager.store import Store
from rekindle_training.manager.successors import CannotRepair, Nobody
from rekindle_wire.training_pb2 import RankMessage

log = logging.getLogger(__name__)

NO_ORDER = "no order came in time"
"""Why training went on without one; the control plane knows its own outage by these words."""


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
        self.over = False
        """The old processes have their ranks."""
        self.unordered = False
        """It is over since the control plane did not say what follows the pause."""
        self._migrates = False
        """Who is lost now, or fails, is the affair of the migration, which goes on without it or says what has failed."""
        self._old: Members = {}
        self._new: Members = {}
        """Both as soon as the new ones are members."""

    def migrate(self) -> None:
        self._migrate.set()

    def bears(self, process: RankProcess) -> bool:
        """Whether the loss of a member is no fault, or not yet."""
        return self._migrates or (self.paused and process.rank in self.ranks)

    async def run(self) -> str:
        """Why training stands behind it, and has to be recovered; empty: it goes on."""
        await self._roster.until(self._loaded)
        if self._means.injection.pause_hangs:
            log.warning("injected: the pause hangs")
            return ""
        try:
            standstill = await self._pause()
        except TrainingEnds as error:
            log.info("nothing is switched any more", extra={"reason": error})
            procedures.release(self._roster)
            return ""
        except (CannotPause, RankLost, TimeoutError) as error:
            self._means.reports.strategies(EXIT)
            self.stop(f"training could not pause: {error}")
            return ""
        if not self._migrate.is_set():
            self._means.reports.strategies(MIGRATION)
        if self._means.injection.rank_fails_paused and self._roster.generation == 1:
            log.warning("injected: a rank fails while training is paused")
            self._means.pods.kill(self._roster.members[self._survivors()[0]].identity, "injected")
        return await self._carry_out(standstill) if await self._ordered() else ""

    def stop(self, reason: str) -> None:
        """Everything is as it was before."""
        self.over = True
        log.info("hot switch stopped", extra={"reason": reason})
        self._roster.dismiss(self._all_backups(), reason)
        procedures.release(self._roster)

    def fail(self, reason: str) -> None:
        """Training stands, and is recovered."""
        self._means.reports.status(FAILED, reason)

    def give_way(self, reason: str) -> None:
        """To a recovery: the old processes have their ranks again, as far as they live, and the backups leave."""
        self.over = True
        log.info("hot switch gives way", extra={"reason": reason})
        for process in self._new.values():
            self._means.pods.release(reason, process.identity)
        self._roster.dismiss([*self._all_backups(), *self._new.values()], reason)
        self._roster.reinstate(self._old.values())
        self._old, self._new = {}, {}

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
            raise CannotPause(
                f"{error}; a rank moves to another pod only where one that stays has the same shard: give the device mesh "
                "replicas (HSDP), or end the job and begin it again from its checkpoint"
            ) from None
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
            self.unordered = True
            self.stop(NO_ORDER)
            return False
        return True

    # The migration.

    async def _carry_out(self, standstill: Standstill) -> str:
        if self._means.injection.resume_fails:
            return "injected: training cannot resume"
        self._migrates = True
        try:
            strategy, info = await self._go_on(standstill)
        except CannotRepair as error:
            return str(error)
        except Exception as error:
            log.exception("the migration failed")  # no rank waits for ever
            return f"{type(error).__name__}: {error}"
        self._means.reports.status(RECOVERED, info, strategy)
        return ""

    async def _go_on(self, standstill: Standstill) -> tuple[str, str]:
        """The strategy that was carried out, and what there is to say of it.

        Raises:
            CannotRepair: training stands, with the old processes as its members.
        """
        failure = await self._switch(standstill) if await self._backups_alive() else "the backup died"
        self._roster.turn_away(self._means.pods.forget_standbys())
        if not failure:
            self._roster.dismiss(self._all_backups(), "another pod has these ranks")
            return MIGRATION, f"training goes on behind step {standstill.step}, on the backup"
        self.give_way(failure)
        repair = Repair(self._roster, await self._means.store, Nobody(self._roster), self._means.rebuild_timeout)
        try:
            step = await repair.run()
        except CannotRepair as error:
            raise CannotRepair(f"{failure}; on the old pod: {error}") from error
        return CONTINUE, f"training goes on behind step {step}, on the old pod: {failure}"

    async def _switch(self, standstill: Standstill) -> str:
        """Why it failed; empty: a step is completed on the backup."""
        roster, limit = self._roster, self._means.rebuild_timeout
        self._old = {rank: roster.members[rank] for rank in self.ranks}
        self._new = {rank: roster.backups[rank] for rank in self.ranks}
        plan = Plan(standstill.step, self._transfers, standstill.own_states)
        try:
            async with asyncio.timeout(limit):
                await procedures.rebuild(roster, await self._means.store, {**roster.members, **self._new}, plan, limit)
        except (RankLost, RebuildFailed, StepFailed) as error:
            return str(error)
        except TimeoutError:
            return f"no step was completed within {limit:g} s"
        return ""

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

    def _all_backups(self) -> list[RankProcess]:
        """Also of a second pod that came for these ranks."""
        return [process for process in self._roster.all_backups if process.rank in self.ranks]
