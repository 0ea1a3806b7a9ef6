"""The rights in `deploy/` are enough and no more: each account makes every request that its process may ever make, and none is
refused."""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from temporalio.testing import ActivityEnvironment

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.asking import words_of_controllers
from activities.clusters.kubernetes.claims import Claims
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kinds import KINDS
from activities.clusters.kubernetes.pod_operations import delete_pod
from activities.clusters.port import Cluster
from activities.journal import JournalActivities
from activities.pods import PodActivities
from rekindle.errors import Forbidden, NotFound, Refused
from rekindle.model import keys
from rekindle.model.activities.jobs import RememberRequest, Survey, SurveyRequest
from rekindle.model.cluster import ClusterEvent, JobObject, Pod, PodPhase, WatchEvent
from rekindle.model.state import Remembered
from rekindle.policy.detection.isolation import isolated
from rekindle.settings import Settings
from simulators.kubernetes.installation import DEPLOY, install, kubeconfig_of
from tests.fakes.api_proxy import ApiProxy, api_proxy
from tests.fakes.controller import apply_crds
from tests.fakes.volcano import operator_and_volcano
from tests.kubernetes.test_rollout import deployed
from tests.kubernetes.world.control_plane import Namespace, a_namespace, endpoint_of
from tests.kubernetes.world.worlds import NODES, BarePods, IndexedJob, KubernetesWorld, Operated, OwnKind, tried
from tests.support.charts import given, objects
from workers.operator import Operator
from workers.other_controller import NAMESPACE, SERVICE, refuse_beside_another_controller
from workers.own_workload import own_workload
from workers.rollout import DEPLOYMENT, rollouts

VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "WATCH": "watch"}
EVENT = ClusterEvent(name="demo", kind="any", reason="Seen", message="by a test")

Right = tuple[str, str, str]
"""API group, resource, verb."""

OF_POLICIES = {("rekindle.io", "marks", "set"), ("rekindle.io", "priority", "use")}
"""Rights that only our admission policies ask for."""


def granted(account: str) -> set[Right]:
    """Returns the rights that the manifests give an account, in all namespaces or in its own."""
    things = list(yaml.safe_load_all((DEPLOY / "base" / "rbac.yaml").read_text()))
    bound = {
        thing["roleRef"]["name"]
        for thing in things
        if thing["kind"].endswith("Binding") and any(subject["name"] == f"rekindle-{account}" for subject in thing["subjects"])
    }
    rules = [
        rule
        for thing in things
        if thing["kind"] in ("Role", "ClusterRole") and thing["metadata"]["name"] in bound
        for rule in thing["rules"]
    ]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked(proxy: ApiProxy) -> set[Right]:
    """Returns the requests to the API server, as RBAC names them."""
    return {right for method, path in proxy.requests if (right := _right(method, path))}


def _right(method: str, path: str) -> Right | None:
    found = re.fullmatch(r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/[^/]+(?=/))?/(?P<rest>.+)", path)
    if found is None:
        return None
    resource, *name = found["rest"].split("/")
    verb = VERBS.get(method) or ("get" if name else "list")
    return found["group"] or "", "/".join([resource, *name[1:]]), verb


@dataclass
class Accounts:
    """A namespace, and clusters with the rights of each account."""

    admin: Namespace
    proxies: dict[str, ApiProxy] = field(default_factory=dict)
    clusters: dict[str, KubernetesCluster] = field(default_factory=dict)
    claims: dict[str, Claims] = field(default_factory=dict)

    def world(self, kind: type[KubernetesWorld]) -> KubernetesWorld:
        return kind(self.admin, self.proxies["control"], self.clusters["control"])


