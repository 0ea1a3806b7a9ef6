"""Nodes that cause incidents again and again: set aside with the reason, and released by time or by a person."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from rekindle.errors import NotFound
from rekindle.ids import CONTROL_QUEUE, Queries, Signals, Workflows, node_record_workflow
from rekindle.model.fault import Decided, Fault, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.keys import ISOLATED, NODE_HEALTHY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.node_record import NodeIncident, NodeRecord
from rekindle.model.state import JobState
from rekindle.model.verdict import Verdict
from rekindle.policy.detection import isolation
from rekindle.policy.placement import node_records
from tests.support.harness import NOW, Harness, a_job, harness, node_fault, sub_health, training
from workflows import node_record

DAY = timedelta(days=1)


def incident(number: int, job: str = "job-1", at: timedelta = timedelta(0)) -> NodeIncident:
    return NodeIncident(
        job_id=job, job=f"default/{job}", number=number, about="node fault", at=NOW + at, within=DAY, aside=timedelta(hours=12)
    )


class Records:
    """Records of one node of a world."""

    def __init__(self, world: Harness, node: str) -> None:
        self.world, self.node = world, node
        self.handle: WorkflowHandle[Any, Any] = world.client.get_workflow_handle(node_record_workflow(node))

    async def tell(self, *incidents: NodeIncident) -> None:
        """Tells the record of the node about incidents, as the end of an incident does."""
        now = datetime.now(UTC)
        for one in incidents:
            self.handle = await self.world.client.start_workflow(
                Workflows.NODE_RECORD,
                NodeRecord(node=self.node),
                id=self.handle.id,
                task_queue=CONTROL_QUEUE,
                start_signal=Signals.INCIDENT,
                start_signal_args=[one.model_copy(update={"at": now + (one.at - NOW)})],
            )

    async def settled(self, incidents: int, *, aside: bool) -> NodeRecord:
        """Waits until the record has this number of incidents, and the node is set aside or not."""
        async with asyncio.timeout(60):
            while True:
                record: NodeRecord = await self.handle.query(Queries.STATUS, result_type=NodeRecord)
                if (len(record.incidents), record.aside is not None) == (incidents, aside):
                    return record
                await asyncio.sleep(0.03)

    @property
    def marks(self) -> dict[str, str]:
        return self.world.cluster.node_annotations.get(self.node, {})


@asynccontextmanager
async def recorded(temporal: WorkflowEnvironment, node: str) -> AsyncIterator[Records]:
    job = a_job()
    async with harness(temporal, job) as world:
        world.cluster.node_names.append(node)
        records = Records(world, node)
        try:
            yield records
        finally:
            with suppress(RPCError):  # it has ended
                await records.handle.terminate("the test is over")


async def test_two_incidents_set_a_node_aside_until_the_time_is_over(temporal: WorkflowEnvironment) -> None:
    """The mark names both incidents. New pods go elsewhere, and the node is released by itself."""
    async with recorded(temporal, "node-lemon-1") as records:
        await records.tell(incident(1))
        await records.settled(1, aside=False)
        assert not records.marks
        await records.tell(incident(2))
        await records.settled(0, aside=True)
        assert isolation.is_isolated(records.marks)
        assert "job-1 incident 1, node fault; default/job-1 incident 2" in records.marks[ISOLATED]
        assert (await records.world.event("NodeSetAside")).name == records.node
        await records.world.skip(timedelta(hours=12, seconds=1), records.handle)
        assert await records.handle.result() is not None
        assert not records.marks


async def test_an_incident_that_is_told_twice_counts_once(temporal: WorkflowEnvironment) -> None:
    """The same fault counts once, too, if another job sees it at the same time."""
    async with recorded(temporal, "node-lemon-2") as records:
        await records.tell(incident(1), incident(1), incident(7, job="job-2", at=timedelta(minutes=1)))
        await records.settled(1, aside=False)
        await records.tell(incident(8, job="job-2", at=timedelta(minutes=30)))
        await records.settled(0, aside=True)


async def test_a_node_that_a_person_releases_is_not_set_aside_for_the_same_incidents(temporal: WorkflowEnvironment) -> None:
    """A single further incident is not enough then, and the release at the end of the time changes nothing."""
    async with recorded(temporal, "node-lemon-3") as records:
        await records.tell(incident(1), incident(2))
        await records.settled(0, aside=True)
        await records.world.cluster.annotate_node(records.node, isolation.release(records.marks))
        await records.tell(incident(3))
        await records.settled(1, aside=True)
        await records.world.cluster.annotate_node(records.node, {NODE_HEALTHY: "UnHealthy"})
        await records.world.skip(timedelta(hours=12, seconds=1), records.handle)
        await records.settled(1, aside=False)
        assert records.marks == {NODE_HEALTHY: "UnHealthy"}


async def test_an_incident_is_counted_that_comes_while_the_node_is_released(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record does not end with it, and begins with this incident."""
    async with recorded(temporal, "node-lemon-7") as records:
        await records.tell(incident(1), incident(2))
        await records.settled(0, aside=True)
        cluster, asked, may_write = records.world.cluster, asyncio.Event(), asyncio.Event()
        write = cluster.annotate_node

        async def slowly(name: str, annotations: dict[str, str | None]) -> None:
            asked.set()
            await may_write.wait()
            await write(name, annotations)

        monkeypatch.setattr(cluster, "annotate_node", slowly)
        skipping = asyncio.create_task(records.world.skip(timedelta(hours=12, seconds=1), records.handle))
        await asked.wait()
        await records.tell(incident(3, at=timedelta(hours=12)))
        may_write.set()
        await skipping
        await records.settled(1, aside=False)
        assert not records.marks


