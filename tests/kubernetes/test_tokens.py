"""Only a holder of a token of a job's pods may speak for a job of our training side on Kubernetes. The API server confirms the
token."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.tokens import TOKEN_REVIEWS, pod_of_token
from rekindle.errors import ClusterUnavailable, NotFound, Refused, Unavailable
from rekindle.model import keys
from rekindle.settings import Settings
from rekindle_training import names
from tests.fakes.api_proxy import ApiProxy, api_proxy
from tests.fakes.controller import apply_crds
from tests.fakes.kubeflow import pytorch_jobs_path
from tests.fakes.scripted_api import scripted_api
from tests.kubernetes.world.control_plane import Namespace, a_namespace
from tests.kubernetes.world.service_account_tokens import claims_in, new_key, signed, token_of, unsigned
from workers.gateway.caller_auth import Senders, Times, rules_of
from workers.gateway.jobs_of_pods import FRESH_REFUSAL
from workers.gateway.tokens import Times as TokenTimes
from workers.gateway.tokens import Tokens

HERE = "ipv4:127.0.0.1:5"
"""The address of all pods of our kubelets: it proves nothing here."""

REVIEW = ("POST", TOKEN_REVIEWS)
QUICK = Times(gap=0.05, patience=1, fresh=0)


@dataclass
class Scene:
    """Two jobs of one pod each, and the state of a gateway that serves them."""

    namespace: Namespace
    proxy: ApiProxy
    senders: Senders
    directory: Path
    key: Path
    """The key with which the API server signs."""

    job_id: str
    pod: Object
    other: Object
    """The pod of the other job."""

    async def check(self, token: str) -> None:
        await self.senders.check(self.job_id, HERE, token)


async def a_job(namespace: Namespace, name: str) -> tuple[str, Object]:
    """Returns a job's UID and its running pod."""
    container = {"name": "main", "image": "none", "command": ["sleep", "1000"]}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"completions": 1, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    job = await namespace.api.create(namespace.path("jobs"), {"metadata": {"name": name}, "spec": spec})
    return job["metadata"]["uid"], await running_pod(namespace, name)


async def running_pod(namespace: Namespace, job: str) -> Object:
    pods, selector = namespace.path("pods"), f"job-name={job}"
    async with aclosing(namespace.api.watch(pods, "0", labelSelector=selector)) as changes:
        async for change in changes:
            if change.object["status"].get("phase") == "Running":
                return change.object
    raise AssertionError("a watch has no end")


