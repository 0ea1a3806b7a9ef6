"""A node that is to be drained: its pods move first, and where they cannot, the job's owner decides."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.errors import Forbidden
from rekindle.ids import Updates
from rekindle.model.cluster import Pod
from rekindle.model.fault import Decided, Fault, FaultReport
from rekindle.model.job import Drain, Job, NoSpare, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.drain import drain_verdicts
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, sub_health, training

pytestmark = pytest.mark.usefixtures("one_incident_a_run")

SOON = timedelta(seconds=0.4)
BEGUN = 4
"""Events of a history whose first task is done."""

LATER = Limits().drain_again + timedelta(seconds=5)


def cordoned(node: str = "node-1") -> Fault:
    """Returns the fault of a node that is to be left."""
    decided = Decided(rule="plain/cordoned", saw="cordoned", maintenance=True)
    return sub_health(node=node).model_copy(update={"decided": decided, "pod": "demo-1", "message": "cordoned"})


def a_drained_job(drain: Drain = Drain.WAIT) -> Job:
    return a_job(drain=drain, limits=Limits(backup_scheduled=SOON))


@asynccontextmanager
async def the_next_run(world: Harness) -> AsyncIterator[None]:
    """Runs the body in the current run of the job's workflow, and waits until that run has ended and the next one has begun."""
    before = (await world.entity.describe()).run_id
    yield
    async with asyncio.timeout(60):
        while (now := await world.entity.describe()).run_id == before or now.history_length < BEGUN:
            await asyncio.sleep(0.03)


async def test_a_drain_without_a_spare_waits_and_is_tried_again_by_itself(temporal: WorkflowEnvironment) -> None:
    """The policy stays; the reason stands at the fault, on the pod and on the node, once for each drain; the history has one
    incident of it."""
    cluster = ScriptedCluster(job := a_drained_job())
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _):
        async with the_next_run(world):
            await world.fault(cordoned())
        incident = await world.incident()
        assert (incident.verdict, incident.policy_after) == (Outcome.IGNORED, SubHealthStrategy.HOT_SWITCH)
        assert (await world.judged()).startswith(f"ignored: {drain_verdicts.WAITS}: no spare: ")
        await world.event("DrainWaits")
        for number in (2, 3):
            async with the_next_run(world):
                await world.skip(LATER, of=world.entity)
            assert (await world.incident(number)).verdict is Outcome.IGNORED
        status = await world.status()
        assert [one.number for one in status.state.history] == [3]
        assert status.state.policy is SubHealthStrategy.HOT_SWITCH
        told = [(event.kind, event.name) for event in cluster.events if event.reason == "DrainWaits"]
        assert told == [("Pod", "demo-1"), ("Node", "node-1")]
        async with the_next_run(world):  # another drain
            await world.tell(Updates.REPORT_FAULTS, FaultReport(cleared=(cordoned().id,)))
            await world.fault(cordoned())
        await world.incident(4)
        told = [(event.kind, event.name) for event in cluster.events if event.reason == "DrainWaits"]
        assert told == 2 * [("Pod", "demo-1"), ("Node", "node-1")]
        cluster.spare = True
        async with the_next_run(world):
            await world.skip(LATER, of=world.entity)
        assert (await world.incident(5)).verdict is Outcome.RECOVERED


async def test_a_sub_healthy_pod_without_a_spare_is_tried_again_where_its_owner_wants_that(temporal: WorkflowEnvironment) -> None:
    """The policy stays; the history has one incident of all tries, and a spare that comes later is taken."""
    job = a_job(no_spare=NoSpare.WAIT, limits=Limits(backup_scheduled=SOON))
    cluster = ScriptedCluster(job)
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _):
        async with the_next_run(world):
            await world.fault(sub_health())
        incident = await world.incident()
        assert (incident.verdict, incident.policy_after) == (Outcome.IGNORED, SubHealthStrategy.HOT_SWITCH)
        assert (await world.judged()).startswith(f"ignored: {drain_verdicts.WAITS_FOR_SPARE}: no spare: ")
        async with the_next_run(world):
            await world.skip(LATER, of=world.entity)
        assert (await world.incident(2)).verdict is Outcome.IGNORED
        assert [one.number for one in (await world.status()).state.history] == [2]
        cluster.spare = True
        async with the_next_run(world):
            await world.skip(LATER, of=world.entity)
        assert (await world.incident(3)).verdict is Outcome.RECOVERED
        assert not [event for event in cluster.events if event.reason in ("DrainWaits", "SubHealthDowngraded")]


