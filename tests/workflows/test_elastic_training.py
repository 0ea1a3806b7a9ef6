"""Elastic training as a recovery: faulty pods leave, and training goes on without them. Success, failures, limits, further
faults."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio.testing import WorkflowEnvironment

from rekindle.model.cluster import PodPhase
from rekindle.model.elastic import Elastic
from rekindle.model.job import Job
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, node_fault, training
from tests.workflows.support.openings import SHORT, fields
from tests.workflows.test_process_level import ELSEWHERE, ESCALATE, IN_PLACE, RECOVERED, RESTART, RETRY, SAVE, ladder

SMALLER = Mode.ELASTIC_TRAINING
OFFERS = ("recover", "downgrade")


def elastic(least: int = 2, wait: float = 0, **changes: Any) -> Job:
    """Returns a job of four pods that may train with two, and does not wait for spare nodes."""
    limits = {"grow_again": timedelta(hours=1), **changes.pop("limits", {})}
    size = Elastic(least=least, wait=timedelta(seconds=wait))
    return a_job(**{"pods": 4, "annotations": {}, "elastic": size, "limits": Limits(**limits), **changes})


def without_spare(job: Job) -> ScriptedCluster:
    """Returns a cluster with as many nodes as the job has pods."""
    cluster = ScriptedCluster(job, nodes=job.pods)
    cluster.spare = False
    return cluster


async def lose(world: Harness, pod_rank: int) -> None:
    """Loses the node of a pod rank."""
    node = f"node-{pod_rank}"
    await world.fault(node_fault(node, f"lost {node}").model_copy(update={"pod_ranks": (pod_rank,)}))


async def missing(world: Harness) -> tuple[int, ...]:
    small = (await world.status()).state.small
    return small.missing if small else ()


async def test_the_pod_of_a_lost_node_leaves_and_training_goes_on(temporal: WorkflowEnvironment) -> None:
    """One order names it, its pod is deleted, no step is lost, and the state of the job says what is missing since when."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        await world.look()
        await lose(world, 2)
        incident = await world.incident()
        assert ladder(incident) == [(SMALLER, RECOVERED)]
        assert fields(peer.received[-1]) == (
            *("changeStrategy", ["change_strategy"], ["4:1", "5:1"], "downgrade", 0, ["2"]),
            '{"scale-in-strategy": "DP"}',
        )
        assert incident.ladder[0].steps_lost == 0
        state = (await world.status()).state
        assert state.small
        assert (state.small.missing, state.small.nodes, state.faults) == ((2,), ("node-2",), ())
        assert state.holders[2] == ""
        assert [write.split()[0] for write in world.cluster.writes] == ["kill"]


async def test_the_whole_pod_of_one_faulty_rank_leaves(temporal: WorkflowEnvironment) -> None:
    """A process that died is started again in its pod first. If that fails, its pod leaves."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS, statuses=[406]), without_spare(job)) as (world, peer):
        await peer.report_fault(7)
        incident = await world.incident()
        assert ladder(incident) == [(IN_PLACE, ESCALATE), (SMALLER, RECOVERED)]
        assert list(peer.received[-1].nodeRankIds) == ["3"]
        assert await missing(world) == (3,)


async def test_a_spare_node_is_sought_first_for_as_long_as_the_owner_wants(temporal: WorkflowEnvironment) -> None:
    """A new pod that gets no node is deleted, and training goes on without it."""
    job = elastic(wait=SHORT.total_seconds())
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _peer):
        await lose(world, 2)
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (SMALLER, RECOVERED)]
        assert "no spare" in incident.ladder[0].reason
        assert "within 0.3 s" in incident.ladder[0].reason
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]


async def test_a_spare_node_that_is_free_is_taken_before_the_job_gets_smaller(temporal: WorkflowEnvironment) -> None:
    """The owner's wait is not used up."""
    job = elastic(wait=60)
    cluster = ScriptedCluster(job, nodes=5)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, _peer):
        await lose(world, 2)
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]
        assert await missing(world) == ()


async def test_a_standby_takes_over_although_the_owner_waits_for_no_spare(temporal: WorkflowEnvironment) -> None:
    """A standby that runs takes the rank, so that there is nothing to wait for."""
    job = elastic(standbys=1)
    cluster = ScriptedCluster(job, nodes=5)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, _peer):
        await world.settled(lambda status: any(one.runs for one in status.state.standbys))
        await lose(world, 2)
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]


