"""Words of MindCluster's contract: what other components read of an incident of each mode, and what is left of it afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateStage
from temporalio.testing import WorkflowEnvironment

from activities.pod_recreation import MakingAnew
from rekindle import ids
from rekindle.model.contract import FaultLabel, Status, Words
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job, Trait
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from tests.fakes.fault_dialogue import STOPPED
from tests.fakes.peer import Script, ScriptedPeer, nothing_before
from tests.fakes.scripted_cluster import TheirCluster
from tests.fakes.scripted_contract import ScriptedContract
from tests.support.harness import RESUMES, Harness, a_job, a_mindio_job, register, sub_health, training
from tests.workflows.support.openings import SHORT

TRAITS = (Trait.CONTROLLER_RECREATES, Trait.NO_STANDBYS, Trait.CONTRACT_WORDS)


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the recovery delete pods at once, since no scheduler deletes them here."""
    monkeypatch.setattr(MakingAnew, "DELETED_BY_OTHERS", 0.0)


def read_by_others(allows: str = "recover,dump", **changes: Any) -> Job:
    """Returns a MindIO job of three pods with two ranks each, about which other components read."""
    limits = Limits(settle=timedelta(0), release=timedelta(0), report_lost=SHORT)
    return a_mindio_job(pods=3, traits=TRAITS, annotations={RECOVER_STRATEGY: allows}, limits=limits, **changes)


@asynccontextmanager
async def their_job(
    env: WorkflowEnvironment, job: Job, script: Script | None = None, restarts: int | None = 4
) -> AsyncIterator[tuple[Harness, ScriptedPeer, ScriptedContract]]:
    cluster = TheirCluster(job, nodes=job.pods + 3)
    contract = cluster.contract = ScriptedContract(restarts)
    async with training(env, job, script, cluster) as (world, peer):
        await world.look()
        peer.script.before_status = contract.is_up_to_date
        yield world, peer, contract


async def all_written(world: Harness, contract: ScriptedContract) -> list[Words]:
    """Returns the words of an incident, when nothing of it is left."""
    await world.settled(lambda status: not status.state.unswept)
    return contract.written


async def restarted(world: Harness, peer: ScriptedPeer) -> None:
    """Attaches the new manager of a restart, lets the pods stay, and waits for the end of the incident."""
    await world.phase(RESUMES)
    await peer.cut()
    await peer.attach()
    await world.phase(RESUMES)
    await world.skip(timedelta(seconds=6))
    await world.incident()


async def test_a_job_begins_without_words_of_an_earlier_life(temporal: WorkflowEnvironment) -> None:
    """Registration removes what a controller that died has left: nothing stays on `pause`."""
    async with their_job(temporal, read_by_others()) as (world, _, contract):
        await register(world.client, world.job)
        assert await all_written(world, contract) == [Words(over=True)]


async def test_the_words_of_a_recovery_are_those_of_the_contract(temporal: WorkflowEnvironment) -> None:
    """Faults are collected, then the announced ranks are named, then the result, and at the end only the result is left."""
    job = read_by_others(allows="recover-in-place,recover")
    async with their_job(temporal, job, Script(stops=False)) as (world, peer, contract):
        await peer.report_fault(3)
        await peer.until(lambda: peer.state == STOPPED)
        flushing = await contract.until(lambda words: words.flushing)
        assert [*flushing.labels.values()] == [FaultLabel.SOFTWARE]
        await peer.report_stopped()
        await world.incident()
        written = await all_written(world, contract)
        named = await contract.until(lambda words: bool(words.faulty))
        assert (named.flushing, named.faulty, named.in_place) == (False, (3,), True)
        assert written[-1] == Words(status=Status.RECOVER_SUCCESS, restarts=4, over=True)


async def test_pods_that_leave_are_named_with_all_their_ranks(temporal: WorkflowEnvironment) -> None:
    """Process rescheduling names the ranks of the whole pod, and the pod whose devices others must release."""
    async with their_job(temporal, read_by_others(allows="recover")) as (world, peer, contract):
        await peer.report_fault(3)
        await world.incident()
        await all_written(world, contract)
        named = await contract.until(lambda words: bool(words.faulty))
        assert (named.faulty, named.in_place, named.leaving) == ((2, 3), False, (1,))


async def test_a_retry_names_no_ranks(temporal: WorkflowEnvironment) -> None:
    """The pod is called one of a fault that is retried, and no device is released."""
    async with their_job(temporal, read_by_others(allows="retry")) as (world, peer, contract):
        await peer.report_fault(3, kind="0")
        await world.incident()
        written = await all_written(world, contract)
        assert all(not one.faulty and not one.leaving for one in written)
        assert {label for one in written for label in one.labels.values()} == {FaultLabel.RETRY}
        assert written[-1].status is Status.RETRY_SUCCESS


