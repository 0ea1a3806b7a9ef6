"""What a real API server shows becomes the right fault, and is over when it shows it no more."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.port import Snapshot
from rekindle.errors import Conflict, NotFound
from rekindle.model.cluster import Node
from rekindle.model.keys import HEALTH
from rekindle.policy.rules import of_node
from rekindle.settings import Settings
from tests.kubernetes.test_reports import card, device_info, event, public
from tests.support.kubernetes import Namespace
from workers.local_kubernetes.installation import DEPLOY

NODE = "reported"
WAIT_LIMIT = 20.0


@pytest.fixture
async def node(namespace: Namespace) -> AsyncIterator[Namespace]:
    """A node that no kubelet looks after."""
    made = await namespace.api.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    yield namespace
    await namespace.api.delete(f"/api/v1/nodes/{NODE}", made["metadata"]["uid"])


class Shown:
    """The node as the watch shows it."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.cluster = cluster
        self._node: Node | None = None
        self._changed = asyncio.Condition()

    async def follow(self) -> None:
        async with aclosing(self.cluster.watch()) as changes:
            async for one in changes:
                nodes = one.nodes if isinstance(one, Snapshot) else [one.object]
                for thing in nodes:
                    if isinstance(thing, Node) and thing.metadata.name == NODE:
                        async with self._changed:
                            self._node = thing
                            self._changed.notify_all()

    async def until_found(self, *rules: str) -> None:
        """Until these rules decide about it, to whoever watches and to whoever asks."""

        def found(node: Node | None) -> list[str]:
            return [one.named.name for one in of_node(node, self.cluster.rules)] if node else ["not seen"]

        async with asyncio.timeout(WAIT_LIMIT), self._changed:
            await self._changed.wait_for(lambda: found(self._node) == list(rules))
        assert found(await self.cluster.node(NODE)) == list(rules)


@asynccontextmanager
async def shown(kubeconfig: Path, rules: str, name: str = "") -> AsyncIterator[Shown]:
    settings = Settings(cluster="kubernetes", kubeconfig=kubeconfig, namespaces=(name or "default",), rules=rules)
    seen = Shown(KubernetesCluster(Api(kubeconfig), settings))
    following = asyncio.create_task(seen.follow())
    try:
        yield seen
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await seen.cluster.close()


async def put(api: Api, path: str, thing: Object) -> None:
    try:
        await api.create(path, thing)
    except Conflict:
        await api.patch(f"{path}/{thing['metadata']['name']}", thing)


async def ensure_namespace(api: Api, name: str) -> None:
    try:
        await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    except Conflict:
        return


async def test_conditions_taints_cordons_and_marks_of_a_node(kubeconfig: Path, node: Namespace) -> None:
    """By `kubectl cordon`, `taint` and `annotate`, and by who writes conditions; each is over when it is taken back."""
    path = f"/api/v1/nodes/{NODE}"

    async def condition(kind: str, status: str) -> None:
        well = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        told = {"type": kind, "status": status, "reason": f"{kind}Seen", "message": "seen"}
        await node.api.patch(f"{path}/status", {"status": {"conditions": [well, told]}})

    async with shown(kubeconfig, "plain") as seen:
        await seen.until_found()
        await condition("KernelDeadlock", "True")
        await seen.until_found("plain/kernel-deadlock")
        await condition("KernelDeadlock", "False")
        await seen.until_found()
        await node.api.patch(path, {"spec": {"unschedulable": True}})
        await seen.until_found("plain/cordoned")
        await node.api.patch(path, {"spec": {"unschedulable": None}})
        await seen.until_found()
        await node.api.patch(path, {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}})
        await seen.until_found("plain/leaves-soon")
        await node.api.patch(path, {"spec": {"taints": None}, "metadata": {"annotations": {HEALTH: "broken: smoke"}}})
        await seen.until_found("plain/marked-broken")
        await condition("SubHealthy", "True")
        await seen.until_found("plain/sub-healthy", "plain/marked-broken")
        await node.api.patch(path, {"metadata": {"annotations": {HEALTH: "well"}}})
        await seen.until_found()


