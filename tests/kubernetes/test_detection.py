"""State that a real API server shows becomes the right fault, and the fault is over when that state is gone."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.port import Snapshot
from rekindle.errors import Conflict
from rekindle.model.cluster import Node
from rekindle.model.keys import HEALTH
from rekindle.policy.detection.rules import of_node
from rekindle.settings import Settings
from simulators.kubernetes.installation import DEPLOY
from tests.fakes.api_proxy import ApiProxy, api_proxy
from tests.kubernetes.test_reports import card, device_info, event, public
from tests.kubernetes.world.control_plane import Namespace

NODE = "reported"
WAIT_LIMIT = 60.0


@pytest.fixture
async def node(namespace: Namespace) -> AsyncIterator[Namespace]:
    """Creates a node without a kubelet."""
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
        """Waits until these rules decide about the node, both in the watch and in a direct request."""
        await self.until_shown(*rules)
        assert self._deciding(await self.cluster.node(NODE)) == list(rules)

    async def until_shown(self, *rules: str) -> None:
        """Waits until these rules decide about the node in the watch."""
        async with asyncio.timeout(WAIT_LIMIT), self._changed:
            await self._changed.wait_for(lambda: self._node and self._deciding(self._node) == list(rules))

    def _deciding(self, node: Node) -> list[str]:
        return [one.named.name for one in of_node(node, self.cluster.rules)]


@asynccontextmanager
async def shown(kubeconfig: Path, rules: str, name: str = "", *, streams: bool = True) -> AsyncIterator[Shown]:
    """Yields the node as the watch shows it. With `streams` false the API server streams no lists, like older servers."""
    settings = Settings(cluster="kubernetes", kubeconfig=kubeconfig, namespaces=(name or "default",), rules=rules)
    api = Api(kubeconfig)
    if not streams:
        api._streams_from = inf
    seen = Shown(KubernetesCluster(api, settings))
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
    """A node is affected by `kubectl cordon`, `taint` and `annotate`, and by written conditions. Each fault is over when its
    cause is taken back."""
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
    """ConfigMaps of the device plugin, of NodeD and of public faults are read; a tenant's own ConfigMap with the same label is
    ignored."""
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
    """An event counts until its time has passed, though the cluster keeps it for an hour. A node's own clock does not matter."""
    (tmp_path / "rules.yaml").write_text(
        "apiVersion: rekindle.io/v1\nkind: Rules\nspec:\n  use: []\n  rules:\n"
        "    - {name: hot, report: {source: event, code: Gpu*}, then: sub-health, expires: 8}\n"
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
    """An event of a node counts until it is over or deleted."""
    path = "/api/v1/namespaces/default/events"
    told = event(involvedObject={"kind": "Node", "name": NODE})
    told["metadata"] = {"name": "throttled", "namespace": "default"}
    async with shown(kubeconfig, "nvidia") as seen:
        await seen.until_found()
        await node.api.create(path, told)
        await seen.until_found("nvidia/throttled-by-heat")
        await gone(node.api, f"{path}/throttled")
        await seen.until_found()


@asynccontextmanager
async def installed(namespace: Namespace, component: str, accounts: Mapping[str, Object]) -> AsyncIterator[None]:
    """Applies the rights of a component for these accounts instead of ours."""
    things: Sequence[Any] = list(yaml.safe_load_all((DEPLOY / "components" / component / "rbac.yaml").read_text()))
    rbac, paths = "/apis/rbac.authorization.k8s.io/v1", []
    for thing in things:
        if thing["kind"] == "RoleBinding":
            (subject,) = thing["subjects"]
            thing["subjects"] = [accounts.get(subject["name"], subject)]
        at = thing["metadata"]["namespace"]
        await ensure_namespace(namespace.api, at)
        paths.append(f"{rbac}/namespaces/{at}/{thing['kind'].lower()}s")
        await put(namespace.api, paths[-1], thing)
    yield
    for path, thing in zip(paths, things, strict=True):
        await gone(namespace.api, f"{path}/{thing['metadata']['name']}")


def granted(component: str, account: str) -> set[tuple[str, str]]:
    """Returns what the roles of an account allow, by namespace and verb. Each role has one rule."""
    things = yaml.safe_load_all((DEPLOY / "components" / component / "rbac.yaml").read_text())
    roles = [one for one in things if one["kind"] == "Role" and one["metadata"]["name"].startswith(f"{account}-")]
    return {(one["metadata"]["namespace"], verb) for one in roles for rule in one["rules"] for verb in rule["verbs"]}


def watched(component: str) -> list[str]:
    things = "events" if component == "rules-nvidia" else "configmaps"
    return [f"/api/v1/namespaces/{name}/{things}" for name, verb in granted(component, "rekindle-watcher") if verb == "watch"]


def asked(proxy: ApiProxy) -> set[tuple[str, str]]:
    found = (re.fullmatch(r"/api/v1/namespaces/([^/]+)/(?:configmaps|events)(/.+)?", path) for _, path in proxy.requests)
    verbs = {"WATCH": "watch", "GET": "list"}
    return {(one[1], "get" if one[2] else verbs[method]) for (method, _), one in zip(proxy.requests, found, strict=True) if one}


@pytest.mark.parametrize(("rules", "component"), [("nvidia", "rules-nvidia"), ("ascend", "rules-ascend")])
async def test_the_rights_that_rules_need_come_with_them(
    kubeconfig: Path, node: Namespace, tmp_path: Path, rules: str, component: str
) -> None:
    """A component grants enough rights for the watch and for requests for nodes, also where the server streams no lists. It
    grants no other verb."""
    base = yaml.safe_load_all((DEPLOY / "base" / "rbac.yaml").read_text())
    (role,) = (one for one in base if one["kind"] == "ClusterRole" and one["metadata"]["name"] == "rekindle-watcher")
    also = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}  # the control worker's
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", f"looker-{node.name}"
    await node.api.create(f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": [*role["rules"], also]})
    accounts = {
        account: {"kind": "ServiceAccount", "name": account, "namespace": node.name}
        for account in ("rekindle-control", "rekindle-watcher")
    }
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    bound = {"metadata": {"name": name}, "roleRef": reference, "subjects": list(accounts.values())}
    await node.api.create(f"{rbac}/clusterrolebindings", bound)
    async with installed(node, component, accounts), AsyncExitStack() as ends:
        proxies = {}
        for account in accounts:
            own = await node.kubeconfig_of(account, kubeconfig, tmp_path)
            (tmp_path / f"{account}.d").mkdir()
            proxies[account] = await ends.enter_async_context(api_proxy(own, tmp_path / f"{account}.d"))
        watcher = proxies["rekindle-watcher"]
        for streams in (True, False):
            async with shown(watcher.kubeconfig, rules, streams=streams) as seen, asyncio.timeout(WAIT_LIMIT):
                await seen.until_shown()
                await watcher.until_watched(*watched(component))
        settings = Settings(cluster="kubernetes", kubeconfig=proxies["rekindle-control"].kubeconfig, rules=rules)
        control = KubernetesCluster(Api(settings.kubeconfig), settings)
        ends.push_async_callback(control.close)
        assert (await control.node(NODE)).metadata.name == NODE
        assert NODE in [one.metadata.name for one in await control.nodes()]
        for account, proxy in proxies.items():
            assert asked(proxy) == granted(component, account), account
