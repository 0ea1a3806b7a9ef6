"""A job that cannot be recovered as its pods are: nothing is begun, and nothing is forgotten."""

import asyncio

import pytest
from temporalio.client import WorkflowExecutionDescription
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.cli.output import show_status
from rekindle.cli.terminal import console
from rekindle.model.fault import Sighting
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobStatus, Registration
from rekindle.policy.detection.watcher_updates import Register, Sighted
from tests.fakes.peer import Script
from tests.support.harness import Harness, a_job, node_fault, sub_health, training
from workers.watcher.job_workflows import TemporalJobWorkflows

UNRANKED = "pod gpt-1 carries no rank: expected annotation hccl/rankIndex"
OUTSIDE = "pod rank 7 of pod x is outside 0 to 1"
DECLINED = f"the job cannot be recovered as it is: {UNRANKED}"


async def problems(world: Harness, *found: str) -> None:
    await world.tell(ids.Updates.SIGHTING, Sighting(problems=found))


async def declined(world: Harness, count: int) -> JobStatus:
    """Waits until so many faults were declined."""
    return await world.settled(lambda status: len([one for one in status.state.faults if one.judged]) == count)


async def test_a_sub_health_waits_until_the_problems_are_over(temporal: WorkflowEnvironment) -> None:
    """The sub-health is declined with the first problem, and hot-switched when there is none any more. Both are events."""
    async with training(temporal, a_job()) as (world, peer):
        await problems(world, UNRANKED, OUTSIDE)
        await world.fault(sub_health())
        assert await world.judged() == f"refused: {DECLINED}"
        assert DECLINED in (await world.event("RecoveryRefused")).message
        assert (peer.orders, world.cluster.writes) == ([], [])
        await problems(world)
        assert (await world.incident()).verdict is Outcome.RECOVERED
        told = [(event.type, event.message) for event in world.cluster.events if event.reason == "JobProblem"]
        assert sorted(told) == sorted([("Warning", UNRANKED), ("Warning", OUTSIDE)])
        assert (await world.event("JobProblemsOver")).type == "Normal"


async def test_a_refusal_is_recorded_again_after_an_incident(temporal: WorkflowEnvironment) -> None:
    """The pod has moved since the first refusal. The events must show that the new fault is refused like the earlier one."""
    async with training(temporal, a_job()) as (world, _peer):
        for number in (1, 2):
            await problems(world, UNRANKED)
            await world.fault(sub_health())
            async with asyncio.timeout(60):
                while sum(event.reason == "RecoveryRefused" for event in world.cluster.events) < number:
                    await asyncio.sleep(0.03)
            if number == 1:
                await problems(world)
                assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_a_real_fault_waits_until_the_problems_are_over(temporal: WorkflowEnvironment) -> None:
    """The fault is declined once for each reason, and stands. It is one incident with a second fault when the problems are
    over."""
    async with training(temporal, a_job()) as (world, _peer):
        await problems(world, UNRANKED)
        await world.fault(node_fault("node-0", "first"))
        assert DECLINED in (await world.event("RecoveryRefused")).message
        await world.fault(node_fault("node-1", "second"))
        status = await declined(world, 2)
        assert [one.fault.id for one in status.state.faults] == ["first", "second"]
        assert (status.running, status.state.incidents, world.cluster.writes) == (None, 0, [])
        await problems(world, OUTSIDE)
        await declined(world, 2)
        await problems(world)
        incident = await world.restarted()
        assert [fault.id for fault in incident.faults] == ["first", "second"]
        assert incident.verdict is Outcome.RECOVERED
        assert (await world.status()).state.faults == ()
        refused = [event.message for event in world.cluster.events if event.reason == "RecoveryRefused"]
        assert len([words for words in refused if UNRANKED in words]) == 2
        assert len([words for words in refused if OUTSIDE in words]) == 1


async def _asleep(world: Harness) -> WorkflowExecutionDescription:
    """The job's workflow, as soon as all that it began is done."""
    async with asyncio.timeout(60):
        while True:
            described = await world.entity.describe()
            left = described.raw_description
            if not (left.pending_activities or left.HasField("pending_workflow_task")):
                return described
            await asyncio.sleep(0.03)


