"""What others say of nodes in objects of their own: events, MindCluster's ConfigMaps, public faults.

Read by the watch for all nodes, and by the driver for one. Each object is understood by itself; one that cannot be read says
nothing. Public faults, which anybody may send who may write a ConfigMap, are taken from the components' namespaces only.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes import shapes
from activities.clusters.kubernetes.reader import in_scope, is_name
from activities.clusters.kubernetes.shapes import Named, checked
from rekindle.errors import MALFORMED, BadInput, NotFound
from rekindle.model.bounds import cut
from rekindle.model.cluster import NodeReport
from rekindle.model.rules import Rules
from rekindle.model.sizes import LONGEST_NOTE

DEVICE_INFO, NODE_INFO = "mindx-dl-deviceinfo-", "mindx-dl-nodeinfo-"
"""What the names of ConfigMaps begin with; the node's name follows. Source: the Kubernetes contract."""

COMPONENTS = ("cluster-system", "mindx-dl", "kube-system")
"""Namespaces in which no tenant writes."""

OF_CLUSTERD = "mx-consumer-cim=true"
PUBLIC = "mc-consumer-publicfault=true"

MANUAL = "ManuallySeparateNPU"

MOST = 256
"""Reports of one object."""

OVER = ("recover",)
"""Assertions of a public fault that is no more."""

Reports = Mapping[str, tuple[NodeReport, ...]]
"""By node."""


@dataclass(frozen=True)
class Where:
    """Objects that say something of nodes."""

    path: str
    query: tuple[tuple[str, str], ...]
    read: Callable[[Object], Reports]
    prefix: str = ""
    """What their names begin with, where a node's name follows."""


def places(rules: Rules) -> Iterator[Where]:
    """What has to be read for these rules."""
    if "event" in rules.reporters:
        yield Where(in_scope("events", "default"), (("fieldSelector", "involvedObject.kind=Node"),), of_event)
    if rules.reporters & {"device-plugin", "switch"}:
        yield Where(in_scope("configmaps", "kube-system"), (("labelSelector", OF_CLUSTERD),), of_device_info, DEVICE_INFO)
    if "noded" in rules.reporters:
        yield Where(in_scope("configmaps", "mindx-dl"), (("labelSelector", OF_CLUSTERD),), of_node_info, NODE_INFO)
    if "public-fault" in rules.reporters:
        for namespace in COMPONENTS:
            yield Where(in_scope("configmaps", namespace), (("labelSelector", PUBLIC),), of_public_fault)


async def reports_of(api: Api, rules: Rules, node: str) -> tuple[NodeReport, ...]:
    """All that is said of one node now."""
    found: list[NodeReport] = []
    for where in places(rules):
        for thing in await _things(api, where, node):
            found += (read(where, thing) or {}).get(node, ())
    return in_order(found)


async def _things(api: Api, where: Where, node: str) -> list[Object]:
    if where.prefix:
        if not is_name(node):
            return []
        try:
            return [await api.get(f"{where.path}/{where.prefix}{node}")]
        except NotFound:
            return []
    query = dict(where.query)
    if where.read is of_event:
        query["fieldSelector"] += f",involvedObject.name={node}"
    return (await api.list(where.path, **query)).items


def read(where: Where, thing: Object) -> Reports | None:
    """None: it cannot be read, so that nobody knows what it says."""
    try:
        return where.read(thing)
    except (*MALFORMED, BadInput):
        return None


def in_order(reports: Iterable[NodeReport]) -> tuple[NodeReport, ...]:
    """The same for the same reports, in whatever order they came."""
    return tuple(sorted(reports, key=lambda one: (one.source, one.id)))


# ---- events


def of_event(raw: Object) -> Reports:
    """Node Problem Detector's, NVSentinel's, the kubelet's."""
    event = checked(shapes.Event, raw)
    about, written = event["involvedObject"], event.get("source", {}).get("component", "")
    report = NodeReport(
        id=event["metadata"]["uid"],
        source="event",
        code=event.get("reason", ""),
        level=event.get("type", ""),
        by=written or event.get("reportingComponent", ""),
        message=cut(event.get("message", ""), LONGEST_NOTE),
        since=_moment(event.get("firstTimestamp") or event.get("eventTime")),
    )
    return {about.get("name", ""): (report,)} if about.get("kind") == "Node" else {}


# ---- MindCluster


def of_device_info(raw: Object) -> Reports:
    """The Ascend Device Plugin's ConfigMap of a node: devices, and the switches of its super pod."""
    name, data, where = _config_map(raw, DEVICE_INFO)
    found = [*_devices(_json(data, "DeviceInfoCfg"), where), *_switches(_json(data, "SwitchInfoCfg"), where)]
    for card in filter(None, (one.strip() for one in data.get("ManuallySeparateNPU", "").split(","))):
        words = f"{card} is kept apart until somebody releases it"
        found.append(_report(f"{where}/manual/{card}", "device-plugin", (card,), code=MANUAL, level=MANUAL, message=words))
    return {name: tuple(found[:MOST])} if name else {}


