"""Measures the time from a change of an object to the report of the fault, by set of rules: `python -P -m benchmarks.detection`.

The control plane is that of the tests, the watcher is the real one, and a peer that acknowledges at once replaces Temporal. Each
fault appears and disappears; both are measured, from before the request to the server. `--write` updates the table in
docs/detection.md.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.public_faults import PublicFaults
from rekindle.errors import Conflict
from rekindle.model import keys
from rekindle.settings import Settings
from tests.fakes.public_fault_peer import fault, request, send
from tests.gateway.test_public_faults import served
from tests.kubernetes.test_reports import card, device_info, event, public
from tests.kubernetes.world.control_plane import local_kubernetes
from tests.support.watching import Peer, watching
from workers.watcher.reconciler import MANY, QUIET, WHILE

NODE, ROUNDS = "benchmarked", 8
PAGE = Path(__file__).parents[1] / "docs" / "detection.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

SYSTEM = "/api/v1/namespaces/kube-system/configmaps"
COMPONENTS = "/api/v1/namespaces/mindx-dl/configmaps"
CLUSTER = "/api/v1/namespaces/cluster-system/configmaps"
EVENTS = "/api/v1/namespaces/default/events"

APART = 1.2 * max(QUIET, WHILE / MANY)
"""Seconds between two changes: changes in quick succession would be gathered into one update."""

Change = Callable[[], Awaitable[Any]]


class World:
    """Cluster with one node and a job of one pod on it."""

    def __init__(self, api: Api, gateway: str) -> None:
        self.api, self.gateway = api, gateway
        self.told = 0
        """Number of public faults that were sent, from which each fault gets its own id."""

    async def node(self, **changes: Any) -> None:
        await self.api.patch(f"/api/v1/nodes/{NODE}", changes)

    async def condition(self, kind: str, status: str, message: str = "") -> None:
        well = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        told = {"type": kind, "status": status, "reason": f"{kind}Seen", "message": message}
        await self.api.patch(f"/api/v1/nodes/{NODE}/status", {"status": {"conditions": [well, told]}})

    async def put(self, path: str, name: str, **body: Any) -> None:
        try:
            await self.api.create(path, {"metadata": {"name": name, **body.pop("metadata", {})}, **body})
        except Conflict:
            await self.api.patch(f"{path}/{name}", body)

    async def drop(self, path: str, name: str) -> None:
        await self.api.delete(f"{path}/{name}", (await self.api.get(f"{path}/{name}"))["metadata"]["uid"])

    async def tell(self, assertion: str) -> None:
        self.told += assertion == "occur"
        told = fault(assertion=assertion, faultId=f"fault-{self.told:04}", influence=[{"nodeName": NODE, "deviceIds": [0]}])
        assert (await send(self.gateway, request(told)))[0] == 0


def labelled(thing: Object, label: str) -> Mapping[str, Any]:
    return {"metadata": {"labels": {label: "true"}}, "data": thing["data"]}


def changes(world: World) -> Mapping[str, Sequence[tuple[str, str, Change, Change]]]:
    """Returns for each set of rules: what is changed, the rule that decides, and the calls that make and undo the change."""
    node, condition, put, drop = world.node, world.condition, world.put, world.drop
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    xid = "ErrorCode:79 PCI:0000:ef:00 GPU_UUID:GPU-b5f21324-f1f9-f1a4-1a37-1166234f6e4f Recommended Action=RESTART_BM;"
    hot = event(involvedObject={"kind": "Node", "name": NODE}, metadata={"namespace": "default"})
    cards = partial(put, SYSTEM, f"mindx-dl-deviceinfo-{NODE}")
    sick = labelled(device_info(card(0, c8C084E00="SeparateNPU"), node=NODE), "mx-consumer-cim")
    well = labelled(device_info(node=NODE), "mx-consumer-cim")
    broken = {"FaultDevList": [{"DeviceType": "CPU", "DeviceId": 1, "FaultCode": ["01"], "FaultLevel": "SeparateFault"}]}
    of_node = labelled({"data": {"NodeInfo": json.dumps({"NodeInfo": broken})}}, "mx-consumer-cim")
    link = labelled({"data": {"PublicFault": json.dumps(public("220001001", nodeName=NODE))}}, "mc-consumer-publicfault")
    return {
        "plain": [
            (
                "condition of the node",
                "kernel-deadlock",
                partial(condition, "KernelDeadlock", "True"),
                partial(condition, "KernelDeadlock", "False"),
            ),
            ("cordon", "cordoned", partial(node, spec={"unschedulable": True}), partial(node, spec={"unschedulable": None})),
            ("taint", "leaves-soon", partial(node, spec={"taints": [taint]}), partial(node, spec={"taints": None})),
            (
                "annotation",
                "marked-sick",
                partial(node, metadata={"annotations": {keys.HEALTH: "sick"}}),
                partial(node, metadata={"annotations": {keys.HEALTH: None}}),
            ),
        ],
        "nvidia": [
            (
                "NVSentinel's condition",
                "gpu-broken",
                partial(condition, "SysLogsXIDError", "True", xid),
                partial(condition, "SysLogsXIDError", "False"),
            ),
            ("NVSentinel's event", "throttled-by-heat", partial(put, EVENTS, "hot", **hot), partial(drop, EVENTS, "hot")),
        ],
        "ascend": [
            (
                "ConfigMap of the device plugin",
                "device-broken",
                partial(cards, **sick),
                partial(cards, **well),
            ),
            (
                "ConfigMap of NodeD",
                "node-broken",
                partial(put, COMPONENTS, f"mindx-dl-nodeinfo-{NODE}", **of_node),
                partial(drop, COMPONENTS, f"mindx-dl-nodeinfo-{NODE}"),
            ),
            ("public fault by ConfigMap", "public-broken", partial(put, CLUSTER, "link", **link), partial(drop, CLUSTER, "link")),
            ("public fault by `PubFault`", "public-broken", partial(world.tell, "occur"), partial(world.tell, "recover")),
        ],
    }


@asynccontextmanager
async def a_world(api: Api) -> AsyncIterator[World]:
    for name in ("mindx-dl", "cluster-system", "training"):
        try:
            await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        except Conflict:
            continue
    await api.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    labels = {keys.JOB_ID: "training.demo", keys.BARE_JOB_NAME: "demo", keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}
    metadata = {"name": "demo-0", "labels": labels, "annotations": {keys.RANK_INDEX: "0", keys.PODS: "1"}}
    spec = {"containers": [{"name": "main", "image": "none", "command": ["train"]}], "nodeName": NODE}
    await api.create("/api/v1/namespaces/training/pods", {"metadata": metadata, "spec": spec})
    behind = time.time() - 6  # so that the end of a fault counts at once
    clock = time.monotonic()
    async with served(PublicFaults(api, lambda: behind + time.monotonic() - clock)) as gateway:  # type: ignore[arg-type]
        yield World(api, gateway)


async def until_told(peer: Peer, rule: str, *, shown: bool) -> None:
    await peer.until_seen(lambda seen: shown == any(one.decided and one.decided.rule.endswith(f"/{rule}") for one in seen.faults))


async def measured(peer: Peer, rule: str, comes: Change, goes: Change, rounds: int) -> tuple[list[float], list[float]]:
    """Returns the milliseconds until the fault is reported, and until its end is reported, for each round."""
    there: list[float] = []
    over: list[float] = []
    for number in range(rounds + 1):
        for change, found, shown in ((comes, there, True), (goes, over, False)):
            await asyncio.sleep(APART)
            began = time.perf_counter()
            await change()
            await until_told(peer, rule, shown=shown)
            if number:  # the first round also reads what is read only once
                found.append(1000 * (time.perf_counter() - began))
    return there, over


async def measure(kubeconfig: Path, rounds: int) -> list[str]:
    rows = []
    async with Api(kubeconfig) as api, a_world(api) as world:
        for rules, rows_of_set in changes(world).items():
            settings = Settings(cluster="kubernetes", kubeconfig=kubeconfig, namespaces=("training",), rules=rules)
            cluster, peer = KubernetesCluster(Api(kubeconfig), settings), Peer()
            async with watching(cluster, peer):
                await peer.until_seen(lambda seen: bool(seen.holders))
                for what, rule, comes, goes in rows_of_set:
                    there, over = await measured(peer, rule, comes, goes, rounds)
                    rows.append(f"| `{rules}` | {what} | {_spread(there)} | {_spread(over)} |")
                    print(rows[-1], flush=True)
            await cluster.close()
    return rows


def _spread(milliseconds: Sequence[float]) -> str:
    known = sorted(milliseconds)
    return f"{statistics.median(known):.0f} ({known[0]:.0f}-{known[-1]:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true", help="put the table into docs/detection.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rk-") as directory, local_kubernetes(Path(directory)) as kubeconfig:
        rows = asyncio.run(measure(kubeconfig, options.rounds))
    head = ["| rules | what changes | told after, ms | over after, ms |", "|---|---|---|---|"]
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        behind = rest.partition(END)[2]
        PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *head, *rows, "", f"{END}{behind}"]))


if __name__ == "__main__":
    main()
