"""A platform that watches all jobs receives the end of each fault, also where the list of jobs shows no change."""

import asyncio

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.fakes.peer import Script
from tests.support.harness import a_job, sub_health, training
from workers.gateway import watch
from workers.gateway.job_workflows import Jobs
from workers.gateway.watch import ALL, Watch


async def listed(jobs: Jobs, job_id: str) -> None:
    """Waits until the list shows that the job trains after a recovery."""
    async with asyncio.timeout(60):
        while True:
            row = (await jobs.rows()).get(job_id)
            if row and (row.phase, row.verdict) == ("training", "recovered"):
                return
            await asyncio.sleep(0.03)


async def test_the_end_of_a_second_incident_with_the_same_verdict_is_seen(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among thousands of jobs no turn of this one comes soon. Its fault is seen, and is over when the list is read again."""
    monkeypatch.setattr(watch, "BY_TURNS", 0)
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await peer.pause()
        await world.incident(1)
        jobs = Jobs(world.client)
        await listed(jobs, world.job.id)
        looking = Watch(jobs)
        looks = asyncio.create_task(looking.keep())
        async with looking.subscribed(ALL):
            looks.cancel()
            node = world.cluster.holder(0).spec.node_name
            await world.fault(sub_health(0, node, "e2"))
            await peer.until(lambda: peer.orders.count("new pod running") == 2)
            await looking._ask({world.job.id})
            assert [one.node for one in looking._views[world.job.id].nodes] == [node]
            await peer.pause()
            await world.incident(2)
            await listed(jobs, world.job.id)
            await looking._round()
            assert looking._views[world.job.id].nodes == ()
