"""News of a job for platforms, in the words of ClusterD: how it fares, and what is wrong with its nodes. Pure.

Used by the gateway. What is wrong with processes or pods alone is no fault of a node, and is not told.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import chain

from rekindle.model.base import Value
from rekindle.model.fault import EXPECTED_HOLDER, Fault, FaultKind
from rekindle.model.state import JobState
from rekindle.policy.sighting import FAILED, SUCCEEDED


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
    """Faults of one device of a node, or with the node itself."""

    device: str = ""
    """Empty: the node."""

    level: Level
    codes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class NodeFaults(Value):
    node: str
    level: Level
    devices: tuple[DeviceFaults, ...]


class View(Value):
    """One job, as platforms see it."""

    id: str
    name: str = ""
    namespace: str = ""
    framework: str = ""
    stage: Stage = Stage.PENDING
    since: datetime | None = None
    """Moment of its registration, or of its return from the last incident before it was first seen."""
    nodes: tuple[NodeFaults, ...] = ()
    is_over: bool = False
    """The job is recovered no more."""


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
    """A job runs when each of its ranks has a pod; where nobody looks at its pods, when its training side is there."""
    if state.ended == SUCCEEDED:
        return Stage.COMPLETE
    if state.ended.startswith(FAILED):
        return Stage.FAILED
    holders = state.holders
    if holders:
        runs = len(holders) == state.job.pods and all(one not in ("", EXPECTED_HOLDER) for one in holders)
    else:
        runs = state.attachment is not None
    return Stage.RUNNING if runs else Stage.PENDING


def node_faults(faults: Iterable[Fault]) -> tuple[NodeFaults, ...]:
    """The faults of each node, in the order of names; a node is as bad as the worst of its devices."""
    return merged(_of_fault(fault) for fault in faults if _is_of_a_node(fault))


def merged(several: Iterable[Iterable[NodeFaults]]) -> tuple[NodeFaults, ...]:
    """Each node once, such as one on which several jobs run."""
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
