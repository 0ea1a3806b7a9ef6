"""Attempts of one tenant to affect another tenant's job have no effect: a table of attempts, on the real control plane.

Each attempt is made twice: by a tenant who may do everything in his namespace, and by a user whom no policy restricts.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kinds import BATCH_JOB, JOB_SET, TRAINING_JOB
from activities.clusters.port import Snapshot
from rekindle.errors import Conflict, Forbidden, Invalid
from rekindle.model import keys
from rekindle.model.fault import Sighting
from rekindle.model.limits import Limits
from rekindle.policy.detection.watcher_updates import End, News, Register
from rekindle.settings import Settings
from simulators.kubernetes.installation import install
from tests.fakes.controller import apply_crds
from tests.kubernetes.world.attempts import ATTEMPTS, MANAGED, Attacker, Attempt
from tests.kubernetes.world.control_plane import RBAC, Namespace, a_namespace, endpoint_of
from tests.kubernetes.world.worlds import pod_spec
from tests.support.cluster import FOREVER
from tests.support.sampling import ALL, committed_code
from workers.operator import Operator
from workers.watcher.watcher import Watcher

pytestmark = pytest.mark.timeout(280)
WITHIN = 40.0
SAMPLE = 8
"""Attempts of each of the two attackers, chosen from all attempts."""


class Workflows:
    """Accepts every report about any job."""

    def __init__(self) -> None:
        self.told: dict[str, list[News]] = {}
        self.news = asyncio.Event()

    async def send(self, job_id: str, news: News, update_id: str) -> None:
        self.told.setdefault(job_id, []).append(news)
        self.news.set()

    async def has_trained(self, _: str) -> bool:
        return True

    async def lost(self, job_ids: Collection[str]) -> list[str]:
        return []

    async def running(self) -> set[str]:
        return set()

    async def until_complete(self, job_id: str, *, manager: bool) -> None:
        """Waits until the workflow knows that each rank has its pod."""
        async with asyncio.timeout(WITHIN):
            while not (seen := self._seen(job_id)) or not all(seen.holders) or bool(seen.manager) is not manager:
                self.news.clear()
                await self.news.wait()

    def _seen(self, job_id: str) -> Sighting | None:
        told = self.told.get(job_id, ())
        seen = [
            one.registration.sighting if isinstance(one, Register) else one.sighting for one in told if not isinstance(one, End)
        ]
        return seen[-1] if seen else None

    async def until_told(self, job_id: str, count: int) -> None:
        async with asyncio.timeout(WITHIN):
            while len(self.told.get(job_id, ())) < count:
                self.news.clear()
                await self.news.wait()


@dataclass
class Arena:
    victim: Namespace
    attacker: Namespace
    cluster: KubernetesCluster
    workflows: Workflows
    tasks: dict[str, asyncio.Task[None]]
    objects: dict[str, Object] = field(default_factory=dict)

    @property
    def loose(self) -> str:
        return f"{self.victim.name}.loose"

    @property
    def jobs(self) -> dict[str, str]:
        """Returns the victim's jobs by UID."""
        return {**{self.objects[name]["metadata"]["uid"]: name for name in ("job", "set", "own")}, self.loose: "loose"}

    async def seen(self) -> dict[str, Any]:
        """Returns all that matters about the victim's jobs: as a watcher that has just started sees them, and as activities and
        gateways do."""
        fresh = KubernetesCluster(self.victim.api, Settings(cluster="kubernetes"))
        async with aclosing(fresh.watch()) as news:
            first = await anext(news)
        assert isinstance(first, Snapshot)
        found: dict[str, Any] = {}
        for uid, name in self.jobs.items():
            (job,) = [one for one in first.jobs if one.metadata.uid == uid]
            pods = [one for one in first.pods if one.metadata.owner_uid == uid]
            of_activities = await self.cluster.pods(uid)
            assert {one.metadata.uid for one in of_activities} == {one.metadata.uid for one in pods}
            holders = sorted((one.metadata.uid, one.metadata.annotations.get(keys.RANK_INDEX), one.status.phase) for one in pods)
            found[name] = (job.metadata.namespace, job.kind, job.spec, holders, await self.cluster.speakers(uid))
        return found


