"""Cases for which no mode begins: they are only observed, ignored by policy, or refused.

Each is recorded with its reason. Used by `TrainingJob`.
"""

from temporalio import workflow

from rekindle.model.recovery import Outcome, Verdict
from rekindle.policy import drains, observing
from rekindle.policy.cases import Case
from workflows import memory
from workflows.incident import Memory
from workflows.journal import Journal


class Declined:
    def __init__(self, known: Memory, journal: Journal) -> None:
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
        would = observing.would(case.plan, case.pod_rank)
        reason = f"observed: {would}"
        told = memory.was_observed(state, case, reason)
        self._known.state = memory.observed(state, case, reason, workflow.now())
        if not told:
            self._tell("RecoveryObserved", f"{case.summary}: {would}", warning=False)

    def _refuse(self, case: Case) -> None:
        outcome = Outcome.IGNORED if case.plan.ignored else Outcome.REFUSED
        why = case.plan.ignored or case.plan.refused
        self._known.state = memory.judged(self._known.state, case, f"{outcome}: {why}")
        if case.request:
            verdict = Verdict(mode=case.mode, outcome=outcome, reason=why)
            self._known.state = memory.answered(self._known.state, case.request.id, verdict)
        said = (why, *(fault.id for fault in case.faults))
        if case.request or self._told.get(case.pod_rank) != said:
            self._told[case.pod_rank] = said
            self._tell(f"Recovery{outcome.capitalize()}", f"{case.summary}: {why}", warning=True)
            if drains.holds(self._known.state.job, case):
                self._journal.soon(self._journal.drain_waits(self._known.state, case.faults[0], f"{drains.WAITS}: {why}"))

    def _tell(self, reason: str, words: str, *, warning: bool) -> None:
        self._journal.soon(self._journal.record(self._known.state, reason, words, warning=warning))
