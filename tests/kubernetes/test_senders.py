"""Only the pods of a MindIO job may speak for it on Kubernetes, by the addresses that the API server knows."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from temporalio.testing import WorkflowEnvironment

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from rekindle.errors import Refused
from rekindle.model import keys
from rekindle.settings import Settings
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.gateway.processes import says_ready, started
from tests.kubernetes.world.control_plane import Namespace
from workers.gateway.caller_auth import Senders, Times, rules_of
from workers.gateway.tokens import Tokens

POD = "ipv4:127.0.0.1:5"
"""The address under which pods of our kubelets are seen."""

STRANGER = "ipv4:10.9.9.9:5"


async def a_job(namespace: Namespace, *, suspend: bool = False) -> Object:
    container = {"name": "main", "image": "none", "command": ["sleep", "1000"]}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"completions": 1, "completionMode": "Indexed", "backoffLimit": 0, "suspend": suspend, "template": template}
    metadata = {"name": "train", "annotations": {keys.TRAINING_SIDE: "mindio"}}
    return await namespace.api.create(namespace.path("jobs"), {"metadata": metadata, "spec": spec})


def senders_of(namespace: Namespace, patience: float) -> Senders:
    cluster = KubernetesCluster(namespace.api, Settings())
    return Senders(cluster, Tokens(cluster.pod_of_token), rules_of(Settings()), Times(gap=0.1, patience=patience))


@pytest.fixture
async def senders(namespace: Namespace) -> AsyncIterator[Senders]:
    who = senders_of(namespace, 1)
    yield who
    await who.close()


async def test_a_pod_of_the_job_may_speak_as_soon_as_it_has_an_address(namespace: Namespace) -> None:
    """A call that comes before the pod is known is held until then."""
    who = senders_of(namespace, 30)
    job = await a_job(namespace, suspend=True)
    call = asyncio.create_task(who.check(job["metadata"]["uid"], POD))
    await namespace.api.patch(namespace.path("jobs", "train"), {"spec": {"suspend": False}})
    await call
    await who.close()


async def test_others_may_not(namespace: Namespace, senders: Senders) -> None:
    """Another address is refused, and so is any caller for a job that does not exist."""
    job = await a_job(namespace)
    with pytest.raises(Refused, match=r"no pod of this job has the address 10\.9\.9\.9"):
        await senders.check(job["metadata"]["uid"], STRANGER)
    with pytest.raises(Refused, match="jobId=nobody"):
        await senders.check("nobody", POD)


async def test_the_gateway_asks_the_cluster(
    namespace: Namespace, kubeconfig: Path, temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    """A gateway process asks the cluster for the pods of a job. A pod of the job is accepted, and learns that its job is not
    registered. For another job it is refused."""
    job = await a_job(namespace)
    variables = {
        "TEMPORAL_ADDRESS": temporal.client.service_client.config.target_host,
        "REKINDLE_CLUSTER": "kubernetes",
        "REKINDLE_KUBECONFIG": kubeconfig,
        "REKINDLE_GATEWAY_PORT": "0",
    }
    async with started("gateway", tmp_path, **variables) as process:
        address = await says_ready(process)
        async with grpc.aio.insecure_channel(address.split()[-1]) as channel:
            stub: Any = RecoverStub(channel)
            assert (await stub.Init(wire.ClientInfo(jobId=job["metadata"]["uid"]))).code == 502
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Init(wire.ClientInfo(jobId="another"))
        process.terminate()
        _, errors = await process.communicate()
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert process.returncode == 0
    said = errors.decode()
    assert "caller refused, not a pod of the job" in said
    assert "plain text, which nothing proves" in said
    assert "which the API server confirms" in said
    assert "Unclosed" not in errors.decode()
