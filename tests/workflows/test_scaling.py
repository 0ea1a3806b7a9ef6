"""Scaling by request, and before a node goes away. Success, refusals, failures."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.client import Rekindle
from rekindle.errors import BadInput, Refused
from rekindle.ids import Updates
from rekindle.model.fault import Decided, Fault
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.keys import ELASTIC
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, a_mindio_job, sub_health, training
from tests.workflows.support.openings import SHORT
from tests.workflows.test_elastic_training import OFFERS, elastic, lose, missing, without_spare
from tests.workflows.test_process_level import ESCALATE, IN_PLACE, RECOVERED, RESTART, ladder

SCALES, SWITCH = Mode.SCALING, Mode.HOT_SWITCH


def leaves(pod_rank: int) -> Fault:
    """Returns the fault of a node that is drained."""
    decided = Decided(rule="cordoned", saw="spec.unschedulable", maintenance=True)
    return sub_health(pod_rank, f"node-{pod_rank}").model_copy(update={"decided": decided})


async def scaled(world: Harness, replicas: int) -> Verdict:
    return await Rekindle(world.client).scale(world.job.id, replicas=replicas, requested_by="ada")


async def test_a_job_trains_with_fewer_pods_by_request_and_keeps_that_size(temporal: WorkflowEnvironment) -> None:
    """The last pods leave, without a fault and without a lost step. It does not grow by itself."""
    job = elastic(limits={"grow_again": timedelta(seconds=1)})
    async with training(temporal, job, Script(repairs=OFFERS), ScriptedCluster(job, nodes=6)) as (world, peer):
        verdict = await scaled(world, 2)
        assert (verdict.mode, verdict.outcome, verdict.steps_lost) == (SCALES, RECOVERED, 0)
        assert verdict.resized
        assert verdict.resized.left == (2, 3)
        assert (await world.incident()).ladder[-1].resized is None
        order = peer.received[-1]
        assert (order.changeStrategy, list(order.nodeRankIds), list(order.faultRanks)) == ("downgrade", ["2", "3"], [])
        assert sorted(pod.metadata.annotations["hccl/rankIndex"] for pod in world.cluster.pods_by_name.values()) == ["0", "1"]
        await world.skip(timedelta(minutes=5), world.entity)
        status = await world.status()
        assert (status.state.incidents, status.running) == (1, None)
        assert status.state.small
        assert status.state.small.by_hand


async def test_a_job_gets_its_pods_back_by_request(temporal: WorkflowEnvironment) -> None:
    """The size says which pods come back, the first ones first. The job with all of them is as it was started."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), ScriptedCluster(job, nodes=6)) as (world, peer):
        await scaled(world, 2)
        verdict = await scaled(world, 3)
        assert verdict.outcome is RECOVERED
        assert await missing(world) == (3,)
        assert (await scaled(world, 4)).outcome is RECOVERED
        assert (await world.status()).state.small is None
        assert [list(order.nodeRankIds) for order in peer.received] == [["2", "3"], ["2"], ["3"]]


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        (1, "replicas: 1 is below the least size of job gpt"),
        (5, "replicas: 5 is not a size of job gpt, which was started with 4, accepted are 2 to 4"),
        (0, "replicas: 0 is below the least size of job gpt"),
    ],
)
async def test_a_size_that_the_job_cannot_have_is_bad_input(temporal: WorkflowEnvironment, replicas: int, words: str) -> None:
    """The message names the field, and what is accepted."""
    job = elastic(name="gpt")
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        with pytest.raises(BadInput) as raised:
            await scaled(world, replicas)
        assert str(raised.value).startswith(words)
        assert "accepted are 2 to 4" in str(raised.value)
        assert peer.orders == []


async def test_a_request_without_a_size_is_bad_input(temporal: WorkflowEnvironment) -> None:
    """So is a size in a request for another mode."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _peer):
        rekindle = Rekindle(world.client)
        wrong: list[tuple[Mode, dict[str, Any], str]] = [
            (SCALES, {}, "replicas: missing, accepted are 2 to 4"),
            (RESTART, {"replicas": 2}, "replicas: not accepted, since a job rescheduling keeps the number of pods"),
        ]
        for mode, fields, words in wrong:
            handle = await rekindle.begin(mode, ModeRequest(job=job.id, **fields))
            with pytest.raises(BadInput, match=words):
                await rekindle.verdict(handle)


async def test_what_cannot_be_scaled_is_refused_with_what_is_missing(temporal: WorkflowEnvironment) -> None:
    """A job has that size, or its owner allows no other one."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        with pytest.raises(Refused, match="has 4 replicas already"):
            await scaled(world, 4)
        assert peer.orders == []
    fixed = a_job(pods=4, annotations={})
    async with training(temporal, fixed, cluster=without_spare(fixed)) as (world, peer):
        with pytest.raises(Refused, match=ELASTIC):
            await scaled(world, 3)
        assert peer.orders == []


