"""Two installations on one cluster: each job is recovered by one of them, as its annotation and that one's Lease say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

import workers.clusters
from activities.clusters.api_server import Object
from activities.clusters.kubernetes import claims, watch
from activities.clusters.kubernetes.claims import Claims
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.port import Snapshot
from rekindle.errors import Forbidden
from rekindle.model import keys
from rekindle.model.cluster import JobObject
from rekindle.settings import Settings
from rekindle.temporal import identity_of
from tests.kubernetes.world.control_plane import Namespace


def claims_of(namespace: Namespace, identity: str, lasts: float = 60) -> Claims:
    async def identify() -> str:
        return identity

    return Claims(namespace.api, namespace.name, identify, lasts)


def cluster_of(namespace: Namespace, claims: Claims) -> KubernetesCluster:
    return KubernetesCluster(namespace.api, Settings(namespaces=(namespace.name,)), claims=claims)


async def a_job(namespace: Namespace, *, suspend: bool = False) -> Object:
    container = {"name": "main", "image": "none", "command": ["sleep", "1000"]}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"completions": 1, "completionMode": "Indexed", "backoffLimit": 0, "suspend": suspend, "template": template}
    body = {"metadata": {"name": "train", "labels": {keys.MANAGED: "true"}}, "spec": spec}
    return await namespace.api.create(namespace.path("jobs"), body)


async def holder(namespace: Namespace) -> str:
    job = await namespace.api.get(namespace.path("jobs", "train"))
    return str(job["metadata"].get("annotations", {}).get(keys.RECOVERED_BY, ""))


@asynccontextmanager
async def observed(cluster: KubernetesCluster) -> AsyncIterator[AsyncIterator[bool]]:
    """Yields whether the job is only observed, as it is first, and each time that something of it changes."""

    async def words() -> AsyncIterator[bool]:
        async for one in news:
            things = one.jobs if isinstance(one, Snapshot) else [one.object]
            for thing in things:
                if isinstance(thing, JobObject):
                    yield thing.observe

    async with asyncio.timeout(60), aclosing(cluster.watch()) as news:
        yield words()


async def test_the_first_installation_recovers_a_job_and_the_second_observes_it(namespace: Namespace) -> None:
    """The job names the first one; the second one says so in an event, and may change nothing."""
    job = await a_job(namespace)
    first, second = claims_of(namespace, "first"), claims_of(namespace, "second")
    await first.renew()
    async with observed(cluster_of(namespace, first)) as words:
        assert await anext(words) is False
    assert await holder(namespace) == await first.own()
    later = cluster_of(namespace, second)
    async with observed(later) as words:
        assert await anext(words) is True
    event = await namespace.until_event("RecoveriesRefused")
    assert await first.own() in event["message"]
    with pytest.raises(Forbidden, match="another installation recovers this job"):
        await later.ensure_stopped(job["metadata"]["uid"], 0)
    with pytest.raises(Forbidden):
        await later.ensure_job_metadata(job["metadata"]["uid"], {}, {keys.MEMORY: "theirs"})
    await later.evictions.ensure_budget(job["metadata"]["uid"], holds=False)
    assert await holder(namespace) == await first.own()


async def test_a_job_that_nobody_has_claimed_is_claimed_by_who_changes_it_first(namespace: Namespace) -> None:
    """The same holds where the watcher may not change jobs."""
    uid = (await a_job(namespace))["metadata"]["uid"]
    first, second = claims_of(namespace, "first"), claims_of(namespace, "second")
    await cluster_of(namespace, first).ensure_job_metadata(uid, {}, {keys.MEMORY: "ours"})
    with pytest.raises(Forbidden):
        await cluster_of(namespace, second).ensure_job_metadata(uid, {}, {keys.MEMORY: "theirs"})


async def test_a_job_that_somebody_changes_meanwhile_is_claimed_as_it_is_then(namespace: Namespace) -> None:
    """The watcher writes its status at any time: a change of the job does not fail for that."""
    uid = (await a_job(namespace))["metadata"]["uid"]
    first, second = claims_of(namespace, "first"), claims_of(namespace, "second")
    stale = await cluster_of(namespace, first)._reader.job(uid)
    await namespace.api.patch(namespace.path("jobs", "train"), {"metadata": {"labels": {"changed": "meanwhile"}}})
    await first.ensure(stale)
    assert await holder(namespace) == await first.own()
    with pytest.raises(Forbidden):
        await second.ensure(stale)


async def test_the_jobs_of_an_installation_that_is_gone_are_taken_over(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its Lease is not there or is not renewed any more; while it is renewed they stay."""
    monkeypatch.setattr(watch, "HOLDERS", 0.05)
    await a_job(namespace)
    first, second = claims_of(namespace, "first"), claims_of(namespace, "second")
    async with observed(cluster_of(namespace, first)) as words:
        assert await anext(words) is False
    async with observed(cluster_of(namespace, second)) as words:
        assert await anext(words) is True
        async for observes in words:
            if not observes:
                break
    assert await holder(namespace) == await second.own()


async def test_an_installation_lives_as_long_as_its_lease_is_renewed(namespace: Namespace) -> None:
    """A claim is over when no renewal is seen for long enough, by the observer's clock. A claim that names no Lease counts as
    none."""
    first, patient, hasty = (claims_of(namespace, name, lasts) for name, lasts in (("a", 60), ("b", 60), ("c", 0)))
    one = await first.own()
    assert await patient.over({one, "../secrets", "somebody"}) == {one, "../secrets", "somebody"}
    await first.renew()
    assert await patient.over({one}) == set()
    await first.renew()
    assert await patient.over({one}) == set()
    assert await hasty.over({one}) == {one}


async def test_no_installation_is_passed_over_for_others(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may name as many Leases as it has jobs, and renew them: who waits longest is looked at next."""
    monkeypatch.setattr(claims, "MOST_HOLDERS", 1)
    living, looking = claims_of(namespace, "living"), claims_of(namespace, "looking")
    await living.renew()
    lives, gone = await living.own(), f"{namespace.name}/rekindle-ffffffffffff"
    assert lives < gone
    assert [await looking.over({lives, gone}) for _ in range(2)] == [set(), {gone}]
    assert await looking.over({lives, gone, f"{namespace.name}/rekindle-000000000000"}) == set()


async def test_who_shares_a_temporal_namespace_is_one_installation(namespace: Namespace, temporal: WorkflowEnvironment) -> None:
    """Wherever its processes are: the workflows of a job are the same ones."""
    identity = await identity_of(temporal.client)
    assert identity == await identity_of(temporal.client) != "default "
    here, there = claims_of(namespace, identity), claims_of(namespace, identity)
    there._namespace = "elsewhere"
    uid = (await a_job(namespace))["metadata"]["uid"]
    for one in (here, there):
        await cluster_of(namespace, one).ensure_job_metadata(uid, {}, {keys.MEMORY: "ours"})
    assert await holder(namespace) == await here.own()


async def test_a_control_worker_tells_that_its_installation_lives(kubeconfig: Path, namespace: Namespace) -> None:
    """A Lease in the namespace of its settings says so, as long as it has its cluster."""

    async def identify() -> str:
        return "of a control worker"

    settings = Settings(cluster="kubernetes", kubeconfig=kubeconfig, namespace=namespace.name, take_over=True)
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"
    async with asyncio.timeout(60), workers.clusters.cluster_of(settings, identify, recovers=True):
        while not (found := (await namespace.api.list(leases)).items):
            await asyncio.sleep(0.02)
    assert found[0]["spec"]["holderIdentity"] == "of a control worker"
