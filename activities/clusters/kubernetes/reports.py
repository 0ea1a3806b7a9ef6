"""Reads reports of other components about nodes: events, MindCluster's ConfigMaps, public faults.

The watch reads them for all nodes, and the driver for one. Each object, and each part of it, is parsed independently; one that
cannot be read is ignored. Public faults may come from every user who can write a ConfigMap, so they are read only in the
namespaces of the components.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.reader import in_scope, is_name
from activities.clusters.kubernetes.schemas import Named, checked
from rekindle.errors import MALFORMED, BadInput, NotFound
from rekindle.model.bounds import cut
from rekindle.model.cluster import NodeReport
from rekindle.model.public_fault import LEAST_SECONDS, LEVELS, MOST_FAULTS, MOST_INFLUENCES, SERIAL
from rekindle.model.rules import Rules
from rekindle.model.sizes import LONGEST_NAME, LONGEST_TEXT
from rekindle.policy.detection.rules import over_at

DEVICE_INFO, NODE_INFO = "mindx-dl-deviceinfo-", "mindx-dl-nodeinfo-"
"""Prefixes of the names of ConfigMaps; the node's name follows. Source: the Kubernetes contract."""

COMPONENTS = ("cluster-system", "mindx-dl", "kube-system")
"""Namespaces in which tenants cannot write."""

OF_CLUSTERD = "mx-consumer-cim=true"
PUBLIC = "mc-consumer-publicfault=true"

MANUAL = "ManuallySeparateNPU"
MANUAL_INFO = "clusterd-manual-info-cm"

HALVES = re.compile(r"\\u[dD][89a-fA-F]")
"""Matches half of a surrogate pair: JSON escapes a character outside of the basic plane as two halves."""

END_OF_TIME = 10**13
"""Upper limit of timestamps, in milliseconds since the epoch. Those of the contract have 13 digits."""

MOST = 256
"""Maximum number of reports of one object."""

OVER = ("recover",)
"""Assertions of a public fault that has ended."""

Reports = Mapping[str, tuple[NodeReport, ...]]
"""Reports by the name of the node, or by `SERIAL` and its serial number."""

Wrong = Callable[[str], None]
"""Receives the reason why a part of an object cannot be read."""

Part = TypeVar("Part")
Found = TypeVar("Found")


def ignored(_: str) -> None:
    pass


def _each(what: str, parts: Iterable[Part], understood: Callable[[Part], Iterable[Found]], wrong: Wrong) -> Iterator[Found]:
    """Yields what `understood` finds in each part.

    A part that cannot be read is passed to `wrong` and does not affect the others.
    """
    for number, part in enumerate(parts):
        try:
            found = list(understood(part))
        except MALFORMED as error:
            name = part[:LONGEST_NAME] if isinstance(part, str) else f"{what} {number}"
            wrong(f"{name} cannot be read: {type(error).__name__}: {error}")
        else:
            yield from found


@dataclass(frozen=True)
class Where:
    """Place of objects that contain reports about nodes."""

    path: str
    query: tuple[tuple[str, str], ...]
    read: Callable[[Object, Wrong], Reports]
    prefix: str = ""
    """Prefix of the names of the objects, which a node's name follows; empty: names do not contain a node."""

    @property
    def is_by_node(self) -> bool:
        """True if the objects of a single node can be requested."""
        return bool(self.prefix) or self.read is of_event


def places(rules: Rules) -> Iterator[Where]:
    """Yields the places of objects that have to be read for these rules."""
    if "event" in rules.reporters:
        yield Where(in_scope("events", "default"), (("fieldSelector", "involvedObject.kind=Node"),), of_event)
    if rules.reporters & {"device-plugin", "switch"}:
        yield Where(in_scope("configmaps", "kube-system"), (("labelSelector", OF_CLUSTERD),), of_device_info, DEVICE_INFO)
    if "noded" in rules.reporters:
        yield Where(in_scope("configmaps", "mindx-dl"), (("labelSelector", OF_CLUSTERD),), of_node_info, NODE_INFO)
    if "public-fault" in rules.reporters:
        for namespace in COMPONENTS:
            yield Where(in_scope("configmaps", namespace), (("labelSelector", PUBLIC),), of_public_fault)
    if "device-plugin" in rules.reporters:
        yield Where(
            in_scope("configmaps", "cluster-system"), (("fieldSelector", f"metadata.name={MANUAL_INFO}"),), of_manual_info
        )


