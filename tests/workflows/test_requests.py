"""The update `recover`: any client or front asks a job for a mode with it, and each request is carried out once."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.heartbeat import heartbeating
from activities.jobs import JobActivities
from rekindle import ids
from rekindle.client import Rekindle
from rekindle.model.activities.requests import AskRequest
from rekindle.model.cluster import Condition
from rekindle.model.fault import WATCHER, Sighting
from rekindle.model.incident import ModeRequest
from rekindle.model.keys import MEMORY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.temporal import TASK_TIMEOUT
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, node_fault, register, training
from workflows.hot_switch import HotSwitch

_numbers = itertools.count(1)
FORCED = ModeRequest(mode=Mode.HOT_SWITCH, pod_rank=1, force=True, requested_by="ada")


async def _ask(world: Harness, request: ModeRequest = FORCED, request_id: str = "r1") -> Verdict:
    """Asks as any client of Temporal may, and waits for the verdict."""
    verdict: Verdict = await world.entity.execute_update(ids.Updates.RECOVER, request, id=request_id, result_type=Verdict)
    return verdict


async def _continued(world: Harness, before: str | None) -> None:
    """Waits until the job's workflow has continued as new."""
    async with asyncio.timeout(60):
        while (await world.entity.describe()).run_id == before:
            await asyncio.sleep(0.03)


# ---- by the update itself


async def test_a_request_of_a_million_values_does_not_stop_the_jobs_workflow(temporal: WorkflowEnvironment) -> None:
    """The list of all wrong values would take longer than a workflow task may, again and again."""
    async with training(temporal, a_job()) as (world, _):
        asking = world.entity.execute_update(ids.Updates.RECOVER, {"mode": "link switch", "links": [1] * 900_000}, id="odd")
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await asyncio.wait_for(asking, 10)
        assert "the input has more than 20000 values" in str(refused.value.cause)


async def test_any_client_asks_by_one_update_and_is_answered_with_the_verdict(temporal: WorkflowEnvironment) -> None:
    """No workflow of the client's own is needed: the recovery is the job's child, and says who asked."""
    async with training(temporal, a_job()) as (world, peer):
        verdict = await _ask(world)
        assert (verdict.mode, verdict.outcome) == (Mode.HOT_SWITCH, Outcome.RECOVERED)
        assert "pod rank 1 moved from node-1 to node-2" in verdict.reason
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]
        assert (await world.incident()).summary == "hot switch of pod rank 1, requested by ada"


@pytest.mark.usefixtures("one_incident_a_run")
async def test_a_request_that_is_repeated_after_its_incident_is_answered_and_runs_nothing(temporal: WorkflowEnvironment) -> None:
    """The job's workflow has continued as new by then, so that the server does not know the update any more: the job does."""
    async with training(temporal, a_job()) as (world, peer):
        run = (await world.entity.describe()).run_id
        verdict = await _ask(world)
        await _continued(world, run)
        assert await _ask(world) == verdict
        assert await _ask(world, FORCED.model_copy(update={"pod_rank": 0})) == verdict
        status = await world.status()
        assert (status.state.incidents, status.running, status.state.request) == (1, None, None)
        assert peer.carried_out.count("hot switch") == 1