async def test_an_incident_that_set_the_node_aside_is_not_counted_again(temporal: WorkflowEnvironment) -> None:
    """Its activity may be repeated when the record has used it up."""
    async with recorded(temporal, "node-lemon-8") as records:
        await records.tell(incident(1), incident(2))
        await records.settled(0, aside=True)
        await records.tell(incident(2), incident(3))
        record = await records.settled(1, aside=True)
        assert [one.number for one in record.incidents] == [3]


async def test_a_change_that_fails_loses_no_incident(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is set aside by the next try, and needs no further incident."""
    async with recorded(temporal, "node-lemon-9") as records:
        cluster, write, asked = records.world.cluster, records.world.cluster.annotate_node, asyncio.Event()

        async def refused(name: str, annotations: dict[str, str | None]) -> None:
            asked.set()
            raise NotFound("no such node")

        monkeypatch.setattr(cluster, "annotate_node", refused)
        await records.tell(incident(1), incident(2))
        await asked.wait()
        await records.world.recorded(records.handle, "ACTIVITY_TASK_FAILED")
        monkeypatch.setattr(cluster, "annotate_node", write)
        await records.world.skip(node_record.AGAIN, records.handle)
        await records.settled(0, aside=True)


async def test_few_nodes_are_set_aside(temporal: WorkflowEnvironment) -> None:
    """A cluster keeps four fifths of its nodes, however many of them cause incidents."""
    async with recorded(temporal, "node-lemon-4") as records:
        await records.world.cluster.annotate_node("node-0", isolation.isolation({}, "stress test"))
        await records.tell(incident(1), incident(2))
        await records.settled(1, aside=False)
        assert not records.marks


async def test_an_incident_of_a_job_is_told_to_the_record_of_its_node(temporal: WorkflowEnvironment) -> None:
    """A second lost node of the same name sets it aside, for all jobs."""
    async with training(temporal, a_job()) as (world, _peer):
        world.cluster.node_names.append("node-lemon-5")
        records = Records(world, "node-lemon-5")
        for number in (1, 2):
            await world.fault(node_fault(records.node, f"lost {number}"))
            await world.restarted(number, life=f"life-{number + 1}")
        await world.event("NodeSetAside")
        record = await records.settled(0, aside=True)
        assert record.aside
        assert f"default/{world.job.name} incident 1" in record.aside.reason
        await records.handle.terminate("the test is over")


async def test_a_job_may_blame_no_node(temporal: WorkflowEnvironment) -> None:
    """The limit `nodeIncidents` of zero switches records off."""
    async with training(temporal, a_job(limits=Limits(node_incidents=timedelta(0)))) as (world, _peer):
        await world.fault(node_fault("node-lemon-6"))
        ended = await world.restarted()
        assert node_records.blame((await world.status()).state, ended) is None


def _ended(*faults: Fault, outcome: Outcome = Outcome.RECOVERED) -> Incident:
    verdict = Verdict(mode=Mode.JOB_RESCHEDULING, outcome=outcome, reason="x")
    ladder = (verdict,)
    policy = SubHealthStrategy.IGNORE
    return Incident(
        number=1, summary="x", started_at=NOW, seconds=1.0, verdict=outcome, ladder=ladder, policy_after=policy, faults=faults
    )


CORDON = sub_health().model_copy(update={"decided": Decided(rule="drain", saw="cordoned", maintenance=True)})
CRASH = Fault(id="c", kind=FaultKind.PROCESS, node="node-1", ranks=(1,), source="test")


@pytest.mark.parametrize(
    ("ended", "nodes"),
    [
        (_ended(node_fault("node-2"), sub_health()), ("node-1", "node-2")),
        (_ended(CORDON), None),
        (_ended(CRASH), None),
        (_ended(sub_health(), outcome=Outcome.IGNORED), None),
        (_ended(*(node_fault(f"node-{number}") for number in range(21))), None),
    ],
    ids=["broken and slow nodes", "a drain", "a process that ends", "nothing was done", "half the cluster"],
)
def test_a_node_is_blamed_for_its_own_faults(ended: Incident, nodes: tuple[str, ...] | None) -> None:
    """A drain, a process of the job and a fault of very many nodes blame no node."""
    job: Job = a_job()
    found = node_records.blame(JobState.of(job), ended)
    assert (found and found.nodes) == nodes
