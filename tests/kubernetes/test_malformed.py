"""Objects that the API server admits and that cannot be parsed end no process. Their owner is informed, and all other jobs are
served."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kind import Kind
from activities.clusters.kubernetes.kinds import JOB_SET
from activities.clusters.port import Snapshot
from rekindle.model import keys
from rekindle.settings import Settings
from tests.fakes.controller import apply_crds
from tests.kubernetes.world.control_plane import Namespace
from tests.kubernetes.world.worlds import pod_spec
from workers.operator import Operator


@pytest.fixture
async def cluster(kubeconfig: Path, namespace: Namespace) -> AsyncIterator[KubernetesCluster]:
    await apply_crds(namespace.api)
    settings = Settings(cluster="kubernetes", namespaces=(namespace.name,))
    cluster = KubernetesCluster(Api(kubeconfig), settings)
    yield cluster
    await cluster.close()


@asynccontextmanager
async def operating(namespace: Namespace) -> AsyncIterator[None]:
    running = asyncio.create_task(Operator(namespace.api, Settings(cluster="kubernetes", namespaces=(namespace.name,))).run())
    try:
        yield
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def create(namespace: Namespace, kind: Kind, name: str, spec: Object, **metadata: Any) -> Object:
    body = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name, **metadata}, "spec": spec}
    return await namespace.api.create(kind.path(namespace.name), body)


async def submit(namespace: Namespace, name: str, **kubernetes: Any) -> Object:
    spec = {"pods": 1, "ranksPerPod": 1, "command": ["sleep", "1000"], "manager": None, "accelerators": 0}
    spec["kubernetes"] = {"image": "none", **kubernetes}
    return await namespace.api.create(
        namespace.path("trainingjobs"),
        {"apiVersion": "rekindle.io/v1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec},
    )


def nested(levels: int) -> Object:
    found: Object = {}
    for _ in range(levels):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"affinity": "anywhere"}, "spec.kubernetes.pod.affinity"),
        ({"affinity": {"nodeAffinity": [1]}}, "spec.kubernetes.pod.affinity.nodeAffinity"),
        ({"affinity": nested(80)}, "levels deep"),
    ],
)
async def test_a_training_job_that_cannot_be_read_fails_alone(namespace: Namespace, pod: Object, words: str) -> None:
    """The API server admits it, since its schema leaves the fields of pods open; its status says what is wrong."""
    await submit(namespace, "broken", pod=pod)
    async with operating(namespace):
        await submit(namespace, "sound")
        await namespace.until("trainingjobs", "sound", lambda job: job.get("status", {}).get("phase") == "Running")
        broken = await namespace.until("trainingjobs", "broken", lambda job: bool(job.get("status")))
    assert broken["status"]["phase"] == "Failed"
    assert words in broken["status"]["message"]


async def test_an_object_that_is_nested_too_deep_to_be_parsed_is_its_owners_affair(
    kubeconfig: Path, namespace: Namespace
) -> None:
    """Python parses about a thousand levels, and the API server admits more."""
    await submit(namespace, "broken", pod={})
    body = '{"a":' * 3000 + "{}" + "}" * 3000
    await patch(
        kubeconfig, namespace.path("trainingjobs", "broken"), f'{{"spec":{{"kubernetes":{{"pod":{{"affinity":{body}}}}}}}}}'
    )
    async with operating(namespace):
        await submit(namespace, "sound")
        await namespace.until("trainingjobs", "sound", lambda job: job.get("status", {}).get("phase") == "Running")
        broken = await namespace.until("trainingjobs", "broken", lambda job: bool(job.get("status")))
    assert "levels deep" in broken["status"]["message"]


async def patch(kubeconfig: Path, path: str, text: str) -> None:
    """Sends a merge patch as the given text, because Python would not write it."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    token = config["users"][0]["user"]["token"]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
    trusted = ssl.create_default_context(cafile=cluster["certificate-authority"])
    url = cluster["server"] + path
    async with aiohttp.ClientSession() as session, session.patch(url, data=text, headers=headers, ssl=trusted) as answer:
        assert answer.status == 200, await answer.text()


async def test_an_affinity_without_a_value_is_none(namespace: Namespace) -> None:
    """`affinity:` in YAML is null, which the schema admits."""
    await submit(namespace, "empty", pod={"affinity": None, "tolerations": None})
    async with operating(namespace):
        await namespace.until("trainingjobs", "empty", lambda job: job.get("status", {}).get("phase") == "Running")


async def test_pods_that_the_api_server_refuses_are_named_in_an_event(namespace: Namespace) -> None:
    """An event carries the API server's own message about refused pods, and other jobs continue."""
    await submit(namespace, "broken", container={"ports": "none"})
    async with operating(namespace):
        event = await namespace.until_event("NotDoneYet")
        await submit(namespace, "sound")
        await namespace.until("trainingjobs", "sound", lambda job: job.get("status", {}).get("phase") == "Running")
    assert event["involvedObject"]["name"] == "broken"
    assert "ports" in event["message"]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"replicatedJobs": []},
        {"replicatedJobs": None},
        {"replicatedJobs": {"name": "workers"}},
        {"replicatedJobs": [{"name": "workers", "replicas": "many", "template": {"spec": {"template": {}}}}]},
    ],
)
async def test_a_job_set_that_cannot_be_read_ends_no_watch(
    namespace: Namespace, cluster: KubernetesCluster, spec: Object
) -> None:
    """An event names the wrong field of a JobSet that cannot be read, and other jobs are seen."""
    await create(namespace, JOB_SET, "broken", spec, labels={keys.MANAGED: "true"})
    template = {"spec": pod_spec(("sleep", "1000"), 0)}
    metadata = {"name": "sound", "labels": {keys.MANAGED: "true"}}
    body = {"metadata": metadata, "spec": {"completionMode": "Indexed", "completions": 1, "template": template}}
    await namespace.api.create(namespace.path("jobs"), body)
    async with aclosing(cluster.watch()) as news:
        first = await anext(news)
        assert isinstance(first, Snapshot)
        assert [job.metadata.name for job in first.jobs] == ["sound"]
        event = await namespace.until_event("JobRefused")
    assert "spec.replicatedJobs" in event["message"]
