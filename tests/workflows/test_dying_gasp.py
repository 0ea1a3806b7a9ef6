"""Dying gasp: before the job is restarted, the ranks that are left save the step at which training stands."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateHandle, WorkflowUpdateStage
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import CONTROL_QUEUE, Updates, Workflows
from rekindle.model.approval import Unanswered
from rekindle.model.fault import Fault
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.harness import RESUMES, Harness, a_job, a_mindio_job, node_fault, sub_health, training

SAVE, RESTART = (Mode.DYING_GASP, Outcome.ESCALATE), (Mode.JOB_RESCHEDULING, Outcome.RECOVERED)
DENY = Unanswered.DENY
ASKED = ["stop_train", "on_global_rank", "dump"]


def only_saved(**limits: timedelta) -> Job:
    """Returns a job whose owner allows nothing cheaper than a restart that loses no step."""
    return a_job(annotations={RECOVER_STRATEGY: "dump"}, limits=Limits(**limits))


def lost_pod(pod_rank: int) -> Fault:
    return node_fault(f"node-{pod_rank}", f"lost {pod_rank}").model_copy(update={"pod_ranks": (pod_rank,)})


def ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


async def test_the_ranks_that_are_left_save_their_state_before_the_restart(temporal: WorkflowEnvironment) -> None:
    """The training side is asked what it offers. The verdict has its report, and the restart follows."""
    async with training(temporal, only_saved()) as (world, peer):
        await world.fault(lost_pod(1))
        incident = await world.restarted()
        assert ladder(incident) == [SAVE, RESTART]
        assert incident.ladder[0].reason == "scripted"
        assert [phase.name for phase in incident.ladder[0].phases][-1] == "ranks save their state"
        assert peer.carried_out == ASKED


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(statuses=[406]), "no state is saved: the training side reports 406 scripted"),
        (Script(offers_dump=False), "the training side does not offer dump, it offers recover"),
        (
            Script(stop_code=499),
            "the recovery cannot be opened: training cannot be stopped: the training side reports 499 stop ok",
        ),
    ],
    ids=["it fails", "it is not offered", "training does not stop"],
)
async def test_a_dump_that_fails_is_followed_by_the_restart(temporal: WorkflowEnvironment, script: Script, reason: str) -> None:
    """The verdict says why nothing is saved."""
    async with training(temporal, only_saved(), script) as (world, _peer):
        await world.fault(lost_pod(1))
        incident = await world.restarted()
        assert ladder(incident) == [SAVE, RESTART]
        assert incident.ladder[0].reason == reason


async def test_a_dump_that_takes_too_long_is_given_up(temporal: WorkflowEnvironment) -> None:
    """The job is restarted at the limit `dump`."""
    async with training(temporal, only_saved(dump=timedelta(minutes=2)), Script(saves=False)) as (world, peer):
        await world.fault(lost_pod(1))
        await peer.until(lambda: peer.carried_out == ASKED)
        await world.skip(timedelta(minutes=2, seconds=1))
        incident = await world.restarted()
        assert ladder(incident) == [SAVE, RESTART]
        assert incident.ladder[0].reason == "no report of dump within 120 s"


async def test_nothing_is_awaited_when_the_last_pod_is_lost(temporal: WorkflowEnvironment) -> None:
    """No rank is left that could report, and the job is restarted at once."""
    async with training(temporal, only_saved(), Script(saves=False)) as (world, peer):
        await world.fault(lost_pod(1))
        await peer.until(lambda: peer.carried_out == ASKED)
        await world.fault(lost_pod(0))
        incident = await world.restarted()
        assert ladder(incident) == [SAVE, RESTART]
        assert incident.ladder[0].reason == "every pod is lost"


async def test_a_hot_switch_that_fails_is_followed_by_a_dump(temporal: WorkflowEnvironment) -> None:
    """A failed switch says nothing against the ranks: they save their state before the job is restarted."""
    async with training(temporal, a_job(annotations={}), Script(offers=())) as (world, peer):
        await world.fault(sub_health())
        incident = await world.restarted()
        assert ladder(incident) == [(Mode.HOT_SWITCH, Outcome.ESCALATE), SAVE, RESTART]
        assert peer.carried_out[-3:] == ASKED


async def test_a_job_that_is_well_is_restarted_without_a_loss_on_request(temporal: WorkflowEnvironment) -> None:
    """Training is stopped and saved, and its pods start again."""
    async with training(temporal, a_job(annotations={})) as (world, peer):
        request = ModeRequest(mode=Mode.DYING_GASP, requested_by="an operator")
        handle = await world.entity.start_update(
            Updates.RECOVER, request, result_type=Verdict, wait_for_stage=WorkflowUpdateStage.ACCEPTED
        )
        assert ladder(await world.restarted()) == [SAVE, RESTART]
        assert (await handle.result()).outcome is Outcome.RECOVERED
        assert peer.carried_out == ASKED


async def requested(world: Harness, **changes: Any) -> WorkflowUpdateHandle[Verdict]:
    """Requests a restart of the job, and returns when it is accepted."""
    request = ModeRequest(mode=Mode.JOB_RESCHEDULING, requested_by="an operator", **changes)
    handle: WorkflowUpdateHandle[Verdict] = await world.entity.start_update(
        Updates.RECOVER, request, result_type=Verdict, wait_for_stage=WorkflowUpdateStage.ACCEPTED
    )
    return handle


async def test_a_requested_restart_of_a_job_that_is_well_loses_no_step(temporal: WorkflowEnvironment) -> None:
    """Training saves its state before its pods stop. The answer is the verdict of the restart, which was requested."""
    async with training(temporal, a_job(annotations={})) as (world, peer):
        handle = await requested(world)
        assert ladder(await world.restarted()) == [SAVE, RESTART]
        verdict = await handle.result()
        assert (verdict.mode, verdict.outcome, verdict.asked) == (*RESTART, None)
        assert peer.carried_out == ASKED


@pytest.mark.parametrize(
    ("allows", "changes"),
    [({}, {"save": False}), ({RECOVER_STRATEGY: "exit"}, {}), ({}, {"cheaper": False})],
    ids=["not wanted", "not allowed by the owner", "nothing cheaper"],
)
async def test_a_requested_restart_saves_nothing_where_that_is_not_wanted(
    temporal: WorkflowEnvironment, allows: dict[str, str], changes: dict[str, bool]
) -> None:
    """Training that hangs would not answer, so that a person can leave it out."""
    async with training(temporal, a_job(annotations=allows)) as (world, peer):
        await requested(world, **changes)
        assert ladder(await world.restarted()) == [RESTART]
        assert not peer.orders


async def test_a_requested_restart_goes_on_where_the_state_cannot_be_saved(temporal: WorkflowEnvironment) -> None:
    """The job is restarted from its last checkpoint, and the answer says why nothing was saved."""
    async with training(temporal, a_job(annotations={}), Script(statuses=[406])) as (world, _peer):
        handle = await requested(world)
        incident = await world.restarted()
        assert ladder(incident) == [SAVE, RESTART]
        assert incident.ladder[0].reason == "no state is saved: the training side reports 406 scripted"
        assert (await handle.result()).outcome is Outcome.RECOVERED


async def test_a_restart_goes_on_that_is_withdrawn_when_training_stands(temporal: WorkflowEnvironment) -> None:
    """Training has stopped for it, so that only the restart lets it go on."""
    async with training(temporal, a_job(annotations={}, limits=Limits(dump=timedelta(minutes=2))), Script(saves=False)) as (
        world,
        peer,
    ):
        handle = await requested(world)
        await peer.until(lambda: peer.carried_out == ASKED)
        await world.tell(Updates.WITHDRAW, handle.id)
        await world.skip(timedelta(minutes=2, seconds=1))
        assert ladder(await world.restarted()) == [SAVE, RESTART]


async def test_a_requested_restart_asks_no_training_side_that_stands(temporal: WorkflowEnvironment) -> None:
    """The state was saved before the restart was given up, and a second opening would have no answer."""
    job = only_saved(pods_running=timedelta(seconds=0.4)).model_copy(update={"approvals": {Mode.JOB_RESCHEDULING: DENY}})
    async with training(temporal, job) as (world, peer):
        await world.fault(lost_pod(1))
        await world.settled(lambda status: status.state.question is not None)
        await world.tell(Updates.ANSWER, {"approved": False})
        await world.incident()
        known = len(peer.orders)
        await requested(world)
        assert ladder(await world.restarted(2)) == [RESTART]
        assert len(peer.orders) == known


async def test_a_front_passes_on_that_nothing_is_to_be_saved(temporal: WorkflowEnvironment) -> None:
    """A command starts the workflow of the mode, which asks the job."""
    async with training(temporal, a_job(annotations={})) as (world, peer):
        request = ModeRequest(job=world.job.id, save=False, requested_by="ada")
        front: WorkflowHandle[Any, Verdict] = await world.client.start_workflow(
            Workflows.JOB_RESCHEDULING, request, id=f"request/{world.job.id}/1", task_queue=CONTROL_QUEUE, result_type=Verdict
        )
        assert ladder(await world.restarted()) == [RESTART]
        assert (await front.result()).outcome is Outcome.RECOVERED
        assert not peer.orders


def mindio(allowed: str) -> Job:
    return a_mindio_job(annotations={RECOVER_STRATEGY: allowed}, limits=Limits(settle=timedelta(0), release=timedelta(0)))


async def attached_again(world: Harness, peer: ScriptedPeer) -> Incident:
    """Lets the restarted MindIO attach, which reports no step, and returns the incident."""
    await world.phase(RESUMES)
    await peer.cut()
    await peer.attach()
    await world.phase(RESUMES)
    await world.skip(timedelta(seconds=6))
    return await world.incident()


@pytest.mark.parametrize(("code", "saved"), [(406, [SAVE]), (499, [])])
async def test_mindio_saves_after_a_strategy_that_failed_with_406_only(
    temporal: WorkflowEnvironment, code: int, saved: list[tuple[Mode, Outcome]]
) -> None:
    """The order `dump` has the uuid of the failed one. After 499 it would end MindIO."""
    async with training(temporal, mindio("retry,dump"), Script(statuses=[code])) as (world, peer):
        await peer.report_fault(3, kind="0")
        incident = await attached_again(world, peer)
        assert ladder(incident) == [(Mode.ONLINE_RETRY, Outcome.ESCALATE), *saved, RESTART]
        assert [order.uuid for order in peer.received if order.changeStrategy == "dump"] == [peer.received[0].uuid] * len(saved)
        assert not peer.exited


async def test_mindio_saves_where_nothing_else_is_allowed(temporal: WorkflowEnvironment) -> None:
    """MindIO offers `dump` after the announcement of its faults."""
    async with training(temporal, mindio("dump")) as (world, peer):
        await peer.report_fault(3)
        assert ladder(await attached_again(world, peer)) == [SAVE, RESTART]
        assert peer.carried_out[:3] == ASKED
        assert not peer.exited
