"""Nodes of a cluster, for platforms: what is seen of them, and what a person says of one.

    nodes = Nodes(await Rekindle.connect())
    await nodes.mark("node-7", Mark.SICK, "fan 3 rattles")

Imports no workflow. Errors are those of `rekindle.errors`.
"""

import uuid
from datetime import timedelta

from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.errors import BadInput, Forbidden, NotFound, Refused, Unavailable
from rekindle.model.bounds import cut
from rekindle.model.explained import Mark, NodeNow, NodesNow, NodesRequest, There
from rekindle.model.sizes import LONGEST_NAME, LONGEST_NOTE
from rekindle.temporal import TASK_TIMEOUT

WITHIN = timedelta(seconds=60)
"""Time limit for an answer of the control worker. A person waits for it."""


class Nodes:
    def __init__(self, rekindle: Rekindle) -> None:
        self._rekindle = rekindle

    async def look(self, *names: str) -> NodesNow:
        """Returns these nodes, or all nodes that have something to report.

        Raises:
            NotFound: there is no such node. Unavailable: no control worker answered, or the cluster did not.
        """
        _check(*names)
        return await self._ask(NodesRequest(names=names), f"look at {', '.join(names) or 'all nodes'}")

    async def mark(self, name: str, mark: Mark, reason: str = "") -> NodeNow:
        """Marks a node as sick, broken or well, or removes the mark; returns what is seen of it then."""
        if len(reason) > LONGEST_NOTE:
            raise BadInput(f"reason: {len(reason)} characters are too many: at most {LONGEST_NOTE}")
        _check(name)
        if mark not in set(Mark):
            raise BadInput(f"mark: {cut(repr(mark), 40)} is not accepted, accepted are {', '.join(Mark)}")
        found = await self._ask(NodesRequest(names=(name,), mark=mark, reason=reason), f"node {name} is marked {mark}")
        return found.nodes[0]

    async def there(self, name: str, *, cordon: bool | None = None) -> There:
        """Returns the pods of jobs on a node, and whether it is cordoned.

        Args:
            cordon: cordons it first, or takes that back; None: neither.
        """
        _check(name)
        done = {True: " is cordoned", False: " is uncordoned"}[cordon] if cordon is not None else ": its pods are looked at"
        found = await self._ask(NodesRequest(names=(name,), cordon=cordon, pods=True), f"node {name}{done}")
        return found.there or There()

    async def _ask(self, request: NodesRequest, words: str) -> NodesNow:
        try:
            found: NodesNow = await self._rekindle.temporal.execute_workflow(
                ids.Workflows.NODES,
                request,
                id=ids.nodes_workflow(uuid.uuid4().hex[:8]),
                task_queue=ids.CONTROL_QUEUE,
                result_type=NodesNow,
                task_timeout=TASK_TIMEOUT,
                execution_timeout=WITHIN,
                static_summary=words[:200],
            )
        except RPCError as error:
            raise self._rekindle.unanswered(error) from error
        except WorkflowFailureError as error:
            raise _refusal(error) from error
        return found


def _check(*names: str) -> None:
    if wrong := [name for name in names if not 0 < len(name) <= LONGEST_NAME]:
        raise NotFound(f"{cut(wrong[0], 40)!r} can be no node: names have 1 to {LONGEST_NAME} characters")


def _refusal(error: WorkflowFailureError) -> Exception:
    cause: BaseException | None = error.cause
    while isinstance(cause, ActivityError) and cause.cause:
        cause = cause.cause
    if not isinstance(cause, ApplicationError):
        return Unavailable(f"no control worker, or no cluster, answered within {WITHIN.total_seconds():.0f} s")
    known = {NotFound.type: NotFound, Forbidden.type: Forbidden}
    return known.get(cause.type or "", Refused)(cause.message)
