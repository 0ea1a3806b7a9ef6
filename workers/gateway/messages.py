"""Translates between protobuf messages and the model. Invalid messages are refused with the name of the field."""

from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from pydantic import ValidationError

from rekindle.errors import BadInput
from rekindle.model.account import Holding, Stretch, TimeReport
from rekindle.model.bounds import note
from rekindle.model.dialogue import FaultRank, Order, Report, ReportKind
from rekindle.model.fault import TRAINING_SIDE, Fault, FaultKind, FaultType, FaultyRanks
from rekindle.model.links import MOST_DEVICES, MOST_NODES, NodeLinks, RankLinks
from rekindle.model.problems import problems
from rekindle.model.sizes import MOST_RANKS
from rekindle.model.stress import OpResult, RankOps, StressRequest
from rekindle.model.trace import Trace
from rekindle.policy.operations.device_checks import told
from rekindle_wire import profiling_pb2, training_pb2
from rekindle_wire import recover_pb2 as wire

T = TypeVar("T")

MAX_ID = 128
MAX_RANKS = MOST_RANKS
"""Largest number of ranks in one message: no job has more."""

MAX_INFO = 1_000
"""Number of characters of free text that are kept."""

NOT_SWITCHED = 1
"""Code of a report that links were not switched; the contract has a boolean instead."""

MAX_NODE, MAX_DEVICE = 253, 16
"""Longest name of a node, and longest id of a device, in characters."""

SWITCHES = {
    "CommunicationOperator": "communication",
    "Step": "step",
    "SaveCheckpoint": "checkpoint",
    "FP": "forward",
    "DataLoader": "loader",
}
"""Fields of `ProfilingSwitch`, and the fields of `Trace` to which they map."""

TRACED = 200
"""Code of a message about the tracing switch. Source: ClusterD."""

MAX_SKEW = 60.0
"""Seconds by which the clock of a node may be ahead. Later times would be counted in the reports of all jobs."""

MAX_STRATEGIES = 32
MAX_STRATEGY = 64


def job_id(text: str) -> str:
    """Returns the job id if it may be used in a workflow id. Raises BadInput otherwise."""
    if not text:
        raise BadInput(
            "jobId: missing, accepted is the UID of the job (MINDX_TASK_ID), or on Kubernetes the token of a pod of the job"
        )
    if len(text) > MAX_ID or not text.isascii() or not text.isprintable() or "/" in text or " " in text:
        raise BadInput(
            f"jobId: {text[:40]!r} is not accepted: 1 to {MAX_ID} printable ASCII characters without blanks and slashes"
        )
    return text


def signal_of(order: Order) -> wire.ProcessManageSignal:
    """Returns an order as a message for the main stream."""
    return wire.ProcessManageSignal(
        uuid=order.uuid,
        jobId=order.job_id,
        signalType=order.signal_type,
        actions=order.actions,
        faultRanks=[wire.FaultRank(rankId=str(fault.rank), faultType=fault.type) for fault in order.fault_ranks],
        changeStrategy=order.change_strategy,
        timeout=order.timeout,
        nodeRankIds=[str(rank) for rank in order.node_rank_ids],
        extraParams=order.extra_params,
    )


def switch_list(job: str, links: RankLinks) -> wire.SwitchRankList:
    """Returns ranks and the links that they are to use, as a message for the stream of link switches."""
    ranks = links.ranks
    to_backup = set(links.backup)
    return wire.SwitchRankList(jobId=job, rankID=[str(rank) for rank in ranks], op=[rank in to_backup for rank in ranks])


def stress_list(job: str, asked: Iterable[RankOps]) -> wire.StressTestRankParams:
    """Returns ranks and the checks that they run, as a message for the stream of stress tests."""
    lists = {str(rank): wire.StressOpList(ops=one.ops) for one in asked for rank in one.ranks}
    return wire.StressTestRankParams(jobId=job, stressParam=lists)


def switches(trace: Trace, words: str = "") -> profiling_pb2.DataStatusRes:
    """Returns the tracing settings of a job, as a message for the stream of tracing and as an answer."""
    said = {field: "on" if getattr(trace, name) else "off" for field, name in SWITCHES.items()}
    return profiling_pb2.DataStatusRes(message=words, profilingSwitch=profiling_pb2.ProfilingSwitch(**said), code=TRACED)


def switched_on(trace: Trace) -> list[str]:
    return [field for field, name in SWITCHES.items() if getattr(trace, name)]


