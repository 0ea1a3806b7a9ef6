"""Evaluates requests and results of stress tests: which nodes are isolated, and which ranks are faulty. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rekindle.model.bounds import cut, few, note, numbered
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Job
from rekindle.model.layout import Layout
from rekindle.model.sizes import LONGEST_RANK
from rekindle.model.stress import (
    MOST_CHECKS,
    MOST_ISOLATED,
    MOST_ROWS,
    Code,
    Findings,
    Op,
    OpResult,
    RankOps,
    ResultOf,
    Row,
    StressRequest,
    StressResults,
    Tested,
    gathered,
)
from rekindle.policy.detection.devices import DeviceOfRank
from rekindle.policy.training_sides.table import side_of

NAMES = {Op.COMPUTE: "aic", Op.MESSAGES: "hccs", Op.MEMORY: "memory"}
"""Names of the checks in results."""

SOURCE = "stress test"
"""Source of the faults that a stress test finds."""

QUOTED = 80
"""Maximum number of bytes of a wrong node name in an error message, and of the name of a check."""

PAUSE_FAILED = "om failed, pause train failed"
PAUSE_LATE = "pause train timeout"
NOT_PAUSED = "om failed, send signal failed"
FINISHED = "stress test finish, result:{result}"
FAULT_FOUND = "stress test find fault, isolate node:{nodes},result:{result}"
TIMED_OUT = "stress test timeout fault, faultRank:{ranks},result:{result}"
FAULT_RECEIVED = "recv fault, when stressing test"
NEVER_REPORTED = "stress test failed, report stress test timeout"
NOT_READY = "stress test failed, job service not ready"
NOT_SENT = "send stress test signal failed, please check manually"
CONTINUE_FAILED = "stress test failed, continue train failed"
"""Answers to the requester, in the words of the contract."""

Devices = Iterable[DeviceOfRank]
Plan = dict[int, tuple[int, ...]]
"""Operations by rank."""


def problem(request: StressRequest, devices: Devices, accepted: Iterable[int]) -> str:
    """Returns the error in a request, with the field names of the wire contract. Empty: there is none.

    Args:
        accepted: operations that the job's training side supports.
    """
    nodes = sorted({one.node for one in devices})
    if not nodes:
        return "no pod of the job is on a node"
    if request.all_nodes:
        return _wrong_ops("allNodesOps", request.all_nodes, accepted)
    if not request.nodes:
        return "stressParam: empty, and so is allNodesOps; name a node and its operations"
    for node, ops in sorted(request.nodes.items()):
        if node not in nodes:
            return f"stressParam: {cut(repr(node), QUOTED)} is no node of the job, accepted are {few(nodes)}"
        if wrong := _wrong_ops(f"stressParam of {node}", ops, accepted):
            return wrong
    return ""


def _wrong_ops(field: str, ops: Iterable[int], accepted: Iterable[int]) -> str:
    known = sorted(accepted)
    seen: set[int] = set()
    for op in ops:
        if op not in known:
            return f"{field}: {op} is no operation here, accepted are {', '.join(map(str, known))}"
        if op in seen:
            return f"{field}: operation {op} is repeated"
        seen.add(op)
    return "" if seen else f"{field}: no operations, accepted are {', '.join(map(str, known))}"


def plan(request: StressRequest, devices: Devices) -> Plan:
    """Returns the operations of each rank for a valid request. A node that has lost its ranks meanwhile is left out."""
    wanted = {one.rank: request.all_nodes or request.nodes.get(one.node, ()) for one in devices}
    return {rank: ops for rank, ops in sorted(wanted.items()) if ops}


def accepted(job: Job) -> tuple[int, ...]:
    """Returns the operations that the job's training side supports."""
    return side_of(job).ops


def grouped(asked: Plan) -> tuple[RankOps, ...]:
    """Returns the plan as a payload: ranks with the same operations together."""
    ranks: dict[tuple[int, ...], list[int]] = {}
    for rank, ops in asked.items():
        ranks.setdefault(ops, []).append(rank)
    return tuple(RankOps(ops=ops, ranks=tuple(of)) for ops, of in sorted(ranks.items()))


def by_rank(asked: Iterable[RankOps]) -> Plan:
    return {rank: one.ops for one in asked for rank in one.ranks}


