"""Every component that looks at a job's nodes believes the same rules as the watcher."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities.pods import PodActivities
from rekindle.model.activities.jobs import Survey, SurveyRequest
from rekindle.model.activities.pods import Backup, BackupRequest, PodsRequest, Scheduled
from rekindle.model.cluster import Condition, Node
from rekindle.policy.detection.sighting import sight
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import a_job
from workers.watcher.cluster_index import ClusterIndex
from workers.watcher.rule_breaker_events import Doubts

SICK = (Condition(type="SubHealthy", status="True", reason="slow"),)


class Counting(ScriptedCluster):
    """A cluster of one job on five nodes, which counts requests for all nodes."""

    looks = 0

    async def nodes(self) -> Sequence[Node]:
        self.looks += 1
        return await super().nodes()

    def degrade(self, *numbers: int) -> None:
        self.conditions = {f"node-{number}": SICK for number in numbers}

    async def surveyed(self) -> Survey:
        request = SurveyRequest(job_id=self.job_model.id, nodes=("node-0", "node-1", "no-such-node"))
        survey: Survey = await ActivityEnvironment().run(PodActivities(self).survey, request)
        return survey


async def test_a_survey_believes_what_the_watcher_believes() -> None:
    """The rule is suspended while it affects half of the nodes or more, and restored afterwards."""
    cluster = Counting(a_job(), 5)
    for sick, faults in (((0, 1), 2), ((0, 1, 2), 0), ((0, 3, 4), 0), ((0, 4), 1), ((), 0), ((0, 1, 2, 3, 4), 0)):
        cluster.degrade(*sick)
        job_id = cluster.job_model.id
        pods, nodes = await cluster.pods(job_id), await cluster.nodes()
        index = ClusterIndex([await cluster.job(job_id)], pods, nodes, cluster.rules)
        sighting = (await cluster.surveyed()).sighting
        assert sighting == sight(index.view(job_id), index.rules)
        assert len(sighting.faults) == faults, sick


async def test_a_survey_looks_at_all_nodes_only_where_that_matters() -> None:
    """A survey requests all nodes only where that matters: not for a healthy job, nor for one whose nodes are cordoned."""
    cluster = Counting(a_job(), 5)
    cluster.degrade(2, 3, 4)
    await cluster.surveyed()
    cluster.cordoned["node-0"] = True
    assert len((await cluster.surveyed()).sighting.faults) == 1
    assert cluster.looks == 0
    cluster.degrade(0)
    await cluster.surveyed()
    assert cluster.looks == 1


async def test_a_backup_goes_to_a_node_that_a_rule_calls_sick_which_is_not_believed() -> None:
    """No other node is left."""
    cluster, run = Counting(a_job(), 3), ActivityEnvironment().run
    cluster.degrade(0, 1, 2)
    job_id = cluster.job_model.id
    request = BackupRequest(job_id=job_id, pod_rank=1, name_suffix="0001", avoid_nodes=())
    made: Backup = await run(PodActivities(cluster).ensure_backup, request)
    assert made.backup.node == "node-2"
    wait = PodsRequest(job_id=job_id, pods=(made.backup,), within=timedelta(seconds=5))
    scheduled: Scheduled = await run(PodActivities(cluster).await_scheduled, wait)
    assert not scheduled.sub_healthy


async def test_what_comes_and_goes_is_logged_each_time_and_told_to_jobs_once(caplog: pytest.LogCaptureFixture) -> None:
    """A rule that is suspended repeatedly is logged each time, with its numbers. Jobs with pods on affected nodes receive one
    event."""
    cluster = Counting(a_job(), 5)
    job_id, doubts = cluster.job_model.id, Doubts(cluster)
    for sick in ((1, 2, 3), (1, 2), (1, 2, 3, 4), (1, 2, 3)):
        cluster.degrade(*sick)
        jobs, pods = [await cluster.job(job_id)], await cluster.pods(job_id)
        doubts.look_at(ClusterIndex(jobs, pods, await cluster.nodes(), cluster.rules))
    said = [(one.getMessage(), vars(one)["rule"], vars(one).get("called")) for one in caplog.records if one.name == "watcher"]
    not_believed = ("rule suspended", "plain/sub-healthy")
    assert said == [(*not_believed, 3), ("rule restored", "plain/sub-healthy", None), (*not_believed, 4)]
    telling = asyncio.create_task(doubts.run())
    await asyncio.sleep(0)
    telling.cancel()
    assert [(one.reason, one.name) for one in cluster.events] == [("RuleNotBelieved", cluster.job_model.name)]
