"""What is asked of a stress test, and what its results mean: which nodes are isolated, which ranks are faulty. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping

from rekindle.model.bounds import cut, few
from rekindle.model.sizes import LONGEST_RANK
from rekindle.model.stress import Code, Findings, Op, OpResult, ResultOf, Row, StressRequest, StressResults, gathered
from rekindle.policy.devices import DeviceOfRank

NAMES = {Op.COMPUTE: "aic", Op.MESSAGES: "hccs", Op.MEMORY: "memory"}
"""Keys of results."""

OF_MINDIO = (Op.COMPUTE, Op.MESSAGES)
OF_OURS = tuple(Op)

MOST_CHECKS = 4
"""Of one rank, of which a result is kept; there are three."""

QUOTED = 80
"""Bytes of a wrong node's name that a refusal quotes."""

FINISHED = "stress test finish, result:{result}"
FAULT_FOUND = "stress test find fault, isolate node:{nodes},result:{result}"
TIMED_OUT = "stress test timeout fault, faultRank:{ranks},result:{result}"
FAULT_RECEIVED = "recv fault, when stressing test"
NEVER_REPORTED = "stress test failed, report stress test timeout"
NOT_READY = "stress test failed, job service not ready"
NOT_SENT = "send stress test signal failed, please check manually"
"""What is answered to who asked, as the contract words it."""

Devices = Iterable[DeviceOfRank]
Plan = dict[int, tuple[int, ...]]
"""Operations by rank."""


def problem(request: StressRequest, devices: Devices, accepted: Iterable[int]) -> str:
    """What is wrong with a request, as its fields are named on the wire; empty: nothing.

    Args:
        accepted: operations that the job's training side knows.
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
    """What each rank does, of a request without a problem. A node that has lost its ranks meanwhile has nothing to do."""
    wanted = {one.rank: request.all_nodes or request.nodes.get(one.node, ()) for one in devices}
    return {rank: ops for rank, ops in sorted(wanted.items()) if ops}


def told(said: Mapping[str, ResultOf], ranks: int) -> StressResults:
    """What a client says, by ranks as the wire writes them. What names no rank of the job is left out, and so are further checks
    of a rank that has many.

    Args:
        ranks: of the job.
    """
    known = {
        int(text): of_rank for text, of_rank in said.items() if len(text) <= LONGEST_RANK and text.isascii() and text.isdigit()
    }
    return gathered(
        {rank: {name: known[rank][name] for name in sorted(known[rank])[:MOST_CHECKS]} for rank in sorted(known) if rank < ranks}
    )


def findings(results: StressResults, asked: Plan, devices: Devices) -> Findings:
    """Of the ranks that were asked; what is said of others counts for nothing."""
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
    """Also of what has another name than it was asked for under: clients name their operations themselves. A rank of which less
    is said than was asked was not tested in all."""
    said = {one.code for one in told.values()}
    return said if len(told) >= len(tuple(ops)) else {*said, Code.NOT_RUN}


def table(results: StressResults, devices: Devices) -> Iterator[Row]:
    """What was found, device by device."""
    told = results.by_rank()
    for one in sorted(devices, key=lambda device: (device.node, device.rank, device.device)):
        for check, result in sorted(told.get(one.rank, {}).items()):
            yield Row(node=one.node, device=one.device, rank=one.rank, check=check, code=result.code, result=result.result)


def message(found: Findings, results: StressResults, devices: Devices) -> str:
    """The contract's `msg`, as the original writes it: a set and a list of messages as Go prints them, results as JSON."""
    result = _as_json(results, devices)
    if found.isolate:
        return FAULT_FOUND.format(nodes=f"map[{' '.join(f'{node}:{{}}' for node in found.isolate)}]", result=result)
    if found.timed_out:
        ranks = " ".join(f'rankId:"{rank}" faultType:"1"' for rank in found.timed_out)
        return TIMED_OUT.format(ranks=f"[{ranks}]", result=result)
    return FINISHED.format(result=result)


def _as_json(results: StressResults, devices: Devices) -> str:
    """Node, device, `rankResult`, check."""
    nodes: dict[str, dict[str, object]] = {}
    told = results.by_rank()
    for one in sorted(devices, key=lambda device: (device.node, device.device)):
        if of_rank := told.get(one.rank):
            checks = {check: {"code": of_rank[check].code, "result": of_rank[check].result} for check in sorted(of_rank)}
            nodes.setdefault(one.node, {})[one.device] = {"rankResult": checks}
    return json.dumps(nodes, separators=(",", ":"), ensure_ascii=False)
