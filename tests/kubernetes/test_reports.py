"""Reports about nodes are read from objects as the real sources write them."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from activities.clusters.api_server import Listing
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.node_reports_index import SaidOfNodes
from activities.clusters.kubernetes.objects import node_of
from activities.clusters.kubernetes.reports import (
    Heard,
    Where,
    of_device_info,
    of_event,
    of_manual_info,
    of_node_info,
    of_public_fault,
    places,
    read,
)
from rekindle.errors import NotFound
from rekindle.model.cluster import Node, NodeReport
from rekindle.model.fault import Fault, FaultKind, FaultType
from rekindle.model.keys import FILTER_LEVELS, SERIAL_NUMBER
from rekindle.model.rule_file import rules_of
from rekindle.policy.detection.rules import of_node, over_at
from rekindle.policy.detection.sighting import sight
from rekindle.settings import Settings
from tests.support.job_views import job, node, pod, view
from tests.support.rules import written

Object = dict[str, Any]


def config_map(name: str, **data: Any) -> Object:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "namespace": "kube-system"}, "data": texts}


def device_info(*faults: Any, node: str = "node-0", **more: Any) -> Object:
    """Returns the ConfigMap of the Ascend Device Plugin with these faults."""
    listed = {"huawei.com/Ascend910": "Ascend910-0", "huawei.com/Ascend910-Fault": json.dumps(faults)}
    info = {"DeviceInfo": {"DeviceList": listed, "UpdateTime": 1760000000}, "SuperPodID": 3, "CheckCode": "x"}
    return config_map(f"mindx-dl-deviceinfo-{node}", DeviceInfoCfg=info, **more)


def card(number: int, **codes: str) -> Object:
    """Returns a fault of a card: codes and their levels."""
    told = {code.removeprefix("c"): {"fault_time": 1760000000000, "fault_level": level} for code, level in codes.items()}
    level = next(iter(codes.values()))
    return {
        "fault_type": "CardUnhealthy",
        "npu_name": f"Ascend910-{number}",
        "large_model_fault_level": level,
        "fault_level": level,
        "fault_handling": level,
        "fault_code": ",".join(told),
        "fault_time_and_level_map": told,
    }


def said(*reports: NodeReport, rules: str) -> Sequence[Fault]:
    """Returns the faults of a job with two pods of two ranks each, on the first four cards of the node."""
    shown = node()
    shown = shown.model_copy(update={"status": shown.status.model_copy(update={"reports": reports})})
    pods = (pod(0, devices=("0", "1")), pod(1, devices=("2", "3")))
    return sight(view(*pods, nodes=(shown,), of=job()), rules_of(rules)).faults


@pytest.mark.parametrize(
    ("level", "kind", "ranks"),
    [
        ("NotHandleFault", None, ()),
        ("PreSeparateNPU", None, ()),
        ("SubHealthFault", FaultKind.SUB_HEALTH, (2, 3)),
        ("RestartRequest", FaultKind.PROCESS, (2,)),
        ("RestartBusiness", FaultKind.PROCESS, (2,)),
        ("FreeRestartNPU", FaultKind.NODE, (2, 3)),
        ("RestartNPU", FaultKind.NODE, (2, 3)),
        ("SeparateNPU", FaultKind.NODE, (2, 3)),
        ("ManuallySeparateNPU", FaultKind.NODE, (2, 3)),
    ],
)
def test_each_level_of_a_card_means_what_it_means_to_clusterd(level: str, kind: FaultKind | None, ranks: tuple[int, ...]) -> None:
    """Each level of a card has the meaning that ClusterD gives it: for the rank that has the card, or for its pod where that has
    to leave."""
    found = said(*of_device_info(device_info(card(2, c8C084E00=level)))["node-0"], rules="ascend")
    assert [(one.kind, one.ranks, one.code) for one in found] == ([(kind, ranks, "8C084E00")] if kind else [])


def test_an_error_of_memory_may_be_retried() -> None:
    """An error of a card's memory may be retried, which is the purpose of the online retry."""
    (fault,) = said(*of_device_info(device_info(card(2, c80E01801="RestartBusiness")))["node-0"], rules="ascend")
    assert [(one.type, one.device, one.ranks) for one in fault.details] == [(FaultType.MEMORY, "2", (2,))]


