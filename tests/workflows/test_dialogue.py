"""Orders and reports between a hot switch and its training side, also when they are early, repeated or lost."""

from datetime import timedelta

from temporalio.testing import WorkflowEnvironment

from rekindle.model.limits import Limits
from rekindle.model.recovery import Mode, ModeInput, Outcome, Report, ReportKind
from tests.support.peer import Script
from tests.support.plant import a_job, a_mindio_job, pod_fault, sub_health, training
from tests.support.scripted_cluster import ScriptedCluster


async def test_the_dialogue_is_the_contracts_message_by_message(temporal: WorkflowEnvironment) -> None:
    """Signal types, actions, ranks and strategy are those of the real server; the uuid is one for the whole attempt."""
    async with training(temporal, a_mindio_job()) as (world, peer):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        prepare, running, migrate = peer.received
        assert (prepare.signalType, list(prepare.actions)) == ("hot-switch", ["hot switch"])
        assert [(fault.rankId, fault.faultType) for fault in prepare.faultRanks] == [("2", "1"), ("3", "1")]
        assert (running.signalType, list(running.actions), list(running.faultRanks)) == ("hot-switch", ["new pod running"], [])
        assert (migrate.signalType, list(migrate.actions)) == ("changeStrategy", ["change_strategy"])
        assert (migrate.changeStrategy, list(migrate.faultRanks), list(migrate.nodeRankIds)) == ("migration", [], [])
        assert all((order.timeout, order.extraParams, order.jobId) == (0, "", world.job.id) for order in peer.received)
        assert len({order.uuid for order in peer.received}) == 1


