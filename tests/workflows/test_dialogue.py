"""Orders and reports between a hot switch and its training side, also when they are early, repeated or lost."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.model.dialogue import Order
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import PACE, Script
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, a_mindio_job, sub_health, training
from workers.gateway.streams import Streams


async def test_the_dialogue_is_the_contracts_message_by_message(temporal: WorkflowEnvironment) -> None:
    """Signal types, actions, ranks and strategy are those of the real server; the uuid is one for the whole attempt."""
    async with training(temporal, a_mindio_job()) as (world, peer):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        prepare, migrate = peer.received
        assert (prepare.signalType, list(prepare.actions)) == ("hot-switch", ["hot switch"])
        assert [(fault.rankId, fault.faultType) for fault in prepare.faultRanks] == [("2", "1"), ("3", "1")]
        assert (migrate.signalType, list(migrate.actions)) == ("changeStrategy", ["change_strategy"])
        assert (migrate.changeStrategy, list(migrate.faultRanks), list(migrate.nodeRankIds)) == ("migration", [], [])
        assert all((order.timeout, order.extraParams, order.jobId) == (0, "", world.job.id) for order in peer.received)
        assert len({order.uuid for order in peer.received}) == 1


async def test_ours_is_told_that_the_backup_runs(temporal: WorkflowEnvironment) -> None:
    """`new pod running` is our own training side's only: a MindIO client would lose the order before it, and needs none."""
    async with training(temporal, a_job()) as (world, peer):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        _, running, _ = peer.received
        assert (running.signalType, list(running.actions), list(running.faultRanks)) == ("hot-switch", ["new pod running"], [])


async def test_with_mindio_an_order_waits_a_second_for_the_answer_to_the_one_before(temporal: WorkflowEnvironment) -> None:
    """The client of MindIO keeps only the newest order: `stop switch` must not overwrite `hot switch`."""
    async with training(temporal, a_mindio_job(), Script(pauses=False)) as (world, peer):
        front = await world.front(force=True)
        await peer.until(lambda: "hot switch" in peer.orders)
        await front.cancel()
        assert (await front.result()).outcome is Outcome.CANCELLED
        assert peer.carried_out == ["hot switch", "stop switch"]
        assert peer.gaps[1] > PACE


async def test_with_mindio_a_new_mode_waits_for_its_turn_too(temporal: WorkflowEnvironment) -> None:
    """A hot switch that is asked for right after another was cancelled does not overwrite that one's `stop switch`."""
    async with training(temporal, a_mindio_job(), Script(pauses=False)) as (world, peer):
        front = await world.front(force=True)
        await peer.until(lambda: "hot switch" in peer.orders)
        await front.cancel()
        await front.result()
        peer.script.pauses = True
        assert (await (await world.front(force=True)).result()).outcome is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "stop switch", "hot switch", "migration"]


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


