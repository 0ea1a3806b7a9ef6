"""Growth of a job that trains with fewer pods than it was started with. Success, failures, limits, faults meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from activities.pods import PodActivities
from rekindle import ids
from rekindle.client import Rekindle
from rekindle.errors import Busy, Forbidden
from rekindle.model.activities.jobs import SurveyRequest
from rekindle.model.cluster import Condition, Pod, PodPhase
from rekindle.model.elastic import Elastic
from rekindle.model.job import Job
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes import elastic as elastic_policy
from rekindle.policy.modes.cases import Case
from rekindle.policy.modes.ladder import Plan
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, pod_fault, register, training
from tests.workflows.support.openings import SHORT
from tests.workflows.test_elastic_training import OFFERS, SMALLER, elastic, lose, missing, without_spare
from tests.workflows.test_process_level import ESCALATE, IN_PLACE, RECOVERED, RESTART, ladder
from workflows.child import Child

GROWS, IGNORED, CANCELLED = Mode.SCALING, Outcome.IGNORED, Outcome.CANCELLED


def soon(**changes: Any) -> Job:
    """Returns a job that tries to grow a second after it got smaller."""
    return elastic(limits={"grow_again": timedelta(seconds=1), "backup_scheduled": SHORT}, **changes)


@asynccontextmanager
async def small(
    temporal: WorkflowEnvironment, script: Script, *, free: bool = True, **changes: Any
) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    """Runs a job that has lost pod rank 2.

    Args:
        free: a node for another pod is free as soon as the job is small.
    """
    job = soon(**changes)
    cluster = without_spare(job)
    async with training(temporal, job, script, cluster) as (world, peer):
        await lose(world, 2)
        assert ladder(await world.incident()) == [(SMALLER, RECOVERED)]
        cluster.node_names.remove("node-2")
        if free:
            cluster.node_names.append("node-9")
            cluster.spare = True
        yield world, peer


async def test_a_job_grows_when_a_node_is_free(temporal: WorkflowEnvironment) -> None:
    """A new pod is made, `upgrade` names its rank, and the pod becomes that of its rank. The job is whole again."""
    async with small(temporal, Script(repairs=OFFERS)) as (world, peer):
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, RECOVERED)]
        assert incident.summary == "back from 3 of 4 replicas"
        order = peer.received[-1]
        assert (order.changeStrategy, list(order.nodeRankIds)) == ("upgrade", ["2"])
        assert order.extraParams == '{"scale-out-strategy": "DP"}'
        state = (await world.status()).state
        assert state.small is None
        holder = world.cluster.holder(2)
        assert holder.spec.node_name == "node-9"
        assert state.holders[2] == holder.metadata.uid[:8]
        await world.look()
        assert (await world.status()).state.faults == ()


async def test_all_pods_of_a_replica_leave_and_come_back_together(temporal: WorkflowEnvironment) -> None:
    """The pod of the lost node takes the other pod of its replica along. One order names both, also when they come back."""
    size = Elastic(pods=2, wait=timedelta(0))
    async with small(temporal, Script(repairs=OFFERS), elastic=size) as (world, peer):
        left = next(order for order in peer.received if order.changeStrategy == "downgrade")
        assert list(left.nodeRankIds) == ["2", "3"]
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, RECOVERED)]
        assert incident.summary == "back from 1 of 2 replicas"
        order = peer.received[-1]
        assert (order.changeStrategy, list(order.nodeRankIds)) == ("upgrade", ["2", "3"])
        assert (await world.status()).state.small is None


async def test_another_manager_does_not_make_a_small_job_whole(temporal: WorkflowEnvironment) -> None:
    """The new manager reports a first step too. Missing pods are missing still, and come back when a node is free."""
    async with small(temporal, Script(repairs=OFFERS), free=False) as (world, _):
        await world.first_step("another-manager")
        assert await missing(world) == (2,)
        world.cluster.node_names.append("node-9")
        world.cluster.spare = True
        await world.settled(lambda status: status.state.small is None)
        assert world.cluster.holder(2).spec.node_name == "node-9"


async def test_a_job_whose_owner_allows_no_other_size_any_more_gets_its_pods_back(temporal: WorkflowEnvironment) -> None:
    """The annotation was removed while a pod was missing. It allows smaller sizes, and is not needed for the full one."""
    async with small(temporal, Script(repairs=OFFERS), free=False) as (world, _):
        await register(world.client, world.job.model_copy(update={"elastic": None}))
        world.cluster.node_names.append("node-9")
        world.cluster.spare = True
        await world.settled(lambda status: status.state.small is None)


class ComesBack(ScriptedCluster):
    """Cluster whose lost nodes come back when a new pod is made."""

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        made = await super().ensure_backup(old, name, avoid_nodes)
        self.conditions.clear()
        return made


async def test_a_new_pod_may_wait_for_a_node_that_is_lost(temporal: WorkflowEnvironment) -> None:
    """The affinity of a pod cannot be changed when the node is back. So it does not exclude the node."""
    job = soon()
    cluster = ComesBack(job, nodes=job.pods)
    cluster.spare = False
    cluster.conditions["node-2"] = (Condition(type="Ready", status="False"),)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, _):
        await lose(world, 2)
        assert ladder(await world.incident()) == [(SMALLER, RECOVERED)]
        cluster.spare = True
        assert ladder(await world.incident(2)) == [(GROWS, RECOVERED)]
        assert cluster.holder(2).spec.node_name == "node-2"


async def test_several_pods_come_back_one_after_the_other(temporal: WorkflowEnvironment) -> None:
    """Each as soon as there is a node for it. The second one begins at once."""
    async with small(temporal, Script(repairs=OFFERS), free=False) as (world, peer):
        await lose(world, 3)
        await world.settled(lambda status: len(elastic_policy.missing_of(status.state.small)) == 2)
        world.cluster.node_names += ["node-8", "node-9"]
        world.cluster.spare = True
        await world.settled(lambda status: status.state.small is None)
        assert [list(order.nodeRankIds) for order in peer.received if order.changeStrategy == "upgrade"] == [["2"], ["3"]]


async def test_without_a_node_the_next_try_comes_later_and_costs_nothing(temporal: WorkflowEnvironment) -> None:
    """The pod that got no node is deleted. Only the last of several such tries stays in the history."""
    async with small(temporal, Script(repairs=OFFERS), free=False) as (world, peer):
        status = await world.settled(lambda status: status.state.small is not None and status.state.small.tries > 1)
        tries = [one for one in status.state.history if one.ladder[-1].mode is GROWS]
        assert [ladder(one) for one in tries] == [[(GROWS, IGNORED)]]
        assert "no spare" in tries[0].ladder[0].reason
        assert "upgrade" not in peer.orders
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]
        small_now = status.state.small
        assert small_now
        assert small_now.last_try == tries[0].ladder[0].reason


async def test_a_new_pod_that_dies_while_it_loads_costs_nothing(temporal: WorkflowEnvironment) -> None:
    """The return is stopped at the training side, and training goes on small. The next try comes later."""
    async with small(temporal, Script(repairs=OFFERS, resumes=True)) as (world, peer):
        peer.script.resumes = False
        await peer.until(lambda: "upgrade" in peer.orders)
        new = world.cluster.backup()
        await world.fault(pod_fault(new.metadata.name, new.metadata.uid, backup=True))
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, IGNORED)]
        assert "died before they had taken over" in incident.ladder[0].reason
        assert peer.orders[-1] == "stop switch"
        assert await missing(world) == (2,)
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]


async def test_a_training_side_that_cannot_take_them_back_goes_on_small(temporal: WorkflowEnvironment) -> None:
    """The answer is the reason in the verdict, and the new pod is deleted."""
    async with small(temporal, Script(repairs=OFFERS, statuses=[0, 406])) as (world, peer):
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, IGNORED)]
        assert incident.ladder[0].reason == "training goes on as before: scripted"
        assert peer.state == "trains"
        assert await missing(world) == (2,)


async def test_no_answer_to_the_return_within_the_limit_restarts_the_job(temporal: WorkflowEnvironment) -> None:
    """The state of training is unknown then."""
    async with small(temporal, Script(repairs=OFFERS)) as (world, peer):
        peer.script.resumes = False
        await world.phase("training goes on with more pods")
        await peer.until(lambda: "upgrade" in peer.orders)
        await world.skip(timedelta(minutes=20, seconds=1))
        incident = await world.restarted(number=2)
        assert ladder(incident) == [(GROWS, ESCALATE), (RESTART, RECOVERED)]
        assert await missing(world) == ()


async def test_a_return_ends_with_its_job(temporal: WorkflowEnvironment) -> None:
    """The new pod is deleted. A job that was suspended may be resumed, and needs a new workflow then."""
    async with small(temporal, Script(repairs=OFFERS)) as (world, peer):
        peer.script.resumes = False
        await peer.until(lambda: "upgrade" in peer.orders)
        await world.tell(ids.Updates.END, "the job was suspended")
        async with asyncio.timeout(60):
            assert (await world.entity.result())["reason"] == "the job was suspended"
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]


async def test_a_fault_while_a_new_pod_waits_for_a_node_comes_first(temporal: WorkflowEnvironment) -> None:
    """The mode of the fault follows in the same incident, and what was made for the growth is deleted."""
    job = elastic(limits={"grow_again": timedelta(seconds=1)})
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        await lose(world, 2)
        await world.incident()
        await world.phase("new pods start")
        await world.settled(lambda _: any("-hot-" in name for name in world.cluster.pods_by_name))
        await peer.report_fault(3)
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, CANCELLED), (IN_PLACE, RECOVERED)]
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]
        assert await missing(world) == (2,)


async def test_a_request_ends_an_attempt_that_waits_for_a_node(temporal: WorkflowEnvironment) -> None:
    """The request is not refused because the job would like to grow. The next attempt follows later."""
    job = elastic(limits={"grow_again": timedelta(seconds=1)})
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        await lose(world, 2)
        await world.incident()
        await world.phase("new pods start")
        verdict = await Rekindle(world.client).scale(job.id, replicas=2)
        assert (verdict.mode, verdict.outcome) == (GROWS, RECOVERED)
        assert ladder(await world.incident(2)) == [(GROWS, CANCELLED)]
        assert list(peer.received[-1].nodeRankIds) == ["3"]
        assert await missing(world) == (2, 3)
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]


async def test_a_request_does_not_end_the_recovery_that_follows_an_attempt(temporal: WorkflowEnvironment) -> None:
    """The requester is told that the job is busy, as in any other recovery."""
    job = elastic(limits={"grow_again": timedelta(seconds=1)})
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        await lose(world, 2)
        await world.incident()
        await world.phase("new pods start")
        peer.script.resumes = False
        await peer.report_fault(3)
        await world.settled(lambda status: status.running is IN_PLACE)
        with pytest.raises(Busy, match="is busy with in-place recovery"):
            await Rekindle(world.client).scale(job.id, replicas=2)
        assert (await world.status()).running is IN_PLACE


async def test_a_fault_while_ranks_come_back_comes_first(temporal: WorkflowEnvironment) -> None:
    """The training side leaves the return for it. No order to stop follows, as it stands."""
    async with small(temporal, Script(repairs=OFFERS)) as (world, peer):

        async def strike(strategy: str) -> None:
            if strategy == "upgrade":
                await peer.report_fault(3)

        peer.script.before_status = strike
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, CANCELLED), (IN_PLACE, RECOVERED)]
        assert "stop switch" not in peer.orders
        assert await missing(world) == (2,)


async def test_a_pod_that_others_make_for_the_missing_rank_is_taken_as_it_is(temporal: WorkflowEnvironment) -> None:
    """No further one is made. It begins as soon as the pod is seen."""
    job = elastic()
    cluster = without_spare(job)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, peer):
        await world.look()
        await lose(world, 2)
        await world.incident()
        cluster.node_names.append("node-9")
        made = cluster._put(cluster._pod(f"{job.name}-worker-2", 2, "node-9", PodPhase.RUNNING))
        await world.look()
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, RECOVERED)]
        assert incident.ladder[0].switched[0].after.uid == made.metadata.uid
        assert list(peer.received[-1].nodeRankIds) == ["2"]
        assert not [name for name in cluster.pods_by_name if "-hot-" in name]
        await world.look()
        state = (await world.status()).state
        assert (state.small, state.faults) == (None, ())


async def test_of_pods_that_others_make_the_one_with_a_node_is_taken(temporal: WorkflowEnvironment) -> None:
    """The controller makes a pod for each missing rank at once, and the scheduler has chosen which one gets the node."""
    job = soon()
    cluster = without_spare(job)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, peer):
        await world.look()
        await lose(world, 2)
        await world.settled(lambda status: elastic_policy.missing_of(status.state.small) == (2,))
        await lose(world, 3)
        await world.settled(lambda status: elastic_policy.missing_of(status.state.small) == (2, 3))
        cluster._put(cluster._pod(f"{job.name}-worker-2", 2, "", PodPhase.PENDING))
        cluster._put(cluster._pod(f"{job.name}-worker-3", 3, "node-9", PodPhase.RUNNING))
        await world.look()
        await world.settled(lambda status: elastic_policy.missing_of(status.state.small) == (2,))
        assert list(peer.received[-1].nodeRankIds) == ["3"]


async def test_of_replicas_that_others_make_the_one_whose_pods_have_nodes_is_taken(temporal: WorkflowEnvironment) -> None:
    """The scheduler has given nodes to the second missing replica, and to one pod of the first one."""
    job = soon(pods=6, elastic=Elastic(pods=2, wait=timedelta(0)))
    cluster = without_spare(job)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, peer):
        await world.look()
        for number, pod_rank in enumerate((2, 4), 1):
            await lose(world, pod_rank)
            left = tuple(range(2, 2 + 2 * number))
            await world.settled(lambda status, left=left: elastic_policy.missing_of(status.state.small) == left)  # type: ignore[misc]
        for pod_rank, node in ((2, "node-8"), (3, ""), (4, "node-9"), (5, "node-10")):
            phase = PodPhase.RUNNING if node else PodPhase.PENDING
            cluster._put(cluster._pod(f"{job.name}-worker-{pod_rank}", pod_rank, node, phase))
        await world.look()
        await world.settled(lambda status: elastic_policy.missing_of(status.state.small) == (2, 3))
        assert list(peer.received[-1].nodeRankIds) == ["4", "5"]


async def test_a_job_whose_pods_cannot_be_moved_gets_those_back_that_others_make(temporal: WorkflowEnvironment) -> None:
    """Rekindle may make none for it. Its controller does."""
    job = soon(unmovable="its Jobs are placed exclusively")
    cluster = without_spare(job)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, _peer):
        await world.look()
        await lose(world, 2)
        await world.settled(lambda status: status.state.small is not None)
        cluster._put(cluster._pod(f"{job.name}-worker-2", 2, "node-9", PodPhase.RUNNING))
        await world.look()
        await world.settled(lambda status: status.state.small is None)


class AwayLater(ScriptedCluster):
    """Cluster that forbids to follow pods."""

    forbids = True

    async def follow(self, job_id: str) -> AsyncGenerator[Sequence[Pod], None]:
        if self.forbids:
            raise Forbidden("pods is forbidden")
        async for pods in super().follow(job_id):
            yield pods


async def test_a_job_whose_new_pods_cannot_be_seen_trains_on(temporal: WorkflowEnvironment) -> None:
    """Nothing of training was touched, so that nothing is restarted."""
    job = soon()
    cluster = AwayLater(job, nodes=job.pods)
    cluster.spare = False
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, peer):
        await world.look()
        await lose(world, 2)
        await world.incident()
        cluster._put(cluster._pod(f"{job.name}-worker-2", 2, "node-9", PodPhase.RUNNING))
        await world.look()
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, IGNORED)]
        assert "pods is forbidden" in incident.ladder[0].reason
        assert (peer.state, await missing(world)) == ("trains", (2,))


async def test_a_standby_brings_a_missing_rank_back(temporal: WorkflowEnvironment) -> None:
    """The standby learns its rank from the order."""
    async with small(temporal, Script(repairs=OFFERS), free=False, standbys=1) as (world, peer):
        world.cluster.node_names.append("node-9")
        world.cluster.spare = True
        await world.settled(lambda status: status.state.small is None)
        order = next(order for order in peer.received if order.changeStrategy == "upgrade")
        assert '"scale-out-strategy": "DP"' in order.extraParams


async def test_an_attempt_that_a_person_terminates_while_it_waits_for_a_node_costs_nothing(temporal: WorkflowEnvironment) -> None:
    """The job trains small still, the pod that waits is deleted, and the next attempt comes later."""
    job = elastic(limits={"grow_again": timedelta(seconds=1)})
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        await lose(world, 2)
        await world.incident()
        await world.phase("new pods start")
        await world.settled(lambda _: any("-hot-" in name for name in world.cluster.pods_by_name))
        await (await world.running()).terminate("by hand")
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, IGNORED)]
        assert incident.ladder[0].reason.endswith("it had ordered nothing, and training goes on as before")
        assert not [name for name in world.cluster.pods_by_name if "-hot-0002" in name]
        assert (peer.carried_out, await missing(world)) == (["downgrade"], (2,))
        await world.settled(lambda status: status.state.incidents == 3)


async def test_an_attempt_that_a_person_terminates_while_ranks_come_back_is_carried_out_again(
    temporal: WorkflowEnvironment,
) -> None:
    """Nobody knows how far the attempt came. The same pods take over, and there is one pod for each rank."""
    async with small(temporal, Script(repairs=OFFERS)) as (world, peer):

        async def terminated(strategy: str) -> None:
            if strategy == "upgrade" and peer.carried_out.count("upgrade") == 1:
                await world.recovery.terminate("by hand")

        peer.script.before_status = terminated
        await world.running()
        incident = await world.incident(2)
        assert ladder(incident) == [(GROWS, ESCALATE), (GROWS, RECOVERED)]
        assert incident.ladder[0].reason.endswith("it is carried out again")
        assert peer.carried_out == ["downgrade", "upgrade", "upgrade"]
        assert len(world.cluster.pods_by_name) == 4
        assert await missing(world) == ()


def test_an_attempt_that_outlives_its_deadline_untouched_restarts_nothing() -> None:
    """So it is after a long absence of the control plane, while a pod waited for a node. A fault meanwhile leads on."""
    child = Child(GROWS, Case(plan=Plan(modes=(GROWS, RESTART)), summary="back", replicas=4), 1, elastic())
    child._late = True
    untouched = Verdict(mode=GROWS, outcome=CANCELLED, reason="cancelled by request, before training was stopped")
    assert child._judged(untouched).outcome is IGNORED
    assert child._judged(untouched.with_(training=Training.FAULTED)).outcome is ESCALATE


async def test_a_storm_keeps_a_job_from_growing(temporal: WorkflowEnvironment) -> None:
    """Growth moves pods, and nothing is urgent about it. It begins when the storm is over."""
    job = soon()
    cluster = ScriptedCluster(job, nodes=6)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, _peer):
        cluster.spare = False
        await storm(world, "20 of 40 nodes report faults")
        await lose(world, 2)
        await world.settled(lambda status: status.state.small is not None)
        cluster.spare = True
        await world.skip(timedelta(minutes=1), world.entity)
        status = await world.status()
        assert (status.running, status.state.incidents) == (None, 1)
        await storm(world, "")
        await world.settled(lambda status: status.state.small is None)


async def storm(world: Harness, words: str) -> None:
    """Sends the state of the pods with the words of a storm, as the watcher does."""
    request = SurveyRequest(job_id=world.job.id, nodes=())
    survey = await ActivityEnvironment().run(PodActivities(world.cluster).survey, request)
    await world.tell(ids.Updates.SIGHTING, survey.sighting.model_copy(update={"storm": words}))