async def test_a_status_that_comes_before_its_order_answers_nothing(temporal: WorkflowEnvironment) -> None:
    """A late report of something else must not be taken for the resumption: only what follows `migration` counts."""
    async with training(temporal, a_job(), Script(pauses=False, resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        assert await peer.report_status(0) == 0
        await peer.pause()
        await peer.until(lambda: "migration" in peer.carried_out)
        await world.phase("training resumes")
        assert (await world.status()).running is Mode.HOT_SWITCH
        await peer.resume()
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_unread_reports_travel_to_the_next_mode(temporal: WorkflowEnvironment) -> None:
    """What one mode took and did not read is in the input of the next."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await peer.report_status(405)
        backup = world.cluster.fail(world.cluster.backup().metadata.name)
        await world.fault(pod_fault(backup.metadata.name, backup.metadata.uid, backup=True))
        await world.phase("training resumes from its last checkpoint")
        history = await world.recovery.fetch_history()
        payloads = history.events[0].workflow_execution_started_event_attributes.input.payloads
        (given,) = await world.client.data_converter.decode(payloads, [ModeInput])
        expected = Report(kind=ReportKind.STATUS, code=405, info="scripted", strategy="migration")
        assert given.context.situation.unread == (expected,)
        await world.restarted()


async def test_with_mindio_the_old_pod_is_gone_before_migration(temporal: WorkflowEnvironment) -> None:
    """MindIO does not fence its generations: the order waits for the end of the old pod."""
    job = a_mindio_job()
    cluster = ScriptedCluster(job)
    old = cluster.holder(1).metadata.name
    seen: list[bool] = []

    def look(order: str) -> None:
        if order == "migration":
            seen.append(old in cluster.pods_by_name)

    async with training(temporal, job, Script(on_order=look), cluster) as (world, _peer):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert seen == [False]


async def test_with_mindio_an_old_pod_that_stays_is_a_failure(temporal: WorkflowEnvironment) -> None:
    """Within its limit the pod is not gone: `migration` is not ordered, and the job starts anew."""
    job = a_mindio_job(limits=Limits(old_pod_deleted=timedelta(seconds=0.4), pods_stopped=timedelta(seconds=0.4)))
    cluster = ScriptedCluster(job)
    cluster.terminating_for_ever.add(cluster.holder(1).metadata.name)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(sub_health())
        incident = await world.incident()
        assert incident.ladder[0].outcome is Outcome.ESCALATE
        assert "was not gone within 0.4 s" in incident.ladder[0].reason
        assert "migration" not in peer.orders


async def test_our_training_side_resumes_before_the_old_pod_is_deleted(temporal: WorkflowEnvironment) -> None:
    """Ours fences by generation: the old pod is there until training steps on the backup; how long it terminates is noted."""
    job = a_job(limits=Limits(old_pod_deleted=timedelta(seconds=0.4)))
    cluster = ScriptedCluster(job)
    old = cluster.holder(1).metadata.name
    cluster.terminating_for_ever.add(old)
    written: list[str] = []

    def look(order: str) -> None:
        if order == "migration":
            written.extend(cluster.writes)

    async with training(temporal, job, Script(on_order=look), cluster) as (world, _peer):
        await world.fault(sub_health())
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert f"pod {old} is still terminating" in incident.ladder[0].reason
        assert written
        assert f"kill {old}" not in written
        assert f"kill {old}" in cluster.writes


async def test_an_old_pod_that_cannot_be_deleted_is_a_note(temporal: WorkflowEnvironment) -> None:
    """Training steps on the backup already: the recovery has succeeded, and the verdict says what is left behind."""
    job = a_job(limits=Limits(old_pod_deleted=timedelta(seconds=0.4)))
    cluster = ScriptedCluster(job)
    old = cluster.holder(1).metadata.name
    cluster.undeletable.add(old)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(sub_health())
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert f"the old pod {old} is left behind" in incident.ladder[0].reason
        assert f"pod {old} may not be deleted" in incident.ladder[0].reason


async def test_migration_is_delivered_within_its_limit_or_resuming_fails(temporal: WorkflowEnvironment) -> None:
    """By default 25 s, less than MindIO's patience; a stream that is away for longer leads to job rescheduling."""
    assert Limits().migration_delivered == timedelta(seconds=25)
    limits = Limits(old_pod_deleted=timedelta(seconds=0.4), migration_delivered=timedelta(seconds=0.8))
    async with training(temporal, a_mindio_job(limits=limits), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await peer.cut()
        await peer.pause()
        await world.phase("training resumes from its last checkpoint")
        await peer.attach()
        incident = await world.incident()
        assert "`migration` could not be delivered in time" in incident.ladder[0].reason
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert "migration" not in peer.orders


async def test_with_mindio_a_status_that_an_outage_swallowed_counts_when_the_pods_run_on(temporal: WorkflowEnvironment) -> None:
    """MindIO never repeats a report: after an outage behind `migration` a job that runs on is recovered."""
    job = a_mindio_job(limits=Limits(status_lost=timedelta(seconds=0.5)))
    async with training(temporal, job, Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        await peer.cut()
        await peer.attach()
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert "the status was lost in an outage" in incident.ladder[0].reason


async def test_with_mindio_a_lost_status_of_a_pod_that_died_is_a_failure(temporal: WorkflowEnvironment) -> None:
    """The new pod is not running any more: nothing is taken for granted."""
    limits = Limits(status_lost=timedelta(seconds=0.5), resume=timedelta(seconds=1.5))
    async with training(temporal, a_mindio_job(limits=limits), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        world.cluster.fail(world.cluster.backup().metadata.name)
        await peer.cut()
        await peer.attach()
        await world.phase("training resumes from its last checkpoint")
        await peer.cut()
        await peer.attach()
        incident = await world.incident()
        assert incident.ladder[0].outcome is Outcome.ESCALATE


async def test_ours_is_not_believed_to_have_resumed_because_it_came_back(temporal: WorkflowEnvironment) -> None:
    """Our training side repeats what it has to say: after an outage its status is waited for, to its limit."""
    async with training(temporal, a_job(limits=Limits(status_lost=timedelta(seconds=0.1))), Script(resumes=False)) as (
        world,
        peer,
    ):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        await peer.cut()
        await peer.attach()
        await peer.until(lambda: peer.orders.count("migration") == 2)
        assert (await world.status()).running is Mode.HOT_SWITCH
        await peer.resume()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.carried_out.count("migration") == 1