def test_a_card_that_somebody_keeps_apart_is_broken_until_it_is_released() -> None:
    """A card that an administrator separates is broken until its name is removed from the list."""
    apart = device_info(ManuallySeparateNPU="Ascend910-3, Ascend910-7")
    (fault,) = said(*of_device_info(apart)["node-0"], rules="ascend")
    assert (fault.kind, fault.pod_ranks, fault.code) == (FaultKind.NODE, (1,), "ManuallySeparateNPU")
    assert of_device_info(device_info(ManuallySeparateNPU=""))["node-0"] == ()


def test_what_means_nothing_alone_may_mean_something_beside_another_fault() -> None:
    """A failed collective alone is a symptom. Together with a link that is down, the card of that link is to be left, as in
    ClusterD."""
    link = card(2, c81078603="NotHandleFault")
    switch = {"FaultTimeAndLevelMap": {"[0x08520003,na,L2,na]_1_9": {"fault_level": "NotHandle"}}}
    expected = {
        "8C1F860B": ({FaultKind.NODE}, {FaultKind.NODE}),
        "8C1F8608": ({FaultKind.NODE}, set()),
        "4C1F8608": ({FaultKind.NODE}, set()),
        "8C1F8609": ({FaultKind.SUB_HEALTH}, {FaultKind.SUB_HEALTH}),
    }
    for code, (by_link, by_switch) in expected.items():
        alone = card(0, **{f"c{code}": "NotHandleFault"})
        assert said(*of_device_info(device_info(alone))["node-0"], rules="ascend") == ()
        found = said(*of_device_info(device_info(alone, link))["node-0"], rules="ascend")
        assert ({one.kind for one in found}, {(one.code, one.pod_ranks) for one in found}) == (by_link, {("81078603", (1,))})
        found = said(*of_device_info(device_info(alone, SwitchInfoCfg=switch))["node-0"], rules="ascend")
        assert ({one.kind for one in found}, {rank for one in found for rank in one.pod_ranks}) == (
            by_switch,
            {0, 1} if by_switch else set(),
        )


def test_faults_of_switches_concern_the_whole_node() -> None:
    """Faults of switches concern the whole node, by the level of each."""
    for level, kind in (("NotHandle", None), ("SubHealthFault", FaultKind.SUB_HEALTH), ("Separate", FaultKind.NODE)):
        told = {"[0x08520003,na,L2,na]_1_9": {"fault_time": 1760000000000, "fault_level": level}}
        switch = {"FaultCode": [], "FaultLevel": level, "NodeStatus": "x", "FaultTimeAndLevelMap": told}
        found = said(*of_device_info(device_info(SwitchInfoCfg=switch))["node-0"], rules="ascend")
        assert {(one.kind, one.code) for one in found} == ({(kind, "[0x08520003,na,L2,na]")} if kind else set())
        assert {rank for one in found for rank in one.pod_ranks} == ({0, 1} if kind else set())


def test_noded_tells_of_processors_and_disks() -> None:
    """A fault of processors or disks that NodeD would separate makes the node unhealthy. Lower levels are ignored."""
    for level, kinds in (("SeparateFault", [FaultKind.NODE]), ("PreSeparateFault", []), ("NotHandleFault", [])):
        broken = {"DeviceType": "CPU", "DeviceId": 1, "FaultCode": ["00000001"], "FaultLevel": level}
        info = {"NodeInfo": {"FaultDevList": [broken], "NodeStatus": "UnHealthy"}, "CheckCode": "x"}
        found = said(*of_node_info(config_map("mindx-dl-nodeinfo-node-0", NodeInfo=info))["node-0"], rules="ascend")
        assert [one.kind for one in found] == kinds


