"""Upgrades of the control worker to changed code and back, while recoveries run: a real server, real workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from rekindle import deployment
from rekindle.client import Rekindle
from rekindle.ids import upgrade_workflow
from rekindle.maintenances import Maintenances
from rekindle.model.links import NodeLinks
from rekindle.model.mode import Mode, Outcome
from rekindle.model.plan import Leaf, Stage, SwitchPlan, Word
from rekindle.model.plan import Upgrade as Upgraded
from rekindle.plans import Plans
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.changed import HurriedHotSwitchOfAWorker
from tests.support.harness import Control, Harness, a_job, harness, sub_health
from workers import versions
from workers.control import MODES
from workers.rollout import Rollout
from workers.versions import Upgrades
from workflows.job_rescheduling import JobRescheduling

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHANGED = (HurriedHotSwitchOfAWorker, JobRescheduling)
LOADING = Script(pauses=False)
"""The training side waits until the test lets it pause."""


@dataclass
class Upgrade:
    """A job on version `old`, and the worker of version `new` beside it."""

    world: Harness
    peer: ScriptedPeer
    old: str
    new: Control

    async def loads(self) -> None:
        """Causes a sub-health, and waits until the backup of its hot switch loads."""
        count = self.peer.orders.count("new pod running")
        rank = (count + 1) % 2
        node = self.world.cluster.holder(rank).spec.node_name
        await self.world.fault(sub_health(rank, node, f"e{count + 1}"))
        await self.peer.until(lambda: self.peer.orders.count("new pod running") == count + 1)

    async def job_is_on(self, build_id: str) -> None:
        async with asyncio.timeout(60):
            while await version(self.world.entity) != build_id:
                await asyncio.sleep(0.03)

    async def nothing_is_on(self, build_id: str) -> None:
        async with asyncio.timeout(60):
            while await deployment.count_open(self.world.client, build_id):
                await asyncio.sleep(0.03)

    async def ran(self) -> tuple[str, bool]:
        """Returns the version of the last recovery, and whether it waited for its backup, which the changed one does not."""
        history = await self.world.recovery.fetch_history()
        names = {event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events}
        return await version(self.world.recovery), "await_running" in names


async def version(handle: WorkflowHandle[Any, Any]) -> str:
    described = await handle.describe()
    return described.raw_description.workflow_execution_info.versioning_info.deployment_version.build_id


@asynccontextmanager
async def upgrade(
    temporal: WorkflowEnvironment, script: Script = LOADING, changed: tuple[type, ...] = CHANGED
) -> AsyncIterator[Upgrade]:
    job = a_job()
    old = f"{job.id}-old"
    async with harness(temporal, job, build_id=old) as world, world.peer(script) as peer:
        await world.first_step()
        new = Control(world.client, world.cluster, changed, f"{job.id}-new")
        try:
            yield Upgrade(world, peer, old, new)
        finally:
            await world.forget()
            await new.stop()


@asynccontextmanager
async def keeping(control: Control, *, alone: bool = False) -> AsyncIterator[Upgrades]:
    """Handles the other versions, as the control worker of a version does."""
    upgrades = Upgrades(control.client, control.build_id, alone=alone)
    keeping = asyncio.create_task(upgrades.keep())
    try:
        yield upgrades
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def test_a_second_upgrade_to_a_version_signals_at_once(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback ends the pause after which a busy job is signalled again."""
    monkeypatch.setattr(versions, "EVERY", 0.1)
    monkeypatch.setattr(versions, "FIRST_WAKING", timedelta(minutes=10))
    async with upgrade(temporal) as this:
        await this.loads()
        await this.new.start()
        async with keeping(this.new) as upgrades, asyncio.timeout(60):
            while not upgrades._wakings:
                await asyncio.sleep(0.03)
            await deployment.make_current(this.world.client, this.old)
            while upgrades._wakings:
                await asyncio.sleep(0.03)
            await this.peer.pause()
            assert (await this.world.incident(1)).verdict is Outcome.RECOVERED
            await deployment.make_current(this.world.client, this.new.build_id)
            await this.job_is_on(this.new.build_id)


async def test_a_recovery_ends_with_the_code_that_began_it(temporal: WorkflowEnvironment) -> None:
    """An upgrade in the middle of a recovery leaves it alone; the job moves afterwards, and back again on request."""
    async with upgrade(temporal) as this:
        await this.loads()
        await this.new.start()
        await this.peer.pause()
        assert (await this.world.incident(1)).verdict is Outcome.RECOVERED
        assert await this.ran() == (this.old, True)

        async with keeping(this.new):
            await this.job_is_on(this.new.build_id)
        await this.loads()
        await this.peer.pause()
        assert (await this.world.incident(2)).verdict is Outcome.RECOVERED
        assert await this.ran() == (this.new.build_id, False)

        await deployment.make_current(this.world.client, this.old)
        async with keeping(this.world.control):
            await this.job_is_on(this.old)
        await this.loads()
        await this.peer.pause()
        assert (await this.world.incident(3)).verdict is Outcome.RECOVERED
        assert await this.ran() == (this.old, True)


