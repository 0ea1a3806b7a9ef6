"""The only spare node: which recovery gets it, what the others do, and that nothing holds it for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment
from temporalio.worker import Replayer

from activities.journal import JournalActivities
from rekindle.errors import BadInput
from rekindle.ids import CONTROL_QUEUE, SPARES, Queries, Signals, SpareUpdates, Workflows
from rekindle.model.activities.jobs import RememberRequest
from rekindle.model.cluster import Condition, Pod
from rekindle.model.incident import Incident
from rekindle.model.job import Job, NoSpare, SubHealthStrategy
from rekindle.model.keys import MEMORY
from rekindle.model.mode import Outcome
from rekindle.model.spares import SpareAnswer, SpareClaim, SpareClaims, SpareNews, SpareQuestion, SpareView, SpareWish
from rekindle.model.state import JobState
from rekindle.policy.drain import drain_verdicts
from rekindle.policy.placement.spares import NAMED
from rekindle.worker_plugin import plugin
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, sub_health, training
from tests.workflows.test_dead_workers import task_queues, waits
from tests.workflows.test_process_level import ELSEWHERE, ESCALATE, RECOVERED, RESTART, elsewhere, ladder
from workers.sticky_queues import leave_sticky_queues
from workflows import job_reducers
from workflows.spares import ROOM, Spares


class Sized(ScriptedCluster):
    """Cluster whose pods need all devices of a node, so that one of three nodes is a spare."""

    accelerators = 8


class Claims:
    """Workflow that decides, as other jobs and people see it."""

    def __init__(self, world: Harness) -> None:
        self._world = world
        self.handle: WorkflowHandle[Any, Any] = world.client.get_workflow_handle(SPARES)

    async def rival(self, **changes: Any) -> SpareClaim:
        """Lets another job begin a recovery that needs a spare node, as the activity of its job does."""
        known = SpareClaim(
            **{"job_id": "rival", "job": "other/rival", "incident": 1, "mode": ELSEWHERE, "priority": 5, "need": 8, **changes}
        )
        await self._world.client.start_workflow(
            Workflows.SPARES,
            SpareClaims(),
            id=SPARES,
            task_queue=CONTROL_QUEUE,
            start_signal=Signals.CLAIM,
            start_signal_args=[known],
        )
        return known

    async def granted(self, claim: SpareClaim, *free: str) -> SpareAnswer:
        """Lets the other job ask whether it may create its pods now."""
        question = SpareQuestion(claim=claim, view=SpareView(free=dict.fromkeys(free, 8)))
        answer: SpareAnswer = await self.handle.execute_update(SpareUpdates.ASK, question, result_type=SpareAnswer)
        return answer

    async def release(self) -> None:
        await self.handle.signal(Signals.RELEASE, "rival")

    async def jobs(self) -> list[str]:
        """Returns the ids of the jobs that have a claim."""
        known: SpareClaims = await self.handle.query(Queries.STATUS, result_type=SpareClaims)
        return sorted(one.job_id for one in known.claims)

    async def settled(self, *jobs: str) -> None:
        """Waits until these jobs have a claim, and no others."""
        async with asyncio.timeout(60):
            while await self.jobs() != sorted(jobs):
                await asyncio.sleep(0.03)


@asynccontextmanager
async def one_spare(
    temporal: WorkflowEnvironment, job: Job, script: Script | None = None
) -> AsyncIterator[tuple[Harness, ScriptedPeer, Claims]]:
    """Runs a job on two of three nodes."""
    async with training(temporal, job, script, Sized(job)) as (world, peer):
        claims = Claims(world)
        try:
            yield world, peer, claims
        finally:
            with suppress(RPCError):  # it was never started
                await claims.handle.terminate("the test is over")


def lost(incident: Incident) -> str:
    """Returns the reason of the first mode that was tried."""
    return incident.ladder[0].reason


async def test_the_higher_priority_gets_the_spare_although_it_asks_second(temporal: WorkflowEnvironment) -> None:
    """The recovery that began first has not created its pod yet, and is refused with the reason when it asks."""
    async with one_spare(temporal, a_job(priority=6), Script(pauses=False)) as (world, peer, claims):
        rival = await claims.rival()
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        assert world.cluster.backup().spec.node_name == "node-2"
        answer = await claims.granted(rival, "node-2")
        name = f"{world.job.namespace}/{world.job.name}"
        assert answer.reason == f"the spare node goes to the hot switch of job {name}: its pod is already being created"


async def test_a_recovery_claims_its_spare_when_it_begins(temporal: WorkflowEnvironment) -> None:
    """Training is still being stopped and no pod was asked for, when another job with a lower priority wants the only spare."""
    job = elsewhere().model_copy(update={"priority": 9})
    async with one_spare(temporal, job, Script(answers_faults=False)) as (world, peer, claims):
        await peer.report_fault(3)
        await peer.until(lambda: "on_global_rank" in peer.orders)
        rival = await claims.rival()
        await claims.settled("rival", job.id)
        answer = await claims.granted(rival, "node-2")
        name = f"{job.namespace}/{job.name}"
        words = f"the spare node goes to the process rescheduling of job {name}: its priority is 9, that of this job is 5"
        assert (answer.granted, answer.reason) == (False, words)
        await peer.report_offers()
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]
        await claims.settled("rival")


async def test_a_worker_that_starts_takes_the_decision_off_the_queue_of_the_one_before(temporal: WorkflowEnvironment) -> None:
    """A recovery asks before it creates pods. It would wait a second for the previous worker."""
    async with one_spare(temporal, a_job()) as (world, _peer, claims):
        await claims.rival()
        await claims.settled("rival")
        await waits(claims.handle)
        before = len(await task_queues(claims.handle))
        await leave_sticky_queues(world.client)
        await claims.release()
        tasks = await task_queues(claims.handle, more_than=before)
        assert tasks[before] == TaskQueueKind.TASK_QUEUE_KIND_NORMAL


async def test_the_decision_begins_a_new_run_before_its_history_is_long(temporal: WorkflowEnvironment) -> None:
    """A control worker that follows a dead one replays the run before it answers a recovery. The claims go on in the new run."""
    async with one_spare(temporal, a_job()) as (_world, _peer, claims):
        await claims.rival()
        first = (await claims.handle.describe()).run_id
        async with asyncio.timeout(60):
            while (now := await claims.handle.describe()).run_id == first:
                await claims.rival(incident=now.history_length)
        assert now.history_length < ROOM
        await claims.settled("rival")


async def test_the_history_of_all_claims_replays(temporal: WorkflowEnvironment) -> None:
    """The workflow takes the same steps again from its history, under the product's own converter and sandbox."""
    async with one_spare(temporal, a_job()) as (world, _, claims):
        rival = await claims.rival()
        await world.fault(sub_health())
        await world.incident()
        assert (await claims.granted(rival, "node-2")).granted
        await claims.release()
        await claims.settled()
        history = await claims.handle.fetch_history()
    async with asyncio.timeout(90):
        await Replayer(workflows=[Spares], plugins=[plugin()]).replay_workflow(history)