def public(code: str, assertion: str = "occur", **at: Any) -> Object:
    fault = {
        "faultId": "11937763019444715778",
        "faultType": "Network",
        "faultCode": code,
        "faultTime": 1760000000000,
        "assertion": assertion,
        "influence": [{"nodeName": "node-0", "nodeSN": "", "deviceIds": [0], **at}],
        "description": "port down",
    }
    return {"id": "12345678", "timestamp": 1760000000000, "version": "1.0", "resource": "pingmesh", "faults": [fault]}


def kept(told: Object, **at: Any) -> Object:
    """Returns the fault in the form in which the gateway keeps one that it received by gRPC."""
    (one,) = told["faults"]
    concerned = [{"node": "node-0", "devices": [0], "told_at": 1760000000000, "until": 0, "hidden": False, **at}]
    return {**told, "faults": [{**{key: one[key] for key in one if key != "influence"}, "concerned": concerned}]}


def test_what_the_gateway_keeps_is_read_with_its_end() -> None:
    """A fault that the gateway keeps is read with its end. One that recovered before it occurred is not shown."""
    (report,) = of_public_fault(config_map("f", PublicFault=kept(public("220001001"), until=1760000005000)))["node-0"]
    assert (report.devices, report.until) == (("0",), datetime.fromtimestamp(1760000005, UTC))
    assert of_public_fault(config_map("f", PublicFault=kept(public("220001001"), hidden=True))) == {}


def test_a_public_fault_that_comes_once_is_over_five_seconds_after_it_was_written() -> None:
    """The author of the ConfigMap does not matter."""
    written = config_map("f", PublicFault=public("220001001", "once"))
    written["metadata"]["managedFields"] = [{"time": "2026-01-01T00:00:00Z"}]
    (report,) = of_public_fault(written)["node-0"]
    assert report.until == datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)


def test_a_node_may_be_named_by_its_serial_number() -> None:
    """The order in which node and fault are seen does not matter."""
    known, at = SaidOfNodes(rules_of("ascend")), where("ascend", of_public_fault)
    told = config_map("f", PublicFault=public("220001001", nodeName="", nodeSN="SN1"))
    numbered = node().model_copy(update={"metadata": node().metadata.model_copy(update={"annotations": {SERIAL_NUMBER: "SN1"}})})
    assert known.take(at, told, gone=False) == []
    assert len(known.put(numbered).status.reports) == 1
    assert [one.status.reports for one in known.take(at, told, gone=True)] == [()]
    assert [len(one.status.reports) for one in known.take(at, told, gone=False)] == [1]
    renamed = numbered.model_copy(update={"metadata": numbered.metadata.model_copy(update={"name": "node-1"})})
    assert len(known.put(renamed).status.reports) == 1
    assert [one.metadata.name for one in known.take(at, told, gone=True)] == ["node-0", "node-1"], "each of them heals"
    known.drop(numbered)
    assert [one.metadata.name for one in known.take(at, told, gone=False)] == ["node-1"]
    known.drop(renamed)
    assert known.put(node()).status.reports == ()


def test_a_moment_that_is_none_keeps_nobody_from_looking() -> None:
    """An invalid time, from which a rule may count, does not stop the reading."""
    told = public("220001001")
    told["faults"][0]["faultTime"] = 253402300799000
    (report,) = of_public_fault(config_map("f", PublicFault=told))["node-0"]
    assert over_at(report, written("report: {source: public-fault}, then: fault, expires: 60")) is None