async def submit(arena: Arena) -> None:
    """Submits the victim's jobs: one for each way in which a pod names its job."""
    api, victim = arena.victim.api, arena.victim
    template = {"spec": pod_spec(FOREVER, 0)}
    spec: Object = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 9, "template": template}
    job = {"metadata": {"name": "train", "labels": MANAGED}, "spec": spec}
    arena.objects["job"] = await api.create(BATCH_JOB.path(victim.name), job)
    replicated = [{"name": "workers", "template": {"spec": {"completions": 1, "template": template}}}]
    head = {"apiVersion": JOB_SET.api_version, "kind": "JobSet", "metadata": {"name": "set", "labels": MANAGED}}
    whole = arena.objects["set"] = await api.create(JOB_SET.path(victim.name), {**head, "spec": {"replicatedJobs": replicated}})
    owner = {
        "apiVersion": JOB_SET.api_version,
        "kind": "JobSet",
        "name": "set",
        "uid": whole["metadata"]["uid"],
        "controller": True,
    }
    labels = {"jobset.sigs.k8s.io/jobset-name": "set"}
    part: Object = {
        "metadata": {"name": "part", "ownerReferences": [owner], "labels": labels},
        "spec": {**spec, "completions": 1},
    }
    part["spec"] = {**part["spec"], "template": {"metadata": {"labels": labels}, **template}}
    arena.objects["part"] = await api.create(BATCH_JOB.path(victim.name), part)
    own: Object = {"pods": 2, "ranksPerPod": 1, "command": list(FOREVER), "accelerators": 0, "kubernetes": {"image": "none"}}
    own |= {"manager": list(FOREVER)}
    head = {"apiVersion": "rekindle.io/v1", "kind": "TrainingJob", "metadata": {"name": "own"}}
    arena.objects["own"] = await api.create(TRAINING_JOB.path(victim.name), {**head, "spec": own})
    metadata: Object = {"labels": {keys.JOB_ID: arena.loose, keys.BARE_JOB_NAME: "loose", **MANAGED}}
    metadata |= {"name": "loose", "annotations": {keys.PODS: "1", keys.RANK_INDEX: "0"}}
    await api.create(victim.path("pods"), {"metadata": metadata, "spec": pod_spec(FOREVER, 0)})
    async with asyncio.timeout(WITHIN):
        while len(pods := (await api.list(victim.path("pods"))).items) < 7 or not all(map(_runs, pods)):
            await asyncio.sleep(0.1)
    await victim.until("trainingjobs", "own", lambda one: one.get("status", {}).get("phase") == "Running")


def _runs(pod: Object) -> bool:
    return bool(pod["status"].get("phase") == "Running" and pod["status"].get("podIP"))


@asynccontextmanager
async def an_arena(kubeconfig: Path, directory: Path) -> AsyncIterator[Arena]:
    async with AsyncExitStack() as ends:
        victim = await ends.enter_async_context(a_namespace(kubeconfig, "victim"))
        attacker = await ends.enter_async_context(a_namespace(kubeconfig, "attacker"))
        await apply_crds(victim.api)
        await install(victim.api, endpoint_of(kubeconfig), directory)
        cluster = KubernetesCluster(Api(kubeconfig), Settings(cluster="kubernetes"))
        ends.push_async_callback(cluster.close)
        workflows = Workflows()
        watcher = asyncio.create_task(Watcher(cluster, workflows, Limits()).run())
        operator = asyncio.create_task(Operator(victim.api, Settings(cluster="kubernetes")).run())
        arena = Arena(victim, attacker, cluster, workflows, {"watcher": watcher, "operator": operator})
        try:
            await submit(arena)
            yield arena
        finally:
            for task in arena.tasks.values():
                task.cancel()
            await asyncio.gather(*arena.tasks.values(), return_exceptions=True)


