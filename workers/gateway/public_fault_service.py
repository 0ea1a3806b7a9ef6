"""Service `PubFault` of the wire contract: platforms and agents tell of faults of nodes. Served by the gateway.

What is told is kept in the cluster, where the watcher finds it as it finds what others write there. As the contract has it, a bad
fault does not keep the good ones beside it from being taken.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import grpc
from google.protobuf.json_format import MessageToDict
from pydantic import ValidationError

from rekindle.errors import BadInput, ClusterError
from rekindle.model.problems import problems
from rekindle.model.public_fault import MOST_FAULTS, Envelope, PublicFault
from rekindle.model.rule_file import rules_of
from rekindle.model.rules import Rules
from rekindle.policy.public_faults import problem_of_code, senders
from rekindle.settings import Settings
from rekindle_wire import pubfault_pb2 as wire
from rekindle_wire import pubfault_pb2_grpc
from workers.gateway.desk import INVALID_PARAMETER, OK, Context
from workers.gateway.limits import Bucket
from workers.gateway.platforms import Platforms

if TYPE_CHECKING:
    from activities.clusters.kubernetes.public_faults import PublicFaults

INVALID_RATE = 410
"""Also of a sender that nobody knows. Source: the wire contract."""

SENT = "public fault send successfully"
"""Words of the contract."""

BURST, REFILL = 100, 1.0
"""Requests of a sender at once, and those a second that it has back. Source: ClusterD."""

TOLD = 5
"""Faults that were left out of which the answer says why."""

logger = logging.getLogger("gateway")


class Kept(NamedTuple):
    """Where public faults are kept, and the rules that look at them."""

    faults: "PublicFaults"
    rules: Rules


class PublicFaultService(pubfault_pb2_grpc.PubFaultServicer):
    def __init__(self, platforms: Platforms) -> None:
        self._platforms = platforms
        self.kept: Kept | None = None
        """None: the cluster, or its rules, know no public faults."""
        self._requests: defaultdict[str, Bucket] = defaultdict(lambda: Bucket(REFILL, BURST))
        """Limits by sender."""
        self._reading = asyncio.Lock()
        """One request is read at a time, between what all streams have to say: the largest takes more than a second."""

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
        logger.info("public faults", extra={"sender": envelope.resource, "faults": taken, "left_out": len(left_out)})
        return wire.RespStatus(code=OK, info=_answer(len(request.faults), left_out))

    async def _limited(self, sender: str, rules: Rules) -> str:
        """Why it may not send now; empty: it may."""
        known = senders(rules)
        if sender not in known:
            return f"resource: {sender[:40]!r} is no sender of public faults (accepted: {', '.join(sorted(known))})"
        may = await self._requests[sender].take()
        return "" if may else f"resource: {sender} sends too much: {BURST} requests at once, then {REFILL:g} a second"


async def _understood(request: wire.PublicFaultRequest, rules: Rules) -> tuple[Envelope, list[PublicFault], Sequence[str]]:
    """The faults that are as the contract wants them, and what is wrong with the others.

    Raises:
        BadInput: it is wrong as a whole, or none of its faults is good.
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
    """Why there is no room for a fault; empty: it is kept."""
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
    """Where this installation keeps them, until the block ends."""
    rules = rules_of(settings.rules)
    if settings.cluster == "local" or "public-fault" not in rules.reporters:
        yield None
        return

    from activities.clusters.api_server import Api  # over 2 s and 190 MB
    from activities.clusters.kubernetes.public_faults import PublicFaults

    async with Api(settings.kubeconfig) as api:
        yield Kept(PublicFaults(api), rules)
