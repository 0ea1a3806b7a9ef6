"""Incident: runs the modes of a case one after the other until one of them ends it, and stores what they did.

Run by `TrainingJob`, one at a time. It never fails: whatever a mode does becomes a verdict.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

from rekindle.ids import Signals
from rekindle.model import bounds
from rekindle.model.approval import Answer
from rekindle.model.base import Value
from rekindle.model.dialogue import Order
from rekindle.model.fault import WATCHER, Fault, FaultKind, FaultReport, ManagerGone, not_among
from rekindle.model.incident import Begun, Incident, RecoveryContext
from rekindle.model.links import OnBackup
from rekindle.model.mode import Mode, Outcome
from rekindle.model.node_record import Blame
from rekindle.model.situation import Own, Situation
from rekindle.model.spares import SpareNews
from rekindle.model.verdict import Verdict
from rekindle.policy.drain import drain_verdicts
from rekindle.policy.modes import approvals, cases, elastic, ladder, loops, recovery_opening, retries, succession
from rekindle.policy.modes.cases import Case
from rekindle.policy.modes.mode_table import LAST, About, row_of
from rekindle.policy.operations import links
from rekindle.policy.placement import avoided_nodes, node_records, spares, standbys
from rekindle.policy.training_sides.table import side_of
from workflows import attachments, faults, given_up, job_reducers, metrics, steps
from workflows.approvals import Approvals
from workflows.child import Child
from workflows.dialogue import Dialogue, cancel_and_forget
from workflows.job_context import JobContext
from workflows.journal import Journal, event_of
from workflows.leftover_pods import delete_backups
from workflows.platform import Platform

STAND = (About.RANKS, About.LINKS, About.CHECKS, About.SIZE)
"""Subjects of modes that finish their work while training stands."""

GIVEN = 64
"""Maximum number of faults that are passed to a mode. More of them lead to the same procedure."""

UNANSWERED = timedelta(seconds=10)
"""Pause before a look that the cluster did not answer is repeated."""

BETWEEN = timedelta(seconds=10)
"""Time for a look between two incidents. A process fault that came meanwhile must not wait for a cluster that is away."""

LOOKED_AT = 100
"""Maximum number of nodes that one look of our own reads, as many as a sighting has."""


class IncidentRun:
    def __init__(self, case: Case, known: JobContext, journal: Journal, shown: Callable[[], None], receipt_to: str) -> None:
        """Args:
        shown: renews the job's row and page in the Temporal UI.
        receipt_to: session of the stream whose gateway waits for the receipt of these faults; empty: none does.
        """
        self._receipt_to = receipt_to
        self.first_order: Order | None = None
        """Order that this receipt contains, so that the first mode need not send it."""
        self.case = case
        self._known, self._journal, self._show = known, journal, shown
        self._child: Child | None = None
        self._situation = Situation(faults=case.faults)
        self._met: tuple[Fault, ...] = ()
        self._began, self._attachment = workflow.now(), known.state.attachment
        self._stood_by = {one.uid for one in known.state.standbys}
        self.taken_over: tuple[OnBackup, ...] = ()
        """Ranks whose links were moved by another client than their maintenance, which is waiting for them."""
        self._approvals = Approvals(case, known, journal, shown)
        self._platform = Platform(case, known)
        self._denied = ladder.left_out(case.request.request if case.request else None)
        """Modes that are not tried in this incident, since a person does not want them."""
        self._aborted = ""
        """Who aborted the incident, and why. Empty: it was not aborted."""
        self._ending = False
        self._number = 0
        self._verdicts: list[Verdict] = []
        self._was_terminated = False
        """True if the last mode was terminated from outside. That says nothing about the faults, so they are judged again."""
        self._repeated: set[Mode] = set()
        """Modes that were carried out again because they were terminated."""

    # ---- what the entity passes on

    @property
    def mode(self) -> Mode | None:
        return self._child.mode if self._child else None

    @property
    def recovery(self) -> str:
        """Workflow id of the running mode; empty between two modes."""
        return self._child.id if self._child else ""

    @property
    def restarts_pods(self) -> bool:
        """True if the running mode replaces all pods of the job. Their changes are then no faults."""
        return self.mode is not None and row_of(self.mode).about is About.JOB

    @property
    def begun(self) -> Begun:
        """The incident until now."""
        return Begun(
            number=self._number,
            summary=self.case.summary,
            started_at=self._began,
            ladder=tuple(verdict.with_(unread=(), tested=None) for verdict in self._verdicts),
            waits=tuple(self._approvals.waits),
            faults=self.case.faults[:GIVEN],
        )

    def describe(self) -> str:
        return f"{self.mode or 'an incident'}: {self.case.summary}"

    def tell(self, signal: str, payload: Value) -> None:
        """Sends a signal to the running mode.

        Between two modes nothing is sent, as the next one starts with the current state.
        """
        if self._child:
            self._child.tell(signal, payload)

    def end(self) -> None:
        """Ends the incident because the job has ended: the running mode is cancelled, and none follows."""
        self._ending = True
        if self._child:
            if row_of(self._child.mode).about in STAND:  # training of a job that has ended no longer stands
                self._child.tell(Signals.MANAGER_LOST, ManagerGone(how="the job has ended"))
            self._child.cancel("the job ends")

    def withdraw(self, request_id: str) -> None:
        """Cancels the requested mode, as its requester withdraws it.

        The mode goes to its end where it must not stop half-way. A mode that had to come after it was not requested, and
        continues. So does one after a dying gasp, as training stands.
        """
        asked, first = self.case.request, next(iter(self.case.plan.modes), None)
        if asked and asked.id == request_id and self._child and self._child.mode is first:
            self._child.cancel("cancelled by request")

    @property
    def gives_way(self) -> bool:
        """True if the incident is an attempt of the job to grow by itself, which a request ends.

        It is none any more if another mode follows, which recovers what has come meanwhile, or what the attempt has left.
        """
        return self.case.replicas is not None and not self._verdicts

    def give_way(self) -> None:
        """Cancels the attempt to grow, as a person wants something else. If training is touched, it goes to its end first."""
        if self.gives_way and self._child:
            self._child.cancel("a request comes first")

    def answer(self, answer: Answer) -> None:
        """Takes a person's answer to the question whether the next mode may run."""
        self._approvals.take(answer)

    def abort(self, words: str) -> None:
        """Ends the incident on behalf of a person: the running mode is cancelled, and none follows.

        A mode that must not stop half-way goes on to its end.
        """
        self._aborted = self._aborted or words
        if self._child:
            self._child.cancel(words)

    def verdict_told(self, verdict: Verdict) -> None:
        if self._child:
            self._child.told = verdict

    # ---- the procedure

    async def run(self) -> None:
        state = self._known.state = job_reducers.begun(self._known.state, self.case)
        self._number = state.incidents
        self._journal.words.incident_begins()
        verdicts = self._verdicts
        while mode := await self._chosen_mode(verdicts):
            verdict = await self._unapproved(mode, verdicts) or self._noted(await self._run_mode(mode))
            if mode is LAST.mode and self.case.plan.passed_over and verdict.outcome is Outcome.RECOVERED:
                verdict = verdict.with_(reason=bounds.reason(f"{verdict.reason}; {self.case.plan.passed_over}"))
            verdicts.append(drain_verdicts.decided(self.case, self._known.state, workflow.now(), verdict))
            await self._apply(verdicts[-1])
            is_awaited = bool(verdicts[-1].unread)  # a report came too late: training stands until it is restarted
            goes_on = is_awaited or bool(self._aborted)
            if verdicts[-1].was_interrupted and not goes_on and not await self._is_broken():
                break
        await self._conclude(verdicts)
        over = verdicts[-1].outcome in (Outcome.RECOVERED, Outcome.CANCELLED)
        if self._aborted and verdicts[-1].outcome is not Outcome.RECOVERED:
            self._known.state = given_up.aborted(self._known.state, verdicts[-1], self._number, workflow.now())
        elif over and any(verdict.was_interrupted for verdict in verdicts):  # the faults of the mode remain, and are tried again
            self._known.state = faults.rejudged(self._known.state)
        if self._was_terminated and not self._aborted:
            self._known.state = faults.rejudged(self._known.state, every=True)

    def _noted(self, verdict: Verdict) -> Verdict:
        """Returns the verdict of a mode with who decided about it."""
        return self._platform.noted(self._approvals.noted(verdict))

    async def _is_broken(self) -> bool:
        """Returns whether the fault that interrupted a mode still exists.

        The next mode of the ladder ends processes, so a fault of the watcher is looked at again first. For other faults the
        cluster need not answer.
        """
        while not self._stopped() and all(fault.source == WATCHER for fault in self._news()):
            looking = asyncio.create_task(look(self._known, self._journal))
            await workflow.wait_condition(lambda: looking.done() or bool(self._stopped()))  # noqa: B023
            if not looking.done():
                cancel_and_forget(looking)
            elif looking.result():
                break
            await pause_for_the_cluster(self._known, self._stopped)
        return bool(self._news())

    def _news(self) -> list[Fault]:
        """Returns the faults that occurred since the mode began, without those of backup pods."""
        counting = cases.counting(self._known.state, workflow.now())
        return [fault for fault in not_among(counting, self._met) if not fault.backup]

    async def _chosen_mode(self, verdicts: list[Verdict]) -> Mode | None:
        """Returns the next mode of the incident, after the platform was asked that decides about the job. None: it is over."""
        mode = self._next_mode(verdicts)
        if mode is None or not self._platform.decides(mode):
            return mode
        self._receipt_to = ""  # the receipt does not wait for a platform
        await self._platform.ask(self._stopped)
        return self._next_mode(verdicts)

    def _next_mode(self, verdicts: list[Verdict]) -> Mode | None:
        """Returns the next mode of the incident; None: the incident is over."""
        if not verdicts:
            return next(mode for mode in self.case.plan.modes if mode not in self._platform.denied)
        last = verdicts[-1]
        if self._ending or self._stopped() or not (last.outcome is Outcome.ESCALATE or last.was_interrupted):
            return None
        return self._following(verdicts)

    def _following(self, verdicts: list[Verdict], *further: Mode) -> Mode | None:
        tried = (*self._situation.tried, *self._denied, *self._platform.denied, *further)
        return succession.next_after(self._known.state, verdicts, self.case.plan.modes, tried, workflow.now())

    async def _unapproved(self, mode: Mode, verdicts: list[Verdict]) -> Verdict | None:
        """Returns the verdict of a mode that may not run, since a person denied it, or will not answer. None: it may."""
        if why := self._stopped():  # while the platform was asked
            return Verdict(mode=mode, outcome=Outcome.CANCELLED, reason=why)
        if self._known.state.job.approvals or self._known.state.storm:
            self._receipt_to = ""  # the receipt does not wait for a person or for a storm, so that it carries no order
        follows = self._following(verdicts, mode) if verdicts else next(iter(self.case.plan.modes[1:]), None)
        since, ran = workflow.now(), [verdict for verdict in verdicts if verdict.mode in self._situation.tried]
        for one in approvals.asked_before(mode, follows):
            if verdict := await self._approvals.verdict(one, self._number, ran, self._stopped, since):
                self._denied, self._was_terminated = (*self._denied, one), False
                return verdict
        return None

    def _stopped(self) -> str:
        return self._aborted or (self._known.state.ended and f"{self._known.state.ended} before the mode was approved")

    async def _run_mode(self, mode: Mode) -> Verdict:
        """Runs a mode and returns its verdict. An internal error becomes a verdict too."""
        self._was_terminated = False
        state = self._known.state
        requested = self.case.request is not None
        is_last = mode is LAST.mode
        if mode in retries.RESTARTS and (why := cases.no_restart(state, workflow.now(), requested=requested, whole=is_last)):
            return Verdict(mode=mode, outcome=Outcome.GIVEN_UP, reason=why)
        self._child = Child(mode, self.case, self._number, state.job)
        self._show()
        context = self._context(workflow.now())
        self.first_order = self._order_of_the_receipt(mode, context)
        try:
            await self._child.start(context.model_copy(update={"first_order": self.first_order}))
            self._journal.needs(spares.news(mode, context))
            self._journal.soon(self._journal.remember())  # after the start, which is urgent
            self._journal.words.mode_begins(mode, context.situation)
            verdict = await self._child.verdict()
        except (FailureError, TimeoutError) as error:
            verdict = Verdict(mode=mode, outcome=Outcome.ESCALATE, reason=f"the mode could not be run: {error}")
        finally:
            self._was_terminated, self._child = self._child.was_terminated, None
        self._known.state = job_reducers.with_refusing(self._known.state, verdict.failed_on, workflow.now())
        tried = (*self._situation.tried, mode)
        if self._was_terminated and verdict.outcome is Outcome.IGNORED:
            await delete_backups(self._known)
        elif self._may_repeat(mode):
            tried = self._situation.tried
            verdict = verdict.with_(reason=bounds.reason(f"{verdict.reason}; it is carried out again"), training=None)
        learnt = verdict.situation or self._situation
        self._situation = learnt.with_(faults=self.case.faults, tried=tried, unread=verdict.unread)
        self._journal.words.mode_ended(verdict, self._situation)
        return verdict.with_(situation=None)

    def _may_repeat(self, mode: Mode) -> bool:
        """Returns whether a mode that was terminated from outside is carried out again, once. It is unknown how far it came."""
        row, side = row_of(mode), side_of(self._known.state.job)
        if not (self._was_terminated and row.repeats and side.scales_at_will) or mode in self._repeated:
            return False
        is_over = self._ending or bool(self._stopped())
        if is_over or (row.hands_over and self._news()):  # a fault comes first, and which pods train is unknown
            return False
        self._repeated.add(mode)
        self._receipt_to = ""
        return True

    def _order_of_the_receipt(self, mode: Mode, context: RecoveryContext) -> Order | None:
        """Returns the first order, if the receipt of the faults can carry it; None: it cannot.

        Only our training side is sent one: it carries out an order once, and the mode repeats it if it is not answered soon.
        """
        here = context.attachment
        if self._situation.tried or not here or here.session != self._receipt_to:
            return None
        order = recovery_opening.first_order(context.job, context.situation, mode, Dialogue.new_uuid())
        return order and order.model_copy(update={"session": here.session, "at_once": True})

    def _context(self, now: datetime) -> RecoveryContext:
        """Returns what a mode needs to know of the job. Nodes with any fault are avoided, if the policy respects that."""
        state = self._known.state
        sub_healths = (one.fault for one in state.faults if one.fault.kind is FaultKind.SUB_HEALTH)
        standing = (*cases.counting(state, now), *sub_healths)  # a fault that a mode is not given counts as new for it
        everything = (*self.case.faults, *not_among(standing, self.case.faults))
        self._met = everything
        suspects = (*job_reducers.refusing(state, now), *loops.suspects(state))
        return RecoveryContext(
            job=state.job,
            incident=self._number,
            attachment=state.attachment,
            situation=self._situation.with_(faults=everything[:GIVEN]),
            incarnation=state.progress.incarnation if state.progress else "",
            sessions=attachments.sessions(state),
            policy=state.policy,
            avoid_nodes=avoided_nodes.to_avoid(everything, state.policy, suspects),
            lost_nodes=avoided_nodes.lost(everything),
            holders=state.holders,
            links=state.links,
            small=state.small,
            front=self.case.request.request.front if self.case.request else "",
            platform=self._platform.has_answered,
        )

    async def _apply(self, verdict: Verdict) -> None:
        """Applies a verdict. A downgrade is written where the scheduler reads it before the next mode starts pods."""
        if verdict.found:
            report = FaultReport(faults=verdict.found)
            self._known.state = job_reducers.reported(self._known.state, report, workflow.now(), recovering=True)
        before = self._known.state
        self._known.state = job_reducers.with_links(before, verdict)
        mover = self.case.request.request.front if self.case.request else ""
        self.taken_over += links.taken_over(before.links, self._known.state.links, mover)
        before = self._known.state
        self._known.state = job_reducers.downgraded(before, verdict, workflow.now())
        if self._known.state.policy is not before.policy:
            await self._journal.publish_policy(lambda: self._known.state)
            worth_it = drain_verdicts.worth_it(verdict)
            words = f"sub-health is ignored from now on, until `rekindle policy lift`: {verdict.reason}{worth_it}"
            await self._journal.record(self._known.state, "SubHealthDowngraded", words, warning=True)

    async def _conclude(self, verdicts: list[Verdict]) -> None:
        last = verdicts[-1] = self._final(verdicts[-1])
        self._journal.words.incident_is_over()
        incident = Incident(
            number=self._number,
            summary=self.case.summary,
            started_at=self._began,
            seconds=(workflow.now() - self._began).total_seconds(),
            verdict=last.outcome,
            ladder=tuple(verdict.with_(unread=()) for verdict in verdicts),
            policy_after=self._known.state.policy,
            waits=tuple(self._approvals.waits),
            faults=self.case.faults,
        )
        metrics.concluded(incident, self._approvals.waited_for)
        known = self._known
        is_wait = drain_verdicts.waits(known.state.job, self.case, last)
        history = known.state.history
        repeated = drain_verdicts.waited(history, self.case) if is_wait else elastic.repeated(history, self.case.summary, last)
        known.state = job_reducers.concluded(known.state, self.case, incident, self._met)
        if any(moved.after.uid in self._stood_by for verdict in verdicts for moved in verdict.switched):
            known.state = known.state.with_(upkeep=standbys.taken(known.state.upkeep))
        self._show()
        is_left_alone = last.outcome in (Outcome.REFUSED, Outcome.IGNORED)
        if is_left_alone and (last.passing or known.state.attachment not in (None, self._attachment)):
            known.state = faults.rejudged(known.state)  # a missing stream, or an outage of ours, may have been the reason
        moved = any(verdict.switched or verdict.restarted_at or verdict.resized for verdict in verdicts)
        touched = moved or LAST.mode in self._situation.tried
        if touched and not known.state.ended:
            await look(known, self._journal, BETWEEN)
        if self.case.request:
            tested = next((verdict.tested for verdict in verdicts if verdict.tested), None)
            known.tested = {self.case.request.id: tested} if tested else {}
            answer = _answer(verdicts, self.case.request.request.mode)
            known.state = job_reducers.answered(known.state, self.case.request.id, answer)
        self._journal.needs(SpareNews())
        self._journal.soon(self._note(last, repeated, node_records.blame(known.state, incident)))

    async def _note(self, last: Verdict, repeated: Incident | None, blame: Blame | None) -> None:
        """Writes the notes of the incident one after the other, so that histories are reproducible.

        It runs in the background: the cluster may not answer for long, and the next incident must not wait for that.
        """
        warning, reason = last.outcome is not Outcome.RECOVERED, f"Recovery{last.outcome.title().replace('_', '')}"
        event = event_of(self._known.state, reason, f"{last.mode}: {last.reason}", warning=warning)
        await self._journal.remember(event if repeated is None else None, blame, self._number)
        is_told = drain_verdicts.is_told(self.case, repeated, self._began)
        if is_told and (why := drain_verdicts.why_held(self._known.state, self.case, last)):
            await self._journal.drain_waits(self._known.state, self.case.faults[0], why)

    def _final(self, verdict: Verdict) -> Verdict:
        """Returns the final verdict.

        What the last mode escalates is given up. If the job ended, the cancellation was not a person's, and failures meanwhile
        need no attention.
        """
        ended = self._known.state.ended and f"{self._known.state.ended} before the recovery ended"
        if ended and verdict.outcome is Outcome.CANCELLED:
            return verdict.with_(reason=ended)
        if ended and verdict.outcome is Outcome.ESCALATE:
            return verdict.with_(outcome=Outcome.CANCELLED, training=None, reason=f"{ended}: {verdict.reason}")
        if self._aborted and verdict.outcome in (Outcome.ESCALATE, Outcome.GIVEN_UP):
            outcome = Outcome.CANCELLED if verdict.outcome is Outcome.ESCALATE else verdict.outcome
            return verdict.with_(outcome=outcome, training=None, reason=f"{self._aborted}: {verdict.reason}")
        if verdict.outcome is Outcome.ESCALATE:
            return verdict.with_(outcome=Outcome.GIVEN_UP, training=None)
        return verdict