@asynccontextmanager
async def accounts(kubeconfig: Path, directory: Path, name: str) -> AsyncIterator[Accounts]:
    async def identify() -> str:
        return f"of the test in {name}"

    async with AsyncExitStack() as ends:
        admin = await ends.enter_async_context(a_namespace(kubeconfig, name))
        await apply_crds(admin.api)
        await install(admin.api, endpoint_of(kubeconfig), directory)
        await ends.enter_async_context(operator_and_volcano(admin))
        found = Accounts(admin)
        for account in ("control", "gateway", "watcher", "operator"):
            (directory / account).mkdir()
            proxy = await ends.enter_async_context(api_proxy(kubeconfig_of(account, directory), directory / account))
            found.proxies[account] = proxy
            settings = Settings(cluster="kubernetes", kubeconfig=proxy.kubeconfig, namespaces=(name,))
            api = Api(proxy.kubeconfig)
            found.claims[account] = Claims(api, NAMESPACE, identify)
            found.clusters[account] = KubernetesCluster(api, settings, claims=found.claims[account])
            ends.push_async_callback(found.clusters[account].close)
        settings = Settings(cluster="kubernetes", namespaces=(name,))
        serving = asyncio.create_task(Operator(found.clusters["operator"]._api, settings).run())
        yield found
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def recover(world: KubernetesWorld, marker: Path) -> str:
    """Runs all that recoveries do to a job. Its first manager fails when the marker appears."""
    once = f"mkdir {marker}.first || exec sleep 1000; while ! test -e {marker}; do sleep 0.05; done; exit 1"
    job = await world.job(2, manager=("sh", "-c", once))
    if isinstance(world, OwnKind):
        await until_the_manager_is_back(world, job, marker.touch)
        await begin_anew(world)
    cluster = world.cluster
    await cluster.ensure_job_metadata(job, {}, {keys.TOPOLOGY: "kubernetes.io/os"})
    if world.has_standbys:
        await cluster.ensure_standbys(job, 1, ())
        await cluster.ensure_standbys(job, 0, ())
    await cluster.ensure_backup(await world.holder(job, 0), "spare", ())
    await cluster.ensure_no_backups(job, 0)
    old = await world.holder(job, 1)
    backup = await world.until_runs(job, await cluster.ensure_backup(old, "taker", ()))
    await cluster.ensure_deleted(job, old.metadata.name, old.metadata.uid, 0)
    await world.until_gone(job, old)
    await cluster.ensure_promoted(job, backup.metadata.name, backup.metadata.uid)
    stopped = await cluster.ensure_stopped(job, 0)
    await world.until_gone(job, *stopped)
    await tried(lambda: cluster.ensure_pods(job, "second", ()))
    await cluster.ensure_job_metadata(job, {keys.SUB_HEALTHY_STRATEGY: "ignore"}, {})
    await look_and_remember(cluster, job)
    assert Remembered.model_validate_json((await world.labels(job))[keys.MEMORY]).incidents == 1
    await cluster.record(job, EVENT)
    return job


async def look_and_remember(cluster: Cluster, job: str) -> None:
    """Runs what workflows do without any recovery: they look at the job, its pods and some nodes, and leave a note on the job."""
    pods, run = PodActivities(cluster), ActivityEnvironment().run
    survey: Survey = await run(pods.survey, SurveyRequest(job_id=job, nodes=NODES))
    assert survey.exists
    await run(JournalActivities(cluster).remember, RememberRequest(job_id=job, memory=Remembered(incidents=1)))
    name = NODES[0]
    await cluster.annotate_node(name, {keys.ISOLATED: "by a test"})
    assert name in isolated(await cluster.nodes())
    await cluster.annotate_node(name, {keys.ISOLATED: None})
    assert name not in isolated(await cluster.nodes())
    for cordoned in (True, False):
        await cluster.cordon_node(name, cordoned=cordoned)
    await cluster.pods_on(name)


async def tell_why_a_drain_waits(cluster: Cluster, job: str) -> None:
    """Records why a drain waits, on a pod and on its node."""
    pod = next(pod for pod in await cluster.pods(job) if pod.spec.node_name)
    for kind, name in (("Pod", pod.metadata.name), ("Node", pod.spec.node_name)):
        await cluster.record(job, ClusterEvent(name=name, kind=kind, reason="DrainWaits", message="by a test"))


async def foreign_jobs(namespace: Namespace) -> list[Object]:
    """Creates one job of each kind whose controller is not here."""
    template = {"spec": {"containers": [{"name": "main", "image": "none", "command": ["true"]}]}}
    specs = {
        "JobSet": {"replicatedJobs": [{"name": "workers", "template": {"spec": {"template": template}}}]},
        "PyTorchJob": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}},
        "TrainJob": {"trainer": {"numNodes": 1}},
    }
    created = []
    for name, spec in specs.items():
        (kind,) = (one for one in KINDS if one.name == name)
        metadata = {"name": name.lower(), "labels": {keys.MANAGED: "true"}}
        body = {"apiVersion": kind.api_version, "kind": name, "metadata": metadata, "spec": spec}
        created.append(await namespace.api.create(kind.path(namespace.name), body))
    return created


@pytest.fixture
async def all_accounts(kubeconfig: Path, tmp_path: Path) -> AsyncIterator[Accounts]:
    async with accounts(kubeconfig, tmp_path, "rights") as found:
        yield found


async def tell_a_manager(found: Accounts, job: Object) -> None:
    """Creates a pod whose label names the job that it manages, and checks that the gateway returns that job."""
    admin, spec = found.admin, {"containers": [{"name": "main", "image": "none"}]}
    body = {"metadata": {"generateName": "manager-", "labels": {keys.MANAGER_OF: job["metadata"]["name"]}}, "spec": spec}
    pod = (await admin.api.create(admin.path("pods"), body))["metadata"]
    assert await found.clusters["gateway"].job_of_pod(admin.name, pod["name"], pod["uid"]) == job["metadata"]["uid"]
    await admin.api.delete(admin.path("pods", pod["name"]), pod["uid"], 0)


