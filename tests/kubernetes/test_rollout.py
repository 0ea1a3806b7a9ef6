"""A control worker finds out by the Deployment, with the real controller, whether it is what is rolled out."""

import asyncio
from pathlib import Path

import pytest

from activities.clusters.api_server import Object
from rekindle.errors import NotFound
from rekindle.settings import Settings
from tests.kubernetes.world.control_plane import WAIT_LIMIT, Namespace
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


async def test_a_revision_that_nobody_has_written_is_not_known(namespace: Namespace, kubeconfig: Path) -> None:
    """Somebody has removed the annotation of the ReplicaSet, and two that are missing are not equal."""
    latest = await deployed(namespace, "old")
    path = namespace.path("replicasets", f"{DEPLOYMENT}-{latest}")
    settings = Settings(kubeconfig=kubeconfig, namespace=namespace.name, pod_template_hash=latest)
    assert await seen(settings)
    await namespace.api.patch(namespace.path("deployments", DEPLOYMENT), {"spec": {"paused": True}})
    await namespace.api.patch(path, {"metadata": {"annotations": {REVISION: ""}}})
    assert await seen(settings) is None