def keep_alive(job: str, uuid: str) -> wire.ProcessManageSignal:
    return wire.ProcessManageSignal(uuid=uuid, jobId=job, signalType="keep-alive")


def stop_complete(message: wire.StopCompleteRequest) -> Report:
    _needs_status(message.HasField("status"))
    return Report(
        kind=ReportKind.STOP_COMPLETE,
        code=message.status.code,
        info=message.status.info[:MAX_INFO],
        fault_ranks=_fault_ranks(message.faultRanks),
    )


def strategies(message: wire.RecoverStrategyRequest) -> Report:
    if len(message.strategies) > MAX_STRATEGIES:
        raise BadInput(f"strategies: {len(message.strategies)} entries, accepted are at most {MAX_STRATEGIES}")
    offered = tuple(_strategy(text, f"strategies[{i}]") for i, text in enumerate(message.strategies))
    return Report(kind=ReportKind.STRATEGIES, strategies=offered, fault_ranks=_fault_ranks(message.faultRanks))


def status(message: wire.RecoverStatusRequest, attempt: str = "") -> Report:
    _needs_status(message.HasField("status"))
    return Report(
        kind=ReportKind.STATUS,
        code=message.status.code,
        info=message.status.info[:MAX_INFO],
        strategy=_strategy(message.strategy, "strategy"),
        attempt=attempt[:MAX_STRATEGY],
        isolate_ranks=tuple(
            _rank(text, f"isolateRankIds[{i}]") for i, text in enumerate(_at_most(message.isolateRankIds, "isolateRankIds"))
        ),
    )


def links_switched(message: wire.SwitchResult, attempt: str = "", info: str = "") -> Report:
    """Returns the report of a link switch. The contract says only whether all ranks have switched; ours also gives the reason."""
    return Report(
        kind=ReportKind.LINKS, code=0 if message.result else NOT_SWITCHED, info=info[:MAX_INFO], attempt=attempt[:MAX_STRATEGY]
    )


def stress_results(message: wire.StressTestResult, attempt: str = "", info: str = "") -> Report:
    """Returns the report of a stress test, with the results of each rank and check."""
    said = {
        text: {name: OpResult(code=one.code, result=note(one.result)) for name, one in of_rank.rankResult.items()}
        for text, of_rank in message.stressResult.items()
    }
    return Report(
        kind=ReportKind.STRESS,
        info=info[:MAX_INFO],
        attempt=attempt[:MAX_STRATEGY],
        results=told(said, MAX_RANKS),
    )


def stress_request(message: wire.StressTestParam) -> StressRequest:
    """Returns the stress test that a platform requests: operations by node, or on all nodes.

    Raises:
        BadInput: what is wrong, by field.
    """
    if message.allNodesOps:
        return StressRequest(all_nodes=tuple(message.allNodesOps))
    if not message.stressParam:
        raise BadInput("stressParam: empty, and so is allNodesOps; name a node and its operations")
    if wrong := next((node for node in sorted(message.stressParam) if not 0 < len(node) <= MAX_NODE), None):
        raise BadInput(f"stressParam: {wrong[:40]!r} is no name of a node")
    return StressRequest(nodes={node: tuple(listed.ops) for node, listed in sorted(message.stressParam.items())})


def node_links(message: wire.SwitchNics) -> tuple[NodeLinks, ...]:
    """Returns the link switches that a platform requests: devices by node, each with its direction.

    Raises:
        BadInput: what is wrong, by field.
    """
    if not message.nicOps:
        raise BadInput("nicOps: empty, accepted are 1 or more nodes with their devices")
    if len(message.nicOps) > MOST_NODES:
        raise BadInput(f"nicOps: {len(message.nicOps)} nodes, accepted are at most {MOST_NODES}")
    return tuple(one for node, devices in sorted(message.nicOps.items()) for one in _of_node(node, devices))


def _of_node(node: str, devices: wire.DeviceList) -> list[NodeLinks]:
    where = f"nicOps[{node[:MAX_STRATEGY]!r}]"
    if not 0 < len(node) <= MAX_NODE:
        raise BadInput(f"{where}: accepted is the name of a node")
    if not devices.dev:
        raise BadInput(f"{where}.dev: empty, accepted are 1 or more devices of the node")
    if len(devices.dev) != len(devices.op):
        raise BadInput(f"{where}.op: {len(devices.op)} entries for {len(devices.dev)} devices, accepted is one for each")
    if len(devices.dev) > MOST_DEVICES:
        raise BadInput(f"{where}.dev: {len(devices.dev)} entries, accepted are at most {MOST_DEVICES}")
    pairs = [(device.removeprefix("device"), backup) for device, backup in zip(devices.dev, devices.op, strict=True)]
    if wrong := next((device for device, _ in pairs if not device or len(device) > MAX_DEVICE), None):
        raise BadInput(f"{where}.dev: {wrong[:40]!r} is not accepted: ids of devices such as 0")
    return [
        NodeLinks(node=node, devices=of, backup=direction)
        for direction in (True, False)
        if (of := tuple(device for device, backup in pairs if backup is direction))
    ]


