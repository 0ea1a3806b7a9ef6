"""Updates of `TrainingJob` by which people and platforms decide: they request modes, and approve, abort or repeat recoveries.

Each has a validator, which stores nothing.
"""

from abc import abstractmethod

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from rekindle.ids import ErrorTypes, Updates
from rekindle.model.approval import Abort
from rekindle.model.dialogue import Receipt
from rekindle.model.incident import ModeRequest
from rekindle.model.state import JobState, Pending
from rekindle.model.trace import Trace
from rekindle.model.verdict import Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import approvals, observe_only, requests
from rekindle.policy.modes.mode_table import LAST
from workflows import given_up, job_reducers, steps
from workflows.incident import IncidentRun
from workflows.job_context import JobContext
from workflows.journal import Journal

ABORT_EXAMPLE = '{"by": "an operator", "reason": "it is a planned stop"}'


class PeopleUpdates:
    known: JobContext
    incident: IncidentRun | None
    journal: Journal

    @property
    def state(self) -> JobState:
        return self.known.state

    @abstractmethod
    def _show(self) -> None:
        """Renews the job's row and page in the Temporal UI."""

    @abstractmethod
    def _has_work(self) -> bool:
        """Returns whether an incident is about to start."""

    @workflow.update(name=Updates.TRACE)
    def trace(self, trace: Trace) -> Receipt:
        """Sets what ranks measure from now on. A manager that subscribes later gets it then."""
        self.known.state = self.state.with_(trace=trace)
        if here := self.state.attachment:
            self.journal.soon(steps.tell_trace(orders.trace(self.state.job.id, trace), here.queue))
        return Receipt(info="told")

    @trace.validator
    def _measures(self, trace: Trace) -> None:
        if problem := requests.trace_problem(self.state):
            raise rejected(ErrorTypes.REQUEST_REFUSED, problem)

    @workflow.update(name=Updates.RECOVER)
    async def recover(self, request: object) -> Verdict:
        """Runs a mode, regardless of the policy, and returns its verdict.

        The update's id identifies the request: a repeated request gets the verdict and does not begin the mode again.

        Args:
            request: a `ModeRequest` as the client wrote it. An invalid one is refused by this handler, not by the SDK.
        """
        request_id = update_id()
        if job_reducers.answer_of(self.state, request_id) is None:
            self.known.state = job_reducers.requested(self.state, Pending(id=request_id, request=requests.read(request)))
            if self.incident:
                self.incident.give_way()
            await workflow.wait_condition(lambda: job_reducers.answer_of(self.state, request_id) is not None)
        verdict = job_reducers.answer_of(self.state, request_id)
        assert verdict is not None
        return verdict.with_(tested=self.known.tested.get(request_id))

    @recover.validator
    def _may_be_asked_for(self, request: object) -> None:
        if job_reducers.answer_of(self.state, update_id()):
            return
        if self.state.ended:
            raise rejected(ErrorTypes.JOB_ENDED, f"job {self.state.job.id} has ended: {self.state.ended}")
        if problem := requests.invalid(self.state, request):
            raise rejected(ErrorTypes.REQUEST_INVALID, problem)
        is_busy = not self.incident.gives_way if self.incident else self._has_work()
        if is_busy or self.state.request:
            what = self.incident.describe() if self.incident else "an incident that is about to start"
            raise rejected(ErrorTypes.JOB_BUSY, f"job {self.state.job.name} is busy with {what}")
        if reason := requests.refused(self.state, requests.read(request)):
            raise rejected(ErrorTypes.REQUEST_REFUSED, reason)

    @workflow.update(name=Updates.WITHDRAW)
    def withdraw(self, request_id: str) -> Receipt:
        """Withdraws a request for a mode. The mode is not begun, or is cancelled as far as it allows that."""
        asked = self.incident.case.request if self.incident else None
        if self.incident and asked and asked.id == request_id:
            self.incident.withdraw(request_id)
        elif job_reducers.answer_of(self.state, request_id) is None:
            self.known.state = job_reducers.withdrawn(self.state, request_id)
        return Receipt(info="withdrawn")

    @withdraw.validator
    def _may_be_a_request(self, request_id: str) -> None:
        if problem := requests.withdrawal_problem(request_id):
            raise rejected(ErrorTypes.REQUEST_INVALID, problem)

    @workflow.update(name=Updates.LIFT)
    async def lift(self) -> Receipt:
        """Lifts the downgrade on behalf of an operator: the owner's policy holds again, and sub-healths are judged again."""
        if self.state.downgrade is None:
            return Receipt(info=f"nothing to lift: the policy is {self.state.policy}")
        self.known.state = job_reducers.lifted(self.state)
        await self.journal.publish_policy(lambda: self.state)
        await self.journal.remember()
        words = f"the sub-health policy is {self.state.policy} again"
        await self.journal.record(self.state, "SubHealthDowngradeLifted", words, warning=False)
        self._show()
        return Receipt(info=words)

    @lift.validator
    def _may_be_lifted(self) -> None:
        if self.state.job.observe and self.state.downgrade:
            raise rejected(ErrorTypes.REQUEST_REFUSED, observe_only.ONLY)

    @workflow.update(name=Updates.ANSWER)
    def answer(self, given: object) -> Receipt:
        """Takes a person's decision whether the mode that waits may run.

        Args:
            given: an `Answer` as the client wrote it.
        """
        answer, question = approvals.read(given), self.state.question
        assert self.incident, "the validator has seen an incident"
        assert question, "the validator has seen a question"
        self.incident.answer(answer)
        self._show()
        return Receipt(info=f"the {question.mode} is {'approved' if answer.approved else 'denied'}")

    @answer.validator
    def _answers_something(self, given: object) -> None:
        if problem := approvals.invalid(given):
            raise rejected(ErrorTypes.REQUEST_INVALID, problem)
        if problem := approvals.refused(self.state, approvals.read(given), self.known.last_decision):
            raise rejected(ErrorTypes.REQUEST_REFUSED, problem)

    @workflow.update(name=Updates.ABORT)
    def abort(self, given: object) -> Receipt:
        """Ends the running incident on behalf of a person: its mode is cancelled, and none follows.

        Args:
            given: an `Abort` as the client wrote it.
        """
        asked = requests.read_as(Abort, given, ABORT_EXAMPLE)
        assert self.incident, "the validator has seen an incident"
        what = self.incident.describe()
        self.incident.abort(f"aborted by {asked.by or 'a client'}{asked.reason and f': {asked.reason}'}")
        return Receipt(info=f"{what}: it ends, and no other mode follows; `rekindle retry {self.state.job.name}` begins again")

    @abort.validator
    def _runs_something(self, given: object) -> None:
        if problem := requests.problem_of(Abort, given, ABORT_EXAMPLE):
            raise rejected(ErrorTypes.REQUEST_INVALID, problem)
        if self.incident is None:
            raise rejected(ErrorTypes.REQUEST_REFUSED, f"no recovery of job {self.state.job.name} is running")

    @workflow.update(name=Updates.RETRY)
    def retry(self, by: str) -> Receipt:
        """Begins the ladder again for a job that was given up, or for faults that are left alone, on behalf of a person."""
        request = ModeRequest(mode=LAST.mode, save=False, requested_by=by)  # how training stands is unknown
        pending = Pending(id=update_id(), request=request)
        self.known.state = given_up.retried(self.state, pending, workflow.now())
        self.journal.soon(self.journal.remember())
        self._show()
        return Receipt(info=f"job {self.state.job.name} is recovered again, by the cheapest mode that is possible now")

    @retry.validator
    def _was_given_up(self, by: str) -> None:
        if self.state.ended:
            raise rejected(ErrorTypes.JOB_ENDED, f"job {self.state.job.id} has ended: {self.state.ended}")
        if self.incident or self.state.request:
            raise rejected(ErrorTypes.JOB_BUSY, f"job {self.state.job.name} is busy with a recovery")
        if problem := requests.retry_problem(self.state):
            raise rejected(ErrorTypes.REQUEST_REFUSED, problem)


def update_id() -> str:
    """Returns the id of the update whose handler or validator is running."""
    info = workflow.current_update_info()
    assert info is not None
    return info.id


def rejected(kind: str, message: str) -> ApplicationError:
    """Returns the error with which a validator rejects an update."""
    return ApplicationError(message, type=kind)