async def test_a_framework_that_fixes_the_number_of_ranks_refuses_and_training_goes_on(temporal: WorkflowEnvironment) -> None:
    """The verdict has the words of the training side, which say what is missing. No pod is touched."""
    job = elastic()
    async with training(temporal, job, Script(repairs=("recover",)), without_spare(job)) as (world, peer):
        with pytest.raises(Refused, match="training goes on as before: scripted"):
            await scaled(world, 3)
        assert peer.state == "trains"
        assert world.cluster.writes == []
        assert await missing(world) == ()


async def test_mindio_goes_on_with_fewer_replicas_only_after_a_fault(temporal: WorkflowEnvironment) -> None:
    """A request is refused."""
    job = a_mindio_job(pods=4, elastic=elastic().elastic)
    async with training(temporal, job, cluster=without_spare(job)) as (world, peer):
        with pytest.raises(Refused, match="MindIO goes on with fewer replicas only after a fault"):
            await scaled(world, 3)
        assert peer.orders == []


async def test_a_size_that_would_free_no_node_is_refused(temporal: WorkflowEnvironment) -> None:
    """The controller of such a job creates another pod at once. A node that goes away is left all the same."""
    job = drained(refilled=True, kind="Job")
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        with pytest.raises(Refused, match="a smaller size would free no node: the controller of this Job creates another pod"):
            await scaled(world, 3)
        assert peer.orders == []
        await world.fault(leaves(2))
        assert ladder(await world.incident()) == [(SCALES, RECOVERED)]


async def test_a_change_of_the_size_that_a_person_terminates_is_carried_out_again(temporal: WorkflowEnvironment) -> None:
    """The requester gets the verdict of the second try."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):

        async def terminated(strategy: str) -> None:
            if peer.carried_out == [strategy]:
                await (await world.running()).terminate("by hand")

        peer.script.before_status = terminated
        verdict = await scaled(world, 3)
        assert (verdict.mode, verdict.outcome, verdict.asked) == (SCALES, RECOVERED, None)
        assert ladder(await world.incident()) == [(SCALES, ESCALATE), (SCALES, RECOVERED)]
        assert await missing(world) == (3,)


async def test_a_fault_while_pods_leave_by_request_comes_first(temporal: WorkflowEnvironment) -> None:
    """The training side refuses the order, and the ladder recovers the fault."""
    job = elastic()
    script = Script(repairs=OFFERS, statuses=[406])
    async with training(temporal, job, script, without_spare(job)) as (world, peer):

        async def strike(strategy: str) -> None:
            if strategy == "downgrade":
                await peer.report_fault(1)

        script.before_status = strike
        verdict = await scaled(world, 3)
        assert verdict.mode is IN_PLACE
        assert ladder(await world.incident()) == [(SCALES, Outcome.CANCELLED), (IN_PLACE, RECOVERED)]
        assert await missing(world) == ()


async def test_pods_that_leave_in_spite_of_a_fault_are_known_to_have_left(temporal: WorkflowEnvironment) -> None:
    """The training side carries the order out, and repeats the step that has failed. The job's state is that of training."""
    job = elastic()
    script = Script(repairs=OFFERS)
    async with training(temporal, job, script, without_spare(job)) as (world, peer):

        async def strike(strategy: str) -> None:
            if strategy == "downgrade":
                await peer.report_fault(1)
                await world.settled(lambda status: bool(status.state.faults))
                await world.recorded(await world.running(), "WORKFLOW_EXECUTION_SIGNALED")

        script.before_status = strike
        assert (await scaled(world, 3)).outcome is RECOVERED
        assert ladder(await world.incident()) == [(SCALES, RECOVERED)]
        assert await missing(world) == (3,)


async def test_the_recovery_of_a_fault_behind_a_change_of_the_size_is_another_attempt(temporal: WorkflowEnvironment) -> None:
    """A late answer to the order of the change is no answer to the next order of that strategy."""
    job = elastic(wait=SHORT.total_seconds())
    script = Script(repairs=OFFERS, statuses=[406])
    async with training(temporal, job, script, without_spare(job)) as (world, peer):

        async def strike(strategy: str) -> None:
            if strategy == "downgrade" and not (await world.status()).state.faults:
                await lose(world, 1)

        script.before_status = strike
        await scaled(world, 3)
        assert ladder(await world.incident())[0] == (SCALES, Outcome.CANCELLED)
        uuids = [order.uuid for order in peer.received if order.changeStrategy == "downgrade"]
        assert len(uuids) == 2
        assert await missing(world) == (1,)
        assert uuids[0] not in {order.uuid for order in peer.received[1:]}


