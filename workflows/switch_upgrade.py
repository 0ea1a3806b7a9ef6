"""Upgrade of a switch, leaf by leaf: every job leaves the leaf, a person upgrades it, every job returns; then the next leaf.

Begun by a person or a platform. Each job is moved by a separate `LinkFailover`, which continues independently of this workflow.
An upgrade can be stopped and rolled back at any point, lives for days, and moves to newer code between movements.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from rekindle.errors import BadInput
from rekindle.ids import ErrorTypes, PlanUpdates, Queries, Signals, Workflows
from rekindle.model import bounds, stored
from rekindle.model.dialogue import Receipt
from rekindle.model.links import NodeLinks
from rekindle.model.maintenance import FailoverRequest, Move
from rekindle.model.plan import (
    ENDS,
    Control,
    Forecast,
    JobMove,
    JobOnLeaf,
    LeafView,
    Moved,
    Stage,
    SwitchPlan,
    Upgrade,
    UpgradeRequest,
    Where,
    Word,
)
from rekindle.policy.modes import requests
from rekindle.policy.operations import switch_upgrade
from rekindle.temporal import Attributes
from workflows import steps
from workflows.mode import finished
from workflows.shown import Shown

EXAMPLE = '{"plan": {"switch": "tor-7", "carries": [...], "leaves": [{"name": "leaf-1", "links": [...]}]}}'

BUSY = timedelta(seconds=15)
"""Pause before a job that is being recovered is asked again."""

PATIENCE = timedelta(hours=1)
"""Longest time for which a job that is being recovered is waited for."""

LOOK_AGAIN = timedelta(minutes=30)
"""Pause between two looks at a free leaf, which show whether a job has come to it or has come back with new pods."""

SOON = timedelta(minutes=1)
"""Pause between two looks at the leaf while a job that was moved off it is on it again and cannot leave it."""

Thing = TypeVar("Thing")


@workflow.defn(name=Workflows.SWITCH_UPGRADE, failure_exception_types=[Exception])
class SwitchUpgrade:
    @workflow.init
    def __init__(self, given: object = None) -> None:
        """Args:
        given: an `UpgradeRequest` as the client wrote it.
        """
        given, self._left_out = stored.with_known(Upgrade, given, ("stage", "leaf", "moves"))
        self.request, self._misread = _read(given)
        request = self.request
        self.plan = request.plan
        self.known = request.known or Upgrade(switch=request.plan.switch)
        self._shown = Shown({Attributes.PHASE: request.known.stage.value} if request.known else {})
        self._forecast = Forecast(leaves=self.known.leaves) if request.known else None
        """Forecast of the upgrade; None: it is not known yet."""
        self._returned = request.known is not None
        """True if moved devices may have returned since the last look at the leaf.

        An earlier run may have received that signal at its end.
        """
        self._soon = False
        """True if a job that was moved is on the leaf again, and cannot leave it now."""

    @workflow.run
    async def run(self, given: object = None) -> Upgrade:
        """Runs the upgrade. Raises ApplicationError with all reasons if nothing was begun. A cancellation rolls it back."""
        return await finished(self._live(), lambda: self._tell(Control(word=Word.ROLLBACK, requested_by="a cancellation")))

    async def _live(self) -> Upgrade:
        if self._left_out:
            self._note(f"{stored.IN_PART} {bounds.few(self._left_out)}")
        self._show()
        if self.known.stage is Stage.CHECKING:
            await self._check()
        while self.known.stage not in ENDS and not self.request.dry_run:
            await workflow.wait_condition(lambda: not switch_upgrade.stands(self.known) or self._moves_on())
            if self._moves_on():
                await self._continue_as_new()
            await self._next()
            self._show()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.known

    async def _next(self) -> None:
        match self.known.stage:
            case Stage.FAILING_OVER:
                await self._fail_over()
            case Stage.FREE:
                await self._wait_for_a_person()
            case _:
                await self._switch_back()

    @staticmethod
    def _moves_on() -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()

    async def _continue_as_new(self) -> None:
        """Continues as new, when nothing is being moved."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(
            self.request.model_copy(update={"known": self.known, "plan": self.plan.model_copy(update={"carries": ()})}),
            initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
        )

    # ---- before anything is touched

    async def _check(self) -> None:
        self._forecast = await self._look_ahead()
        if self._forecast.refused and not self.request.dry_run:
            self._note(f"refused: {'; '.join(self._forecast.refused)}")
            self._becomes(Stage.REFUSED)
            await workflow.wait_condition(workflow.all_handlers_finished)
            raise _refusal(self._forecast)
        self.known = switch_upgrade.begun(self.plan, self.known)

    async def _look_ahead(self) -> Forecast:
        if wrong := (self._misread,) if self._misread else switch_upgrade.problems(self.plan):
            return Forecast(refused=wrong)
        try:
            views = [await steps.survey_leaf(leaf, self.plan.jobs) for leaf in self.plan.leaves]
        except ActivityError as error:
            return Forecast(refused=(f"its leaves cannot be looked at: {_words(error)}",))
        return switch_upgrade.forecast(self.plan, views)

    # ---- one leaf

    async def _survey(self) -> LeafView | None:
        """Returns the jobs on the current leaf.

        None: the cluster does not show it, and the upgrade is stopped until a person resumes it.
        """
        self._returned = False
        try:
            return await steps.survey_leaf(self.plan.leaves[self.known.leaf], self.plan.jobs)
        except ActivityError as error:
            self.known = self.known.with_(stopped=True)
            self._note(f"stopped, the leaf cannot be looked at: {_words(error)}")
            return None

    async def _fail_over(self) -> None:
        """Moves every job off the leaf. The leaf is free when a look shows that no job is left on it."""
        if (seen := await self._survey()) is None:
            return
        here = switch_upgrade.to_move(seen, self.known)
        await self._each(here, self._move, Stage.FAILING_OVER)
        if self.known.asking:
            seen = await self._survey()
            self.known = switch_upgrade.without_gone(self.known, seen) if seen else self.known
        elif not here and self._goes_on(Stage.FAILING_OVER):
            self._becomes(Stage.FREE)

    async def _wait_for_a_person(self) -> None:
        try:
            await workflow.wait_condition(
                lambda: not self._goes_on(Stage.FREE) or self._moves_on() or self._returned,
                timeout=SOON if self._soon else LOOK_AGAIN,
                timeout_summary="look whether a job has come",
            )
        except TimeoutError:
            await self._look_again()
        else:
            if self._returned and self._goes_on(Stage.FREE):
                await self._look_again()

    async def _look_again(self) -> None:
        seen = await self._survey()
        come = switch_upgrade.newcomers(seen, self.known) if seen else []
        self._soon = bool(seen and not come and switch_upgrade.came_back(seen, self.known))
        if come and self.known.stage is Stage.FREE:
            self._note(f"back to failing over, {bounds.few([job.job for job in come])} on the leaf")
            self._becomes(Stage.FAILING_OVER)
        self._show()

    async def _switch_back(self) -> None:
        here = switch_upgrade.to_return(self.known)
        await self._each(here, self._move_back, self.known.stage)
        if switch_upgrade.stands(self.known) or switch_upgrade.to_return(self.known):
            return
        if self.known.stage is Stage.ROLLING_BACK:
            self._becomes(Stage.ROLLED_BACK)
        else:
            self.known = switch_upgrade.leaf_done(self.known)

    # ---- one job

    async def _each(self, things: Sequence[Thing], work: Callable[[Thing], Awaitable[None]], stage: Stage) -> None:
        """Runs the work for each of them, several at a time.

        If the upgrade is stopped or rolled back, no more are begun, and running ones are awaited.
        """
        places = asyncio.Semaphore(self.plan.at_once)

        async def one(thing: Thing) -> None:
            async with places:
                if self._goes_on(stage):
                    await work(thing)

        await asyncio.gather(*(one(thing) for thing in things))

    def _goes_on(self, stage: Stage) -> bool:
        return self.known.stage is stage and not self.known.stopped

    async def _move(self, job: JobOnLeaf) -> None:
        move, stage, until = switch_upgrade.first_move(job, self.known.leaf), Stage.FAILING_OVER, workflow.now() + PATIENCE
        moved = Moved(problem=job.problem)
        while not job.problem:
            self._put(move, Where.MOVING, moved.problem)
            moved = await self._failed_over(job)
            if not moved.busy or workflow.now() >= until:
                break
            self._put(move, Where.MOVING, moved.problem)
            await self._pause(stage)
            if not self._goes_on(stage):
                break
        if not moved.problem:
            self._put(move, Where.ON_BACKUP, moved.info)
        elif self.known.stage is not stage or (self.known.stopped and moved.busy):
            self.known = switch_upgrade.without(self.known, move)
            self._show()
        else:
            self._put(move, Where.SKIPPED if self.plan.skip_unmovable else Where.NOT_MOVED, moved.problem)

    async def _pause(self, stage: Stage) -> None:
        """Waits before a job is asked again."""
        try:
            await workflow.wait_condition(
                lambda: not self._goes_on(stage), timeout=BUSY, timeout_summary="the job is being recovered"
            )
        except TimeoutError:
            return

    async def _failed_over(self, job: JobOnLeaf) -> Moved:
        to_backup = tuple(NodeLinks(node=one.node, devices=one.devices, backup=True) for one in job.move)
        info = workflow.info()
        request = FailoverRequest(
            job=job.job_id, name=job.job, links=to_backup, requested_by=self._whom(), upgrade=info.workflow_id
        )
        return await steps.fail_over(job.maintenance, request, info.first_execution_run_id)

    async def _move_back(self, move: JobMove) -> None:
        self._put(move, Where.RETURNING)
        moved = await steps.move_back(move.maintenance, self._whom())
        self._put(move, Where.NOT_RETURNED if moved.problem else Where.RETURNED, moved.problem or moved.info)

    def _whom(self) -> str:
        by = f", begun by {self.request.requested_by}" if self.request.requested_by else ""
        return f"the upgrade of switch {self.plan.switch}{by}"

    # ---- messages of others

    @workflow.update(name=PlanUpdates.CHECKED)
    async def checked(self) -> Forecast:
        """Returns what the upgrade does or would do. An upgrade that is not begun is rejected with the reasons."""
        await workflow.wait_condition(lambda: self._forecast is not None)
        assert self._forecast
        if self._forecast.refused and not self.request.dry_run:
            raise _refusal(self._forecast)
        return self._forecast

    @workflow.update(name=PlanUpdates.CONTROL)
    async def control(self, control: Control) -> Receipt:
        self._tell(control)
        return Receipt(info=switch_upgrade.now(self.known))

    @control.validator
    def _may_be_told(self, control: Control) -> None:
        if problem := switch_upgrade.may_not(self.known, control):
            raise ApplicationError(problem, type=ErrorTypes.REQUEST_REFUSED)

    @workflow.signal(name=Signals.CONTROL)
    def controlled(self, control: Control) -> None:
        """Controls the upgrade without waiting for an answer. An input that is not allowed now is noted."""
        self._tell(control)

    def _tell(self, control: Control) -> None:
        by = f" by {control.requested_by}" if control.requested_by else ""
        if problem := switch_upgrade.may_not(self.known, control):
            self._note(f"{control.word}{by} was refused: {problem}")
            return
        self.known = switch_upgrade.told(self.known, control.word)
        self._note(f"{control.word}{by}")

    @workflow.signal(name=Signals.RETURNED)
    def returned(self) -> None:
        """Records that moved devices have returned, or their pods were replaced, by any party: they may be on the leaf."""
        self._returned = True

    @workflow.signal(name=Signals.SHOW_AGAIN)
    def show_again(self) -> None:
        self._shown.again()

    @workflow.signal(name=Signals.UPGRADED)
    def upgraded(self) -> None:
        """Causes a workflow task, by which the server reports whether another version is current."""

    @workflow.query(name=Queries.STATUS)
    def status(self) -> Upgrade:
        return self.known

    # ---- what people see

    def _put(self, move: JobMove, where: Where, reason: str = "") -> None:
        self.known = switch_upgrade.put(self.known, move.model_copy(update={"where": where, "reason": bounds.note(reason)}))
        self._show()

    def _becomes(self, stage: Stage) -> None:
        self.known = self.known.with_(stage=stage)
        self._show()

    def _note(self, what: str) -> None:
        self.known = self.known.noting(Move(at=workflow.now(), what=what))
        self._show()

    def _show(self) -> None:
        self._shown.tell({Attributes.PHASE: self.known.stage.value})
        lines = [f"**{self.known.switch}**: {switch_upgrade.now(self.known)}"]
        lines += [
            f"- leaf {one.name}: {one.returned} jobs moved and back, {one.skipped + one.left} left" for one in self.known.done
        ]
        lines += [f"- {one.job} ({self.known.leaves[one.leaf]}): {one.where} {one.reason}".rstrip() for one in self.known.moves]
        lines += [f"- {one.at:%Y-%m-%d %H:%M:%S} {one.what}" for one in reversed(self.known.notes)]
        workflow.set_current_details(bounds.details("\n".join(lines)))


def _read(given: object) -> tuple[UpgradeRequest, str]:
    """Reads the request, and returns it with what is wrong with it; empty: nothing."""
    try:
        return requests.read_as(UpgradeRequest, given, EXAMPLE), ""
    except BadInput as error:
        return UpgradeRequest(plan=SwitchPlan(switch="unknown")), str(error)


def _words(error: ActivityError) -> str:
    return error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)


def _refusal(forecast: Forecast) -> ApplicationError:
    return ApplicationError("\n".join(forecast.refused), type=ErrorTypes.REQUEST_REFUSED, non_retryable=True)
