"""A link switch: training pauses, devices use their other link, and training goes on. Each of these steps may fail."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.fault import WATCHER
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Framework, Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.links import NodeLinks, OnBackup
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.harness import Harness, a_job, a_mindio_job, node_fault, training

OVER = (NodeLinks(node="node-1", devices=("0", "1"), backup=True),)
BACK = (NodeLinks(node="node-1", devices=("0", "1"), backup=False),)
BOTH = (2, 3)
"""The ranks of these devices."""


@asynccontextmanager
async def linked(env: WorkflowEnvironment, job: Job, script: Script | None = None) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    async with training(env, job, script) as (world, peer):
        await peer.with_links()
        yield world, peer


async def moved(world: Harness, links: tuple[NodeLinks, ...] = OVER, mode: Mode = Mode.LINK_SWITCH) -> Verdict:
    """Asks for the switch, as a client does that knows nothing of maintenances."""
    request = ModeRequest(mode=mode, links=links)
    verdict: Verdict = await world.entity.execute_update(ids.Updates.RECOVER, request, result_type=Verdict)
    return verdict


async def begun(world: Harness, links: tuple[NodeLinks, ...] = OVER) -> None:
    request = ModeRequest(mode=Mode.LINK_SWITCH, links=links)
    await world.entity.start_update(ids.Updates.RECOVER, request, wait_for_stage=WorkflowUpdateStage.ACCEPTED)


async def on_backup(world: Harness) -> tuple[OnBackup, ...]:
    return (await world.status()).state.links


async def test_devices_are_moved_and_moved_back_while_training_pauses(temporal: WorkflowEnvironment) -> None:
    """The orders are those of the contract, under one uuid each time; the job remembers which device is where."""
    async with linked(temporal, a_job()) as (world, peer):
        verdict = await moved(world)
        assert (verdict.outcome, verdict.steps_lost) == (Outcome.RECOVERED, 0), verdict.reason
        assert peer.carried_out == ["pause_train", "continue"]
        assert len({order.uuid for order in peer.received}) == 1
        assert (list(peer.lists[0].rankID), list(peer.lists[0].op)) == (["2", "3"], [True, True])
        (link,) = await on_backup(world)
        assert (link.ranks, link.maintenance) == (BOTH, "")
        verdict = await moved(world, BACK)
        assert verdict.outcome is Outcome.RECOVERED
        assert peer.on_backup == set()
        assert await on_backup(world) == ()
        assert [phase.name for phase in (await world.incident(2)).ladder[0].phases] == [
            "devices are found",
            "training pauses",
            "links are switched",
            "training goes on",
        ]


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ((), "links: missing"),
        ((*OVER, *OVER), "device 0 of node-1 is named twice"),
        (tuple(NodeLinks(node=f"n{i}", devices=("0",), backup=True) for i in range(300)), "at most 128 nodes"),
    ],
)
async def test_a_list_that_means_nothing_is_refused(
    temporal: WorkflowEnvironment, links: tuple[NodeLinks, ...], words: str
) -> None:
    """The error names the field, and nothing is stored."""
    async with linked(temporal, a_job()) as (world, peer):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await moved(world, links)
        assert isinstance(refused.value.cause, ApplicationError)
        assert words in refused.value.cause.message
        assert peer.received == []


async def test_links_are_nothing_to_another_mode(temporal: WorkflowEnvironment) -> None:
    """A list of devices in the request of a restart is a mistake, and nothing is restarted."""
    async with linked(temporal, a_job()) as (world, _):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await moved(world, mode=Mode.JOB_RESCHEDULING)
        assert "a job rescheduling moves none" in str(refused.value.cause)


@pytest.mark.parametrize(
    ("node", "device", "words"),
    [("node-9", "0", "node: node-9 has no pod of the job"), ("node-1", "7", "device: 7 of node-1 is none of the job's")],
)
async def test_a_device_that_the_job_has_not_is_refused(
    temporal: WorkflowEnvironment, node: str, device: str, words: str
) -> None:
    """The verdict names it and what there is; training is not paused."""
    async with linked(temporal, a_job()) as (world, peer):
        verdict = await moved(world, (NodeLinks(node=node, devices=(device,), backup=True),))
        assert verdict.outcome is Outcome.REFUSED
        assert words in verdict.reason
        assert peer.received == []


async def test_mindspore_needs_its_process_recovery_in_the_pods(temporal: WorkflowEnvironment) -> None:
    """The manager receives no order without TASKD_PROCESS_ENABLE=on."""
    job = a_mindio_job(framework=Framework.MINDSPORE)
    async with training(temporal, job) as (world, _):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await moved(world)
        assert "TASKD_PROCESS_ENABLE=on" in str(refused.value.cause)


async def test_a_switch_that_fails_on_one_rank_leaves_training_on_the_links_of_before(temporal: WorkflowEnvironment) -> None:
    """Ours has undone it by then: it goes on, nothing is restarted, and the job says that no device has moved."""
    async with linked(temporal, a_job(), Script(switch_results=[False])) as (world, peer):
        verdict = await moved(world)
        assert verdict.outcome is Outcome.IGNORED
        assert "rank 3: eth1 is down" in verdict.reason
        assert peer.carried_out == ["pause_train", "continue"]
        assert await on_backup(world) == ()
        assert (await world.incident()).verdict is Outcome.IGNORED


async def test_training_that_cannot_pause_goes_on(temporal: WorkflowEnvironment) -> None:
    """Training at its last step has no step boundary left at which it could pause."""
    async with linked(temporal, a_job(), Script(pause_code=499)) as (world, peer):
        verdict = await moved(world)
        assert (verdict.outcome, peer.carried_out) == (Outcome.IGNORED, ["pause_train"])
        assert "it ends with this step" in verdict.reason


@pytest.mark.parametrize(
    ("script", "phase", "late", "outcome"),
    [
        (Script(holds=False), "training pauses", "no report of the pause within 900 s", Outcome.IGNORED),
        (Script(continues=False), "training goes on", "no report that training goes on within 900 s", Outcome.RECOVERED),
    ],
)
async def test_training_is_asked_before_silence_ends_it(
    temporal: WorkflowEnvironment, script: Script, phase: str, late: str, outcome: Outcome
) -> None:
    """Training repeats a step when the limit of 15 minutes is over, and no process is ended."""
    async with linked(temporal, a_job(), script) as (world, peer):
        await begun(world)
        await world.phase(phase)
        await world.skip(timedelta(minutes=15, seconds=1))
        (verdict,) = (await world.incident()).ladder
        assert (verdict.mode, verdict.outcome) == (Mode.LINK_SWITCH, outcome)
        assert f"{late}; training was asked, and repeated a step" in verdict.reason
        assert peer.carried_out[-1] == "retry"


@pytest.mark.parametrize(
    ("script", "phase", "late"),
    [
        (Script(holds=False, stops=False), "training pauses", "no report of the pause within 900 s"),
        (Script(continues=False, stops=False), "training goes on", "no report that training goes on within 900 s"),
    ],
)
async def test_training_that_says_nothing_starts_again(
    temporal: WorkflowEnvironment, script: Script, phase: str, late: str
) -> None:
    """Training that does not answer the question whether it trains is restarted."""
    async with linked(temporal, a_job(), script) as (world, _):
        await begun(world)
        for waits in (phase, "training stops"):
            await world.phase(waits)
            await world.skip(timedelta(minutes=15, seconds=1))
        ladder = (await world.restarted()).ladder
        assert [verdict.mode for verdict in ladder] == [Mode.LINK_SWITCH, Mode.JOB_RESCHEDULING]
        assert "no report of stop complete within 900 s" in ladder[0].reason


async def test_a_switch_that_nobody_reports_is_undone_by_going_on(temporal: WorkflowEnvironment) -> None:
    """Our manager says with its next answer whether it can."""
    async with linked(temporal, a_job(), Script(switches=False)) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.lists))
        await world.phase("links are switched")
        await world.skip(timedelta(minutes=15, seconds=1))
        incident = await world.incident()
        assert (incident.verdict, peer.carried_out[-1]) == (Outcome.IGNORED, "continue")
        assert "no report of the switch within 900 s" in incident.ladder[0].reason


@pytest.mark.parametrize("code", [406, 777])
async def test_a_training_side_that_cannot_go_on_starts_again(temporal: WorkflowEnvironment, code: int) -> None:
    """The answer to `continue` is a failure, whatever its code, and names no faulty rank, so that the job is restarted."""
    async with linked(temporal, a_job(), Script(continue_codes=[code])) as (world, _):
        await begun(world)
        incident = await world.restarted()
        assert f"training did not go on: {code}" in incident.ladder[0].reason


async def test_a_fault_in_the_pause_comes_first(temporal: WorkflowEnvironment) -> None:
    """The mode that mends the fault runs at once, and is not a restart."""
    async with linked(temporal, a_job(annotations={}), Script(switches=False)) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.lists))
        peer.paused_by = ""
        await peer.report_fault(3)
        incident = await world.incident()
        assert [(verdict.mode, verdict.outcome) for verdict in incident.ladder] == [
            (Mode.LINK_SWITCH, Outcome.CANCELLED),
            (Mode.IN_PLACE, Outcome.RECOVERED),
        ]
        assert "a fault comes first" in incident.ladder[0].reason


async def test_with_mindio_a_switch_that_fails_has_stopped_training(temporal: WorkflowEnvironment) -> None:
    """The links of the ranks are unknown, so training is not ordered to continue. Its owner allows no retry."""
    job = a_mindio_job()
    async with training(temporal, job, Script(switch_results=[False])) as (world, peer):
        await peer.with_links()
        await begun(world)
        await world.settled(lambda status: status.running is Mode.JOB_RESCHEDULING)
        assert "continue" not in peer.carried_out


async def test_with_mindio_a_switch_that_fails_costs_no_memory_where_a_step_may_be_repeated(
    temporal: WorkflowEnvironment,
) -> None:
    """Training is stopped in its pause, receives a list without a faulty process, and repeats the step. No pod starts again."""
    job = a_mindio_job(annotations={RECOVER_STRATEGY: "retry"})
    async with training(temporal, job, Script(switch_results=[False])) as (world, peer):
        await peer.with_links()
        pods = set(world.cluster.pods_by_name)
        await begun(world)
        incident = await world.incident()
        assert [(verdict.mode, verdict.outcome) for verdict in incident.ladder] == [
            (Mode.LINK_SWITCH, Outcome.ESCALATE),
            (Mode.ONLINE_RETRY, Outcome.RECOVERED),
        ]
        assert peer.carried_out == ["pause_train", "stop_train", "on_global_rank", "retry"]
        announced = next(order for order in peer.received if "on_global_rank" in order.actions)
        assert [(one.rankId, one.faultType) for one in announced.faultRanks] == [("0", "2")]
        assert set(world.cluster.pods_by_name) == pods
        assert (await world.status()).state.faults == ()


async def test_with_mindio_the_job_is_restarted_where_its_step_cannot_be_repeated(temporal: WorkflowEnvironment) -> None:
    """A retry does not help after a switch that has left ranks without links."""
    job = a_mindio_job(annotations={RECOVER_STRATEGY: "retry"})
    async with training(temporal, job, Script(switch_results=[False], statuses=[499])) as (world, peer):
        await peer.with_links()
        await begun(world)
        await world.settled(lambda status: status.running is Mode.JOB_RESCHEDULING)
        assert peer.carried_out[-1] == "retry"


async def test_with_mindio_a_fault_behind_a_switch_that_failed_is_mended_first(temporal: WorkflowEnvironment) -> None:
    """A fault by then is no matter of one step."""
    job = a_mindio_job(annotations={RECOVER_STRATEGY: "retry"})
    async with training(temporal, job, Script(switches=False)) as (world, peer):
        await peer.with_links()
        await begun(world)
        await peer.until(lambda: bool(peer.lists))
        await world.fault(node_fault("node-1").model_copy(update={"source": WATCHER}))  # which is given time
        await peer.report_switched(result=False)
        await world.settled(lambda status: status.running is Mode.JOB_RESCHEDULING)
        assert "retry" not in peer.carried_out


@pytest.mark.parametrize("job", [a_job, a_mindio_job], ids=["ours", "mindio"])
async def test_training_goes_on_where_nobody_listens_for_links(temporal: WorkflowEnvironment, job: Callable[[], Job]) -> None:
    """The manager has subscribed to orders only. Nothing is switched, so training can be ordered to continue."""
    async with training(temporal, job()) as (world, peer):
        await begun(world)
        await world.phase("links are switched")
        await world.skip(timedelta(seconds=26))
        incident = await world.incident()
        assert (incident.verdict, peer.carried_out) == (Outcome.IGNORED, ["pause_train", "continue"])
        assert "nobody heard which ranks are to be switched" in incident.ladder[0].reason


async def test_a_link_switch_goes_on_at_the_gateway_where_the_stream_comes_back(temporal: WorkflowEnvironment) -> None:
    """The list is sent again, to a manager that has received the pause."""
    async with linked(temporal, a_job(), Script(switches=False)) as (world, peer):
        await begun(world)
        await peer.until(lambda: bool(peer.lists))
        peer.script.switches = True
        pause = peer.paused_by
        await peer.restart_manager()
        peer.paused_by = pause
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED, incident.ladder[-1].reason
        assert len(peer.lists) >= 2
        assert peer.on_backup == set(BOTH)