async def test_a_job_of_the_least_size_is_not_made_smaller(temporal: WorkflowEnvironment) -> None:
    """The job is restarted. The verdict says why it did not go on with fewer replicas."""
    job = elastic(least=4, limits={"replacement_scheduled": SHORT})
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        await lose(world, 2)
        incident = await world.restarted()
        assert incident.ladder[-1].mode is RESTART
        assert "downgrade" not in peer.orders


async def test_a_training_side_that_cannot_change_its_size_says_so_and_goes_on_otherwise(temporal: WorkflowEnvironment) -> None:
    """The next mode of the ladder saves the state, and the job is restarted."""
    job = elastic()
    async with training(temporal, job, Script(repairs=("recover",)), without_spare(job)) as (world, _peer):
        await lose(world, 2)
        incident = await world.restarted()
        assert ladder(incident) == [(SMALLER, ESCALATE), (SAVE, ESCALATE), (RESTART, RECOVERED)]
        assert "406" in incident.ladder[0].reason
        assert await missing(world) == ()


async def test_no_answer_within_the_limit_leads_to_a_restart(temporal: WorkflowEnvironment) -> None:
    """The state of training is unknown, so that nothing is saved either."""
    job = elastic()
    script = Script(repairs=OFFERS, resumes=False)
    async with training(temporal, job, script, without_spare(job)) as (world, peer):
        await lose(world, 2)
        await peer.until(lambda: "downgrade" in peer.orders)
        await world.phase("training goes on with fewer pods")
        await world.skip(timedelta(minutes=15, seconds=1))
        incident = await world.restarted()
        assert ladder(incident) == [(SMALLER, ESCALATE), (RESTART, RECOVERED)]
        assert incident.ladder[0].reason == "no report of downgrade within 900 s"


async def test_a_pod_that_is_lost_meanwhile_leaves_with_the_first(temporal: WorkflowEnvironment) -> None:
    """The training side refuses the first order, since another rank is gone. The second one names both."""
    job = elastic()
    script = Script(repairs=OFFERS, statuses=[406])
    async with training(temporal, job, script, without_spare(job)) as (world, peer):

        async def another(_: str) -> None:
            if len(peer.received) == 1:
                await lose(world, 1)

        script.before_status = another
        await lose(world, 2)
        assert ladder(await world.incident()) == [(SMALLER, RECOVERED)]
        assert list(peer.received[-1].nodeRankIds) == ["1", "2"]
        assert await missing(world) == (1, 2)


async def test_too_many_pods_that_are_lost_meanwhile_restart_the_job(temporal: WorkflowEnvironment) -> None:
    """Too few would be left. A spare node is sought then for as long as for any other job."""
    job = elastic(least=3, limits={"replacement_scheduled": SHORT})
    script = Script(repairs=OFFERS, statuses=[406])
    async with training(temporal, job, script, without_spare(job)) as (world, peer):

        async def another(_: str) -> None:
            if len(peer.received) == 1:
                await lose(world, 1)

        script.before_status = another
        await lose(world, 2)
        incident = await world.restarted()
        assert ladder(incident)[:2] == [(SMALLER, ESCALATE), (ELSEWHERE, ESCALATE)]
        assert incident.ladder[0].reason.startswith("2 of 4 replicas would be left, its owner wants 3 or more")


