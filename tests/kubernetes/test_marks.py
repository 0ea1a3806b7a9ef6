"""Only our accounts may write the marks that name a pod's job: the policy in `deploy/`, on a real API server."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from activities.clusters.api_server import Api, Object
from rekindle.errors import Conflict, Forbidden
from rekindle.model import keys
from simulators.kubernetes.installation import NAMESPACE, install, kubeconfig_of
from tests.kubernetes.world.control_plane import RBAC, Namespace, endpoint_of
from tests.kubernetes.world.worlds import NODES, pod_spec
from tests.support.cluster import FOREVER

UID = "0a1b2c3d-0000-4000-8000-000000000000"


@dataclass
class Identities:
    """Accounts that write in one namespace."""

    namespace: Namespace
    apis: dict[str, Api] = field(default_factory=dict)

    async def pod(self, who: str, name: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> Object:
        metadata = {"name": name, "labels": labels, "annotations": annotations or {}}
        return await self.apis[who].create(self.namespace.path("pods"), {"metadata": metadata, "spec": pod_spec(FOREVER, 0)})

    async def patch(self, who: str, name: str, **metadata: Object) -> Object:
        return await self.apis[who].patch(self.namespace.path("pods", name), {"metadata": metadata})


@pytest.fixture
async def identities(kubeconfig: Path, namespace: Namespace, tmp_path: Path) -> AsyncIterator[Identities]:
    """Yields our control worker, and a tenant who may do everything in his namespace."""
    await install(namespace.api, endpoint_of(kubeconfig), tmp_path)
    config = await namespace.kubeconfig_of("tenant", kubeconfig, tmp_path)
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    await namespace.api.create(f"{RBAC}/namespaces/{namespace.name}/roles", {"metadata": {"name": "all"}, "rules": rules})
    binding = {
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace.name}],
    }
    await namespace.api.create(f"{RBAC}/namespaces/{namespace.name}/rolebindings", binding)
    async with Api(config) as tenant, Api(kubeconfig_of("control", tmp_path)) as control:
        found = Identities(namespace, {"tenant": tenant, "control": control, "administrator": namespace.api})
        await until_heeded(found)
        yield found


async def until_heeded(identities: Identities) -> None:
    """Waits until the API server applies a new policy and a new binding of rights."""
    path = f"{identities.namespace.path('pods')}?dryRun=All"
    body = {"metadata": {"name": "probe", "labels": {keys.STANDBY_OF: "me"}}, "spec": pod_spec(FOREVER, 0)}
    async with asyncio.timeout(60):
        while True:
            try:
                await identities.apis["tenant"].create(path, body)
            except Forbidden as error:
                if "rekindle-marks" in str(error):
                    return
            await asyncio.sleep(0.05)


FORGED = [
    ({keys.JOB_ID: UID}, {}),
    ({keys.JOB_ID: UID, keys.BARE_JOB_NAME: "victim"}, {}),
    ({keys.JOB_ID: "victim.train", keys.BARE_JOB_NAME: "train"}, {}),
    ({keys.JOB_ID: ""}, {}),
    ({"rekindle.io/backup-of": UID}, {}),
    ({keys.STANDBY_OF: UID}, {}),
    ({}, {"rekindle.io/takes-over": "{}"}),
    ({}, {keys.TAKEN_AS: "x"}),
]


@pytest.mark.parametrize(("labels", "annotations"), FORGED)
async def test_only_our_accounts_set_marks(identities: Identities, labels: dict[str, str], annotations: dict[str, str]) -> None:
    """No other account sets marks, neither on a pod that it creates nor on an existing one."""
    with pytest.raises(Forbidden, match=r"Rekindle may"):
        await identities.pod("tenant", "forged", labels, annotations)
    await identities.pod("tenant", "plain", {})
    with pytest.raises(Forbidden, match=r"Rekindle may"):
        await identities.patch("tenant", "plain", labels=labels, annotations=annotations)
    await identities.pod("control", "made", labels, annotations)
    await identities.pod("administrator", "restored", labels, annotations)


@pytest.mark.parametrize(("labels", "annotations"), [FORGED[0], FORGED[-1]])
async def test_a_mark_comes_by_no_other_way(identities: Identities, labels: dict[str, str], annotations: dict[str, str]) -> None:
    """A tenant cannot set marks by writing a pod's status or by binding the pod to a node, though both may write labels and
    annotations."""
    pods, marks = identities.namespace.path("pods"), {"labels": labels, "annotations": annotations}
    body = {"metadata": {"name": "plain"}, "spec": {**pod_spec(FOREVER, 0), "schedulerName": "nobody"}}
    await identities.apis["tenant"].create(pods, body)
    with pytest.raises(Forbidden, match=r"Rekindle may"):
        await identities.apis["tenant"].patch(f"{pods}/plain/status", {"metadata": marks})
    binding = {"metadata": {"name": "plain", **marks}, "target": {"kind": "Node", "name": NODES[0]}}
    for path in (f"{pods}/plain/binding", identities.namespace.path("bindings")):
        with pytest.raises(Forbidden, match=r"Rekindle may"):
            await identities.apis["tenant"].create(path, {"apiVersion": "v1", "kind": "Binding", **binding})


async def test_nobody_else_has_the_priority_of_our_pods(identities: Identities) -> None:
    """A tenant's pods of that priority would preempt those of all others, also pods that are created for him by our own kind."""
    namespace, pods = identities.namespace, identities.namespace.path("pods")
    body = {"metadata": {"name": "first"}, "spec": {**pod_spec(FOREVER, 0), "priorityClassName": "rekindle"}}
    for who in ("tenant", "control", "administrator"):
        with pytest.raises(Forbidden, match=r"the class of Rekindle's own pods"):
            await identities.apis[who].create(pods, body)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
    with pytest.raises(Forbidden, match="violates PodSecurity"):  # judged as any other pod there
        await namespace.api.create(path, body)


async def test_a_marked_pod_may_be_changed_otherwise(identities: Identities) -> None:
    """Controllers and kubelets write pods all the time. They may change a marked pod otherwise, and may remove a mark."""
    marks = {keys.JOB_ID: UID, keys.STANDBY_OF: UID}
    await identities.pod("control", "made", marks)
    await identities.patch("tenant", "made", labels={"mine": "yes"}, annotations={"mine": "yes"})
    with pytest.raises(Forbidden):
        await identities.patch("tenant", "made", labels={keys.JOB_ID: UID.replace("a", "b")})
    changed = await identities.patch("tenant", "made", labels=dict.fromkeys(marks))
    assert changed["metadata"]["labels"] == {"mine": "yes"}


async def test_pods_that_nobody_controls_name_a_job_of_their_own_namespace(identities: Identities) -> None:
    """Pods without a controller name a job of their own namespace, whose id their owner writes himself."""
    own = {keys.JOB_ID: f"{identities.namespace.name}.train", keys.BARE_JOB_NAME: "train"}
    assert (await identities.pod("tenant", "own", own))["metadata"]["labels"] == own
    with pytest.raises(Conflict):
        await identities.pod("tenant", "own", own)
