"""The ready-made set `nvidia` beside what NVSentinel publishes of its checks and of the conditions that it derives."""

import pytest

from rekindle.model.cluster import Condition, Node, NodeStatus, ObjectMeta
from rekindle.model.rule_file import rules_of
from rekindle.policy.detection.rules import decisions, unused

GPU = "ErrorCode:{code} GPU:3 PCI:0000:3b:00 it happened Recommended Action=CONTACT_SUPPORT;"

PUBLISHED = {
    "fault": (
        "GpuMemWatch",
        "GpuSmWatch",
        "GpuMcuWatch",
        "GpuPmuWatch",
        "GpuDriverWatch",
        "GpuNvlinkWatch",
        "GpuNvswitchFatalWatch",
        "SysLogsXIDError",
        "SysLogsSXIDError",
        "SysLogsGPUFallenOff",
        "RepeatedXIDErrorOnSameGPU",
    ),
    "sub-health": (
        "GpuPcieWatch",
        "GpuInforomWatch",
        "GpuThermalWatch",
        "GpuPowerWatch",
        "GpuCpusetWatch",
        "GpuNvswitchNonfatalWatch",
        "SysLogsNICDriverError",
        "InfiniBandStateCheck",
        "InfiniBandDegradationCheck",
        "EthernetStateCheck",
        "EthernetDegradationCheck",
        "MultipleRemediations",
        "RepeatedXID31OnSameGPU",
        "RepeatedXID13OnSameGPCAndTPC",
        "XID74Reg0SoloNVLinkError",
        "XID74Reg0ECCParityError",
        "RepeatedXID74Reg0HardwareIssue",
        "XID74Reg0SignalIntegrityError",
        "XID74Reg0Bit27Or29Set",
        "RepeatedXID74Reg2HardwareIssue",
        "XID74Reg2Bit13Set",
        "RepeatedXID74Reg2Bit16Or19Set",
        "RepeatedXID74Reg2Bit17Or18Set",
        "XID74Reg3UnexpectedError",
        "XID74Reg3Bit18Set",
        "XID74Reg4HardwareIssue",
        "XID74Reg4ECCError",
        "RepeatedNICDriverError",
        "RepeatedNICDegradation",
    ),
    "nothing": (
        "RepeatedXID31OnDifferentGPU",
        "RepeatedXID13OnDifferentGPCAndTPC",
        "XIDErrorSoloNoBurst",
        "GpuDcgmConnectivityFailure",
    ),
    "maintenance": ("CSPMaintenance",),
}
"""Types of conditions by what becomes of them. Source: the pages of NVSentinel 1.31 on its monitors and its analyzer."""


def shows(kind: str, message: str, *, well: bool = False) -> Node:
    """A node with a condition as NVSentinel writes it."""
    reason = f"{kind}Is{'' if well else 'Not'}Healthy"
    condition = Condition(type=kind, status="False" if well else "True", reason=reason, message=message)
    return Node(metadata=ObjectMeta(name="node-0", uid="n"), status=NodeStatus(accelerators=4, conditions=(condition,)))


def decided(node: Node) -> set[tuple[str, str]]:
    """Decision about a condition, and the rule that made it."""
    return {(named.rule.then, named.name) for _, named in decisions(node, rules_of("nvidia")) if named}


@pytest.mark.parametrize(("then", "kind"), [(then, kind) for then, kinds in PUBLISHED.items() for kind in kinds])
def test_every_published_condition_has_a_rule(then: str, kind: str) -> None:
    """A rule of its own matches each condition, and not `nvidia/other-fatal`, the rule for unknown conditions. A healed condition
    leads to nothing."""
    node = shows(kind, GPU.format(code="79"))
    assert {one for one, _ in decided(node)} == {then}
    assert not any(rule == "nvidia/other-fatal" for _, rule in decided(node))
    well = shows(kind, "No Health Failures", well=True)
    assert {one for one, _ in decided(well)} == {"nothing"}
    assert unused(well, rules_of("nvidia")) == []


def test_what_it_calls_fatal_and_no_rule_names_is_sub_health() -> None:
    """A newer version may have other checks: the job shows them at least."""
    assert decided(shows("GpuQuantumWatch", GPU.format(code="1"))) == {("sub-health", "nvidia/other-fatal")}
    assert decided(shows("GpuQuantumWatch", "No Health Failures", well=True)) == {("nothing", "nvidia/well")}
    assert decided(shows("OpticsCheck", "No Health Failures", well=True)) == {("nothing", "nvidia/well-by-its-reason")}


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (("45",), {"nothing"}),
        (("94",), {"process-fault"}),
        (("94", "79"), {"process-fault", "fault"}),
        (("79", "63"), {"fault", "sub-health"}),
        (("45", "48"), {"nothing", "fault"}),
    ],
)
def test_of_several_codes_in_one_error_none_hides_a_worse_one(codes: tuple[str, ...], expected: set[str]) -> None:
    """Decides each code by itself, on the same device. 45 is what the driver writes when a process is killed."""
    message = f"{''.join(f'ErrorCode:{code} ' for code in codes)}GPU:3 XID error occurred Recommended Action=RESTART_VM;"
    assert {then for then, _ in decided(shows("SysLogsXIDError", message))} == expected
