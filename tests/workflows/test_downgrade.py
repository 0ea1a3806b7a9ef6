"""The downgrade to `ignore`: durable, visible, and lifted by an operator."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.keys import DOWNGRADED, SUB_HEALTHY_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Outcome
from rekindle.temporal import Attributes
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, register, sub_health, training


def _without_a_spare() -> tuple[Job, ScriptedCluster]:
    job = a_job(limits=Limits(backup_scheduled=timedelta(seconds=0.3)))
    cluster = ScriptedCluster(job)
    cluster.spare = False
    return job, cluster


async def _run_id(world: Harness) -> str | None:
    return (await world.entity.describe()).run_id


@pytest.mark.usefixtures("one_incident_a_run")
async def test_a_downgrade_is_durable_and_visible(temporal: WorkflowEnvironment) -> None:
    """The downgrade survives continue-as-new. Label, annotation, event, search attribute, status and page show it with its
    reason."""
    job, cluster = _without_a_spare()
    async with training(temporal, job, cluster=cluster) as (world, peer):
        first_run = await _run_id(world)
        await world.fault(sub_health())
        await world.incident()
        async with asyncio.timeout(60):
            while await _run_id(world) == first_run:
                await asyncio.sleep(0.03)
        downgrade = (await world.status()).state.downgrade
        assert downgrade
        assert (downgrade.before, downgrade.reason[:8]) == (SubHealthStrategy.HOT_SWITCH, "no spare")
        assert cluster.labels["subHealthyStrategy"] == "ignore"
        assert cluster.labels[DOWNGRADED] == downgrade.reason
        assert downgrade.reason in (await world.event("SubHealthDowngraded")).message
        described = await world.entity.describe()
        assert described.typed_search_attributes.get(Attributes.PHASE) == "sub-health ignored"
        assert described.typed_search_attributes.get(Attributes.VERDICT) == "ignored"
        await world.fault(sub_health(0, "node-0", "another"))
        assert "the policy was downgraded to ignore: no spare" in await world.judged(0)
        assert peer.carried_out == ["hot switch", "stop switch"]


async def test_an_operator_lifts_it_and_sub_healths_are_judged_again(temporal: WorkflowEnvironment) -> None:
    """The owner's policy holds again, everywhere; the pod that was left alone is hot-switched once a spare is there."""
    job, cluster = _without_a_spare()
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(sub_health())
        await world.incident()
        cluster.spare = True
        receipt = await world.tell(ids.Updates.LIFT)
        assert receipt.info == "the sub-health policy is hotSwitch again"
        assert cluster.labels["subHealthyStrategy"] == "hotSwitch"
        assert cluster.labels[DOWNGRADED] is None
        await world.event("SubHealthDowngradeLifted")
        second = await world.incident(2)
        assert (second.verdict, second.policy_after) == (Outcome.RECOVERED, SubHealthStrategy.HOT_SWITCH)
        assert "nothing to lift" in (await world.tell(ids.Updates.LIFT)).info


async def test_the_label_of_a_downgrade_is_not_taken_for_the_owners_policy(temporal: WorkflowEnvironment) -> None:
    """The job is registered again with the label of the downgrade, and lifting still restores the owner's policy."""
    job, cluster = _without_a_spare()
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(sub_health())
        await world.incident()
        seen = {"sub_health": SubHealthStrategy.IGNORE, "annotations": {DOWNGRADED: "no spare"}}
        await register(world.client, job.model_copy(update=seen))
        assert (await world.tell(ids.Updates.LIFT)).info == "the sub-health policy is hotSwitch again"


async def test_a_recovery_that_succeeds_downgrades_nothing(temporal: WorkflowEnvironment) -> None:
    """A hot switch leaves the policy, the label and the page as they were."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(sub_health())
        incident = await world.incident()
        assert incident.policy_after is SubHealthStrategy.HOT_SWITCH
        assert (await world.status()).state.downgrade is None
        assert {SUB_HEALTHY_STRATEGY, DOWNGRADED}.isdisjoint(world.cluster.labels)
        described = await world.entity.describe()
        assert described.typed_search_attributes.get(Attributes.PHASE) == "training"
