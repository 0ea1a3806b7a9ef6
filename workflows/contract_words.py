"""Writes what MindCluster's contract says of a job, in the background: no recovery waits for it.

Used by `TrainingJob` and its incidents, for jobs whose components read it. The newest words are written, one write after the
other. The last ones of an incident remove what holds only during a recovery, and are repeated until that is done, also by a later
workflow of the job.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityHandle

from rekindle.model.contract import Announced, Words, WordsWritten
from rekindle.model.mode import Mode
from rekindle.model.situation import Situation
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import contract_words as policy
from workflows import steps
from workflows.job_context import JobContext

SWEPT_AGAIN = timedelta(minutes=10)
"""Pause after a removal that has failed. The activity has been retried before."""


class ContractWords:
    def __init__(self, known: JobContext, soon: Callable[[Coroutine[object, object, None]], None]) -> None:
        """Args:
        soon: starts writing in the background.
        """
        self._known, self._soon = known, soon
        self._words = policy.OVER
        self._writing = asyncio.Lock()
        self._is_due = False
        self._write_in_flight: ActivityHandle[WordsWritten] | None = None
        self._again_at: datetime | None = None

    # ---- moments of an incident

    def incident_begins(self) -> None:
        """Forgets the words of the last incident. If they are still being written, that ends: a restart may set `pause` now."""
        self._words = Words()
        if self._write_in_flight:
            self._write_in_flight.cancel()

    def mode_begins(self, mode: Mode, situation: Situation) -> None:
        self._say(policy.begins(self._words, mode, self._known.state, situation))

    def announced(self, told: Announced) -> None:
        self._say(policy.announced(self._words, told))

    def mode_ended(self, verdict: Verdict, situation: Situation) -> None:
        self._say(policy.ended(self._words, verdict, situation.ordered))

    def incident_is_over(self) -> None:
        self._say(policy.over(self._words))

    # ---- between incidents

    def sweep(self) -> None:
        """Removes what an earlier incident, or one of an earlier workflow, has left. Does nothing if nothing is left."""
        state, now = self._known.state, workflow.now()
        is_busy = self._is_due or self._writing.locked() or bool(state.lost_recovery or state.ended)
        if state.unswept and not is_busy and (self._again_at is None or self._again_at <= now):
            self._again_at = now + SWEPT_AGAIN
            self._say(policy.OVER)

    # ---- writing

    def _say(self, words: Words) -> None:
        if not policy.are_used(self._known.state.job) or words == self._words == Words():
            return
        self._words = words
        self._known.state = self._known.state.with_(unswept=True)
        if not self._is_due:
            self._is_due = True
            self._soon(self._write())

    async def _write(self) -> None:
        async with self._writing:
            self._is_due = False
            words = self._words
            written = await self._written(words)
        if written is None:
            return
        if words.over and words is self._words:
            self._known.state = self._known.state.with_(unswept=False)
        elif not self._words.over and self._words.restarts is None and written.restarts is not None:
            self._words = self._words.model_copy(update={"restarts": written.restarts})

    async def _written(self, words: Words) -> WordsWritten | None:
        """Writes these words. Returns None if they were not written: newer ones are due, or the cluster refuses them.

        A write that newer words end has really ended then, so that it cannot follow theirs.
        """
        writing = self._write_in_flight = steps.write_words(self._known.state.job.id, words)
        await workflow.wait_condition(lambda: writing.done() or self._is_due)
        if not writing.done():
            writing.cancel()
        try:
            return await writing
        except ActivityError as error:
            workflow.logger.info("words of the contract not written", extra={"error": str(error.cause)})
            return None
        finally:
            self._write_in_flight = None