async def test_a_report_that_nobody_asked_for_is_taken_for_no_answer(temporal: WorkflowEnvironment) -> None:
    """A status before `migration` is of an earlier attempt: it is acknowledged, and reaches neither this mode nor the next."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        assert await peer.report_status(405) == 0
        await peer.pause()
        incident = await world.incident()
        assert (incident.verdict, incident.ladder[0].unread) == (Outcome.RECOVERED, ())


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
    """An old pod that is not gone within its limit is a failure: `migration` is not ordered, and the job is restarted."""
    job = a_mindio_job(limits=Limits(old_pod_deleted=timedelta(seconds=0.4), pods_stopped=timedelta(seconds=0.4)))
    cluster = ScriptedCluster(job)
    cluster.terminating_for_ever.add(cluster.holder(1).metadata.name)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(sub_health())
        incident = await world.incident()
        assert incident.ladder[0].outcome is Outcome.ESCALATE
        assert "was not gone within 0.4 s" in incident.ladder[0].reason
        assert "migration" not in peer.orders


async def test_with_mindio_an_old_pod_that_is_gone_already_is_not_waited_for(temporal: WorkflowEnvironment) -> None:
    """The old pod ends by itself while training pauses: `migration` is ordered all the same."""
    job = a_mindio_job()
    async with training(temporal, job, Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await peer.until(lambda: "hot switch" in peer.carried_out)
        old = world.cluster.holder(1).metadata
        await world.cluster.ensure_deleted(job.id, old.name, old.uid, grace_seconds=0)
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "migration"]


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
    """Training steps on the backup already, so the recovery has succeeded. The verdict names the old pod that is left."""
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
    """The limit is 25 s by default, less than MindIO's patience. A stream that is away for longer leads to job rescheduling."""
    assert Limits().migration_delivered == timedelta(seconds=25)
    limits = Limits(old_pod_deleted=timedelta(seconds=0.4), migration_delivered=timedelta(seconds=0.8))
    async with training(temporal, a_mindio_job(limits=limits), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await peer.cut()
        await peer.pause()
        await world.phase("training resumes from its last checkpoint")
        await peer.attach()
        incident = await world.incident()
        assert "`migration` could not be delivered in time" in incident.ladder[0].reason
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert "migration" not in peer.orders


async def test_with_mindio_training_is_asked_whether_it_has_resumed_where_its_status_was_lost(
    temporal: WorkflowEnvironment,
) -> None:
    """MindIO never repeats a report. Training that has resumed after an outage that followed `migration` is asked, and repeats a
    step."""
    job = a_mindio_job(limits=Limits(status_lost=timedelta(seconds=0.5), settle=timedelta(0), release=timedelta(0)))
    async with training(temporal, job, Script(loses={"status"})) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        await world.phase("training resumes")
        peer.script.loses.clear()
        await peer.cut()
        await peer.attach()
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert "training was asked, and repeated a step" in incident.ladder[0].reason
        assert peer.carried_out[-3:] == ["stop_train", "on_global_rank", "retry"]


async def test_with_mindio_a_container_that_was_started_again_is_another_manager(temporal: WorkflowEnvironment) -> None:
    """The pod and its address are unchanged, but its container has a new start time. All ranks are then stopped for ever, and the
    job is restarted at once."""
    async with training(temporal, a_mindio_job(), Script(resumes=False)) as (world, peer):
        await world.attached_as("127.0.0.1 uid-1 2020-02-20T20:20:20Z")
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        await world.attached_as("127.0.0.1 uid-1 2020-02-20T21:21:21Z")
        await _is_lost_with_its_manager(world)


async def test_with_mindio_nothing_is_recovered_that_is_not_seen(temporal: WorkflowEnvironment) -> None:
    """The stream was renewed after `migration`, and training does not report that it stops. Running pods are no proof that it
    resumed."""
    job = a_mindio_job(limits=Limits(status_lost=timedelta(seconds=0.5), stop=timedelta(seconds=0.5)))
    async with training(temporal, job, Script(resumes=False, stops=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        await peer.cut()
        await peer.attach()
        await world.phase("training resumes from its last checkpoint")
        await peer.cut()
        await peer.attach()
        incident = await world.incident()
        assert [verdict.outcome for verdict in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert "no report of stop complete within 0.5 s" in incident.ladder[0].reason


async def test_with_mindio_a_status_counts_whoever_brings_it(temporal: WorkflowEnvironment) -> None:
    """A report of the resumption after an outage is proof enough, whichever stream brings it."""
    async with training(temporal, a_mindio_job(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        await peer.cut()
        await peer.attach()
        await peer.resume()
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_with_mindio_an_attempt_ends_with_its_manager(temporal: WorkflowEnvironment) -> None:
    """Another process attaches from another address: it knows nothing of the attempt, and gets no order of it."""
    async with training(temporal, a_mindio_job(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.carried_out)
        orders = list(peer.orders)
        await peer.restart_manager()
        await _is_lost_with_its_manager(world)
        assert peer.orders == orders


async def _is_lost_with_its_manager(world: Harness) -> None:
    """The hot switch fails with a reason that names the other manager, and the job restarts with a manager of its own."""
    await world.phase("training resumes from its last checkpoint")
    await world.attached_as("127.0.0.9")
    incident = await world.incident()
    assert [verdict.outcome for verdict in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
    assert "another process is the job's manager" in incident.ladder[0].reason


async def test_a_new_manager_of_ours_hears_the_whole_attempt(temporal: WorkflowEnvironment) -> None:
    """A new manager does not know the running hot switch: it receives all of its orders again, not only the last one."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await peer.restart_manager()
        await peer.until(lambda: peer.carried_out == ["hot switch", "new pod running"] * 2)
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_an_order_waits_for_a_stream_that_is_known_to_have_ended(temporal: WorkflowEnvironment) -> None:
    """The running mode is notified that the stream ended. `migration` is not sent on that stream, but on the next one."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        await peer.pause()
        await world.phase("training resumes")
        assert not (await world.recovery.describe()).raw_description.pending_activities
        await peer.attach()
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_with_mindio_a_lost_report_of_the_pause_is_not_waited_for_when_the_pods_have_ended(
    temporal: WorkflowEnvironment,
) -> None:
    """The report of the pause was lost in an outage. Training stands until the library gives up and the pods end. The limit of 15
    minutes is not waited for."""
    job = a_mindio_job(limits=Limits(pause_lost=timedelta(seconds=0.5)))
    async with training(temporal, job, Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await peer.cut()
        world.cluster.fail(world.cluster.holder(1).metadata.name, "the library gave up")
        await peer.attach()
        await world.phase("training resumes from its last checkpoint")
        await peer.cut()
        await peer.attach()
        incident = await world.incident()
        assert "its report was lost in an outage" in incident.ladder[0].reason
        assert "the library gave up" in incident.ladder[0].reason


async def test_with_mindio_an_outage_while_the_backup_loads_costs_nothing(temporal: WorkflowEnvironment) -> None:
    """The pods run on, so no report was lost: the pause is waited for as long as before."""
    job = a_mindio_job(limits=Limits(pause_lost=timedelta(seconds=0.3)))
    async with training(temporal, job, Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await peer.cut()
        await peer.attach()
        await world.looked_at("await_running", 2)
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "migration"]


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


async def test_an_order_is_repeated_to_a_new_stream_also_when_the_wait_ends_before_it_is_written(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup runs while `hot switch` is being repeated to another manager. Without that order the manager would never
    pause."""
    job = a_job()
    cluster = ScriptedCluster(job)
    cluster.backup_starts = False
    asked, deliver = asyncio.Event(), Streams.deliver

    async def is_stuck_once(self: Streams, order: Order, recovery: str) -> None:
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        await deliver(self, order, recovery)

    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(sub_health())
        await world.phase("backup pod runs")
        monkeypatch.setattr(Streams, "deliver", is_stuck_once)
        monkeypatch.setattr(peer, "_check_pace", lambda *_: None)  # ours reads every order
        await peer.restart_manager()
        await asked.wait()
        cluster.run(cluster.backup().metadata.name)
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "hot switch", "new pod running", "migration"]


async def test_an_order_that_is_late_does_not_overtake_the_ones_before_it_on_a_new_stream(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late order was for the stream before. A manager that received `new pod running` before `hot switch` would never
    pause."""
    asked, back, tried, deliver = asyncio.Event(), asyncio.Event(), asyncio.Event(), Streams.deliver

    async def is_late(self: Streams, order: Order, recovery: str) -> None:
        if order.name == "new pod running" and not asked.is_set():
            asked.set()
            await back.wait()
            try:
                await deliver(self, order, recovery)
            finally:
                tried.set()
            return
        if back.is_set():
            await tried.wait()
        await deliver(self, order, recovery)

    monkeypatch.setattr(Streams, "deliver", is_late)
    async with training(temporal, a_job()) as (world, peer):
        monkeypatch.setattr(peer, "_check_pace", lambda *_: None)  # ours reads every order
        await world.fault(sub_health())
        await asked.wait()
        await peer.restart_manager()
        back.set()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.orders == ["hot switch", "hot switch", "new pod running", "migration"]
