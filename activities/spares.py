"""Tells the workflow `Spares` what recoveries need, and asks it whether the pods of a recovery may be created.

A failure here never costs a recovery: it goes on as if no other job needed a spare node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.clusters.port import Cluster
from rekindle.client import cancellable
from rekindle.errors import RekindleError
from rekindle.ids import CONTROL_QUEUE, SPARES, Signals, SpareUpdates, Workflows
from rekindle.model.cluster import Pod
from rekindle.model.spares import SpareAnswer, SpareClaim, SpareClaims, SpareNews, SpareQuestion, SpareView, SpareWish
from rekindle.policy.placement import spares
from rekindle.policy.placement.unfit_nodes import Unfit
from rekindle.temporal import TASK_TIMEOUT, handle_unread

WITHIN = timedelta(seconds=2)
"""Limit of one message to the workflow. A recovery does not wait for it longer."""

LOOK_WITHIN = timedelta(seconds=5)
"""Limit of a look at the free nodes, which is needed only if several recoveries need a spare at once."""

GRANTED = SpareAnswer(granted=True)

SUMMARY = "which recovery gets a spare node"


class Spares:
    def __init__(self, cluster: Cluster, client: Client | None) -> None:
        """Args:
        client: None: nobody is asked, and every claim is granted.
        """
        self._cluster, self._client = cluster, client

    async def tell(self, job_id: str, news: SpareNews) -> None:
        """Tells what a job needs from now on, before its recovery asks for it."""
        if self._client is None:
            return
        try:
            async with asyncio.timeout(WITHIN.total_seconds()):
                if news.wish is None:
                    await self._client.get_workflow_handle(SPARES).signal(Signals.RELEASE, job_id)
                elif claim := spares.claim_of(job_id, news.wish, await self._cluster.pods(job_id)):
                    await self._claim(self._client, claim)
        except (RPCError, RekindleError, TimeoutError) as error:
            if not (isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND):  # it has ended, with its claims
                activity.logger.warning("need of a spare node not told", extra={"job": job_id, "error": str(error)})

    async def _claim(self, client: Client, claim: SpareClaim) -> None:
        await client.start_workflow(
            Workflows.SPARES,
            SpareClaims(),
            id=SPARES,
            task_queue=CONTROL_QUEUE,
            task_timeout=TASK_TIMEOUT,
            start_signal=Signals.CLAIM,
            start_signal_args=[claim],
            static_summary=SUMMARY,
        )

    async def answer(
        self, job_id: str, wish: SpareWish, pods: Sequence[Pod], unfit: Callable[[], Awaitable[Unfit]]
    ) -> SpareAnswer:
        """Returns whether the pods of a recovery are to be created, or another job gets the spare node.

        Args:
            pods: all pods of the job.
            unfit: returns the nodes on which no backup pods are placed.
        """
        claim = spares.claim_of(job_id, wish, pods)
        if self._client is None or claim is None:
            return GRANTED
        try:
            answer = await self._asked(self._client, SpareQuestion(claim=claim))
            if answer.look:
                async with asyncio.timeout(LOOK_WITHIN.total_seconds()):
                    view = await self._view(unfit)
                answer = await self._asked(self._client, SpareQuestion(claim=claim, view=view))
        except (RPCError, WorkflowUpdateFailedError, RekindleError, TimeoutError) as error:
            activity.logger.warning("spare node not asked for", extra={"job": job_id, "error": str(error)})
            return GRANTED
        return answer

    async def _view(self, unfit: Callable[[], Awaitable[Unfit]]) -> SpareView:
        left_out, nodes = await unfit(), await self._cluster.nodes()
        return spares.view_of(nodes, left_out.both, await self._cluster.occupants())

    async def _asked(self, client: Client, question: SpareQuestion) -> SpareAnswer:
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            Workflows.SPARES,
            SpareClaims(),
            id=SPARES,
            task_queue=CONTROL_QUEUE,
            task_timeout=TASK_TIMEOUT,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=SUMMARY,
        )
        async with asyncio.timeout(WITHIN.total_seconds()), handle_unread(start):
            with cancellable():
                answer: SpareAnswer = await client.execute_update_with_start_workflow(
                    SpareUpdates.ASK, question, start_workflow_operation=start, result_type=SpareAnswer
                )
        return answer