async def tenant_of(namespace: Namespace, kubeconfig: Path, directory: Path) -> Api:
    """Creates an account that may do everything in the namespace and nothing elsewhere, and returns its API."""
    config = await namespace.kubeconfig_of("tenant", kubeconfig, directory)
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    await namespace.api.create(f"{RBAC}/namespaces/{namespace.name}/roles", {"metadata": {"name": "all"}, "rules": rules})
    binding = {
        "metadata": {"name": "all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace.name}],
    }
    await namespace.api.create(f"{RBAC}/namespaces/{namespace.name}/rolebindings", binding)
    return Api(config)


async def test_no_attempt_of_a_tenant_has_an_effect_on_another_ones_jobs(
    kubeconfig: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """No attempt changes what is seen of the jobs, what their workflows receive, or who may speak for them. In the end watcher
    and operator serve them as before. `make test` tries a sample."""
    attempts = list(ATTEMPTS.items()) if ALL else random.Random(committed_code()).sample(list(ATTEMPTS.items()), SAMPLE)
    async with an_arena(kubeconfig, tmp_path) as arena:
        before = await arena.seen()
        for job_id, name in arena.jobs.items():
            await arena.workflows.until_complete(job_id, manager=name == "own")
        told = {uid: len(arena.workflows.told.get(uid, ())) for uid in arena.jobs}
        pods = (await arena.victim.api.list(arena.victim.path("pods"))).items
        async with await tenant_of(arena.attacker, kubeconfig, tmp_path) as tenant:
            made = 0
            for who, api in (("a tenant", tenant), ("whom no policy holds back", arena.victim.api)):
                refused = 0
                for name, attempt in attempts:
                    made += 1
                    by = Attacker(api, arena.attacker.name, arena.objects, pods, arena.loose, made)
                    with subtests.test(f"{who}: {name}"):
                        refused += await is_held_back(attempt, by)
                        assert await arena.seen() == before
                        assert not [name for name, task in arena.tasks.items() if task.done()]
                if api is not tenant or ALL:
                    assert (refused > 0) is (api is tenant), f"the policy of marks held back {refused} attempts of {who}"
        await still_served(arena, told)


async def is_held_back(attempt: Attempt, by: Attacker) -> bool:
    """Returns whether the API server refuses the attempt because of its marks."""
    try:
        await attempt(by)
    except Forbidden as error:
        if "rekindle-marks" not in str(error):
            raise
        return True
    return False


async def still_served(arena: Arena, told: dict[str, int]) -> None:
    """The victim's jobs have received no report so far, and receive one when something happens to them. A manager of our own kind
    is recreated."""
    marker = {"metadata": {"name": "last", "labels": MANAGED}, "spec": {"template": {"spec": pod_spec(FOREVER, 0)}}}
    last = await arena.attacker.api.create(BATCH_JOB.path(arena.attacker.name), marker)
    await arena.workflows.until_told(last["metadata"]["uid"], 1)
    assert {uid: len(arena.workflows.told[uid]) for uid in arena.jobs} == told
    assert not [uid for uid in arena.jobs if any(isinstance(news, End) for news in arena.workflows.told[uid])]
    api, victim = arena.victim.api, arena.victim
    manager = await api.get(victim.path("pods", "own-manager-0"))
    await api.delete(victim.path("pods", "own-manager-0"), manager["metadata"]["uid"], 0)
    await victim.until("pods", "own-manager-0", lambda pod: pod["metadata"]["uid"] != manager["metadata"]["uid"])
    for uid in arena.jobs:
        worker = next(pod for pod in await arena.cluster.pods(uid) if keys.RANK_INDEX in pod.metadata.annotations)
        with suppress(Conflict, Invalid):
            await arena.cluster.ensure_deleted(uid, worker.metadata.name, worker.metadata.uid, 0)
        await arena.workflows.until_told(uid, told[uid] + 1)