async def test_two_calls_with_one_id_are_one_request(temporal: WorkflowEnvironment) -> None:
    """A client that lost its connection asks again while the mode runs: it is not busy with itself."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        first = asyncio.create_task(_ask(world))
        await peer.until(lambda: "new pod running" in peer.orders)
        again = asyncio.create_task(_ask(world))
        await peer.pause()
        assert await first == await again
        assert (await world.status()).state.incidents == 1


@pytest.mark.parametrize(
    ("request_", "kind", "words"),
    [
        (ModeRequest(pod_rank=1), ids.ErrorTypes.REQUEST_INVALID, f"mode: missing, accepted are {', '.join(Mode)}"),
        (ModeRequest(mode=Mode.HOT_SWITCH), ids.ErrorTypes.REQUEST_INVALID, "pod_rank: missing, accepted are 0 to 1"),
        (
            ModeRequest(mode=Mode.JOB_RESCHEDULING, pod_rank=1),
            ids.ErrorTypes.REQUEST_INVALID,
            "pod_rank: not accepted, since job rescheduling concerns the whole job",
        ),
        (ModeRequest(mode=Mode.HOT_SWITCH, pod_rank=1), ids.ErrorTypes.REQUEST_REFUSED, "pod rank 1 is healthy"),
    ],
    ids=["no mode", "no pod rank", "a pod rank for all pods", "a healthy pod"],
)
async def test_what_is_wrong_with_a_request_is_said_at_once(
    temporal: WorkflowEnvironment, request_: ModeRequest, kind: str, words: str
) -> None:
    """The update is rejected with a type to branch on, and nothing is stored of it."""
    async with training(temporal, a_job()) as (world, peer):
        with pytest.raises(WorkflowUpdateFailedError) as raised:
            await _ask(world, request_)
        cause = raised.value.cause
        assert isinstance(cause, ApplicationError)
        assert (cause.type, words in cause.message) == (kind, True)
        status = await world.status()
        assert (status.state.answers, status.state.incidents, peer.orders) == ((), 0, [])


async def test_a_withdrawal_that_overtakes_its_request_prevents_it(temporal: WorkflowEnvironment) -> None:
    """Two messages of one client may change places on their way: what was withdrawn never begins."""
    async with training(temporal, a_job()) as (world, peer):
        await world.tell(ids.Updates.WITHDRAW, "r1")
        verdict = await _ask(world)
        assert (verdict.outcome, verdict.reason) == (Outcome.CANCELLED, "cancelled by request, before it began")
        assert ((await world.status()).state.incidents, peer.orders) == (0, [])


async def test_a_withdrawal_of_another_request_changes_nothing(temporal: WorkflowEnvironment) -> None:
    """The running mode was requested under another id."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        asking = asyncio.create_task(_ask(world))
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.tell(ids.Updates.WITHDRAW, "another")
        await peer.pause()
        assert (await asking).outcome is Outcome.RECOVERED


