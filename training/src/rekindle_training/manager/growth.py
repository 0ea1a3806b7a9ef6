"""Return of missing ranks: new processes take their ranks back from those that carry their shares. Started by the coordinator.

Training goes on until all new processes are loaded. Then it pauses at a step boundary, the new processes take the state of
replicas, and all go on together. If that fails, training goes on without them, as before.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rekindle_training.manager import procedures
from rekindle_training.manager.hot_switch import Means
from rekindle_training.manager.membership import Members
from rekindle_training.manager.procedures import NoReplica, Plan, Standstill, TrainingEnds
from rekindle_training.manager.rank_process import RankLost, RankProcess, RebuildFailed, StepFailed
from rekindle_training.manager.repair import START_SECONDS, Repair
from rekindle_training.manager.replacements import CannotRepair, Nobody
from rekindle_training.manager.reports import FAILED, RECOVERED, UPGRADE
from rekindle_training.manager.team import replicas, sent, with_

log = logging.getLogger(__name__)


class Growth:
    """Return of the ranks of some pods."""

    def __init__(self, ranks: frozenset[int], attempt: str, means: Means, acquainted: Callable[[], Awaitable[object]]) -> None:
        """Args:
        acquainted: returns when this manager has met all live ranks.
        """
        self.ranks = ranks
        self._attempt, self._means, self._acquainted = attempt, means, acquainted
        self._membership = means.membership
        self.paused = False
        self._rebuilds = False
        """True while the new processes join. Ranks that fail or are lost then are handled here."""
        self._new: Members = {}
        self._before = means.membership.carriers

    def bears(self, process: RankProcess) -> bool:
        """Returns whether the loss of a member is not, or not yet, a fault."""
        return self._rebuilds

    async def run(self) -> str:
        """Runs the return. Returns why training stands and has to be recovered. Empty: training goes on."""
        await self._acquainted()
        if present := sorted(self.ranks & self._membership.present):
            if len(present) == len(self.ranks):
                self._report(RECOVERED, "these ranks are there already")
            else:
                self._report(FAILED, f"rank {present[0]} is not missing")
            return ""
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._membership.until(self._loaded)
        except TimeoutError:
            self.stop(f"no processes came for ranks {sorted(self.ranks)} within {START_SECONDS:g} s")
            return ""
        try:
            standstill = await procedures.pause(self._membership)
        except TrainingEnds as error:
            self.stop(str(error))
            return ""
        except (RankLost, TimeoutError) as error:
            self.stop(f"training could not pause: {error}")
            return ""
        self.paused = True
        return await self._carry_out(standstill)

    def stop(self, reason: str) -> None:
        """Ends the return: training goes on as before."""
        log.info("return of ranks stopped", extra={"reason": reason})
        procedures.release(self._membership)
        self._report(FAILED, reason)

    def fail(self, reason: str) -> None:
        """Reports that the return failed. Training stands and is recovered."""
        self._report(FAILED, reason)

    def give_way(self, reason: str) -> None:
        """Ends the return in favour of a recovery."""
        log.info("return of ranks preempted", extra={"reason": reason})
        self._report(FAILED, reason)

    def _report(self, code: int, info: str) -> None:
        self._means.reports.status(code, info, UPGRADE, self._attempt)

    @property
    def _there(self) -> Members:
        """Processes that wait for the missing ranks, by rank."""
        waiting = {**self._membership.starting, **self._membership.backups}
        return {rank: process for rank, process in waiting.items() if rank in self.ranks}

    def _loaded(self) -> bool:
        """Returns whether all new processes are loaded and training can pause. An earlier manager may have begun to pause it."""
        membership = self._membership
        can_pause = membership.training or (membership.complete and any(one.paused for one in membership.members.values()))
        return can_pause and self._there.keys() == self.ranks

    async def _carry_out(self, standstill: Standstill) -> str:
        self._rebuilds = True
        try:
            failure = await self._joined(standstill)
            if not failure:
                self._report(RECOVERED, f"training goes on after step {standstill.step}, with {self._size} ranks")
                return ""
            step = await self._without(failure)
        except CannotRepair as error:
            return str(error)
        except Exception as error:
            log.exception("return of ranks failed")  # no rank waits for ever
            return f"{type(error).__name__}: {error}"
        self._report(FAILED, f"{failure}; training goes on after step {step}, with {self._size} ranks")
        return ""

    @property
    def _size(self) -> str:
        return f"{len(self._membership.present)} of {self._membership.world_size}"

    async def _joined(self, standstill: Standstill) -> str:
        """Lets the new processes join. Returns why this failed. Empty: a step was completed with them."""
        membership, limit = self._membership, self._means.rebuild_timeout
        self._before, self._new = membership.carriers, self._there
        if self._new.keys() != self.ranks:
            return "a new process died"
        try:
            plan = self._plan(standstill)
            async with asyncio.timeout(limit):
                await procedures.rebuild(membership, await self._means.store, {**membership.members, **self._new}, plan, limit)
        except (NoReplica, CannotRepair, RankLost, RebuildFailed, StepFailed) as error:
            return str(error)
        except TimeoutError:
            return f"no step was completed within {limit:g} s"
        return ""

    def _plan(self, standstill: Standstill) -> Plan:
        transfers = procedures.sources(sorted(self._membership.present), self.ranks, standstill.replicas)
        then = with_(self._before, self.ranks, replicas(self._membership.world_size, standstill.replicas.values()))
        has: dict[int, set[int]] = {rank: set() for rank in self.ranks | self._membership.present}
        for share, carrier in enumerate(self._before):
            has[carrier].add(share)
        shares = sent(then, self._before, has, standstill.own_states)
        return Plan(standstill.step, transfers, carriers=then, shares=shares)

    async def _without(self, reason: str) -> int:
        """Lets training go on as before, and returns the step after which it does. Raises CannotRepair if it cannot."""
        membership = self._membership
        for process in self._new.values():
            self._means.pods.release(reason, process.identity)
        membership.dismiss(self._new.values(), reason)
        membership.leave_out(self.ranks, self._before)
        return await Repair(membership, await self._means.store, Nobody(membership), self._means.rebuild_timeout).run()