async def test_no_answer_to_a_request_restarts_the_job(temporal: WorkflowEnvironment) -> None:
    """The state of training is unknown then."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS, resumes=False), without_spare(job)) as (world, peer):
        await world.front(None, mode="Scaling", size=3)
        await peer.until(lambda: "downgrade" in peer.orders)
        await world.phase("training goes on with fewer pods")
        await world.skip(timedelta(minutes=15, seconds=1))
        assert ladder(await world.restarted()) == [(SCALES, ESCALATE), (RESTART, RECOVERED)]


async def test_a_change_of_the_size_ends_with_its_job(temporal: WorkflowEnvironment) -> None:
    """The training side of a job that was deleted gives no answer, for which up to a quarter of an hour was waited."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS, resumes=False), without_spare(job)) as (world, peer):
        await world.front(None, mode="Scaling", size=3)
        await peer.until(lambda: "downgrade" in peer.orders)
        await world.tell(Updates.END, "the job was deleted")
        async with asyncio.timeout(60):
            assert (await world.entity.result())["reason"] == "the job was deleted"


def drained(**changes: Any) -> Job:
    return elastic(sub_health=SubHealthStrategy.HOT_SWITCH, **changes)


async def test_a_node_that_goes_away_is_left_before_it_goes(temporal: WorkflowEnvironment) -> None:
    """The pod leaves as there is no spare, no step is lost, and nothing of the job is on the node any more."""
    job = drained()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        await world.fault(leaves(2))
        incident = await world.incident()
        assert ladder(incident) == [(SCALES, RECOVERED)]
        assert peer.carried_out == ["downgrade"]
        assert await missing(world) == (2,)
        assert not [pod for pod in world.cluster.pods_by_name.values() if pod.spec.node_name == "node-2"]
        state = (await world.status()).state
        assert (state.faults, state.downgrade) == ((), None)
        assert state.small
        assert (state.small.nodes, state.small.by_hand) == (("node-2",), False)


async def test_a_hot_switch_is_tried_first_for_as_long_as_the_owner_wants(temporal: WorkflowEnvironment) -> None:
    """The hot switch finds no spare, and the pod leaves. The policy stays."""
    job = drained(wait=SHORT.total_seconds())
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _peer):
        await world.fault(leaves(2))
        incident = await world.incident()
        assert ladder(incident) == [(SWITCH, ESCALATE), (SCALES, RECOVERED)]
        assert "not scheduled within 0.3 s" in incident.ladder[0].reason
        assert (await world.status()).state.downgrade is None


async def test_a_script_that_needs_all_pods_is_switched_to_a_spare(temporal: WorkflowEnvironment) -> None:
    """The owner wants no wait for a spare, but training does not go on without the pod: a free node is sought."""
    job = drained()
    script = Script(repairs=("recover",))
    async with training(temporal, job, script, ScriptedCluster(job, nodes=6)) as (world, peer):
        await world.fault(leaves(2))
        incident = await world.incident()
        assert ladder(incident) == [(SCALES, ESCALATE), (SWITCH, RECOVERED)]
        assert "training goes on as before" in incident.ladder[0].reason
        assert peer.carried_out == ["downgrade", "hot switch", "new pod running", "migration"]
        assert await missing(world) == ()


async def test_a_script_that_needs_all_pods_holds_the_drain_without_a_spare(temporal: WorkflowEnvironment) -> None:
    """The hot switch waits its own limit for a node, and not the owner's. The job is not restarted."""
    job = drained(limits={"backup_scheduled": SHORT})
    async with training(temporal, job, Script(repairs=("recover",)), without_spare(job)) as (world, _peer):
        await world.fault(leaves(2))
        incident = await world.incident()
        assert ladder(incident) == [(SCALES, ESCALATE), (SWITCH, Outcome.IGNORED)]
        assert incident.ladder[1].reason.startswith("the drain waits: no spare: the backup pod was not scheduled within 0.3 s")


async def test_a_job_of_the_least_size_holds_the_drain_as_before(temporal: WorkflowEnvironment) -> None:
    """Training goes on there, and the switch is tried again later."""
    job = drained(least=4, limits={"backup_scheduled": SHORT})
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        await world.fault(leaves(2))
        incident = await world.incident()
        assert ladder(incident) == [(SWITCH, Outcome.IGNORED)]
        assert incident.ladder[0].reason.startswith("the drain waits: no spare")
        assert "downgrade" not in peer.orders


async def test_a_drain_of_a_node_while_small_leaves_it_too(temporal: WorkflowEnvironment) -> None:
    """The node is left as long as the least size is kept."""
    job = drained()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _peer):
        await lose(world, 3)
        await world.incident()
        await world.fault(leaves(2))
        assert ladder(await world.incident(2)) == [(SCALES, RECOVERED)]
        assert await missing(world) == (2, 3)