def test_a_card_that_clusterd_has_separated_is_broken_until_somebody_takes_it_out() -> None:
    """A card that ClusterD has separated is broken until it is removed from the list, which has a key for each node. The level
    counts, whatever the code is."""
    one = {"FaultCode": "8C1F8609", "FaultLevel": "ManuallySeparateNPU", "LastSeparateTime": 1760000000000}
    separated = {"Total": ["Ascend910-3", "Ascend910-7"], "Detail": {"Ascend910-3": [one]}}
    told = of_manual_info(config_map("clusterd-manual-info-cm", **{"node-0": separated, "node-1": {"Total": []}}))
    assert told["node-1"] == ()
    (fault,) = said(*told["node-0"], rules="ascend")
    assert (fault.kind, fault.pod_ranks, fault.code, fault.decided and fault.decided.rule) == (
        FaultKind.NODE,
        (1,),
        "8C1F8609",
        "ascend/separated",
    )


@pytest.mark.parametrize("level", ["SeparateNPU:90", "SeparateNPU"])
def test_a_job_may_give_a_public_fault_time_by_its_level(level: str) -> None:
    """A job may give a public fault a settling time by its level, as it may for a card's fault."""
    report = of_public_fault(config_map("f", PublicFault=public("220001001")))["node-0"]
    shown = node().model_copy(update={"status": node().status.model_copy(update={"reports": report})})
    owner = job(annotations={FILTER_LEVELS: level})
    (fault,) = sight(view(pod(0, devices=("0", "1")), nodes=(shown,), of=owner), rules_of("ascend")).faults
    assert fault.decided is not None
    assert fault.decided.settle == (90.0 if ":" in level else 60.0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("220001001", FaultKind.NODE), ("010001002", FaultKind.SUB_HEALTH), ("200001010", None), ("999999999", None)],
)
def test_a_public_fault_counts_by_its_code_until_it_has_recovered(code: str, kind: FaultKind | None) -> None:
    """A public fault counts by its code on the devices that it names, until it has recovered."""
    told = of_public_fault(config_map("pingmesh-fault-node-0", PublicFault=public(code)))
    assert [(one.kind, one.pod_ranks) for one in said(*told["node-0"], rules="ascend")] == ([(kind, (0,))] if kind else [])
    assert of_public_fault(config_map("pingmesh-fault-node-0", PublicFault=public(code, "recover"))) == {}