class SlowToRemember(ScriptedCluster):
    """Stores the memory of the job's workflow only when the test allows it."""

    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self.remembers = asyncio.Event()
        self.remembers.set()
        self.is_asked_to_remember = asyncio.Event()

    async def ensure_job_metadata(self, job_id: str, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        if MEMORY in annotations and not self.remembers.is_set():
            self.is_asked_to_remember.set()
            await self.remembers.wait()
        await super().ensure_job_metadata(job_id, labels, annotations)


async def test_a_request_that_comes_while_the_last_incident_is_noted_begins_at_once(temporal: WorkflowEnvironment) -> None:
    """The job's workflow would continue as new after its notes. It does not before the request is served."""
    job = a_job()
    cluster = SlowToRemember(job)
    async with training(temporal, job, Script(pauses=False), cluster) as (world, peer):
        first = asyncio.create_task(_ask(world))
        await peer.until(lambda: "new pod running" in peer.orders)
        cluster.remembers.clear()
        peer.script.pauses = True
        await peer.pause()
        assert (await first).outcome is Outcome.RECOVERED
        await asyncio.wait_for(cluster.is_asked_to_remember.wait(), 30)
        second = asyncio.create_task(_ask(world, request_id="r2"))
        await peer.until(lambda: peer.orders.count("hot switch") == 2)
        cluster.remembers.set()
        assert (await second).outcome is Outcome.RECOVERED


# ---- by a front


async def _refusal(front: WorkflowHandle[Any, Any]) -> ApplicationError:
    """Returns the error with which a front failed."""
    with pytest.raises(WorkflowFailureError) as raised:
        await front.result()
    cause = raised.value.cause
    assert isinstance(cause, ActivityError)
    assert isinstance(cause.cause, ApplicationError)
    return cause.cause


async def _listed(world: Harness, name: str, count: int) -> None:
    """Waits until the server lists so many jobs of this name."""
    query = f"WorkflowType = '{ids.Workflows.TRAINING_JOB}' AND ExecutionStatus = 'Running' AND RekindleJob = '{name}'"
    async with asyncio.timeout(60):
        while (await world.client.count_workflows(query)).count != count:
            await asyncio.sleep(0.03)


async def test_a_front_finds_its_job_by_name(temporal: WorkflowEnvironment) -> None:
    """People know names; ids are accepted as well."""
    async with training(temporal, a_job()) as (world, _peer):
        await _listed(world, world.job.name, 1)
        verdict = await (await world.front(job_id=world.job.name, force=True)).result()
        assert verdict.outcome is Outcome.RECOVERED
        assert (await world.status()).state.incidents == 1


@pytest.mark.parametrize("name", ["nobody", "no'body", "job/with/slashes", "x" * 2_000])
async def test_a_name_that_no_job_has_is_refused(temporal: WorkflowEnvironment, name: str) -> None:
    """The error is `job.unknown` and says what is accepted, whatever the given name is."""
    async with training(temporal, a_job()) as (world, _peer):
        front = await world.client.start_workflow(
            ids.Workflows.HOT_SWITCH,
            ModeRequest(job=name, pod_rank=1),
            id=f"request/of-a-strange-name/{next(_numbers)}",
            task_queue=ids.CONTROL_QUEUE,
            task_timeout=TASK_TIMEOUT,
            result_type=Verdict,
        )
        refusal = await _refusal(front)
        assert (refusal.type, "accepted is the id or the name of a" in refusal.message) == (ids.ErrorTypes.JOB_UNKNOWN, True)


async def test_a_name_that_two_jobs_have_is_refused_with_their_ids(temporal: WorkflowEnvironment) -> None:
    """None is chosen for its client; by its id each can be asked."""
    async with training(temporal, a_job()) as (world, peer):
        namesake = a_job(name=world.job.name, namespace="elsewhere")
        await register(world.client, namesake)
        await _listed(world, world.job.name, 2)
        refusal = await _refusal(await world.front(job_id=world.job.name, force=True))
        assert refusal.type == ids.ErrorTypes.JOB_UNKNOWN
        assert world.job.id in refusal.message
        assert namesake.id in refusal.message
        assert peer.orders == []


class HeldUp(JobActivities):
    """The request of a front stays on its way until it is let go."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.is_on_its_way, self.goes_on = asyncio.Event(), asyncio.Event()

    @activity.defn
    async def hold_request(self, asked: AskRequest) -> Verdict:
        self.is_on_its_way.set()
        async with heartbeating():
            await self.goes_on.wait()
        return await super().hold_request(asked)


@asynccontextmanager
async def _fronts(client: Client, queue: str) -> AsyncIterator[HeldUp]:
    """A worker for fronts alone, whose requests are held up."""
    jobs = HeldUp(client)
    asking: list[Callable[..., Any]] = [jobs.find_job, jobs.hold_request, jobs.withdraw_request]
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client, task_queue=queue, workflows=[HotSwitch], activities=asking, workflow_runner=runner):
        yield jobs


async def test_a_front_that_is_cancelled_while_its_request_is_on_its_way_starts_nothing(temporal: WorkflowEnvironment) -> None:
    """The request arrives after its cancellation. No mode runs for a front that does not wait, and the front reports that."""
    async with training(temporal, a_job()) as (world, peer):
        queue = f"fronts-of-{world.job.id}"
        async with _fronts(world.client, queue) as jobs:
            request = ModeRequest(job=world.job.id, pod_rank=1, force=True)
            front: WorkflowHandle[Any, Verdict] = await world.client.start_workflow(
                ids.Workflows.HOT_SWITCH,
                request,
                id=ids.request_workflow(world.job.id, "held-up"),
                task_queue=queue,
                task_timeout=TASK_TIMEOUT,
                result_type=Verdict,
            )
            await asyncio.wait_for(jobs.is_on_its_way.wait(), 30)
            await front.cancel()
            await world.settled(lambda status: len(status.state.answers) == 1)
            jobs.goes_on.set()
            assert (await front.result()).outcome is Outcome.CANCELLED
        status = await world.status()
        assert (status.state.incidents, status.running, peer.orders) == (0, None, [])


async def test_a_front_gets_its_verdict_although_its_worker_died_meanwhile(temporal: WorkflowEnvironment) -> None:
    """Another worker asks again, under the same id: it finds the mode that runs, and nothing runs twice."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        front = await world.front(force=True)
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.control.stop()
        await world.control.start()
        await peer.pause()
        assert (await front.result()).outcome is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]
        assert (await world.status()).state.incidents == 1


