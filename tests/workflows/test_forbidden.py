"""What our identity may not do is named in the verdict, and not tried for ever."""

from collections.abc import Collection, Sequence

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.errors import Forbidden
from rekindle.model.cluster import Pod
from rekindle.model.job import Job
from rekindle.model.recovery import Mode, Outcome
from tests.support.harness import a_job, node_fault, sub_health, training
from tests.support.scripted_cluster import ScriptedCluster


class GuardedCluster(ScriptedCluster):
    """Forbids one call of the port, in the words of an API server."""

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

    async def ensure_pods(self, job_id: str, generation: str, avoid_nodes: Sequence[str]) -> list[Pod]:
        self._guard("ensure_pods")
        return await super().ensure_pods(job_id, generation, avoid_nodes)

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


@pytest.mark.parametrize("call", ["ensure_stopped", "ensure_pods"])
async def test_a_forbidden_restart_is_given_up(temporal: WorkflowEnvironment, call: str) -> None:
    """Verdict and event say what was forbidden, after one try."""
    job = a_job()
    cluster = GuardedCluster(job, call)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        (verdict,) = (await world.incident()).ladder
        assert (verdict.mode, verdict.outcome) == (Mode.JOB_RESCHEDULING, Outcome.GIVEN_UP)
        assert cluster.words in verdict.reason
        assert cluster.words in (await world.event("RecoveryGivenUp")).message
        assert cluster.tries == 1