@pytest.mark.parametrize(
    ("priority", "why"),
    [
        (4, "its priority is 5, that of this job is 4"),
        (5, "the priorities are equal, and without it 8 ranks would start again there, 0 here"),
        (None, "its priority is 5, that of this job is 0"),
    ],
)
async def test_a_hot_switch_that_loses_its_spare_is_ignored_with_the_reason(
    temporal: WorkflowEnvironment, priority: int | None, why: str
) -> None:
    """Training goes on, no pod was created, and sub-health is ignored from then on, as without any spare."""
    async with one_spare(temporal, a_job(priority=priority)) as (world, peer, claims):
        await claims.rival(cost=8)
        await world.fault(sub_health())
        incident = await world.incident()
        assert (incident.verdict, incident.policy_after) == (Outcome.IGNORED, SubHealthStrategy.IGNORE)
        assert lost(incident) == f"no spare: the spare node goes to the process rescheduling of job other/rival: {why}"
        assert "other/rival" in await world.judged()
        assert not [write for write in world.cluster.writes if write.startswith("create")]
        assert peer.orders[-1] == "stop switch"
        await claims.settled("rival")


async def test_a_hot_switch_waits_for_its_spare_where_its_owner_wants_that(temporal: WorkflowEnvironment) -> None:
    """The policy stays. The switch is tried again, and succeeds when the other recovery is over."""
    async with one_spare(temporal, a_job(no_spare=NoSpare.WAIT)) as (world, _, claims):
        await claims.rival()
        await world.fault(sub_health())
        incident = await world.incident()
        assert (incident.verdict, incident.policy_after) == (Outcome.IGNORED, SubHealthStrategy.HOT_SWITCH)
        assert lost(incident).startswith(f"{drain_verdicts.WAITS_FOR_SPARE}: no spare: the spare node goes to")
        await claims.release()
        await world.skip(timedelta(seconds=61), of=world.entity)
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


async def test_a_process_rescheduling_that_loses_its_spare_takes_its_next_mode(temporal: WorkflowEnvironment) -> None:
    """Losing is known before the limit of scheduling, since training stands."""
    async with one_spare(temporal, elsewhere()) as (world, peer, claims):
        await claims.rival()
        await peer.report_fault(3)
        incident = await world.restarted()
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (RESTART, RECOVERED)]
        assert lost(incident).startswith("no spare for pod rank 1: the spare node goes to the process rescheduling of job other/")
        await claims.settled("rival")


async def test_a_restart_leaves_a_node_to_a_recovery_that_comes_first(temporal: WorkflowEnvironment) -> None:
    """A restart that needs the spare creates no pods until the other recovery is over. The event has the reason."""
    async with one_spare(temporal, elsewhere()) as (world, peer, claims):
        world.cluster.conditions["node-1"] = (Condition(type="Ready", status="False"),)
        await claims.rival()
        await peer.report_fault(3)
        event = await world.event("PodsRefused")
        assert event.message.startswith("the spare node goes to the process rescheduling of job other/rival: its priority is 5")
        assert not [write for write in world.cluster.writes if write.startswith("create")]
        await claims.settled("rival")
        await claims.release()
        await world.skip(timedelta(minutes=1))
        incident = await world.restarted()
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (RESTART, RECOVERED)]


