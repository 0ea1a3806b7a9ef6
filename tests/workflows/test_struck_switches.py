"""A fault strikes in each phase of a hot switch of ours: the cheapest mode mends it, and the pod is switched afterwards."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from activities.pods import PodActivities
from rekindle.model.activities.pods import BackupRequest
from rekindle.model.incident import Incident
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, pod_fault, sub_health, training
from tests.workflows.support.openings import SHORT

SWITCH, RETRY, IN_PLACE, RESTART = Mode.HOT_SWITCH, Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.JOB_RESCHEDULING
RECOVERED, ESCALATE, CANCELLED = Outcome.RECOVERED, Outcome.ESCALATE, Outcome.CANCELLED
SURVIVOR = 0
"""A rank that is not switched."""
NETWORK = "2"

Scene = Callable[[Harness, ScriptedPeer], Coroutine[Any, Any, None]]


def ours(**limits: timedelta) -> Job:
    """Returns a job whose owner restricts nothing: every strategy is allowed."""
    return a_job(annotations={}, limits=Limits(**limits))


def ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


async def _while_the_training_side_prepares(_world: Harness, peer: ScriptedPeer) -> None:
    struck: list[asyncio.Task[int]] = []

    def strike(order: str) -> None:
        if order == "hot switch" and not struck:
            struck.append(asyncio.create_task(peer.report_fault(SURVIVOR)))

    peer.script.on_order = strike


async def _while_the_backup_is_scheduled(world: Harness, peer: ScriptedPeer) -> None:
    world.cluster.spare = False
    await world.phase("backup pod is scheduled")
    await peer.report_fault(SURVIVOR)
    world.cluster.spare = True


async def _while_the_backup_starts(world: Harness, peer: ScriptedPeer) -> None:
    world.cluster.backup_starts = False
    await world.phase("backup pod runs")
    await peer.report_fault(SURVIVOR)
    world.cluster.backup_starts = True


async def _while_the_backup_loads(_world: Harness, peer: ScriptedPeer) -> None:
    peer.script.pauses = False
    await peer.until(lambda: "new pod running" in peer.orders)
    await peer.report_fault(SURVIVOR)
    peer.script.pauses = True


async def _behind_the_pause(world: Harness, peer: ScriptedPeer) -> None:
    """Lets the fault come before the order to migrate, while the stream is away."""
    peer.script.pauses = False
    await peer.until(lambda: "new pod running" in peer.orders)
    await peer.cut()
    await world.settled(lambda status: status.state.attachment is None)
    await peer.pause()
    await world.phase("training resumes")
    await peer.report_fault(SURVIVOR)
    peer.script.pauses = True
    await peer.attach()


async def _in_the_rebuild(_world: Harness, peer: ScriptedPeer) -> None:
    peer.script.resumes = False
    await peer.until(lambda: "migration" in peer.orders)
    await peer.report_fault(SURVIVOR)
    peer.script.resumes = True
    await peer.resume(406)


PREPARED = ["hot switch", "new pod running"]
SCENES: dict[str, tuple[Scene, list[str]]] = {
    "the training side prepares": (_while_the_training_side_prepares, ["hot switch"]),
    "the backup is scheduled": (_while_the_backup_is_scheduled, ["hot switch"]),
    "the backup starts": (_while_the_backup_starts, ["hot switch"]),
    "the backup loads": (_while_the_backup_loads, PREPARED),
    "training is paused": (_behind_the_pause, [*PREPARED, "migration"]),
    "the rebuild": (_in_the_rebuild, [*PREPARED, "migration"]),
}


@pytest.mark.parametrize("phase", SCENES)
async def test_a_fault_in_any_phase_goes_to_the_cheapest_mode_and_the_pod_is_switched_afterwards(
    temporal: WorkflowEnvironment, phase: str
) -> None:
    """The process starts again in its pod, the backup is deleted, no pod of the job is touched, and the policy stays."""
    scene, ordered = SCENES[phase]
    async with training(temporal, ours()) as (world, peer):
        before = [world.cluster.holder(rank).metadata.uid for rank in (0, 1)]
        striking = asyncio.create_task(scene(world, peer))
        await world.fault(sub_health())
        await striking
        first = await world.incident(1)
        assert ladder(first) == [(SWITCH, CANCELLED), (IN_PLACE, RECOVERED)], first
        assert "a real fault comes first" in first.ladder[0].reason
        assert first.policy_after is SubHealthStrategy.HOT_SWITCH
        second = await world.incident(2)
        assert ladder(second) == [(SWITCH, RECOVERED)], second
        assert peer.carried_out == [*ordered, "recover", *PREPARED, "migration"]
        assert world.cluster.holder(0).metadata.uid == before[0]
        assert world.cluster.holder(1).metadata.uid != before[1]
        assert not [name for name in world.cluster.pods_by_name if name.endswith("hot-0001")]
        assert (await world.status()).state.faults == ()


async def test_a_fault_that_comes_when_training_has_resumed_is_the_next_incident(temporal: WorkflowEnvironment) -> None:
    """The backup holds the rank by then: the switch is finished first."""
    async with training(temporal, ours(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        backup = world.cluster.backup().metadata.uid
        await peer.report_fault(SURVIVOR)
        peer.script.resumes = True
        await peer.resume()
        first = await world.incident(1)
        assert ladder(first) == [(SWITCH, RECOVERED)], first
        assert ladder(await world.incident(2)) == [(IN_PLACE, RECOVERED)]
        assert world.cluster.holder(1).metadata.uid == backup


async def test_a_fault_behind_the_pause_does_not_wait_for_an_answer_for_long(temporal: WorkflowEnvironment) -> None:
    """The training side may be stuck in the rebuild for a node that it does not know to be lost."""
    async with training(temporal, ours(order=SHORT), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        await peer.report_fault(SURVIVOR)
        peer.script.resumes = True
        assert ladder(await world.incident()) == [(SWITCH, CANCELLED), (IN_PLACE, RECOVERED)]


async def test_a_resumption_that_fails_without_a_fault_ends_with_a_repeated_step(temporal: WorkflowEnvironment) -> None:
    """Ours stands and blames the network: no process has to end. What failed is the switch, so that sub-health is ignored."""
    script = Script(status=406)
    async with training(temporal, ours(), script) as (world, peer):

        async def repairs(_: str) -> None:
            script.status = 0

        script.before_status = repairs
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        await peer.report_fault(SURVIVOR, kind=NETWORK)
        incident = await world.incident()
        assert ladder(incident) == [(SWITCH, ESCALATE), (RETRY, RECOVERED)], incident
        assert "reports 406" in incident.ladder[0].reason
        assert incident.policy_after is SubHealthStrategy.IGNORE
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]


async def test_a_backup_that_dies_when_it_has_taken_over_is_a_fault_of_its_ranks(temporal: WorkflowEnvironment) -> None:
    """The old pod is not deleted: the processes of the ranks start again there, or still stand there."""
    job = ours()
    cluster = ScriptedCluster(job)
    old = cluster.holder(1).metadata.uid
    async with training(temporal, job, Script(resumes=False), cluster) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        backup = cluster.fail(cluster.backup().metadata.name, "uncorrectable memory error")
        await world.fault(pod_fault(backup.metadata.name, backup.metadata.uid, backup=True))
        peer.script.resumes = True
        await peer.resume()
        await peer.report_fault(2, 3)
        incident = await world.incident(1)
        assert ladder(incident) == [(SWITCH, CANCELLED), (IN_PLACE, RECOVERED)], incident
        assert "the backup pod died when it had taken over" in incident.ladder[0].reason
        assert cluster.holder(1).metadata.uid == old


async def test_a_fault_of_a_process_does_not_wait_for_a_cluster_that_does_not_answer(temporal: WorkflowEnvironment) -> None:
    """A fault that the training side reports is not looked up in the cluster, and its process starts again without it."""
    async with training(temporal, ours(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        world.cluster.unreachable = True
        await peer.report_fault(SURVIVOR)
        assert ladder(await world.incident()) == [(SWITCH, CANCELLED), (IN_PLACE, RECOVERED)]


async def test_who_is_switched_is_the_pod_that_lives() -> None:
    """The switched pod is not a failed one that could not be deleted. Another pod has its rank, so that both would carry it."""
    job = ours()
    cluster = ScriptedCluster(job, nodes=5)
    failed = cluster.fail(cluster.holder(1).metadata.name)
    backup = await cluster.ensure_backup(failed, "taken-over", ())
    await cluster.ensure_promoted(job.id, backup.metadata.name, backup.metadata.uid)
    request = BackupRequest(job_id=job.id, pod_rank=1, name_suffix="0002", avoid_nodes=())
    made = await ActivityEnvironment().run(PodActivities(cluster).ensure_backup, request)
    assert made.old.name == "taken-over"
