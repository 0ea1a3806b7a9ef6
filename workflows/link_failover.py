"""Maintenance of links: moves devices of a job to their backup link, and back days later. Begun by a person or a platform.

It occupies the job's only recovery just while links are being moved: it requests a link switch from the `TrainingJob`, as any
client does. A fault in the days between is therefore recovered as always. It moves to a newer version of the code while it waits.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from rekindle.errors import BadInput, NotFound
from rekindle.ids import ErrorTypes, FailoverUpdates, Queries, Signals, Workflows
from rekindle.model import bounds, stored
from rekindle.model.activities.requests import AskRequest
from rekindle.model.activities.targets import ResolveLinksRequest
from rekindle.model.dialogue import Receipt
from rekindle.model.incident import ModeRequest
from rekindle.model.links import LinksReset, NodeLinks, Placed, describe, named
from rekindle.model.maintenance import KEPT_MOVES, FailoverRequest, Maintenance, Move, Stage, SwitchBack
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import requests
from rekindle.policy.modes.mode_table import LAST
from rekindle.policy.operations import links
from rekindle.temporal import Attributes
from workflows import steps
from workflows.mode import finished
from workflows.shown import Shown

EXAMPLE = '{"job": "gpt", "links": [{"node": "node-1", "devices": ["0"], "backup": true}]}'

TRIES = 3
"""Tries of one movement, which faults of the job may interrupt."""

BUSY = timedelta(seconds=5)
"""Pause before a job that is being recovered is asked again."""

PATIENCE = timedelta(hours=1)
"""Longest time for which a job that is being recovered is waited for."""

ABSENT, LONGEST_ABSENT = timedelta(seconds=1), timedelta(seconds=20)
"""Pause before a job that cannot be paused now is asked again.

