"""Writes to the cluster about a job: events, the sub-health policy in force, and what a later workflow of the job must find.

Used by `TrainingJob` and its incidents. Nothing here may cost a recovery: a record that cannot be written is logged.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime

from temporalio import workflow

from rekindle.model.activities.jobs import PolicyRequest, RememberRequest
from rekindle.model.cluster import ClusterEvent
from rekindle.model.elastic import Small
from rekindle.model.fault import Fault
from rekindle.model.job import ManagerLost
from rekindle.model.node_record import Blame
from rekindle.model.spares import SpareNews
from rekindle.model.state import JobState
from rekindle.policy.dialogue.client_identity import UNSURE
from workflows import steps
from workflows.contract_words import ContractWords
from workflows.job_context import JobContext

TOLD_AT_ONCE = 5
"""Maximum number of events for one change of the job's problems. The job's page lists all of them."""


class Journal:
    def __init__(self, known: JobContext, to_remember: Callable[[], RememberRequest]) -> None:
        """Args:
        to_remember: what a later workflow of the job must find, as it is at that moment.
        """
        self._to_remember = to_remember
        self.words = ContractWords(known, self.soon)
        # Writes of one kind run one after the other, each with the state at its turn, so that the last state is kept.
        self._one_policy, self._one_memory = asyncio.Lock(), asyncio.Lock()
        self._is_memory_due = False
        self._spare: SpareNews | None = None
        """Need of the job for spare nodes, if that is not written yet."""
        self._claims = False
        """True if it was written that the job needs some."""
        self._writing: list[asyncio.Task[None]] = []

    @property
    def is_quiet(self) -> bool:
        return all(writing.done() for writing in self._writing)

    def soon(self, writing: Coroutine[object, object, None]) -> None:
        """Starts writing in the background, for handlers and where training waits.

        Nothing waits until the cluster has accepted it.
        """
        self._writing = [task for task in self._writing if not task.done()]
        self._writing.append(asyncio.create_task(writing))

    async def record(self, state: JobState, reason: str, message: str, *, warning: bool) -> None:
        await steps.record_event(state.job.id, event_of(state, reason, message, warning=warning))

    async def drain_waits(self, state: JobState, fault: Fault, why: str) -> None:
        """Records why a drain waits, on the node and on the pod that it waits for. People who drain a node look there."""
        words = f"training job {state.job.namespace}/{state.job.name}: {why}"
        for kind, name in (("Pod", fault.pod), ("Node", fault.node)):
            if name:
                event = ClusterEvent(
                    name=name, kind=kind, reason="DrainWaits", message=words, type="Warning", timestamp=workflow.now()
                )
                await steps.record_event(state.job.id, event)

    async def publish_policy(self, now: Callable[[], JobState]) -> None:
        """Writes the sub-health policy in force, with its reason, where the scheduler reads it."""
        async with self._one_policy:
            state = now()
            reason = state.downgrade.reason if state.downgrade else ""
            await steps.publish_policy(PolicyRequest(job_id=state.job.id, strategy=state.policy, reason=reason))

    async def remember(self, event: ClusterEvent | None = None, blame: Blame | None = None, incident: int = 0) -> None:
        """Writes onto the job's object what a later workflow of the job must find. Concurrent calls share one write.

        Args:
            event: recorded by the same activity.
            blame: incident that has just ended, for the records of the nodes that have caused it.
            incident: number of an incident that has just ended, and of which the event is.
        """
        if self._is_memory_due and event is None and blame is None:
            return
        self._is_memory_due = True
        async with self._one_memory:
            self._is_memory_due = False
            spare, self._spare = self._spare, None
            news = {"event": event, "blame": blame, "spare": spare, "incident": incident if event else 0}
            await steps.remember(self._to_remember().model_copy(update=news))

    def needs(self, spare: SpareNews) -> None:
        """Notes what the job needs of spare nodes from now on, for the next `remember`."""
        if spare.wish or self._claims:
            self._spare, self._claims = spare, spare.wish is not None

    def lost_manager(self, state: JobState, before: str) -> bool:
        """Records an event if the loss of the job's manager is new, and returns whether it is."""
        if (how := state.manager_lost) in ("", before):
            return False
        then = "the job is restarted" if state.job.manager_lost is ManagerLost.RESTART else "training goes on"
        self.soon(self.record(state, "ManagerLost", f"{how}; {then}", warning=True))
        return True

    def unsure(self, state: JobState, before: datetime | None) -> None:
        """Records an event if a reported fault may be lost, once until the training side has sent a message again."""
        if state.unsure_since and before is None:
            words = f"{UNSURE}; `rekindle recover {state.job.name} --mode online-retry` asks whether it trains"
            self.soon(self.record(state, "FaultMayBeLost", words, warning=True))

    def whole_again(self, before: Small | None, now: Small | None) -> None:
        """Writes that no pods are missing any more, without an incident: another workflow of the job would ignore their ranks."""
        if before and now is None:
            self.soon(self.remember())

    def problems(self, state: JobState, before: tuple[str, ...]) -> None:
        """Records events about new problems that keep the job from being recovered."""
        if state.problems == before:
            return
        news = [problem for problem in state.problems if problem not in before]
        more = f" (and {len(news) - TOLD_AT_ONCE} more)" if len(news) > TOLD_AT_ONCE else ""
        for number, problem in enumerate(news[:TOLD_AT_ONCE], 1):
            words = f"{problem}{more}" if number == TOLD_AT_ONCE else problem
            self.soon(self.record(state, "JobProblem", words, warning=True))
        if before and not state.problems:
            words = "its pods are in order: the job can be recovered"
            self.soon(self.record(state, "JobProblemsOver", words, warning=False))


def event_of(state: JobState, reason: str, message: str, *, warning: bool) -> ClusterEvent:
    """Returns an event about the job, with the present time."""
    return ClusterEvent(
        name=state.job.name,
        kind=state.job.kind,
        reason=reason,
        message=message,
        type="Warning" if warning else "Normal",
        timestamp=workflow.now(),
    )