async def test_an_incident_ends_with_the_code_that_began_it(temporal: WorkflowEnvironment) -> None:
    """The mode that follows a failed one has the version of the incident, also where another one is current by then."""
    async with upgrade(temporal, Script(pauses=False, offers=("exit",))) as this:
        await this.loads()
        await this.new.start()
        await this.peer.pause()
        incident = await this.world.restarted()
        assert [verdict.mode for verdict in incident.ladder] == [Mode.HOT_SWITCH, Mode.JOB_RESCHEDULING]
        assert incident.verdict is Outcome.RECOVERED
        assert (await this.ran())[0] == this.old
        async with keeping(this.new):
            await this.job_is_on(this.new.build_id)


async def test_a_busy_job_is_woken_again_until_it_has_moved(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One signal may come before the server announces the version to the job, and a recovery takes minutes."""
    monkeypatch.setattr(versions, "EVERY", 0.1)
    monkeypatch.setattr(versions, "FIRST_WAKING", timedelta(seconds=0.1))
    async with upgrade(temporal) as this:
        run = temporal.client.get_workflow_handle(this.world.entity.id, run_id=(await this.world.entity.describe()).run_id)
        await this.loads()
        await this.new.start()
        async with keeping(this.new):
            async with asyncio.timeout(60):
                while await _signals(run) < 3:
                    await asyncio.sleep(0.03)
            await this.peer.pause()
            await this.job_is_on(this.new.build_id)
        assert (await this.world.incident(1)).verdict is Outcome.RECOVERED


async def _signals(run: WorkflowHandle[Any, Any]) -> int:
    history = await run.fetch_history()
    return sum(event.HasField("workflow_execution_signaled_event_attributes") for event in history.events)


async def test_what_waits_for_days_moves_to_the_new_version(temporal: WorkflowEnvironment) -> None:
    """The upgrade of a switch that waits for a person, and its maintenance, are woken as jobs are. Then nothing runs on the old
    version, and both run to their ends on the new one."""
    async with upgrade(temporal, changed=MODES) as this:
        await this.peer.with_links()
        plans, world = Plans(Rekindle(this.world.client)), this.world
        links = (NodeLinks(node="node-1", devices=("0",), backup=False),)
        switch = f"tor-{world.job.name}"
        await plans.start(SwitchPlan(switch=switch, carries=links, leaves=(Leaf(name="a", links=links),)))
        async with asyncio.timeout(60):
            while (await plans.status(switch)).stage is not Stage.FREE:
                await asyncio.sleep(0.03)
        await this.new.start()
        async with keeping(this.new):
            await this.nothing_is_on(this.old)
        await world.control.stop()
        assert this.peer.on_backup == {2}
        handle = world.client.get_workflow_handle(upgrade_workflow(switch), result_type=Upgraded)
        assert await version(handle) == this.new.build_id
        await plans.tell(switch, Word.PROCEED)
        assert ((await handle.result()).stage, this.peer.on_backup) == (Stage.DONE, set())


async def test_a_maintenance_that_was_cancelled_and_stands_moves_to_the_new_version(temporal: WorkflowEnvironment) -> None:
    """A cancelled maintenance whose links could not be moved back moves to the new version and does not end by the upgrade.
    Cancelled again, it moves them back."""
    async with upgrade(temporal, Script(switch_results=[True, False]), changed=MODES) as this:
        await this.peer.with_links()
        world, maintenances = this.world, Maintenances(Rekindle(this.world.client))
        maintenance = await maintenances.fail_over(world.job.id, (NodeLinks(node="node-1", devices=("0",), backup=True),))
        await maintenances.settled(maintenance)
        handle = world.client.get_workflow_handle(maintenance)
        await handle.cancel()
        await world.incident(2)
        await _moved_on(this)
        assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert this.peer.on_backup == set()


async def _moved_on(this: Upgrade) -> None:
    await this.new.start()
    async with keeping(this.new):
        await this.nothing_is_on(this.old)
    await this.world.control.stop()


async def test_an_upgrade_of_a_switch_that_was_cancelled_and_stands_moves_to_the_new_version(
    temporal: WorkflowEnvironment,
) -> None:
    """A job could not be moved back, and a person has to decide."""
    async with upgrade(temporal, Script(switch_results=[True, False]), changed=MODES) as this:
        await this.peer.with_links()
        plans, world = Plans(Rekindle(this.world.client)), this.world
        links = (NodeLinks(node="node-1", devices=("0",), backup=False),)
        switch = f"tor-{world.job.name}"
        await plans.start(SwitchPlan(switch=switch, carries=links, leaves=(Leaf(name="a", links=links),)))
        handle = world.client.get_workflow_handle(upgrade_workflow(switch), result_type=Upgraded)
        async with asyncio.timeout(60):
            while (await plans.status(switch)).stage is not Stage.FREE:
                await asyncio.sleep(0.03)
            await handle.cancel()
            while not (await plans.status(switch)).asking:
                await asyncio.sleep(0.03)
        await _moved_on(this)
        assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
        await plans.tell(switch, Word.RETRY)
        assert ((await handle.result()).stage, this.peer.on_backup) == (Stage.ROLLED_BACK, set())


async def test_a_recovery_without_its_workers_goes_on(temporal: WorkflowEnvironment) -> None:
    """A recovery whose old code is gone is taken over by the new version, and continues where it was, if the code fits."""
    async with upgrade(temporal, changed=MODES) as this:
        await this.loads()
        await this.world.control.stop()
        await this.new.start()
        async with keeping(this.new, alone=True):
            await this.nothing_is_on(this.old)
            await this.peer.pause()
            assert (await this.world.incident(1)).verdict is Outcome.RECOVERED
        assert await this.ran() == (this.new.build_id, True)


async def test_a_recovery_that_does_not_fit_leads_to_the_next_mode(temporal: WorkflowEnvironment) -> None:
    """A recovery whose old code is gone, and does not fit the new procedure, fails at once, and the job is rescheduled."""
    async with upgrade(temporal) as this:
        await this.loads()
        await this.world.control.stop()
        await this.new.start()
        async with keeping(this.new, alone=True):
            await this.nothing_is_on(this.old)
            incident = await this.world.restarted()
        assert incident.verdict is Outcome.RECOVERED
        assert incident.ladder[0].outcome is Outcome.ESCALATE


async def test_an_old_worker_works_until_its_recoveries_have_ended(temporal: WorkflowEnvironment) -> None:
    """A control worker of an old version that is stopped leaves when nothing runs on it any more."""
    async with upgrade(temporal) as this:
        await this.loads()
        await this.new.start()
        drain = asyncio.create_task(Upgrades(this.world.client, this.old).drain())
        async with keeping(this.new):
            await this.peer.pause()
            await this.world.incident(1)
            await this.job_is_on(this.new.build_id)
            async with asyncio.timeout(60):
                await drain
        assert await deployment.count_open(this.world.client, this.old) == 0


async def test_an_old_worker_that_starts_again_undoes_no_upgrade(temporal: WorkflowEnvironment) -> None:
    """A version that was current before does not replace the current one, but an unknown version does."""
    async with upgrade(temporal) as this:
        await this.new.start()
        await this.world.control.stop()
        await this.world.control.start()
        assert (await deployment.read_deployment(temporal.client)).current == this.new.build_id


@dataclass
class Rollouts:
    """Revisions that the Deployment of a worker has, as the worker sees them."""

    now: Rollout | None

    async def look(self) -> Rollout | None:
        return self.now


async def current(temporal: WorkflowEnvironment) -> str:
    return (await deployment.read_deployment(temporal.client)).current


async def test_a_worker_of_the_revision_that_is_rolled_out_undoes_an_upgrade(temporal: WorkflowEnvironment) -> None:
    """The old version takes over as its worker starts after a rollback of its Deployment, although it was current before."""
    async with upgrade(temporal) as this:
        await this.new.start()
        assert await current(temporal) == this.new.build_id
        await Upgrades(this.world.client, this.old, rollout=Rollouts(Rollout("3", "3")).look).take_over()
        assert await current(temporal) == this.old


async def test_a_rollback_reaches_a_worker_that_never_stopped(temporal: WorkflowEnvironment) -> None:
    """A rollback of an upgrade that did not finish starts no pod. The old worker takes over, once for each rollout: afterwards a
    person may choose."""
    seen = Rollouts(Rollout("1", "1"))
    async with upgrade(temporal) as this:
        upgrades = Upgrades(this.world.client, this.old, rollout=seen.look)
        await upgrades.take_over()
        await this.new.start()
        for now in (Rollout("1", "2"), None):
            seen.now = now
            await upgrades._look()
            assert await current(temporal) == this.new.build_id
        seen.now = Rollout("3", "3")
        await upgrades._look()
        assert await current(temporal) == this.old
        await deployment.make_current(temporal.client, this.new.build_id)
        await upgrades._look()
        assert await current(temporal) == this.new.build_id


async def test_a_new_version_that_is_not_rolled_out_any_more_does_not_take_over(temporal: WorkflowEnvironment) -> None:
    """A pod may start late, when the Deployment has gone on, or back, to another version."""
    async with upgrade(temporal) as this:
        late = Rollouts(Rollout("2", "3"))
        await this.new.start(rollout=late.look)
        assert await current(temporal) == this.old
        late.now = Rollout("4", "4")
        await Upgrades(this.world.client, this.new.build_id, rollout=late.look)._look()
        assert await current(temporal) == this.new.build_id


async def test_a_clock_that_is_ahead_takes_nothing_over(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other version has workers, as the server saw them a moment ago by its own clock. So the worker is still needed, too."""
    ahead = datetime.now(UTC) + timedelta(minutes=5)
    monkeypatch.setattr(versions, "_now", lambda: ahead)
    monkeypatch.setattr(versions, "CONFIRMED", timedelta(0))
    async with upgrade(temporal) as this:
        await this.new.start()
        old = Upgrades(this.world.client, this.old)
        await old._look()
        assert await current(temporal) == this.new.build_id
        assert await old._is_needed()
