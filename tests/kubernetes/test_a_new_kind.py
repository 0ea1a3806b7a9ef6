"""One more kind of job is one more row: nothing else has to know it, and its rights follow. Its controller is played; API server,
scheduler and authorizer are real."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kind import Right
from activities.clusters.kubernetes.kinds import KINDS
from activities.clusters.kubernetes.rights import OWN, rights_of
from rekindle.model import keys
from rekindle.settings import Settings
from simulators.kubernetes.installation import install, kubeconfig_of
from tests.fakes.controller import apply_crds, is_terminating, labels_of
from tests.fakes.foreign import Setting
from tests.fakes.gang_kind import GANG
from tests.fakes.kubeflow import JobController, pod_template
from tests.kubernetes.world.control_plane import Namespace, endpoint_of
from tests.kubernetes.world.worlds import rank_of, tried
from workers.other_controller import NAMESPACE

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RANKS = ["0", "1", "2"]
HEAD = {"apiVersion": "gangs.example.com/v1", "kind": "Gang"}


class Gangs(JobController):
    """Counts the pods that it controls by a label, fills an empty place and ends the younger of two pods. Does nothing while the
    gang is paused."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, f"/apis/gangs.example.com/v1/namespaces/{namespace.name}/gangs", namespace.path("pods"))

    async def serve(self, job: Object) -> None:
        uid = job["metadata"]["uid"]
        pods = [pod for pod in self.made_by(job) if labels_of(pod).get("gangs.example.com/uid") == uid]
        for member in range(job["spec"]["size"]):
            own = [pod for pod in pods if labels_of(pod)["gangs.example.com/member"] == str(member)]
            living = sorted((pod for pod in own if not is_terminating(pod)), key=_born)
            if not own and not job["spec"].get("paused"):
                await self.make(_member(job, member))
            for pod in living if job["spec"].get("paused") else living[1:]:
                await self.api.delete(f"{self._made}/{pod['metadata']['name']}", pod["metadata"]["uid"])


def _born(pod: Object) -> tuple[str, bool]:
    """Sorts pods by age. Of two pods created in the same second, the one that fills an empty place is the younger."""
    return str(pod["metadata"]["creationTimestamp"]), "generateName" in pod["metadata"]


def _member(job: Object, member: int) -> Object:
    template, name, uid = job["spec"]["template"], job["metadata"]["name"], job["metadata"]["uid"]
    marks = {"gang": name, "uid": uid, "member": str(member)}
    labels = {**template["metadata"].get("labels", {}), **{f"gangs.example.com/{key}": text for key, text in marks.items()}}
    owner = {**HEAD, "name": name, "uid": uid, "controller": True}
    return {"metadata": {"generateName": f"{name}-", "labels": labels, "ownerReferences": [owner]}, "spec": template["spec"]}


@pytest.fixture
async def setting(kubeconfig: Path, namespace: Namespace, tmp_path: Path) -> AsyncIterator[Setting]:
    """The account of the control worker serves the namespace. It has the rights of the manifests and those of the additional
    row."""
    await apply_crds(namespace.api)
    await install(namespace.api, endpoint_of(kubeconfig), tmp_path)
    await grant(namespace, [right for right in rights_of("control", [GANG]) if right not in OWN["control"]])
    settings = Settings(cluster="kubernetes", namespaces=(namespace.name,))
    cluster = KubernetesCluster(Api(kubeconfig_of("control", tmp_path)), settings, [GANG])
    async with Gangs(namespace) as gangs:
        try:
            yield Setting(namespace, cluster, {"Gang": gangs})
        finally:
            await cluster.close()


async def grant(namespace: Namespace, rights: Sequence[Right]) -> None:
    """Grants rights to the control worker in this namespace, and returns when the authorizer knows them."""
    rules = [{"apiGroups": [one.group], "resources": [one.resource], "verbs": list(one.verbs)} for one in rights]
    await namespace.api.create(namespace.path("roles"), {"metadata": {"name": "gangs"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gangs"}
    account = {"kind": "ServiceAccount", "name": "rekindle-control", "namespace": NAMESPACE}
    body = {"metadata": {"name": "gangs"}, "roleRef": role, "subjects": [account]}
    await namespace.api.create(namespace.path("rolebindings"), body)
    asked = {"namespace": namespace.name, "group": GANG.group, "resource": GANG.plural, "verb": "patch"}
    question = {"spec": {"user": f"system:serviceaccount:{NAMESPACE}:rekindle-control", "resourceAttributes": asked}}
    async with asyncio.timeout(60):
        while not (await namespace.api.create(REVIEWS, question))["status"]["allowed"]:
            await asyncio.sleep(0.02)


async def a_gang(setting: Setting) -> str:
    """Returns the UID of a gang whose three pods run."""
    metadata = {"name": "demo", "labels": {keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}}
    body = {**HEAD, "metadata": metadata, "spec": {"size": 3, "template": pod_template()}}
    return await setting.running(await setting.namespace.api.create(GANG.path(setting.namespace.name), body), pods=3)


async def test_a_new_kind_is_watched_like_any_other(setting: Setting, kubeconfig: Path) -> None:
    """A job of a new kind is watched together with all other kinds, with one pod per rank."""
    uid = await a_gang(setting)
    settings = Settings(cluster="kubernetes", namespaces=(setting.namespace.name,))
    watching = Setting(setting.namespace, KubernetesCluster(Api(kubeconfig), settings, (*KINDS, GANG)), setting.peers)
    found = await watching.snapshot()
    await watching.cluster.close()
    assert [(job.metadata.uid, job.kind, job.spec.pods) for job in found.jobs] == [(uid, "Gang", 3)]
    assert sorted(rank_of(pod) or "" for pod in found.pods) == RANKS


async def test_a_job_of_a_new_kind_is_switched_and_restarted(setting: Setting) -> None:
    """The job's controller counts the backup in place of the old pod. A restart recreates all pods, and avoids the given node."""
    uid = await a_gang(setting)
    backup = await setting.hot_switch(uid, "2", "spare")
    await setting.settled(backup)
    pods = [pod for pod in await setting.cluster.pods(uid) if not pod.metadata.deletion_timestamp]
    assert sorted(rank_of(pod) or "" for pod in pods) == RANKS
    assert backup.metadata.uid in {pod.metadata.uid for pod in pods}
    assert any(owner.get("controller") for owner in (await setting.raw(backup))["metadata"]["ownerReferences"])
    stopped = await setting.cluster.ensure_stopped(uid, 0)
    await setting.until_gone(uid, *stopped)
    new = await tried(lambda: setting.cluster.ensure_pods(uid, "second", ("node-0",)))
    running = [await setting.until_runs(uid, pod) for pod in new]
    assert sorted(rank_of(pod) or "" for pod in running) == RANKS
    assert {pod.metadata.labels.get(keys.GENERATION) for pod in running} == {"second"}
    assert "node-0" not in {pod.spec.node_name for pod in running}