def _devices(info: Any, where: str) -> Iterator[NodeReport]:
    listed = info.get("DeviceInfo", info).get("DeviceList", {})
    for key in sorted(listed):
        if not key.endswith("-Fault"):
            continue
        for fault in json.loads(listed[key] or "[]") or ():
            card, kind = str(fault.get("npu_name", "")), str(fault.get("fault_type", ""))
            level = str(fault.get("fault_level") or fault.get("fault_handling") or "")
            codes = fault.get("fault_time_and_level_map") or {
                code.strip(): {"fault_level": level} for code in str(fault.get("fault_code", "")).split(",")
            }
            for code, told in sorted(codes.items()):
                its = str(told.get("fault_level") or level)
                words = f"{kind} {card}: {code}, {its}"
                report = _report(f"{where}/{card}/{code}", "device-plugin", (card,), code=code, level=its, message=words)
                yield report.model_copy(update={"by": kind, "since": _milliseconds(told.get("fault_time"))})


def _switches(info: Any, where: str) -> Iterator[NodeReport]:
    for key, told in sorted((info.get("FaultTimeAndLevelMap") or {}).items()):
        code, level = key.partition("]")[0] + "]" if "]" in key else key, str(told.get("fault_level", ""))
        report = _report(f"{where}/switch/{key}", "switch", code=code, level=level, message=f"switch {key}: {level}")
        yield report.model_copy(update={"since": _milliseconds(told.get("fault_time"))})


def of_node_info(raw: Object) -> Reports:
    """NodeD's; it is deleted when the node is well."""
    name, data, where = _config_map(raw, NODE_INFO)
    info, found = _json(data, "NodeInfo"), []
    for one in info.get("NodeInfo", info).get("FaultDevList") or ():
        kind, level = str(one.get("DeviceType", "")), str(one.get("FaultLevel", ""))
        part = f"{kind} {one.get('DeviceId', '')}"
        for code in map(str, one.get("FaultCode") or ()):
            report = _report(f"{where}/{part}/{code}", "noded", code=code, level=level, message=f"{part}: {code}, {level}")
            found.append(report.model_copy(update={"by": kind}))
    return {name: tuple(found[:MOST])} if name else {}


def of_public_fault(raw: Object) -> Reports:
    """Faults of the wire contract's `PublicFaultRequest`, as one ConfigMap says them now."""
    thing = checked(Named, raw)
    told = _json(thing.get("data") or {}, "PublicFault")
    found: dict[str, list[NodeReport]] = {}
    for fault in (told.get("faults") or ())[:MOST]:
        if fault.get("assertion") in OVER:
            continue
        for at in (fault.get("influence") or ())[:MOST]:
            devices = tuple(str(one) for one in at.get("deviceIds") or ())
            fault_id, code = str(fault.get("faultId", "")), str(fault.get("faultCode", ""))
            words = str(fault.get("description") or f"{fault.get('faultType', '')} {code}")
            report = _report(f"{thing['metadata']['uid']}/{fault_id}", "public-fault", devices, code=code, message=words)
            more = {"by": str(told.get("resource", "")), "since": _milliseconds(fault.get("faultTime"))}
            found.setdefault(str(at.get("nodeName", "")), []).append(report.model_copy(update=more))
    return {node: tuple(reports) for node, reports in found.items() if node}


def _config_map(raw: Object, prefix: str) -> tuple[str, dict[str, str], str]:
    """The node's name (empty: it is another ConfigMap), the data, and what ids begin with."""
    thing = checked(Named, raw)
    name = str(thing["metadata"]["name"])
    return name.removeprefix(prefix) if name.startswith(prefix) else "", thing.get("data") or {}, str(thing["metadata"]["uid"])


def _json(data: Mapping[str, str], key: str) -> Any:
    return json.loads(data.get(key) or "{}")


def _report(name: str, source: str, devices: Iterable[str] = (), **told: str) -> NodeReport:
    """Devices may be cards, `Ascend910-2`, of which the number is the local id."""
    ids = tuple(number for one in devices if (number := one.rpartition("-")[2]).isdecimal())
    words = cut(told.pop("message"), LONGEST_NOTE)
    return NodeReport(id=name, source=source, devices=ids, message=words, code=told["code"], level=told.get("level", ""))


def _milliseconds(moment: object) -> datetime | None:
    return datetime.fromtimestamp(moment / 1000, UTC) if isinstance(moment, int) and moment > 0 else None


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
