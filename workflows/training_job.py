"""Entity workflow of one training job, for as long as the job lives. It decides, and runs one incident at a time.

It is started only by the registration of a job (update-with-start). All that happens to the job enters as updates: each has a
validator, which stores nothing, and one function of `workflows.job_reducers` that changes the state; `run` does the work. It
continues as new when its run is long, and never while an incident runs. It never fails, and ignores cancellations: the end of a
job is an update.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from rekindle.ids import ErrorTypes, Queries, Signals, Updates, Workflows
from rekindle.model import bounds, stored
from rekindle.model.account import Ended, TimeReport
from rekindle.model.activities.jobs import EndSession, RememberRequest
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.bounds import few
from rekindle.model.contract import Announced
from rekindle.model.dialogue import Receipt, Report
from rekindle.model.fault import WATCHER, FaultKind, FaultReport, ManagerGone, Sighting
from rekindle.model.job import Job, JobId
from rekindle.model.mode import Outcome
from rekindle.model.state import Contact, JobState, JobStatus, Registration
from rekindle.model.verdict import Verdict
from rekindle.policy.account import standing
from rekindle.policy.drain import drain_verdicts
from rekindle.policy.modes import cases, eligibility, faulty_ranks, requests
from rekindle.policy.modes.cases import Case
from workflows import again, attachments, faults, given_up, job_reducers, orphaned_recovery, steps, ui_text
from workflows.admission import Admission
from workflows.attachments import Standing
from workflows.given_up_pods import GivenUpPods
from workflows.incident import IncidentRun, look, pause_for_the_cluster
from workflows.job_context import JobContext
from workflows.journal import Journal
from workflows.leftover_pods import LeftoverPods
from workflows.news import News
from workflows.people_updates import PeopleUpdates, rejected, update_id
from workflows.shown import Shown
from workflows.skipped_decisions import SkippedDecisions
from workflows.standbys import Standbys

ROOM = 200
"""Number of history events after which a run ends at the end of an incident.

A new run costs the server more than the incident's own steps when many jobs fail at once. A run of this length is replayed in
milliseconds.
"""

LOOKS_AFTER = timedelta(hours=1)
"""Time without news after which the job is looked at. This backs up the watcher, and finds a job whose end was not seen."""

NOBODY = Job(id=JobId("unreadable"), name="unreadable", pods=1)
"""Placeholder for a job whose state cannot be read, until the workflow ends."""

COMES_BACK = timedelta(seconds=15)
"""Time limit for the stream of a job whose workflow was lost to attach.