def event(kind: str = "GpuThermalWatch", reason: str = "GpuThermalWatchIsNotHealthy", **more: Any) -> Object:
    """Returns an event of NVSentinel that is not fatal."""
    return {
        "metadata": {"name": "gpu-node-01.17a3b2c4d5e6f7", "uid": "event", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "node-0"},
        "reason": reason,
        "type": kind,
        "message": "ErrorCode:DCGM_FR_CLOCK_THROTTLE_THERMAL GPU:1 thermal throttling Recommended Action=NONE;",
        "source": {"component": "gpu-health-monitor", "host": "node-0"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        **more,
    }


def test_an_event_of_a_node_is_a_report() -> None:
    """A card that throttles slows all ranks down; other events say nothing."""
    (fault,) = said(*of_event(event())["node-0"], rules="nvidia")
    assert (fault.kind, fault.pod_ranks, fault.code) == (FaultKind.SUB_HEALTH, (0,), "GpuThermalWatchIsNotHealthy")
    last = event(message=f"ErrorCode:DCGM_FR_CLOCK_THROTTLE_THERMAL {'slow ' * 100}GPU:2 Recommended Action=NONE;")
    assert [one.pod_ranks for one in said(*of_event(last)["node-0"], rules="nvidia")] == [(1,)]
    again = event(
        metadata={**event()["metadata"], "uid": "again"},
        firstTimestamp="2026-01-01T00:03:00Z",
        message=f"{event()['message']} 94 C",
    )
    assert [one.id for one in said(*of_event(event())["node-0"], *of_event(again)["node-0"], rules="nvidia")] == [fault.id]
    assert said(*of_event(event("Normal", "NodeReady"))["node-0"], rules="nvidia") == ()
    assert of_event(event(involvedObject={"kind": "Pod", "name": "node-0"})) == {}


@pytest.mark.parametrize(
    ("kind", "message", "expected", "devices"),
    [
        ("SysLogsXIDError", "ErrorCode:79 gpu:3 XID error occurred Recommended Action=RESTART_VM;", FaultKind.NODE, True),
        ("SysLogsXIDError", "ErrorCode:94 gpu:3 XID error occurred Recommended Action=RESTART_APP;", FaultKind.PROCESS, True),
        ("SysLogsXIDError", "ErrorCode:63 gpu:3 XID error occurred Recommended Action=NONE;", FaultKind.SUB_HEALTH, True),
        ("GpuMemWatch", "[DCGM_FR_FAULTY_MEMORY] GPU:3 memory failure - RecommendedAction: RESTART_VM", FaultKind.NODE, True),
        (
            "GpuNvlinkWatch",
            "ErrorCode:DCGM_FR_NVLINK_DOWN GPU:3 link 4 is down Recommended Action=RESTART_VM;",
            FaultKind.NODE,
            True,
        ),
        (
            "GpuThermalWatch",
            "ErrorCode:DCGM_FR_CLOCK_THROTTLE GPU:3 throttled Recommended Action=NONE;",
            FaultKind.SUB_HEALTH,
            True,
        ),
        ("SysLogsSXIDError", "ErrorCode:12028 NVSWITCH:0 NVLINK:32 Recommended Action=RESTART_VM;", FaultKind.NODE, False),
        ("DCGMError", "no connection", None, False),
    ],
)
def test_nvsentinel_s_conditions_mean_what_they_say(kind: str, message: str, expected: FaultKind | None, devices: bool) -> None:
    """NVSentinel's conditions affect the rank that has the named device, or the whole node. A condition that has healed is
    healthy."""
    raw = {
        "metadata": {"name": "node-0", "uid": "uid-of-node-0", "resourceVersion": "1"},
        "status": {
            "allocatable": {"nvidia.com/gpu": "4"},
            "conditions": [{"type": kind, "status": "True", "reason": f"{kind}IsNotHealthy", "message": message}],
        },
    }
    pods = (pod(0, devices=("0", "1")), pod(1, devices=("2", "3")))
    found = sight(view(*pods, nodes=(node_of(raw),)), rules_of("nvidia")).faults
    assert {one.kind for one in found} == ({expected} if expected else set())
    assert {rank for one in found for rank in one.pod_ranks} == (({1} if devices else {0, 1}) if expected else set())
    raw["status"]["conditions"][0].update(status="False", reason=f"{kind}IsHealthy")  # type: ignore[index]
    assert sight(view(*pods, nodes=(node_of(raw),)), rules_of("nvidia")).faults == ()


@pytest.mark.parametrize(("each", "ranks"), [(4, {2}), (3, {0, 1, 2})])
def test_a_gpu_that_its_device_plugin_gives_to_nobody_is_one_of_the_node_all_the_same(each: int, ranks: set[int]) -> None:
    """A pod that has all GPUs of the node loses the rank of this one. In a pod that has some of them all ranks are affected,
    because it is unknown which it has."""
    message = "ErrorCode:94 GPU:2 contained Recommended Action=NONE;"
    status = {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": "3"}}
    conditions = [{"type": "GpuXidError", "status": "True", "reason": "Xid", "message": message}]
    raw = {"metadata": {"name": "node-0", "uid": "n", "resourceVersion": "1"}, "status": {**status, "conditions": conditions}}
    found = sight(view(pod(0), nodes=(node_of(raw),), of=job(pods=1, each=each)), rules_of("nvidia")).faults
    assert {rank for one in found for rank in one.ranks} == ranks


# ---- as the watch keeps it


def test_an_event_that_means_nothing_beside_another_one_is_kept_for_what_it_means_alone() -> None:
    """The other event may come and go, so this event is kept."""
    at, hot = where("nvidia", of_event), event()
    takes = f"report: {{source: event, code: {hot['reason']}}}"
    rules = written(f"{takes}, beside: {{source: event, code: Maintained}}, then: nothing", f"{takes}, then: sub-health")
    known = SaidOfNodes(rules, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    hot["metadata"]["managedFields"] = [{"time": "2026-01-01T00:00:00Z"}]
    known.take(at, hot, gone=False)
    assert [one.then for one in of_node(known.put(node()), rules)] == ["sub-health"]


def where(rules: str, source: Any) -> Where:
    return next(one for one in places(rules_of(rules)) if one.read is source)


def test_a_node_is_shown_with_what_is_said_of_it_now() -> None:
    """The order of events does not matter; when the object no longer reports a fault, or is gone, the node is healthy."""
    known = SaidOfNodes(rules_of("ascend"))
    at, sick, well = where("ascend", of_device_info), device_info(card(2, c8C084E00="SeparateNPU")), device_info()
    assert known.take(at, sick, gone=False) == []
    assert len(known.put(node()).status.reports) == 1
    assert [one.status.reports for one in known.take(at, well, gone=False)] == [()]
    assert [len(one.status.reports) for one in known.take(at, sick, gone=False)] == [1]
    assert [one.status.reports for one in known.take(at, sick, gone=True)] == [()]


def test_what_cannot_be_read_says_what_it_said_before() -> None:
    """A half-written file heals nothing."""
    known, at = SaidOfNodes(rules_of("ascend")), where("ascend", of_device_info)
    known.put(node())
    known.take(at, device_info(card(2, c8C084E00="SeparateNPU")), gone=False)
    for odd in ('{"DeviceInfo":', "[]", '{"DeviceInfo": {"DeviceList": {"x-Fault": "[1]"}}}', '{"DeviceInfo": 7}'):
        wrong: list[str] = []
        shown = known.take(at, config_map("mindx-dl-deviceinfo-node-0", DeviceInfoCfg=odd), gone=False, wrong=wrong.append)
        assert ([len(one.status.reports) for one in shown], len(wrong)) == ([1], 1)
        assert "cannot be read" in wrong[0]
    assert known.take(at, device_info(), gone=False)[0].status.reports == ()


@pytest.mark.parametrize("odd", [None, 7, [], {"influence": 7}, {"influence": [{"nodeName": "node-0"}]}, {"influence": [None]}])
def test_what_cannot_be_read_hides_nothing_beside_it(odd: Any) -> None:
    """An unreadable report concerns no more than it names."""
    told, broken = public("220001001"), card(2, c8C084E00="SeparateNPU")
    told["faults"].insert(0, odd)
    separated = {"Total": ["Ascend910-3"], "Detail": {}}
    manual = of_manual_info(config_map("clusterd-manual-info-cm", **{"node-0": separated, "node-1": json.dumps([odd])}))
    found = (
        *of_public_fault(config_map("f", PublicFault=told))["node-0"],
        *of_device_info(device_info(None, broken))["node-0"],
        *of_device_info(device_info(broken, SwitchInfoCfg="{"))["node-0"],
        *manual["node-0"],
    )
    assert [one.devices for one in found] == [("0",), ("2",), ("2",), ("3",)]
    assert read(where("ascend", of_device_info), config_map("mindx-dl-deviceinfo-node-0", DeviceInfoCfg={"DeviceList": None}))


def test_what_is_told_once_is_over_after_its_time() -> None:
    """A repeated report begins its time again, and needs no message of its end. The API server's clock counts, not the node's."""
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    known, at = SaidOfNodes(rules_of("nvidia"), lambda: clock[0]), where("nvidia", of_event)
    known.put(node())

    def tell(minute: int) -> list[int]:
        clock[0] = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
        hot = event()
        hot["metadata"]["managedFields"] = [{"time": "2026-01-01T00:00:00Z"}, {"time": f"2026-01-01T00:{minute:02}:00Z"}]
        hot["lastTimestamp"] = "2038-01-01T00:00:00Z"
        return [len(one.status.reports) for one in known.take(at, hot, gone=False)]

    assert (tell(0), known.next_end) == ([1], 600.0)
    assert tell(5) == [1]
    clock[0] = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
    assert [len(one.status.reports) for one in known.ended()] == [1], "it was said again"
    clock[0] = datetime(2026, 1, 1, 0, 15, tzinfo=UTC)
    assert [len(one.status.reports) for one in known.ended()] == [0]
    assert (known.ended(), known.next_end) == ([], None)
    assert len(known.put(node()).status.reports) == 0


def test_what_no_rule_looks_at_is_not_kept() -> None:
    """Events are tens of thousands, and nodes have long annotations."""
    known = SaidOfNodes(rules_of("nvidia"))
    loud = node().model_copy(
        update={"metadata": node().metadata.model_copy(update={"labels": {"a": "b"}, "annotations": {"long": "x" * 1000}})}
    )
    kept: Node = known.put(loud)
    assert (kept.metadata.labels, kept.metadata.annotations) == ({}, {})
    assert known.take(where("nvidia", of_event), event("Normal", "NodeReady"), gone=False) == []


async def test_a_look_at_all_nodes_reads_their_events_between_what_others_do() -> None:
    """Events are tens of thousands, and the same process answers for its activities meanwhile."""
    turns, reading = 0, True

    class Pages:
        async def pages(self, path: str, **_: str) -> AsyncIterator[Listing]:
            events = [event(metadata={"name": str(n), "uid": str(n)}) for n in range(500)] if path.endswith("/events") else []
            yield Listing(events, "1")

        async def list(self, path: str, **selectors: str) -> Listing:
            (page,) = [page async for page in self.pages(path, **selectors)]
            return page

    async def others() -> None:
        nonlocal turns
        while reading:
            turns += 1
            await asyncio.sleep(0)

    speaking = asyncio.create_task(others())
    await KubernetesCluster(Pages(), Settings(cluster="kubernetes", rules="nvidia")).nodes()  # type: ignore[arg-type]
    reading = False
    await speaking
    assert turns > 400


async def test_of_a_hundred_nodes_each_place_is_looked_at_a_few_times() -> None:
    """Public faults of thousands of nodes are in one namespace. A later caller receives later reports."""
    told, lists = [config_map("f", PublicFault=public("220001001", nodeName="node-7"))], Counter[str]()

    class Lists:
        async def list(self, path: str, **selectors: str) -> Listing:
            lists[f"{path} {selectors}"] += 1
            for _ in range(500):  # turns in which all other callers ask
                await asyncio.sleep(0)
            return Listing([*told] if "cluster-system" in path and "labelSelector" in selectors else [], "1")

        async def get(self, path: str) -> Object:
            raise NotFound(path)

    heard = Heard(Lists(), rules_of("ascend"))  # type: ignore[arg-type]
    found = await asyncio.gather(*(heard.of_node(f"node-{number}") for number in range(100)))
    assert [number for number, reports in enumerate(found) if reports] == [7]
    assert max(lists.values()) <= 5
    told.clear()
    assert await heard.of_node("node-7") == ()


def test_nothing_is_read_that_no_rule_asks_for() -> None:
    """Sources that no rule uses need no right. Public faults are read only from where no tenant writes."""
    assert list(places(rules_of("plain"))) == []
    assert [one.path for one in places(rules_of("nvidia"))] == ["/api/v1/namespaces/default/events"]
    paths = {one.path.split("/")[4] for one in places(rules_of("ascend"))}
    assert paths == {"kube-system", "mindx-dl", "cluster-system"}
