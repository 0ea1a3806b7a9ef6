"""Two jobs on one control plane, each on its own nodes, with training sides whose links can be switched."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from temporalio.client import WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.errors import Forbidden, NotFound
from rekindle.maintenances import Maintenances
from rekindle.model.cluster import ClusterEvent, JobObject, Node, Pod
from rekindle.model.job import Job
from rekindle.model.links import NodeLinks
from rekindle.model.plan import Leaf, SwitchPlan, Upgrade
from rekindle.plans import Plans
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, register, training

FIRST = NodeLinks(node="node-1", devices=("0", "1"), backup=False)
"""First links of ranks 2 and 3 of the first job."""
SECOND = NodeLinks(node="node-4", devices=("0", "1"), backup=False)
"""First links of ranks 2 and 3 of the second job."""


class Fleet(ScriptedCluster):
    """Cluster of the first job, and of a second one from node-3 on."""

    def __init__(self, first: Job, second: Job) -> None:
        super().__init__(first)
        self.second = ScriptedCluster(second, first_node=3)
        self.forbids = False
        """True if listing pods is forbidden."""
        self.shows = asyncio.Event()
        """Set while pods are shown; otherwise requests for pods wait."""
        self.shows.set()
        self.is_looked_at = asyncio.Event()
        """Set by the next request for pods, also while it waits."""

    async def looks(self) -> None:
        """Waits for a request for pods, which is not answered yet."""
        self.is_looked_at.clear()
        await asyncio.wait_for(self.is_looked_at.wait(), 20)

    def _is_second(self, job_id: str) -> bool:
        return job_id == self.second.job_model.id

    async def node(self, name: str) -> Node:
        try:
            return await super().node(name)
        except NotFound:
            return await self.second.node(name)

    async def job(self, job_id: str) -> JobObject:
        return await (self.second.job(job_id) if self._is_second(job_id) else super().job(job_id))

    async def pods(self, job_id: str) -> list[Pod]:
        if self.forbids:
            raise Forbidden("nobody may list pods")
        self.is_looked_at.set()
        await self.shows.wait()
        return await (self.second.pods(job_id) if self._is_second(job_id) else super().pods(job_id))

    async def ensure_job_metadata(self, job_id: str, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        of = self.second.ensure_job_metadata if self._is_second(job_id) else super().ensure_job_metadata
        await of(job_id, labels, annotations)

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        await (self.second.record if self._is_second(job_id) else super().record)(job_id, event)


@dataclass
class Two:
    """Control plane as seen from each of the jobs, and both training sides."""

    first: Harness
    second: Harness
    one: ScriptedPeer
    two: ScriptedPeer
    fleet: Fleet

    @property
    def switch(self) -> str:
        return f"tor-{self.first.job.name}"

    @property
    def plans(self) -> Plans:
        return Plans(Rekindle(self.first.client))

    @property
    def maintenances(self) -> Maintenances:
        return Maintenances(Rekindle(self.first.client))

    @property
    def handle(self) -> WorkflowHandle[object, Upgrade]:
        return self.first.client.get_workflow_handle(ids.upgrade_workflow(self.switch), result_type=Upgrade)

    def plan(self, *leaves: Sequence[NodeLinks], at_once: int = 8, skip_unmovable: bool = False) -> SwitchPlan:
        """Returns a plan with the leaves `a`, `b`, ..., which carry these links."""
        return SwitchPlan(
            switch=self.switch,
            carries=tuple(link for links in leaves for link in links),
            leaves=tuple(Leaf(name=name, links=tuple(links)) for name, links in zip("abcd", leaves, strict=False)),
            at_once=at_once,
            skip_unmovable=skip_unmovable,
        )


@asynccontextmanager
async def two_jobs(
    env: WorkflowEnvironment, script: Script | None = None, other: Script | None = None, *, second_trains: bool = True
) -> AsyncIterator[Two]:
    """Runs two jobs that train. With `second_trains=False` the second one is only registered."""
    first, second = a_job(), a_job()
    fleet = Fleet(first, second)
    async with training(env, first, script, fleet) as (world, one):
        beside = replace(world, job=second)
        await register(world.client, second)
        async with beside.peer(other) as two:
            if second_trains:
                await beside.first_step()
            this = Two(world, beside, await one.with_links(), await two.with_links(), fleet)
            try:
                yield this
                assert not two.broken_rules, two.broken_rules
            finally:
                with suppress(RPCError):  # the upgrade has ended
                    await this.handle.terminate("the test is over")
                await beside.forget()
