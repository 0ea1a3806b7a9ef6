"""The last mode: all pods stop and start again, and a job that is given up is reported."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.errors import Refused
from rekindle.model.cluster import JobPhase
from rekindle.model.job import SubHealthStrategy
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import RESUMES, Harness, a_job, a_mindio_job, node_fault, pod_fault, sub_health, training

SOON = timedelta(seconds=0.4)


async def test_pods_that_do_not_end_are_forced(temporal: WorkflowEnvironment) -> None:
    """Pods that are left after the limit for stopping are deleted without a grace period, and the job starts again."""
    job = a_job(limits=Limits(pods_stopped=SOON))
    cluster = ScriptedCluster(job)
    stubborn = cluster.holder(1).metadata.name
    cluster.ends_only_by_force.add(stubborn)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        assert cluster.writes.index(f"delete {stubborn}") < cluster.writes.index(f"kill {stubborn}")
        assert cluster.writes.index(f"kill {stubborn}") < cluster.writes.index(f"create {stubborn}")


@asynccontextmanager
async def _with_a_stuck_pod(env: WorkflowEnvironment) -> AsyncIterator[tuple[Harness, str]]:
    """A job that is restarted, and one of its pods, which never ends."""
    job = a_job(limits=Limits(pods_stopped=SOON))
    cluster = ScriptedCluster(job)
    stuck = cluster.holder(1).metadata.name
    cluster.terminating_for_ever.add(stuck)
    async with training(env, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        yield world, stuck


async def test_pods_that_never_end_are_given_up(temporal: WorkflowEnvironment) -> None:
    """The verdict names the pod, an event says so, and no second pod of the rank is started beside it."""
    async with _with_a_stuck_pod(temporal) as (world, stuck):
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert incident.ladder[-1].reason == f"pods do not end: {stuck}; it is tried again from time to time"
        assert stuck in (await world.event("RecoveryGivenUp")).message
        assert not [write for write in world.cluster.writes if write.startswith("create")]


async def test_a_restart_is_begun_again_when_its_old_pods_have_ended_at_last(temporal: WorkflowEnvironment) -> None:
    """Tries become rarer; until then the job is shown to have no pods, and not to train."""
    async with _with_a_stuck_pod(temporal) as (world, _):
        assert (await world.incident()).verdict is Outcome.GIVEN_UP
        await world.skip(timedelta(minutes=1), of=world.entity)
        assert (await world.incident(2)).verdict is Outcome.GIVEN_UP
        known = (await world.status()).state
        assert known.again is not None
        assert (known.again.tries, known.restarts) == (2, ())
        world.cluster.terminating_for_ever.clear()
        await world.skip(timedelta(minutes=2), of=world.entity)
        incident = await world.restarted(3)
        assert incident.verdict is Outcome.RECOVERED
        known = (await world.status()).state
        assert (known.again, known.faults) == (None, ())


@pytest.mark.parametrize("placed", [True, False], ids=["they fail", "no node for them"])
async def test_pods_that_do_not_start_are_given_up(temporal: WorkflowEnvironment, *, placed: bool) -> None:
    """The verdict contains the cluster's message, and an event reports it. Pods without a node are kept for inspection."""
    job = a_job(limits=Limits(pods_running=SOON))
    cluster = ScriptedCluster(job)
    cluster.pods_start, cluster.pods_are_placed = False, placed
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert ("is Failed" if placed else "nodes are available") in incident.ladder[-1].reason
        event = await world.event("RecoveryGivenUp")
        assert event.type == "Warning"
        assert incident.ladder[-1].reason in event.message
        assert placed or len(cluster.pods_by_name) == 2, "those that failed are a fault, and the next restart may have begun"


async def test_a_restart_that_finds_no_node_is_begun_again_when_one_is_free(temporal: WorkflowEnvironment) -> None:
    """Pods that wait are no fault, and avoid the node that was lost, so that its return alone would not start them."""
    job = a_job(limits=Limits(pods_running=SOON))
    cluster = ScriptedCluster(job)
    cluster.pods_are_placed = False
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        assert (await world.incident()).ladder[-1].again == "free nodes for its pods"
        state = (await world.status()).state
        assert state.given_up
        assert (state.given_up.stopped, state.restarts) == (True, ())
        cluster.pods_are_placed = True
        await world.skip(timedelta(minutes=1), of=world.entity)
        assert (await world.restarted(2)).verdict is Outcome.RECOVERED
        assert (await world.status()).state.given_up is None


