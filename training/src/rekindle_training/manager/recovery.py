"""Recovery under the orders of the control plane. Started by the coordinator, one at a time.

It begins with a fault that this manager noticed or that was reported to it, and ends with the next completed step. Training
stands from the first moment. Each order is carried out from the current state of ranks and launchers. So a manager that follows
one that died carries out the same orders, and an order that arrives meanwhile replaces the one before.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from rekindle_training.manager.faults import NAMED_SECONDS, Faults
from rekindle_training.manager.hot_switch import Means
from rekindle_training.manager.last_checkpoint import Written, plan_of_save, save
from rekindle_training.manager.pod_restart import PodRestart
from rekindle_training.manager.rank_process import RankProcess
from rekindle_training.manager.repair import Repair, can_go_back, plan, refuse_final, stand
from rekindle_training.manager.replacements import CannotRepair, Elsewhere, InPlace, Nobody, Without
from rekindle_training.manager.reports import (
    DOWNGRADE,
    DUMP,
    EXIT,
    FAILED,
    RECOVER,
    RECOVERED,
    RETRY,
    RETRY_FAILED,
    STOPPED,
)
from rekindle_training.manager.team import replicas
from rekindle_wire.training_pb2 import Standing

log = logging.getLogger(__name__)

Standings = dict[int, Standing]
"""Position of each rank, by rank."""

ORDERED_SECONDS = 900.0
"""Seconds to wait for the next order of a control plane that has sent one.

