"""Drains of nodes, for platforms: forecast a drain, begin it, and follow each pod.

    drains = Drains(await Rekindle.connect())
    await drains.begin("node-7")
    while (now := await drains.look("node-7")).cordoned and not now.drained:
        ...

A drain is only a cordon, so it continues without the program that began it. Imports no workflow. Errors are those of
`rekindle.errors`.
"""

import time
from dataclasses import dataclass

from rekindle.client import Rekindle
from rekindle.errors import BadInput, NotFound, Refused, Unavailable
from rekindle.model.draining import Draining
from rekindle.model.explained import There
from rekindle.model.state import JobStatus
from rekindle.nodes import Nodes
from rekindle.policy.drain import node_progress

AGAIN = 10.0
"""Seconds between two looks at the cluster, each of which is a workflow. Jobs are queried at each call of `look`."""


@dataclass
class _Known:
    """Last known state of a node, with the pods that were there before."""

    there: There
    at: float
    """Monotonic time of the last look at the cluster; 0: never."""
    pause: float = 0.0
    """Seconds until the next look at the cluster, when all pods have left according to their jobs. A pod may take long to end."""


class Drains:
    def __init__(self, rekindle: Rekindle, again: float = AGAIN) -> None:
        self._rekindle, self._nodes, self._again = rekindle, Nodes(rekindle), again
        self._known: dict[str, _Known] = {}

    async def forecast(self, node: str) -> Draining:
        """Returns what a drain of the node would do now, and in `refused` why it would not begin. Changes nothing.

        Raises:
            NotFound: there is no such node. Unavailable: no control worker answered, or the cluster did not.
        """
        there = await self._nodes.there(node)
        return node_progress.forecast(node, there, await self._jobs(there))

    async def begin(self, node: str) -> Draining:
        """Cordons the node: the ranks on it leave, each by the policy of its job.

        Raises:
            Refused: a rank would stay, or no rule lets anybody leave a cordoned node. Each reason in a line; nothing was touched.
        """
        would = await self.forecast(node)
        if would.refused:
            raise Refused("\n".join(would.refused))
        try:
            there = await self._nodes.there(node, cordon=True)
            self._known[node] = _Known(there, time.monotonic())
            return node_progress.progress(node, there, await self._jobs(there))
        except Unavailable as error:
            raise Unavailable(f"{error}\n{node} may be cordoned by now") from error

    async def look(self, node: str) -> Draining:
        """Returns the current state of the drain.

        If all pods have left according to their jobs, the cluster is asked whether that is true, and whether other pods have
        come. It is also asked at intervals, as anybody can end a drain by uncordoning the node; see `cordoned`.
        """
        known = self._known.setdefault(node, _Known(There(), 0.0))
        jobs = await self._jobs(known.there)
        now = node_progress.progress(node, known.there, jobs)
        left, since = node_progress.are_left(now.rows), time.monotonic() - known.at
        if since < (known.pause if left else self._again):
            return now
        try:
            seen = await self._nodes.there(node)
        except NotFound:  # the node was removed; the jobs show whether a rank was lost with it
            if not known.at:
                raise
            known.at = time.monotonic()
            return now.model_copy(update={"drained": left})
        pause = min(max(1.0, 2 * known.pause), self._again) if left else 0.0
        self._known[node] = known = _Known(node_progress.met(known.there, seen, jobs), time.monotonic(), pause)
        return node_progress.progress(node, known.there, await self._jobs(known.there), seen)

    async def undo(self, node: str) -> bool:
        """Uncordons the node; pods that have left do not return by themselves. Returns whether it was cordoned."""
        if not (await self._nodes.there(node)).cordoned:
            return False
        await self._nodes.there(node, cordon=False)
        return True

    async def _jobs(self, there: There) -> dict[str, JobStatus]:
        """Returns the status of the registered jobs on the node, by job id."""
        found = {}
        for job_id in dict.fromkeys(pod.job_id for pod in there.pods):
            try:
                found[job_id] = await self._rekindle.status(job_id, ended=True)
            except BadInput:
                continue
        return found
