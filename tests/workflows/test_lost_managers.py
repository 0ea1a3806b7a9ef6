"""A MindIO job whose manager is lost: another process answers, and knows none of the ranks."""

from datetime import timedelta

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.testing import WorkflowEnvironment

from rekindle.errors import BadInput
from rekindle.ids import Updates
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.dialogue import Receipt, Report, ReportKind
from rekindle.model.fault import WATCHER, Fault, FaultKind, Sighting
from rekindle.model.job import ManagerLost
from rekindle.model.keys import BACKUP_SOURCE, MANAGER_LOST, REPLICA_TYPE
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.dialogue.client_identity import Identity, identity
from tests.fakes.peer import Script
from tests.support.harness import RESUMES, Harness, a_job, a_mindio_job, harness, node_fault, sub_health, training


async def test_a_lost_manager_is_shown_and_training_goes_on(temporal: WorkflowEnvironment) -> None:
    """The default is to do nothing, since training itself is not disturbed. Page and event say what is lost."""
    async with training(temporal, a_mindio_job()) as (world, peer):
        await peer.restart_manager()
        event = await world.event("ManagerLost")
        assert "127.0.0.2 is another process than 127.0.0.1" in event.message
        assert "training goes on" in event.message
        status = await world.status()
        assert (status.state.manager_lost in event.message, status.state.incidents) == (True, 0)
        assert f"its manager was lost: {status.state.manager_lost}" in await _page(world)


async def test_a_manager_that_is_found_lost_by_a_look_is_told_too(temporal: WorkflowEnvironment) -> None:
    """The look of our own that comes before a restart finds that nothing is wrong any more, and another manager."""
    async with training(temporal, a_mindio_job()) as (world, _peer):
        await world.tell(Updates.SIGHTING, Sighting(manager="uid-1/8:00"))
        manager = world.cluster.holder(0)
        labels = {**manager.metadata.labels, REPLICA_TYPE: "manager"}
        meta = manager.metadata.model_copy(update={"name": "gpt-manager", "uid": "uid-2", "labels": labels})
        world.cluster.pods_by_name["gpt-manager"] = manager.model_copy(update={"metadata": meta})
        seen = Fault(id="n1", kind=FaultKind.POD, pod_ranks=(1,), source=WATCHER)
        await world.tell(Updates.SIGHTING, Sighting(manager="uid-1/8:00", faults=(seen,)))
        assert "manager uid-2/" in (await world.event("ManagerLost")).message
        assert (await world.status()).state.incidents == 0


async def test_a_job_whose_manager_was_lost_is_not_hot_switched(temporal: WorkflowEnvironment) -> None:
    """The manager knows no rank and reports no pause. A switch would wait for it, and then restart a job that trains."""
    async with training(temporal, a_mindio_job()) as (world, peer):
        await peer.restart_manager()
        await world.event("ManagerLost")
        await world.fault(sub_health())
        judged = await world.judged()
        assert judged.startswith("refused: ")
        assert "127.0.0.2 is another process than 127.0.0.1: it knows no rank" in judged
        assert (peer.orders, (await world.status()).state.incidents) == ([], 0)


async def test_a_restart_of_the_job_makes_it_switchable_again(temporal: WorkflowEnvironment) -> None:
    """The ranks of the new life have registered with the manager that is there."""
    async with training(temporal, a_mindio_job()) as (world, peer):
        await peer.restart_manager()
        await world.fault(sub_health())
        assert (await world.judged()).startswith("refused: ")
        await world.fault(node_fault("node-0"))
        await world.phase("training resumes from its last checkpoint")
        await world.attached_as("127.0.0.3")
        assert (await world.incident()).ladder[-1].mode is Mode.JOB_RESCHEDULING
        assert (await world.status()).state.manager_lost == ""


async def _page(world: Harness) -> str:
    """The job's page in the Temporal UI."""
    metadata: WorkflowMetadata = await world.entity.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


@pytest.mark.parametrize(
    ("choice", "outcome"),
    [(ManagerLost.LEAVE, Outcome.IGNORED), (ManagerLost.RESTART, Outcome.ESCALATE)],
)
async def test_a_manager_that_is_lost_before_training_pauses_ends_a_switch_by_the_owners_rule(
    temporal: WorkflowEnvironment, choice: ManagerLost, outcome: Outcome
) -> None:
    """The same holds as at any other time, and the policy stays: nothing is wrong with the switch."""
    job = a_mindio_job(manager_lost=choice)
    async with training(temporal, job, Script(pauses=False)) as (world, peer):
        await world.tell(Updates.SIGHTING, Sighting(manager="uid-1/8:00"))
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        orders = list(peer.orders)
        await world.tell(Updates.SIGHTING, Sighting(manager="uid-2/9:00"))
        if choice is ManagerLost.RESTART:
            await world.phase("training resumes from its last checkpoint")
            await world.attached_as("127.0.0.9")
        first = (await world.incident()).ladder[0]
        assert (first.outcome, first.policy_after, peer.orders) == (outcome, None, orders)
        assert "manager uid-2/9:00 is another process" in first.reason
        assert not [pod for pod in world.cluster.pods_by_name.values() if BACKUP_SOURCE in pod.metadata.annotations]


