"""Jobs and pods of several tenants in a scripted API server."""

import copy
from contextlib import aclosing

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kind import Kind
from activities.clusters.port import Snapshot
from rekindle.settings import Settings
from tests.fakes.scripted_api import ScriptedApi
from tests.support.valid_objects import JOBS, pod

WAIT_LIMIT = 60.0


class Tenants:
    """Namespaces `victim` and `attacker` of one API server."""

    def __init__(self, scripted: ScriptedApi, api: Api) -> None:
        self.scripted, self.api = scripted, api
        self.cluster = KubernetesCluster(api, Settings(cluster="kubernetes"))

    async def job(self, kind: Kind, namespace: str, name: str, *owners: Object, uid: str = "") -> Object:
        body = copy.deepcopy(JOBS[kind])
        more = {"name": name, "namespace": namespace, "uid": uid or f"uid-of-{name}", "ownerReferences": list(owners)}
        body["metadata"] |= more
        return await self.scripted.put(kind.path(namespace), body)

    async def pod(self, namespace: str, name: str, job_id: str, *owners: Object, made: str = "2026-01-01T00:00:00Z") -> Object:
        body = pod(job_id, name)
        more = {"namespace": namespace, "uid": f"uid-of-{name}", "ownerReferences": list(owners), "creationTimestamp": made}
        body["metadata"] |= more
        return await self.scripted.put(f"/api/v1/namespaces/{namespace}/pods", body)

    async def snapshot(self) -> Snapshot:
        async with aclosing(self.cluster.watch()) as news:
            first = await anext(news)
        assert isinstance(first, Snapshot)
        return first


def owner(kind: Kind, name: str, uid: str = "") -> Object:
    uid = uid or f"uid-of-{name}"
    return {"apiVersion": kind.api_version, "kind": kind.name, "name": name, "uid": uid, "controller": True}


def holders(seen: Snapshot) -> dict[str, str]:
    """Returns the job of each pod, by pod name."""
    return {one.metadata.name: one.metadata.owner_uid for one in seen.pods}
