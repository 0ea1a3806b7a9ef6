"""Decides what happens to the job's ranks, and when: start them, watch them, switch them. One in each manager, made by `main`.

It can begin in the middle: a manager that replaces another one learns from the ranks' hellos where training and a hot switch are.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from rekindle_training.manager import procedures
from rekindle_training.manager.hot_switch import HotSwitch, Means
from rekindle_training.manager.procedures import Plan
from rekindle_training.manager.rank_process import RankLost, RankProcess, RebuildFailed, StepFailed
from rekindle_training.manager.repair import CannotRepair, Repair
from rekindle_training.manager.reports import CONTINUE, FAILED, MIGRATION, RECOVERED
from rekindle_training.manager.standalone import Standalone
from rekindle_training.manager.witness import Witness

log = logging.getLogger(__name__)

MERGE_SECONDS = 0.1
"""Ranks of one pod die together and are reported together."""
TAKEOVER_SECONDS = 2.0
"""Within this time all living ranks have found a new manager; they try every 0.5 s."""
EXIT_CODE = 2
"""Of ranks that leave because the job is to be restarted."""
FAILED_CODE = 1
"""Of ranks that leave because training cannot go on."""


class Conductor:
    """All procedures of one job's training side."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._roster = means.roster
        self._roster.on_lost = self.lost
        self._roster.on_standing = self.stands
        self._alone = Standalone(means.roster, means.pods, means.stall_seconds, self._begin_repair) if means.alone else None
        self._witness = None if means.alone else Witness(means.roster, means.pods, means.stall_seconds)
        self._switch: HotSwitch | None = None
        self._switching: asyncio.Task[None] | None = None
        self._repairing: asyncio.Task[None] | None = None
        self._lost: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ends when every rank has said goodbye."""
        for procedure in (self._start_training(), self._report_progress(), self._take_over()):
            self._start(procedure)
        if (watching := self._alone or self._witness) is not None:
            self._start(watching.watch())
        alone = self._alone
        await self._roster.until(lambda: self._roster.finished or (alone is not None and alone.over))
        log.info("training is complete")
        self._roster.dismiss([*self._roster.backups.values(), *self._roster.retired], "training is complete")

    # Orders.

    def prepare(self, ranks: frozenset[int]) -> None:
        self._drop()
        self._begin(HotSwitch(ranks, self._means))

    def stop(self) -> None:
        if (switch := self._drop()) is not None:
            switch.stop("ordered")

    def migrate(self) -> None:
        if (switch := self._active()) is not None:
            switch.migrate()
        else:
            self._start(self._migrate_after_takeover())

    def dismiss_all(self) -> None:
        self._drop()
        roster = self._roster
        roster.dismiss(roster.backups.values(), "the job ends here")
        roster.dismiss([*roster.members.values(), *roster.retired, *roster.starting.values()], "the job ends here", EXIT_CODE)

    # Losses.

    def lost(self, process: RankProcess) -> None:
        """A member is gone without a goodbye. The old pod of a switch may be deleted once the pause was reported."""
        if self._alone is not None:
            self._alone.consider()
            return
        switch = self._active()
        if switch is not None and switch.paused and process.rank in switch.ranks:
            return
        if not self._lost:
            asyncio.get_running_loop().call_later(MERGE_SECONDS, self._report_lost)
        self._lost.add(process.rank)

    def _report_lost(self) -> None:
        """A switch that has not paused yet is dropped: its backup is of no use to the recovery that follows."""
        self._means.reports.process_fault(sorted(self._lost))
        self._lost.clear()
        if (switch := self._active()) is not None and not switch.paused:
            self._drop()
            switch.stop("a rank died")

    # Failed steps.

    def stands(self, _: RankProcess) -> None:
        """Its step failed, or it was asked. A switch that has not paused yet begins anew behind the repair; in one that has
        paused the failure is the switch's."""
        switch = self._active()
        if (self._alone is None or not self._alone.given_up) and not (switch is not None and switch.paused):
            self._begin_repair()

    def _begin_repair(self) -> None:
        if self._repairing is None:
            switch = self._drop()
            self._repairing = self._start(self._repair(switch.ranks if switch is not None else frozenset()))

    async def _repair(self, switched: frozenset[int]) -> None:
        roster, means = self._roster, self._means
        try:
            if self._alone is None:
                await roster.until(lambda: roster.complete)
            await Repair(roster, await means.store, means.pods if means.alone else None, means.rebuild_timeout).run()
        except RankLost as error:
            log.warning("a rank ended while training was repaired", extra={"reason": error})
        except CannotRepair as error:
            self._end_training(str(error))
        except Exception:
            self._end_training("the repair failed")  # no rank waits for ever
            raise
        else:
            if switched:
                self._begin(HotSwitch(switched, self._means))
        finally:
            self._repairing = None
            self._consider_again()

    def _consider_again(self) -> None:
        """What came while nothing else could be begun."""
        if self._alone is not None:
            self._alone.consider()
        if (standing := self._roster.standing) is not None and not self._roster.vacant:
            self.stands(standing)

    def _end_training(self, reason: str) -> None:
        if self._alone is not None:
            self._alone.give_up(reason)
            return
        log.error("training cannot go on", extra={"reason": reason})
        self._roster.dismiss(self._roster.members.values(), reason, FAILED_CODE)

    # The beginning, of a job or in the middle of one.

    async def _start_training(self) -> None:
        """A job starts when all ranks are there, and again whenever all of them are new."""
        store = await self._means.store
        while True:
            await self._roster.until(lambda: self._roster.ready_to_start)
            begins = Plan(begins=True)
            try:
                await procedures.rebuild(self._roster, store, dict(self._roster.starting), begins, self._means.rebuild_timeout)
            except (RankLost, StepFailed) as error:
                log.warning("training did not start", extra={"reason": error})
            except RebuildFailed as error:
                self._end_training(f"training did not start: {error}")

    async def _report_progress(self) -> None:
        await self._roster.until(lambda: self._roster.training)
        members = self._roster.members.values()
        if (behind := min(member.stepped for member in members) - 1) > 0 and not self._roster.took_over:
            log.info("training went on from its checkpoint", extra={"behind": behind})
        self._means.reports.progress(min(member.stepped for member in members), max(member.steps_lost for member in members))

    async def _take_over(self) -> None:
        """What another manager began with the ranks: a switch whose pause has begun is taken up, and nobody is held for less."""
        roster = self._roster
        await roster.until(lambda: roster.took_over and roster.complete)
        await asyncio.sleep(TAKEOVER_SECONDS)
        if self._active() is not None or self._repairing is not None:
            return
        if not any(member.paused for member in roster.members.values()):
            procedures.release(roster)
            return
        await procedures.pause(roster)
        self._begin(HotSwitch(frozenset(roster.backups), self._means))

    async def _migrate_after_takeover(self) -> None:
        """The order belongs to a switch that another manager prepared; the ranks show how far it got."""
        await asyncio.sleep(TAKEOVER_SECONDS)
        if self._roster.paused:
            switch = self._active() or self._begin(HotSwitch(frozenset(self._roster.backups), self._means))
            switch.migrate()
        elif self._roster.complete:
            strategy = CONTINUE if self._roster.backups else MIGRATION
            self._means.reports.status(RECOVERED, "training goes on", strategy)
        else:
            self._means.reports.status(FAILED, "not all ranks are there")

    # The switch that is going on.

    def _begin(self, switch: HotSwitch) -> HotSwitch:
        self._switch = switch
        self._switching = self._start(switch.run())
        return switch

    def _active(self) -> HotSwitch | None:
        return self._switch if self._switching is not None and not self._switching.done() else None

    def _drop(self) -> HotSwitch | None:
        switch = self._active()
        if switch is not None and self._switching is not None:
            self._switching.cancel()
            self._switching = None
        return switch

    def _start(self, procedure: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(procedure)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a procedure failed", exc_info=error)