async def test_a_second_fault_while_small_is_recovered_by_every_mode_that_fits(temporal: WorkflowEnvironment) -> None:
    """A memory fault, a process that died, and another lost node. The missing pod is a fault of none of them."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        await lose(world, 2)
        await world.incident()
        await peer.report_fault(3, kind="0")
        assert ladder(await world.incident(2)) == [(RETRY, RECOVERED)]
        await peer.report_fault(3)
        assert ladder(await world.incident(3)) == [(IN_PLACE, RECOVERED)]
        await lose(world, 3)
        assert ladder(await world.incident(4)) == [(SMALLER, RECOVERED)]
        assert [list(order.nodeRankIds) for order in peer.received[1:]] == [["1"], ["1"], ["3"]]
        assert await missing(world) == (2, 3)


async def test_a_restart_brings_all_replicas_back(temporal: WorkflowEnvironment) -> None:
    """A second fault that leaves too few ends in a restart of all pods, which is never stuck."""
    job = elastic(least=3, limits={"replacement_scheduled": SHORT})
    cluster = without_spare(job)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, _peer):
        await lose(world, 2)
        await world.incident()
        await lose(world, 3)
        incident = await world.restarted(number=2)
        assert incident.ladder[-1].mode is RESTART
        assert await missing(world) == ()


async def test_the_missing_pod_is_no_fault_whatever_the_cluster_shows_of_it(temporal: WorkflowEnvironment) -> None:
    """Neither a failed pod of its rank, nor its absence, nor its lost node begins an incident."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _peer):
        await world.look()
        await lose(world, 2)
        await world.incident()
        await world.look("node-2")
        state = (await world.status()).state
        assert (state.faults, state.incidents) == ((), 1)
        assert state.holders[2] == ""


async def test_a_job_whose_workflow_was_lost_is_small_still(temporal: WorkflowEnvironment) -> None:
    """The missing pods are remembered on the job's object."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _peer):
        await lose(world, 2)
        await world.incident()
        await world.noted("rekindle.io/memory", '"missing":"2"')


async def test_a_mode_that_a_person_terminates_is_carried_out_again(temporal: WorkflowEnvironment) -> None:
    """Training may go on small already, which the state of the job has to say."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):

        async def terminated(strategy: str) -> None:
            if peer.carried_out == [strategy]:
                await (await world.running()).terminate("by hand")

        peer.script.before_status = terminated
        await lose(world, 2)
        incident = await world.incident()
        assert ladder(incident) == [(SMALLER, ESCALATE), (SMALLER, RECOVERED)]
        assert peer.carried_out == ["downgrade", "downgrade"]
        assert await missing(world) == (2,)


async def test_a_pod_that_has_left_and_cannot_be_deleted_is_deleted_later(temporal: WorkflowEnvironment) -> None:
    """The pod holds its node until then. A pod that others have made for its rank stays."""
    job = elastic()
    cluster = without_spare(job)
    old = f"{job.name}-worker-2"
    cluster.undeletable.add(old)
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, _peer):
        await world.look()
        await lose(world, 2)
        incident = await world.incident()
        assert ladder(incident) == [(SMALLER, RECOVERED)]
        assert "their pods could not be deleted" in incident.ladder[0].reason
        cluster.undeletable.clear()
        made = cluster._put(cluster._pod(f"{job.name}-made-again-2", 2, "", PodPhase.PENDING))
        await world.skip(timedelta(minutes=1, seconds=1), world.entity)
        await world.settled(lambda _: old not in cluster.pods_by_name)
        assert made.metadata.name in cluster.pods_by_name


class Silent(ScriptedCluster):
    """Cluster that never answers a request to delete a pod."""

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        await asyncio.Event().wait()


async def test_a_fault_does_not_wait_until_the_pods_that_have_left_are_deleted(temporal: WorkflowEnvironment) -> None:
    """Training stands, and the cluster may not answer for minutes. The pods are deleted later."""
    job = elastic()
    cluster = Silent(job, nodes=job.pods)
    cluster.spare = False
    async with training(temporal, job, Script(repairs=OFFERS), cluster) as (world, peer):
        await world.look()
        await lose(world, 2)
        await world.phase("pods that have left are deleted")
        await peer.report_fault(0)
        incident = await world.incident()
        assert ladder(incident) == [(SMALLER, RECOVERED)]
        assert "their pods are deleted later: a fault comes first" in incident.ladder[0].reason
        assert ladder(await world.incident(2)) == [(IN_PLACE, RECOVERED)]
        state = (await world.status()).state
        assert state.small
        assert state.small.lingering == (2,)


async def test_a_client_that_starts_the_mode_by_itself_is_refused_while_all_is_well(temporal: WorkflowEnvironment) -> None:
    """A front of the mode is refused while nothing of the job is faulty."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _peer):
        front = await world.front(None, mode="ElasticTraining")
        verdict = await front.result()
        assert verdict.outcome is Outcome.REFUSED
        assert "nothing of it is known to be faulty" in verdict.reason
