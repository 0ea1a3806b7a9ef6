"""Upgrades of switches, for platforms: preview, start, inspect and control one.

    plans = Plans(await Rekindle.connect())
    await plans.start(plan, requested_by="ada")
    await plans.tell("tor-7", Word.PROCEED)

Imports no workflow. Errors are those of `rekindle.errors`.
"""

import uuid
from collections.abc import AsyncIterator
from typing import Any

from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from rekindle import ids
from rekindle.client import Rekindle, cancellable
from rekindle.errors import BadInput, Busy, Refused, Unavailable
from rekindle.model.base import sent
from rekindle.model.dialogue import Receipt
from rekindle.model.plan import ENDS, Control, Forecast, Stage, SwitchPlan, Upgrade, UpgradeRequest, Word
from rekindle.policy.modes import requests
from rekindle.policy.operations import switch_upgrade
from rekindle.temporal import TASK_TIMEOUT, handle_unread, in_words

LISTED = 200
"""Maximum number of upgrades in a list, the newest."""

ENDED_BY_FORCE = (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT, WorkflowExecutionStatus.FAILED)


class Plans:
    """Switch upgrades, named by their switch."""

    def __init__(self, rekindle: Rekindle) -> None:
        self._rekindle = rekindle

    async def forecast(self, plan: SwitchPlan) -> Forecast:
        """Returns what the upgrade would do now, and in `refused` why it would not begin. Changes nothing.

        Raises:
            BadInput: the plan contradicts itself; each reason in a line.
        """
        plan = _checked(plan)
        return await self._begin(plan, ids.dry_run_workflow(plan.switch, uuid.uuid4().hex[:8]), dry_run=True, requested_by="")

    async def start(self, plan: SwitchPlan, *, requested_by: str = "") -> Forecast:
        """Begins the upgrade; returns when it has been checked, with what it does.

        Raises:
            BadInput: the plan contradicts itself. Busy: the switch is being upgraded. Refused: something is not known, or a job
            cannot be moved as it is now. Each reason in a line; nothing was touched.
        """
        plan = _checked(plan)
        return await self._begin(plan, ids.upgrade_workflow(plan.switch), dry_run=False, requested_by=requested_by)

    async def _begin(self, plan: SwitchPlan, workflow_id: str, *, dry_run: bool, requested_by: str) -> Forecast:
        begin: WithStartWorkflowOperation[Any, Upgrade] = WithStartWorkflowOperation(
            ids.Workflows.SWITCH_UPGRADE,
            sent(UpgradeRequest(plan=plan, dry_run=dry_run, requested_by=requested_by)),
            id=workflow_id,
            task_queue=ids.CONTROL_QUEUE,
            task_timeout=TASK_TIMEOUT,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            static_summary=f"upgrade of switch {plan.switch}, {len(plan.leaves)} leaves",
        )
        try:
            async with handle_unread(begin):
                with cancellable():
                    forecast: Forecast = await self._rekindle.temporal.execute_update_with_start_workflow(
                        ids.PlanUpdates.CHECKED, start_workflow_operation=begin, result_type=Forecast
                    )
        except WorkflowUpdateFailedError as error:
            raise Refused(_words(error.cause)) from error
        except WorkflowAlreadyStartedError as error:
            raise Busy(f"switch {plan.switch} is being upgraded already: rekindle plan show {plan.switch}") from error
        except RPCError as error:
            raise self._rekindle.unanswered(error) from error
        return forecast

    async def tell(self, switch: str, word: Word, *, leaf: str = "", requested_by: str = "") -> str:
        """Sends a command to an upgrade; returns what it does now.

        Args:
            leaf: of `proceed`, the leaf that was upgraded; if another leaf is free by now, it stays free. Empty: the free leaf.

        Raises:
            BadInput: the switch is not being upgraded. Refused: the upgrade cannot do that now; the message has the reason.
        """
        handle = self._rekindle.temporal.get_workflow_handle(ids.upgrade_workflow(switch))
        said = {"word": word, "leaf": leaf, "requested_by": requested_by}
        control = sent(requests.read_as(Control, said, '{"word": "proceed"}'))
        try:
            with cancellable():
                receipt: Receipt = await handle.execute_update(ids.PlanUpdates.CONTROL, control, result_type=Receipt)
        except WorkflowUpdateFailedError as error:
            raise Refused(_words(error.cause)) from error
        except RPCError as error:
            raise self._unknown(switch, error) from error
        return receipt.info

    async def status(self, switch: str) -> Upgrade:
        """Returns the state of the upgrade of a switch; of one that is over, as long as the server keeps it.

        Raises:
            BadInput: there is none.
        """
        handle = self._rekindle.temporal.get_workflow_handle(ids.upgrade_workflow(switch))
        try:
            found: Upgrade = await handle.query(ids.Queries.STATUS, result_type=Upgrade)
            ended = found.stage not in ENDS and (await handle.describe()).status in ENDED_BY_FORCE
        except WorkflowQueryFailedError as error:
            raise Unavailable(f"no control worker answered: {in_words(error)}") from error
        except RPCError as error:
            raise self._unknown(switch, error) from error
        return found.with_(stage=Stage.TERMINATED, stopped=False) if ended else found

    def _unknown(self, switch: str, error: RPCError) -> BadInput | Unavailable:
        if error.status is RPCStatusCode.NOT_FOUND:
            return BadInput(f"plan: switch {switch!r} is not being upgraded; what there is shows: rekindle plan show")
        return self._rekindle.unanswered(error)

    async def list(self) -> AsyncIterator[tuple[str, WorkflowExecution]]:
        """Yields switches with their upgrades, newest first; those that are over as long as the server keeps them."""
        query = f"WorkflowType = '{ids.Workflows.SWITCH_UPGRADE}' AND ExecutionStatus != 'ContinuedAsNew'"
        try:
            async for run in self._rekindle.temporal.list_workflows(query, limit=LISTED):
                switch = run.id.removeprefix(ids.SWITCH_UPGRADE)
                if run.id == ids.upgrade_workflow(switch) and "/" not in switch:
                    yield switch, run
        except RPCError as error:
            raise self._rekindle.unanswered(error) from error


def _checked(plan: SwitchPlan) -> SwitchPlan:
    plan = requests.read_as(SwitchPlan, plan, '{"switch": "tor-7", "carries": [...], "leaves": [...]}')
    if wrong := switch_upgrade.problems(plan):
        raise BadInput("\n".join(wrong))
    return plan


def _words(cause: BaseException | None) -> str:
    return cause.message if isinstance(cause, ApplicationError) else str(cause)
