"""One pause of training for a maintenance, from the order to pause to the order to go on. Started by the conductor.

All ranks stand at one step boundary with the communicator that they have. What is ordered meanwhile is done one task after the
other. Where no order comes, training goes on by itself. What was answered is answered again to who asks again.
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
from rekindle_training.manager.reports import CONTINUE, FAILED, RECOVERED, STOPPED
from rekindle_training.manager.successors import CannotRepair, Nobody

log = logging.getLogger(__name__)

FAULT_FIRST = "a fault is being recovered"
"""What a switch, or a maintenance, that is ordered to go on is told."""
NOT_PAUSED = "training is not paused: pause_train comes first, and is answered"


class Task(Protocol):
    """What is done with the ranks while they stand."""

    @property
    def order(self) -> bytes:
        """As it came: the same one again is the same task."""

    @property
    def mends(self) -> bool:
        """Who is lost now, or fails, is its affair: it goes on without it or says what has failed."""

    async def run(self) -> None:
        """Raises CannotRepair where training cannot go on behind it."""

    def break_off(self, reason: str) -> None:
        """It is not done, or not to its end."""

    def answer(self, attempt: str) -> None:
        """Tells the control plane how it ended, as often as it is called."""


class Maintenance:
    """Of one attempt. `run` is the procedure; the other methods are the orders."""

    def __init__(self, attempt: str, means: Means, acquainted: Callable[[], Awaitable[object]]) -> None:
        """`acquainted` returns when this manager has met all that live."""
        self.attempt = attempt
        self._means, self._acquainted = means, acquainted
        self._roster = means.roster
        self._asked = self._told_to_go_on = False
        self._mends = False
        self._stopped: tuple[int, str] | None = None
        """Code and words, as soon as there are some."""
        self._went_on: tuple[int, str] | None = None
        self._task: Task | None = None
        """The latest one."""
        self._unanswered: list[Task] = []
        self._orders: asyncio.Queue[Task | None] = asyncio.Queue()
        """None: to go on."""

    @property
    def paused(self) -> bool:
        return self._stopped is not None and not self._stopped[0] and self._went_on is None

    @property
    def over(self) -> bool:
        """Training goes on, or is being recovered."""
        return self._went_on is not None

    @property
    def busy(self) -> bool:
        """With more than standing still."""
        return not self.over and not (self.paused and not self._unanswered and not self._told_to_go_on)

    def bears(self, _: RankProcess) -> bool:
        """Whether the loss of a member is no fault, or not yet."""
        return self._mends or any(task.mends for task in self._unanswered)

    # Orders.

    def pause(self) -> None:
        self._asked = True
        if self._stopped is not None:
            self._means.reports.stop_complete(*self._stopped, {})

    def carry_out(self, task: Task) -> None:
        if self._task is not None and self._task.order == task.order:
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

    def refuse(self, reason: str) -> None:
        """Training goes on as it is."""
        self._end(RECOVERED, f"training goes on: {reason}", reason)

    def stop(self, reason: str) -> None:
        """Training goes on from here."""
        log.info("the maintenance ends", extra={"reason": reason})
        self.refuse(reason)
        procedures.release(self._roster)

    def give_way(self, reason: str) -> None:
        """To a recovery. What was ordered is answered behind the report of the fault."""
        log.info("the maintenance gives way", extra={"reason": reason})
        asyncio.get_running_loop().call_later(2 * MERGE_SECONDS, self.fail, reason)

    def fail(self, reason: str) -> None:
        """Training stands, and is recovered."""
        self._end(FAILED, reason if reason == FAULT_FIRST else f"{FAULT_FIRST}: {reason}", reason)

    def _end(self, code: int, info: str, reason: str) -> None:
        """From here on nobody is paused, and the order to go on is answered with this."""
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
        """Why training stands behind it, and has to be recovered; empty: it goes on."""
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
        self._stopped = (STOPPED, f"training stands behind step {step}")
        if self._asked:
            self.pause()
        return await self._stand(step)

    def _problem(self) -> str:
        roster = self._roster
        if not roster.generation or roster.vacant:
            return "not all ranks are there"
        if any(member.finished for member in roster.members.values()):
            return "training is complete on a rank"
        return "" if roster.training or roster.took_over else "no step is completed yet"

    async def _pause(self) -> int:
        """Returns the step behind which all stand. Where a manager died in a rebuild they may belong to two generations, or to
        none."""
        roster = self._roster
        if not roster.torn and not any(member.stranded for member in roster.members.values()):
            return (await procedures.pause(roster, self.attempt)).step
        self._mends = True
        try:
            return await Repair(roster, await self._means.store, Nobody(roster), self._means.rebuild_timeout, stands=True).run()
        finally:
            self._mends = False

    async def _stand(self, step: int) -> str:
        try:
            while (task := await self._ordered()) is not None:
                await task.run()
                self._unanswered.remove(task)
                task.answer(self.attempt)
            if not self._told_to_go_on:
                self.stop(f"no order came within {self._means.order_timeout:g} s")
                return ""
            await procedures.resume(self._roster)
        except (CannotRepair, RankLost, RebuildFailed, StepFailed) as error:
            return str(error)
        except Exception as error:
            log.exception("a maintenance failed")  # no rank waits for ever
            return f"{type(error).__name__}: {error}"
        self._end(RECOVERED, f"training goes on behind step {step}", "it was ordered to go on")
        return ""

    async def _ordered(self) -> Task | None:
        try:
            async with asyncio.timeout(self._means.order_timeout):
                return await self._orders.get()
        except TimeoutError:
            return None