class Silent(ScriptedCluster):
    """Cluster that shows how its pods are, and does not report how they change."""

    async def follow(self, job_id: str) -> AsyncGenerator[Sequence[Pod], None]:
        yield await self.pods(job_id)
        raise Forbidden("pods may not be watched")


@pytest.mark.parametrize(("has_spare", "drain"), [(False, Drain.WAIT), (True, Drain.RESCHEDULE)])
async def test_a_cluster_that_says_nothing_of_a_backup_restarts_nobody(
    temporal: WorkflowEnvironment, drain: Drain, *, has_spare: bool
) -> None:
    """The state of the backup is not known, as after a long outage, and training was not touched. No pod is restarted."""
    cluster = Silent(job := a_drained_job(drain))
    cluster.spare, cluster.backup_starts = has_spare, False
    async with training(temporal, job, cluster=cluster) as (world, _):
        before = {pod.metadata.uid for pod in cluster.pods_by_name.values()}
        async with the_next_run(world):
            await world.fault(cordoned())
        (verdict,) = (await world.incident()).ladder
        assert (verdict.outcome, verdict.policy_after) == (Outcome.REFUSED, None)
        assert verdict.reason.startswith(
            f"{drain_verdicts.WAITS}: no spare: the cluster does not say whether the backup pod runs"
        )
        assert {pod.metadata.uid for pod in cluster.pods_by_name.values()} == before


async def test_a_job_may_rather_be_rescheduled_than_hold_a_drain(temporal: WorkflowEnvironment) -> None:
    """The pods of the job start again, and its policy stays."""
    cluster = ScriptedCluster(job := a_drained_job(Drain.RESCHEDULE))
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _):
        await world.fault(cordoned())
        incident = await world.restarted()
    assert [one.mode for one in incident.ladder] == [Mode.HOT_SWITCH, Mode.JOB_RESCHEDULING]
    assert incident.policy_after is SubHealthStrategy.HOT_SWITCH


async def test_a_job_that_lets_its_pods_go_is_not_tried_again(temporal: WorkflowEnvironment) -> None:
    """The pod is not moved again, since no drain waits for it."""
    cluster = ScriptedCluster(job := a_drained_job(Drain.LET_GO))
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _):
        await world.fault(cordoned())
        assert (await world.incident()).policy_after is SubHealthStrategy.HOT_SWITCH
        state = (await world.status()).state
        assert (state.drain_again, state.policy) == (None, SubHealthStrategy.HOT_SWITCH)
        assert not [event for event in cluster.events if event.reason == "DrainWaits"]


@pytest.mark.parametrize("drain", list(Drain))
async def test_with_a_spare_a_pod_leaves_a_node_before_it_is_drained(temporal: WorkflowEnvironment, drain: Drain) -> None:
    """The pod leaves by a hot switch, whatever the job's setting for drains without a spare."""
    async with training(temporal, a_drained_job(drain)) as (world, _):
        await world.fault(cordoned())
        assert [(one.outcome, one.look_at) for one in (await world.incident()).ladder] == [(Outcome.RECOVERED, "")]


async def test_a_job_that_may_not_be_rescheduled_waits_instead(temporal: WorkflowEnvironment) -> None:
    """The job may not be rescheduled by its queue, or since it was restarted too often. Its budget holds the drain, and a spare
    that comes later is found."""
    cluster = ScriptedCluster(job := a_drained_job(Drain.RESCHEDULE).model_copy(update={"queue": "Kueue"}))
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _):
        async with the_next_run(world):
            await world.fault(cordoned())
        incident = await world.incident()
        assert [one.outcome for one in incident.ladder] == [Outcome.IGNORED]
        assert "the drain waits: " in (await world.event("DrainWaits")).message
        assert "Kueue decides when its pods run" in (await world.judged())
        cluster.spare = True
        async with the_next_run(world):
            await world.skip(LATER, of=world.entity)
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


