"""Errors in a job, a node or an account on Kubernetes are reported where an administrator looks, and nothing is retried for
ever."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from rekindle.errors import Forbidden, Invalid, NotFound
from rekindle.model import keys
from rekindle.model.cluster import JobView
from rekindle.model.fault import Sighting
from rekindle.model.limits import Limits
from rekindle.policy.detection.sighting import sight
from rekindle.policy.detection.watcher_updates import End, News, Register
from rekindle.settings import Settings
from simulators.kubernetes.console import application
from simulators.kubernetes.installation import RBAC
from tests.fakes.api_proxy import api_proxy
from tests.kubernetes.world.control_plane import Namespace
from tests.kubernetes.world.worlds import pod_spec
from tests.support.cluster import FOREVER
from workers.watcher.watcher import Watcher


class Workflows:
    """Accepts every report."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[News] = asyncio.Queue()

    async def send(self, job_id: str, news: News, update_id: str) -> None:
        self.news.put_nowait(news)

    async def has_trained(self, _: str) -> bool:
        return True

    async def lost(self, job_ids: Collection[str]) -> list[str]:
        return []

    async def running(self) -> set[str]:
        return set()

    async def until_seen(self) -> Sighting:
        """Returns the next observation. Nothing has ended until then."""
        news = await self.news.get()
        assert not isinstance(news, End)
        seen = news.registration.sighting if isinstance(news, Register) else news.sighting
        assert seen
        return seen


@pytest.fixture
async def cluster(kubeconfig: Path, namespace: Namespace) -> AsyncIterator[KubernetesCluster]:
    settings = Settings(cluster="kubernetes", namespaces=(namespace.name,))
    cluster = KubernetesCluster(Api(kubeconfig), settings)
    yield cluster
    await cluster.close()


async def create_job(
    namespace: Namespace, annotations: Mapping[str, str] | None = None, command: Sequence[str] = FOREVER
) -> Object:
    """Creates an indexed Job of one pod, which may not fail."""
    metadata = {"name": "demo", "labels": {keys.MANAGED: "true"}, "annotations": dict(annotations or {})}
    template = {"spec": pod_spec(command, 0)}
    spec = {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    return await namespace.api.create(namespace.path("jobs"), {"metadata": metadata, "spec": spec})


async def refusal(namespace: Namespace, cluster: KubernetesCluster) -> str:
    """Returns the message of the event JobRefused, once the watcher has seen the job."""
    watching = asyncio.create_task(Watcher(cluster, Workflows(), Limits()).run())
    try:
        event = await namespace.until_event("JobRefused")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return str(event["message"])


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({keys.LIMITS: '{"pause": -1}'}, "metadata.annotations.rekindle.io/limits.pause"),
        ({keys.LIMITS: "pause: yes"}, "metadata.annotations.rekindle.io/limits.pause"),
        ({keys.STANDBYS: "17"}, "use a whole number from 0 to 16"),
        ({keys.LIMITS: "[1, 2]"}, "must be a mapping of limits to seconds"),
        ({keys.RANKS_PER_POD: "many"}, "'many' is not accepted, use a whole number from 1"),
        ({keys.RANKS_PER_POD: "1000000000"}, "a job has at most 10000 ranks"),
        ({keys.RANKS_PER_POD: "9" * 5000}, "a job has at most 10000 ranks"),
        ({keys.TRAINING_SIDE: "theirs"}, "accepted: rekindle, mindio"),
    ],
)
async def test_a_job_that_means_nothing_says_so(
    namespace: Namespace, cluster: KubernetesCluster, annotations: dict[str, str], words: str
) -> None:
    """An event of the job names the field, what was wrong and what is accepted."""
    await create_job(namespace, annotations)
    assert words in await refusal(namespace, cluster)


async def test_a_job_of_a_queue_is_told_at_its_registration_what_works(namespace: Namespace, cluster: KubernetesCluster) -> None:
    """A job of a queue is registered, and an event says that a hot switch works. A restart would be undone by the queue."""
    job = await create_job(namespace)
    workflows = Workflows()
    watching = asyncio.create_task(Watcher(cluster, workflows, Limits()).run())
    try:
        await namespace.api.patch(namespace.path("jobs", "demo"), {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}})
        event = await namespace.until_event("RestartsRefused")
        while not (isinstance(news := await workflows.news.get(), Register) and news.registration.job.queue):
            pass
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert event["involvedObject"]["uid"] == job["metadata"]["uid"]
    assert "Kueue, queue 'gpus'" in event["message"]
    assert "a hot switch works" in event["message"]


async def test_a_word_that_means_nothing_ends_no_job(kubeconfig: Path, namespace: Namespace, tmp_path: Path) -> None:
    """An invalid value ends no job, also when everything is listed again: the job is there, and its earlier values hold."""
    job = await create_job(namespace)
    workflows = Workflows()
    async with api_proxy(kubeconfig, tmp_path) as proxy:
        cluster = KubernetesCluster(Api(proxy.kubeconfig), Settings(cluster="kubernetes", namespaces=(namespace.name,)))
        watching = asyncio.create_task(Watcher(cluster, workflows, Limits()).run())
        while not any(held := (await workflows.until_seen()).holders):
            pass
        await namespace.api.patch(namespace.path("jobs", "demo"), {"metadata": {"annotations": {keys.LIMITS: "[1, 2]"}}})
        await namespace.until_event("JobRefused")
        await proxy.until_watched()
        proxy.expire_watches()
        await proxy.until_watched()
        (pod,) = (await namespace.api.list(namespace.path("pods"))).items
        await namespace.api.delete(namespace.path("pods", pod["metadata"]["name"]), pod["metadata"]["uid"], 0)
        while (await workflows.until_seen()).holders == held:
            pass
        await namespace.api.delete(namespace.path("jobs", "demo"), job["metadata"]["uid"])
        while not isinstance(await workflows.news.get(), End):
            pass
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await cluster.close()


