"""The upgrade of a switch, leaf by leaf, over all jobs that it carries, with a person between."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from rekindle import ids
from rekindle.errors import BadInput, Busy, Refused
from rekindle.model.cluster import JobPhase
from rekindle.model.links import NodeLinks
from rekindle.model.plan import Control, Stage, SwitchPlan, Upgrade, UpgradeRequest, Where, Word
from rekindle.policy.operations.switch_upgrade import now
from rekindle.worker_plugin import plugin
from tests.fakes.peer import Script
from tests.support.harness import sub_health
from tests.workflows.support.fleet import FIRST, SECOND, Two, two_jobs
from workflows.switch_upgrade import LOOK_AGAIN, SwitchUpgrade


async def until(this: Two, condition: Callable[[Upgrade], bool]) -> Upgrade:
    """Waits until the upgrade meets the condition."""
    async with asyncio.timeout(60):
        while not condition(known := await this.plans.status(this.switch)):
            await asyncio.sleep(0.03)
        return known


async def free(this: Two, leaf: str) -> Upgrade:
    return await until(this, lambda known: known.stage is Stage.FREE and known.leaf_name == leaf)


async def test_a_switch_is_upgraded_leaf_by_leaf(temporal: WorkflowEnvironment) -> None:
    """Each leaf is free of all jobs when a person is asked for. Half a day passes, and the control worker restarts. The plan's
    workflow continues from its history."""
    async with two_jobs(temporal) as this:
        forecast = await this.plans.start(this.plan([FIRST], [SECOND]), requested_by="ada")
        assert [(row.leaf, row.job, row.ranks) for row in forecast.rows] == [
            ("a", this.first.job.name, "ranks 2, 3"),
            ("b", this.second.job.name, "ranks 2, 3"),
        ]
        known = await free(this, "a")
        assert (this.one.on_backup, this.two.on_backup) == ({2, 3}, set())
        assert "leaf a (1 of 2): no job uses it" in now(known)
        for leaf, of_one, of_two in (("a", [2, 3], []), ("b", [], [2, 3])):
            await free(this, leaf)
            await this.first.skip(timedelta(hours=12), of=this.handle)
            await this.first.control.stop()
            await this.first.control.start()
            await free(this, leaf)
            assert (sorted(this.one.on_backup), sorted(this.two.on_backup)) == (of_one, of_two)
            await this.plans.tell(this.switch, Word.PROCEED)
        ended = await this.handle.result()
        assert (ended.stage, [(leaf.name, leaf.returned) for leaf in ended.done]) == (Stage.DONE, [("a", 1), ("b", 1)])
        assert (this.one.on_backup, this.two.on_backup) == (set(), set())
        await Replayer(workflows=[SwitchUpgrade], plugins=[plugin()]).replay_workflow(await this.handle.fetch_history())


async def test_a_leaf_is_left_by_its_jobs_some_at_once(temporal: WorkflowEnvironment) -> None:
    """The next job is moved when the one before has been; where an upgrade is stopped, no more are begun, and what was begun is
    finished."""
    async with two_jobs(temporal, Script(switches=False), Script(switches=False)) as this:
        await this.plans.start(this.plan([FIRST, SECOND], at_once=1))
        peers = {True: this.one, False: this.two}
        async with asyncio.timeout(60):
            while not (this.one.lists or this.two.lists):
                await asyncio.sleep(0.03)
        begun = peers[bool(this.one.lists)]
        later = peers[not this.one.lists]
        assert later.received == []
        await this.plans.tell(this.switch, Word.STOP)
        with pytest.raises(Refused, match="it is stopped already"):
            await this.plans.tell(this.switch, Word.STOP)
        begun.script.switches = later.script.switches = True
        await begun.report_switched()
        known = await until(this, lambda known: [move.where for move in known.moves] == [Where.ON_BACKUP])
        assert (now(known).split("; ")[0], later.received) == ("leaf a (1 of 1): stopped while failing over", [])
        await this.plans.tell(this.switch, Word.RESUME)
        known = await free(this, "a")
        assert later.on_backup == {2, 3}


async def test_a_job_that_cannot_be_moved_is_decided_upon_by_a_person(temporal: WorkflowEnvironment) -> None:
    """The plan shows the job and the reason to a person, who may retry the job or skip it. Other jobs have left the leaf
    meanwhile."""
    async with two_jobs(temporal, None, Script(switch_results=[False, False])) as this:
        await this.plans.start(this.plan([FIRST, SECOND]))
        known = await until(this, lambda known: bool(known.asking) and len(known.moves) == 2)
        (stuck,) = known.asking
        assert (stuck.job, "rank 3: eth1 is down" in stuck.reason, this.one.on_backup) == (this.second.job.name, True, {2, 3})
        with pytest.raises(Refused, match=f"job {this.second.job.name} stands in the way"):
            await this.plans.tell(this.switch, Word.PROCEED)
        await this.plans.tell(this.switch, Word.RETRY)
        await until(this, lambda known: len(this.two.lists) == 2 and bool(known.asking))
        await this.plans.tell(this.switch, Word.SKIP)
        known = await free(this, "a")
        assert {move.job: move.where for move in known.moves} == {
            this.first.job.name: Where.ON_BACKUP,
            this.second.job.name: Where.SKIPPED,
        }
        await this.handle.signal(ids.Signals.CONTROL, Control(word=Word.PROCEED))
        ended = await this.handle.result()
        assert [(leaf.returned, leaf.skipped) for leaf in ended.done] == [(1, 1)]


async def test_a_job_that_cannot_be_moved_is_left_where_the_plan_says_so(temporal: WorkflowEnvironment) -> None:
    """The job is skipped without a question, and does not keep the upgrade from beginning."""
    async with two_jobs(temporal, second_trains=False) as this:
        await this.plans.start(this.plan([FIRST, SECOND], skip_unmovable=True))
        known = await free(this, "a")
        (left,) = [move for move in known.moves if move.where is Where.SKIPPED]
        assert (left.job, "no training step" in left.reason, this.one.on_backup) == (this.second.job.name, True, {2, 3}), (
            left.reason
        )


async def test_a_rollback_while_a_leaf_is_looked_at_moves_no_job(temporal: WorkflowEnvironment) -> None:
    """The result of the look is not used any more."""
    async with two_jobs(temporal) as this:
        await this.plans.start(this.plan([FIRST]))
        await free(this, "a")
        await this.plans.tell(this.switch, Word.ROLLBACK)
        await this.handle.result()
        lists = len(this.one.lists)
        this.fleet.shows.clear()
        starting = asyncio.create_task(this.plans.start(this.plan([FIRST])))
        await this.fleet.looks()
        await until(this, lambda known: known.stage is Stage.CHECKING)
        await this.plans.tell(this.switch, Word.STOP)
        this.fleet.shows.set()
        await starting
        this.fleet.shows.clear()
        await this.plans.tell(this.switch, Word.RESUME)
        await this.fleet.looks()
        await this.plans.tell(this.switch, Word.ROLLBACK)
        this.fleet.shows.set()
        assert (await this.handle.result()).stage is Stage.ROLLED_BACK
        assert (len(this.one.lists), this.one.on_backup) == (lists, set())


async def test_a_rollback_does_not_wait_for_a_job_that_is_being_recovered(temporal: WorkflowEnvironment) -> None:
    """The job has not left the leaf, so that there is nothing to decide and nothing to move back."""
    async with two_jobs(temporal, Script(pauses=False)) as this:
        await this.first.fault(sub_health())
        await this.first.running()
        await this.plans.start(this.plan([FIRST, SECOND]))
        busy = this.first.job.name
        await until(this, lambda known: any(move.job == busy and "is busy with" in move.reason for move in known.moves))
        await until(this, lambda known: any(move.where is Where.ON_BACKUP for move in known.moves))
        await this.plans.tell(this.switch, Word.ROLLBACK)
        async with asyncio.timeout(60):
            assert (await this.handle.result()).stage is Stage.ROLLED_BACK
        assert (this.one.lists, this.two.on_backup) == ([], set())


async def test_a_job_that_is_being_recovered_when_an_upgrade_is_stopped_is_tried_again_behind_it(
    temporal: WorkflowEnvironment,
) -> None:
    """The job needs no decision of a person."""
    async with two_jobs(temporal, Script(pauses=False)) as this:
        await this.first.fault(sub_health())
        await this.first.running()
        await this.plans.start(this.plan([FIRST]))
        await until(this, lambda known: any("is busy with" in move.reason for move in known.moves))
        await this.plans.tell(this.switch, Word.STOP)
        known = await until(this, lambda known: not any(move.where is Where.MOVING for move in known.moves))
        assert known.asking == ()


async def test_a_rollback_ends_also_if_a_job_that_is_being_moved_cannot_be(temporal: WorkflowEnvironment) -> None:
    """The job is on its first links, as a rollback wants it."""
    async with two_jobs(temporal, Script(switches=False)) as this:
        await this.plans.start(this.plan([FIRST]))
        await this.one.until(lambda: bool(this.one.lists))
        await this.plans.tell(this.switch, Word.ROLLBACK)
        await this.one.report_switched(result=False, info="rank 3: eth1 is down")
        async with asyncio.timeout(60):
            assert (await this.handle.result()).stage is Stage.ROLLED_BACK
        assert (len(this.one.lists), this.one.on_backup) == (1, set())


async def test_a_maintenance_that_was_terminated_has_moved_nothing_back(temporal: WorkflowEnvironment) -> None:
    """The job does not count as returned, and a person decides."""
    async with two_jobs(temporal) as this:
        await this.plans.start(this.plan([FIRST]))
        (move,) = (await free(this, "a")).moves
        await this.first.client.get_workflow_handle(move.maintenance).terminate("by mistake")
        await this.plans.tell(this.switch, Word.PROCEED)
        known = await until(this, lambda known: known.stage is Stage.DONE or bool(known.asking))
        assert this.one.on_backup == {2, 3}
        assert [move.where for move in known.moves] == [Where.NOT_RETURNED]


async def test_a_leaf_is_not_released_by_a_word_for_the_one_before(temporal: WorkflowEnvironment) -> None:
    """Two people, or a person and a check, say that the first leaf is upgraded; the next one is not."""
    async with two_jobs(temporal) as this:
        await this.plans.start(this.plan([FIRST], [SECOND]))
        await free(this, "a")
        await this.plans.tell(this.switch, Word.PROCEED, leaf="a")
        await free(this, "b")
        with pytest.raises(Refused, match="leaf a is not free, leaf b is"):
            await this.plans.tell(this.switch, Word.PROCEED, leaf="a")
        assert this.two.on_backup == {2, 3}
        await this.plans.tell(this.switch, Word.PROCEED, leaf="b")
        await this.handle.result()


@pytest.mark.parametrize("how", ["a word", "a cancellation"])
async def test_what_is_failed_over_is_rolled_back(temporal: WorkflowEnvironment, how: str) -> None:
    """Also while a job is being moved: that is finished first, and moved back as well."""
    async with two_jobs(temporal, Script(switches=False)) as this:
        await this.plans.start(this.plan([FIRST, SECOND]))
        await until(this, lambda known: any(move.where is Where.ON_BACKUP for move in known.moves) and bool(this.one.lists))
        if how == "a word":
            await this.plans.tell(this.switch, Word.ROLLBACK)
        else:
            await this.handle.cancel()
        await until(this, lambda known: known.stage is Stage.ROLLING_BACK)
        this.one.script.switches = True
        await this.one.report_switched()
        if how == "a word":
            assert (await this.handle.result()).stage is Stage.ROLLED_BACK
        else:
            with pytest.raises(WorkflowFailureError):
                await this.handle.result()
        assert (this.one.on_backup, this.two.on_backup) == (set(), set())
        assert len(this.one.lists) == 2


async def test_a_switchback_that_fails_stands_until_it_is_decided(temporal: WorkflowEnvironment) -> None:
    """Tried again, it succeeds here; the leaf counts as done only then."""
    async with two_jobs(temporal, Script(switch_results=[True, False])) as this:
        await this.plans.start(this.plan([FIRST]))
        await free(this, "a")
        await this.plans.tell(this.switch, Word.PROCEED)
        known = await until(this, lambda known: bool(known.asking))
        assert (known.asking[0].where, this.one.on_backup, known.done) == (Where.NOT_RETURNED, {2, 3}, ())
        await this.plans.tell(this.switch, Word.RETRY)
        assert (await this.handle.result()).done[0].returned == 1
        assert this.one.on_backup == set()


async def test_a_job_that_comes_to_a_free_leaf_is_moved_off_it_and_one_that_ends_is_forgotten(
    temporal: WorkflowEnvironment,
) -> None:
    """The leaf is looked at again and again while a person upgrades it."""
    async with two_jobs(temporal, second_trains=False) as this:
        only = this.plan([FIRST, SECOND])
        with pytest.raises(Refused, match=f"leaf a: job {this.second.job.name}: .*no training step"):
            await this.plans.start(only)
        await this.second.tell(ids.Updates.END, "its user ended it")
        await this.second.entity.result()
        await this.plans.start(only)
        await free(this, "a")
        assert this.two.received == []
        await this.first.tell(ids.Updates.END, "the job succeeded")
        await this.plans.tell(this.switch, Word.PROCEED)
        assert (await this.handle.result()).stage is Stage.DONE


async def test_a_job_that_begins_meanwhile_leaves_the_leaf_as_soon_as_it_can(temporal: WorkflowEnvironment) -> None:
    """The job is left alone until its first step."""
    async with two_jobs(temporal, second_trains=False) as this:
        this.fleet.second.phase = None  # it is not there yet
        await this.plans.start(this.plan([FIRST, SECOND]))
        await free(this, "a")
        this.fleet.second.phase = JobPhase.RUNNING
        await this.first.skip(LOOK_AGAIN, of=this.handle)
        assert (await free(this, "a")).moves[-1].job == this.first.job.name
        await this.second.first_step()
        await this.first.skip(LOOK_AGAIN, of=this.handle)
        await until(this, lambda known: known.stage is Stage.FREE and len(known.moves) == 2)
        assert this.two.on_backup == {2, 3}


async def test_a_job_that_somebody_switched_back_leaves_the_free_leaf_again_at_once(temporal: WorkflowEnvironment) -> None:
    """No job uses a leaf that is reported as free. The job leaves it again at once, without a wait for the next check."""
    async with two_jobs(temporal) as this:
        await this.plans.start(this.plan([FIRST]))
        (move,) = (await free(this, "a")).moves
        await this.maintenances.switch_back(move.maintenance)
        known = await until(this, lambda known: known.stage is Stage.FREE and len(this.one.lists) == 3)
        assert this.one.on_backup == {2, 3}
        assert f"back to failing over, {this.first.job.name} on the leaf" in known.notes[-1].what
        await this.plans.tell(this.switch, Word.PROCEED)
        assert ((await this.handle.result()).stage, this.one.on_backup) == (Stage.DONE, set())


async def test_a_leaf_is_looked_at_when_an_upgrade_goes_on_as_another_run(temporal: WorkflowEnvironment) -> None:
    """The word that devices have returned may have come between the two."""
    async with two_jobs(temporal) as this:
        await this.plans.start(this.plan([FIRST]))
        known = await free(this, "a")
        await this.handle.terminate("it goes on as another run")
        await this.maintenances.switch_back(known.moves[0].maintenance)
        await this.first.client.start_workflow(
            ids.Workflows.SWITCH_UPGRADE,
            UpgradeRequest(plan=this.plan([FIRST]), known=known),
            id=this.handle.id,
            task_queue=ids.CONTROL_QUEUE,
        )
        await until(this, lambda known: known.stage is Stage.FREE and len(this.one.lists) == 3)
        assert this.one.on_backup == {2, 3}


async def test_a_leaf_that_cannot_be_looked_at_stops_the_upgrade(temporal: WorkflowEnvironment) -> None:
    """The moved devices stay where they are until a person resumes the upgrade. A forecast is refused."""
    async with two_jobs(temporal) as this:
        await this.plans.start(this.plan([FIRST]))
        await free(this, "a")
        this.fleet.forbids = True
        await this.first.skip(LOOK_AGAIN, of=this.handle)
        known = await until(this, lambda known: known.stopped)
        assert "the leaf cannot be looked at: nobody may list pods" in known.notes[-1].what
        assert this.one.on_backup == {2, 3}
        assert "nobody may list pods" in (await this.plans.forecast(this.plan([FIRST]))).refused[0]
        this.fleet.forbids = False
        await this.plans.tell(this.switch, Word.RESUME)
        await this.plans.tell(this.switch, Word.PROCEED)
        assert (await this.handle.result()).stage is Stage.DONE


async def test_what_cannot_be_done_is_refused_at_once_with_all_reasons(temporal: WorkflowEnvironment) -> None:
    """The reasons are an unknown node, an unknown job, a job that cannot be moved, and devices on a backup link of the leaf. A
    dry run reports the same. Nothing is touched."""
    async with two_jobs(temporal, second_trains=False) as this:
        other = await this.maintenances.fail_over(this.first.job.id, (NodeLinks(node="node-0", devices=("0",), backup=True),))
        await this.maintenances.settled(other)
        lists = len(this.one.lists)
        plan = this.plan(
            [FIRST, NodeLinks(node="node-9", devices=("0",), backup=False)],
            [SECOND, NodeLinks(node="node-0", devices=("0",), backup=True)],
        )
        plan = plan.model_copy(update={"jobs": (this.first.job.name, this.second.job.id, "nobody")})
        forecast = await this.plans.forecast(plan)
        wanted = (
            "leaf a: node node-9 is not known",
            "leaf a: job nobody is not known",
            f"leaf b: job {this.second.job.name}: ",
            f"leaf b: job {this.first.job.name}: rank 0 on backup links of this leaf, moved by {other}: switch them back",
        )
        for words in wanted:
            assert any(words in why for why in forecast.refused), (words, forecast.refused)
        with pytest.raises(Refused) as refused:
            await this.plans.start(plan)
        assert str(refused.value).splitlines() == list(forecast.refused)
        assert (len(this.one.lists), this.two.received) == (lists, [])
        with pytest.raises(BadInput, match="is on no leaf: the leaves do not cover the switch"):
            await this.plans.start(this.plan([FIRST]).model_copy(update={"carries": (FIRST, SECOND)}))


async def test_a_switch_is_upgraded_once_at_a_time(temporal: WorkflowEnvironment) -> None:
    """A second plan is refused, a dry run is not. A command after the end of the plan is refused."""
    async with two_jobs(temporal) as this:
        plan = this.plan([FIRST])
        await this.plans.start(plan)
        with pytest.raises(Busy, match="is being upgraded already"):
            await this.plans.start(plan)
        await free(this, "a")
        assert "on the backup link already, by link-failover/" in (await this.plans.forecast(plan)).rows[0].info
        await this.plans.tell(this.switch, Word.ROLLBACK)
        await this.handle.result()
        with pytest.raises(BadInput, match="is not being upgraded"):
            await this.plans.tell(this.switch, Word.PROCEED)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (UpgradeRequest(plan=SwitchPlan(switch="tor-0")), "leaves: 0 leaves, accepted are 1 to 64"),
        ({"plan": {"switch": "two words"}}, "plan.switch: "),
        ({}, "plan: missing"),
        (None, "must be one JSON object"),
        ({"plan": {"switch": "tor-0", "leaves": [1] * 600_000}}, "the input has more than 20000 values"),
    ],
)
async def test_an_input_that_means_nothing_fails_with_the_field(temporal: WorkflowEnvironment, written: Any, words: str) -> None:
    """The input comes from a client that starts the workflow by itself."""
    async with two_jobs(temporal) as this:
        handle = await this.first.client.start_workflow(
            ids.Workflows.SWITCH_UPGRADE, written, id=this.handle.id, task_queue=ids.CONTROL_QUEUE
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(handle.result(), 10)
        assert words in str(failed.value.cause)