async def test_while_it_waits_nothing_is_done(temporal: WorkflowEnvironment) -> None:
    """The job's workflow sleeps: no event is added to its history, and it does not continue as new."""
    async with training(temporal, a_job()) as (world, _peer):
        await problems(world, UNRANKED)
        await world.fault(node_fault("node-0"))
        await world.event("RecoveryRefused")
        await declined(world, 1)
        before = await _asleep(world)
        for _ in range(20):
            await world.status()
        after = await world.entity.describe()
        assert (after.run_id, after.history_length) == (before.run_id, before.history_length)


@pytest.mark.parametrize(("mode", "pod_rank"), [(ids.Workflows.HOT_SWITCH, 1), (ids.Workflows.JOB_RESCHEDULING, None)])
async def test_a_request_is_refused_with_the_problem(temporal: WorkflowEnvironment, mode: str, pod_rank: int | None) -> None:
    """Also while a real fault waits: the job is not busy, it cannot be recovered."""
    async with training(temporal, a_job()) as (world, peer):
        await problems(world, UNRANKED)
        await world.fault(node_fault("node-0"))
        await declined(world, 1)
        verdict = await (await world.front(pod_rank, mode=mode, force=True)).result()
        assert (verdict.outcome, verdict.reason) == (Outcome.REFUSED, DECLINED)
        assert (peer.orders, world.cluster.writes) == ([], [])


async def test_what_runs_goes_on(temporal: WorkflowEnvironment) -> None:
    """A problem that appears during a recovery, which moves pods, does not disturb it. The job is examined again after the
    recovery, and problems that no longer exist are reported as over."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await problems(world, UNRANKED)
        await world.event("JobProblem")
        assert (await world.status()).running is Mode.HOT_SWITCH
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        await world.event("JobProblemsOver")


async def test_many_problems_are_few_events(temporal: WorkflowEnvironment) -> None:
    """Eight problems are five events, the fifth of which counts the rest. Problems that stay are not reported again. All are on
    the job's page."""
    many = tuple(f"pod p{number} carries no rank" for number in range(8))
    async with training(temporal, a_job()) as (world, _peer):
        await problems(world, *many)
        await world.settled(lambda _: len(world.cluster.events) == 5)
        assert sorted(event.message for event in world.cluster.events) == [*many[:4], f"{many[4]} (and 3 more)"]
        await problems(world, *many, "another [one]")
        await world.settled(lambda _: len(world.cluster.events) == 6)
        assert world.cluster.events[-1].message == "another [one]"
        with console.capture() as page:
            show_status(await world.status())
        assert all(f"cannot be recovered: {problem}" in page.get() for problem in (*many, "another [one]"))


async def test_the_watchers_own_way_of_telling(temporal: WorkflowEnvironment) -> None:
    """A registration brings problems, a sighting replaces them, and a repeated sighting counts once. Another watcher sends its
    own view. A registration without a sighting leaves the problems alone."""
    async with training(temporal, a_job()) as (world, _peer):
        here, watcher = str(world.job.id), TemporalJobWorkflows(world.client)

        async def found() -> tuple[str, ...]:
            return (await world.status()).state.problems

        registration = Registration(job=world.job, sighting=Sighting(problems=(UNRANKED,)))
        await watcher.send(here, Register(registration=registration), "one")
        assert await found() == (UNRANKED,)
        for _ in range(2):
            await watcher.send(here, Sighted(sighting=Sighting(problems=(OUTSIDE,))), "two")
        assert await found() == (OUTSIDE,)
        await watcher.send(here, Register(registration=Registration(job=world.job)), "three")
        assert await found() == (OUTSIDE,)
        await TemporalJobWorkflows(world.client).send(here, Sighted(sighting=Sighting()), "four")
        assert await found() == ()
        assert len([event for event in world.cluster.events if event.reason == "JobProblem"]) == 2


async def test_the_watcher_learns_from_a_jobs_workflow_whether_it_has_trained(temporal: WorkflowEnvironment) -> None:
    """The phase gives the answer. The answer for a job that was never registered is unknown."""
    async with training(temporal, a_job()) as (world, _peer):
        watcher = TemporalJobWorkflows(world.client)
        assert await watcher.has_trained(str(world.job.id)) is True
        assert await watcher.has_trained("nobody") is None