@pytest.mark.usefixtures("one_incident_a_run")
async def test_a_front_whose_worker_is_away_when_the_incident_ends_gets_its_verdict(temporal: WorkflowEnvironment) -> None:
    """The verdict is given while no worker holds the request. It is still available when asked again in a later run of the job's
    workflow."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        queue = f"fronts-of-{world.job.id}"
        run = (await world.entity.describe()).run_id
        async with _fronts(world.client, queue) as jobs:
            jobs.goes_on.set()
            front: WorkflowHandle[Any, Verdict] = await world.client.start_workflow(
                ids.Workflows.HOT_SWITCH,
                ModeRequest(job=world.job.id, pod_rank=1, force=True),
                id=ids.request_workflow(world.job.id, "left-alone"),
                task_queue=queue,
                task_timeout=TASK_TIMEOUT,
                result_type=Verdict,
            )
            await peer.until(lambda: "new pod running" in peer.orders)
        await peer.pause()
        await world.incident()
        await _continued(world, run)
        async with _fronts(world.client, queue) as jobs:
            jobs.goes_on.set()
            assert (await front.result()).outcome is Outcome.RECOVERED
        assert (await world.status()).state.incidents == 1


# ---- after another recovery


@asynccontextmanager
async def _beside_a_node_that_is_given_time(temporal: WorkflowEnvironment) -> AsyncIterator[Harness]:
    """An hour: what is asked for now waits, also for the recovery if the node does not come back."""
    async with training(temporal, a_job(limits=Limits(node_lost=timedelta(hours=1)))) as (world, _peer):
        world.cluster.conditions["node-0"] = (Condition(type="Ready", status="False", message="no word of its kubelet"),)
        lost = node_fault("node-0").model_copy(update={"source": WATCHER})
        await world.tell(ids.Updates.SIGHTING, Sighting(faults=(lost,)))
        yield world


@pytest.mark.parametrize("by_front", [True, False], ids=["a workflow", "an update"])
async def test_a_request_that_waits_behind_a_recovery_can_be_cancelled(temporal: WorkflowEnvironment, by_front: bool) -> None:
    """The waiting request is shown, and is not begun when the recovery has ended."""
    async with _beside_a_node_that_is_given_time(temporal) as world:
        platform = f"platform/{world.job.id}"
        request = ModeRequest(job=world.job.id, mode=None if by_front else Mode.JOB_RESCHEDULING, requested_by="ada")
        if by_front:
            front = await world.client.start_workflow(
                ids.Workflows.JOB_RESCHEDULING, request, id=platform, task_queue=ids.CONTROL_QUEUE, task_timeout=TASK_TIMEOUT
            )
            asking: asyncio.Future[Any] = asyncio.ensure_future(front.result())
        else:
            asking = asyncio.ensure_future(_ask(world, request, platform))
        await world.settled(lambda status: bool(status.request))
        await world.fault(node_fault("node-0", "a person knows that it is lost"))
        await world.settled(lambda status: status.running is Mode.JOB_RESCHEDULING)
        assert await Rekindle(world.client).cancel(world.job.id) == [platform]
        await asyncio.gather(asking, return_exceptions=True)
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        status = await world.settled(lambda status: not status.recovery)
        assert (status.state.incidents, status.state.request) == (1, None)


# ---- however large


@pytest.mark.parametrize("field", ["job", "requested_by", "front"])
async def test_a_request_that_says_more_than_anybody_reads_is_kept_short(temporal: WorkflowEnvironment, field: str) -> None:
    """A waiting request is part of the job's state, which has to fit into one payload."""
    async with _beside_a_node_that_is_given_time(temporal) as world:
        request = ModeRequest(mode=Mode.JOB_RESCHEDULING).model_copy(update={field: "x" * 1_500_000})
        asking = asyncio.ensure_future(_ask(world, request))
        status = await world.settled(lambda status: bool(status.request))
        assert len(status.model_dump_json()) < 100_000
        await Rekindle(world.client).cancel(world.job.id)
        assert (await asking).outcome is Outcome.CANCELLED


async def test_a_withdrawal_of_what_can_be_no_request_is_refused(temporal: WorkflowEnvironment) -> None:
    """A withdrawal is remembered. A few large ones would exceed the state of a job: it could neither answer nor continue as
    new."""
    async with training(temporal, a_job()) as (world, _peer):
        for number in range(3):
            with pytest.raises(WorkflowUpdateFailedError) as raised:
                await world.tell(ids.Updates.WITHDRAW, f"{number}" * 1_500_000)
            assert isinstance(raised.value.cause, ApplicationError)
            assert raised.value.cause.type == ids.ErrorTypes.REQUEST_INVALID
        assert (await world.status()).state.answers == ()
