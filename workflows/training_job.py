"""The entity: one training job, for as long as it lives. It decides, and runs one recovery at a time as its child.

Started by the registration of a job only (update-with-start). Faults, requests, reports and attachments enter as updates; the
handlers note them, `run` works. It continues as new after each incident and never while a recovery runs. It never fails: whatever
a mode does becomes a verdict.
"""

import asyncio
from datetime import datetime

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from rekindle.ids import ErrorTypes, Queries, Signals, Updates, Workflows, recovery_workflow
from rekindle.model.asks import EndSession, PolicyRequest
from rekindle.model.cluster import ClusterEvent
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.recovery import Attachment, Incident, Mode, ModeRequest, Outcome, Progress, Receipt, Report, Verdict
from rekindle.model.state import JobState, JobStatus, Problems, Registration
from rekindle.policy import eligibility, incidents, observing, requests
from rekindle.policy.incidents import Case
from rekindle.temporal import Attributes
from workflows import steps
from workflows.climb import Climb

TOLD_AT_ONCE = 5
"""Events of one change of the job's problems: its page lists them all."""


@workflow.defn(name=Workflows.TRAINING_JOB)
class TrainingJob:
    @workflow.init
    def __init__(self, state: JobState) -> None:
        self.state = state
        self.climb: Climb | None = None
        self._background: asyncio.Task[None] | None = None
        self._publishing = asyncio.Lock()  # so that the last policy is the one that stays written
        self._writing: list[asyncio.Task[None]] = []  # events that no handler waits for

    @workflow.run
    async def run(self, state: JobState) -> str:
        self._show()
        while True:
            await workflow.wait_condition(self._has_work)
            if self.state.ended:
                await self._dismiss_requests()
                break
            case = incidents.next_case(self.state)
            if case:
                await self._handle(case)
            await workflow.wait_condition(workflow.all_handlers_finished)
            if case is None or self.state.incidents != state.incidents or workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(self._is_quiet)
                # Here and nowhere else a job changes to a newer version: an incident ends with the code that began it.
                workflow.continue_as_new(
                    self.state, initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
                )
        await workflow.wait_condition(self._is_quiet)
        return self.state.ended

    def _has_work(self) -> bool:
        info = workflow.info()
        moves_on = info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()
        return bool(self.state.ended) or incidents.next_case(self.state) is not None or moves_on

    def _is_quiet(self) -> bool:
        return workflow.all_handlers_finished() and all(writing.done() for writing in self._writing)

    # ---- incidents

    async def _handle(self, case: Case) -> None:
        self.state = incidents.without(self.state, case)
        if not case.plan.modes:
            await self._decline(case)
        elif self.state.job.observe:
            await self._observe(case)
        else:
            await self._recover(case)

    async def _recover(self, case: Case) -> None:
        """One incident, from its case to its place in the history. A failure of ours becomes a verdict too. What was begun goes
        to its end, also if the job is only observed from now on: it would stay half done."""
        self.state = self.state.model_copy(update={"incidents": self.state.incidents + 1})
        began = workflow.now()
        self.climb = Climb(case, self.state)
        self._show()
        verdicts: list[Verdict] = []
        while mode := self.climb.next_mode(verdicts):
            verdicts.append(await self._run_mode(self.climb, mode))
            await self._apply(verdicts[-1])
        await self._conclude(case, verdicts, began)

    async def _run_mode(self, climb: Climb, mode: Mode) -> Verdict:
        unasked = mode is Mode.JOB_RESCHEDULING and not climb.case.request
        if unasked and not incidents.may_restart(self.state, workflow.now()):
            return Verdict(mode=mode, outcome=Outcome.GIVEN_UP, reason=incidents.TOO_OFTEN)
        try:
            return await climb.run(mode, self.state)
        except (FailureError, TimeoutError) as error:
            return Verdict(mode=mode, outcome=Outcome.ESCALATE, reason=f"the mode could not be run: {error}")

    async def _observe(self, case: Case) -> None:
        """Decided and shown, and nothing is begun. The same decision is told once, however often it is made."""
        would = observing.would(case.plan, case.pod_rank)
        reason = f"observed: {would}"
        if case.pod_rank is not None:
            self.state = incidents.judged(self.state, case.pod_rank, reason)
        if incidents.is_told(self.state, case, reason):
            return
        self.state = self.state.model_copy(update={"incidents": self.state.incidents + 1})
        verdict = Verdict(mode=case.plan.modes[0], outcome=Outcome.REFUSED, reason=reason)
        self.state = incidents.concluded(self.state, self._incident(case, [verdict], workflow.now()))
        self._show()
        await self._record("RecoveryObserved", f"{case.summary}: {would}", warning=False)

    async def _decline(self, case: Case) -> None:
        """Nothing is done: noted with its reason; a refusal is judged again when something changes."""
        outcome = Outcome.IGNORED if case.plan.ignored else Outcome.REFUSED
        why = case.plan.ignored or case.plan.refused
        if case.pod_rank is not None:
            self.state = incidents.judged(self.state, case.pod_rank, f"{outcome}: {why}")
        self._show()
        await self._record(f"Recovery{outcome.capitalize()}", f"{case.summary}: {why}", warning=True)
        mode = case.request.mode if case.request else Mode.HOT_SWITCH if case.pod_rank is not None else Mode.JOB_RESCHEDULING
        await self._tell_front(case.request, Verdict(mode=mode, outcome=outcome, reason=why))

    async def _apply(self, verdict: Verdict) -> None:
        """The downgrade is written where the scheduler reads it before the next mode starts pods."""
        before = self.state.policy
        self.state = incidents.downgraded(self.state, verdict, workflow.now())
        if self.state.policy is not before:
            await self._publish_policy()
            await self._record("SubHealthDowngraded", f"sub-health is ignored from now on: {verdict.reason}", warning=True)

    async def _conclude(self, case: Case, verdicts: list[Verdict], began: datetime) -> None:
        last = self._final(verdicts)
        if last.outcome is Outcome.CANCELLED and self.state.ended:
            last = last.model_copy(update={"reason": f"{self.state.ended} before the recovery ended"})
        verdicts[-1] = last
        incident = self._incident(case, verdicts, began)
        self.climb = None
        self.state = incidents.concluded(self.state, incident)
        if case.pod_rank is not None:
            self.state = incidents.judged(self.state, case.pod_rank, f"{last.outcome}: {last.reason}")
        self._show()
        warning = last.outcome is not Outcome.RECOVERED
        await self._record(f"Recovery{last.outcome.title().replace('_', '')}", f"{last.mode}: {last.reason}", warning=warning)
        await self._tell_front(case.request, last)

    def _incident(self, case: Case, verdicts: list[Verdict], began: datetime) -> Incident:
        return Incident(
            number=self.state.incidents,
            summary=case.summary,
            started_at=began,
            seconds=(workflow.now() - began).total_seconds(),
            verdict=verdicts[-1].outcome,
            ladder=tuple(verdict.model_copy(update={"unread": ()}) for verdict in verdicts),
            policy_after=self.state.policy,
            faults=case.faults,
        )

    @staticmethod
    def _final(verdicts: list[Verdict]) -> Verdict:
        """Nothing is below the last mode: what it escalates is given up."""
        last = verdicts[-1]
        gave_up = last.outcome is Outcome.ESCALATE
        return last.model_copy(update={"outcome": Outcome.GIVEN_UP, "next_mode": None}) if gave_up else last

    async def _dismiss_requests(self) -> None:
        for request in self.state.requests:
            await self._tell_front(request, Verdict(mode=request.mode, outcome=Outcome.CANCELLED, reason=self.state.ended))

    async def _tell_front(self, request: ModeRequest | None, verdict: Verdict) -> None:
        if not request or not request.front:
            return
        try:
            front = workflow.get_external_workflow_handle(request.front, run_id=request.front_run or None)
            await front.signal(Signals.VERDICT, verdict.model_copy(update={"unread": ()}))
        except FailureError as error:
            workflow.logger.info("the front is gone", extra={"front": request.front, "error": str(error)})

    # ---- what the world is told

    async def _record(self, reason: str, message: str, *, warning: bool) -> None:
        job = self.state.job
        event = ClusterEvent(
            name=job.name,
            kind=job.kind,
            reason=reason,
            message=message,
            type="Warning" if warning else "Normal",
            timestamp=workflow.now(),
        )
        await steps.record_event(job.id, event)

    def _record_soon(self, reason: str, message: str, *, warning: bool) -> None:
        """For handlers: who told us does not wait until the cluster has taken the event."""
        self._writing = [writing for writing in self._writing if not writing.done()]
        self._writing.append(asyncio.create_task(self._record(reason, message, warning=warning)))

    async def _publish_policy(self) -> None:
        async with self._publishing:
            reason = self.state.downgrade.reason if self.state.downgrade else ""
            await steps.publish_policy(PolicyRequest(job_id=self.state.job.id, strategy=self.state.policy, reason=reason))

    def _show(self) -> None:
        """The job's row and page in the Temporal UI."""
        state = self.state
        idle = "observed" if state.job.observe else "sub-health ignored" if state.downgrade else "training"
        phase = "recovering" if self.climb else idle
        attributes = [Attributes.JOB.value_set(state.job.name), Attributes.PHASE.value_set(phase)]
        lines = [f"**{state.job.name}**: {phase}"]
        if state.job.observe:
            lines.append("- only observed: what would be done is shown, nothing is ordered")
        lines.extend(f"- cannot be recovered: {problem}" for problem in state.problems)
        lines.append(f"- sub-health policy: {state.policy}")
        if state.downgrade:
            lines.append(f"  (downgraded {state.downgrade.since:%Y-%m-%d %H:%M:%S}: {state.downgrade.reason})")
        lines.append(f"- stream: {state.attachment.queue if state.attachment else 'not attached'}")
        for incident in reversed(state.history[-5:]):
            tried = ", ".join(f"{v.mode} {v.outcome}" for v in incident.ladder)
            lines.append(f"- incident {incident.number}: {incident.summary} -> {tried} in {incident.seconds:.1f} s")
        if state.history:
            attributes.append(Attributes.VERDICT.value_set(state.history[-1].verdict))
        workflow.upsert_search_attributes(attributes)
        workflow.set_current_details("\n".join(lines))

    # ---- handlers

    @workflow.update(name=Updates.REGISTER)
    def register(self, registration: Registration) -> Receipt:
        """The job exists; labels and limits may have changed since."""
        observed = self.state.job.observe
        self.state = incidents.registered(self.state, registration.job)
        if registration.problems is not None:
            self._found(registration.problems)
        if registration.observe is not observed:
            self._show()
        return Receipt(info=f"job {registration.id} is registered")

    @register.validator
    def _same_job(self, registration: Registration) -> None:
        if registration.id != self.state.job.id:
            raise _rejected(ErrorTypes.REQUEST_INVALID, f"id: {registration.id} is not this job, {self.state.job.id}")

    @workflow.update(name=Updates.INITIALIZE)
    def initialize(self) -> Receipt:
        self.state = self.state.model_copy(update={"initialized": True})
        return Receipt(info=f"job(uid={self.state.job.id}) init success")

    @initialize.validator
    def _recovery_is_on(self) -> None:
        if not eligibility.recovery_is_on(self.state.job):
            raise _rejected(
                ErrorTypes.RECOVERY_OFF,
                "neither process-recover-enable=on nor subHealthyStrategy=hotSwitch is set on the job",
            )

    @workflow.update(name=Updates.REGISTER_CLIENT)
    def register_client(self) -> Receipt:
        self.state = self.state.model_copy(update={"registered": True})
        return Receipt(info="register success")

    @register_client.validator
    def _is_initialized(self) -> None:
        if not self.state.initialized:
            raise _rejected(ErrorTypes.NOT_INITIALIZED, "Init comes before Register")

    @workflow.update(name=Updates.ATTACH)
    def attach(self, attachment: Attachment) -> Receipt:
        self._attached(attachment)
        return Receipt(info="attached")

    @attach.validator
    def _is_registered(self, attachment: Attachment) -> None:
        if not self.state.registered:
            raise _rejected(ErrorTypes.NOT_REGISTERED, f"jobId={self.state.job.id} not registed")

    @workflow.update(name=Updates.DETACH)
    def detach(self, session: str) -> Receipt:
        """The stream of this subscription ended; a newer one stays."""
        if self.state.attachment and self.state.attachment.session == session:
            self.state = self.state.model_copy(update={"attachment": None})
        return Receipt(info="detached")

    def _attached(self, attachment: Attachment) -> None:
        before = self.state.attachment
        if before and before.queue != attachment.queue:
            ended = EndSession(job_id=self.state.job.id, session=before.session, reason="another subscriber took over")
            self._background = asyncio.create_task(steps.end_session(before.queue, ended))
        self.state = incidents.rejudge(self.state.model_copy(update={"attachment": attachment}))
        if self.climb:
            self.climb.tell(Signals.ATTACHED, attachment)

    @workflow.update(name=Updates.REPORT)
    def report(self, report: Report) -> Receipt:
        raise AssertionError("no report is ever accepted here")

    @report.validator
    def _nothing_waits(self, report: Report) -> None:
        if not self.state.registered:
            raise _rejected(ErrorTypes.NOT_REGISTERED, f"jobId={self.state.job.id} not registed")
        if self.climb:
            raise _rejected(ErrorTypes.BETWEEN_MODES, "between two modes, try again")
        raise _rejected(ErrorTypes.REPORT_UNEXPECTED, f"nothing waits for a report of {report.kind}")

    @workflow.update(name=Updates.FAULT)
    def fault(self, fault: Fault) -> Receipt:
        known = fault.episode in self.state.seen
        self.state = incidents.take_fault(self.state, fault)
        if self.climb and not known:
            if fault.kind is FaultKind.POD:
                self.climb.tell(Signals.POD_FAILED, fault)
            if fault.kind is not FaultKind.SUB_HEALTH and not fault.backup:
                self.climb.tell(Signals.REAL_FAULT, fault)
        return Receipt(info="known" if known else "taken")

    @fault.validator
    def _ranks_exist(self, fault: Fault) -> None:
        if problem := requests.fault_problem(self.state.job, fault):
            raise _rejected(ErrorTypes.REQUEST_INVALID, problem)

    @workflow.update(name=Updates.CLEARED)
    def cleared(self, episode: str) -> Receipt:
        self.state = incidents.clear_episode(self.state, episode)
        return Receipt(info="cleared")

    @workflow.update(name=Updates.PROBLEMS)
    def problems(self, problems: Problems) -> Receipt:
        """All that keep the job from being recovered, as its pods are now. What runs goes on; what comes next waits."""
        self._found(problems.found)
        return Receipt(info="noted")

    def _found(self, problems: tuple[str, ...]) -> None:
        before = self.state.problems
        if problems == before:
            return
        self.state = incidents.found_problems(self.state, problems)
        news = [problem for problem in problems if problem not in before]
        more = f" (and {len(news) - TOLD_AT_ONCE} more)" if len(news) > TOLD_AT_ONCE else ""
        for number, problem in enumerate(news[:TOLD_AT_ONCE], 1):
            self._record_soon("JobProblem", f"{problem}{more}" if number == TOLD_AT_ONCE else problem, warning=True)
        if not problems:
            self._record_soon("JobProblemsOver", "its pods are in order: the job can be recovered", warning=False)
        self._show()

    @workflow.update(name=Updates.PROGRESS)
    def progress(self, progress: Progress) -> Receipt:
        self.state = incidents.rejudge(self.state.model_copy(update={"progress": progress}))
        if self.climb:
            self.climb.tell(Signals.PROGRESSED, progress)
        return Receipt(info="noted")

    @workflow.update(name=Updates.REQUEST)
    def request(self, request: ModeRequest) -> Receipt:
        self.state = self.state.model_copy(update={"requests": (*self.state.requests, request)})
        return Receipt(info=f"{request.mode} accepted")

    @request.validator
    def _may_be_requested(self, request: ModeRequest) -> None:
        if self.state.ended:
            raise _rejected(ErrorTypes.JOB_ENDED, f"job {self.state.job.id} has ended: {self.state.ended}")
        if self.climb or self.state.requests or incidents.waiting_faults(self.state):
            what = self.climb.describe() if self.climb else "an incident that is about to start"
            raise _rejected(ErrorTypes.JOB_BUSY, f"job {self.state.job.id} is busy with {what}")
        if request.front == recovery_workflow(self.state.job.id):
            raise _rejected(ErrorTypes.REQUEST_INVALID, f"workflow id: {request.front} is reserved, use request/...")
        if problem := requests.invalid(self.state, request):
            raise _rejected(ErrorTypes.REQUEST_INVALID, problem)
        if reason := requests.refused(self.state, request):
            raise _rejected(ErrorTypes.REQUEST_REFUSED, reason)

    @workflow.signal(name=Signals.WITHDRAWN)
    async def withdrawn(self, front: str) -> None:
        """A front was cancelled: what it asked for is not begun, or its mode is cancelled, as far as that mode allows."""
        if self.climb:
            self.climb.withdraw(front)
        waiting = [request for request in self.state.requests if request.front == front]
        self.state = self.state.model_copy(update={"requests": tuple(r for r in self.state.requests if r not in waiting)})
        for request in waiting:
            verdict = Verdict(mode=request.mode, outcome=Outcome.CANCELLED, reason="cancelled by request, before it began")
            await self._tell_front(request, verdict)

    @workflow.update(name=Updates.LIFT)
    async def lift(self) -> Receipt:
        """An operator lifts the downgrade: the owner's policy holds again, and sub-healths are judged again."""
        if self.state.downgrade is None:
            return Receipt(info=f"nothing to lift: the policy is {self.state.policy}")
        self.state = incidents.rejudge(self.state.model_copy(update={"downgrade": None}))
        await self._publish_policy()
        await self._record("SubHealthDowngradeLifted", f"the sub-health policy is {self.state.policy} again", warning=False)
        self._show()
        return Receipt(info=f"the sub-health policy is {self.state.policy} again")

    @lift.validator
    def _may_be_lifted(self) -> None:
        if self.state.job.observe and self.state.downgrade:
            raise _rejected(ErrorTypes.REQUEST_REFUSED, observing.ONLY)

    @workflow.update(name=Updates.END)
    def end(self, reason: str) -> Receipt:
        self.state = self.state.model_copy(update={"ended": reason})
        if self.climb:
            self.climb.cancel()
        return Receipt(info="the job's workflow ends")

    @workflow.signal(name=Signals.UPGRADED)
    def upgraded(self) -> None:
        """Wakes a job that nothing happens to: with its next task the server says whether another version is current."""

    @workflow.query(name=Queries.STATUS)
    def status(self) -> JobStatus:
        return JobStatus(state=self.state, running=self.climb.mode if self.climb else None)


def _rejected(kind: str, message: str) -> ApplicationError:
    return ApplicationError(message, type=kind)