async def test_no_first_step_in_fifteen_minutes_is_given_up(temporal: WorkflowEnvironment) -> None:
    """Pods that run are not enough: without a completed step the job is given up, no second before its limit."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        await world.skip(timedelta(minutes=14, seconds=55))
        assert (await world.status()).running is Mode.JOB_RESCHEDULING
        await world.skip(timedelta(seconds=10))
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert incident.ladder[-1].reason == "no completed step within 900 s"


async def test_a_pod_that_fails_before_the_first_step_is_given_up_at_once(temporal: WorkflowEnvironment) -> None:
    """A new pod that dies while the job loads is not waited for."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        pod = world.cluster.fail(world.cluster.holder(0).metadata.name)
        await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert f"pod {pod.metadata.name} is Failed" in incident.ladder[-1].reason


async def test_the_old_lifes_step_is_not_taken_for_the_new_ones(temporal: WorkflowEnvironment) -> None:
    """Progress of the life that met the fault does not count as a restart."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        await world.first_step("life-1")
        assert (await world.status()).running is Mode.JOB_RESCHEDULING
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_a_job_is_restarted_five_times_an_hour_at_most(temporal: WorkflowEnvironment) -> None:
    """The sixth fault within an hour is given up and touches nothing; an hour later a fault is recovered again."""
    async with training(temporal, a_job()) as (world, _peer):
        for number in range(1, 6):
            await world.fault(node_fault("node-0", f"episode {number}"))
            await world.restarted(number, f"life-{number + 1}")
        writes = list(world.cluster.writes)
        await world.fault(node_fault("node-0", "one too many"))
        incident = await world.incident(6)
        assert (incident.verdict, world.cluster.writes) == (Outcome.GIVEN_UP, writes)
        assert "restarted 5 times within 1:00:00" in incident.ladder[0].reason
        assert "restarted 5 times within 1:00:00" in (await world.event("RecoveryGivenUp")).message
        await world.skip(timedelta(hours=1), of=world.entity)
        await world.fault(node_fault("node-0", "an hour later"))
        assert (await world.restarted(7, "life-7")).verdict is Outcome.RECOVERED


async def test_a_job_that_ended_unseen_ends_also_if_a_pod_of_it_cannot_be_deleted(temporal: WorkflowEnvironment) -> None:
    """The deletion is retried again and again, but the job ends all the same."""
    job = a_job(limits=Limits(old_pod_deleted=SOON))
    cluster = ScriptedCluster(job)
    cluster.undeletable.add(cluster.holder(1).metadata.name)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(sub_health())
        assert (await world.incident()).ladder[0].left_behind
        cluster.phase = None
        await world.skip(timedelta(hours=1), of=world.entity)
        ended = await asyncio.wait_for(world.entity.result(), 30)
        assert ended["reason"] == "the job was deleted"


async def test_healthy_nodes_are_preferred_until_sub_health_is_ignored(temporal: WorkflowEnvironment) -> None:
    """A sub-healthy node is avoided as long as the policy minds sub-health, and used again once it is ignored."""
    job = a_job(capabilities=())
    async with training(temporal, job) as (world, _peer):
        await world.fault(sub_health(0, "node-1"))
        await world.judged(0)
        front = await world.front(None, mode="JobRescheduling")
        await world.restarted()
        await front.result()
        assert world.job.sub_health is SubHealthStrategy.HOT_SWITCH
        assert "node-1" not in {pod.spec.node_name for pod in world.cluster.pods_by_name.values()}


async def test_the_pods_of_a_lost_node_are_forced_at_once(temporal: WorkflowEnvironment) -> None:
    """Nothing on the node would end them: their grace would only be waited for. The others get theirs."""
    async with training(temporal, a_job()) as (world, _peer):
        lost, healthy = (world.cluster.holder(rank).metadata.name for rank in (0, 1))
        await world.fault(node_fault("node-0"))
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        assert [write for write in world.cluster.writes if not write.startswith("create")] == [
            f"kill {lost}",
            f"delete {healthy}",
        ]


async def test_the_node_of_a_pod_that_failed_is_used_again(temporal: WorkflowEnvironment) -> None:
    """A crash of all processes on a full cluster: there is no other node, and nothing is wrong with these."""
    job = a_job()
    async with training(temporal, job, cluster=ScriptedCluster(job, nodes=2)) as (world, _peer):
        for rank in (0, 1):
            pod = world.cluster.fail(world.cluster.holder(rank).metadata.name)
            fault = pod_fault(pod.metadata.name, pod.metadata.uid)
            await world.fault(fault.model_copy(update={"node": pod.spec.node_name}))
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        assert {pod.spec.node_name for pod in world.cluster.pods_by_name.values()} == {"node-0", "node-1"}


async def _unanswered(world: Harness, calls: int) -> None:
    """Waits until the cluster was asked this often in vain."""
    async with asyncio.timeout(60):
        while world.cluster.refused_calls < calls:
            await asyncio.sleep(0.03)


async def _shown(world: Harness, words: str) -> None:
    """Waits until the page of the running recovery contains these words."""
    recovery: Any = await world.running()
    async with asyncio.timeout(60):
        while words not in (await recovery.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)).current_details:
            await asyncio.sleep(0.03)


async def test_a_cluster_that_does_not_answer_is_tried_until_it_does(temporal: WorkflowEnvironment) -> None:
    """Longer than any limit of its own: the fault is kept, the page says what is waited for, and then the job restarts."""
    job = a_job(limits=Limits(**dict.fromkeys(("pods_deleted", "pods_stopped", "clean_up"), timedelta(seconds=2))))
    async with training(temporal, job) as (world, _peer):
        world.cluster.unreachable = True
        await world.fault(node_fault("node-0"))
        await _unanswered(world, 4)
        await _shown(world, "the cluster does not answer, it is tried again until it does (cluster.unavailable: nobody answers")
        assert (await world.status()).running is Mode.JOB_RESCHEDULING
        world.cluster.unreachable = False
        assert (await world.restarted()).verdict is Outcome.RECOVERED


QUOTA = "0 of 2 pods of Job gpt are there: FailedCreate at 2026-01-02T03:04:05Z: exceeded quota: gpus"


async def test_pods_that_somebody_refuses_are_asked_for_again_and_the_words_are_shown_at_once(
    temporal: WorkflowEnvironment,
) -> None:
    """A quota or a webhook that refuses the pods may admit them later. Page and event show the reason from the start."""
    async with training(temporal, a_job()) as (world, _peer):
        world.cluster.withholds_pods = QUOTA
        await world.fault(node_fault("node-0"))
        assert (await world.event("PodsRefused")).message == QUOTA
        await _shown(world, QUOTA)
        world.cluster.withholds_pods = ""
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        assert [event.reason for event in world.cluster.events].count("PodsRefused") == 1


async def test_pods_that_somebody_refuses_for_long_are_given_up(temporal: WorkflowEnvironment) -> None:
    """The verdict contains the reason of the refusal, when the time limit for the creation of pods has passed."""
    async with training(temporal, a_job(limits=Limits(pods_created=timedelta(seconds=2)))) as (world, _peer):
        world.cluster.withholds_pods = QUOTA
        await world.fault(node_fault("node-0"))
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert QUOTA in incident.ladder[-1].reason


PODS = "the cluster would refuse the new pods: violates PodSecurity"


async def test_nothing_is_stopped_where_the_new_pods_would_be_refused(temporal: WorkflowEnvironment) -> None:
    """A job that trains continues, and the request is refused. Where training is stopped, the recovery is given up and a user has
    to look."""
    async with training(temporal, a_job()) as (world, _peer):
        world.cluster.refuses_stops = PODS
        with pytest.raises(Refused, match=f"nothing was stopped: {PODS}"):
            await Rekindle(world.client).reschedule(world.job.id)
        await world.fault(node_fault("node-0"))
        incident = await world.incident(2)
        assert (incident.verdict, incident.ladder[-1].reason) == (Outcome.GIVEN_UP, f"nothing was stopped: {PODS}")
        assert world.cluster.writes == []
        assert incident.ladder[-1].restarted_at is None


async def test_a_person_ends_the_wait_for_a_cluster_that_does_not_answer(temporal: WorkflowEnvironment) -> None:
    """Cancelled while nothing can be done, it ends at once, and says that pods may be missing."""
    async with training(temporal, a_job()) as (world, _peer):
        world.cluster.unreachable = True
        await world.fault(node_fault("node-0"))
        await _unanswered(world, 2)
        await (await world.running()).cancel()
        incident = await world.incident()
        assert (incident.verdict, incident.ladder[-1].reason) == (
            Outcome.CANCELLED,
            "cancelled by request; the job's pods may be missing",
        )


async def test_a_step_that_was_told_while_the_old_pods_ended_is_not_the_new_lifes(temporal: WorkflowEnvironment) -> None:
    """A job is restarted while it loads. Its first step, which is reported late, belongs to pods that are gone."""
    job = a_job(limits=Limits(pods_stopped=timedelta(seconds=3)))
    cluster = ScriptedCluster(job)
    cluster.ends_only_by_force.add(cluster.holder(1).metadata.name)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase("all pods stop")
        await world.first_step("a life that ends")
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        assert (await world.incident()).ladder[-1].steps_lost == 3


async def test_with_mindio_the_old_manager_is_not_taken_for_the_new_one(temporal: WorkflowEnvironment) -> None:
    """The old manager may attach again while its pod ends. The new one counts when it attaches, and the reason says that no step
    was seen."""
    job = a_mindio_job(limits=Limits(pods_stopped=timedelta(seconds=3), pods_stay=SOON))
    cluster = ScriptedCluster(job)
    cluster.ends_only_by_force.add(cluster.holder(1).metadata.name)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(node_fault("node-0"))
        await world.phase("all pods stop")
        await peer.cut()
        await peer.attach()
        await world.phase(RESUMES)
        assert (await world.status()).running is Mode.JOB_RESCHEDULING
        await peer.cut()
        await peer.attach()
        verdict = (await world.incident()).ladder[-1]
        assert verdict.outcome is Outcome.RECOVERED
        assert "restarted, not seen to train: MindIO tells no step" in verdict.reason


async def test_with_mindio_pods_that_do_not_stay_are_given_up(temporal: WorkflowEnvironment) -> None:
    """An attached manager does not prove that training runs. A pod that fails right after the attachment is detected."""
    async with training(temporal, a_mindio_job(limits=Limits(pods_stay=timedelta(seconds=2)))) as (world, peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        await peer.cut()
        await peer.attach()
        pod = world.cluster.fail(world.cluster.holder(0).metadata.name)
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert f"pod {pod.metadata.name} is Failed" in incident.ladder[-1].reason


async def test_a_late_word_of_an_old_pod_does_not_end_the_restart(temporal: WorkflowEnvironment) -> None:
    """A report of a failed pod is compared with the current pods."""
    async with training(temporal, a_job()) as (world, _peer):
        old = world.cluster.holder(1)
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        await world.fault(pod_fault(old.metadata.name, old.metadata.uid))
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_a_cancelled_restart_starts_the_pods_that_it_stopped(temporal: WorkflowEnvironment) -> None:
    """A job without pods would stay so, and no event would show it. The restart therefore completes."""
    job = a_job()
    cluster = ScriptedCluster(job)
    cluster.pods_are_placed = False
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase("pods start on healthy nodes")
        await (await world.running()).cancel()
        async with asyncio.timeout(60):
            while len(cluster.pods_by_name) < 2:
                await asyncio.sleep(0.03)
        for name in list(cluster.pods_by_name):
            cluster.run(name)
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_a_job_that_trains_to_its_end_while_its_first_step_is_awaited_recovered(temporal: WorkflowEnvironment) -> None:
    """The job may have few steps left: it counts that it succeeded with the new pods."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        world.cluster.phase = JobPhase.SUCCEEDED
        await world.tell(ids.Updates.END, "the job succeeded")
        await world.entity.result()
        verdict = (await world.incident()).ladder[-1]
        assert verdict.outcome is Outcome.RECOVERED
        assert verdict.reason.startswith("the job was started again and has trained to its end")


async def test_a_restart_says_why_nothing_cheaper_was_tried(temporal: WorkflowEnvironment) -> None:
    """Such as that the owner of the job allows no more than a dump."""
    async with training(temporal, a_job(annotations={RECOVER_STRATEGY: "dump,exit"})) as (world, peer):
        await peer.report_fault(3)
        reason = (await world.restarted()).ladder[-1].reason
        assert "no in-place recovery: its owner does not allow recover-in-place" in reason
        assert "no process rescheduling: its owner does not allow recover " in reason
