"""One hot switch, from the order to prepare it to its end. Started by the coordinator, one at a time.

Training goes on until every backup is loaded. Then it pauses by itself, the control plane decides, and the backups take over.
The old processes are kept until a step is completed with the backups, because they are needed if a backup dies.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rekindle_training.injection import Injection
from rekindle_training.manager import procedures
from rekindle_training.manager.membership import Members, Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.procedures import CannotPause, NoReplica, Plan, Standstill, TrainingEnds
from rekindle_training.manager.rank_process import LOST_SECONDS, RankLost, RankProcess, RebuildFailed, StepFailed
from rekindle_training.manager.rendezvous_store import Store
from rekindle_training.manager.repair import Repair
from rekindle_training.manager.replacements import CannotRepair, Nobody, has_left
from rekindle_training.manager.reports import CONTINUE, EXIT, FAILED, MIGRATION, RECOVERED, Reports
from rekindle_wire.training_pb2 import RankMessage

log = logging.getLogger(__name__)

NO_ORDER = "no order came in time"
"""Why training went on without one; the control plane knows its own outage by these words."""


@dataclass(frozen=True)
class Means:
    """Objects and settings that a procedure of the manager uses."""

    membership: Membership
    pods: Pods
    alone: bool
    """True if there is no control plane: this manager decides which ranks are replaced."""
    ranks_per_pod: int
    store: "asyncio.Future[Store]"
    reports: Reports
    injection: Injection
    rebuild_timeout: float
    order_timeout: float
    decides_without_orders: bool
    """True if this manager repairs a fault itself when no order arrives within `order_timeout`. Otherwise the ranks wait."""
    stall_seconds: float
    """Seconds that ranks may wait for another one before it is replaced, if this manager decides that. 0: no limit."""


class HotSwitch:
    """Hot switch of all ranks of one pod. `run` is the procedure; `migrate` and `stop` are the orders that it waits for."""

    def __init__(self, ranks: frozenset[int], means: Means, acquainted: Callable[[], Awaitable[object]]) -> None:
        """Args:
        acquainted: returns when this manager has met all live ranks. Losses before that are judged then.
        """
        self.ranks = ranks
        self._means, self._acquainted = means, acquainted
        self._membership = means.membership
        self._migrate = asyncio.Event()
        self._transfers: tuple[tuple[int, int], ...] = ()
        """Pairs of a rank that stays and a rank that takes its state. Empty until all ranks stand still."""
        self.paused = False
        """True once training has paused. From then on the old processes may be deleted, and their loss is not reported."""
        self.over = False
        """True if the old processes keep their ranks, or have them again."""
        self.unordered = False
        """True if it ended because no order followed the pause."""
        self._migrates = False
        """True once the migration has begun.

        It handles ranks that fail or are lost: it goes on without them, or reports the failure.
        """
        self._old: Members = {}
        self._new: Members = {}
        """New processes of the ranks. `_old` and `_new` are filled as soon as the new processes are members."""

    def migrate(self) -> None:
        self._migrate.set()

    def bears(self, process: RankProcess) -> bool:
        """Returns whether the loss of a member is not, or not yet, a fault."""
        return self._migrates or (self.paused and process.rank in self.ranks)

    async def run(self) -> str:
        """Runs the hot switch. Returns why training stands and has to be recovered. Empty: training goes on."""
        with self._membership.spans.record("backups load"):
            await self._membership.until(self._loaded)
        await self._acquainted()
        await self._membership.until(self._loaded)  # a backup may be gone again
        if self._means.injection.pause_hangs:
            log.warning("injected: the pause hangs")
            return ""
        try:
            standstill = await self._pause()
        except TrainingEnds as error:
            log.info("hot switch cancelled", extra={"reason": error})
            procedures.release(self._membership)
            return ""
        except (CannotPause, RankLost, TimeoutError) as error:
            self._means.reports.strategies(EXIT)
            self.stop(f"training could not pause: {error}")
            return ""
        if not self._migrate.is_set():
            self._means.reports.strategies(MIGRATION)
        if self._means.injection.rank_fails_paused and self._membership.generation == 1:
            log.warning("injected: a rank fails while training is paused")
            self._means.pods.kill(self._membership.members[self._survivors()[0]].identity, "injected")
        return await self._carry_out(standstill) if await self._ordered() else ""

    def stop(self, reason: str) -> None:
        """Stops the hot switch: training goes on with the old processes."""
        self.over = True
        log.info("hot switch stopped", extra={"reason": reason})
        self._membership.dismiss(self._all_backups(), reason)
        procedures.release(self._membership)

    def fail(self, reason: str) -> None:
        """Reports that the hot switch failed. Training stands and is recovered."""
        self._means.reports.status(FAILED, reason)

    def give_way(self, reason: str) -> None:
        """Ends the hot switch in favour of a recovery: live old processes get their ranks back, and the backups leave."""
        self.over = True
        log.info("hot switch preempted", extra={"reason": reason})
        for process in self._new.values():
            self._means.pods.release(reason, process.identity)
        self._membership.dismiss([*self._all_backups(), *self._new.values()], reason)
        self._membership.reinstate(self._old.values())
        self._old, self._new = {}, {}

    # Until the pause.

    def _loaded(self) -> bool:
        """Returns whether all backups are loaded. They were if an earlier manager has paused training, and may be gone since."""
        membership = self._membership
        return membership.paused or (membership.training and self.ranks <= membership.backups.keys())

    async def _pause(self) -> Standstill:
        if missing := sorted(self.ranks & set(self._membership.missing)):
            raise CannotPause(has_left(missing[0]))
        if not self._survivors():
            raise CannotPause("no rank would be left to hand its state over")
        standstill = await procedures.pause(self._membership)
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
        self._membership.dismiss(backups, "injected", exit_code=1)
        await self._membership.until(lambda: not any(process.connected for process in backups))

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
            log.exception("migration failed")  # no rank waits for ever
            return f"{type(error).__name__}: {error}"
        self._means.reports.status(RECOVERED, info, strategy)
        return ""

    async def _go_on(self, standstill: Standstill) -> tuple[str, str]:
        """Returns the strategy that was carried out, and a description of its result.

        Raises:
            CannotRepair: training stands, with the old processes as its members.
        """
        failure = await self._switch(standstill) if await self._backups_alive() else "the backup died"
        self._membership.turn_away(self._means.pods.forget_standbys())
        if not failure:
            self._membership.dismiss(self._all_backups(), "another pod has these ranks")
            return MIGRATION, f"training goes on after step {standstill.step}, on the backup"
        self.give_way(failure)
        repair = Repair(self._membership, await self._means.store, Nobody(self._membership), self._means.rebuild_timeout)
        try:
            step = await repair.run()
        except CannotRepair as error:
            raise CannotRepair(f"{failure}; on the old pod: {error}") from error
        return CONTINUE, f"training goes on after step {step}, on the old pod: {failure}"

    async def _switch(self, standstill: Standstill) -> str:
        """Moves the ranks to the backups. Returns why this failed. Empty: a step was completed on the backups."""
        membership, limit = self._membership, self._means.rebuild_timeout
        self._old = {rank: membership.members[rank] for rank in self.ranks}
        self._new = {rank: membership.backups[rank] for rank in self.ranks}
        plan = Plan(standstill.step, self._transfers, standstill.own_states)
        try:
            async with asyncio.timeout(limit):
                await procedures.rebuild(membership, await self._means.store, {**membership.members, **self._new}, plan, limit)
        except (RankLost, RebuildFailed, StepFailed) as error:
            return str(error)
        except TimeoutError:
            return f"no step was completed within {limit:g} s"
        return ""

    async def _backups_alive(self) -> bool:
        """Asks the backups whether they live.

        A process that died a moment ago still looks connected, and a broken connection may be restored.
        """
        answers = procedures.greet(self._backups())
        try:
            async with asyncio.timeout(LOST_SECONDS):
                await self._membership.until(lambda: self._answered(answers) or self._only_old_connected())
        except TimeoutError:
            log.warning("backup pods not reached")
        return self._answered(answers)

    def _answered(self, answers: list[asyncio.Future[RankMessage]]) -> bool:
        return bool(self.ranks) and len(answers) == len(self.ranks) and all(map(procedures.succeeded, answers))

    def _only_old_connected(self) -> bool:
        return self._old_connected() and not self._backups_connected()

    def _backups_connected(self) -> bool:
        return len(self._backups()) == len(self.ranks) and all(process.connected for process in self._backups())

    def _old_connected(self) -> bool:
        return all(process.connected for process in self._membership.members.values())

    def _backups(self) -> list[RankProcess]:
        return [process for rank, process in self._membership.backups.items() if rank in self.ranks]

    def _survivors(self) -> list[int]:
        return sorted(self._membership.members.keys() - self.ranks)

    def _all_backups(self) -> list[RankProcess]:
        """Returns all backups of these ranks, including those of a second pod."""
        return [process for process in self._membership.all_backups if process.rank in self.ranks]
