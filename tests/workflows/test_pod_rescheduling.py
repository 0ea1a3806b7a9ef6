"""Pod rescheduling: faulty pods are replaced, and the processes of all others start again. Success, failures, limits."""

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.fault import Fault
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Job
from rekindle.model.keys import FAULT_RETRY_TIMES, POD_RESCHEDULING, RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Training, Verdict
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, node_fault, pod_fault, training
from tests.workflows.support.openings import SHORT

SAVE, AGAIN = (Mode.DYING_GASP, Outcome.ESCALATE), (Mode.POD_RESCHEDULING, Outcome.RECOVERED)
FAILS, RESTART = (Mode.POD_RESCHEDULING, Outcome.ESCALATE), (Mode.JOB_RESCHEDULING, Outcome.RECOVERED)
OPENED = ["stop_train", "on_global_rank"]


def of_pods(allows: str = "dump", pods: int = 3, retries: str = "", **limits: timedelta) -> Job:
    """Returns a job of which only faulty pods are replaced, and whose owner allows nothing cheaper."""
    labels = {POD_RESCHEDULING: "on"} | ({FAULT_RETRY_TIMES: retries} if retries else {})
    return a_job(pods=pods, labels=labels, annotations={RECOVER_STRATEGY: allows}, limits=Limits(**limits))


def lost_pod(pod_rank: int) -> Fault:
    return node_fault(f"node-{pod_rank}", f"lost {pod_rank}").model_copy(update={"pod_ranks": (pod_rank,)})


def with_a_spare(
    temporal: WorkflowEnvironment, job: Job, script: Script | None = None
) -> AbstractAsyncContextManager[tuple[Harness, ScriptedPeer]]:
    """Runs a training job beside two free nodes."""
    return training(temporal, job, script, ScriptedCluster(job, nodes=5))


def ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


def uids(cluster: ScriptedCluster) -> list[str]:
    return [cluster.holder(pod_rank).metadata.uid for pod_rank in range(3)]


async def test_only_the_faulty_pod_is_replaced_after_the_state_was_saved(temporal: WorkflowEnvironment) -> None:
    """The order is `exit` with the faulty pod ranks, in the attempt of the dump. The other pods stay, and no step is lost."""
    async with with_a_spare(temporal, of_pods()) as (world, peer):
        before = uids(world.cluster)
        await world.fault(lost_pod(1))
        incident = await world.incident()
        assert ladder(incident) == [SAVE, AGAIN]
        assert peer.carried_out == [*OPENED, "dump", "exit"]
        assert list(peer.received[-1].nodeRankIds) == ["1"]
        assert len({order.uuid for order in peer.received}) == 1
        after = uids(world.cluster)
        assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
        verdict = incident.ladder[-1]
        assert [(one.pod_rank, one.before.uid, one.after.uid) for one in verdict.switched] == [(1, before[1], after[1])]
        assert verdict.steps_lost == 0
        assert verdict.reason == "pod ranks recovered in other pods: 1 on node-3; scripted"
        assert [phase.name for phase in verdict.phases] == ["new pods start", "all ranks begin again", "old pods are deleted"]
        assert (await world.status()).state.faults == ()


async def test_a_job_that_saves_nothing_says_how_many_steps_are_lost(temporal: WorkflowEnvironment) -> None:
    """Training is stopped by this mode, and the first step of the new processes has the number."""
    async with with_a_spare(temporal, of_pods("exit"), Script(steps_lost=4)) as (world, peer):
        await world.fault(lost_pod(2))
        incident = await world.incident()
        assert ladder(incident) == [AGAIN]
        assert incident.ladder[0].steps_lost == 4
        assert peer.carried_out == [*OPENED, "exit"]


async def test_the_number_of_lost_steps_may_be_missing(temporal: WorkflowEnvironment) -> None:
    """A first step that is not reported in time changes nothing: training goes on, as the status says."""
    async with with_a_spare(temporal, of_pods("exit"), Script(steps_lost=None)) as (world, _peer):
        await world.fault(lost_pod(2))
        incident = await world.incident()
        assert ladder(incident) == [AGAIN]
        assert incident.ladder[0].steps_lost is None