class Heard:
    """Current reports about single nodes.

    Concurrent callers share one list of objects that may be about any node. The list begins after they asked: there may be
    thousands of objects, and a job asks about a hundred nodes.
    """

    def __init__(self, api: Api, rules: Rules) -> None:
        self._api, self._rules = api, rules
        self._looks = {where: _Look() for where in places(rules)}

    async def of_node(self, node: str, serial: str = "") -> tuple[NodeReport, ...]:
        """Returns the reports about a node, by its name or its serial number."""
        found: list[NodeReport] = []
        for where, look in self._looks.items():
            said = await self._alone(where, node) if where.is_by_node else await self._shared(where, look)
            found += (*said.get(node, ()), *(said.get(f"{SERIAL}{serial}", ()) if serial else ()))
        return in_order(in_force(found, self._rules, datetime.now(UTC)))

    async def _alone(self, where: Where, node: str) -> Reports:
        if where.prefix:
            if not is_name(node):
                return {}
            try:
                return read(where, await self._api.get(f"{where.path}/{where.prefix}{node}"))
            except NotFound:
                return {}
        query = dict(where.query)
        query["fieldSelector"] += f",involvedObject.name={node}"
        return _joined(where, (await self._api.list(where.path, **query)).items)

    async def _shared(self, where: Where, look: "_Look") -> Reports:
        asked = time.monotonic()
        async with look.looking:
            if look.began < asked:
                began = time.monotonic()
                look.said, look.began = _joined(where, (await self._api.list(where.path, **dict(where.query))).items), began
            return look.said


class _Look:
    """Result of the last completed list of all objects of one place."""

    def __init__(self) -> None:
        self.looking = asyncio.Lock()
        self.began = float("-inf")
        self.said: Reports = {}


def _joined(where: Where, things: Iterable[Object]) -> Reports:
    found: dict[str, tuple[NodeReport, ...]] = {}
    for thing in things:
        for node, reports in read(where, thing).items():
            found[node] = (*found.get(node, ()), *reports)
    return found


def read(where: Where, thing: Object, wrong: Wrong = ignored) -> Reports:
    """Returns the reports in an object, as far as it can be read."""
    try:
        return where.read(thing, wrong)
    except (*MALFORMED, BadInput) as error:
        wrong(f"it cannot be read: {type(error).__name__}: {error}")
        return {}


def in_order(reports: Iterable[NodeReport]) -> tuple[NodeReport, ...]:
    """Returns the reports sorted, so that their order does not depend on that of their arrival."""
    return tuple(sorted(reports, key=lambda one: (one.source, one.id)))


def in_force(reports: Iterable[NodeReport], rules: Rules, now: datetime) -> tuple[NodeReport, ...]:
    """Returns the reports that have not expired, each with the time at which it will."""
    dated = (one.model_copy(update={"until": over_at(one, rules)}) for one in reports)
    return tuple(one for one in dated if one.until is None or one.until > now)


# ---- events


def of_event(raw: Object, _: Wrong = ignored) -> Reports:
    """Reads an event of Node Problem Detector, NVSentinel or the kubelet."""
    event = checked(schemas.Event, raw)
    about, written = event["involvedObject"], event.get("source", {}).get("component", "")
    report = NodeReport(
        id=event["metadata"]["uid"],
        source="event",
        code=event.get("reason", ""),
        level=event.get("type", ""),
        by=written or event.get("reportingComponent", ""),
        message=cut(event.get("message", ""), LONGEST_TEXT),
        since=_moment(event.get("firstTimestamp") or event.get("eventTime")),
        told=_written(event["metadata"]) or _moment(_last_told(event)) or _moment(event["metadata"].get("creationTimestamp")),
    )
    return {about.get("name", ""): (report,)} if about.get("kind") == "Node" else {}