A gateway with few streams offers each of them every 10 s.
"""


@workflow.defn(name=Workflows.TRAINING_JOB)
class TrainingJob(PeopleUpdates):
    @workflow.init
    def __init__(self, given: object) -> None:
        state, self._left_out = stored.read(JobState, given, needed=("job",))
        self._is_readable = state is not None
        self.known = JobContext(state or JobState.of(NOBODY))
        self.incident: IncidentRun | None = None
        self._is_resting = False
        self._heard, self._heard_at = self.known.sightings, workflow.now()
        """Number of messages about the job, and when it was found to have changed."""
        self._receipt_to = ""
        """Session of the stream whose gateway waits for the first order that the faults lead to."""
        self.journal = Journal(self.known, self._to_remember)
        self._leftovers = LeftoverPods(self.known)
        self._given_up_pods = GivenUpPods(self.known, self.journal)
        self._standbys = Standbys(self.known, self.journal)
        self._admission = Admission(self.known, self.journal)
        is_new = workflow.info().continued_run_id is None
        self._shown = Shown({} if is_new or not self._is_readable else ui_text.job_row(self.state, None))
        self._news = News(self.known, self.journal, lambda: self.incident)
        self._skipped = SkippedDecisions(self.known, self.journal)

    # ---- its life

    @workflow.run
    async def run(self, given: object) -> Ended:
        """Args:
            given: a `JobState`, as this version or an earlier one has written it.

        Raises:
            ApplicationError: it cannot be read; the watcher registers the job again.
        """
        if not self._is_readable:
            raise ApplicationError(
                f"the state of the job cannot be read: {bounds.note(repr(given))}",
                type=ErrorTypes.REQUEST_INVALID,
                non_retryable=True,
            )
        living = asyncio.create_task(self._live())
        while True:
            try:
                return await asyncio.shield(living)
            except asyncio.CancelledError:
                if living.done():
                    raise
                words = "the job's workflow was cancelled, which does nothing: it ends with its job"
                self.journal.soon(self.journal.record(self.state, "CancellationIgnored", words, warning=True))

    async def _live(self) -> Ended:
        is_long = False
        self._show()
        if self._left_out:
            words = f"an earlier version wrote the job's state otherwise; what cannot be read is left out: {few(self._left_out)}"
            self.journal.soon(self.journal.record(self.state, "StateReadInPart", words, warning=True))
        while not self.state.ended:
            self._forget_what_is_over()
            case = cases.next_case(self.state, workflow.now())
            if case:
                incidents = self.state.incidents
                await self._handle(case)
                if self.state.incidents != incidents:
                    self._begin_again()
                    is_long = _is_long()
            elif is_long or self._moves_on():
                if await self._is_at_rest():
                    self._show()  # the next run assumes that it was shown
                    # Only here a job moves to a newer version, so that an incident ends with the code that began it.
                    workflow.continue_as_new(
                        self.state, initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
                    )
            else:
                await self._wait()
        await self._dismiss_request()
        self._news.tell_maintenances(self.state.links, self.state.ended)
        await self._standbys.end()
        await workflow.wait_condition(self._is_quiet)
        account = standing.account_of(self.state, workflow.now().timestamp())
        return Ended(name=self.state.job.name, reason=self.state.ended, account=account)

    def _forget_what_is_over(self) -> None:
        before = self.state
        self.known.state = given_up.without(faults.without_over(before, workflow.now()))
        if drain_verdicts.is_due(self.state, workflow.now()):
            self.known.state = drain_verdicts.judged_again(self.state)
        if again.is_due(self.state, workflow.now()):
            self.known.state = again.judged_again(self.state)
        self.journal.words.sweep()
        if self.state is not before:
            self._show()
        if before.given_up and not self.state.given_up:
            self.journal.soon(self.journal.remember())

    async def _is_at_rest(self) -> bool:
        """Waits until everything is written; False: there is other work to do first."""
        now = workflow.now()
        due = cases.next_due(self.state, now)
        try:
            await self._rest(
                lambda: self._is_quiet() or self._has_work() or cases.next_due(self.state, now) != due,
                due - now if due else None,
                "a fault is given time",
            )
        except TimeoutError:
            return False
        return self._is_quiet() and not self._has_work()

    def _is_quiet(self) -> bool:
        return workflow.all_handlers_finished() and self.journal.is_quiet

    @staticmethod
    def _moves_on() -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()

    def _has_work(self) -> bool:
        return bool(self.state.ended) or cases.next_case(self.state, workflow.now()) is not None

    async def _wait(self) -> None:
        """Waits until there is work, or for the earliest of these: a fault that was given time becomes due, pods that were left
        behind or given up are to be deleted, standbys are to be made, or no sighting was received for long."""
        now = workflow.now()
        if await self._does_what_is_due(now):
            return
        if self._heard != self.known.sightings:
            self._heard, self._heard_at = self.known.sightings, now
        look_at = self._heard_at + LOOKS_AFTER
        moments = self._moments(now)
        until, why = min((moment, why) for why, moment in {**moments, "look at the job": look_at}.items() if moment)
        try:
            await self._rest(
                lambda: self._has_work() or self._moves_on() or self._moments(now) != moments,
                max(until - now, timedelta(0)),
                why,
            )
        except TimeoutError:
            if until == look_at and self._heard == self.known.sightings and not self._has_work():
                self._heard_at = workflow.now()
                if await look(self.known, self.journal):
                    self._show()

    def _moments(self, now: datetime) -> dict[str, datetime | None]:
        """Returns when something is to be done without news, by what it is. None: it is not."""
        return {
            "a fault is given time": cases.next_due(self.state, now),
            "delete what was left behind": self._leftovers.due(now),
            "see to the standbys": self._standbys.due,
            "end the pods of the given-up job": self._given_up_pods.due(),
        }

    async def _does_what_is_due(self, now: datetime) -> bool:
        """Does one thing that is due, and is no incident. Returns whether there was one."""
        standbys, sweep, pods = self._standbys.due, self._leftovers.due(now), self._given_up_pods.due()
        if standbys and standbys <= now:
            await self._standbys.keep(self._has_work)
            self._show()
        elif sweep and sweep <= now:
            if await self._leftovers.sweep(self._has_work):
                self.journal.soon(self.journal.remember())
        elif pods and pods <= now:
            await self._given_up_pods.end()
            self._show()
        else:
            return False
        return True

    async def _rest(self, condition: Callable[[], bool], limit: timedelta | None, why: str) -> None:
        """Waits for a condition. The event that ends the wait is handled in the same workflow task."""
        self._is_resting = True
        try:
            await workflow.wait_condition(condition, timeout=limit, timeout_summary=why)
        finally:
            self._is_resting = False

    # ---- a case

    async def _handle(self, case: Case) -> None:
        if self.state.lost_recovery:
            before, settled = self.state, await orphaned_recovery.is_settled(self.known, self.journal)
            self._news.tell_reset_links(before)
            if settled:
                self._show()
                return
            case = cases.lost_recovery(self.state)
        if self.state.misses_stream and any(fault.kind is not FaultKind.SUB_HEALTH for fault in case.faults):
            await self._await_stream()
            return
        if self._is_to_be_checked(case):
            before = self.state
            while not self.state.ended and not await look(self.known, self.journal):
                await pause_for_the_cluster(self.known)
            self._news.tell_reset_links(before)
            checked = cases.next_case(self.state, workflow.now())
            if self.state.ended or checked is None:
                self._show()
                return
            case = checked
        if case.plan.modes and not self.state.job.observe:
            await self._recover(case)
        else:
            self._skipped.take(case)
            self._show()

    async def _await_stream(self) -> None:
        """Waits once for the stream of a job whose workflow was lost.

        Without it only a restart of the job is possible. Does not wait if no process of the job is left.
        """

        def is_settled() -> bool:
            lost = faulty_ranks.is_nobody_left(self.state.job, cases.counting(self.state, workflow.now()), self.state.small)
            return not self.state.misses_stream or bool(self.state.ended) or lost

        with suppress(TimeoutError):
            await workflow.wait_condition(is_settled, timeout=COMES_BACK, timeout_summary="wait for the job's stream")
        self.known.state = self.state.with_(misses_stream=False)

    @staticmethod
    def _is_to_be_checked(case: Case) -> bool:
        """Returns whether the case must be checked before a mode begins.

        A fault of the watcher may be over by then, and modes for it end processes. A hot switch checks by itself: it begins with
        the pod that holds the rank.
        """
        return any(fault.source == WATCHER and fault.kind is not FaultKind.SUB_HEALTH for fault in case.faults)

    async def _recover(self, case: Case) -> None:
        """Runs one incident.

        A mode that has begun goes to its end even if the job is only observed from now on, as it would otherwise be left half
        done.
        """
        incident = self.incident = IncidentRun(case, self.known, self.journal, self._show, self._receipt_to)
        before, telling = self.state, asyncio.create_task(self._tell_what_comes_due())
        try:
            await incident.run()
        finally:
            telling.cancel()
            self.incident = None
            self._news.tell_reset_links(before)
        self._news.tell_maintenances(incident.taken_over, "moved by another request")
        self._admission.tell()
        self._show()

    def _begin_again(self) -> None:
        """Drops what was sent and tried before the incident, as a new run does: the same may be sent again after it."""
        self._news.forget()
        self._skipped = SkippedDecisions(self.known, self.journal)
        self._leftovers = LeftoverPods(self.known)
        self._given_up_pods = GivenUpPods(self.known, self.journal)

    async def _tell_what_comes_due(self) -> None:
        """Sends faults that become due during an incident to the running mode. Other news may arrive at the same time."""
        while True:
            now = workflow.now()
            due = cases.next_due(self.state, now)
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda due=due: cases.next_due(self.state, workflow.now()) != due,  # type: ignore[misc]
                    timeout=due - now if due else None,
                    timeout_summary="a fault is given time",
                )
            self._news.tell_faults()

    async def _dismiss_request(self) -> None:
        if (waiting := self.state.request) and waiting.request.mode:
            verdict = Verdict(mode=waiting.request.mode, outcome=Outcome.CANCELLED, reason=self.state.ended)
            self.known.state = job_reducers.answered(self.state, waiting.id, verdict)

    def _show(self) -> None:
        """Renews the job's row and page in the Temporal UI."""
        running = self.incident.mode if self.incident else None
        recovery = self._running()
        self._shown.tell(ui_text.job_row(self.state, running))
        workflow.set_current_details(ui_text.job_page(self.state, running, recovery))

    # ---- the watcher: the job, its pods and nodes, its end

    @workflow.update(name=Updates.REGISTER)
    def register(self, registration: Registration) -> Receipt:
        self.known.state = job_reducers.registered(self.state, registration, workflow.now())
        if registration.sighting:
            self._sighted(registration.sighting)
        if self.incident is None:
            self.journal.words.sweep()
        self._show()
        return Receipt(info=f"job {registration.job.id} is registered")

    @register.validator
    def _same_job(self, registration: Registration) -> None:
        if registration.job.id != self.state.job.id:
            words = f"job.id: {registration.job.id} is not this job, {self.state.job.id}"
            raise rejected(ErrorTypes.REQUEST_INVALID, words)

    @workflow.update(name=Updates.SIGHTING)
    def sighting(self, sighting: Sighting) -> Receipt:
        self._sighted(sighting)
        self._show()
        return Receipt(info="seen")

    def _sighted(self, sighting: Sighting) -> None:
        self.known.sightings += 1
        before = self.state
        self.known.state = job_reducers.sighted(before, sighting, workflow.now(), restarting=self._restarts_pods())
        self.journal.problems(self.state, before.problems)
        self.journal.whole_again(before.small, self.state.small)
        if self.journal.lost_manager(self.state, before.manager_lost):
            self._news.tell(Signals.MANAGER_LOST, ManagerGone(how=self.state.manager_lost))
        self._standbys.tell()
        if self.incident is None:
            self._admission.tell()
        self._news.tell_faults()
        self._news.tell_reset_links(before)

    def _restarts_pods(self) -> bool:
        return self.incident is not None and self.incident.restarts_pods

    @workflow.update(name=Updates.END)
    def end(self, reason: str) -> Receipt:
        self.known.state = self.state.with_(ended=reason)
        if self.incident:
            self.incident.end()
        return Receipt(info="the job's workflow ends")

    # ---- the training side, by way of a gateway

    @workflow.update(name=Updates.ATTACH)
    def attach(self, attachment: Attachment) -> Receipt:
        """Records that a stream of the job is at a gateway.

        Gateways repeat it at intervals, so that a lost state is completed again.
        """
        state, before = self.state, self.state.attachment
        self.known.state = job_reducers.attached(state, attachment, workflow.now(), restarting=self._restarts_pods())
        self.journal.lost_manager(self.state, state.manager_lost)
        self.journal.unsure(self.state, state.unsure_since)
        self._news.tell_faults()
        self._news.tell_reset_links(state)
        if before and before.queue != attachment.queue:
            ended = EndSession(job_id=self.state.job.id, session=before.session, reason="another subscriber took over")
            self.journal.soon(steps.end_session(before.queue, ended))
        here = self.state.attachment
        if here and here != before:
            self._news.tell(Signals.ATTACHED, here)
        self._show()
        return Receipt(info="attached")

    @attach.validator
    def _is_news(self, attachment: Attachment) -> None:
        standing = attachments.standing(self.state, attachment)
        if standing is Standing.KNOWN:
            raise rejected(ErrorTypes.ATTACHMENT_KNOWN, "attached already")
        if standing is Standing.OVER:
            raise rejected(ErrorTypes.ATTACHMENT_OVER, "another subscriber took over")
        if not eligibility.recovery_is_on(self.state.job):
            raise rejected(ErrorTypes.RECOVERY_OFF, eligibility.RECOVERY_OFF)

    @workflow.update(name=Updates.DETACH)
    def detach(self, session: str) -> Receipt:
        """Records that the stream of this subscription ended; a newer one stays."""
        ended = self.state.attachment
        self.known.state = attachments.detached(self.state, session)
        if ended and ended.session == session:
            self._news.tell(Signals.DETACHED, ended)
        self._show()
        return Receipt(info="detached")

    @detach.validator
    def _ends_something(self, session: str) -> None:
        if attachments.end_is_known(self.state, session):
            raise rejected(ErrorTypes.ATTACHMENT_KNOWN, "detached already")

    @workflow.update(name=Updates.PROGRESS)
    def progress(self, progress: Progress) -> Receipt:
        before, recovering = self.state, bool(self.incident or self.state.lost_recovery)
        self.known.state = job_reducers.progressed(before, progress, workflow.now(), recovering=recovering)
        self._news.tell(Signals.PROGRESSED, progress)
        self._news.tell_faults()
        self._news.tell_reset_links(before)
        self._show()
        return Receipt(info="noted")

    @workflow.update(name=Updates.TIME)
    def time(self, report: TimeReport) -> Receipt:
        recovering = bool(self.incident or self.state.lost_recovery)
        self.known.state = job_reducers.timed(self.state, report, recovering=recovering)
        return Receipt(info="counted", counted=standing.counted(self.state))

    @workflow.update(name=Updates.REPORT)
    def report(self, report: Report) -> Receipt:
        raise AssertionError("no report is ever accepted here")

    @report.validator
    def _who_waits_for_it(self, report: Report) -> None:
        if not self.state.introduced:
            raise rejected(ErrorTypes.NOT_REGISTERED, f"jobId={self.state.job.id} not registed")
        if recovery := self._running():
            raise rejected(ErrorTypes.REPORT_ELSEWHERE, recovery)
        if self.incident:
            raise rejected(ErrorTypes.BETWEEN_MODES, "between two modes, try again")
        raise rejected(ErrorTypes.REPORT_UNEXPECTED, f"nothing waits for a report of {report.kind}")

    @workflow.update(name=Updates.REPORT_FAULTS)
    async def report_faults(self, report: FaultReport) -> Receipt:
        """Records faults.

        The receipt contains the first order if that follows from the faults alone, and its gateway sends it at once.
        """
        self.known.state = job_reducers.reported(
            self.state, report, workflow.now(), recovering=self.incident is not None, update_id=update_id()
        )
        self._news.tell_faults()
        if not (report.takes_order and self._is_resting and self._has_work()):
            return Receipt(info="taken")
        self._receipt_to = report.faults[0].session
        await workflow.wait_condition(lambda: not self._is_resting)
        self._receipt_to = ""
        begun = self.incident
        if begun is None or begun.first_order is None:
            return Receipt(info="taken")
        return Receipt(info="taken", order=begun.first_order, recovery=begun.recovery)

    @report_faults.validator
    def _fits(self, report: FaultReport) -> None:
        problem = requests.fault_problem(self.state.job, report.faults) or faults.room_problem(self.state, report)
        if problem:
            raise rejected(ErrorTypes.REQUEST_INVALID, problem)
        strangers = any(attachments.is_missing(self.state, fault.session) for fault in report.faults)
        if strangers and eligibility.recovery_is_on(self.state.job):
            raise rejected(ErrorTypes.ATTACHMENT_MISSING, "the job's stream has to be attached before its faults are reported")

    def _running(self) -> str:
        """Returns the workflow id of the running recovery, or of one that an earlier workflow of the job had started; empty:
        none."""
        return self.incident.recovery if self.incident else self.state.lost_recovery

    def _to_remember(self) -> RememberRequest:
        recovery = self._running()
        return RememberRequest(
            job_id=self.state.job.id,
            memory=job_reducers.to_remember(self.state, recovery),
            recovering=(self.incident.mode if self.incident else None) or "",
            last_verdict=job_reducers.last_verdict(self.state),
            given_up=given_up.words(self.state),
        )

    @workflow.signal(name=Signals.VERDICT)
    def verdict_of_a_cancelled_mode(self, verdict: Verdict) -> None:
        if self.incident:
            self.incident.verdict_told(verdict)

    @workflow.signal(name=Signals.ANNOUNCED)
    def announced(self, told: Announced) -> None:
        if self.incident:
            self.journal.words.announced(told)

    @workflow.signal(name=Signals.SHOW_AGAIN)
    def show_again(self) -> None:
        self._shown.again()

    @workflow.signal(name=Signals.UPGRADED)
    def upgraded(self) -> None:
        """Causes a workflow task for an idle job, by which the server reports whether another version is current."""

    # ---- questions

    @workflow.query(name=Queries.CONTACT)
    def contact(self) -> Contact:
        """Returns what a gateway must know when the job's manager connects. Stores nothing."""
        return Contact(
            ended=self.state.ended,
            recovery_on=eligibility.recovery_is_on(self.state.job),
            introduced=self.state.introduced,
            recovering=self.incident is not None or self._has_work(),
            progress=self.state.progress,
            trace=self.state.trace,
        )

    @workflow.query(name=Queries.STATUS)
    def status(self) -> JobStatus:
        incident = self.incident
        asked = (incident and incident.case.request) or self.state.request  # a waiting request, while an incident of faults runs
        request, front = (asked.id, asked.request.front) if asked else ("", "")
        mode = incident.mode if incident else None
        return JobStatus(
            state=self.state,
            running=mode,
            recovery=self._running(),
            request=request,
            front=front,
            begun=incident.begun if incident else None,
        )


def _is_long() -> bool:
    return workflow.info().get_current_history_length() > ROOM
