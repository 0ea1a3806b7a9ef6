"""A control worker finds out by the Deployment, with the real controller, whether it is what is rolled out."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from activities.clusters.api_server import Object
from rekindle.deployment import read_deployment
from rekindle.errors import NotFound
from rekindle.settings import Settings
from tests.gateway.processes import says_ready, started
from tests.kubernetes.world.control_plane import WAIT_LIMIT, Namespace
from tests.support.temporal import skipping_server
from workers.rollout import DEPLOYMENT, REVISION, Rollout, rollouts


async def deployed(namespace: Namespace, word: str) -> str:
    """Makes or changes the Deployment of control workers, and returns the hash of its latest revision."""
    path, labels = namespace.path("deployments"), {"app": "control"}
    container = {"name": "main", "image": "none", "env": [{"name": "WORD", "value": word}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    try:
        written = await namespace.api.patch(f"{path}/{DEPLOYMENT}", {"spec": spec})
    except NotFound:
        written = await namespace.api.create(path, {"metadata": {"name": DEPLOYMENT}, "spec": spec})
    generation = written["metadata"]["generation"]
    async with asyncio.timeout(WAIT_LIMIT):
        while not (found := await _latest(namespace, generation)):
            await asyncio.sleep(0.05)  # the controller takes a moment
    return found


async def _latest(namespace: Namespace, generation: int) -> str:
    deployment = await namespace.api.get(namespace.path("deployments", DEPLOYMENT))
    if deployment["status"].get("observedGeneration", 0) < generation:
        return ""
    sets = (await namespace.api.list(namespace.path("replicasets"))).items
    latest = [one for one in sets if _revision(one) == _revision(deployment)]
    return str(latest[0]["metadata"]["labels"]["pod-template-hash"]) if latest else ""


def _revision(one: Object) -> str:
    return str(one["metadata"].get("annotations", {}).get(REVISION))


async def seen(settings: Settings) -> Rollout | None:
    async with rollouts(settings) as look:
        return await look()


@pytest_asyncio.fixture(loop_scope="session")
async def own_temporal() -> AsyncIterator[str]:
    """The address of a server of its own: with a current version, workers without one get nothing to do."""
    env = await skipping_server(())
    yield env.client.service_client.config.target_host
    await env.shutdown()


async def until_current(client: Client, build_id: str) -> None:
    async with asyncio.timeout(WAIT_LIMIT):
        while (await read_deployment(client)).current != build_id:
            await asyncio.sleep(0.1)


@pytest.mark.costly
@pytest.mark.timeout(240)
async def test_a_rollback_that_starts_no_pod_reaches_the_worker_that_runs(
    namespace: Namespace, kubeconfig: Path, own_temporal: str, tmp_path: Path
) -> None:
    """The upgrade had not finished, so that the old pod was never stopped. The abandoned worker then ends at once."""

    def variables(build_id: str, revision: str) -> dict[str, object]:
        return {
            "REKINDLE_CLUSTER": "kubernetes",
            "REKINDLE_KUBECONFIG": kubeconfig,
            "REKINDLE_NAMESPACE": namespace.name,
            "REKINDLE_NAMESPACES": json.dumps([namespace.name]),
            "REKINDLE_BUILD_ID": build_id,
            "REKINDLE_POD_TEMPLATE_HASH": revision,
            "TEMPORAL_ADDRESS": own_temporal,
        }

    client = await Client.connect(own_temporal)
    async with started("control", tmp_path, **variables("old", await deployed(namespace, "old"))) as old:
        await says_ready(old)
        await until_current(client, "old")
        async with started("control", tmp_path, **variables("new", await deployed(namespace, "new"))) as new:
            await says_ready(new)
            await until_current(client, "new")
            await deployed(namespace, "old")
            await until_current(client, "old")
            new.terminate()
            async with asyncio.timeout(WAIT_LIMIT):
                assert await new.wait() == 0


async def test_the_pods_of_the_latest_revision_are_rolled_out(namespace: Namespace, kubeconfig: Path) -> None:
    """The latest revision has pods of the new template after an upgrade, and of the old one after a rollback."""

    async def rolled_out(*hashes: str) -> list[bool | None]:
        own = Settings(kubeconfig=kubeconfig, namespace=namespace.name)
        found = [await seen(own.model_copy(update={"pod_template_hash": one})) for one in hashes]
        return [None if one is None else one.is_own for one in found]

    old = await deployed(namespace, "old")
    new = await deployed(namespace, "new")
    assert await rolled_out(old, new) == [False, True]
    assert await deployed(namespace, "old") == old
    assert await rolled_out(old, new) == [True, False]
    assert await rolled_out("", "unknown") == [None, None]


async def test_a_revision_that_may_not_be_read_is_not_known(
    namespace: Namespace, kubeconfig: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rules of access of an older version let the worker start, and another version stays current. The log says so once."""
    own = await namespace.kubeconfig_of("nobody", kubeconfig, tmp_path)
    latest = await deployed(namespace, "old")
    async with rollouts(Settings(kubeconfig=own, namespace=namespace.name, pod_template_hash=latest)) as look:
        assert [await look(), await look()] == [None, None]
    assert [record.message for record in caplog.records] == ["revision of the Deployment not read"]