async def test_mindcluster_s_config_maps(kubeconfig: Path, node: Namespace) -> None:
    """The device plugin's, NodeD's, and public faults; a tenant's own ConfigMap with the same label says nothing."""
    api, labels = node.api, {"mx-consumer-cim": "true"}
    await ensure_namespace(api, "mindx-dl")
    await ensure_namespace(api, "cluster-system")
    system, components = "/api/v1/namespaces/kube-system/configmaps", "/api/v1/namespaces/mindx-dl/configmaps"

    def labelled(thing: Object, marks: dict[str, str], **data: str | None) -> Object:
        return {"metadata": {"name": thing["metadata"]["name"], "labels": marks}, "data": {**thing["data"], **data}}

    async with shown(kubeconfig, "ascend") as seen:
        await put(api, system, labelled(device_info(card(2, c8C084E00="SeparateNPU"), node=NODE), labels))
        await seen.until_found("ascend/device-broken")
        await put(api, system, labelled(device_info(node=NODE), labels, ManuallySeparateNPU="Ascend910-3"))
        await seen.until_found("ascend/separated")
        await put(api, system, labelled(device_info(node=NODE), labels, ManuallySeparateNPU=None))
        await seen.until_found()
        broken = {"DeviceType": "CPU", "DeviceId": 1, "FaultCode": ["00000001"], "FaultLevel": "SeparateFault"}
        info = json.dumps({"NodeInfo": {"FaultDevList": [broken], "NodeStatus": "UnHealthy"}})
        name = f"mindx-dl-nodeinfo-{NODE}"
        await put(api, components, {"metadata": {"name": name, "labels": labels}, "data": {"NodeInfo": info}})
        await seen.until_found("ascend/node-broken")
        await gone(api, f"{components}/{name}")
        await seen.until_found()
        told = json.dumps(public("220001001", nodeName=NODE))
        fault = {"metadata": {"name": "fault", "labels": {"mc-consumer-publicfault": "true"}}, "data": {"PublicFault": told}}
        await put(api, node.path("configmaps"), fault)
        await put(api, "/api/v1/namespaces/cluster-system/configmaps", fault)
        await seen.until_found("ascend/public-broken")
        await gone(api, "/api/v1/namespaces/cluster-system/configmaps/fault")
        await seen.until_found()
    await gone(api, f"{system}/mindx-dl-deviceinfo-{NODE}")


async def gone(api: Api, path: str) -> None:
    await api.delete(path, (await api.get(path))["metadata"]["uid"])


async def test_an_event_is_over_after_its_time(kubeconfig: Path, node: Namespace, tmp_path: Path) -> None:
    """Nobody takes it back, and the cluster keeps it for an hour; a node's own clock does not matter."""
    (tmp_path / "rules.yaml").write_text(
        "apiVersion: rekindle.io/v1\nkind: Rules\nspec:\n  use: []\n  rules:\n"
        "    - {name: hot, report: {source: event, code: Gpu*}, then: sub-health, expires: 2}\n"
    )
    told = event(involvedObject={"kind": "Node", "name": NODE}, lastTimestamp="2038-01-01T00:00:00Z")
    told["metadata"] = {"name": "once", "namespace": "default"}
    async with shown(kubeconfig, str(tmp_path / "rules.yaml")) as seen:
        await seen.until_found()
        await node.api.create("/api/v1/namespaces/default/events", told)
        await seen.until_found("hot")
        await seen.until_found()
        await gone(node.api, "/api/v1/namespaces/default/events/once")


async def test_events_of_nodes(kubeconfig: Path, node: Namespace) -> None:
    """Until they are over, or gone."""
    path = "/api/v1/namespaces/default/events"
    told = event(involvedObject={"kind": "Node", "name": NODE})
    told["metadata"] = {"name": "throttled", "namespace": "default"}
    async with shown(kubeconfig, "nvidia") as seen:
        await seen.until_found()
        await node.api.create(path, told)
        await seen.until_found("nvidia/throttled-by-heat")
        await gone(node.api, f"{path}/throttled")
        await seen.until_found()


@pytest.mark.parametrize(("rules", "component"), [("nvidia", "rules-nvidia"), ("ascend", "rules-ascend")])
async def test_the_rights_that_rules_need_come_with_them(
    kubeconfig: Path, node: Namespace, tmp_path: Path, rules: str, component: str
) -> None:
    """They are enough for the watch and for a look at one node."""
    things: Sequence[Any] = list(yaml.safe_load_all((DEPLOY / "components" / component / "rbac.yaml").read_text()))
    base = yaml.safe_load_all((DEPLOY / "base" / "rbac.yaml").read_text())
    (role,) = (one for one in base if one["kind"] == "ClusterRole" and one["metadata"]["name"] == "rekindle-watcher")
    also = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}  # the control worker's
    account = {"kind": "ServiceAccount", "name": "looker", "namespace": node.name}
    own = await node.kubeconfig_of("looker", kubeconfig, tmp_path)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    name = f"looker-{node.name}"
    await node.api.create(f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": [*role["rules"], also]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    await node.api.create(
        f"{rbac}/clusterrolebindings", {"metadata": {"name": name}, "roleRef": reference, "subjects": [account]}
    )
    for thing in things:
        at = thing["metadata"]["namespace"]
        await ensure_namespace(node.api, at)
        if thing["metadata"]["name"] == "rekindle-public-faults":
            continue  # the gateway's: test_public_faults has it
        if thing["kind"] == "RoleBinding":
            assert {one["name"] for one in thing["subjects"]} == {"rekindle-control", "rekindle-watcher"}
            thing = {**thing, "subjects": [account]}  # noqa: PLW2901
        kind = "roles" if thing["kind"] == "Role" else "rolebindings"
        await put(node.api, f"{rbac}/namespaces/{at}/{kind}", thing)
    async with shown(own, rules) as seen:
        await seen.until_found()
    for thing in things:
        kind = "roles" if thing["kind"] == "Role" else "rolebindings"
        try:
            await gone(node.api, f"{rbac}/namespaces/{thing['metadata']['namespace']}/{kind}/{thing['metadata']['name']}")
        except NotFound:
            continue
