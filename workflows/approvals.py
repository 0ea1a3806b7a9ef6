"""Question to people whether a mode may run: asked before the mode begins, with a limit and a default.

Used by `IncidentRun`. Nothing of the mode is done before the answer: training runs on, or stands as the last mode left it.
"""

from collections.abc import Callable, Sequence

from temporalio import workflow

from rekindle.model.approval import Answer, Question, Unanswered, spelled
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import approvals
from rekindle.policy.modes.cases import Case
from workflows.job_context import JobContext
from workflows.journal import Journal


class Approvals:
    def __init__(self, case: Case, known: JobContext, journal: Journal, shown: Callable[[], None]) -> None:
        """Args:
        shown: renews the job's row and page in the Temporal UI.
        """
        self._case, self._known, self._journal, self._show = case, known, journal, shown
        self._answer: Answer | None = None
        self._granted: dict[Mode, str] = {}
        """Modes that were approved, each with who decided that."""

    def take(self, answer: Answer) -> None:
        """Takes the answer of a person. The question then waits no more."""
        self._answer = answer
        self._known.state = self._known.state.with_(question=None)

    def noted(self, verdict: Verdict) -> Verdict:
        """Returns the verdict of a mode with who approved the mode."""
        words = self._granted.get(verdict.mode)
        return verdict.with_(reason=f"{verdict.reason}; {words}") if words else verdict

    async def verdict(self, mode: Mode, incident: int, before: Sequence[Verdict], stopped: Callable[[], str]) -> Verdict | None:
        """Asks whether a mode may run. Returns its verdict if it may not; None: it may.

        Args:
            before: verdicts of the incident so far.
            stopped: returns why no mode of the incident may run any more. Empty: one may.
        """
        known, now = self._known, workflow.now()
        asked = None if mode in self._granted else approvals.question(known.state, self._case, mode, incident, now)
        if asked is None:
            return None
        known.state, self._answer = known.state.with_(question=asked), None
        self._show()
        self._journal.soon(self._journal.record(known.state, "ApprovalAsked", self._words(asked), warning=True))

        def moot() -> Verdict | None:
            return None if before else approvals.is_moot(known.state, self._case, mode, workflow.now())

        try:
            await workflow.wait_condition(
                lambda: bool(self._answer or stopped() or moot() or mode not in known.state.job.approvals),
                timeout=asked.until - now,
                timeout_summary=f"approval of the {mode}",
            )
        except TimeoutError:
            pass
        known.state = known.state.with_(question=None)
        if why := stopped():
            return Verdict(mode=mode, outcome=Outcome.CANCELLED, reason=why)
        return self._ruled(asked, before, moot())

    def _ruled(self, asked: Question, before: Sequence[Verdict], moot: Verdict | None) -> Verdict | None:
        mode, job = asked.mode, self._known.state.job
        if self._answer is None and (moot or mode not in job.approvals):
            return moot  # or the owner does not want to be asked any more
        approved, words = approvals.ruling(asked, self._answer)
        self._known.last_decision = f"{mode} of incident {asked.incident}, {words}"
        if not approved:
            return approvals.denied(self._case, mode, words, before)
        self._granted[mode] = words
        return None

    def _words(self, asked: Question) -> str:
        job, default = self._known.state.job, "approved" if asked.unanswered is Unanswered.APPROVE else "denied"
        return (
            f"the {asked.mode} waits for approval until {asked.until:%H:%M:%S} UTC and is {default} then; "
            f"rekindle approve {job.name} --mode {spelled(asked.mode)}, or deny; because of: {asked.about}"
        )
