"""The control plane is away while our training side waits for an order, or has a report for it: no job is restarted for that."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import WorkflowUpdateStage
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import Incident, ModeRequest, RecoveryContext
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.links import NodeLinks
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Situation
from rekindle.policy.dialogue.orders import NO_ORDER, pause_train
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.harness import Harness, a_job, sub_health, training
from workflows.dialogue import COUNTED, Dialogue

OVER = (NodeLinks(node="node-1", devices=("0", "1"), backup=True),)


def _ours() -> Job:
    """Returns a job whose owner restricts nothing: every strategy is allowed."""
    return a_job(annotations={})


def _ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


async def _away(world: Harness, peer: ScriptedPeer) -> None:
    await peer.cut()
    await world.settled(lambda status: status.state.attachment is None)


async def test_an_order_that_the_training_side_waits_for_is_tried_for_three_minutes(temporal: WorkflowEnvironment) -> None:
    """The manager mends itself after a minute, and carries out an order that comes later."""
    async with training(temporal, _ours(), Script(pauses=False)) as (world, peer):
        await _away(world, peer)
        await peer.report_fault(3)
        await world.phase("faulty processes start again")
        await world.skip(timedelta(minutes=2, seconds=50))
        await peer.attach()
        assert _ladder(await world.incident()) == [(Mode.IN_PLACE, Outcome.RECOVERED)]


async def test_an_outage_of_the_control_plane_counts_little_against_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stream is there, and each wait for one takes ten minutes: a quarter of a minute of it is the training side's."""
    ends = [datetime(2026, 1, 1, tzinfo=UTC)]

    async def waits(_left: timedelta | None, _condition: Callable[[], bool], _why: str) -> None:
        ends.append(ends[-1] + timedelta(minutes=10))

    monkeypatch.setattr(Dialogue, "_change_within", staticmethod(waits))
    monkeypatch.setattr("workflows.dialogue.workflow.now", lambda: ends[-1])
    dialogue = Dialogue(RecoveryContext(job=_ours(), incident=1, attachment=None, situation=Situation()))
    dialogue.attempt = [pause_train("job-1", "uuid-1")]
    assert not await dialogue._deliver(timedelta(minutes=3), lambda: False)
    assert len(ends) - 1 == timedelta(minutes=3) / COUNTED == 12


@pytest.mark.usefixtures("unsandboxed")
async def test_a_report_has_a_minute_where_its_limit_passed_in_an_outage(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report whose limit passed in an outage is still accepted for a minute. The client reconnects and repeats it."""
    monkeypatch.setattr("workflows.dialogue.OVERDUE", timedelta(0))  # each limit of this test passes in an outage
    async with training(temporal, _ours(), Script(loses={"status"})) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: "recover" in peer.carried_out)
        await world.phase("faulty processes start again")
        await world.skip(timedelta(minutes=15, seconds=50))
        peer.script.loses.clear()
        await peer.report_repair("recover", 0, peer.received[-1].uuid)
        assert _ladder(await world.incident()) == [(Mode.IN_PLACE, Outcome.RECOVERED)]


async def test_an_operation_ends_well_when_nobody_can_be_told_to_go_on(temporal: WorkflowEnvironment) -> None:
    """The training side goes on by itself where no order comes: it is not restarted for the want of its answer."""
    async with training(temporal, a_job(), Script(switches=False)) as (world, peer):
        await peer.with_links()
        request = ModeRequest(mode=Mode.LINK_SWITCH, links=OVER)
        await world.entity.start_update(Updates.RECOVER, request, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        await peer.until(lambda: bool(peer.lists))
        await _away(world, peer)
        await peer.report_switched(result=True)
        await world.phase("training goes on")
        await world.skip(timedelta(minutes=3, seconds=1))
        incident = await world.incident()
        assert _ladder(incident) == [(Mode.LINK_SWITCH, Outcome.RECOVERED)]
        assert "goes on by itself" in incident.ladder[0].reason
        assert (await world.status()).state.links


BRIEF = Limits(order=timedelta(seconds=1))
"""Shorter than one try of an order in these tests."""


async def _is_tried_in_vain(world: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway dies, and a hot switch has tried its first order for longer than `BRIEF` says."""
    monkeypatch.setattr("workflows.dialogue.COUNTED", timedelta(seconds=0.3))
    await world.gateway.stop()
    await world.fault(sub_health())
    await world.recorded(await world.running(), "ACTIVITY_TASK_TIMED_OUT")


@pytest.mark.usefixtures("unsandboxed")
async def test_the_first_order_of_a_hot_switch_is_tried_for_as_long_as_one_that_is_waited_for(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on meanwhile. The sub-health was left alone, for good where no other stream came."""
    async with training(temporal, a_job(limits=BRIEF)) as (world, _):
        await _is_tried_in_vain(world, monkeypatch)
        await world.gateway.start()
        assert _ladder(await world.incident()) == [(Mode.HOT_SWITCH, Outcome.RECOVERED)]


@pytest.mark.usefixtures("unsandboxed")
async def test_a_real_fault_ends_the_tries_of_a_first_order(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault does not wait for what is only slow."""
    async with training(temporal, _ours().model_copy(update={"limits": BRIEF})) as (world, peer):
        await _is_tried_in_vain(world, monkeypatch)
        await world.fault(Fault(id="crash", kind=FaultKind.PROCESS, ranks=(1,), source="training-side"))
        await world.phase("faulty processes start again")
        await world.gateway.start()
        incident = await world.incident()
        assert _ladder(incident)[:2] == [(Mode.HOT_SWITCH, Outcome.CANCELLED), (Mode.IN_PLACE, Outcome.RECOVERED)]
        assert (await world.incident(2)).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["recover", "hot switch", "new pod running", "migration"]


async def test_a_switch_that_an_outage_has_ended_is_tried_again(temporal: WorkflowEnvironment) -> None:
    """Our manager says that no order came: that is no failure of the switch, and the policy stays. No other stream comes."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        peer.script.went_on, peer.script.info = "continue", f"training goes on: {NO_ORDER}"
        await peer.pause()
        incident = await world.incident()
        assert _ladder(incident) == [(Mode.HOT_SWITCH, Outcome.IGNORED)]
        assert incident.policy_after is SubHealthStrategy.HOT_SWITCH
        await peer.until(lambda: peer.orders.count("new pod running") == 2)
        peer.script.went_on, peer.script.info = "migration", "scripted"
        await peer.pause()
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


async def test_a_migration_is_tried_for_three_minutes(temporal: WorkflowEnvironment) -> None:
    """Our manager gives a switch up after a minute, and says so to who orders the migration later: the job is not restarted."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await _away(world, peer)
        await peer.pause()
        await world.phase("training resumes")
        await world.skip(timedelta(minutes=2, seconds=50))
        peer.script.went_on = "continue"
        await peer.attach()
        incident = await world.incident()
        assert _ladder(incident) == [(Mode.HOT_SWITCH, Outcome.IGNORED)]


@pytest.mark.usefixtures("unsandboxed")
async def test_a_pause_has_a_minute_where_its_limit_passed_in_an_outage(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait of a hot switch for it is cut into short ones."""
    monkeypatch.setattr("workflows.hot_switch.OVERDUE", timedelta(0))  # each limit of this test passes in an outage
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.phase("backup loads, training pauses")
        await world.skip(timedelta(minutes=15, seconds=1))
        await peer.pause()
        assert _ladder(await world.incident()) == [(Mode.HOT_SWITCH, Outcome.RECOVERED)]
