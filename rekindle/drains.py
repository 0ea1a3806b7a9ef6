"""Drains of nodes, for platforms: what one would do, its beginning, and what becomes of each pod.

    drains = Drains(await Rekindle.connect())
    await drains.begin("node-7")
    while not (now := await drains.look("node-7")).drained:
        ...

A drain is nothing but a cordon: it goes on without whoever began it. Imports no workflow. Errors are those of `rekindle.errors`.
"""

from rekindle.client import Rekindle
from rekindle.errors import BadInput, Refused
from rekindle.model.draining import Draining
from rekindle.model.explained import There
from rekindle.model.state import JobStatus
from rekindle.nodes import Nodes
from rekindle.policy import draining


class Drains:
    def __init__(self, rekindle: Rekindle) -> None:
        self._rekindle, self._nodes = rekindle, Nodes(rekindle)
        self._there: dict[str, There] = {}
        """By node, as it was looked at last, with those that were there before."""

    async def forecast(self, node: str) -> Draining:
        """What draining it would do now, and in `refused` why it would not be begun; nothing is touched.

        Raises:
            NotFound: there is no such node. Unavailable: no control worker answered, or the cluster did not.
        """
        there = await self._nodes.there(node)
        return draining.forecast(node, there, await self._jobs(there))

    async def begin(self, node: str) -> Draining:
        """Cordons it: the ranks on it leave, each by the policy of its job.

        Raises:
            Refused: a rank would stay, or no rule lets anybody leave a cordoned node. Each reason in a line; nothing was touched.
        """
        would = await self.forecast(node)
        if would.refused:
            raise Refused("\n".join(would.refused))
        self._there[node] = there = await self._nodes.there(node, cordon=True)
        return draining.progress(node, there, await self._jobs(there))

    async def look(self, node: str) -> Draining:
        """What became of the pods on it by now. Where the jobs say that all have left, the cluster is asked: whether that is
        so, and whether others have come meanwhile."""
        known = self._there.get(node, There())
        now = draining.progress(node, known, await self._jobs(known))
        if not draining.are_left(now.rows):
            return now
        seen = await self._nodes.there(node)
        self._there[node] = known = draining.met(known, seen)
        return draining.progress(node, known, await self._jobs(known), seen)

    async def undo(self, node: str) -> bool:
        """Pods are put there again; what has left does not come back by itself. Answers whether it was cordoned."""
        if not (await self._nodes.there(node)).cordoned:
            return False
        await self._nodes.there(node, cordon=False)
        return True

    async def _jobs(self, there: There) -> dict[str, JobStatus]:
        """Of those that are registered: any other pod is nobody's of ours."""
        found = {}
        for job_id in dict.fromkeys(pod.job_id for pod in there.pods):
            try:
                found[job_id] = await self._rekindle.status(job_id, ended=True)
            except BadInput:
                continue
        return found
