"""A MindIO job whose last report of a recovery dies with the gateway: the client never repeats it, and training goes on."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from temporalio.client import WorkflowUpdateStage
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates, Workflows
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.links import NodeLinks
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import MindioPeer, Script, ScriptedPeer
from tests.support.harness import Harness, a_job, a_mindio_job, training

ASKED = ["stop_train", "on_global_rank", "retry"]


def _job() -> Job:
    limits = Limits(settle=timedelta(0), release=timedelta(0))
    return a_mindio_job(annotations={RECOVER_STRATEGY: "retry,recover-in-place,recover"}, limits=limits)


async def loses_its_status(world: Harness, peer: ScriptedPeer, strategy: str, phase: str) -> None:
    """The client comes back, and says nothing of what it did."""
    await peer.until(lambda: strategy in peer.carried_out)
    await world.phase(phase)
    await peer.cut()
    await peer.attach()
    peer.script.loses.clear()
    assert isinstance(peer, MindioPeer)
    await peer.until(lambda: peer.orders.count(strategy) == 2 and peer._slot is None)  # sent again, and read


async def _switches_links(world: Harness, peer: ScriptedPeer) -> None:
    await peer.with_links()
    request = ModeRequest(mode=Mode.LINK_SWITCH, links=(NodeLinks(node="node-1", devices=("0",), backup=True),))
    await world.entity.start_update(Updates.RECOVER, request, wait_for_stage=WorkflowUpdateStage.ACCEPTED)


def _ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


ABSENCE = timedelta(seconds=170)
"""Limit of an absence that differs from every other limit."""

CASES = [
    ("0", "retry", "the step is repeated", Mode.ONLINE_RETRY),
    ("1", "recover", "faulty processes start again", Mode.IN_PLACE),
]


@pytest.mark.parametrize(("kind", "strategy", "phase", "mode"), CASES)
async def test_training_is_asked_whether_it_goes_on(
    temporal: WorkflowEnvironment, kind: str, strategy: str, phase: str, mode: Mode
) -> None:
    """Training stops and repeats a step, which proves it; it was restarted after 15 minutes, although it trained."""
    async with training(temporal, _job(), Script(loses={"status"})) as (world, peer):
        await peer.report_fault(3, kind=kind)
        await loses_its_status(world, peer, strategy, phase)
        await world.skip(timedelta(minutes=3 if mode is Mode.ONLINE_RETRY else 15, seconds=1))
        incident = await world.incident()
        assert _ladder(incident) == [(mode, Outcome.RECOVERED)]
        assert "training was asked, and repeated a step" in incident.ladder[0].reason
        assert peer.carried_out[-3:] == ASKED
        assert (await world.status()).state.faults == ()


@pytest.mark.parametrize(("kind", "strategy", "phase", "mode"), CASES)
async def test_a_client_that_is_away_at_the_limit_is_waited_for_and_asked(
    temporal: WorkflowEnvironment, kind: str, strategy: str, phase: str, mode: Mode
) -> None:
    """The client may train when the limit passes while it is disconnected. The job is not restarted for that."""
    job = _job()
    job = job.model_copy(update={"limits": job.limits.model_copy(update={"absence": ABSENCE})})
    async with training(temporal, job, Script(loses={"status"})) as (world, peer):
        await peer.report_fault(3, kind=kind)
        await peer.until(lambda: strategy in peer.carried_out)
        await world.phase(phase)
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        await world.skip(job.limits.retry if mode is Mode.ONLINE_RETRY else job.limits.repair)
        await _waits_for(world, ABSENCE)
        peer.script.loses.clear()
        await peer.attach()
        incident = await world.incident()
        assert _ladder(incident) == [(mode, Outcome.RECOVERED)]
        assert "training was asked, and repeated a step" in incident.ladder[0].reason


async def _waits_for(world: Harness, within: timedelta) -> None:
    """Returns when the running recovery has begun such a wait."""
    recovery = await world.running()
    async with asyncio.timeout(60):
        while True:
            timers = [event.timer_started_event_attributes async for event in recovery.fetch_history_events()]
            if any(timer.start_to_fire_timeout.ToTimedelta() == within for timer in timers):
                return
            await asyncio.sleep(0.05)


async def test_training_that_repeats_no_step_is_restarted(temporal: WorkflowEnvironment) -> None:
    """A client whose repair has failed leaves when it is asked anything else."""
    async with training(temporal, _job(), Script(loses={"status"}, statuses=[0, 499])) as (world, peer):
        await peer.report_fault(3, kind="0")
        await loses_its_status(world, peer, "retry", "the step is repeated")
        await world.skip(timedelta(minutes=3, seconds=1))
        await world.settled(lambda status: status.running is Mode.JOB_RESCHEDULING)


@pytest.mark.parametrize(("kind", "strategy", "phase", "mode"), CASES)
async def test_another_fault_says_that_the_repair_before_it_is_done(
    temporal: WorkflowEnvironment, kind: str, strategy: str, phase: str, mode: Mode
) -> None:
    """Only training that goes on finds one: it is recovered as usual, at once. It was ignored."""
    async with training(temporal, _job(), Script(loses={"status"})) as (world, peer):
        await peer.report_fault(3, kind=kind)
        await loses_its_status(world, peer, strategy, phase)
        await peer.report_fault(1, kind=kind)
        first, second = await world.incident(), await world.incident(2)
        assert _ladder(first) == _ladder(second) == [(mode, Outcome.RECOVERED)]
        assert "it reports another fault" in first.ladder[0].reason
        assert _announced(peer) == [(3,), (1,)]


@pytest.mark.parametrize(
    ("lost", "order", "outcome"),
    [("stop complete", "pause_train", Outcome.IGNORED), ("status", "continue", Outcome.RECOVERED)],
)
async def test_training_that_an_operation_paused_is_asked_whether_it_goes_on(
    temporal: WorkflowEnvironment, lost: str, order: str, outcome: Outcome
) -> None:
    """Nothing is switched without the report of its pause; the switch is done without that of its end."""
    async with training(temporal, _job(), Script(loses={lost})) as (world, peer):
        await _switches_links(world, peer)
        phase = "training pauses" if order == "pause_train" else "training goes on"
        await loses_its_status(world, peer, order, phase)
        await world.skip(timedelta(minutes=3, seconds=1))
        incident = await world.incident()
        assert _ladder(incident) == [(Mode.LINK_SWITCH, outcome)], incident.ladder[0].reason
        assert (await world.status()).state.repairs == ()  # of which a job has so many
        assert "training was asked, and repeated a step" in incident.ladder[0].reason


@pytest.mark.parametrize(
    ("lost", "order", "outcome"),
    [("stop complete", "pause_train", Outcome.IGNORED), ("status", "continue", Outcome.RECOVERED)],
)
async def test_a_paused_client_that_is_away_at_the_limit_is_waited_for_and_asked(
    temporal: WorkflowEnvironment, lost: str, order: str, outcome: Outcome
) -> None:
    """A paused client is treated as one that repairs."""
    job = _job()
    job = job.model_copy(update={"limits": job.limits.model_copy(update={"absence": ABSENCE})})
    async with training(temporal, job, Script(loses={lost})) as (world, peer):
        await _switches_links(world, peer)
        await peer.until(lambda: order in peer.carried_out)
        await world.phase("training pauses" if order == "pause_train" else "training goes on")
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        await world.skip(job.limits.pause_train if order == "pause_train" else job.limits.continue_train)
        await _waits_for(world, ABSENCE)
        peer.script.loses.clear()
        await peer.attach()
        incident = await world.incident()
        assert _ladder(incident) == [(Mode.LINK_SWITCH, outcome)], incident.ladder[0].reason
        assert "training was asked, and repeated a step" in incident.ladder[0].reason


async def test_a_report_of_a_fault_that_is_late_says_nothing_of_the_strategy(temporal: WorkflowEnvironment) -> None:
    """No stream was cut, so that the status comes: the fault was found before, and the repair goes on."""
    async with training(temporal, _job(), Script()) as (world, peer):
        go = asyncio.Event()

        async def before(_: str) -> None:
            await go.wait()

        peer.script.before_status = before
        await peer.report_fault(3, kind="1")
        await peer.until(lambda: "recover" in peer.carried_out)
        await world.phase("faulty processes start again")
        peer.broken[1] = "1"
        await peer._report_faults([1])
        await world.settled(lambda status: 1 in status.state.faults[0].fault.ranks)
        assert (await world.status()).running is Mode.IN_PLACE
        go.set()
        first = await world.incident()
        assert _ladder(first) == [(Mode.IN_PLACE, Outcome.RECOVERED)]
        assert "lost" not in first.ladder[0].reason


async def test_training_is_asked_again_where_its_answer_is_lost_too(temporal: WorkflowEnvironment) -> None:
    """Another outage comes while it repeats its step."""
    async with training(temporal, _job(), Script(loses={"status"})) as (world, peer):
        await peer.report_fault(3, kind="0")
        await loses_its_status(world, peer, "retry", "the step is repeated")
        peer.script.loses.add("status")
        await world.skip(timedelta(minutes=3, seconds=1))
        await world.phase("training repeats a step")
        await peer.until(lambda: peer.carried_out.count("retry") == 2)
        await peer.cut()
        await peer.attach()
        peer.script.loses.clear()
        assert isinstance(peer, MindioPeer)
        await peer.until(lambda: peer.orders.count("retry") == 4 and peer._slot is None)  # sent again, and read
        await world.skip(timedelta(minutes=3, seconds=1))
        assert _ladder(await world.incident()) == [(Mode.ONLINE_RETRY, Outcome.RECOVERED)]
        assert peer.carried_out.count("retry") == 3


async def test_a_paused_client_that_is_away_is_told_to_go_on_when_it_comes_back(temporal: WorkflowEnvironment) -> None:
    """The client accepts that at any time of its pause. The job is not restarted after 25 s."""
    async with training(temporal, _job(), Script(switches=False)) as (world, peer):
        await _switches_links(world, peer)
        await peer.until(lambda: bool(peer.lists))
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        await peer.report_switched()
        await world.phase("training goes on")
        await world.skip(timedelta(seconds=50))
        await peer.attach()
        assert _ladder(await world.incident()) == [(Mode.LINK_SWITCH, Outcome.RECOVERED)]


def _announced(peer: ScriptedPeer) -> list[Sequence[int]]:
    announcements = [order for order in peer.received if order.signalType == "globalFault"]
    return [tuple(int(fault.rankId) for fault in order.faultRanks) for order in announcements]


async def test_a_client_that_comes_back_may_have_told_a_fault_in_vain(temporal: WorkflowEnvironment) -> None:
    """The doubt is shown until training has spoken: a request for a retry asks it, although nothing is known to be faulty."""
    async with training(temporal, _job()) as (world, peer):
        assert (await world.status()).state.unsure_since is None
        await peer.cut()
        await peer.attach()
        await world.settled(lambda status: status.state.unsure_since is not None)
        assert "repeats no report" in (await world.event("FaultMayBeLost")).message
        verdict = await (await world.front(None, mode=Workflows.ONLINE_RETRY)).result()
        assert verdict.outcome is Outcome.RECOVERED, verdict.reason
        assert peer.carried_out == ASKED
        assert (await world.status()).state.unsure_since is None


async def test_our_own_client_that_comes_back_repeats_what_it_had_to_tell(temporal: WorkflowEnvironment) -> None:
    """Nothing is shown."""
    async with training(temporal, a_job()) as (world, peer):
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        await peer.attach()
        await world.settled(lambda status: status.state.attachment is not None)
        assert (await world.status()).state.unsure_since is None
