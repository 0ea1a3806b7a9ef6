"""Cases for which no mode begins: they are only observed, ignored by policy, or refused.

Each is recorded with its reason. Used by `TrainingJob`.
"""

from temporalio import workflow

from rekindle.model.mode import Outcome
from rekindle.model.verdict import Verdict
from rekindle.policy.drain import drain_verdicts
from rekindle.policy.modes import observe_only
from rekindle.policy.modes.cases import Case
from workflows import job_reducers
from workflows.job_context import JobContext
from workflows.journal import Journal


class SkippedDecisions:
    def __init__(self, known: JobContext, journal: Journal) -> None:
        self._known, self._journal = known, journal
        self._told: dict[int | None, tuple[str, ...]] = {}
        """Last message about each pod rank.

        A refused case is judged again at every attach, and the same message is not repeated.
        """

    def take(self, case: Case) -> None:
        """Records a case as observed, ignored or refused. It is judged again when something changes."""
        if case.plan.modes:
            self._observe(case)
        else:
            self._refuse(case)

    def _observe(self, case: Case) -> None:
        """Records the decision about an observed job, once for the same decision."""
        state = self._known.state
        would = observe_only.would(case.plan, case.pod_rank)
        reason = f"observed: {would}"
        told = job_reducers.was_observed(state, case, reason)
        self._known.state = job_reducers.observed(state, case, reason, workflow.now())
        if not told:
            self._tell("RecoveryObserved", f"{case.summary}: {would}", warning=False)

    def _refuse(self, case: Case) -> None:
        outcome = Outcome.IGNORED if case.plan.ignored else Outcome.REFUSED
        why = case.plan.ignored or case.plan.refused
        self._known.state = job_reducers.judged(self._known.state, case, f"{outcome}: {why}")
        if case.request:
            verdict = Verdict(mode=case.mode, outcome=outcome, reason=why)
            self._known.state = job_reducers.answered(self._known.state, case.request.id, verdict)
        said = (why, *(fault.id for fault in case.faults))
        if case.request or self._told.get(case.pod_rank) != said:
            self._told[case.pod_rank] = said
            self._tell(f"Recovery{outcome.capitalize()}", f"{case.summary}: {why}", warning=True)
            if drain_verdicts.holds(self._known.state.job, case):
                self._journal.soon(self._journal.drain_waits(self._known.state, case.faults[0], f"{drain_verdicts.WAITS}: {why}"))

    def _tell(self, reason: str, words: str, *, warning: bool) -> None:
        self._journal.soon(self._journal.record(self._known.state, reason, words, warning=warning))