async def test_rank_0_and_its_pod_are_replaced_as_any_other(temporal: WorkflowEnvironment) -> None:
    """The manager of our training side is not in that pod."""
    async with with_a_spare(temporal, of_pods()) as (world, peer):
        await world.fault(lost_pod(0))
        assert ladder(await world.incident()) == [SAVE, AGAIN]
        assert list(peer.received[-1].nodeRankIds) == ["0"]


async def test_a_failed_process_of_a_pod_that_lives_leads_to_another_pod(temporal: WorkflowEnvironment) -> None:
    """The pod of a faulty process is faulty too. It is deleted when the new one has its ranks."""
    async with with_a_spare(temporal, of_pods()) as (world, peer):
        old = world.cluster.holder(1)
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [SAVE, AGAIN]
        assert world.cluster.holder(1).spec.node_name != old.spec.node_name
        assert [write.split()[0] for write in world.cluster.writes] == ["create", "kill", "promote"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(statuses=[0, 406]), "the ranks could not begin again: the training side reports 406 scripted"),
        (Script(statuses=[406, 406]), "the ranks could not begin again: the training side reports 406 scripted"),
    ],
    ids=["the state is saved", "nothing is saved"],
)
async def test_ranks_that_cannot_begin_again_lead_to_a_restart(
    temporal: WorkflowEnvironment, script: Script, reason: str
) -> None:
    """The new pods are deleted before the job is restarted."""
    async with with_a_spare(temporal, of_pods(), script) as (world, _peer):
        await world.fault(lost_pod(1))
        incident = await world.restarted()
        assert ladder(incident) == [SAVE, FAILS, RESTART]
        assert incident.ladder[1].reason == reason
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]


async def test_ranks_that_never_begin_again_lead_to_a_restart_at_the_limit(temporal: WorkflowEnvironment) -> None:
    """The limit is that of a restart."""
    script = Script()
    async with with_a_spare(temporal, of_pods("exit", restart=timedelta(minutes=2)), script) as (world, peer):
        script.resumes = False
        await world.fault(lost_pod(1))
        await peer.until(lambda: "exit" in peer.carried_out)
        await world.skip(timedelta(minutes=2, seconds=1))
        incident = await world.restarted()
        assert ladder(incident) == [FAILS, RESTART]
        assert incident.ladder[0].reason == "no report of exit within 120 s"


async def test_without_a_spare_the_job_is_restarted(temporal: WorkflowEnvironment) -> None:
    """The limit for scheduling passes. No process was ended before."""
    job = of_pods(replacement_scheduled=SHORT)
    cluster = ScriptedCluster(job, nodes=4)
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(lost_pod(1))
        incident = await world.restarted()
        assert ladder(incident) == [SAVE, FAILS, RESTART]
        assert "no spare" in incident.ladder[1].reason
        assert incident.ladder[1].training is Training.LOST, "no cheaper mode follows"
        assert "exit" not in peer.orders


async def test_an_order_that_cannot_be_delivered_leads_to_a_restart(temporal: WorkflowEnvironment) -> None:
    """The stream is away when the new pods run, and does not come back while the order is tried."""
    job = of_pods()
    cluster = ScriptedCluster(job, nodes=4)
    cluster.backup_starts = False
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(lost_pod(1))
        await world.settled(lambda status: status.running is Mode.POD_RESCHEDULING)
        await world.phase("new pods start")
        await world.settled(lambda _: any("-hot-" in name for name in cluster.pods_by_name))
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        cluster.run(cluster.backup().metadata.name)
        await world.phase("all ranks begin again")
        await world.skip(timedelta(minutes=3, seconds=1))
        incident = await world.restarted()
        assert ladder(incident) == [SAVE, FAILS, RESTART]
        assert "the order `exit` could not be delivered in time" in incident.ladder[1].reason