async def test_a_hot_switch_that_a_person_asks_for_keeps_the_drain_held(temporal: WorkflowEnvironment) -> None:
    """A requested hot switch without a spare does not lower the policy. The job's budget stays, which protects it from the next
    eviction."""
    cluster = ScriptedCluster(job := a_drained_job())
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _):
        async with the_next_run(world):
            await world.fault(cordoned())
        async with the_next_run(world):
            assert (await (await world.front()).result()).outcome is Outcome.IGNORED
        state = (await world.status()).state
        assert (state.policy, state.drain_again is None) == (SubHealthStrategy.HOT_SWITCH, False)
        assert (await world.judged()).startswith(f"ignored: {drain_verdicts.WAITS}")


async def test_a_drain_that_a_person_lets_wait_says_so(temporal: WorkflowEnvironment) -> None:
    """A user who cancels the hot switch keeps the node from being drained. An event informs the user who drains it."""
    cluster = ScriptedCluster(job := a_drained_job().model_copy(update={"limits": Limits()}))
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _):
        await world.fault(cordoned())
        await world.phase("backup pod is scheduled")
        await (await world.running()).cancel()
        assert (await world.incident()).verdict is Outcome.CANCELLED
        assert "cancelled" in (await world.event("DrainWaits")).message


async def test_tries_that_never_reach_the_training_side_are_one_incident(temporal: WorkflowEnvironment) -> None:
    """A history of twenty would be full of them in as many minutes, and each would have its events."""
    cluster = ScriptedCluster(job := a_drained_job().model_copy(update={"limits": Limits(order=SOON, absence=SOON)}))
    async with training(temporal, job, cluster=cluster) as (world, _):
        await world.gateway.stop()
        async with the_next_run(world):
            await world.fault(cordoned())
        assert (await world.incident()).verdict is Outcome.REFUSED
        async with the_next_run(world):
            await world.skip(LATER, of=world.entity)
        await world.incident(2)
        assert [one.number for one in (await world.status()).state.history] == [2]
        assert len([event for event in cluster.events if event.reason == "DrainWaits"]) == 2


@pytest.mark.parametrize("drain", [Drain.WAIT, Drain.RESCHEDULE])
async def test_a_node_that_is_uncordoned_while_a_spare_is_sought_costs_nothing(
    temporal: WorkflowEnvironment, drain: Drain
) -> None:
    """The job is not restarted, and no waiting drain is reported."""
    cluster = ScriptedCluster(job := a_drained_job(drain).model_copy(update={"limits": Limits()}))
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _):
        await world.fault(cordoned())
        await world.running()
        await world.looked_at("ensure_backup", 1)
        await world.tell(Updates.REPORT_FAULTS, FaultReport(cleared=(cordoned().id,)))
        async with the_next_run(world):
            backup = cluster.backup().metadata
            await cluster.ensure_deleted(job.id, backup.name, backup.uid, 0)
        incident = await world.incident()
        assert [(one.outcome, one.policy_after) for one in incident.ladder] == [(Outcome.IGNORED, None)]
        assert "not to be left any more" in incident.ladder[0].reason
        assert not [event for event in cluster.events if event.reason == "DrainWaits"]


@pytest.mark.parametrize("runs", [False, True])
async def test_a_backup_that_is_drained_itself_costs_no_step(temporal: WorkflowEnvironment, *, runs: bool) -> None:
    """The backup may be on the second of two nodes that are drained at once. Training was not touched, and the drain of the first
    node goes on with another backup."""
    cluster = ScriptedCluster(job := a_drained_job().model_copy(update={"limits": Limits(pause_crossing=SOON)}))
    cluster.backup_starts = runs
    async with training(temporal, job, Script(pauses=False), cluster) as (world, peer):
        await world.fault(cordoned())
        await world.phase("backup loads, training pauses" if runs else "backup pod runs")
        if runs:
            await peer.until(lambda: "new pod running" in peer.orders)
        async with the_next_run(world):
            cluster.fail(cluster.backup().metadata.name, "evicted")
            if runs:
                await world.look()
        (verdict,) = (await world.incident()).ladder
        assert (verdict.outcome, verdict.policy_after) == (Outcome.IGNORED, None)
        assert verdict.reason.startswith(f"{drain_verdicts.WAITS}: the backup pod failed to run")
        assert (await world.status()).state.drain_again
