"""What a standby is on Kubernetes: a worker's pod without what says its rank, of a priority below that of any other pod."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kinds import COMPLETION_INDEX
from rekindle.errors import Conflict
from rekindle.model import keys
from tests.support.kubernetes import Namespace
from tests.support.worlds import WORLDS, IndexedJob, KubernetesWorld, OwnKind
from workers.local_kubernetes.installation import DEPLOY

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CLASS: Object = yaml.safe_load((DEPLOY / "base" / "standbys.yaml").read_text())


@pytest.fixture(params=["direct, TrainingJob", "direct, Job"])
async def world(request: pytest.FixtureRequest, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    async with WORLDS[request.param](kubeconfig, tmp_path) as world:
        yield world


async def made(world: KubernetesWorld, job: str) -> Object:
    """The one standby of a job."""
    (standby,) = await world.cluster.ensure_standbys(job, 1, ())
    return await world.namespace.api.get(world.namespace.path("pods", standby.metadata.name))


def environment(pod: Object) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}


async def with_the_class(namespace: Namespace) -> Object:
    with suppress(Conflict):
        return await namespace.api.create(CLASSES, CLASS)
    return await namespace.api.get(f"{CLASSES}/{CLASS['metadata']['name']}")


async def test_a_standby_is_a_worker_without_its_rank(world: KubernetesWorld) -> None:
    """Nothing of it says a rank, its job's controller does not count it, and it says what it is. Without its priority class it has
    that of its job; with it, a lower one than any other pod."""
    job = await world.job(2)
    plain = await made(world, job)
    assert plain["spec"].get("priority", 0) == 0
    await world.cluster.ensure_standbys(job, 0, ())
    await world.namespace.until_gone(plain)
    installed = await with_the_class(world.namespace)
    standby = await made(world, job)
    await world.namespace.api.delete(f"{CLASSES}/{CLASS['metadata']['name']}", installed["metadata"]["uid"])
    said = standby["metadata"]
    assert (standby["spec"]["priority"], standby["spec"]["preemptionPolicy"]) == (CLASS["value"], "Never")
    assert not {keys.RANK_INDEX, COMPLETION_INDEX} & {*said["labels"], *said["annotations"]}
    found = environment(standby)
    assert found[keys.ENV_POD_ROLE] == "standby"
    assert keys.ENV_POD_RANK not in found
    counted = any(owner.get("controller") for owner in said["ownerReferences"])
    assert counted is isinstance(world, OwnKind)
    if isinstance(world, IndexedJob):
        assert found[keys.ENV_JOB_ID] == job
        assert "hostname" not in standby["spec"]


async def test_a_standby_that_somebody_else_took_in_the_same_moment_is_not_taken_twice(world: KubernetesWorld) -> None:
    """What was read of it is the condition: the call fails and is tried again, and finds another state."""
    job = await world.job(2)
    (standby,) = await world.cluster.ensure_standbys(job, 1, ())
    await world.until_runs(job, standby)
    first, second = await world.holder(job, 0), await world.holder(job, 1)
    taken = await world.cluster.ensure_backup(first, "of-0", ())
    other = await world.cluster.ensure_backup(second, "of-1", ())
    assert (taken.metadata.uid, other.metadata.name) == (standby.metadata.uid, "of-1")
