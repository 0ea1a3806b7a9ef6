"""Base class of all modes: dialogue with the training side, handling of faults, phases as people read them, and undo.

A mode's workflow is a child of `TrainingJob` and derives from `ModeWorkflow`; the procedure itself is in the mode's own file.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from rekindle.ids import ErrorTypes, Signals
from rekindle.model import bounds
from rekindle.model.attachment import Progress
from rekindle.model.base import Value
from rekindle.model.contract import Announced
from rekindle.model.fault import WATCHER, Fault, FaultKind, FaultsNow, not_among
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Outcome
from rekindle.model.situation import Phase, Situation
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes import contract_words, recovery_opening
from rekindle.temporal import Attributes
from workflows.dialogue import Dialogue
from workflows.shown import Shown

T = TypeVar("T")

NOTHING = ModeRequest()
"""Request of a client that starts a mode without input.

It is rejected because the job is missing, as any other invalid input is.
"""

CAUGHT = (Exception, asyncio.CancelledError)
"""Exceptions that a procedure may catch and answer.

`GeneratorExit` is not among them: a worker that stops drops its workflows, and code that handles it runs outside their loop,
without clock and commands.
"""

UNDO_TRIES = 3
UNDO_PAUSE = timedelta(seconds=5)
"""Pause between two tries of an undo. The server also repeats each try while the cluster does not answer."""


class Ends(Exception):
    """Raised by procedures when a mode ends before its last step. `ModeWorkflow.conclude` converts it to a verdict."""

    def __init__(
        self,
        outcome: Outcome,
        reason: str,
        *,
        training: Training | None = None,
        policy: SubHealthStrategy | None = None,
        passing: bool = False,
    ) -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.training, self.policy, self.passing = outcome, reason, training, policy, passing


class ModeWorkflow(Dialogue):
    """State and handlers of one recovery."""

    def __init__(self, request: ModeRequest, context: RecoveryContext | None) -> None:
        super().__init__(context)
        self.request = request
        self.situation = context.situation if context else Situation()
        if self.told_first:
            self.situation = recovery_opening.told(self.situation, self.told_first)
        self.faults: tuple[Fault, ...] = _real(context.situation.faults) if context else ()  # current faults
        self.failed_on: list[str] = []  # nodes on which pods of this mode did not start
        self.met = self.faults  # faults at the beginning of the mode
        self.is_mended: Callable[[Fault], bool] = _is_nothing
        """Returns whether a fault is over if training goes on, even if its source still shows it."""
        self.went_on_at: datetime | None = None  # time of the training side's last report that it goes on
        self.progress: Progress | None = None
        first = (context and context.phase) or workflow.info().typed_search_attributes.get(Attributes.PHASE)
        self._shown = Shown({Attributes.PHASE: first})
        self.phases: list[Phase] = []
        self.current = ""
        self._telling: asyncio.Task[None] | None = None
        self.undo: list[tuple[str, Callable[[], Awaitable[object]]]] = []

    def standing_faults(self) -> tuple[Fault, ...]:
        """Returns the faults that are not repaired yet."""
        return tuple(fault for fault in self.faults if not self.is_mended(fault))

    def new_faults(self) -> list[Fault]:
        """Returns the faults that occurred since the mode began.

        Those of backup pods are handled by the mode that created them.
        """
        return [fault for fault in not_among(self.faults, self.met) if not fault.backup]

    def felt_faults(self) -> list[Fault]:
        """Returns the new faults that the training side may have noticed.

        A node that is not ready is excluded: it may come back, with its processes running.
        """
        return [fault for fault in self.new_faults() if fault.kind is not FaultKind.NODE or fault.source != WATCHER]

    # ---- handlers: they append, the procedure does the work

    @workflow.signal(name=Signals.FAULTS)
    def faults_now(self, now: FaultsNow) -> None:
        """Receives all current faults. Known faults that are missing from them are over."""
        self.faults = now.faults

    @workflow.signal(name=Signals.PROGRESSED)
    def progressed(self, progress: Progress) -> None:
        self.progress = progress

    # ---- what other components are told

    def tell_announced(self, *, in_place: bool) -> None:
        """Tells the job that faults are announced, for the words of the contract. Nothing waits for that."""
        job = self.context.job
        if contract_words.are_used(job):
            ranks = tuple(one.rank for one in self.situation.announced)
            told = Announced(ranks=ranks, in_place=in_place)
            self._telling = asyncio.create_task(_told_parent(Signals.ANNOUNCED, told))

    # ---- phases, verdict, undo

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        """Runs one phase of the procedure. It is shown while it runs, and listed with its seconds in the post-mortem."""
        began = workflow.now()
        self.current = name
        self._shown.tell({Attributes.PHASE: name})
        self._show()
        try:
            yield
        except CAUGHT as error:
            self._close_phase(name, began, "cancelled" if _is_cancelled(error) else "failed")
            raise
        self._close_phase(name, began, "")

    def _close_phase(self, name: str, began: datetime, note: str) -> None:
        after = (began - workflow.info().start_time).total_seconds()
        self.phases.append(Phase(name=name, seconds=(workflow.now() - began).total_seconds(), note=note, after=after))
        self.current = ""
        self._show()

    def _show(self) -> None:
        lines = [f"- [{'x' if not p.note else '!'}] {p.name}: {p.seconds:.3f} s" for p in self.phases]
        if self.current:
            lines.append(f"- [ ] **{self.current}** ...")
        workflow.set_current_details(bounds.details("\n".join((*lines, *self.findings()))))

    def findings(self) -> list[str]:
        """Returns further lines of the page, in Markdown."""
        return []

    async def compensate(self) -> None:
        """Runs the undo of every step that was begun, newest first. Each undo does nothing if there is nothing to undo."""
        while self.undo:
            name, undo = self.undo.pop()
            failure = await self._undone_within(undo, UNDO_TRIES)
            self.phases.append(Phase(name=f"undo: {name}", seconds=0.0, note=failure and f"failed: {failure}"))
        self._show()

    async def _undone_within(self, undo: Callable[[], Awaitable[object]], tries: int) -> str:
        """Runs an undo and returns why its last try failed; empty: it succeeded.

        It is retried, as no later step would clean up.
        """
        while True:
            try:
                await undo()
                return ""
            except ActivityError as error:
                tries -= 1
                workflow.logger.warning("undo failed", extra={"error": str(error.cause), "tries_left": tries})
                if not tries:
                    return str(error.cause)
            await workflow.sleep(UNDO_PAUSE, summary="before the undo is tried again")

    async def close(self, verdict: Verdict, *, cancelled: bool) -> Verdict:
        """Ends the workflow with the verdict.

        A recovery that gave up is a failed workflow, and a cancelled one is cancelled, so that the list of recoveries shows what
        needs attention. The `TrainingJob` gets the verdict in each case.

        Args:
            cancelled: the workflow was asked to cancel.
        """
        seconds = (workflow.now() - workflow.info().start_time).total_seconds()
        left = self.situation.with_(faults=(), unread=(), heard=tuple(self.taken))
        unread = tuple(
            report for report in self.inbox if report.results is None
        )  # results are large, and only this mode uses them
        failed_on = tuple(dict.fromkeys(self.failed_on))
        verdict = verdict.with_(
            seconds=seconds,
            phases=tuple(self.phases),
            went_on_at=self.went_on_at,
            unread=unread,
            situation=left,
            failed_on=failed_on,
        )
        workflow.upsert_search_attributes([Attributes.VERDICT.value_set(verdict.outcome), Attributes.SECONDS.value_set(seconds)])
        if verdict.outcome is Outcome.GIVEN_UP:
            raise ApplicationError(verdict.reason, verdict, type=ErrorTypes.GIVEN_UP, non_retryable=True)
        if verdict.outcome is Outcome.CANCELLED and cancelled:
            await self._tell_parent(verdict)
            raise asyncio.CancelledError(verdict.reason)
        return verdict

    @staticmethod
    async def is_orphaned() -> bool:
        """Returns whether the workflow run that started this mode was lost, with everything that was sent to it."""
        parent = workflow.info().parent
        assert parent is not None, "a front goes on with nothing"
        try:
            await workflow.get_external_workflow_handle(parent.workflow_id, run_id=parent.run_id).signal(Signals.UPGRADED)
        except FailureError:
            return True
        return False

    @staticmethod
    async def _tell_parent(verdict: Verdict) -> None:
        await _told_parent(Signals.VERDICT, verdict)


async def _told_parent(signal: str, payload: Value) -> None:
    parent = workflow.info().parent
    assert parent is not None, "a front tells nothing by itself"
    try:
        await workflow.get_external_workflow_handle(parent.workflow_id).signal(signal, payload)
    except FailureError as error:
        workflow.logger.info("job workflow not found", extra={"error": str(error)})


def seconds(limit: timedelta) -> str:
    return f"{limit.total_seconds():g} s"


def _is_cancelled(error: BaseException) -> bool:
    return error.outcome is Outcome.CANCELLED if isinstance(error, Ends) else is_cancelled_exception(error)


def _is_nothing(_: Fault) -> bool:
    return False


def _real(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if fault.kind is not FaultKind.SUB_HEALTH)


async def finished(work: Coroutine[object, object, T], cancelled: Callable[[], None]) -> T:
    """Runs work that receives cancellations, and is not ended by them.

    The workflow is cancelled afterwards, unless it continues as another run.

    Args:
        cancelled: called for each cancellation.
    """
    task, was_cancelled = asyncio.create_task(work), False
    while not task.done():
        try:
            await workflow.wait_condition(task.done)
        except asyncio.CancelledError:
            was_cancelled = True
            cancelled()
    if was_cancelled and not isinstance(task.exception(), workflow.ContinueAsNewError):
        raise asyncio.CancelledError
    return task.result()


async def shielded(work: Coroutine[object, object, T]) -> T:
    """Finishes work that must not stop half-way. A cancellation takes effect afterwards."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        return await task


async def unless_cancelled(making: Coroutine[object, object, T]) -> T:
    """Returns the result of an activity, unless the workflow was cancelled meanwhile.

    An activity that completes in spite of a cancellation would hide it.
    """
    made = await making
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError
    return made
