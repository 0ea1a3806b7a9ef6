"""Process rescheduling with MindIO: its own scheduler replaces the pods, and `recover` is ordered before they are there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from activities.pod_recreation import MakingAnew
from rekindle import ids
from rekindle.model.incident import Incident
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from tests.fakes.fault_dialogue import ANNOUNCED
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.recorded import Fields
from tests.fakes.scripted_cluster import TheirCluster
from tests.support.harness import RESUMES, Harness, a_mindio_job, node_fault, pod_fault, training
from tests.workflows.support.openings import SHORT, fields, heard, told_again

RETRY, IN_PLACE, ELSEWHERE, RESTART = Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING, Mode.JOB_RESCHEDULING
RECOVERED, ESCALATE = Outcome.RECOVERED, Outcome.ESCALATE
DONE = ["stop_train", "on_global_rank", "recover"]
LEAVES_1: Fields = ("globalFault", ["on_global_rank", "fault_nodes_exit"], ["2:1", "3:1"], "", 0, ["1"], "")
RECOVER_1: Fields = ("changeStrategy", ["change_strategy"], ["2:1", "3:1"], "recover", 0, [], "")


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the recovery delete pods at once, since no scheduler deletes them here."""
    monkeypatch.setattr(MakingAnew, "DELETED_BY_OTHERS", 0.0)


def mindio(pods: int = 3, allows: str = "recover", **changes: Any) -> Job:
    """Returns a job of pods with two ranks each, whose owner allows no restart in place."""
    limits = {"settle": timedelta(0), "release": timedelta(0), **changes.pop("limits", {})}
    return a_mindio_job(pods=pods, annotations={RECOVER_STRATEGY: allows}, limits=Limits(**limits), **changes)


@asynccontextmanager
async def their_job(
    env: WorkflowEnvironment, job: Job, script: Script | None = None
) -> AsyncIterator[tuple[Harness, ScriptedPeer, TheirCluster]]:
    cluster = TheirCluster(job, nodes=job.pods + 3)
    async with training(env, job, script, cluster) as (world, peer):
        await world.look()
        yield world, peer, cluster


def ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


async def restarted(world: Harness, peer: ScriptedPeer, number: int = 1) -> Incident:
    """Attaches the new manager, lets the pods stay, and returns the incident."""
    await world.phase(RESUMES)
    await peer.cut()
    await peer.attach()
    await world.phase(RESUMES)
    await world.skip(timedelta(seconds=6))
    return await world.incident(number)


async def test_processes_are_not_started_again_in_a_pod_that_is_lost_meanwhile(temporal: WorkflowEnvironment) -> None:
    """The pod is lost before the order, which is not given. The next mode goes on with what was announced and offered."""
    job, script = mindio(allows="recover-in-place,recover"), Script(answers_faults=False)
    async with their_job(temporal, job, script) as (world, peer, cluster):
        await peer.report_fault(3)
        await peer.until(lambda: peer.state == ANNOUNCED)
        before, lost = await heard(world), cluster.holder(1).metadata
        await world.fault(pod_fault(lost.name, lost.uid).model_copy(update={"pod_ranks": (1,)}))
        await told_again(world, before)
        in_place = world.client.get_workflow_handle(ids.recovery_workflow(world.job, 1, IN_PLACE), result_type=Verdict)
        await peer.report_offers()
        verdict = await in_place.result()
        assert (verdict.outcome, verdict.training) == (ESCALATE, None)
        assert "no pod is left of pod rank 1" in verdict.reason
        await peer.until(lambda: peer.carried_out == DONE)
        assert "fault_nodes_restart" not in peer.received[-1].actions


async def test_recover_is_ordered_first_and_names_no_pod_a_second_time(temporal: WorkflowEnvironment) -> None:
    """The announcement ordered the pod's agent to exit. The new pod holds the rank when training continues, and no other pod was
    touched."""
    async with their_job(temporal, mindio()) as (world, peer, cluster):
        others = {rank: cluster.holder(rank).metadata.uid for rank in (0, 2)}
        old = cluster.holder(1)
        await peer.report_fault(3)
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, RECOVERED)]
        assert [fields(order) for order in peer.received[1:]] == [LEAVES_1, RECOVER_1]
        assert len({order.uuid for order in peer.received}) == 1
        (moved,) = incident.ladder[0].switched
        assert (moved.pod_rank, moved.before.uid) == (1, old.metadata.uid)
        assert moved.after.uid == cluster.holder(1).metadata.uid != old.metadata.uid
        assert {rank: cluster.holder(rank).metadata.uid for rank in (0, 2)} == others
        assert cluster.writes == [f"kill {old.metadata.name}"]
        await world.look()
        assert (await world.status()).state.faults == ()


