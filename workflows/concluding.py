"""Modes that leave training standing in their middle: their end, and what a cancellation does to them."""

import asyncio
from collections.abc import Awaitable, Callable

from temporalio import workflow

from rekindle.model.recovery import ModeRequest, Outcome, Verdict
from workflows.front import front
from workflows.mode import Ends, ModeWorkflow, shielded


class Concluding(ModeWorkflow):
    _cancelled_late = False

    def has_been_cancelled(self) -> bool:
        """Tells whether a cancellation came when training may have stopped already: training has to go on first."""
        return self._cancelled_late

    def recovered(self, reason: str) -> Verdict:
        raise NotImplementedError

    def ended(self, verdict: Verdict) -> Verdict:
        """However it ended, with what the mode has to say besides."""
        return verdict

    async def conclude(self, request: ModeRequest, procedure: Callable[[], Awaitable[str]]) -> Verdict:
        """Runs a procedure to its verdict; a client that started the mode by itself gets that of the real one.

        Args:
            procedure: answers in words what was done.
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
        """Training that was stopped would stand, also where an earlier mode has stopped it, and so would training whose faults
        nobody knows any more but this mode: the recovery goes to its end."""
        if self.touched or self.situation.stopped or work.done() or await shielded(self.is_orphaned()):
            self._cancelled_late = True
            return await work
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        reason = "cancelled by request, before training was stopped"
        return Verdict(mode=self.MODE, outcome=Outcome.CANCELLED, reason=reason)