It doubles up to the second value, since each try is an incident.
"""

ABSENCE = timedelta(minutes=1)
"""Longest time for which a job that cannot be paused now is waited for. Its manager, or the gateway, may just have restarted."""

WAITS = "waits for the job"

WAITED_FOR = {
    Stage.FAILING_OVER: "the job, which moves them to the backup link",
    Stage.ON_BACKUP: "the switchback: `rekindle switchback`, or the signal `switchback`",
    Stage.SWITCHING_BACK: "the job, which moves them to the first link",
}


class _NotMoved(Exception):
    """Devices were not moved. Contains the reason, and whether another try may help."""

    def __init__(self, reason: str, kind: str = ErrorTypes.REQUEST_REFUSED, *, passing: bool = True) -> None:
        super().__init__(reason)
        self.kind, self.passing = kind, passing


@workflow.defn(name=Workflows.LINK_FAILOVER, failure_exception_types=[Exception])
class LinkFailover:
    @workflow.init
    def __init__(self, given: object = None) -> None:
        given, self._left_out = stored.with_known(Maintenance, given, ("job_id", "on_backup", "stage"))
        self.request, self._misread = _read(given)
        request = self.request
        self.known = request.known or Maintenance(job=request.name or request.job)
        self._shown = Shown(_row(request.known) if request.known else {})
        self._began = request.known is not None
        """True if the job has accepted the movement, or has done it."""
        self._refusal: _NotMoved | None = None
        self._wanted: list[SwitchBack] = []
        self._answers: list[Receipt | _NotMoved] = []
        self._job_is_over = ""
        self._returned = False
        """True if devices were moved back and the upgrade that they belong to has no signal of it yet."""
        self._reset: set[int] = set()
        """Ranks whose pods were replaced since the job was last asked. The job's verdict may arrive later, and be older."""

    @workflow.run
    async def run(self, given: object = None) -> Maintenance:
        """Args:
            given: a `FailoverRequest` as the client wrote it.

        Raises:
            ApplicationError: nothing was moved; says why.
        """
        cancelled = SwitchBack(requested_by="a cancellation of the maintenance")
        return await finished(self._live(), lambda: self._wanted.append(cancelled))

    async def _live(self) -> Maintenance:
        if self.request.dry_run:
            return await self._look()
        if self._left_out:
            self._note(f"{stored.IN_PART} {bounds.few(self._left_out)}", None, "")
        self._show()
        if self.known.stage is Stage.FAILING_OVER:
            await self._fail_over()
        while self.known.on_backup and not self._job_is_over:
            await workflow.wait_condition(
                lambda: (
                    bool(self._wanted or self._job_is_over or self._returned) or not self.known.on_backup or self._may_move_on()
                )
            )
            if self._returned:
                await self._tell_upgrade()
            elif self._wanted:
                await self._switch_back(self._wanted[0])
            elif self.known.on_backup and not self._job_is_over:
                workflow.continue_as_new(
                    self.request.model_copy(update={"known": self.known}),
                    initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
                )
        return await self._over()

    async def _over(self) -> Maintenance:
        if self._job_is_over:
            self.known = self.known.with_(on_backup=())
        self._becomes(Stage.OVER)
        if self._returned:
            await self._tell_upgrade()
        self._wanted.clear()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.known

    async def _tell_upgrade(self) -> None:
        """Signals the upgrade that links were moved back, as it assumes that no job uses its leaf."""
        self._returned = False
        with suppress(FailureError):  # the upgrade has ended
            await workflow.get_external_workflow_handle(self.request.upgrade).signal(Signals.RETURNED)

    @staticmethod
    def _may_move_on() -> bool:
        info = workflow.info()
        is_due = info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()
        return is_due and workflow.all_handlers_finished()

    async def _look(self) -> Maintenance:
        """Returns which devices would be moved. Moves nothing."""
        try:
            return self.known.with_(on_backup=await self._found(), stage=Stage.OVER)
        except _NotMoved as error:
            raise ApplicationError(str(error), type=error.kind, non_retryable=True) from error

    # ---- movements

    async def _fail_over(self) -> None:
        try:
            await self._moved(await self._found(), patience=timedelta(0))
        except _NotMoved as error:
            self._refusal = error
            await workflow.wait_condition(workflow.all_handlers_finished)
            raise ApplicationError(str(error), type=error.kind, non_retryable=True) from error
        self.known = self.known.with_(since=workflow.now())
        self._becomes(Stage.ON_BACKUP)

    async def _found(self) -> tuple[Placed, ...]:
        """Returns the devices of the job with their ranks."""
        if problem := self._misread or requests.links_problem(self.request.links):
            raise _NotMoved(problem, ErrorTypes.REQUEST_INVALID)
        if not any(one.backup for one in self.request.links):
            raise _NotMoved("links: nothing is to be moved to a backup link", ErrorTypes.REQUEST_INVALID)
        try:
            job_id = await steps.find_job(self.request.job)
            targets = await steps.resolve_links(ResolveLinksRequest(job_id=job_id, links=self.request.links))
        except ActivityError as error:
            raise _said(error) from error
        if targets.problem:
            raise _NotMoved(targets.problem, ErrorTypes.REQUEST_INVALID)
        self.known = self.known.with_(job_id=job_id)
        return targets.links

    async def _moved(self, moves: Sequence[Placed], patience: timedelta) -> Verdict:
        """Requests the movement of these devices from the job, again if a fault of the job interrupted it.

        Args:
            patience: time limit while the job is busy; at most `ABSENCE` of it while the job cannot be paused.

        Raises:
            _NotMoved: the devices were not moved; the job goes on as before, or was restarted.
        """
        verdict = await self._looked_up(moves, patience)
        for _ in range(TRIES - 1):
            if not _was_interrupted(verdict):
                break
            verdict = await self._looked_up(moves, PATIENCE, unknown=True)
        if verdict.mode is not Mode.LINK_SWITCH:  # a later mode restarted the pods, or repaired processes
            why = f"{verdict.asked.reason}; " if verdict.asked else ""
            verdict = verdict.with_(outcome=Outcome.ESCALATE, reason=f"{why}{verdict.mode} {verdict.outcome}: {verdict.reason}")
        self._note(describe(moves), verdict.outcome, verdict.reason)
        if verdict.outcome is not Outcome.RECOVERED:
            raise _NotMoved(verdict.reason, ErrorTypes.LINKS_NOT_MOVED)
        on_backup = links.after(self.known.on_backup, moves)
        self.known = self.known.with_(on_backup=links.after(on_backup, links.of_ranks(on_backup, self._reset)))
        self._returned = bool(self.request.upgrade) and not all(one.backup for one in moves)
        self._show()
        return verdict

    async def _looked_up(self, moves: Sequence[Placed], patience: timedelta, *, unknown: bool = False) -> Verdict:
        """Returns the job's verdict.

        If training did not go on after the switch, the job's state shows whether links were moved.
        """
        verdict = await self._asked(moves, patience, unknown=unknown)
        is_switched = verdict.mode is Mode.LINK_SWITCH and verdict.outcome is Outcome.RECOVERED
        return self._done(moves) if not is_switched and await self._is_done(moves) else verdict

    async def _asked(self, moves: Sequence[Placed], patience: timedelta, *, unknown: bool) -> Verdict:
        """Returns the job's verdict.

        All limits begin with the first request, however often the job is asked. If the job accepted a request without an answer,
        its state shows whether it was done.

        Args:
            unknown: an earlier request may have done it.
        """
        info, began, refusals = workflow.info(), workflow.now(), 0
        while True:
            is_unwanted = self.known.stage is Stage.FAILING_OVER and any(not wanted.links for wanted in self._wanted)
            if is_unwanted and not (
                unknown and await self._is_done(moves) is not False
            ):  # otherwise the links are switched back afterwards
                raise _NotMoved("a switchback was asked for before they were moved")
            self._reset.clear()
            self.known = self.known.with_(asked=self.known.asked + 1)
            request = ModeRequest(
                mode=Mode.LINK_SWITCH,
                links=tuple(NodeLinks(node=one.node, devices=one.devices, backup=one.backup) for one in moves),
                requested_by=self.request.requested_by or info.workflow_id,
                front=info.workflow_id,
            )
            asked = AskRequest(job_id=self.known.job_id, request=request, request_id=f"{info.run_id}/{self.known.asked}")
            accepted = False
            try:
                await self._is_asked(asked)
                patience, accepted = PATIENCE, True
                verdict = await steps.hold_request(asked)
                if verdict.outcome is not Outcome.REFUSED:
                    return verdict
                said = _NotMoved(verdict.reason, passing=verdict.passing)
            except ActivityError as error:
                said = await self._heard(_said(error), moves)
                unknown |= accepted
            if unknown and await self._is_done(moves):
                return self._done(moves)
            refusals += said.kind == ErrorTypes.REQUEST_REFUSED
            gap, limit = {
                ErrorTypes.JOB_BUSY: (BUSY, patience),
                ErrorTypes.REQUEST_REFUSED: (min(ABSENT * 2 ** (refusals - 1), LONGEST_ABSENT), min(patience, ABSENCE)),
            }.get(said.kind, (BUSY, timedelta(0)))
            if not said.passing or workflow.now() - began >= limit:
                raise said
            self._waits(str(said))
            await workflow.sleep(gap, summary=bounds.summary(str(said)))

    @staticmethod
    def _done(moves: Sequence[Placed]) -> Verdict:
        return Verdict(mode=Mode.LINK_SWITCH, outcome=Outcome.RECOVERED, reason=f"the job has done it: {describe(moves)}")

    async def _is_done(self, moves: Sequence[Placed]) -> bool | None:
        """Returns whether the links are where these movements lead; None: unknown while the job's workflow is lost."""
        try:
            return links.are_done(moves, await steps.links_now(self.known.job_id))
        except ActivityError:
            return None

    async def _heard(self, said: _NotMoved, moves: Sequence[Placed]) -> _NotMoved:
        """Returns the error to report.

        A job whose workflow was lost counts as busy, as it is registered again as long as the cluster has it.
        """
        if said.kind not in (ErrorTypes.JOB_UNKNOWN, ErrorTypes.WORKFLOW_LOST):
            return said
        try:
            await steps.resolve_links(ResolveLinksRequest(job_id=self.known.job_id, links=tuple(moves)))
        except ActivityError as error:
            if _said(error).kind == NotFound.type:
                return _NotMoved(str(said), ErrorTypes.JOB_UNKNOWN)
        return _NotMoved(f"{said}; the cluster still has it", ErrorTypes.JOB_BUSY)

    async def _is_asked(self, asked: AskRequest) -> None:
        """Returns when the job has accepted the request, or may have accepted it: in an outage, or before its workflow was
        lost.

        The wait for the verdict sends it again.
        """
        try:
            await steps.ask(asked)
        except ActivityError as error:
            is_lost = _said(error).kind == ErrorTypes.WORKFLOW_LOST
            if isinstance(error.cause, ApplicationError) and error.cause.non_retryable and not is_lost:
                raise
        self._began = True

    async def _switch_back(self, wanted: SwitchBack) -> None:
        self._becomes(Stage.SWITCHING_BACK)
        back = links.back(self.known.on_backup, wanted.links)
        answer: Receipt | _NotMoved
        try:
            verdict = await self._moved(back, PATIENCE) if back else None
            answer = Receipt(info=verdict.reason if verdict else "they are on their first links already")
        except _NotMoved as error:
            answer = error
            if error.kind in (ErrorTypes.JOB_UNKNOWN, ErrorTypes.JOB_ENDED):
                self._job_is_over = str(error)
        self._wanted.pop(0)
        self._answers.append(answer)
        self._becomes(Stage.ON_BACKUP)

    # ---- messages of others

    @workflow.update(name=FailoverUpdates.BEGUN)
    async def begun(self) -> Receipt:
        await workflow.wait_condition(lambda: self._began or self._refusal is not None)
        if self._refusal:
            raise ApplicationError(str(self._refusal), type=self._refusal.kind)
        return Receipt(info="switching operation was successfully distributed")

    @workflow.update(name=FailoverUpdates.SETTLED)
    async def settled(self) -> Maintenance:
        await workflow.wait_condition(lambda: self._refusal is not None or self._is_at_rest())
        if self._refusal:
            raise ApplicationError(str(self._refusal), type=self._refusal.kind)
        return self.known

    def _is_at_rest(self) -> bool:
        return not self._wanted and self.known.stage in (Stage.ON_BACKUP, Stage.OVER)

    @workflow.update(name=FailoverUpdates.SWITCH_BACK)
    async def switch_back(self, wanted: SwitchBack) -> Receipt:
        """Completes when the devices are on their first links again."""
        place = len(self._answers) + len(self._wanted)
        self._wanted.append(wanted)
        await workflow.wait_condition(lambda: len(self._answers) > place or self.known.stage is Stage.OVER)
        answer = self._answers[place] if len(self._answers) > place else Receipt(info="the maintenance is over")
        if isinstance(answer, _NotMoved):
            raise ApplicationError(str(answer), type=answer.kind)
        return answer

    @switch_back.validator
    def _may_be_switched_back(self, wanted: SwitchBack) -> None:
        if self.known.stage is Stage.FAILING_OVER:
            raise ApplicationError(
                "its links are being failed over: switch them back when that is done", type=ErrorTypes.JOB_BUSY
            )
        if self.known.stage is Stage.OVER or not self.known.on_backup:
            raise ApplicationError("its links are on their first link already", type=ErrorTypes.REQUEST_REFUSED)
        if self._wanted:
            raise ApplicationError("its links are being switched back already", type=ErrorTypes.JOB_BUSY)
        if problem := links.back_problem(self.known.on_backup, wanted.links):
            raise ApplicationError(problem, type=ErrorTypes.REQUEST_INVALID)

    @workflow.signal(name=Signals.SWITCHBACK)
    def switchback(self, wanted: SwitchBack | None = None) -> None:
        """Requests a switchback without waiting for it.

        Before the failover is done the request is stored, and an invalid one is noted.
        """
        wanted = wanted or SwitchBack()
        if problem := links.back_problem(self.known.on_backup, wanted.links):
            self._note("a switchback was refused", None, problem)
        elif wanted not in self._wanted:
            self._wanted.append(wanted)

    @workflow.signal(name=Signals.LINKS_RESET)
    def links_reset(self, reset: LinksReset) -> None:
        """Records that devices are no longer on their backup links, so that nothing has to be moved back."""
        gone = links.of_ranks(self.known.on_backup, reset.ranks)
        if reset.job_id not in ("", self.known.job_id):
            return
        self._reset.update(reset.ranks)
        if not gone:
            return
        self.known = self.known.with_(on_backup=links.after(self.known.on_backup, gone))
        self._returned = bool(self.request.upgrade)
        self._note(f"{reset.why}: {'; '.join(map(named, gone))}", None, "")
        self._show()

    @workflow.signal(name=Signals.SHOW_AGAIN)
    def show_again(self) -> None:
        self._shown.again()

    @workflow.signal(name=Signals.UPGRADED)
    def upgraded(self) -> None:
        """Causes a workflow task, by which the server reports whether another version is current."""

    @workflow.query(name=Queries.STATUS)
    def status(self) -> Maintenance:
        return self.known

    # ---- what people see

    def _becomes(self, stage: Stage) -> None:
        self.known = self.known.with_(stage=stage)
        self._show()

    def _waits(self, why: str) -> None:
        """Notes that the job is waited for: one note with the last reason, however often the job is asked."""
        last = self.known.moves[-1:]
        if last and last[0].what == WAITS:
            if last[0].reason == why:
                return
            self.known = self.known.with_(moves=self.known.moves[:-1])
        self._note(WAITS, None, why)

    def _note(self, what: str, outcome: Outcome | None, reason: str) -> None:
        move = Move(at=workflow.now(), what=what, outcome=outcome, reason=reason)
        self.known = self.known.with_(moves=(*self.known.moves, move)[-KEPT_MOVES:])
        self._show()

    def _show(self) -> None:
        self._shown.tell(_row(self.known))
        lines = [f"**{self.known.job}**: {self.known.stage}", ""]
        if self.known.on_backup:
            since = f", since {self.known.since:%Y-%m-%d %H:%M:%S}" if self.known.since else ""
            lines.append(f"- on the backup link: {'; '.join(map(named, self.known.on_backup))}{since}")
        if waited := WAITED_FOR.get(self.known.stage):
            lines.append(f"- waits for {waited}")
        lines.append(f"- asked for: {describe(self.request.links)}")
        lines += [f"- {one.at:%Y-%m-%d %H:%M:%S} {_words(one)}" for one in reversed(self.known.moves)]
        workflow.set_current_details(bounds.details("\n".join(lines)))