async def test_a_recovery_that_fails_says_so_of_each_strategy(temporal: WorkflowEnvironment) -> None:
    """The repair fails, the state is saved, and the restart counts once more in `RetryTime`."""
    async with their_job(temporal, read_by_others(), Script(statuses=[406])) as (world, peer, contract):
        await peer.report_fault(3)
        await restarted(world, peer)
        written = await all_written(world, contract)
        told = [one.status for one in written if one.status]
        assert list(dict.fromkeys(told)) == [Status.RECOVER_FAILED, Status.DUMP_SUCCESS]
        assert written[-1] == Words(status=Status.DUMP_SUCCESS, restarts=5, over=True)
        assert contract.restarts == 5


async def test_a_restart_without_a_dump_is_called_an_exit(temporal: WorkflowEnvironment) -> None:
    """The owner allows no dump, so that nothing is saved."""
    async with their_job(temporal, read_by_others(allows="recover"), Script(statuses=[406])) as (world, peer, contract):
        await peer.report_fault(3)
        await restarted(world, peer)
        assert (await all_written(world, contract))[-1].status is Status.EXIT_COMPLETED


async def test_a_hot_switch_leaves_no_words(temporal: WorkflowEnvironment) -> None:
    """Words are only removed at its end: it flushes nothing and has no result."""
    job = read_by_others(sub_health=a_job().sub_health)
    async with their_job(temporal, job) as (world, _, contract):
        await world.fault(sub_health())
        await world.incident()
        written = await all_written(world, contract)
        assert all(one in (Words(), Words(over=True), Words(over=True, restarts=4)) for one in written)


async def test_words_that_cannot_be_written_delay_nothing_and_are_removed_later(temporal: WorkflowEnvironment) -> None:
    """The cluster takes no word until the recovery has ended."""
    async with their_job(temporal, read_by_others(allows="recover")) as (world, peer, contract):
        await all_written(world, contract)
        contract.refusals, peer.script.before_status = 1000, nothing_before
        await peer.report_fault(3)
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert (await world.status()).state.unswept
        contract.refusals = 0
        await world.skip(timedelta(minutes=1), world.entity)
        assert (await all_written(world, contract))[-1].over


async def test_newer_words_do_not_wait_for_older_ones(temporal: WorkflowEnvironment) -> None:
    """A write that hangs ends when the next words are due, so that an old `on` cannot follow the `pause` of a restart."""
    async with their_job(temporal, read_by_others(allows="recover")) as (world, peer, contract):
        await all_written(world, contract)
        contract.hangs_once, peer.script.before_status = lambda words: words.flushing, nothing_before
        await peer.report_fault(3)
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert (await all_written(world, contract))[-1].over
        assert contract.was_cut.is_set()
        assert not any(words.flushing for words in contract.written)


async def test_a_sweep_does_not_reach_into_a_restart(temporal: WorkflowEnvironment) -> None:
    """A restart that begins has no words of its own yet. A sweep that hangs is ended, as it would undo the restart's `pause`."""
    async with their_job(temporal, read_by_others(allows="retry")) as (world, peer, contract):
        await all_written(world, contract)
        contract.hangs_once = lambda words: words.over
        await peer.report_fault(3, kind="0")
        await world.incident()
        request = ModeRequest(mode=Mode.JOB_RESCHEDULING, save=False, requested_by="an operator")
        await world.entity.start_update(
            ids.Updates.RECOVER, request, result_type=Verdict, wait_for_stage=WorkflowUpdateStage.ACCEPTED
        )
        async with asyncio.timeout(60):
            await contract.was_cut.wait()


async def test_a_lost_workflow_leaves_nothing_half_said(temporal: WorkflowEnvironment) -> None:
    """The next workflow of the job removes what the first one has written, when the recovery that ran has ended."""
    async with their_job(temporal, read_by_others(allows="recover"), Script(resumes=False)) as (world, peer, contract):
        await peer.report_fault(3)
        await peer.until(lambda: "recover" in peer.orders)
        await contract.until(lambda words: bool(words.faulty))
        await world.entity.terminate()
        await register(world.client, world.job)
        await world.settled(lambda status: bool(status.state.registered))
        await all_written(world, contract)
        assert contract.written[-1].over


async def test_other_jobs_have_no_words(temporal: WorkflowEnvironment) -> None:
    """A job of another kind is recovered without a write for other components."""
    job = a_job(annotations={})
    cluster = TheirCluster(job)
    contract = cluster.contract = ScriptedContract()
    async with training(temporal, job, None, cluster) as (world, peer):
        await world.look()
        await peer.report_fault(3)
        await world.incident()
        assert not (await world.status()).state.unswept
        assert contract.written == []
        events = (await world.entity.fetch_history()).events
        signals = {event.workflow_execution_signaled_event_attributes.signal_name for event in events}
        assert ids.Signals.ANNOUNCED not in signals