@pytest.fixture
async def scene(namespace: Namespace, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    job_id, pod = await a_job(namespace, "train")
    _, other = await a_job(namespace, "another")
    async with api_proxy(kubeconfig, tmp_path) as proxy, Api(proxy.kubeconfig) as api:
        cluster = KubernetesCluster(api, Settings())
        tokens = Tokens(cluster.pod_of_token, TokenTimes(fresh=0, denied=0, gap=0))
        senders = Senders(cluster, tokens, rules_of(Settings()), QUICK)
        yield Scene(namespace, proxy, senders, tmp_path, kubeconfig.parent / "service-accounts.key", job_id, pod, other)
        await senders.close()


async def test_a_pod_speaks_for_its_job_with_its_token(scene: Scene) -> None:
    """A valid token is issued by the API server for this pod and for our audience."""
    await scene.check(await token_of(scene.namespace, scene.pod))
    assert scene.proxy.requests.count(REVIEW) == 1


async def expired(scene: Scene) -> str:
    return signed(claims_in(await token_of(scene.namespace, scene.pod)) | {"exp": 1_000_000, "iat": 1, "nbf": 1}, scene.key)


async def of_another_cluster(scene: Scene) -> str:
    return signed(claims_in(await token_of(scene.namespace, scene.pod)), new_key(scene.directory / "another.key"))


async def rewritten(scene: Scene) -> str:
    """Rewrites the other pod's token so that it names the job's own pod."""
    signature = (await token_of(scene.namespace, scene.other)).split(".")[2]
    return unsigned(claims_in(await token_of(scene.namespace, scene.pod)), signature)


async def written(token: str) -> str:
    return token


UNCONFIRMED = "the API server does not confirm the token: "
NO_TOKEN_OF_A_POD = "the token is none that Kubernetes makes for a pod"
API_SERVER = "https://kubernetes.default.svc"

ATTEMPTS: dict[str, tuple[Callable[[Scene], Awaitable[str]], str, int]] = {
    "none": (lambda _: written(""), "no token came with the call; the manager's pod needs a projected service account", 0),
    "garbage": (lambda _: written("x.y.z"), NO_TOKEN_OF_A_POD, 0),
    "a megabyte": (lambda _: written("a" * 2**20), "1048576 characters: accepted are at most 4096", 0),
    "of no pod": (lambda scene: token_of(scene.namespace, None), NO_TOKEN_OF_A_POD, 0),
    "another audience": (
        lambda scene: token_of(scene.namespace, scene.pod, API_SERVER),
        "accepted is the audience rekindle-g",
        0,
    ),
    "another job's pod": (lambda scene: token_of(scene.namespace, scene.other), "the token's pod is none of this job", 0),
    "expired": (expired, f"{UNCONFIRMED}.*expired", 1),
    "another cluster": (of_another_cluster, UNCONFIRMED, 1),
    "rewritten": (rewritten, UNCONFIRMED, 1),
}
"""Attempts to speak for the job: the token that is sent, the reply, and the number of requests that the API server receives."""


@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_nobody_else_speaks_for_it(attempt: str, scene: Scene) -> None:
    """Any other token is refused, though all calls use the address of the job's pod."""
    make, words, reviews = ATTEMPTS[attempt]
    token = await make(scene)
    with pytest.raises(Refused, match=words) as refused:
        await scene.check(token)
    assert str(refused.value).startswith(f"jobId={scene.job_id}: ")
    assert scene.proxy.requests.count(REVIEW) == reviews


async def test_an_event_of_the_job_says_what_its_manager_lacks(scene: Scene) -> None:
    """The event is written once an hour, because the client calls again every second. Calls from elsewhere cause no event."""
    with pytest.raises(Refused):
        await scene.senders.check(scene.job_id, "ipv4:10.9.9.9:5", "")
    for _ in range(3):
        with pytest.raises(Refused):
            await scene.check("")
    event = await scene.namespace.until_event("SenderRefused")
    assert (event["type"], event["involvedObject"]["uid"]) == ("Warning", scene.job_id)
    assert "needs a projected service account token with the audience rekindle-gateway" in event["message"]
    assert "10.9.9.9" not in event["message"]
    assert len([path for method, path in scene.proxy.requests if method == "POST" and path.endswith("/events")]) == 1


async def test_a_pod_that_is_gone_speaks_no_more(scene: Scene) -> None:
    """A pod that is gone may not speak, though its tokens are valid for longer. This holds for a token that was used before and
    for one that was not."""
    heard, other = [await token_of(scene.namespace, scene.pod) for _ in range(2)]
    await scene.check(heard)
    name, uid = scene.pod["metadata"]["name"], scene.pod["metadata"]["uid"]
    await scene.namespace.api.delete(scene.namespace.path("pods", name), uid, 0)
    await scene.namespace.until_gone(scene.pod)
    with pytest.raises(Refused, match=UNCONFIRMED):
        await scene.check(other)
    with suppress(Refused):
        async with asyncio.timeout(60):
            while True:  # the API server remembers for some seconds whom it has confirmed
                await scene.check(heard)
    with pytest.raises(Refused, match="none of this job"):
        await scene.check(heard)


async def test_for_a_job_that_is_not_there_nobody_speaks(scene: Scene) -> None:
    """Any token is refused for a job that does not exist."""
    token = await token_of(scene.namespace, scene.pod)
    with pytest.raises(Refused, match="jobId=nobody"):
        await scene.senders.check("nobody", HERE, token)
    assert REVIEW not in scene.proxy.requests


async def test_without_the_right_to_ask_nobody_is_refused_or_let_in(scene: Scene, kubeconfig: Path, tmp_path: Path) -> None:
    """The answer names the missing right, and the client calls again."""
    async with Api(await scene.namespace.kubeconfig_of("nothing", kubeconfig, tmp_path)) as api:
        tokens = Tokens(KubernetesCluster(api, Settings()).pod_of_token)
        administrator = KubernetesCluster(scene.namespace.api, Settings())
        senders = Senders(administrator, tokens, rules_of(Settings()), QUICK)
        with pytest.raises(Unavailable, match='cannot create resource "tokenreviews"'):
            await senders.check(scene.job_id, HERE, await token_of(scene.namespace, scene.pod))
        await senders.close()


async def test_the_manager_of_our_kind_of_job_finds_its_token(scene: Scene, kubeconfig: Path) -> None:
    """A manager of our kind finds its token in the file that its environment names. With it, the manager speaks for its own job
    and for no other. The workers have no token."""
    namespace = scene.namespace
    shows = ["sh", "-c", 'grep -q . "$REKINDLE_TOKEN_FILE" && exec sleep 1000']
    spec = {"pods": 1, "ranksPerPod": 1, "command": ["sleep", "1000"], "manager": shows, "kubernetes": {"image": "none"}}
    body = {"apiVersion": "rekindle.io/v1", "kind": "TrainingJob", "metadata": {"name": "own"}, "spec": spec}
    job_id = (await namespace.api.create(namespace.path("trainingjobs"), body))["metadata"]["uid"]
    await KubernetesCluster(namespace.api, Settings()).ensure_pods(job_id, "0", ())
    manager = await namespace.until_phase("own-manager-0", "Running")
    worker = await namespace.until_phase("own-worker-0", "Running")
    assert "rekindle-token" not in {volume["name"] for volume in worker["spec"].get("volumes", ())}
    token = (kubeconfig.parent / "pods" / manager["metadata"]["uid"] / "rekindle-token" / "token").read_text()
    await scene.senders.check(job_id, HERE, token)
    with pytest.raises(Refused, match="none of this job"):
        await scene.check(token)


async def test_the_template_of_the_page_gives_a_token(scene: Scene, kubeconfig: Path) -> None:
    """A pod of a foreign kind receives a token by the volume that docs/kubernetes-security.md shows."""
    page = (Path(__file__).parents[2] / "docs" / "kubernetes-security.md").read_text()
    (shown,) = re.findall(r"```yaml\n(volumes:.*?)```", page, re.DOTALL)
    spec = yaml.safe_load(shown)
    spec["containers"][0] |= {"image": "none", "command": ["sleep", "1000"]}
    template = {"spec": {**spec, "restartPolicy": "Never"}}
    body = {"metadata": {"name": "shown"}, "spec": {"completions": 1, "completionMode": "Indexed", "template": template}}
    job = await scene.namespace.api.create(scene.namespace.path("jobs"), body)
    pod = await running_pod(scene.namespace, "shown")
    (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == "rekindle-token"]
    assert Path(mount["mountPath"]) / "token" == Path(names.DEFAULT_TOKEN_FILE)
    token = (kubeconfig.parent / "pods" / pod["metadata"]["uid"] / "rekindle-token" / "token").read_text()
    await scene.senders.check(job["metadata"]["uid"], HERE, token)


async def a_manager(namespace: Namespace, name: str, job: str) -> Object:
    """Creates a pod of its own Job, which states that it is the manager of a job with this name."""
    container = {"name": "main", "image": "none", "command": ["sleep", "1000"]}
    labels = {keys.MANAGER_OF: job, keys.REPLICA_TYPE: "manager"} if job else {}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    await namespace.api.create(namespace.path("jobs"), {"metadata": {"name": name}, "spec": {"template": template}})
    return await running_pod(namespace, name)


async def managed(namespace: Namespace, job: str) -> None:
    await namespace.api.patch(namespace.path("jobs", job), {"metadata": {"labels": {keys.MANAGED: "true"}}})


async def test_a_manager_is_told_its_job_for_its_token(scene: Scene) -> None:
    """A manager is a pod of the job, or a pod that names it. It may speak for that job then."""
    await managed(scene.namespace, "train")
    manager = await a_manager(scene.namespace, "train-manager", "train")
    for pod in (scene.pod, manager):
        token = await token_of(scene.namespace, pod)
        assert await scene.senders.job_of(HERE, token) == scene.job_id
        await scene.check(token)


async def test_a_manager_of_no_job_or_of_two_is_told_what_is_wrong(scene: Scene) -> None:
    """The manager receives its job as soon as there is one: a manager may be created before its job."""
    manager = await a_manager(scene.namespace, "train-manager", "train")
    stray = await a_manager(scene.namespace, "stray", "")
    token = await token_of(scene.namespace, manager)
    with pytest.raises(Refused, match=r"manager-of=train of the token's pod names nothing of namespace .* asks for recoveries"):
        await scene.senders.job_of(HERE, token)
    with pytest.raises(Refused, match=r"is of Job stray, which asks for no recoveries: its label .*manager-of may name"):
        await scene.senders.job_of(HERE, await token_of(scene.namespace, stray))
    await managed(scene.namespace, "train")
    await until_named(scene, token)
    await apply_crds(scene.namespace.api)
    of_a_kind = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
    other = {**of_a_kind, "metadata": {"name": "train", "labels": {keys.MANAGED: "true"}}, "spec": {"pytorchReplicaSpecs": {}}}
    await scene.namespace.api.create(pytorch_jobs_path(scene.namespace.name), other)
    second = await token_of(scene.namespace, await a_manager(scene.namespace, "another-manager", "train"))
    with pytest.raises(Refused, match=r"names the Job and the PyTorchJob of namespace .*: accepted is the name of one job"):
        await scene.senders.job_of(HERE, second)


async def test_a_pod_that_claims_another_tenants_job_is_told_none(scene: Scene, kubeconfig: Path) -> None:
    """A tenant writes the job's UID as its controller's, or as its own id. Such a pod may not speak for the job, and does not
    learn the job either."""
    await managed(scene.namespace, "train")
    cluster = KubernetesCluster(scene.namespace.api, Settings())
    async with a_namespace(kubeconfig, "another-tenant") as tenant:
        owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": scene.job_id, "controller": True}
        bare = {keys.JOB_ID: f"{scene.namespace.name}.train", keys.BARE_JOB_NAME: "train"}
        claims: list[Object] = [{"ownerReferences": [owner]}, {"labels": bare}]
        for number, claim in enumerate(claims):
            spec = {"containers": [{"name": "main", "image": "none"}]}
            body = {"metadata": {"name": f"claims-{number}", **claim}, "spec": spec}
            pod = await tenant.api.create(tenant.path("pods"), body)
            with pytest.raises((Refused, NotFound)):  # the garbage collector may be faster
                await cluster.job_of_pod(tenant.name, pod["metadata"]["name"], pod["metadata"]["uid"])


async def until_named(scene: Scene, token: str) -> None:
    """Retries until the job is named, because a refusal is remembered for a moment."""
    async with asyncio.timeout(FRESH_REFUSAL + 10):
        while True:
            with suppress(Refused):
                assert await scene.senders.job_of(HERE, token) == scene.job_id
                return
            await asyncio.sleep(0.05)


async def test_a_pod_that_is_gone_is_of_no_job(scene: Scene) -> None:
    """The token may be confirmed for another minute; no job is named for it."""
    await managed(scene.namespace, "train")
    cluster = KubernetesCluster(scene.namespace.api, Settings())
    for namespace, name in ((scene.namespace.name, "gone"), ("../..", "gone"), (scene.namespace.name, "a/b?c"), ("", "")):
        with pytest.raises(NotFound, match=r"the token's pod .* is"):
            await cluster.job_of_pod(namespace, name, "no-uid")


async def test_a_server_that_is_not_ready_denies_nobody(tmp_path: Path) -> None:
    """A server that has just started, or is without its store, confirms no token: the caller is asked to come again."""
    async with scripted_api(tmp_path) as (server, api):
        for code, error in ((503, ClusterUnavailable), (200, Refused)):
            server.answers = {("GET", "/readyz"): (code, {}), REVIEW: (201, {"status": {"error": "invalidated"}})}
            with pytest.raises(error):
                await pod_of_token(api, "a token")


async def test_a_server_that_knows_no_audience_confirms_nothing(tmp_path: Path) -> None:
    """A server that ignores the audience, or names no pod, confirms no token: it would accept everything."""
    uid = {"authentication.kubernetes.io/pod-uid": ["a-uid"]}
    good = {"authenticated": True, "user": {"extra": uid}, "audiences": ["rekindle-gateway"]}
    async with scripted_api(tmp_path) as (server, api):
        for status in (good | {"audiences": []}, good | {"user": {}}, {**good, "audiences": ["another"]}):
            server.answers = {REVIEW: (201, {"status": status})}
            with pytest.raises(Refused, match="not one of a pod for the audience"):
                await pod_of_token(api, "a token")
        server.answers = {REVIEW: (201, {"status": good})}
        assert await pod_of_token(api, "a token") == "a-uid"
