"""Service `PubFault` of the wire contract: receives faults of nodes from platforms and agents. Served by the gateway.

Faults are stored in the cluster, where the watcher finds them like any other state. As the contract says, an invalid fault does
not keep valid ones in the same request from being accepted.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import grpc
from google.protobuf.json_format import MessageToDict
from pydantic import ValidationError

from rekindle.errors import BadInput, ClusterError
from rekindle.model.problems import problems
from rekindle.model.public_fault import MOST_FAULTS, Envelope, PublicFault
from rekindle.model.rule_file import rules_of
from rekindle.model.rules import Rules
from rekindle.policy.detection.public_faults import problem_of_code, senders
from rekindle.settings import Settings
from rekindle_wire import pubfault_pb2 as wire
from rekindle_wire import pubfault_pb2_grpc
from workers.clusters import row_of
from workers.gateway.access import INVALID_PARAMETER, OK, Context
from workers.gateway.limits import Bucket
from workers.gateway.platforms import Platforms

if TYPE_CHECKING:
    from activities.clusters.kubernetes.public_faults import PublicFaults

INVALID_RATE = 410
"""Code for a sender that exceeds its rate, and for an unknown sender. Source: the wire contract."""

SENT = "public fault send successfully"
"""Message of the wire contract."""

BURST, REFILL = 100, 1.0
"""Largest burst of requests of a sender, and requests per second after it. Source: ClusterD."""

TOLD = 5
"""Largest number of rejected faults whose reasons the answer contains."""

logger = logging.getLogger("gateway")


class Kept(NamedTuple):
    """Store of public faults, and the rules that evaluate them."""

    faults: "PublicFaults"
    rules: Rules


class PublicFaultService(pubfault_pb2_grpc.PubFaultServicer):
    def __init__(self, platforms: Platforms) -> None:
        self._platforms = platforms
        self.kept: Kept | None = None
        """Store and rules; None if the cluster or its rules do not support public faults."""
        self._requests: defaultdict[str, Bucket] = defaultdict(lambda: Bucket(REFILL, BURST))
        """Rate limits, keyed by sender."""
        self._reading = asyncio.Lock()
        """Lock that serializes parsing: the largest request takes more than a second, in which other streams must be served."""

    async def SendPublicFault(self, request: wire.PublicFaultRequest, context: Context) -> wire.RespStatus:
        await self._platforms.admit(context)
        kept = self.kept
        if kept is None:
            words = "no rule of this installation looks at public faults (REKINDLE_RULES=ascend has such rules, on Kubernetes)"
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, words)
            raise AssertionError
        if problem := await self._limited(request.resource, kept.rules):
            return wire.RespStatus(code=INVALID_RATE, info=problem)
        try:
            async with self._reading:
                envelope, faults, left_out = await _understood(request, kept.rules)
            refused = [problem for fault in faults if (problem := await _problem(kept, envelope, fault))]
            if len(refused) == len(faults):
                raise BadInput("\n".join([*left_out, *refused][:TOLD]))
        except BadInput as error:
            return wire.RespStatus(code=INVALID_PARAMETER, info=str(error))
        except ClusterError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        left_out = [*left_out, *refused]
        taken = len(request.faults) - len(left_out)
        logger.info("public faults received", extra={"sender": envelope.resource, "faults": taken, "left_out": len(left_out)})
        return wire.RespStatus(code=OK, info=_answer(len(request.faults), left_out))

    async def _limited(self, sender: str, rules: Rules) -> str:
        """Returns why the sender may not send now; empty: it may."""
        known = senders(rules)
        if sender not in known:
            return f"resource: {sender[:40]!r} is no sender of public faults (accepted: {', '.join(sorted(known))})"
        may = await self._requests[sender].take()
        return "" if may else f"resource: {sender} sends too much: {BURST} requests at once, then {REFILL:g} a second"


async def _understood(request: wire.PublicFaultRequest, rules: Rules) -> tuple[Envelope, list[PublicFault], Sequence[str]]:
    """Returns the envelope, the valid faults, and the reasons why the others are invalid.

    Raises:
        BadInput: the envelope is invalid, or none of the faults is valid.
    """
    words = {name: getattr(request, name) for name in Envelope.model_fields}
    try:
        envelope = Envelope.model_validate(words)
    except ValidationError as error:
        raise BadInput("\n".join(problems(error, Envelope))) from error
    if not 1 <= len(request.faults) <= MOST_FAULTS:
        raise BadInput(f"faults: {len(request.faults)} faults, accepted are 1 to {MOST_FAULTS}")
    good: list[PublicFault] = []
    wrong: list[str] = []
    for number, one in enumerate(request.faults):
        await asyncio.sleep(0)
        try:
            good.append(_fault(one, rules))
        except BadInput as error:
            wrong.append(f"faults.{number}.{error}")
    if not good:
        raise BadInput("\n".join(wrong[:TOLD]))
    return envelope, good, wrong


async def _problem(kept: Kept, envelope: Envelope, fault: PublicFault) -> str:
    """Stores a fault. Returns why it cannot be stored; empty: it is stored."""
    try:
        await kept.faults.tell(envelope, fault)
    except BadInput as error:
        return str(error)
    return ""


def _fault(message: wire.Fault, rules: Rules) -> PublicFault:
    told = MessageToDict(message)
    told["faultTime"] = message.faultTime  # a number of 64 bits is text in JSON
    try:
        fault = PublicFault.model_validate(told)
    except ValidationError as error:
        raise BadInput("; ".join(problems(error, PublicFault)[:TOLD])) from error
    if problem := problem_of_code(fault.fault_code, rules):
        raise BadInput(problem)
    return fault


def _answer(count: int, left_out: Sequence[str]) -> str:
    if not left_out:
        return SENT
    return f"{SENT}; {len(left_out)} of {count} were left out: {'; '.join(left_out[:TOLD])}"


@asynccontextmanager
async def public_faults_of(settings: Settings) -> AsyncIterator[Kept | None]:
    """Yields the store of public faults, open until the block ends; None if this installation has none."""
    rules, open_store = rules_of(settings.rules), row_of(settings).public_faults
    if open_store is None or "public-fault" not in rules.reporters:
        yield None
        return
    async with AsyncExitStack() as ends:
        yield Kept(await open_store(settings, ends), rules)
