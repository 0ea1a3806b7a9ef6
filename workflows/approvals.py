"""Question to people whether a mode may run: asked before the mode begins, with a limit and a default.

Used by `IncidentRun`. Nothing of the mode is done before the answer: training runs on, or stands as the last mode left it.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from temporalio import workflow

from rekindle.model.approval import Answer, Question, Unanswered, spelled
from rekindle.model.incident import Waited
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.policy.drain import drain_verdicts
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
        self._held: dict[Mode, str] = {}
        """Modes that a storm has held, each with how that ended."""
        self.waited_for = "nothing"
        """Reason of the last wait of the incident: `person`, `storm` or `nothing`."""
        self._is_interrupted = False
        """True if a real fault came while the hot switch of a sub-healthy pod waited."""
        self.waits: list[Waited] = []
        """Times in which a person was waited for."""
        self._goes = False
        """True if no storm holds the modes of this incident any more: a person wants them, or one was held as long as allowed."""

    def take(self, answer: Answer) -> None:
        """Takes the answer of a person. The question then waits no more."""
        self._answer = answer
        self._known.state = self._known.state.with_(question=None)

    def noted(self, verdict: Verdict) -> Verdict:
        """Returns the verdict of a mode with who approved the mode."""
        words = (notes[verdict.mode] for notes in (self._granted, self._held) if verdict.mode in notes)
        approved = self._granted.get(verdict.mode, "")
        return verdict.with_(reason="; ".join((verdict.reason, *words)), approved=approved)

    async def verdict(
        self, mode: Mode, incident: int, before: Sequence[Verdict], stopped: Callable[[], str], since: datetime
    ) -> Verdict | None:
        """Asks whether a mode may run, and holds it in a storm. Returns its verdict if it may not run; None: it may.

        Args:
            before: verdicts of the modes that have run in the incident.
            stopped: returns why no mode of the incident may run any more. Empty: one may.
            since: time since which the next mode has been waiting, for all questions about it.
        """
        known = self._known
        is_granted = mode in self._granted or self._was_approved(mode)
        asked = None if is_granted else approvals.question(known.state, self._case, mode, incident, since)
        if asked and (verdict := await self._ask(asked, before, stopped)):
            return verdict
        held = None if self._goes else approvals.hold(known.state, self._case, mode, incident, since)
        return await self._ask(held, before, stopped) if held and held.until > workflow.now() else None

    def _was_approved(self, mode: Mode) -> bool:
        """Returns whether a person approved the mode that is tried again every minute, until there is a spare node."""
        waited = drain_verdicts.waited(self._known.state.history, self._case)
        return waited is not None and waited.ladder[-1].mode is mode and bool(waited.ladder[-1].approved)

    async def _ask(self, asked: Question, before: Sequence[Verdict], stopped: Callable[[], str]) -> Verdict | None:
        known, mode, began = self._known, asked.mode, workflow.now()
        self.waited_for = "storm" if asked.storm else "person"
        known.state, self._answer = known.state.with_(question=asked), None
        self._show()
        event = "StormHeld" if asked.storm else "ApprovalAsked"
        self._journal.soon(self._journal.record(known.state, event, self._words(asked), warning=True))

        def moot() -> Verdict | None:
            if before:
                return None
            return approvals.is_moot(known.state, self._case, asked, workflow.now(), interrupted=self._is_interrupted)

        try:
            await workflow.wait_condition(
                lambda: bool(self._answer or stopped() or moot() or self._is_over(asked)),
                timeout=max(asked.until - workflow.now(), timedelta(0)),
                timeout_summary=f"a storm holds the {mode}" if asked.storm else f"approval of the {mode}",
            )
        except TimeoutError:
            pass
        known.state = known.state.with_(question=None)
        if not asked.storm:
            self.waits.append(Waited(since=began, until=workflow.now()))
        if why := stopped():
            return Verdict(mode=mode, outcome=Outcome.CANCELLED, reason=why)
        return self._ruled(asked, before, moot())

    def _is_over(self, asked: Question) -> bool:
        """Returns whether the reason of the question is over: the storm, or the owner's wish to be asked."""
        state = self._known.state
        return not state.storm if asked.storm else asked.mode not in state.job.approvals

    def _ruled(self, asked: Question, before: Sequence[Verdict], moot: Verdict | None) -> Verdict | None:
        mode = asked.mode
        if self._answer is None and (moot or self._is_over(asked)):
            self._is_interrupted |= moot is not None and moot.was_interrupted
            if asked.storm:
                self._held[mode] = f"held for {(workflow.now() - asked.since).total_seconds():.0f} s, until a storm was over"
            return moot
        approved, words = approvals.ruling(asked, self._answer)
        self._known.last_decision = f"{mode} of incident {asked.incident}, {words}"
        if not approved:
            return approvals.denied(self._case, mode, words, before)
        if asked.storm or (self._answer and self._known.state.storm):
            self._goes = True
        (self._held if asked.storm else self._granted)[mode] = words
        return None

    def _words(self, asked: Question) -> str:
        job, default = self._known.state.job, "approved" if asked.unanswered is Unanswered.APPROVE else "denied"
        if asked.storm:
            return (
                f"the {asked.mode} is held until the storm is over, or {asked.until:%H:%M:%S} UTC; rekindle approve {job.name} "
                f"runs it now; storm: {asked.storm}; because of: {asked.about}"
            )
        return (
            f"the {asked.mode} waits for approval until {asked.until:%H:%M:%S} UTC and is {default} then; "
            f"rekindle approve {job.name} --mode {spelled(asked.mode)}, or deny; because of: {asked.about}"
        )