async def test_every_right_is_needed_and_every_need_is_met(all_accounts: Accounts, tmp_path: Path) -> None:
    """Nothing is refused to the four accounts, and each rule and verb of the manifests is asked for by one of their processes."""
    await ask_for_everything(all_accounts, tmp_path)
    proxies = all_accounts.proxies.items()
    needless = {account: granted(account) - asked(proxy) - OF_POLICIES for account, proxy in proxies}
    assert not any(needless.values()), needless
    missing = {account: asked(proxy) - granted(account) for account, proxy in proxies}
    assert not any(missing.values()), missing


@contextmanager
def granted_in_namespaces(program: str, kubeconfig: Path, served: str) -> Iterator[None]:
    """Lets the accounts have the rights of the chart with `rbac.scope=namespaces` only."""
    of_access = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    everywhere = [one for one in objects(given()) if one["kind"] == "ClusterRoleBinding"]
    narrow = [one for one in objects(given(namespaces=[served], rbac__scope="namespaces")) if one["kind"] in of_access]

    def kubectl(*arguments: str, things: Sequence[Object]) -> None:
        command = [program, f"--kubeconfig={kubeconfig}", *arguments, "-f", "-"]
        subprocess.run(command, input=yaml.safe_dump_all(things), text=True, check=True, capture_output=True)

    kubectl("delete", "--ignore-not-found", things=everywhere)
    kubectl("apply", "--server-side", "--force-conflicts", things=narrow)
    try:
        yield
    finally:
        kubectl("delete", "--ignore-not-found", things=narrow)
        kubectl("apply", "--server-side", "--force-conflicts", things=everywhere)


async def test_rights_in_the_served_namespaces_are_enough(program: str, kubeconfig: Path, tmp_path: Path) -> None:
    """With Roles in one namespace, and ClusterRoles for what belongs to no namespace, nothing is refused either."""
    async with accounts(kubeconfig, tmp_path, "rights-of-one") as found:
        with granted_in_namespaces(program, kubeconfig, "rights-of-one"):
            with pytest.raises(Forbidden):
                await found.clusters["control"]._api.list("/api/v1/namespaces/default/pods")
            await ask_for_everything(found, tmp_path)


async def ask_for_everything(all_accounts: Accounts, tmp_path: Path) -> None:
    """Lets each account make every request that its process may ever make."""
    namespace, clusters = all_accounts.admin, all_accounts.clusters
    kinds = (OwnKind, IndexedJob, BarePods, Operated)
    jobs = []
    for kind in kinds:
        world = all_accounts.world(kind)
        job = await recover(world, tmp_path / f"{kind.__name__}.failed")
        for account in ("gateway", "watcher"):
            await clusters[account].speakers(job)
        for holds in (True, False):
            await clusters["watcher"].evictions.ensure_budget(job, holds=holds)
        await clusters["watcher"].evictions.budgets()
        await tell_why_a_drain_waits(clusters["control"], job)
        await claim(all_accounts, job)
        jobs.append(job)
        await clear(namespace, world)
    for body in await foreign_jobs(namespace):
        job = body["metadata"]["uid"]
        await claim(all_accounts, job)
        await look_and_remember(clusters["control"], job)
        await clusters["control"].ensure_stopped(job, 0)
        await clusters["gateway"].speakers(job)
        await tell_a_manager(all_accounts, body)
        await clusters["watcher"].evictions.ensure_budget(job, holds=True)
        for account in ("watcher", "gateway"):
            await clusters[account].record(job, EVENT)
        await words_of_controllers(clusters["control"]._operations, await clusters["control"]._reader.job(job))
    for account in ("gateway", "control"):
        for unknown in ("unknown", f"{namespace.name}.unknown"):
            with pytest.raises(NotFound):
                await clusters[account].speakers(unknown)
    with pytest.raises(Refused):
        await clusters["gateway"].pod_of_token("garbage")
    await a_job_that_cannot_begin(namespace)
    await watch(all_accounts)
    await look_for_rivals(all_accounts)
    await show_that_all_serve(all_accounts)
    await look_for_the_revision(all_accounts)
    own = await all_accounts.claims["control"].own()
    assert await all_accounts.claims["watcher"].over({own}) == {own}
    await all_accounts.claims["control"].renew()
    assert await all_accounts.claims["watcher"].over({own}) == set()


