"""Decides what happens to the job's ranks, and when: starts, watches and switches them. Created by `main`, one in each manager.

It can begin in the middle. A manager that replaces another one learns the state of training and of a hot switch from the ranks'
first messages.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from rekindle_training import names
from rekindle_training.manager import loop_ends, procedures
from rekindle_training.manager.growth import Growth
from rekindle_training.manager.hot_switch import NO_ORDER, HotSwitch, Means
from rekindle_training.manager.liveness_monitor import LivenessMonitor, meet
from rekindle_training.manager.maintenance import FAULT_FIRST, NOT_PAUSED, Maintenance, Task
from rekindle_training.manager.procedures import Plan, TrainingEnds
from rekindle_training.manager.rank_process import RankLost, RankProcess, RebuildFailed, StepFailed
from rekindle_training.manager.recovery import Kind, Order, Recovery
from rekindle_training.manager.repair import Repair, stand
from rekindle_training.manager.replacements import CannotRepair, Futile, InPlace, LoopsDiffer
from rekindle_training.manager.reports import CONTINUE, EXIT, FAILED, MIGRATION, RECOVERED, UPGRADE
from rekindle_training.manager.standalone import Standalone
from rekindle_training.manager.times import Times

log = logging.getLogger(__name__)

FIRST_SECONDS = 10.0
"""Seconds in which a manager that has met no rank of a job meets one, if there is a job that trains."""
LAST_SECONDS = 1.0
"""Seconds to wait for the answer to a recovery after which there was nothing left to train."""
EXIT_CODE = 2
"""Exit code of ranks that leave because the job is to be restarted."""
FAILED_CODE = 1
"""Exit code of ranks that leave because training cannot go on."""
SWITCH_FIRST = "a hot switch is under way"
MAINTENANCE_FIRST = "training is paused for a maintenance"
GROWTH_FIRST = "missing ranks are coming back"


Pausing = TypeVar("Pausing", HotSwitch, Maintenance, Growth)
"""Procedure that holds training at a step boundary."""


class Coordinator:
    """Runs all procedures of one job's training side."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._membership = means.membership
        self._membership.on_lost = self.lost
        self._membership.on_standing = self.stands
        watched = means.membership, means.pods, means.stall_seconds, self._break_off
        self._alone = Standalone(*watched, self._begin_repair) if means.alone else None
        self._liveness = None if means.alone else LivenessMonitor(*watched)
        self._switch: HotSwitch | None = None
        """Latest hot switch."""
        self._pausing: HotSwitch | Maintenance | Growth | None = None
        """Latest hot switch, maintenance or return of ranks."""
        self._switching: asyncio.Task[None] | None = None
        self._gave_way = False
        """True if the latest hot switch was ended because of a fault."""
        self._maintenances: dict[str, Maintenance] = {}
        """Maintenances by attempt. They are kept for the whole life of this manager, because each may be asked for again."""
        self._repairing: asyncio.Task[None] | None = None
        self._recovery: Recovery | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._alone_behind: int | None = None
        """Step after which training went on without an order of the control plane, until the control plane sends one."""
        self._has_met_nobody = False
        """True if no rank of a job that trains has come in `FIRST_SECONDS`, for which no later order waits again."""
        self._met = asyncio.Event()
        """Set when all live ranks of a job that another manager began have been met."""
        self._taken_up = asyncio.Event()
        """Set when this manager has taken over the procedures that the manager before it had begun."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until every rank has said goodbye."""
        for procedure in (self._start_training(), self._report_progress(), self._take_over()):
            self._start(procedure)
        counting = self._start(Times(self._membership, self._means.reports).run())
        if (watching := self._alone or self._liveness) is not None:
            self._start(watching.watch())
        alone = self._alone
        await self._membership.until(lambda: self._membership.finished or (alone is not None and alone.over))
        loop_ends.say(self._membership)
        if isinstance(growth := self._drop(), Growth):
            growth.stop("training is complete")
        if alone is None:
            await asyncio.wait({counting})
        if self._recovering is not None:
            await asyncio.wait({self._recovering}, timeout=LAST_SECONDS)
        self._membership.dismiss([*self._membership.all_backups, *self._membership.retired], "training is complete")
        self._start(procedures.turn_away(self._membership, "training is complete"))
        if alone is None:
            self._means.pods.release("training is complete")

    @property
    def ranks(self) -> int:
        return self._membership.world_size

    @property
    def ranks_per_pod(self) -> int:
        return self._means.ranks_per_pod

    # Orders.

    def prepare(self, ranks: frozenset[int]) -> None:
        if isinstance(dropped := self._drop(), Maintenance | Growth):
            dropped.stop("a hot switch was ordered")
        self._gave_way = False
        self._means.pods.forget_standbys()
        self._begin(HotSwitch(ranks, self._means, self._acquainted))

    def grow(self, ranks: frozenset[int], attempt: str) -> None:
        """Takes missing ranks back, whose new processes come or are there."""
        if self._mends:
            self.refuse_growth(FAULT_FIRST, attempt)
        elif isinstance(active := self._active(), Maintenance):
            self.refuse_growth(MAINTENANCE_FIRST, attempt)
        else:
            if isinstance(active, Growth):
                active.stop("another order to grow has followed")
            self._drop()
            self._begin(Growth(ranks, attempt, self._means, self._acquainted))

    def refuse_growth(self, reason: str, attempt: str) -> None:
        self._means.reports.status(FAILED, reason, UPGRADE, attempt)

    def refuse_switch(self) -> None:
        """Refuses a hot switch of ranks that do not exist."""
        self._means.reports.strategies(EXIT)

    @property
    def switched(self) -> frozenset[int]:
        """Ranks of the current hot switch. Empty: no hot switch is going on."""
        return switch.ranks if isinstance(switch := self._active(), HotSwitch) else frozenset()

    def name_standbys(self, standbys: Mapping[str, int]) -> None:
        """Assigns pod ranks to standby pods, which take them as soon as they report.

        Args:
            standbys: pod ranks by the uids of the pods.
        """
        self._means.pods.name(standbys)

    def stop(self) -> None:
        if isinstance(active := self._active(), HotSwitch | Growth):
            self._drop()
            active.stop("ordered")
            self._means.pods.forget_standbys()

    def migrate(self) -> None:
        """Orders the current hot switch to migrate. If it has not paused under this manager, an earlier manager paused it."""
        if isinstance(switch := self._active(), HotSwitch) and switch.paused:
            switch.migrate()
        elif isinstance(switch, Maintenance):
            self._means.reports.status(FAILED, MAINTENANCE_FIRST)
        elif self._gave_way:
            self._means.reports.status(FAILED, FAULT_FIRST)
        else:
            self._start(self._migrate_after_takeover())

    def pause(self, attempt: str) -> None:
        """Pauses all ranks at a step boundary, for a maintenance."""
        if attempt not in self._maintenances:
            self._maintain(attempt)
        self._maintenances[attempt].pause()

    def _maintain(self, attempt: str) -> None:
        maintenance = self._maintenances[attempt] = Maintenance(attempt, self._means, self._acquainted)
        active = self._active()
        if self._mends:
            maintenance.fail(FAULT_FIRST)
        elif isinstance(active, HotSwitch | Growth):
            maintenance.refuse(SWITCH_FIRST if isinstance(active, HotSwitch) else GROWTH_FIRST)
        elif active is not None and active.busy:
            maintenance.refuse("another maintenance is under way")
        else:
            if active is not None:
                self._drop()
                active.refuse("another maintenance has followed")
            self._begin(maintenance)

    def go_on(self, attempt: str) -> None:
        """Ends a maintenance: training is to go on."""
        if (maintenance := self._maintenances.get(attempt)) is not None:
            maintenance.go_on()
        else:
            self._start(self._go_on_after_takeover(attempt))

    def carry_out(self, task: Task) -> None:
        """Runs a task while training is paused for a maintenance."""
        if isinstance(maintenance := self._active(), Maintenance):
            maintenance.carry_out(task)
        else:
            self._start(self._carry_out_after_takeover(task))

    def recover(self, order: Order) -> None:
        """Carries out an order of a fault recovery. The recovery begins with it if this manager knows of no fault."""
        self._give_way("training is to stop")
        if self._recovery is None and order.kind is Kind.SMALLER:  # ordered while all is well
            self._recovery_now().no_fault()
        self._recovery_now().order(order)
        self.name_standbys(order.standbys)

    def dismiss_all(self) -> None:
        self._drop()
        self._end_recovery()
        self._dismiss("the job ends here", EXIT_CODE)

    def _dismiss(self, reason: str, code: int) -> None:
        """Orders all processes of the job to leave."""
        membership, pods = self._membership, self._means.pods
        membership.dismiss(membership.all_backups, reason)
        membership.dismiss([*membership.members.values(), *membership.retired, *membership.starting.values()], reason, code)
        pods.release(reason)
        self._start(procedures.dismiss_late(membership, pods, reason, code))

    # Losses.

    def lost(self, process: RankProcess) -> None:
        """Handles a member that is gone without a goodbye.

        The old pod of a switch may be deleted once the pause was reported.
        """
        if self._alone is not None:
            self._alone.consider()
            return
        if (switch := self._active()) is not None and switch.bears(process):
            return
        if self._has_met_all:
            self._give_way(f"rank {process.rank} died")
            self._recovery_now().faults.gone(process.rank)

    # Failed steps.

    def stands(self, process: RankProcess) -> None:
        """Handles a rank whose step failed, or that was asked to stand.

        During a migration, the hot switch handles the failure.
        """
        if (switch := self._active()) is not None and switch.bears(process):
            return
        if self._alone is not None:
            if not self._alone.given_up:
                self._begin_repair()
            return
        if not process.dismissed and self._has_met_all:
            self._give_way("a step failed")
            self._recovery_now().failed(process)

    # Recoveries, which the control plane orders.

    def _recovery_now(self) -> Recovery:
        if self._recovery is None:
            self._recovery = Recovery(self._means, self._acquainted, self._alone_behind)
            self._recovering = self._start(self._recover(self._recovery))
        return self._recovery

    async def _recover(self, recovery: Recovery) -> None:
        try:
            behind = await recovery.run()
        except CannotRepair as error:
            self._end_training(str(error))
        except Exception:
            self._end_training("the recovery failed")  # no rank waits for ever
            raise
        else:
            self._alone_behind = behind if recovery.by_itself else None
            log.info("training recovered", extra={"behind": behind, "by_itself": recovery.by_itself})
            self._recovery = None
            self._membership.turn_away(self._means.pods.forget_standbys())
            recovery.tell()
            self._look_for_faults()
        finally:
            self._recovery = None if self._recovery is recovery else self._recovery
        for order in recovery.left():
            self.recover(order)

    def _look_for_faults(self) -> None:
        """Handles losses and failures that were noticed while no other procedure could begin."""
        membership = self._membership
        if not membership.generation or membership.finished or not self._has_met_all:
            return
        for rank in membership.vacant:
            if (member := membership.members.get(rank)) is None or not member.dismissed:
                self._give_way(f"rank {rank} died")
                self._recovery_now().faults.gone(rank)
        for member in list(membership.members.values()):
            if member.stands and not member.dismissed:
                self.stands(member)

    @property
    def _has_met_all(self) -> bool:
        """Returns whether all live ranks have been met.

        Before that, a rank may be known by a process of an older generation, which another process has followed.
        """
        return not self._membership.took_over or self._met.is_set()

    def _end_recovery(self) -> None:
        if self._recovering is not None:
            self._recovering.cancel()
            self._membership.turn_away(self._means.pods.forget_standbys())
        self._recovery = self._recovering = None

    async def _give_up_recovery(self, reason: str) -> None:
        """Ends the current recovery and refuses its orders, because the ranks that it was to recover do not exist any more."""
        recovery, recovering = self._recovery, self._recovering
        self._end_recovery()
        if recovery is not None and recovering is not None:
            await asyncio.wait({recovering})
            recovery.refuse_all(reason)

    async def _acquainted(self) -> None:
        """Returns when a job that trains is known, and all its live ranks have been met."""
        membership = self._membership
        if not self._has_met_nobody:
            try:
                async with asyncio.timeout(FIRST_SECONDS):
                    await membership.until(lambda: membership.generation > 0)
            except TimeoutError:
                self._has_met_nobody = True
        if membership.took_over:
            await self._met.wait()

    # Repairs without a control plane.

    def _begin_repair(self) -> None:
        if self._repairing is None:
            self._repairing = self._start(self._repair(InPlace(self._membership, self._means.pods)))

    async def _repair(self, successors: InPlace) -> None:
        assert self._alone is not None
        try:
            await Repair(self._membership, await self._means.store, successors, self._means.rebuild_timeout).run()
        except CannotRepair as error:
            self._end_training(str(error), futile=isinstance(error, Futile))
        except Exception:
            self._end_training("the repair failed")  # no rank waits for ever
            raise
        finally:
            self._repairing = None
            self._alone.consider()
            if (standing := self._membership.standing) is not None and not self._membership.vacant:
                self.stands(standing)

    def _break_off(self) -> None:
        """Stops all ranks and asks where they stand, even if a repair waits for a step of theirs."""
        if self._alone is None and self._recovery is None:
            self._give_way("all ranks are asked where they stand")
            self._recovery_now().no_fault()
        else:
            self._start(self._stand())

    async def _stand(self) -> None:
        with contextlib.suppress(CannotRepair, TimeoutError):  # `stands` goes on from there
            try:
                await stand(self._membership)
            except LoopsDiffer as error:
                self._end_training(str(error), futile=True)

    def _end_training(self, reason: str, *, futile: bool = False) -> None:
        if self._alone is not None:
            self._alone.give_up(reason, futile=futile)
            return
        log.error("training not repaired", extra={"reason": reason})
        self._dismiss(reason, FAILED_CODE)

    # The beginning, of a job or in the middle of one.

    async def _start_training(self) -> None:
        """Starts training when all ranks are there, and again whenever all of them are new."""
        store = await self._means.store
        while True:
            await self._membership.until(lambda: self._membership.ready_to_start)
            begins = Plan(begins=True)
            await self._give_up_recovery("training begins again")
            try:
                await procedures.rebuild(
                    self._membership, store, dict(self._membership.starting), begins, self._means.rebuild_timeout
                )
            except (RankLost, StepFailed) as error:
                log.warning("training start failed", extra={"reason": error})
            except RebuildFailed as error:
                self._end_training(f"training did not start: {error}")

    async def _report_progress(self) -> None:
        await self._membership.until(lambda: self._membership.training)
        members = self._membership.members.values()
        step = min(member.stepped or member.step for member in members)  # a rank that is found paused completes none
        if (behind := step - 1) > 0 and not self._membership.took_over:
            log.info("training resumed from its checkpoint", extra={"behind": behind})
        self._means.reports.progress(step, max(member.steps_lost for member in members), self._membership.world_size)

    async def _take_over(self) -> None:
        """Takes over the procedures that another manager began with the ranks.

        A switch whose pause has begun is taken over. All ranks that are held for anything else are released.
        """
        await self._membership.until(lambda: self._membership.took_over)
        await meet(self._membership, self._means.pods)
        self._met.set()
        try:
            if self._alone is None:
                self._look_for_faults()
            if not self._mends:
                await self._membership.until(lambda: self._membership.complete)
                await self._take_up()
        finally:
            self._taken_up.set()

    async def _take_up(self) -> None:
        """Takes over a hot switch or a maintenance from the ranks' state.

        If the manager before this one died in a rebuild, some ranks are paused, and others could not join the next
        generation.
        """
        membership, switch = self._membership, self._active()
        if isinstance(switch, Maintenance | Growth):
            return
        if self._mends or (switch is not None and (switch.paused or membership.training)):
            return
        paused = [member for member in membership.members.values() if member.paused]
        if (attempt := next((member.maintenance for member in paused if member.maintenance is not None), None)) is not None:
            self._drop()
            self._maintain(attempt)
        elif paused:
            self._drop()
            try:
                await procedures.pause(membership)
            except TrainingEnds:
                procedures.release(membership)
                return
            ranks = switch.ranks if switch is not None else frozenset(membership.backups)
            self._begin(HotSwitch(ranks, self._means, self._acquainted))
        elif (stranded := next((member for member in membership.members.values() if member.stranded), None)) is not None:
            self._recovery_now().faults.tell(suspected=stranded.rank)
        elif switch is None:
            procedures.release(membership)

    @property
    def _mends(self) -> bool:
        return self._repairing is not None or self._recovery is not None

    async def _migrate_after_takeover(self) -> None:
        """Carries out the order to migrate for a hot switch that another manager prepared. The ranks show how far it got."""
        membership = self._membership
        await self._taken_over()
        if membership.complete and not membership.paused:
            await membership.until(lambda: membership.training or membership.finished or self._recovery is not None)
        if self._recovery is not None:
            self._means.reports.status(FAILED, FAULT_FIRST)
        elif isinstance(switch := self._active(), Maintenance | Growth):
            self._means.reports.status(FAILED, MAINTENANCE_FIRST if isinstance(switch, Maintenance) else GROWTH_FIRST)
        elif membership.paused:
            switch = switch or self._begin(HotSwitch(frozenset(membership.backups), self._means, self._acquainted))
            switch.migrate()
        elif membership.complete:
            self._drop()  # there is nothing left of it to switch
            info = "training goes on" + (f": {NO_ORDER}" if self._switch is not None and self._switch.unordered else "")
            self._means.reports.status(RECOVERED, info, MIGRATION if self._is_switched else CONTINUE)
        else:
            self._means.reports.status(FAILED, "not all ranks are there")

    async def _go_on_after_takeover(self, attempt: str) -> None:
        """Ends a maintenance that another manager may have begun."""
        membership, reports = self._membership, self._means.reports
        await self._taken_over()
        if membership.complete and not membership.paused:
            await membership.until(lambda: membership.training or membership.finished or self._recovery is not None)
        if (maintenance := self._maintenances.get(attempt)) is not None:
            maintenance.go_on()
        elif self._recovery is not None:
            reports.status(FAILED, FAULT_FIRST, CONTINUE, attempt)
        elif (active := self._active()) is not None and active.paused:
            words = SWITCH_FIRST if isinstance(active, HotSwitch) else "training is paused for another attempt"
            reports.status(FAILED, words, CONTINUE, attempt)
        elif membership.complete:
            reports.status(RECOVERED, "training goes on", CONTINUE, attempt)
        else:
            reports.status(FAILED, "not all ranks are there", CONTINUE, attempt)

    async def _carry_out_after_takeover(self, task: Task) -> None:
        await self._taken_over()
        if isinstance(maintenance := self._active(), Maintenance):
            maintenance.carry_out(task)
        else:
            task.break_off(NOT_PAUSED)
            task.answer("")

    async def _taken_over(self) -> None:
        """Returns when this manager knows what another one has begun."""
        await self._acquainted()
        if self._membership.took_over:
            await self._taken_up.wait()

    @property
    def _is_switched(self) -> bool:
        """Returns whether backups have the ranks of the last hot switch.

        This manager may not have received those ranks, and may have ended the switch itself.
        """
        switch, members = self._switch, self._membership.members
        if self._membership.backups or (switch is not None and switch.over):
            return False
        new = {rank for rank, member in members.items() if member.role == names.BACKUP}
        return bool(new) and (switch is None or switch.ranks <= new)

    # The switch that is going on.

    def _begin(self, pausing: Pausing) -> Pausing:
        if isinstance(pausing, HotSwitch):
            self._switch = pausing
        self._pausing = pausing
        self._switching = self._start(self._run(pausing))
        return pausing

    async def _run(self, switch: HotSwitch | Maintenance | Growth) -> None:
        """Runs a hot switch or a maintenance.

        Its failure is answered after the report of the fault, by which the control plane knows what has failed.
        """
        failure = await switch.run()
        self._switching = None
        if self._alone is None:
            self._look_for_faults()
        if failure:
            self._recovery_now().faults.tell(suspected=min(self._membership.members))
            switch.fail(failure)

    def _active(self) -> HotSwitch | Maintenance | Growth | None:
        return self._pausing if self._switching is not None and not self._switching.done() else None

    def _drop(self) -> HotSwitch | Maintenance | Growth | None:
        switch = self._active()
        if switch is not None and self._switching is not None:
            self._switching.cancel()
            self._switching = None
        return switch

    def _give_way(self, reason: str) -> None:
        """Ends the current hot switch or maintenance, and releases its backups. The recovery that follows cannot use them."""
        if isinstance(switch := self._drop(), Maintenance):
            switch.give_way(reason)
        elif switch is not None:
            self._gave_way = True
            self._means.pods.forget_standbys()
            if switch.paused:
                switch.give_way(reason)
            else:
                switch.stop(reason)
            self._look_for_faults()

    def _start(self, procedure: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(procedure)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("procedure failed", exc_info=error)