async def test_a_second_pod_that_is_lost_after_the_order_leads_to_a_restart(temporal: WorkflowEnvironment) -> None:
    """The answer is not awaited, as the ranks wait for one that does not come."""
    script = Script(before_status=lambda _: _never())
    async with with_a_spare(temporal, of_pods("exit"), script) as (world, peer):
        await world.fault(lost_pod(1))
        await peer.until(lambda: "exit" in peer.carried_out)
        await world.fault(lost_pod(2))
        incident = await world.restarted()
        assert ladder(incident) == [FAILS, RESTART]
        assert incident.ladder[0].reason == "another pod was lost before all ranks had begun again"


async def test_a_second_pod_that_is_lost_before_the_order_is_replaced_too(temporal: WorkflowEnvironment) -> None:
    """The faults are announced again together, and one order names both pods."""
    job = of_pods()
    cluster = ScriptedCluster(job, nodes=6)
    cluster.backup_starts = False
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(lost_pod(1))
        await world.settled(lambda _: any("-hot-" in name for name in cluster.pods_by_name))
        first = cluster.backup()
        await world.fault(lost_pod(2))
        cluster.backup_starts = True
        cluster.run(first.metadata.name)
        assert ladder(await world.incident()) == [SAVE, AGAIN]
        assert list(peer.received[-1].nodeRankIds) == ["1", "2"]


async def test_a_new_pod_that_dies_before_it_has_its_ranks_leads_to_a_restart(temporal: WorkflowEnvironment) -> None:
    """The processes that are left wait for it. No second order is given."""
    script = Script(before_status=lambda _: _never())
    async with with_a_spare(temporal, of_pods("exit"), script) as (world, peer):
        await world.fault(lost_pod(1))
        await peer.until(lambda: "exit" in peer.carried_out)
        new = world.cluster.backup()
        await world.fault(pod_fault(new.metadata.name, new.metadata.uid, backup=True))
        incident = await world.restarted()
        assert ladder(incident) == [FAILS, RESTART]
        assert incident.ladder[0].reason == f"new pods died before they had taken over: {new.metadata.name}"


async def test_a_restart_of_pods_uses_an_unconditional_retry(temporal: WorkflowEnvironment) -> None:
    """A pod failed, and nobody saw a fault. When the budget is used up, nothing is replaced any more."""
    async with with_a_spare(temporal, of_pods("exit", retries="1")) as (world, _peer):
        for pod_rank in (1, 2):
            pod = world.cluster.fail(world.cluster.holder(pod_rank).metadata.name)
            failed = pod_fault(pod.metadata.name, pod.metadata.uid)
            await world.fault(failed.model_copy(update={"pod_ranks": (pod_rank,)}))
            if pod_rank == 1:
                assert ladder(await world.incident()) == [AGAIN]
                state = (await world.status()).state
                assert (state.retried, len(state.restarts)) == (1, 1)
        incident = await world.incident(2)
        assert ladder(incident) == [(Mode.POD_RESCHEDULING, Outcome.GIVEN_UP)]
        assert "fault-retry-times=1 is used up" in incident.ladder[0].reason


async def test_a_person_may_ask_for_it_when_the_budget_is_used_up(temporal: WorkflowEnvironment) -> None:
    """The requested mode begins at once, and its verdict is the answer."""
    async with with_a_spare(temporal, of_pods("exit", retries="0")) as (world, _peer):
        pod = world.cluster.fail(world.cluster.holder(1).metadata.name)
        failed = pod_fault(pod.metadata.name, pod.metadata.uid)
        await world.fault(failed.model_copy(update={"pod_ranks": (1,)}))
        assert ladder(await world.incident()) == [(Mode.POD_RESCHEDULING, Outcome.GIVEN_UP)]
        request = ModeRequest(mode=Mode.POD_RESCHEDULING, requested_by="an operator")
        verdict: Verdict = await world.entity.execute_update(Updates.RECOVER, request, result_type=Verdict)
        assert (verdict.mode, verdict.outcome) == AGAIN


async def _never() -> None:
    await asyncio.Event().wait()