def _answer(verdicts: list[Verdict], mode: Mode | None) -> Verdict:
    """Returns the answer to the request for a mode. The mode that saves the state first may come before it."""
    first, last = next((verdict for verdict in reversed(verdicts) if verdict.mode is mode), verdicts[0]), verdicts[-1]
    return last if first is last else last.with_(asked=Own(outcome=first.outcome, reason=first.reason))


async def pause_for_the_cluster(known: JobContext, stopped: Callable[[], str] = lambda: "") -> None:
    """Waits before the cluster is asked again, unless the job has ended or the wait is stopped for another reason."""
    try:
        await workflow.wait_condition(
            lambda: bool(known.state.ended or stopped()), timeout=UNANSWERED, timeout_summary="wait for the cluster"
        )
    except TimeoutError:
        pass


async def look(known: JobContext, journal: Journal, within: timedelta = steps.LOOK_WITHIN) -> bool:
    """Reads the job's pods and the nodes of its faults from the cluster; False: the cluster did not answer.

    If a sighting arrived meanwhile, the result is not used.

    Args:
        within: time in which a look that the cluster does not answer is repeated.
    """
    state, before = known.state, known.sightings
    of_standbys = {one.node for one in state.standbys if one.wrong}
    named = sorted(({one.fault.node for one in state.faults} | of_standbys) - {""})[:LOOKED_AT]
    try:
        survey = await steps.survey(state.job.id, tuple(named), within)
    except ActivityError as error:
        workflow.logger.warning("job not observed before its next mode", extra={"error": str(error.cause)})
        return False
    if survey.ended:
        known.state = known.state.with_(ended=survey.ended)
    elif known.sightings == before:
        known.state = job_reducers.surveyed(known.state, survey, workflow.now())
        journal.problems(known.state, state.problems)
        journal.whole_again(state.small, known.state.small)
        journal.lost_manager(known.state, state.manager_lost)
    return True