async def test_pods_without_a_number_are_refused(namespace: Namespace, cluster: KubernetesCluster) -> None:
    """Pods without an annotation of their number are refused: that number cannot be guessed while they appear one by one."""
    labels = {keys.JOB_ID: f"{namespace.name}.loose", keys.BARE_JOB_NAME: "loose", keys.MANAGED: "true"}
    metadata = {"name": "loose-0", "labels": labels, "annotations": {keys.RANK_INDEX: "0"}}
    await namespace.api.create(namespace.path("pods"), {"metadata": metadata, "spec": pod_spec(FOREVER, 0)})
    assert keys.PODS in await refusal(namespace, cluster)


async def test_a_pod_without_a_rank_and_two_with_one_are_problems(namespace: Namespace, cluster: KubernetesCluster) -> None:
    """Each problem names its pod; the job is found all the same."""
    job_id = f"{namespace.name}.mixed"
    labels = {keys.JOB_ID: job_id, keys.BARE_JOB_NAME: "mixed"}
    for name, rank in (("a", {keys.RANK_INDEX: "0"}), ("b", {keys.RANK_INDEX: "0"}), ("c", {})):
        metadata = {"name": name, "labels": labels, "annotations": {keys.PODS: "3", **rank}}
        await namespace.api.create(namespace.path("pods"), {"metadata": metadata, "spec": pod_spec(FOREVER, 0)})
        await namespace.until_phase(name, "Running")
    view = JobView(job=await cluster.job(job_id), pods=tuple(await cluster.pods(job_id)))
    found = " / ".join(sight(view).problems)
    assert "pod c" in found
    assert "pods a and b" in found


async def test_a_missing_right_is_named(kubeconfig: Path, namespace: Namespace, tmp_path: Path) -> None:
    """An account that may read and not write receives verb, resource and namespace at its first write."""
    job = await create_job(namespace)
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
    await namespace.api.create(f"{RBAC}/namespaces/{namespace.name}/roles", {"metadata": {"name": "looks"}, "rules": rules})
    binding = {
        "metadata": {"name": "looks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looks"},
        "subjects": [{"kind": "ServiceAccount", "name": "looker", "namespace": namespace.name}],
    }
    await namespace.api.create(f"{RBAC}/namespaces/{namespace.name}/rolebindings", binding)
    config = await namespace.kubeconfig_of("looker", kubeconfig, tmp_path)
    cluster = KubernetesCluster(Api(config), Settings(cluster="kubernetes", namespaces=(namespace.name,)))
    async with aclosing(cluster.follow(job["metadata"]["uid"])) as states:
        async for pods in states:
            if pods and pods[0].spec.node_name:
                break
    with pytest.raises(Forbidden, match=f'cannot create resource "pods" in API group "" in the namespace "{namespace.name}"'):
        await cluster.ensure_backup(pods[0], "spare", ())
    await cluster.close()


async def test_a_job_that_failed_for_good_is_not_waited_for(namespace: Namespace, cluster: KubernetesCluster) -> None:
    """The controller of a failed job creates no more pods: the restart reports the reason at once."""
    job = await create_job(namespace, command=("false",))

    def failed(job: Object) -> bool:
        return any(one["type"] == "Failed" for one in job.get("status", {}).get("conditions", ()))

    await namespace.until("jobs", "demo", failed)
    with pytest.raises(Invalid, match="has failed for good: Job has reached the specified backoff limit"):
        await cluster.ensure_pods(job["metadata"]["uid"], "second", ())


async def test_an_unknown_node_is_not_found(kubeconfig: Path, tmp_path: Path) -> None:
    """`rekindle fault inject` on a node that does not exist prints an error that names the node."""
    async with Api(kubeconfig) as api, TestClient(TestServer(application(api, tmp_path, tmp_path))) as client:
        answer = await client.patch("/nodes/node-99", json={"conditions": [{"type": "SubHealthy", "status": "True"}]})
        said: dict[str, Any] = await answer.json()
    assert answer.status == web.HTTPNotFound.status_code
    assert "node-99" in said["message"]


async def test_a_node_is_released_on_the_local_kubernetes(kubeconfig: Path, tmp_path: Path) -> None:
    """A node is released as the stress test that isolated it advises: by a request for the node and two annotations."""
    async with Api(kubeconfig) as api, TestClient(TestServer(application(api, tmp_path, tmp_path))) as client:
        for value in ("a card computes wrongly", None):
            await client.patch("/nodes/node-2", json={"annotations": {keys.ISOLATED: value}})
            found: dict[str, Any] = await (await client.get("/nodes/node-2")).json()
            assert found["metadata"].get("annotations", {}).get(keys.ISOLATED) == value


async def test_an_unknown_job_is_not_found(cluster: KubernetesCluster) -> None:
    """The error contains the UID of the unknown job."""
    with pytest.raises(NotFound, match="no job has the UID nobody"):
        await cluster.pods("nobody")
