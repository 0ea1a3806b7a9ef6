"""Base class of modes that stop training in between: how they end, and how they handle a cancellation."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from temporalio import workflow

from rekindle.model.incident import ModeRequest
from rekindle.model.mode import Outcome
from rekindle.model.verdict import Verdict
from workflows.front import front
from workflows.mode import Ends, ModeWorkflow, shielded


class NonInterruptible(ModeWorkflow, ABC):
    _cancelled_late = False

    def has_been_cancelled(self) -> bool:
        """Returns whether a cancellation arrived when training may have stopped already. Training must be resumed first."""
        return self._cancelled_late

    @abstractmethod
    def recovered(self, reason: str) -> Verdict:
        """Returns the verdict of a procedure that ended with this text."""

    def ended(self, verdict: Verdict) -> Verdict:
        """Returns the verdict with additional information of the mode, regardless of its outcome."""
        return verdict

    async def conclude(self, request: ModeRequest, procedure: Callable[[], Awaitable[str]]) -> Verdict:
        """Runs a procedure and returns its verdict. If a client started the mode by itself, returns the verdict of the real mode.

        Args:
            procedure: returns in words what was done.
        """
        if self._context is None:
            return await front(self.MODE, request)
        work, was_cancelled = asyncio.create_task(self._verdict_of(procedure)), False
        try:
            verdict = await asyncio.shield(work)
        except asyncio.CancelledError:
            was_cancelled = True
            verdict = await self._cancelled(work)
        await shielded(self.heard())
        await shielded(workflow.wait_condition(workflow.all_handlers_finished))
        return await self.close(self.ended(verdict), cancelled=was_cancelled)

    async def _verdict_of(self, procedure: Callable[[], Awaitable[str]]) -> Verdict:
        try:
            return self.recovered(await procedure())
        except Ends as end:
            await self.compensate()
            return Verdict(mode=self.MODE, outcome=end.outcome, reason=end.reason, training=end.training, passing=end.passing)

    async def _cancelled(self, work: asyncio.Task[Verdict]) -> Verdict:
        """Handles a cancellation.

        The recovery continues to its end if training was stopped, also by an earlier mode, or if only this mode still knows the
        faults.
        """
        if self.touched or self.situation.stopped or work.done() or await shielded(self.is_orphaned()):
            self._cancelled_late = True
            return await work
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        reason = "cancelled by request, before training was stopped"
        return Verdict(mode=self.MODE, outcome=Outcome.CANCELLED, reason=reason)