def told(said: Mapping[str, ResultOf], ranks: int) -> StressResults:
    """Returns the results that a client reported, with ranks as numbers. Names that are no rank of the job are left out, and so
    are the results of surplus checks.

    Args:
        ranks: number of ranks of the job.
    """
    known = {
        int(text): of_rank for text, of_rank in said.items() if len(text) <= LONGEST_RANK and text.isascii() and text.isdigit()
    }
    of_job = {rank: known[rank] for rank in sorted(known) if rank < ranks}
    named = {name for of_rank in of_job.values() for name in of_rank}
    kept = sorted(named, key=lambda name: (name not in NAMES.values(), name))[:MOST_CHECKS]
    return gathered({rank: {cut(n, QUOTED): _understood(of[n]) for n in kept if n in of} for rank, of in of_job.items()})


def _understood(one: OpResult) -> OpResult:
    """Returns the result. An unknown code is replaced by `NOT_RUN`, since it is no result of the device."""
    if one.code in set(Code):
        return one
    return OpResult(code=Code.NOT_RUN, result=note(f"unknown code {cut(one.code, QUOTED)}: {one.result}"))


def findings(results: StressResults, asked: Plan, devices: Devices) -> Findings:
    """Returns the evaluation of the results of all ranks that were asked. Results of other ranks are ignored."""
    rows = list(devices)
    told = results.by_rank()
    codes = {rank: _codes(ops, told.get(rank, {})) for rank, ops in asked.items()}
    found = {rank for rank, of_rank in codes.items() if Code.FAULT in of_rank}
    isolate = {one.node for one in rows if one.rank in found}
    lost = {one.rank for one in rows if one.node in isolate}
    timed_out = {rank for rank, of_rank in codes.items() if of_rank & {Code.TIMED_OUT, Code.VOLTAGE}}
    not_tested = {rank for rank, of_rank in codes.items() if of_rank - set(Code) or Code.NOT_RUN in of_rank}
    return Findings(
        isolate=tuple(sorted(isolate)),
        faulty=tuple(sorted(found | lost | timed_out)),
        timed_out=tuple(sorted(timed_out)),
        not_tested=tuple(sorted(not_tested)),
    )


def _codes(ops: Iterable[int], told: Mapping[str, OpResult]) -> set[str]:
    """Returns the codes of a rank's results, whatever their names: clients name their operations themselves. `NOT_RUN` is added
    if there are fewer results than operations."""
    said = {one.code for one in told.values()}
    return said if len(told) >= len(tuple(ops)) else {*said, Code.NOT_RUN}


def table(results: StressResults, devices: Devices) -> Iterator[Row]:
    """Yields the rows of the table of results, device by device."""
    told = results.by_rank()
    for one in sorted(devices, key=lambda device: (device.node, device.rank, device.device)):
        for check, result in sorted(told.get(one.rank, {}).items()):
            yield Row(node=one.node, device=one.device, rank=one.rank, check=check, code=result.code, result=result.result)


def tested(results: StressResults, asked: Plan, devices: Devices) -> Tested:
    """Returns the result of a stress test, as far as its verdict contains it."""
    rows = list(devices)
    lines = sorted(table(results, rows), key=lambda row: row.code == Code.OK)
    found = findings(results, asked, rows)
    found = found.model_copy(update={"isolate": found.isolate[:MOST_ISOLATED]})
    return Tested(findings=found, rows=tuple(_that_fit(lines)), checks=len(lines))


def _that_fit(rows: Iterable[Row]) -> Iterator[Row]:
    room = MOST_ROWS
    for row in rows:
        room -= len(row.model_dump_json()) + 1
        if room < 0:
            return
        yield row


def without(found: Tested, failed: Mapping[str, str]) -> Tested:
    """Returns the result after some nodes could not be isolated.

    Args:
        failed: reasons why nodes could not be isolated, by node.
    """
    said = found.findings
    isolated = tuple(node for node in said.isolate if node not in failed)
    findings = said.model_copy(update={"isolate": isolated, "not_isolated": {node: note(failed[node]) for node in failed}})
    return found.model_copy(update={"findings": findings})


def faults(found: Tested, layout: Layout, devices: Devices) -> tuple[Fault, ...]:
    """Returns the faults to repair before training continues. Pods on nodes with a fault move to other nodes, and processes that
    timed out are restarted."""
    here, isolated = list(devices), found.findings.isolate
    open_nodes = [_of_pods(node, (node,), found, layout, here) for node in found.findings.not_isolated]
    closed = [_of_pods("nodes", isolated, found, layout, here)] if isolated else []
    gone = {rank for fault in (*closed, *open_nodes) for rank in fault.ranks}
    late = sorted(set(found.findings.faulty) - gone)
    of_ranks = Fault(
        id="stress-test/processes",
        kind=FaultKind.PROCESS,
        ranks=tuple(late),
        message=note(f"{numbered('rank', late)} did not pass a stress test"),
        source=SOURCE,
    )
    return (*closed, *open_nodes, *((of_ranks,) if late else ()))