async def test_a_process_rescheduling_waits_for_its_spare_where_its_owner_wants_that(temporal: WorkflowEnvironment) -> None:
    """Next question comes after some seconds, and finds that the other recovery is over."""
    job = elsewhere().model_copy(update={"no_spare": NoSpare.WAIT})
    async with one_spare(temporal, job) as (world, peer, claims):
        await claims.rival()
        await peer.report_fault(3)
        await world.phase("new pods start")
        await claims.settled("rival", world.job.id)
        assert not [write for write in world.cluster.writes if write.startswith("create")]
        await claims.release()
        await world.skip(timedelta(seconds=6))
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]


async def test_a_process_rescheduling_waits_no_longer_than_for_any_spare(temporal: WorkflowEnvironment) -> None:
    """The limit for scheduling includes the time in which another job gets the spare."""
    job = elsewhere(replacement_scheduled=timedelta(seconds=12)).model_copy(update={"no_spare": NoSpare.WAIT})
    async with one_spare(temporal, job) as (world, peer, claims):
        await claims.rival()
        await peer.report_fault(3)
        await world.phase("new pods start")
        for _ in range(3):
            await world.skip(timedelta(seconds=4.5))
        incident = await world.restarted()
        assert lost(incident).endswith("its priority is 5, that of this job is 0")


async def test_nobody_is_refused_while_enough_spares_are_free(temporal: WorkflowEnvironment) -> None:
    """A claim of another job, whose pod is being created, takes one of two spare nodes."""
    job = a_job()
    cluster = Sized(job, nodes=4)
    async with training(temporal, job, cluster=cluster) as (world, _):
        claims = Claims(world)
        rival = await claims.rival()
        assert (await claims.granted(rival)).granted
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        await claims.settled("rival")
        await claims.handle.terminate("the test is over")


@pytest.mark.parametrize("end", ["recovered", "cancelled", "terminated"])
async def test_a_claim_is_over_with_its_recovery(temporal: WorkflowEnvironment, end: str) -> None:
    """Claims end with their recovery, in whatever way it ends."""
    async with one_spare(temporal, a_job(), Script(pauses=end == "recovered")) as (world, peer, claims):
        await world.fault(sub_health())
        if end != "recovered":
            await peer.until(lambda: "new pod running" in peer.orders)
            await claims.settled(world.job.id)
            recovery = await world.running()
            await (recovery.cancel() if end == "cancelled" else recovery.terminate("by hand"))
            if end == "terminated":
                await world.restarted()
        await world.incident()
        await claims.settled()


async def test_a_claim_is_over_by_itself_if_its_job_is_lost(temporal: WorkflowEnvironment) -> None:
    """The time passes for which a claim is kept. The workflow ends when there was no claim for a while."""
    async with one_spare(temporal, a_job(), Script(pauses=False)) as (world, peer, claims):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.entity.terminate("by hand")
        await claims.settled(world.job.id)
        await world.skip(NAMED + timedelta(seconds=1), claims.handle)
        await claims.handle.result()
        await claims.settled()


async def test_a_recovery_goes_on_without_the_workflow_that_decides(temporal: WorkflowEnvironment) -> None:
    """Answer is missing for two seconds. The backup pod is created as if no other job needed a spare."""
    async with one_spare(temporal, a_job()) as (world, _, _claims):
        await world.client.start_workflow(Workflows.SPARES, SpareClaims(), id=SPARES, task_queue="nobody-polls")
        began = datetime.now(UTC)
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert datetime.now(UTC) - began < timedelta(seconds=20)


async def test_a_job_without_accelerators_claims_nothing(temporal: WorkflowEnvironment) -> None:
    """Any node has room for its pods. The workflow that decides for other jobs, if it runs, never hears of this one."""
    job = a_job()
    async with training(temporal, job, cluster=ScriptedCluster(job)) as (world, _):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        try:
            heard = f"{await world.client.get_workflow_handle(SPARES).fetch_history()}"
        except RPCError:
            heard = ""
        assert f'{job.id}\\"' not in heard


async def test_a_pod_that_cannot_be_read_costs_no_note(temporal: WorkflowEnvironment) -> None:
    """A need that is not told is no reason to lose what a later workflow of the job must find."""

    class Malformed(ScriptedCluster):
        async def pods(self, job_id: str) -> list[Pod]:
            raise BadInput("a pod of the job cannot be read")

    cluster = Malformed(job := a_job())
    memory = job_reducers.to_remember(JobState.of(job).with_(incidents=7), "")
    wish = SpareWish(job="default/gpt", incident=7, mode=ELSEWHERE)
    request = RememberRequest(job_id=job.id, memory=memory, spare=SpareNews(wish=wish))
    await ActivityEnvironment().run(JournalActivities(cluster, temporal.client).remember, request)
    assert cluster.labels[MEMORY] == memory.model_dump_json()
