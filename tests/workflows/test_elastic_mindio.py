"""Elastic training of a MindIO job: the recorded dialogue, and the cases in which the replaced system is stuck."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.client import Rekindle
from rekindle.errors import Refused
from rekindle.model.elastic import Elastic
from rekindle.model.incident import Begun
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import TheirCluster
from tests.support.harness import Harness, a_mindio_job, training
from tests.workflows.support.openings import fields
from tests.workflows.test_elastic_training import SMALLER, missing
from tests.workflows.test_lost_reports import loses_its_status
from tests.workflows.test_process_level import DONE, ESCALATE, QUICK, RECOVERED, RESTART, SAVE, ladder

GROWS = Mode.SCALING
OFFERS = ("recover", "downgrade", "upgrade")


def mindio(**changes: Any) -> Job:
    """Returns a job whose owner allows elastic training as MindCluster spells it."""
    limits = QUICK.model_copy(update={"grow_again": timedelta(hours=1), **changes.pop("limits", {})})
    words = {RECOVER_STRATEGY: "elastic-training,dump"}
    values = {"pods": 4, "annotations": words, "elastic": Elastic(), "limits": limits}
    return a_mindio_job(**{**values, **changes})


@asynccontextmanager
async def struck(
    temporal: WorkflowEnvironment, script: Script, **changes: Any
) -> AsyncIterator[tuple[Harness, ScriptedPeer, TheirCluster]]:
    """Runs a job that reports a faulty rank of pod rank 3. The pods of its agents that leave are not made again yet."""
    job = mindio(**changes)
    cluster = TheirCluster(job, nodes=6)
    cluster.late = {0, 1, 2, 3}
    async with training(temporal, job, script, cluster) as (world, peer):
        await world.look()
        await peer.report_fault(6)
        yield world, peer, cluster


async def until_restart(world: Harness, number: int = 1) -> Begun:
    """Waits until this incident restarts the job, and returns what it has tried before."""
    status = await world.settled(lambda status: status.state.incidents == number and status.running is RESTART)
    assert status.begun
    return status.begun


def tried(begun: Begun) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in begun.ladder]


async def test_the_dialogue_is_the_recorded_one(temporal: WorkflowEnvironment) -> None:
    """Stop, announcement, `downgrade`, its choice, `fault_nodes_exit`, and later `upgrade` under the same uuid."""
    async with struck(temporal, Script(repairs=OFFERS)) as (world, peer, cluster):
        incident = await world.incident()
        assert ladder(incident) == [(SMALLER, RECOVERED)]
        assert await missing(world) == (3,)
        cluster.late.clear()
        for pod in [pod for pod in cluster.pods_by_name.values() if pod.metadata.annotations["hccl/rankIndex"] == "3"]:
            await cluster.ensure_deleted(world.job.id, pod.metadata.name, pod.metadata.uid, 0)
        await world.look()
        assert ladder(await world.incident(2)) == [(GROWS, RECOVERED)]
        state = (await world.status()).state
        assert (state.small, state.faults) == (None, ())
        faulty = ["6:1", "7:1"]
        assert [fields(order) for order in peer.received] == [
            ("stopTrain", ["stop_train"], ["6:1"], "", 0, [], ""),
            ("globalFault", ["on_global_rank", "fault_nodes_exit"], faulty, "", 0, ["3"], ""),
            ("changeStrategy", ["change_strategy"], faulty, "downgrade", 0, ["3"], '{"scale-in-strategy": "DP"}'),
            ("faultNodesExit", ["fault_nodes_exit"], [], "", 0, [], ""),
            ("changeStrategy", ["change_strategy"], faulty, "upgrade", 0, ["3"], '{"scale-out-strategy": "DP"}'),
        ]
        assert len({order.uuid for order in peer.received}) == 1


async def test_a_mode_that_a_person_terminates_leads_to_a_restart(temporal: WorkflowEnvironment) -> None:
    """Pods may have left, and the order cannot be given again. No process may take a rank that has left."""
    script = Script(repairs=OFFERS)
    async with struck(temporal, script) as (world, _peer, _cluster):

        async def terminated(strategy: str) -> None:
            await (await world.running()).terminate("by hand")

        script.before_status = terminated
        assert tried(await until_restart(world)) == [(SMALLER, ESCALATE)]


async def test_further_ranks_that_it_chooses_leave_with_the_faulty_ones(temporal: WorkflowEnvironment) -> None:
    """Pods of these ranks are named once, and are missing too."""
    async with struck(temporal, Script(repairs=OFFERS, isolates=(2,))) as (world, peer, _cluster):
        assert ladder(await world.incident()) == [(SMALLER, RECOVERED)]
        assert list(peer.received[-1].nodeRankIds) == ["1"]
        assert await missing(world) == (1, 3)


async def test_a_part_of_the_missing_replicas_does_not_come_back(temporal: WorkflowEnvironment) -> None:
    """MindIO takes all of them back in one step of the dialogue, so that a size in between is refused."""
    async with struck(temporal, Script(repairs=OFFERS, isolates=(2,))) as (world, peer, _cluster):
        await world.incident()
        orders = len(peer.received)
        with pytest.raises(Refused, match="takes all missing replicas back together: accepted is 4"):
            await Rekindle(world.client).scale(world.job.id, replicas=3)
        assert len(peer.received) == orders


async def test_success_without_a_choice_of_ranks_is_success(temporal: WorkflowEnvironment) -> None:
    """The replaced system waits for ever."""
    async with struck(temporal, Script(repairs=OFFERS, isolates=None)) as (world, peer, _cluster):
        assert ladder(await world.incident()) == [(SMALLER, RECOVERED)]
        assert peer.carried_out == [*DONE, "downgrade"]
        assert await missing(world) == (3,)


@pytest.mark.parametrize(("code", "saves"), [(406, [(SAVE, ESCALATE)]), (499, [])])
async def test_a_failure_ends_in_a_restart(temporal: WorkflowEnvironment, code: int, saves: list[Any]) -> None:
    """State is still saved after 406. MindIO leaves after 499."""
    async with struck(temporal, Script(repairs=OFFERS, statuses=[code])) as (world, _peer, cluster):
        cluster.late.clear()
        assert tried(await until_restart(world)) == [(SMALLER, ESCALATE), *saves]


async def test_too_few_ranks_after_its_choice_restart_the_job(temporal: WorkflowEnvironment) -> None:
    """The owner's least size holds."""
    script = Script(repairs=OFFERS, isolates=(2,))
    async with struck(temporal, script, elastic=Elastic(least=3)) as (world, _peer, cluster):
        cluster.late.clear()
        begun = await until_restart(world)
        assert tried(begun) == [(SMALLER, ESCALATE)]
        assert "the training side has chosen more pods to leave: 2 of 4 replicas would be left" in begun.ladder[0].reason