@pytest.mark.parametrize("backup_fails", [False, True], ids=["its backup waits", "its backup fails"])
async def test_a_manager_that_nobody_starts_again_before_training_pauses_ends_no_training(
    temporal: WorkflowEnvironment, backup_fails: bool
) -> None:
    """The backup's processes find no manager to register with. Nothing is wrong with the switch, so the policy stays."""
    limits = Limits(pause=timedelta(seconds=2), absence=timedelta(seconds=3), order=timedelta(seconds=5))
    async with training(temporal, a_mindio_job(limits=limits), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await peer.cut()
        if backup_fails:
            world.cluster.fail(world.cluster.backup().metadata.name, "no controller")
        (verdict,) = (await world.incident()).ladder
        assert (verdict.outcome, verdict.policy_after) == (Outcome.IGNORED, None)
        assert "the manager is away" in verdict.reason
        assert not [pod for pod in world.cluster.pods_by_name.values() if BACKUP_SOURCE in pod.metadata.annotations]


async def test_a_switch_ends_when_the_manager_is_seen_in_another_pod(temporal: WorkflowEnvironment) -> None:
    """The stream comes from the old address, which proves nothing. The cluster shows that the manager is another process."""
    async with training(temporal, a_mindio_job(), Script(resumes=False)) as (world, peer):
        await world.tell(Updates.SIGHTING, Sighting(manager="uid-1/8:00"))
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        await world.tell(Updates.SIGHTING, Sighting(manager="uid-2/9:00"))
        await world.phase("training resumes from its last checkpoint")
        await world.attached_as("127.0.0.9")
        incident = await world.incident()
        assert [verdict.outcome for verdict in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert "manager uid-2/9:00 is another process" in incident.ladder[0].reason


async def test_an_order_is_not_tried_any_longer_when_the_manager_is_seen_in_another_pod(temporal: WorkflowEnvironment) -> None:
    """Training has paused, and the gateway has gone with its stream: the restart does not wait for the order to be given up."""
    job = a_mindio_job(limits=Limits(migration_delivered=timedelta(minutes=10)))
    async with harness(temporal, job) as world, world.peer(Script(pauses=False)) as peer:
        await world.tell(Updates.SIGHTING, Sighting(manager="uid-1/8:00"))
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await peer.until(lambda: "hot switch" in peer.carried_out)
        await world.gateway.stop()
        pause = Report(kind=ReportKind.STRATEGIES, strategies=("migration",))
        await world.recovery.execute_update(Updates.REPORT, pause, result_type=Receipt)
        await world.phase("training resumes")
        await world.tell(Updates.SIGHTING, Sighting(manager="uid-2/9:00"))
        await world.phase(RESUMES)
        await world.attached_as("127.0.0.9")
        assert "manager uid-2/9:00 is another process" in (await world.incident()).ladder[0].reason


async def test_a_lost_manager_restarts_the_job_that_asks_for_it(temporal: WorkflowEnvironment) -> None:
    """The annotation is `restart`. All pods start again, with a manager that knows its ranks."""
    async with training(temporal, a_mindio_job(manager_lost=ManagerLost.RESTART)) as (world, peer):
        await peer.restart_manager()
        await world.phase("training resumes from its last checkpoint")
        await world.attached_as("127.0.0.3")
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert "the manager was lost" in incident.summary
        assert (await world.status()).state.manager_lost == ""


async def test_a_restart_of_the_job_brings_another_manager_by_itself(temporal: WorkflowEnvironment) -> None:
    """The ranks are as new as the manager: nothing is lost."""
    async with training(temporal, a_mindio_job(manager_lost=ManagerLost.RESTART)) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase("training resumes from its last checkpoint")
        await world.attached_as("127.0.0.3")
        assert (await world.incident()).verdict is Outcome.RECOVERED
        status = await world.status()
        assert (status.state.manager_lost, status.state.faults, status.running) == ("", (), None)


async def test_our_own_manager_may_be_another_process_at_any_time(temporal: WorkflowEnvironment) -> None:
    """Ranks of ours find the new manager by themselves."""
    async with training(temporal, a_job()) as (world, peer):
        await peer.restart_manager()
        status = await world.settled(lambda status: status.state.client == "127.0.0.2")
        assert status.state.manager_lost == ""


def test_what_is_done_about_a_lost_manager_is_one_of_two_words() -> None:
    """The time of the next checkpoint cannot be seen, so that nothing can wait for it. The refusal says what is accepted."""
    metadata = ObjectMeta(name="gpt", uid="uid", annotations={MANAGER_LOST: "restart"})
    wanted = JobObject(metadata=metadata, spec=JobSpec(pods=1, ranks_per_pod=1, template=PodTemplate(command=("train",))))
    assert job_of(wanted, Limits()).manager_lost is ManagerLost.RESTART
    metadata = metadata.model_copy(update={"annotations": {MANAGER_LOST: "at-the-next-checkpoint"}})
    with pytest.raises(BadInput, match=r"manager-lost: 'at-the-next-checkpoint' is not accepted \(accepted: leave, restart\)"):
        job_of(wanted.model_copy(update={"metadata": metadata}), Limits())


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("10.0.0.1", "10.0.0.2", Identity.ANOTHER),
        ("10.0.0.1", "10.0.0.1", Identity.UNKNOWN),
        ("", "10.0.0.1", Identity.UNKNOWN),
        ("10.0.0.1", "", Identity.UNKNOWN),
        ("10.0.0.1", "fd00::1", Identity.UNKNOWN),
        ("10.0.0.1 uid-1", "10.0.0.1 uid-2", Identity.ANOTHER),
        ("10.0.0.1 uid-1", "10.0.0.1 uid-1", Identity.UNKNOWN),
        ("10.0.0.1 uid-1 8:00", "10.0.0.1", Identity.UNKNOWN),
        ("10.0.0.1 uid-1 8:00", "10.0.0.1 uid-1 9:00", Identity.ANOTHER),
        ("10.0.0.1 uid-1 8:00", "fd00::1 uid-1 8:00", Identity.SAME),
    ],
)
def test_a_process_is_the_same_only_if_the_start_of_its_container_is(before: str, after: str, expected: Identity) -> None:
    """A container that was started again keeps its pod and its address."""
    assert identity(before, after) is expected