async def show_that_all_serve(found: Accounts) -> None:
    """Lets each process say on its own workload that it serves."""
    for account, proxy in found.proxies.items():
        async with own_workload(Settings(cluster="kubernetes", kubeconfig=proxy.kubeconfig), account) as workload:
            await workload.show(None)


async def claim(found: Accounts, job_id: str) -> None:
    """Lets the watcher claim a job that no process has claimed."""
    reader = found.clusters["watcher"]._reader
    job = await reader.job(job_id)
    if job.kind.has_object:
        await found.admin.api.patch(job.path, {"metadata": {"annotations": {keys.RECOVERED_BY: None}}})
    await found.claims["watcher"].claim(await reader.job(job_id))


async def until_the_manager_is_back(world: KubernetesWorld, job: str, fail: Callable[[], None]) -> None:
    """Fails the manager, and waits until the operator has recreated it."""
    first = {pod.metadata.uid for pod in await world.cluster.pods(job)}
    fail()

    def runs_again(pods: Sequence[Pod]) -> bool:
        return any(pod.status.phase is PodPhase.RUNNING and pod.metadata.uid not in first for pod in pods)

    await world.until(job, runs_again)


async def clear(namespace: Namespace, world: KubernetesWorld) -> None:
    """Deletes the job, with its pods and the objects that a controller created for it."""
    thing = await namespace.api.get(world.path)
    await namespace.api.delete(world.path, thing["metadata"]["uid"])
    for pod in (await namespace.api.list(namespace.path("pods"))).items:
        await delete_pod(namespace.api, pod, 0)
        await namespace.until_gone(pod)


async def begin_anew(world: KubernetesWorld) -> None:
    """Removes the phase, as if the operator had died before it wrote it, and waits until the operator writes it again."""
    namespace = world.namespace
    await namespace.api.patch(f"{world.path}/status", {"status": {"phase": None}})
    await namespace.until("trainingjobs", "demo", lambda job: bool(job.get("status", {}).get("phase")))


async def a_job_that_cannot_begin(namespace: Namespace) -> None:
    """Submits a job whose pods the API server refuses, waits for the operator's event and deletes the job."""
    kubernetes = {"image": "none", "container": {"ports": "none"}}
    spec = {"pods": 1, "ranksPerPod": 1, "command": ["true"], "kubernetes": kubernetes}
    body = {"apiVersion": "rekindle.io/v1", "kind": "TrainingJob", "metadata": {"name": "refused"}, "spec": spec}
    job = await namespace.api.create(namespace.path("trainingjobs"), body)
    await namespace.until_event("NotDoneYet")
    await namespace.api.delete(namespace.path("trainingjobs", "refused"), job["metadata"]["uid"])


async def watch(found: Accounts) -> None:
    """Watches everything until the last pod of a job without controller is gone."""
    world = found.world(BarePods)
    job_id = await world.job()
    async with aclosing(found.clusters["watcher"].watch()) as news:
        await anext(news)
        (pod,) = await found.clusters["control"].pods(job_id)
        await found.clusters["control"].ensure_deleted(job_id, pod.metadata.name, pod.metadata.uid, 0)
        async for event in news:
            if isinstance(event, WatchEvent) and isinstance(event.object, JobObject) and event.type == "DELETED":
                break
    async with asyncio.timeout(60):
        await found.proxies["watcher"].until_watched(*watched(found.admin.name))


def watched(namespace: str) -> list[str]:
    return [*(kind.path(namespace) for kind in KINDS), "/api/v1/nodes", "/api/v1/namespaces"]


async def look_for_the_revision(found: Accounts) -> None:
    """Lets the control worker find out whether it is what its Deployment rolls out."""
    own = Namespace(found.admin.api, NAMESPACE)
    latest = await deployed(own, "rights")
    try:
        settings = Settings(kubeconfig=found.proxies["control"].kubeconfig, pod_template_hash=latest)
        async with rollouts(settings) as look:
            assert await look()
    finally:
        made = await own.api.get(own.path("deployments", DEPLOYMENT))
        await own.api.delete(own.path("deployments", DEPLOYMENT), made["metadata"]["uid"])


async def look_for_rivals(found: Accounts) -> None:
    """Looks for a rival while a foreign Service without endpoints exists."""
    api = found.admin.api
    body = {"metadata": {"name": SERVICE}, "spec": {"ports": [{"port": 8899}]}}
    service = await api.create(f"/api/v1/namespaces/{NAMESPACE}/services", body)
    for account in ("control", "watcher"):
        async with Api(found.proxies[account].kubeconfig) as own:
            await refuse_beside_another_controller(own, Settings(cluster="kubernetes"))
    await api.delete(f"/api/v1/namespaces/{NAMESPACE}/services/{SERVICE}", service["metadata"]["uid"])
