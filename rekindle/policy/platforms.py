"""Describes a job for platforms, in the terms of ClusterD: its state, and the faults of its nodes. Pure.

Used by the gateway. Faults of pods, and faults of processes without a node, are not faults of a node and are left out.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import chain

from rekindle.model.base import Value
from rekindle.model.fault import EXPECTED_HOLDER, Fault, FaultKind
from rekindle.model.state import JobState
from rekindle.policy.detection.sighting import FAILED, SUCCEEDED
from rekindle.policy.modes import elastic


class Stage(StrEnum):
    """Value of `jobStatus`."""

    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"
    COMPLETE = "complete"


class Level(StrEnum):
    """Value of `faultLevel`."""

    SUB_HEALTHY = "SubHealthy"
    UNHEALTHY = "UnHealthy"


class DeviceFaults(Value):
    """Faults of one device of a node, or of the node itself."""

    device: str = ""
    """Id of the device. Empty: the node itself."""

    level: Level
    codes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class NodeFaults(Value):
    node: str
    level: Level
    devices: tuple[DeviceFaults, ...]


class View(Value):
    """A job as platforms see it."""

    id: str
    name: str = ""
    namespace: str = ""
    framework: str = ""
    stage: Stage = Stage.PENDING
    since: datetime | None = None
    """Time of the job's registration, or of the end of the last incident before the job was first seen."""
    nodes: tuple[NodeFaults, ...] = ()
    is_over: bool = False
    """True if the job is no longer recovered."""


def view_of(state: JobState) -> View:
    job = state.job
    return View(
        id=job.id,
        name=job.name,
        namespace=job.namespace,
        framework=job.framework.value,
        stage=_stage(state),
        nodes=() if state.ended else node_faults(one.fault for one in state.faults),
        is_over=bool(state.ended),
    )


def _stage(state: JobState) -> Stage:
    """Returns the state of a job. It runs if each of its ranks has a pod, but for those without which it trains. If the pods are
    not watched, it runs if its training side is attached."""
    if state.ended == SUCCEEDED:
        return Stage.COMPLETE
    if state.ended.startswith(FAILED):
        return Stage.FAILED
    holders = state.holders
    if holders:
        missing = elastic.missing_of(state.small)
        without = [rank for rank, uid in enumerate(holders) if uid in ("", EXPECTED_HOLDER) and rank not in missing]
        runs = len(holders) == state.job.pods and not without
    else:
        runs = state.attachment is not None
    return Stage.RUNNING if runs else Stage.PENDING


def node_faults(faults: Iterable[Fault]) -> tuple[NodeFaults, ...]:
    """Returns the faults of each node, ordered by name. The level of a node is the worst of its devices."""
    return merged(_of_fault(fault) for fault in faults if _is_of_a_node(fault))


def merged(several: Iterable[Iterable[NodeFaults]]) -> tuple[NodeFaults, ...]:
    """Returns the faults with each node only once. Several jobs may run on one node."""
    found: dict[str, dict[str, list[DeviceFaults]]] = {}
    for node in chain.from_iterable(several):
        for device in node.devices:
            found.setdefault(node.node, {}).setdefault(device.device, []).append(device)
    return tuple(_node(node, [_device(found[node][name]) for name in sorted(found[node])]) for node in sorted(found))


def _is_of_a_node(fault: Fault) -> bool:
    return bool(fault.node) and fault.kind is not FaultKind.POD and not fault.is_maintenance


def _of_fault(fault: Fault) -> tuple[NodeFaults]:
    level = Level.SUB_HEALTHY if fault.kind is FaultKind.SUB_HEALTH else Level.UNHEALTHY
    reasons = (fault.message,) if fault.message else ()
    struck = [(device, one.code or fault.code) for one in fault.details for device in one.device.split(",")]
    devices = [
        DeviceFaults(device=device, level=level, codes=(code,) if code else (), reasons=reasons)
        for device, code in struck or [("", fault.code)]
    ]
    return (_node(fault.node, devices),)


def _node(node: str, devices: Iterable[DeviceFaults]) -> NodeFaults:
    told = tuple(devices)
    return NodeFaults(node=node, level=_worst(told), devices=told)


def _device(said: Sequence[DeviceFaults]) -> DeviceFaults:
    return DeviceFaults(
        device=said[0].device,
        level=_worst(said),
        codes=tuple(dict.fromkeys(code for one in said for code in one.codes)),
        reasons=tuple(dict.fromkeys(reason for one in said for reason in one.reasons)),
    )


def _worst(several: Iterable[DeviceFaults]) -> Level:
    return Level.UNHEALTHY if any(one.level is Level.UNHEALTHY for one in several) else Level.SUB_HEALTHY