# ---- MindCluster


def of_device_info(raw: Object, wrong: Wrong = ignored) -> Reports:
    """The Ascend Device Plugin's ConfigMap of a node: devices, and the switches of its super pod."""
    name, data, where = _config_map(raw, DEVICE_INFO)

    def of_part(key: str) -> Iterable[NodeReport]:
        return _switches(_json(data, key), where) if key == "SwitchInfoCfg" else _devices(_json(data, key), where, wrong)

    found = list(_each("part", ("DeviceInfoCfg", "SwitchInfoCfg"), of_part, wrong))
    for card in filter(None, (one.strip() for one in data.get("ManuallySeparateNPU", "").split(","))):
        words = f"{card} is separated until a person releases it"
        found.append(_report(f"{where}/manual/{card}", "device-plugin", (card,), code=MANUAL, level=MANUAL, message=words))
    return {name: tuple(found[:MOST])} if name else {}


def _devices(info: Any, where: str, wrong: Wrong) -> Iterator[NodeReport]:
    listed = info.get("DeviceInfo", info).get("DeviceList") or {}
    for key in sorted(listed):
        if key.endswith("-Fault"):
            faults = json.loads(listed[key] or "[]") or ()
            yield from _each(key, faults, lambda fault: _device(fault, where), wrong)


def _device(fault: Any, where: str) -> Iterator[NodeReport]:
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


def of_node_info(raw: Object, wrong: Wrong = ignored) -> Reports:
    """Reads NodeD's ConfigMap of a node. It is deleted when the node is healthy."""
    name, data, where = _config_map(raw, NODE_INFO)
    info = _json(data, "NodeInfo")

    def of_part(one: Any) -> Iterator[NodeReport]:
        kind, level = str(one.get("DeviceType", "")), str(one.get("FaultLevel", ""))
        part = f"{kind} {one.get('DeviceId', '')}"
        for code in map(str, one.get("FaultCode") or ()):
            report = _report(f"{where}/{part}/{code}", "noded", code=code, level=level, message=f"{part}: {code}, {level}")
            yield report.model_copy(update={"by": kind})

    found = list(_each("FaultDevList", info.get("NodeInfo", info).get("FaultDevList") or (), of_part, wrong))
    return {name: tuple(found[:MOST])} if name else {}


def of_public_fault(raw: Object, wrong: Wrong = ignored) -> Reports:
    """Reads the faults of the wire contract's `PublicFaultRequest` that one ConfigMap contains: another sender's, or the
    gateway's own."""
    thing = checked(schemas.ConfigMap, raw)
    told = _json(thing.get("data") or {}, "PublicFault")
    metadata, found = thing["metadata"], dict[str, list[NodeReport]]()

    def of_part(fault: Any) -> Iterator[tuple[str, NodeReport]]:
        if fault.get("assertion") in OVER:
            return
        for number, at in enumerate(_concerned(fault, _written(metadata))):
            code = str(fault.get("faultCode", ""))
            words = str(fault.get("description") or f"{fault.get('faultType', '')} {code}")
            name = f"{metadata['uid']}/{fault.get('faultId', '')}/{number}"
            report = _report(name, "public-fault", at.devices, code=code, level=LEVELS.get(code, ""), message=words)
            more = {"by": str(told.get("resource", "")), "since": _milliseconds(fault.get("faultTime")), "until": at.until}
            yield at.node, report.model_copy(update=more)

    for node, report in _each("faults", (told.get("faults") or ())[:MOST_FAULTS], of_part, wrong):
        found.setdefault(node, []).append(report)
    return {node: tuple(reports) for node, reports in found.items() if node not in ("", SERIAL)}