def process_fault(message: wire.ProcessFaultRequest, session: str, seen_at: datetime) -> Fault:
    """Returns the fault that reports faulty processes, with the type of each rank.

    Args:
        session: the subscription of the job at this gateway; empty: it has none here.
    """
    told = _fault_ranks(message.faultRanks)
    if not told:
        raise BadInput("faultRanks: empty, accepted are 1 or more ranks with their fault types")
    types = {fault.rank: fault.type for fault in told}  # the last entry counts if a rank is named twice
    ranks = tuple(sorted(types))
    return Fault(
        id="processes",
        kind=FaultKind.PROCESS,
        ranks=ranks,
        details=tuple(
            FaultyRanks(ranks=of, type=kind) for kind in FaultType if (of := tuple(r for r in ranks if types[r] is kind))
        ),
        message="reported by the training side",
        seen_at=seen_at,
        session=session,
        source=TRAINING_SIDE,
    )


def _needs_status(present: bool) -> None:
    if not present:
        raise BadInput("status: missing, accepted is a Status{code, info}")


def _fault_ranks(ranks: Iterable[wire.FaultRank]) -> tuple[FaultRank, ...]:
    listed = _at_most(ranks, "faultRanks")
    return tuple(
        FaultRank(rank=_rank(fault.rankId, f"faultRanks[{i}].rankId"), type=_fault_type(fault.faultType, i))
        for i, fault in enumerate(listed)
    )


def _at_most(entries: Iterable[T], field: str) -> list[T]:
    listed = list(entries)
    if len(listed) > MAX_RANKS:
        raise BadInput(f"{field}: {len(listed)} entries, accepted are at most {MAX_RANKS}")
    return listed


def _strategy(text: str, field: str) -> str:
    if len(text) > MAX_STRATEGY:
        raise BadInput(f"{field}: {text[:40]!r}... is not accepted: at most {MAX_STRATEGY} characters")
    return text


def _rank(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) < MOST_RANKS):
        raise BadInput(f"{field}: {text[:40]!r} is not a rank, accepted is a decimal number from 0 to {MOST_RANKS - 1}")
    return int(text)


def _fault_type(text: str, index: int) -> FaultType:
    try:
        return FaultType(text)
    except ValueError:
        raise BadInput(
            f"faultRanks[{index}].faultType: {text[:40]!r} is not accepted: 0 (memory), 1 (other) or 2 (network)"
        ) from None


def time_report(request: training_pb2.TimeReport, now: float) -> TimeReport:
    """Returns for how long a job has trained, as its manager says. Raises BadInput where a time is impossible.

    Args:
        now: seconds since the epoch.
    """
    if request.now.ended > now + MAX_SKEW:
        raise BadInput(
            f"now.ended: {request.now.ended} is not accepted: more than {MAX_SKEW:.0f} s ahead of the gateway's clock, {now:.0f}"
        )
    before = _stretch(request.before) if request.HasField("before") else None
    holding = _holding(request.holding) if request.HasField("holding") else None
    try:
        return TimeReport(
            step=request.step,
            ranks=request.world_size,
            now=_stretch(request.now),
            before=before,
            final=request.final,
            holding=holding,
        )
    except ValidationError as error:
        raise BadInput("; ".join(problems(error, TimeReport))) from error


def _holding(said: training_pb2.Holding) -> Holding:
    try:
        return Holding(state_bytes=said.state_bytes, checkpoint_every=said.checkpoint_every)
    except ValidationError as error:
        raise BadInput("; ".join(problems(error, Holding))) from error


def _stretch(said: training_pb2.Stretch) -> Stretch:
    try:
        return Stretch(
            began=said.began,
            ended=said.ended,
            steps=said.steps,
            checkpoint=said.checkpoint_seconds,
            again=said.again_seconds,
            missing=said.missing_share,
        )
    except ValidationError as error:
        raise BadInput("; ".join(problems(error, Stretch))) from error