async def test_an_outage_between_its_choice_and_its_answer_costs_no_step(temporal: WorkflowEnvironment) -> None:
    """The client does not repeat its answer. It is asked, and can only save its state while ranks are missing: the job is
    restarted from there, after three minutes and not after fifteen."""
    async with struck(temporal, Script(repairs=OFFERS)) as (world, peer, cluster):

        def lost(order: str) -> None:
            if order == "fault_nodes_exit":
                peer.script.loses.add("status")

        peer.script.on_order = lost
        await loses_its_status(world, peer, "fault_nodes_exit", "training goes on with fewer pods")
        cluster.late.clear()
        await world.skip(timedelta(minutes=3, seconds=1))
        begun = await until_restart(world)
        assert tried(begun) == [(SMALLER, ESCALATE), (SAVE, ESCALATE)]
        assert begun.ladder[0].reason == "its report was lost in an outage, and training can only save its state"
        assert peer.carried_out[-1] == "dump"


async def test_a_second_fault_while_small_ends_in_a_restart(temporal: WorkflowEnvironment) -> None:
    """MindIO offers nothing but to save then, and the replaced system is stuck."""
    async with struck(temporal, Script(repairs=OFFERS)) as (world, peer, cluster):
        await world.incident()
        await peer.report_fault(0)
        cluster.late.clear()
        found = tried(await until_restart(world, 2))
        assert found[-1] == (SAVE, ESCALATE)
        assert peer.carried_out[-1] == "dump"


async def test_ranks_that_cannot_come_back_end_in_a_restart(temporal: WorkflowEnvironment) -> None:
    """Training stands after a return that failed, saves its state, and begins again with all pods."""
    async with struck(temporal, Script(repairs=OFFERS, statuses=[0, 406])) as (world, _peer, cluster):
        await world.incident()
        cluster.late.clear()
        for pod in [pod for pod in cluster.pods_by_name.values() if pod.metadata.annotations["hccl/rankIndex"] == "3"]:
            await cluster.ensure_deleted(world.job.id, pod.metadata.name, pod.metadata.uid, 0)
        await world.look()
        assert tried(await until_restart(world, 2)) == [(GROWS, ESCALATE), (SAVE, ESCALATE)]