class _At(NamedTuple):
    """A node that has a public fault."""

    node: str
    """Name of the node, or `SERIAL` and its serial number."""

    devices: tuple[str, ...]
    until: datetime | None = None


def _concerned(fault: Any, written: datetime | None) -> Iterator[_At]:
    if "concerned" in fault:
        for one in fault["concerned"][:MOST_INFLUENCES]:
            if not one.get("hidden"):
                yield _At(str(one["node"]), tuple(map(str, one["devices"])), _milliseconds(one.get("until")))
        return
    once = written + timedelta(seconds=LEAST_SECONDS) if written and fault.get("assertion") == "once" else None
    for one in (fault.get("influence") or ())[:MOST_INFLUENCES]:
        node = str(one.get("nodeName") or f"{SERIAL}{one.get('nodeSN') or ''}")
        devices = tuple(map(int, one["deviceIds"]))
        if not devices:
            raise ValueError("no device is named")
        yield _At(node, tuple(map(str, devices)), once)


def of_manual_info(raw: Object, wrong: Wrong = ignored) -> Reports:
    """Reads ClusterD's list of cards that it, or a person, has separated until a person removes them.

    It has one key for each node.
    """
    thing = checked(schemas.ConfigMap, raw)
    uid, data = thing["metadata"]["uid"], thing.get("data") or {}

    def of_part(node: str) -> Iterator[tuple[str, tuple[NodeReport, ...]]]:
        yield node, tuple(_separated(uid, _json(data, node)))[:MOST]

    return dict(_each("node", data, of_part, wrong))


def _separated(uid: str, info: Any) -> Iterator[NodeReport]:
    detail = info.get("Detail") or {}
    for card in info.get("Total") or ():
        told = (detail.get(card) or [{}])[-1]
        code = str(told.get("FaultCode") or MANUAL)
        words = f"{card} is separated until a person releases it: {code}"
        report = _report(f"{uid}/{card}", "device-plugin", (str(card),), code=code, level=MANUAL, message=words)
        yield report.model_copy(update={"since": _milliseconds(told.get("LastSeparateTime"))})


def _config_map(raw: Object, prefix: str) -> tuple[str, dict[str, str], str]:
    """Returns the node's name (empty: it is another ConfigMap), the data, and the prefix of ids."""
    thing = checked(Named, raw)
    name = str(thing["metadata"]["name"])
    return name.removeprefix(prefix) if name.startswith(prefix) else "", thing.get("data") or {}, str(thing["metadata"]["uid"])


def _json(data: Mapping[str, str], key: str) -> Any:
    text = data.get(key) or "{}"
    found = json.loads(text)
    if HALVES.search(text):
        json.dumps(found, ensure_ascii=False).encode()  # half of a character cannot be encoded
    return found


def _report(name: str, source: str, devices: Iterable[str] = (), **told: str) -> NodeReport:
    """Returns a report. Devices may be named as cards, `Ascend910-2`, of which the number is the local id."""
    ids = tuple(number for one in devices if (number := one.rpartition("-")[2]).isdecimal())
    words = cut(told.pop("message"), LONGEST_TEXT)
    return NodeReport(id=name, source=source, devices=ids, message=words, code=told["code"], level=told.get("level", ""))


def _milliseconds(moment: object) -> datetime | None:
    return datetime.fromtimestamp(moment / 1000, UTC) if isinstance(moment, int) and 0 < moment < END_OF_TIME else None


def _last_told(event: Object) -> str | None:
    """Returns when the event was last reported, according to its reporter. The clock of the reporter's node may be wrong."""
    series: str | None = event.get("series", {}).get("lastObservedTime")
    return series or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")


def _written(metadata: Object) -> datetime | None:
    """Returns when the object was last changed, by the clock of the API server; None: unknown."""
    times = [one["time"] for one in metadata.get("managedFields", ()) if one.get("time")]
    return max(map(datetime.fromisoformat, times), default=None)


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
