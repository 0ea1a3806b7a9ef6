"""Nodes that are unhealthy for any job receive no backup pod and no pod of a restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.clusters.api_server import Object
from activities.pods import PodActivities
from rekindle.errors import Conflict
from rekindle.model import keys
from rekindle.model.activities.pods import Backup, BackupRequest, PodCount, StartRequest, StopRequest
from rekindle.model.cluster import Pod
from tests.fakes.foreign import Setting
from tests.kubernetes.world.control_plane import Namespace
from tests.kubernetes.world.worlds import pod_spec, tried
from tests.support.cluster import FOREVER

SICK = {"status": {"conditions": [{"type": "SubHealthy", "status": "True", "reason": "slow"}]}}
CORDONED = {"spec": {"unschedulable": True}}
TAINTED = {"spec": {"taints": [{"key": "maintenance", "effect": "NoSchedule"}]}}
WELL = {"spec": {"unschedulable": None, "taints": None}, "status": {"conditions": []}}


@asynccontextmanager
async def nodes_that_are(namespace: Namespace, **states: Object) -> AsyncIterator[None]:
    """Sets the state of the nodes `node-0` to `node-2`, by number, as an administrator or a detector does, until the block
    ends."""

    async def write(name: str, change: Object) -> None:
        path = f"/api/v1/nodes/{name}"
        if "spec" in change:
            await namespace.api.patch(path, {"spec": change["spec"]})
        if "status" in change:
            known = (await namespace.api.get(path))["status"]["conditions"]
            kept = [one for one in known if one["type"] != "SubHealthy"]
            await namespace.api.patch(f"{path}/status", {"status": {"conditions": [*kept, *change["status"]["conditions"]]}})

    names = {name: f"node-{name.removeprefix('n')}" for name in states}
    try:
        for name, change in states.items():
            await write(names[name], change)
        yield
    finally:
        for name in states:
            await write(names[name], WELL)


async def job_that_tolerates_all(setting: Setting) -> str:
    """Submits a job of one pod that tolerates all taints and prefers nodes of lower numbers."""
    order = [
        {"weight": weight, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"node-{n}"]}]}}
        for n, weight in enumerate((100, 50, 1))
    ]
    spec: Any = {
        **pod_spec(FOREVER, 2),
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": order}},
    }
    body = {
        "metadata": {"name": "demo", "labels": {keys.MANAGED: "true"}},
        "spec": {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "backoffLimit": 9, "template": {"spec": spec}},
    }
    job = await setting.namespace.api.create(setting.namespace.path("jobs"), body)
    return await setting.running(job, pods=1)


async def placed(setting: Setting, job: str, uid: str) -> str:
    def of(pods: Any) -> list[Pod]:
        return [pod for pod in pods if pod.metadata.uid == uid and pod.spec.node_name]

    return of(await setting.until(job, lambda pods: bool(of(pods))))[0].spec.node_name


@pytest.mark.parametrize("state", [SICK, CORDONED, TAINTED], ids=["sub-healthy", "cordoned", "tainted"])
async def test_a_backup_goes_to_no_node_that_is_ill_for_another_job(setting: Setting, state: Object) -> None:
    """A backup goes to no node that is unhealthy for another job. Its own job has never used that node, and its pods tolerate all
    taints."""
    job = await job_that_tolerates_all(setting)
    run = ActivityEnvironment().run
    async with nodes_that_are(setting.namespace, n1=state):
        request = BackupRequest(job_id=job, pod_rank=0, name_suffix="0001", avoid_nodes=())
        backup: Backup = await run(PodActivities(setting.cluster).ensure_backup, request)
        assert (backup.old.node, await placed(setting, job, backup.backup.uid)) == ("node-0", "node-2")


async def restarted(setting: Setting, job: str) -> str:
    """Returns the node of the job's pod after a restart that has no fault to avoid."""
    run, pods = ActivityEnvironment().run, PodActivities(setting.cluster)
    (old,) = await setting.cluster.pods(job)
    await run(pods.delete_pods, StopRequest(job_id=job, grace_seconds=0))
    await setting.until_gone(job, old)
    generation = old.metadata.uid[:8]

    async def start() -> PodCount:
        try:
            made: PodCount = await run(pods.ensure_pods, StartRequest(job_id=job, generation=generation, avoid_nodes=()))
        except Exception as error:
            raise Conflict(str(error)) from error
        return made

    await tried(start)
    (new,) = await setting.until(job, lambda pods: bool(pods) and all(pod.spec.node_name for pod in pods))
    return new.spec.node_name


async def test_a_restart_goes_to_a_node_that_is_well(setting: Setting) -> None:
    """A restart avoids nodes that are cordoned or sub-healthy, though the pods prefer them."""
    job = await job_that_tolerates_all(setting)
    async with nodes_that_are(setting.namespace, n0=SICK, n1=CORDONED):
        assert await restarted(setting, job) == "node-2"
    assert await restarted(setting, job) == "node-0"


async def test_a_restart_goes_to_a_sub_healthy_node_where_there_is_no_other(setting: Setting) -> None:
    """A slow job trains; a job that is not scheduled does not."""
    job = await job_that_tolerates_all(setting)
    async with nodes_that_are(setting.namespace, n0=SICK, n1=CORDONED, n2=CORDONED):
        await asyncio.wait_for(setting.until(job, bool), 60)
        assert await restarted(setting, job) == "node-0"