def _of_pods(name: str, nodes: Sequence[str], found: Tested, layout: Layout, here: Devices) -> Fault:
    """Returns the fault of the pods on some nodes. A node that could not be isolated counts as lost, so that no pod is placed
    there while its fault is present."""
    pods = sorted({one.pod_rank for one in here if one.node in nodes})
    return Fault(
        id=f"stress-test/{name}",
        kind=FaultKind.NODE if nodes[0] in found.findings.not_isolated else FaultKind.POD,
        node=nodes[0] if len(nodes) == 1 else "",
        pod_ranks=tuple(pods),
        ranks=layout.ranks_of_all(pods),
        message=note(f"a stress test found a fault: {few(nodes)} {_why(found)}"),
        source=SOURCE,
    )


def untold(results: StressResults) -> list[DeviceOfRank]:
    """Returns the devices of a table if it is unknown which ones the ranks use."""
    return [DeviceOfRank(rank, pod_rank=0, node="", device="", holder="") for rank in results.by_rank()]


def suspects(results: StressResults) -> Fault:
    """Returns the fault of all suspect ranks if it is unknown on which nodes they are."""
    codes = {rank: {one.code for one in of_rank.values()} for rank, of_rank in results.by_rank().items()}
    ranks = tuple(rank for rank, said in codes.items() if said & {Code.FAULT, Code.TIMED_OUT, Code.VOLTAGE})
    words = f"a stress test found a fault of {numbered('rank', ranks)}"
    return Fault(id="stress-test/processes", kind=FaultKind.PROCESS, ranks=ranks, message=note(words), source=SOURCE)


def reason(found: Tested, node: str, why: str) -> str:
    """Returns why a node is isolated, for its annotation."""
    return f"{why}: {_why(found, node)}"


def _why(found: Tested, node: str = "") -> str:
    """Returns the first check that found a fault, in words. Empty: none did."""
    named = (row for row in found.rows if row.code == Code.FAULT and node in ("", row.node))
    return next((f"({row.check} of rank {row.rank}: {row.result})" for row in named), "")


def in_words(found: Tested) -> str:
    """Returns a summary of the results in one line."""
    said = found.findings
    codes = Counter(row.code for row in found.rows)
    parts = [f"{found.checks} checks"]
    if said.isolate:
        parts.append(f"isolated {few(said.isolate)} {_why(found)}".rstrip())
    parts += [f"{node} could not be isolated: {why}" for node, why in list(said.not_isolated.items())[:3]]
    if said.timed_out:
        parts.append(f"{numbered('rank', said.timed_out)} timed out")
    if said.not_tested:
        parts.append(f"{numbered('rank', said.not_tested)} not tested in all")
    if not (said.faulty or said.not_tested or codes.keys() - {Code.OK}):
        parts.append("no fault found")
    return ", ".join(parts)


def message(found: Tested) -> str:
    """Returns the contract's `msg` as the original formats it: a set and a list of messages as Go prints them,
    results as JSON."""
    if found.failed:
        return found.failed
    result, said = _as_json(found.rows), found.findings
    if said.isolate:
        return FAULT_FOUND.format(nodes=f"map[{' '.join(f'{node}:{{}}' for node in said.isolate)}]", result=result)
    if said.timed_out:
        ranks = " ".join(f'rankId:"{rank}" faultType:"1"' for rank in said.timed_out)
        return TIMED_OUT.format(ranks=f"[{ranks}]", result=result)
    return FINISHED.format(result=result)


def _as_json(rows: Iterable[Row]) -> str:
    """Returns the rows as JSON, nested by node, device, `rankResult` and check."""
    nodes: dict[str, dict[str, dict[str, dict[str, object]]]] = {}
    for row in sorted(rows, key=lambda row: (row.node, row.device, row.check)):
        of_device = nodes.setdefault(row.node, {}).setdefault(row.device, {"rankResult": {}})
        of_device["rankResult"][row.check] = {"code": row.code, "result": row.result}
    return json.dumps(nodes, separators=(",", ":"), ensure_ascii=False)