async def test_all_faulty_pods_are_replaced_and_not_any(temporal: WorkflowEnvironment) -> None:
    """Two of them left; one comes in time, the other gets no node: there is no spare, whatever the first one does."""
    async with their_job(temporal, mindio(limits={"replacement_scheduled": timedelta(seconds=1)})) as (world, peer, cluster):
        cluster.late.add(2)
        await peer.report_fault(3, 4)
        incident = await restarted(world, peer)
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (RESTART, RECOVERED)]
        assert incident.ladder[0].reason.startswith("no spare: pod ")
        assert incident.ladder[0].reason.endswith("-worker-2 has no node within 1 s")
        assert peer.carried_out == DONE


async def test_a_pod_is_another_one_by_its_uid(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one runs on under the name that the new one will have: it is ended in time, and not taken for its successor."""
    monkeypatch.setattr(MakingAnew, "LEAVES", 0.3)
    async with their_job(temporal, mindio()) as (world, peer, cluster):
        cluster.agents_end = False
        old = cluster.holder(1)
        await peer.report_fault(3)
        incident = await world.incident()
        (moved,) = incident.ladder[0].switched
        assert (moved.after.name, moved.after.uid != old.metadata.uid) == (old.metadata.name, True)


async def test_where_a_failed_pod_ends_the_job_none_is_told_to_leave(temporal: WorkflowEnvironment) -> None:
    """A pod without `fault-retry-times` is deleted while it runs, which the Ascend Operator accepts."""
    async with their_job(temporal, mindio(labels={})) as (world, peer, cluster):
        await peer.report_fault(3)
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]
        assert fields(peer.received[1])[5] == []
        assert cluster.writes == [f"kill {cluster.holder(1).metadata.name}"]


async def test_a_new_pod_that_fails_is_followed_by_another_one(temporal: WorkflowEnvironment) -> None:
    """The training side waits for the rank, and receives no further order."""
    async with their_job(temporal, mindio()) as (world, peer, cluster):
        cluster.anew_start = False
        first = cluster.holder(1).metadata.uid
        await peer.report_fault(3)
        await world.settled(lambda _: cluster.holder(1).metadata.uid != first)
        second = cluster.holder(1)
        cluster.anew_start = True
        cluster.fail(second.metadata.name)
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, RECOVERED)]
        assert incident.ladder[0].switched[0].before.uid == first
        assert cluster.holder(1).metadata.uid not in (first, second.metadata.uid)
        assert peer.carried_out == DONE


@pytest.mark.parametrize("code", [406, 499, 777])
async def test_behind_a_repair_that_failed_only_a_restart_is_left(temporal: WorkflowEnvironment, code: int) -> None:
    """MindIO would leave at any other order than a dump."""
    async with their_job(temporal, mindio(), Script(statuses=[code])) as (world, peer, _):
        await peer.report_fault(3)
        incident = await restarted(world, peer)
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (RESTART, RECOVERED)]
        assert f"the new pods could not take over: the training side reports {code}" in incident.ladder[0].reason
        assert peer.carried_out == DONE


async def test_without_an_answer_the_job_is_restarted_at_the_limit(temporal: WorkflowEnvironment) -> None:
    """The limit is 15 minutes from `recover`."""
    async with their_job(temporal, mindio(), Script(resumes=False)) as (world, peer, _):
        await peer.report_fault(3)
        await peer.until(lambda: len(peer.received) == 3)
        await world.skip(timedelta(minutes=15, seconds=1))
        incident = await restarted(world, peer)
        assert "no report of recover within 900 s" in incident.ladder[0].reason


async def test_a_second_fault_waits_for_the_end_of_the_first_recover(temporal: WorkflowEnvironment) -> None:
    """The training side accepts no order during the repair, and the second pod must not be touched. The second fault is reported
    after the status, and is repaired by an attempt of its own."""
    script = Script()
    async with their_job(temporal, mindio(), script) as (world, peer, cluster):
        second = cluster.holder(2)

        async def strikes(_: str) -> None:
            script.before_status = _nothing
            await world.fault(pod_fault(second.metadata.name, "unknown").model_copy(update={"pod_ranks": (2,), "ranks": (4, 5)}))
            assert cluster.holder(2).metadata.uid == second.metadata.uid

        script.before_status = strikes
        await peer.report_fault(3)
        assert ladder(await world.incident(1)) == [(ELSEWHERE, RECOVERED)]
        assert [one.pod_rank for one in (await world.incident(1)).ladder[0].switched] == [1]
        assert ladder(await world.incident(2)) == [(ELSEWHERE, RECOVERED)]
        assert [one.pod_rank for one in (await world.incident(2)).ladder[0].switched] == [2]
        assert peer.carried_out == [*DONE, *DONE]
        assert peer.received[2].uuid != peer.received[3].uuid


async def _nothing(_: str) -> None:
    """Does nothing before the status."""


async def test_a_fault_that_is_found_behind_the_announcement_leaves_by_the_next_order(temporal: WorkflowEnvironment) -> None:
    """Both pods are replaced; of the two only the second is named by `recover`, with its neighbours among the ranks."""
    async with their_job(temporal, mindio(), Script(finds=(4,))) as (world, peer, _):
        await peer.report_fault(3)
        incident = await world.incident()
        assert [one.pod_rank for one in incident.ladder[0].switched] == [1, 2]
        assert fields(peer.received[1]) == LEAVES_1
        assert fields(peer.received[2])[2:6] == (["2:1", "3:1", "4:1", "5:1"], "recover", 0, ["2"])


async def test_what_cannot_start_again_in_its_pod_moves_in_the_same_attempt(temporal: WorkflowEnvironment) -> None:
    """The node is lost before a strategy was ordered. Another announcement would end the training side, and none is given."""
    script, job = Script(answers_faults=False), mindio(allows="recover-in-place,recover", limits={"node_lost": SHORT})
    async with their_job(temporal, job, script) as (world, peer, cluster):
        await peer.report_fault(3)
        await peer.until(lambda: "on_global_rank" in peer.carried_out)
        cluster.node_names.remove("node-1")
        before = await heard(world)
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        await told_again(world, before)
        await peer.report_offers()
        incident = await world.incident()
        assert ladder(incident) == [(Mode.IN_PLACE, ESCALATE), (ELSEWHERE, RECOVERED)]
        assert peer.carried_out == DONE
        assert fields(peer.received[2]) == RECOVER_1


async def test_a_pod_that_is_lost_while_its_process_starts_again_costs_a_restart(temporal: WorkflowEnvironment) -> None:
    """A strategy was ordered. The training side accepts only a dump or an exit after it, so the job is restarted."""
    script, job = Script(resumes=False), mindio(allows="recover-in-place,recover", limits={"node_lost": SHORT})
    async with their_job(temporal, job, script) as (world, peer, _):
        await peer.report_fault(3)
        await peer.until(lambda: "recover" in peer.carried_out)
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        incident = await restarted(world, peer)
        assert ladder(incident) == [(Mode.IN_PLACE, ESCALATE), (RESTART, RECOVERED)]
        assert peer.carried_out == DONE


async def test_a_retry_that_failed_with_405_goes_on_in_other_pods(temporal: WorkflowEnvironment) -> None:
    """The fault is announced again under another uuid, as a normal fault with its pod. `recover` follows with an empty list, as
    it was tried."""
    async with their_job(temporal, mindio(allows="retry,recover"), Script(statuses=[405])) as (world, peer, _):
        await peer.report_fault(3, kind="0")
        incident = await world.incident()
        assert ladder(incident) == [(RETRY, ESCALATE), (ELSEWHERE, RECOVERED)]
        assert peer.carried_out == ["stop_train", "on_global_rank", "retry", "on_global_rank", "recover"]
        assert [fields(order) for order in peer.received[3:]] == [LEAVES_1, RECOVER_1]
        assert peer.received[2].uuid != peer.received[3].uuid == peer.received[4].uuid


async def test_a_lost_node_needs_no_word_of_the_training_side(temporal: WorkflowEnvironment) -> None:
    """The cluster shows the lost node. Its pod is deleted by force, since its kubelet would not report its end."""
    async with their_job(temporal, mindio(limits={"node_lost": SHORT})) as (world, peer, cluster):
        cluster.node_names.remove("node-1")
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]
        assert fields(peer.received[1])[2] == ["2:1", "3:1"]
        assert cluster.holder(1).spec.node_name not in ("", "node-1")


async def test_a_manager_that_is_lost_meanwhile_ends_the_wait(temporal: WorkflowEnvironment) -> None:
    """Another process knows nothing of the attempt."""
    async with their_job(temporal, mindio()) as (world, peer, cluster):
        cluster.anew_start = False
        await peer.report_fault(3)
        await peer.until(lambda: "recover" in peer.carried_out)
        await peer.restart_manager()
        incident = await restarted(world, peer)
        assert ladder(incident)[0] == (ELSEWHERE, ESCALATE)
        assert "another process is the job's manager" in incident.ladder[0].reason


async def test_pods_of_which_nobody_knows_who_they_were_are_not_waited_for(temporal: WorkflowEnvironment) -> None:
    """A pod cannot be distinguished from its successor if its identity is unknown. The job is restarted."""
    job = mindio()
    async with training(temporal, job, cluster=TheirCluster(job)) as (world, peer):
        await peer.report_fault(3)
        incident = await restarted(world, peer)
        assert "it is not known which pods held pod rank 1" in incident.ladder[0].reason
        assert peer.carried_out == ["stop_train", "on_global_rank"]
