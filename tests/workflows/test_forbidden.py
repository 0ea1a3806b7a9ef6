"""Calls that our identity may not make are named in the verdict, and not tried for ever."""

from collections.abc import Collection, Sequence

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.errors import Forbidden
from rekindle.model.cluster import Pod
from rekindle.model.job import Job
from rekindle.model.mode import Mode, Outcome
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, node_fault, sub_health, training


class GuardedCluster(ScriptedCluster):
    """Forbids one call of the port, with the message of an API server."""

    def __init__(self, job: Job, forbidden: str) -> None:
        super().__init__(job)
        self.forbidden = forbidden
        self.tries = 0
        self.words = f"may not {forbidden}: verb create, resource pods, namespace {job.namespace}"

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        self._guard("ensure_backup")
        return await super().ensure_backup(old, name, avoid_nodes)

    async def ensure_stopped(self, job_id: str, grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        self._guard("ensure_stopped")
        return await super().ensure_stopped(job_id, grace_seconds, lost_nodes)

    async def ensure_pods(
        self, job_id: str, generation: str, avoid_nodes: Sequence[str], shun_nodes: Sequence[str] = ()
    ) -> list[Pod]:
        self._guard("ensure_pods")
        return await super().ensure_pods(job_id, generation, avoid_nodes, shun_nodes)

    def _guard(self, call: str) -> None:
        if call == self.forbidden:
            self.tries += 1
            raise Forbidden(self.words)


async def test_a_forbidden_backup_pod_leaves_training_alone(temporal: WorkflowEnvironment) -> None:
    """The verdict `ignored` says what was forbidden, after one try."""
    job = a_job()
    cluster = GuardedCluster(job, "ensure_backup")
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(sub_health())
        (verdict,) = (await world.incident()).ladder
        assert (verdict.mode, verdict.outcome) == (Mode.HOT_SWITCH, Outcome.IGNORED)
        assert cluster.words in verdict.reason
        assert cluster.tries == 1
        assert peer.carried_out == ["hot switch", "stop switch"]


async def attempts(world: Harness, activity: str) -> list[int]:
    """Returns the attempts of these activities in the first restart: missing pods begin another restart at once."""
    restart = world.client.get_workflow_handle(ids.recovery_workflow(world.job, 1, Mode.JOB_RESCHEDULING))
    events = (await restart.fetch_history()).events
    scheduled = {event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name for event in events}
    started = [event.activity_task_started_event_attributes for event in events]
    return [at.attempt for at in started if at.scheduled_event_id and scheduled[at.scheduled_event_id] == activity]


@pytest.mark.parametrize(("call", "activity"), [("ensure_stopped", "delete_pods"), ("ensure_pods", "ensure_pods")])
async def test_a_forbidden_restart_is_given_up(temporal: WorkflowEnvironment, call: str, activity: str) -> None:
    """Verdict and event say what was forbidden, after one try."""
    job = a_job()
    cluster = GuardedCluster(job, call)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        (verdict,) = (await world.incident()).ladder
        assert (verdict.mode, verdict.outcome) == (Mode.JOB_RESCHEDULING, Outcome.GIVEN_UP)
        assert cluster.words in verdict.reason
        assert cluster.words in (await world.event("RecoveryGivenUp")).message
        assert await attempts(world, activity) == [1]