It may take long to find nodes. After that it counts as away.
"""
KEEP_SECONDS = 30.0
"""Seconds between two messages to the launchers that no decision is made yet. A launcher waits for 120 s."""


class Kind(Enum):
    STOP = "stop training"
    ANNOUNCE = "say what can be done about these ranks"
    RETRY = "repeat the step"
    IN_PLACE = "replace ranks inside their pods"
    ELSEWHERE = "replace pods by backups"
    DUMP = "write a last checkpoint"
    AGAIN = "replace pods, and start all other processes again"
    SMALLER = "go on without some pods"


REPLACING = (Kind.ELSEWHERE, Kind.AGAIN)
"""Orders that name pods, whose ranks other pods take."""
OF_PODS = (*REPLACING, Kind.SMALLER)
"""Orders that name pods and not ranks."""
STRATEGY = {Kind.RETRY: RETRY, Kind.SMALLER: DOWNGRADE}
"""Strategies of the orders that are not answered as `recover`."""


@dataclass(frozen=True)
class Order:
    kind: Kind
    attempt: str
    ranks: frozenset[int] = frozenset()
    """Faulty ranks, or the ranks of the pods that are to be replaced."""
    standbys: Mapping[str, int] = field(default_factory=dict)
    """Pod ranks that standby pods take, by the uids of these pods."""
    problem: str = ""
    """Reason why the order cannot be carried out as it was written. Empty: there is none."""


class Recovery:
    def __init__(self, means: Means, acquainted: Callable[[], Awaitable[object]], alone_behind: int | None) -> None:
        """Args:
        acquainted: returns when this manager has met all live ranks.
        alone_behind: the step after which training went on without an order after an earlier fault, if it did.
        """
        self._means, self._acquainted, self._alone_behind = means, acquainted, alone_behind
        self.faults = Faults(means.reports)
        self.by_itself = False
        """True if training went on without an order."""
        self._orders: deque[Order] = deque()
        self._arrived = asyncio.Event()
        self._carried: Order | None = None
        """Order that is being carried out and is not answered yet."""
        self._repairs = self._from_snapshots = False
        """True while ranks are being repaired, and if the last repair took them back to snapshots in memory."""
        self._is_well = False
        """True if training itself is well: nothing failed, or only the storage of its checkpoints."""
        self._patience = means.order_timeout
        self._written: Written | None = None
        """Last checkpoint that was written for a restart of the job. None: none was, or training went on."""
        self._result: Callable[[], None] | None = None
        """Report of the order with which training went on. None: it went on without an order."""

    def order(self, order: Order) -> None:
        self._orders.append(order)
        self._arrived.set()

    def left(self) -> list[Order]:
        """Returns the orders that arrived at the moment when training went on."""
        return list(self._orders)

    def refuse_all(self, reason: str) -> None:
        """Answers all open orders with an error, because they cannot be carried out any more."""
        orders, self._carried, self._orders = [*filter(None, [self._carried]), *self._orders], None, deque()
        for order in orders:
            self._answer_with(order, reason)

    def _answer_with(self, order: Order, failure: str) -> None:
        reports = self._means.reports
        match order.kind:
            case Kind.STOP:
                reports.stop_complete(FAILED, failure, self.faults.known)
            case Kind.ANNOUNCE:
                log.warning("strategies withdrawn", extra={"reason": failure})
                reports.strategies(EXIT, faults=self.faults.known)
            case Kind.RETRY:
                reports.status(RETRY_FAILED, failure, RETRY, order.attempt)
            case Kind.DUMP:
                reports.status(FAILED, failure, DUMP, order.attempt)
            case Kind.AGAIN:
                reports.status(FAILED, failure, EXIT, order.attempt)
            case Kind.SMALLER:
                reports.status(FAILED, failure, DOWNGRADE, order.attempt)
            case _:
                reports.status(FAILED, failure, RECOVER, order.attempt)

    def no_fault(self) -> None:
        """Notes that nothing failed: this manager asks all ranks where they stand."""
        self._is_well = True

    def failed(self, process: RankProcess) -> None:
        """Notes that a rank's step failed, or that it lost the others. A repair that is going on repeats that step as well."""
        if process.standing is None or self._repairs or not (process.standing.reason or process.stood_unasked):
            return
        if process.standing.fault == Standing.PROTECTION:
            self._is_well = True
        else:
            self.faults.failed(process.rank, process.standing)

    async def run(self) -> int:
        """Runs the recovery. Returns the step after which training goes on.

        `tell` reports it, when another order can be carried out.

        Raises:
            CannotRepair: no order came, and this manager cannot repair training itself.
        """
        naming, keeping = asyncio.ensure_future(self._blame()), asyncio.ensure_future(self._keep())
        work: asyncio.Future[int | None] = asyncio.ensure_future(self._stop_first())
        try:
            while (behind := await self._until_idle_or_ordered(work)) is None:
                if self._orders:
                    self._patience = ORDERED_SECONDS
                    await _cancelled(work)
                    self._carried = self._orders.popleft()
                    work = asyncio.ensure_future(self._carry_out(self._carried))
                else:
                    work = asyncio.ensure_future(self._wait_for_orders())
            return behind
        finally:
            await _cancelled(naming, keeping, work)

    def tell(self) -> None:
        """Reports the result to the control plane, whose next order may arrive at once."""
        if self._result is not None:
            self._result()

    async def _until_idle_or_ordered(self, work: "asyncio.Future[int | None]") -> int | None:
        """Waits until `work` is done or replaced. Returns its result, or None if there is something else to do.

        Orders of one attempt are carried out one after the other. An order of another attempt replaces the current one.
        """
        while not work.done() and not self._is_ordered_something_else():
            arrived: asyncio.Future[Any] = asyncio.ensure_future(self._arrived.wait())
            self._arrived.clear()
            try:
                await asyncio.wait((work, arrived), return_when=asyncio.FIRST_COMPLETED)
            finally:
                arrived.cancel()
        if not work.done() or (work.exception() is not None and self._orders):
            return None
        return work.result()

    def _is_ordered_something_else(self) -> bool:
        return bool(self._orders) and (self._carried is None or self._orders[0].attempt != self._carried.attempt)

    # Before the first order.

    async def _stop_first(self) -> None:
        """Stops all ranks, so that none waits in a collective for a rank that is gone."""
        if self._means.membership.generation and not self._finished():
            await stand(self._means.membership)

    async def _blame(self) -> None:
        membership = self._means.membership
        await asyncio.sleep(NAMED_SECONDS)
        await self._acquainted()
        await membership.until(lambda: all(member.connected or member.lost for member in membership.members.values()))
        if not membership.vacant and not self._is_well:
            self.faults.blame_network()

    async def _keep(self) -> None:
        """Keeps pods in which a rank has ended waiting, from the first moment.

        Stopping ranks and creating pods may take long.
        """
        while True:
            self._means.pods.keep()
            await asyncio.sleep(KEEP_SECONDS)

    async def _wait_for_orders(self) -> int:
        """Waits while the control plane has to decide. When the time limit is over, this manager repairs training.

        If all ranks are well, there is no fault to report, and it repairs training at once.

        Returns:
            The step after which training went on.
        """
        await self._means.membership.until(lambda: self._means.membership.generation > 0)  # nothing is to be repaired before
        if self._is_well and not self.faults.known:
            try:
                behind = await self._repaired(Nobody(self._means.membership))
            except CannotRepair:
                self._blame_after_all()
            else:
                self.by_itself = self._alone_behind is not None
                return behind
        if not self._means.decides_without_orders:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(self._patience)
        if self._written is not None:
            raise CannotRepair(f"the state after step {self._written.step} is saved, and no order has followed")
        log.warning("order not received, manager repairs training by itself", extra={"waited": self._patience})
        behind = await self._repaired(InPlace(self._means.membership, self._means.pods))
        self.by_itself = True
        return behind

    def _blame_after_all(self) -> None:
        self._is_well = False
        for member in self._means.membership.members.values():
            self.failed(member)
        if not self._means.membership.vacant:
            self.faults.blame_network()

    # Orders.

    async def _carry_out(self, order: Order) -> int | None:
        """Carries out an order and answers it.

        Returns the step after which training goes on, or None if the next order is awaited.
        """
        await self._acquainted()
        try:
            if order.problem:
                raise CannotRepair(order.problem)
            if order.kind not in REPLACING:  # whose ranks may live
                self._means.membership.give_up(order.ranks)
            is_again = order.kind is Kind.AGAIN
            behind = await (self._begin_again(order) if is_again else self._do(order, await self._standing()))
        except CannotRepair as error:
            behind = None
            self._answer_with(order, str(error))
        except Exception as error:
            behind = None
            self._answer_with(order, f"{type(error).__name__}: {error}")
            log.exception("order failed")
        if behind is None:
            self._carried = None
        return behind

    async def _do(self, order: Order, standing: Standings) -> int | None:
        reports = self._means.reports
        if order.kind is Kind.SMALLER and (reason := fixed_size(standing)):
            raise CannotRepair(f"the number of ranks cannot change: {reason}")
        match order.kind:
            case Kind.STOP:
                reports.stop_complete(STOPPED, "training stands still", self.faults.known)
            case Kind.ANNOUNCE:
                reports.strategies(*self._offers(standing), EXIT, faults=self.faults.known)
            case Kind.DUMP:
                written = self._written = await save(self._means.membership, await self._means.store)
                reports.status(RECOVERED, f"{written}", DUMP, order.attempt)
            case _:
                behind = await self._repaired(self._successors(order))
                self._dismiss_others(order.ranks)
                info = f"training goes on after step {behind}"
                if self._from_snapshots:
                    info += ", from snapshots in memory"
                if order.kind is Kind.SMALLER:
                    info += f", with {len(self._means.membership.present)} of {self._means.membership.world_size} ranks"
                if self._alone_behind is not None:
                    info += f"; it had gone on by itself after step {self._alone_behind}: the control plane did not answer"
                self._result = partial(reports.status, RECOVERED, info, STRATEGY.get(order.kind, RECOVER), order.attempt)
                return behind
        return None

    async def _begin_again(self, order: Order) -> int:
        """Starts all processes of the pods that are left again, whatever they do, and lets them begin with those of new pods.

        Returns the step after which all of them go on.
        """
        means, self._repairs = self._means, True
        reported = means.reports.progressed.done()
        try:
            first = await PodRestart(means.membership, means.pods, order.ranks, order.attempt).run(
                await means.store, means.rebuild_timeout
            )
        finally:
            self._repairs = False
        self._dismiss_others(order.ranks)
        tell = means.reports.begin_again if reported else means.reports.progress  # a new manager knows one life of the ranks
        tell(first.step, first.steps_lost, means.membership.world_size)
        info = f"all other processes have started again in their pods, and training goes on after step {first.step - 1}"
        self._result = partial(means.reports.status, RECOVERED, info, EXIT, order.attempt)
        return first.step - 1

    def _offers(self, standing: Standings) -> list[str]:
        """Returns the strategies that can be carried out now. Any live rank can repeat the step, announced as faulty or not."""
        membership, vacant = self._means.membership, self._means.membership.vacant
        positions = {**standing, **{rank: Standing(place=Standing.LOST) for rank in vacant}}
        goes_back = not membership.missing and can_go_back(positions, vacant)
        problem = _problem(lambda: refuse_final(membership)) or ("" if goes_back else _problem(lambda: plan(positions)))
        if problem:
            log.warning("repair not offered", extra={"reason": problem})
            return []
        repairs = [RECOVER] if vacant else [RETRY, RECOVER]
        if reason := fixed_size(standing):
            log.info("smaller size not offered", extra={"reason": reason})
        elif len(membership.present) > self._ranks_that_leave(standing):
            repairs.append(DOWNGRADE)
        if reason := _problem(lambda: plan_of_save(membership, standing)):
            log.info("last checkpoint not offered", extra={"reason": reason})
            return repairs
        return [*repairs, DUMP]

    def _ranks_that_leave(self, standing: Standings) -> int:
        """Returns the least number of ranks that leave together: those of a pod, or those of a replica."""
        whole = replicas(self._means.membership.world_size, (at.replicas for at in standing.values()))
        return max(self._means.ranks_per_pod, len(whole[0]))

    def _dismiss_others(self, ranks: frozenset[int]) -> None:
        """Dismisses processes of a rank that a backup has taken: those started in its pod, or in a further backup pod."""
        membership = self._means.membership
        waiting = [*membership.starting.values(), *membership.all_backups]
        membership.dismiss([process for process in waiting if process.rank in ranks], "another process has this rank")

    def _successors(self, order: Order) -> Nobody:
        match order.kind:
            case Kind.IN_PLACE:
                return InPlace(self._means.membership, self._means.pods, order.ranks)
            case Kind.ELSEWHERE:
                return Elsewhere(self._means.membership, self._means.pods, order.ranks)
            case Kind.SMALLER:
                return Without(self._means.membership, order.ranks)
            case _:
                return Nobody(self._means.membership)

    async def _repaired(self, successors: Nobody) -> int:
        means, self._repairs = self._means, True
        try:
            repair = Repair(means.membership, await means.store, successors, means.rebuild_timeout)
            behind = await repair.run()
            self._from_snapshots = repair.from_snapshots
            return behind
        finally:
            self._repairs = False

    async def _standing(self) -> Standings:
        """Returns the positions of all live ranks.

        Raises:
            CannotRepair: there is no rank whose position could be asked.
        """
        if not self._means.membership.generation:
            raise CannotRepair("training has not begun")
        try:
            return await stand(self._means.membership)
        except TimeoutError:
            raise CannotRepair("not all ranks say where they stand") from None

    def _finished(self) -> bool:
        return any(member.finished for member in self._means.membership.members.values())


def fixed_size(standing: Standings) -> str:
    """Returns why training cannot go on with fewer ranks. Empty: it can."""
    if old := sorted(rank for rank, at in standing.items() if not at.HasField("fixed_size")):
        return f"rank {old[0]} is not in its loop yet, or of an older release"
    return next((f"rank {rank}: {at.fixed_size}" for rank, at in sorted(standing.items()) if at.fixed_size), "")


def _problem(planning: Callable[[], object]) -> str:
    """Returns why a plan cannot be made. Empty: it can."""
    try:
        planning()
    except CannotRepair as error:
        return str(error)
    return ""


async def _cancelled(*works: "asyncio.Future[Any]") -> None:
    """Cancels all works and waits for them. All are cancelled first, in case the caller itself is cancelled meanwhile."""
    for work in works:
        work.cancel()
    await asyncio.wait(works)
