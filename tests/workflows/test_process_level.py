"""Recovery of processes: the step is repeated, or faulty processes start again in their pods. Success, failures, limits."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates, Workflows
from rekindle.model.cluster import Condition
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script, ScriptedPeer, nothing_before
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import RESUMES, Harness, a_job, a_mindio_job, node_fault, pod_fault, training
from tests.workflows.support.openings import fields, heard, told_again

ALL = {RECOVER_STRATEGY: "retry,recover-in-place,recover"}
QUICK = Limits(settle=timedelta(0), release=timedelta(0))
RETRY, IN_PLACE, ELSEWHERE = Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING
SAVE, RESTART = Mode.DYING_GASP, Mode.JOB_RESCHEDULING
RECOVERED, ESCALATE = Outcome.RECOVERED, Outcome.ESCALATE
DONE = ["stop_train", "on_global_rank"]
LOST = Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown", message="its kubelet is silent")


def ours(**limits: timedelta) -> Job:
    """Returns a job whose owner restricts nothing: every strategy is allowed."""
    return a_job(annotations={}, limits=Limits(**limits))


def mindio(**limits: timedelta) -> Job:
    return a_mindio_job(annotations=ALL, limits=QUICK.model_copy(update=limits))


def elsewhere(**limits: timedelta) -> Job:
    """A job whose owner allows no restart in place."""
    return a_job(annotations={RECOVER_STRATEGY: "recover"}, limits=Limits(**limits))


def ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


async def _stands_no_more(world: Harness, peer: ScriptedPeer) -> None:
    assert peer.state == "trains"
    assert (await world.status()).state.faults == ()


@pytest.mark.parametrize(("job", "asked"), [(ours, []), (mindio, DONE)])
async def test_a_memory_fault_is_mended_by_repeating_the_step(
    temporal: WorkflowEnvironment, job: Callable[[], Job], asked: list[str]
) -> None:
    """Ours stands, and receives the order to retry. MindIO is stopped and asked first. Each order is given once, under one uuid;
    no pod is touched and no step is lost."""
    async with training(temporal, job()) as (world, peer):
        await peer.report_fault(3, kind="0")
        incident = await world.incident()
        assert ladder(incident) == [(RETRY, RECOVERED)]
        assert incident.ladder[0].steps_lost == 0
        assert fields(peer.received[-1]) == ("changeStrategy", ["change_strategy"], ["3:0"], "retry", 0, ["1"], "")
        assert peer.carried_out == [*asked, "retry"]
        assert len({order.uuid for order in peer.received}) == 1
        assert world.cluster.writes == []
        await _stands_no_more(world, peer)


@pytest.mark.parametrize(("job", "asked"), [(ours, []), (mindio, DONE)])
async def test_a_process_that_died_starts_again_in_its_pod(
    temporal: WorkflowEnvironment, job: Callable[[], Job], asked: list[str]
) -> None:
    """The order is that of an in-place recovery. No pod is ordered to exit, and none is deleted."""
    async with training(temporal, job()) as (world, peer):
        await peer.report_fault(3)
        incident = await world.incident()
        assert ladder(incident) == [(IN_PLACE, RECOVERED)]
        assert peer.carried_out == [*asked, "recover"]
        announced = [fields(order) for order in peer.received if "on_global_rank" in order.actions]
        assert announced == [("globalFault", ["on_global_rank", "fault_nodes_exit"], ["3:1"], "", 0, [], "")] * bool(asked)
        order = peer.received[-1]
        assert (list(order.actions), order.extraParams) == (["change_strategy", "fault_nodes_restart"], "recover-in-place")
        assert list(order.nodeRankIds) == ["1"]
        assert world.cluster.writes == []
        await _stands_no_more(world, peer)


@pytest.mark.parametrize("kind", ["0", "1"])
@pytest.mark.parametrize("job", [ours, mindio])
async def test_a_recovery_is_started_with_the_name_of_its_first_phase(
    temporal: WorkflowEnvironment, job: Callable[[], Job], kind: str
) -> None:
    """Nothing is written for it before the first order."""
    async with training(temporal, job()) as (world, peer):
        await peer.report_fault(3, kind=kind)
        await world.incident()
        kinds = [event.event_type for event in (await world.recovery.fetch_history()).events]
        after = (EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED)
        ordered = next(place for place, event in enumerate(kinds) if event in after)
        assert EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES not in kinds[:ordered]


async def test_ours_is_told_of_the_ranks_that_are_faulty_alone(temporal: WorkflowEnvironment) -> None:
    """Other ranks of the pod live and keep their state. They do not leave, and neither does the pod."""
    async with training(temporal, ours()) as (world, peer):
        await peer.report_fault(3)
        await world.incident()
        assert fields(peer.received[0])[2] == ["3:1"]


async def test_what_the_owner_does_not_allow_is_not_tried(temporal: WorkflowEnvironment) -> None:
    """A memory fault of a job that allows no retry restarts its process, that of one that allows nothing the whole job."""
    for allowed, first in (("recover-in-place", IN_PLACE), ("exit", RESTART)):
        job = a_job(annotations={RECOVER_STRATEGY: allowed})
        async with training(temporal, job) as (world, peer):
            await peer.report_fault(3, kind="0")
            incident = await world.incident() if first is IN_PLACE else await world.restarted()
            assert ladder(incident) == [(first, RECOVERED)]


async def test_a_retry_that_fails_leads_to_a_restart_of_the_process(temporal: WorkflowEnvironment) -> None:
    """Every mode of ours can follow every other, under a new uuid. The order of the restart names the fault as a normal one."""
    async with training(temporal, ours(), Script(statuses=[406])) as (world, peer):
        await peer.report_fault(3, kind="0")
        incident = await world.incident()
        assert ladder(incident) == [(RETRY, ESCALATE), (IN_PLACE, RECOVERED)]
        assert "the step could not be repeated: the training side reports 406" in incident.ladder[0].reason
        assert peer.carried_out == ["retry", "recover"]
        assert peer.received[0].uuid != peer.received[1].uuid
        await _stands_no_more(world, peer)


@pytest.mark.parametrize(("code", "second"), [(405, IN_PLACE), (499, RESTART), (406, RESTART)])
async def test_mindio_bears_another_strategy_behind_405_only(temporal: WorkflowEnvironment, code: int, second: Mode) -> None:
    """MindIO would leave at another announcement after any other code of a failed retry."""
    async with training(temporal, mindio(), Script(statuses=[code])) as (world, peer):
        await peer.report_fault(3, kind="0")
        if second is RESTART:
            await world.phase(RESUMES)
            await peer.cut()
            await peer.attach()
            await world.phase(RESUMES)
            await world.skip(timedelta(seconds=6))
        assert ladder(await world.incident()) == [(RETRY, ESCALATE), (second, RECOVERED)]


async def test_a_second_fault_during_a_repair_is_mended_with_the_first(temporal: WorkflowEnvironment) -> None:
    """The repair fails because of the second fault. Both faults are announced, and the same mode repairs both. No further
    incident follows."""
    script = Script(statuses=[406])
    async with training(temporal, ours(), script) as (world, peer):

        async def strikes(_: str) -> None:
            peer.script = replace(script, before_status=nothing_before)
            await peer.report_fault(0)

        script.before_status = strikes
        await peer.report_fault(3)
        incident = await world.incident()
        assert ladder(incident) == [(IN_PLACE, RECOVERED)]
        assert fields(peer.received[1])[2] == ["0:1", "3:1"]
        assert peer.carried_out == ["recover", "recover"]
        await _stands_no_more(world, peer)
        assert (await world.status()).state.incidents == 1


async def test_a_fault_behind_the_answer_of_a_repair_is_an_incident_of_its_own(temporal: WorkflowEnvironment) -> None:
    """The fault extends the one that was repaired, and begins an incident all the same."""
    async with training(temporal, ours()) as (world, peer):
        await peer.report_fault(3)
        await world.incident()
        await peer.report_fault(0)
        assert ladder(await world.incident(2)) == [(IN_PLACE, RECOVERED)]
        assert fields(peer.received[1])[2] == ["0:1"]


async def test_an_answer_that_comes_again_in_the_next_incident_answers_nothing_there(temporal: WorkflowEnvironment) -> None:
    """The repeated answer comes during the next incident, whose first order is the same strategy. Taken for the answer to that
    order it would be a wrong `recovered`."""
    script = Script()
    async with training(temporal, ours(), script) as (world, peer):
        await peer.report_fault(3)
        await world.incident()
        before, again = peer.received[-1].uuid, list[int]()

        async def comes_again(strategy: str) -> None:
            script.before_status = nothing_before
            again.append(await peer.report_repair(strategy, 0, before))

        script.before_status, script.statuses = comes_again, [406]
        await peer.report_fault(0)
        assert ladder(await world.incident(2)) == [(IN_PLACE, ESCALATE), (ELSEWHERE, RECOVERED)]
        assert again != [0]


async def test_a_failure_that_is_told_again_is_no_answer_to_the_next_try(temporal: WorkflowEnvironment) -> None:
    """A second fault makes the same strategy be ordered again, right after the answer to the order before."""
    script = Script(statuses=[406])
    async with training(temporal, ours(), script) as (world, peer):

        async def comes_again(strategy: str) -> None:
            script.before_status = nothing_before
            await peer.report_repair(strategy, 406, peer.received[0].uuid)

        async def strikes(_: str) -> None:
            script.before_status = comes_again
            await peer.report_fault(0)

        script.before_status = strikes
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]


async def test_a_pod_that_is_lost_while_its_process_starts_again_is_not_waited_for(temporal: WorkflowEnvironment) -> None:
    """The training side might wait long for its launcher. The faults are announced again, and another pod takes over."""
    script = Script(resumes=False)
    async with training(temporal, ours(), script) as (world, peer):

        async def is_lost(_: str) -> None:
            script.before_status = nothing_before
            await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))

        script.before_status = is_lost
        await peer.report_fault(3)
        await peer.until(lambda: "on_global_rank" in peer.orders)
        script.resumes = True
        incident = await world.incident()
        assert ladder(incident) == [(IN_PLACE, ESCALATE), (ELSEWHERE, RECOVERED)]
        assert "no pod is left of pod rank 1" in incident.ladder[0].reason


async def test_a_new_pod_that_dies_in_the_repair_is_followed_by_another_one(temporal: WorkflowEnvironment) -> None:
    """The training side says that its rank is gone; the cluster says why a moment later."""
    job = elsewhere()
    cluster = ScriptedCluster(job, nodes=4)
    script = Script(statuses=[406])
    async with training(temporal, job, script, cluster) as (world, peer):

        async def dies(_: str) -> None:
            script.before_status = nothing_before
            first = cluster.backup()
            await world.fault(pod_fault(first.metadata.name, first.metadata.uid, backup=True))

        script.before_status = dies
        await peer.report_fault(3)
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, RECOVERED)]
        assert peer.carried_out == [*DONE, "recover", "on_global_rank", "recover"]


async def test_ours_is_asked_before_new_pods_start_for_nothing(temporal: WorkflowEnvironment) -> None:
    """No replica holds the state. The training side reports that for the first order, and offers no recovery after it. Only a
    restart is left, and nothing can be saved for it."""
    async with training(temporal, ours(), Script(repairs=(), offers_dump=False)) as (world, peer):
        await peer.report_fault(3)
        incident = await world.restarted()
        assert ladder(incident) == [(IN_PLACE, ESCALATE), (ELSEWHERE, ESCALATE), (SAVE, ESCALATE), (RESTART, RECOVERED)]
        assert "the training side reports 406" in incident.ladder[0].reason
        assert "does not offer recover, it offers nothing" in incident.ladder[1].reason
        assert "does not offer dump, it offers nothing" in incident.ladder[2].reason
        assert peer.carried_out == ["recover", "on_global_rank"]


@pytest.mark.parametrize(("kind", "mode", "limit"), [("0", RETRY, "retry"), ("1", IN_PLACE, "repair")])
async def test_without_an_answer_the_job_is_restarted_at_the_limit(
    temporal: WorkflowEnvironment, kind: str, mode: Mode, limit: str
) -> None:
    """The state of training is not known at the limit, so that the job is restarted."""
    async with training(temporal, ours(), Script(resumes=False)) as (world, peer):
        await peer.report_fault(3, kind=kind)
        await peer.until(lambda: len(peer.received) == 1)
        await world.skip(timedelta(minutes=15, seconds=1))
        incident = await world.restarted()
        assert ladder(incident) == [(mode, ESCALATE), (RESTART, RECOVERED)]
        assert "within 900 s" in incident.ladder[0].reason


async def test_a_recovery_that_is_cancelled_when_training_stands_goes_to_its_end(temporal: WorkflowEnvironment) -> None:
    """Training would stand for ever, or lose its steps in a restart."""
    script = Script()
    async with training(temporal, ours(), script) as (world, peer):

        async def is_cancelled(_: str) -> None:
            running = await world.running()
            await running.cancel()
            await world.recorded(running, "WORKFLOW_EXECUTION_CANCEL_REQUESTED")

        script.before_status = is_cancelled
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]


async def test_who_asks_for_a_mode_while_nothing_is_faulty_is_refused(temporal: WorkflowEnvironment) -> None:
    """The refusal has a reason, and training is not touched."""
    async with training(temporal, ours()) as (world, peer):
        verdict = await (await world.front(None, mode=Workflows.IN_PLACE)).result()
        assert (verdict.outcome, verdict.mode) == (Outcome.REFUSED, IN_PLACE)
        assert "nothing of it is known to be faulty" in verdict.reason
        assert peer.orders == []


# ---- what others do meanwhile


async def test_a_later_mode_that_is_cancelled_goes_to_its_end_too(temporal: WorkflowEnvironment) -> None:
    """The later mode has given no order yet, but training has stood since the mode before it."""
    job = a_job(annotations={RECOVER_STRATEGY: "retry,recover"})
    cluster = ScriptedCluster(job)
    cluster.backup_starts = False
    async with training(temporal, job, Script(finds=(2,)), cluster) as (world, peer):
        await peer.report_fault(3, kind="0")
        await world.phase("new pods start")
        await world.settled(lambda _: any("-hot-" in name for name in cluster.pods_by_name))
        running = await world.running()
        await running.cancel()
        await world.recorded(running, "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
        cluster.backup_starts = True
        cluster.run(cluster.backup().metadata.name)
        assert ladder(await world.incident()) == [(RETRY, ESCALATE), (ELSEWHERE, RECOVERED)]
        await _stands_no_more(world, peer)


async def test_a_fault_that_somebody_else_tells_meanwhile_is_over_with_the_repair(temporal: WorkflowEnvironment) -> None:
    """The fault was announced and mended with the first one: its process is not started a second time."""
    script = Script(statuses=[406])
    async with training(temporal, ours(), script) as (world, peer):

        async def is_told(_: str) -> None:
            script.before_status = nothing_before
            before = await heard(world)
            await world.fault(Fault(id="chip", kind=FaultKind.PROCESS, ranks=(0,), source="test"))
            await told_again(world, before)

        script.before_status = is_told
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]
        assert fields(peer.received[-1])[2] == ["0:1", "3:1"]
        await _stands_no_more(world, peer)
        assert (await world.status()).state.incidents == 1


async def test_a_pod_that_was_gone_before_anybody_told_is_replaced_once(temporal: WorkflowEnvironment) -> None:
    """The watcher is slower than the training side: that another pod has the rank afterwards is no fault."""
    async with training(temporal, elsewhere()) as (world, peer):
        await world.look()
        del world.cluster.pods_by_name[world.cluster.holder(1).metadata.name]
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]
        await world.look()
        await _stands_no_more(world, peer)
        assert (await world.status()).state.incidents == 1


async def test_a_recovery_ends_with_its_job(temporal: WorkflowEnvironment) -> None:
    """The recovery would get no answer any more. A suspended job may be resumed, and needs a new workflow then."""
    async with training(temporal, ours(), Script(resumes=False)) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: "recover" in peer.orders)
        await world.tell(Updates.END, "the job was suspended")
        async with asyncio.timeout(60):
            assert (await world.entity.result())["reason"] == "the job was suspended"


async def test_more_pods_than_are_replaced_at_most_restart_the_job(temporal: WorkflowEnvironment) -> None:
    """The limit also holds where pods are lost while the first one is replaced."""
    job = a_job(pods=13, annotations={RECOVER_STRATEGY: "recover"})
    cluster = ScriptedCluster(job, nodes=30)
    cluster.backup_starts = False
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await peer.report_fault(3)
        await world.phase("new pods start")
        await world.settled(lambda _: any("-hot-" in name for name in cluster.pods_by_name))
        await world.fault(node_fault("node-2").model_copy(update={"pod_ranks": tuple(range(2, 12))}))
        cluster.backup_starts = True
        cluster.run(cluster.backup().metadata.name)
        incident = await world.restarted()
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (RESTART, RECOVERED)]
        assert "11 pods are faulty, accepted are at most 10" in incident.ladder[0].reason
        assert "recover" not in peer.orders


async def test_mindio_is_announced_nothing_behind_a_repair_that_failed(temporal: WorkflowEnvironment) -> None:
    """MindIO leaves at another announcement unless it reported 405, also where a second fault is the reason."""
    script = Script(statuses=[406])
    async with training(temporal, mindio(), script) as (world, peer):

        async def strikes(_: str) -> None:
            peer.script = replace(script, before_status=nothing_before)
            await peer.report_fault(0)

        script.before_status = strikes
        await peer.report_fault(3)
        await world.phase(RESUMES)
        assert peer.carried_out == [*DONE, "recover"]
