"""One pause of training for a maintenance, from the order to pause to the order to go on. Started by the coordinator.

All ranks stand at one step boundary and keep their communicator. The tasks that are ordered meanwhile run one after the
other. If no order arrives, training goes on by itself. A repeated order gets the same answer again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from rekindle_training.manager import procedures
from rekindle_training.manager.faults import MERGE_SECONDS
from rekindle_training.manager.hot_switch import Means
from rekindle_training.manager.procedures import TrainingEnds
from rekindle_training.manager.rank_process import RankLost, RankProcess, RebuildFailed, StepFailed
from rekindle_training.manager.repair import Repair
from rekindle_training.manager.replacements import CannotRepair, Nobody
from rekindle_training.manager.reports import CONTINUE, FAILED, RECOVERED, STOPPED

log = logging.getLogger(__name__)

FAULT_FIRST = "a fault is being recovered"
"""Reason that is reported when a hot switch or a maintenance is to go on during a recovery."""
NOT_PAUSED = "training is not paused: pause_train comes first, and is answered"


class Task(Protocol):
    """Task that runs while the ranks stand."""

    @property
    def order(self) -> bytes:
        """Serialized order. The same order again means the same task."""

    @property
    def mends(self) -> bool:
        """True while the task itself handles ranks that fail or are lost: it goes on without them, or reports the failure."""

    async def run(self) -> None:
        """Runs the task. Raises CannotRepair if training cannot go on after it."""

    def break_off(self, reason: str) -> None:
        """Records that the task is not carried out, or not completely."""

    def answer(self, attempt: str) -> None:
        """Reports the result to the control plane. It can be called several times."""


class Maintenance:
    """Maintenance of one attempt. `run` is the procedure; the other methods are the orders."""

    def __init__(self, attempt: str, means: Means, acquainted: Callable[[], Awaitable[object]]) -> None:
        """Args:
        acquainted: returns when this manager has met all live ranks.
        """
        self.attempt = attempt
        self._means, self._acquainted = means, acquainted
        self._membership = means.membership
        self._asked = self._told_to_go_on = False
        self._mends = False
        self._stopped: tuple[int, str] | None = None
        """Answer to the order to pause: code and reason. None: there is no answer yet."""
        self._went_on: tuple[int, str] | None = None
        self._task: Task | None = None
        """Latest task."""
        self._unanswered: list[Task] = []
        self._orders: asyncio.Queue[Task | None] = asyncio.Queue()
        """Orders that are not carried out yet. None in the queue is the order to go on."""
        self._patience: asyncio.Timeout | None = None
        """Time limit of the wait for the next order. None: no order is awaited."""

    @property
    def paused(self) -> bool:
        return self._stopped is not None and not self._stopped[0] and self._went_on is None

    @property
    def over(self) -> bool:
        """Returns whether the maintenance has ended: training goes on, or is being recovered."""
        return self._went_on is not None

    @property
    def busy(self) -> bool:
        """Returns whether the maintenance is doing more than standing still: it is pausing, runs a task, or is about to go on."""
        return not self.over and not (self.paused and not self._unanswered and not self._told_to_go_on)

    def bears(self, _: RankProcess) -> bool:
        """Returns whether the loss of a member is not, or not yet, a fault."""
        return self._mends or any(task.mends for task in self._unanswered)

    # Orders.

    def pause(self) -> None:
        self._asked = True
        self._heard()
        if self._stopped is not None:
            self._means.reports.stop_complete(*self._stopped, {})

    def carry_out(self, task: Task) -> None:
        if self._task is not None and self._task.order == task.order:
            self._heard()
            if self._task not in self._unanswered:
                self._task.answer(self.attempt)
        elif self.over or self._told_to_go_on:
            task.break_off(NOT_PAUSED)
            task.answer(self.attempt)
        else:
            self._task = task
            self._unanswered.append(task)
            self._orders.put_nowait(task)

    def go_on(self) -> None:
        if self._went_on is not None:
            self._means.reports.status(*self._went_on, CONTINUE, self.attempt)
        elif not self._told_to_go_on:
            self._orders.put_nowait(None)
        self._told_to_go_on = True

    def _heard(self) -> None:
        """Restarts the time limit, because a control plane that repeats an order is still there."""
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time() + self._means.order_timeout)

    def refuse(self, reason: str) -> None:
        """Ends the maintenance before it has paused training, which goes on."""
        self._end(RECOVERED, f"training goes on: {reason}", reason)

    def stop(self, reason: str) -> None:
        """Ends the maintenance and releases the ranks: training goes on."""
        log.info("maintenance ended", extra={"reason": reason})
        self.refuse(reason)
        procedures.release(self._membership)

    def give_way(self, reason: str) -> None:
        """Ends the maintenance in favour of a recovery. Its orders are answered after the fault was reported."""
        log.info("maintenance preempted", extra={"reason": reason})
        asyncio.get_running_loop().call_later(2 * MERGE_SECONDS, self.fail, reason)

    def fail(self, reason: str) -> None:
        """Ends the maintenance as failed. Training stands and is recovered."""
        self._end(FAILED, reason if reason == FAULT_FIRST else f"{FAULT_FIRST}: {reason}", reason)

    def _end(self, code: int, info: str, reason: str) -> None:
        """Ends the maintenance: no rank counts as paused any more, and the order to go on gets this answer."""
        was_paused, self._went_on = self._stopped is not None, (code, info)
        self._stopped = (FAILED, reason)
        if self._asked and not was_paused:
            self.pause()
        unanswered, self._unanswered = self._unanswered, []
        for task in unanswered:
            task.break_off(reason)
            task.answer(self.attempt)
        if self._told_to_go_on:
            self.go_on()

    # The procedure.

    async def run(self) -> str:
        """Runs the maintenance. Returns why training stands and has to be recovered. Empty: training goes on."""
        await self._acquainted()
        if problem := self._problem():
            self.refuse(problem)
            return ""
        try:
            step = await self._pause()
        except TrainingEnds as error:
            self.stop(str(error))
            return ""
        except (RankLost, StepFailed, TimeoutError) as error:
            self.stop(f"training could not pause: {error}")
            return ""
        except CannotRepair as error:
            return str(error)
        self._stopped = (STOPPED, f"training stands after step {step}")
        if self._asked:
            self.pause()
        return await self._stand(step)

    def _problem(self) -> str:
        membership = self._membership
        if not membership.generation or membership.vacant:
            return "not all ranks are there"
        if any(member.finished for member in membership.members.values()):
            return "training is complete on a rank"
        return "" if membership.training or membership.took_over else "no step is completed yet"

    async def _pause(self) -> int:
        """Pauses all ranks, and returns the step after which they stand.

        If a manager died in a rebuild, the ranks may belong to two generations or to none. Then they are taken into a new
        one.
        """
        membership = self._membership
        if not membership.torn and not any(member.stranded for member in membership.members.values()):
            return (await procedures.pause(membership, self.attempt)).step
        self._mends = True
        try:
            return await Repair(
                membership, await self._means.store, Nobody(membership), self._means.rebuild_timeout, stands=True
            ).run()
        finally:
            self._mends = False

    async def _stand(self, step: int) -> str:
        try:
            while (task := await self._ordered()) is not None:
                await task.run()
                self._unanswered.remove(task)
                task.answer(self.attempt)
                if failure := self._lost_meanwhile():
                    return failure
            if not self._told_to_go_on:
                self.stop(f"no order came within {self._means.order_timeout:g} s")
                return ""
            await procedures.resume(self._membership)
        except (CannotRepair, RankLost, RebuildFailed, StepFailed) as error:
            return str(error)
        except Exception as error:
            log.exception("maintenance failed")  # no rank waits for ever
            return f"{type(error).__name__}: {error}"
        self._end(RECOVERED, f"training goes on after step {step}", "it was ordered to go on")
        return ""

    def _lost_meanwhile(self) -> str:
        """Returns which rank failed or was lost in a task that handled such losses and did not need that rank. Empty: none."""
        if gone := self._membership.vacant:
            return f"rank {min(gone)} is gone"
        return (
            "" if (standing := self._membership.standing) is None else f"rank {standing.rank} stands and waits for another group"
        )

    async def _ordered(self) -> Task | None:
        try:
            async with asyncio.timeout(self._means.order_timeout) as self._patience:
                return await self._orders.get()
        except TimeoutError:
            return None
        finally:
            self._patience = None