def _row(known: Maintenance) -> dict[SearchAttributeKey[str], str]:
    """Returns the search attributes of the maintenance."""
    row = {Attributes.JOB: bounds.keyword(known.job), Attributes.PHASE: known.stage.value}
    return {key: value for key, value in row.items() if value}


def _words(one: Move) -> str:
    """Describes one move for the page. The beginning of the reason is left out where it repeats the name of the move."""
    return f"{one.what} {one.outcome or ''} {one.reason.removeprefix(one.what).lstrip(': ')}".rstrip()


def _read(given: object) -> tuple[FailoverRequest, str]:
    """Reads the request, and returns it with what is wrong with it; empty: nothing."""
    try:
        return requests.read_as(FailoverRequest, given, EXAMPLE), ""
    except BadInput as error:
        return FailoverRequest(), str(error)


def _was_interrupted(verdict: Verdict) -> bool:
    """Returns whether a fault of the job interrupted the switch, and was repaired or is over.

    A fault for which all pods were restarted does not count: another try would end in the same way. A switch that
    failed by itself must be reported as failed, and not be repeated.
    """
    mended = verdict.outcome is Outcome.RECOVERED and verdict.mode not in (Mode.LINK_SWITCH, LAST.mode)
    if verdict.asked and verdict.asked.outcome is Outcome.ESCALATE:
        return False
    return mended or verdict.outcome is Outcome.CANCELLED


def _said(error: ActivityError) -> _NotMoved:
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type:
        return _NotMoved(cause.message, cause.type)
    return _NotMoved(str(cause or error))
