"""Platform that decides about a job by annotations: it names the strategy, confirms the faults and prepares the rank table.

A platform that does not answer costs its limit and no more. In that incident the job's own strategies then hold, and it is not
asked again.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityHandle

from rekindle.model.bounds import note
from rekindle.model.contract import PlatformAnswer, PlatformRequest
from rekindle.model.dialogue import FaultRank
from rekindle.model.keys import PLATFORM_STRATEGY
from rekindle.model.mode import Mode
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import platform_choice
from rekindle.policy.modes.cases import Case
from workflows import steps
from workflows.dialogue import cancel_and_forget
from workflows.job_context import JobContext
from workflows.mode import ModeWorkflow

SEND = timedelta(seconds=5)
"""Time for the next order to arrive, after an answer, at a training side that exits if no order comes in time."""

LATE = timedelta(seconds=2)
"""Time after the limit in which an answer of the cluster is still awaited. The cluster may be away."""

AT_ONCE = timedelta(0)


class Platform:
    def __init__(self, case: Case, known: JobContext) -> None:
        self._case, self._known = case, known
        self._answer: PlatformAnswer | None = None
        self.denied: tuple[Mode, ...] = ()
        """Modes that the platform's strategy does not allow."""

    @property
    def has_answered(self) -> bool:
        return bool(self.denied)

    def decides(self, mode: Mode) -> bool:
        """Returns whether the platform is asked before this mode."""
        request = self._case.request.request if self._case.request else None
        is_silent = self._answer is not None and not self.has_answered
        return not is_silent and platform_choice.decides(self._known.state.job, request, mode)

    async def ask(self, stopped: Callable[[], str]) -> None:
        """Reads the platform's strategy. The first one of an incident is waited for; later it may have changed.

        Args:
            stopped: returns why no mode of the incident may run any more. Empty: one may.
        """
        job = self._known.state.job
        within = AT_ONCE if self._answer else job.limits.platform_strategy
        asking = steps.ask_platform(PlatformRequest(job_id=job.id, key=PLATFORM_STRATEGY, within=within))
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: asking.done() or bool(stopped()),
                timeout=within + LATE,
                timeout_summary=f"the platform's {PLATFORM_STRATEGY}",
            )
        answer = await _answer(asking)
        if self.has_answered and not answer.answered:  # the cluster is away, or the platform clears its annotation
            return
        self._answer, self.denied = answer, platform_choice.denied(answer)

    def noted(self, verdict: Verdict) -> Verdict:
        """Returns the verdict of a mode with who chose the mode."""
        if self._answer is None:
            return verdict
        within = f"{self._known.state.job.limits.platform_strategy.total_seconds():g} s"
        return verdict.with_(reason=f"{verdict.reason}; {platform_choice.words(self._answer, within)}")


async def asked_platform(mode: ModeWorkflow, key: str, within: timedelta, confirm: tuple[FaultRank, ...] = ()) -> PlatformAnswer:
    """Returns the platform's answer while training stands. A training side that exits without an order shortens the wait.

    Args:
        key: annotation that the platform writes.
        confirm: faults that it has to confirm.
    """
    job, answer_by = mode.context.job, mode.situation.answer_by
    if answer_by:
        within = max(min(within, answer_by - workflow.now() - SEND), AT_ONCE)
    asking = steps.ask_platform(PlatformRequest(job_id=job.id, key=key, confirm=confirm, within=within))
    await mode.until(lambda: asking.done() or bool(mode.lost_manager), within + LATE, f"wait for the platform's {key}")
    return await _answer(asking)


async def _answer(asking: ActivityHandle[PlatformAnswer]) -> PlatformAnswer:
    """Returns the platform's answer. A question that is still open is withdrawn."""
    if not asking.done():
        cancel_and_forget(asking)
        return PlatformAnswer(problem="the cluster does not answer in time")
    try:
        return await asking
    except ActivityError as error:
        workflow.logger.warning("platform not asked", extra={"error": str(error.cause)})
        return PlatformAnswer(problem=note(f"{error.cause}"))
