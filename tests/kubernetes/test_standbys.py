"""A standby on Kubernetes is a worker's pod without its rank, with a priority below that of any other pod."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kinds.batch_job import COMPLETION_INDEX
from rekindle.errors import Forbidden, NotFound
from rekindle.model import keys
from simulators.kubernetes.installation import DEPLOY
from tests.kubernetes.world.worlds import WORLDS, IndexedJob, KubernetesWorld, OwnKind

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CLASS: Object = yaml.safe_load((DEPLOY / "base" / "standbys.yaml").read_text())


@pytest.fixture(params=["direct, TrainingJob", "direct, Job"])
async def world(request: pytest.FixtureRequest, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    async with WORLDS[request.param](kubeconfig, tmp_path) as world:
        yield world


@pytest.fixture
async def without_class(world: KubernetesWorld) -> None:
    """Takes the class away that another test has left, and waits until the server's admission has seen that."""
    api, name = world.namespace.api, CLASS["metadata"]["name"]
    with suppress(NotFound):
        await api.delete(f"{CLASSES}/{name}", (await api.get(f"{CLASSES}/{name}"))["metadata"]["uid"])
    spec = {"containers": [{"name": "main", "image": "none"}], "priorityClassName": name}
    known = True
    while known:
        try:
            await api.create(f"{world.namespace.path('pods')}?dryRun=All", {"metadata": {"name": "probe"}, "spec": spec})
        except Forbidden as refused:
            known = name not in str(refused)


async def made(world: KubernetesWorld, job: str) -> Object:
    """Returns the one standby of a job."""
    (standby,) = await world.cluster.ensure_standbys(job, 1, ())
    return await world.namespace.api.get(world.namespace.path("pods", standby.metadata.name))


def environment(pod: Object) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}


@pytest.mark.usefixtures("without_class")
async def test_a_standby_is_a_worker_without_its_rank(world: KubernetesWorld) -> None:
    """A standby carries no rank, has a mark of its own, and is not counted by its job's controller. Its priority is lower than
    that of any other pod, or its job's where no class defines one."""
    job = await world.job(2)
    plain = await made(world, job)
    assert plain["spec"].get("priority", 0) == 0
    await world.cluster.ensure_standbys(job, 0, ())
    await world.namespace.until_gone(plain)
    installed = await world.namespace.api.create(CLASSES, CLASS)
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
