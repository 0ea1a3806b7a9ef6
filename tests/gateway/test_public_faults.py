"""Public faults on the wire: what the contract wants of a request, and what is answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
from google.protobuf import json_format

from rekindle.errors import BadInput, ClusterUnavailable
from rekindle.model.public_fault import Envelope, PublicFault
from rekindle.model.rule_file import rules_of
from rekindle.settings import Settings
from rekindle_wire import pubfault_pb2 as wire
from rekindle_wire import pubfault_pb2_grpc
from tests.fakes.public_fault_peer import fault, request, send
from workers.gateway.platforms import Platforms
from workers.gateway.public_fault_service import BURST, Kept, PublicFaultService


class Remembered:
    """Stores the faults that it receives, as the cluster would."""

    def __init__(self) -> None:
        self.told: list[PublicFault] = []
        self.problem: Exception | None = None

    async def tell(self, envelope: Envelope, fault: PublicFault) -> None:
        if self.problem and fault.assertion == "occur":
            raise self.problem
        self.told.append(fault)


@asynccontextmanager
async def served(kept: Remembered | None, settings: Settings | None = None) -> AsyncIterator[str]:
    service = PublicFaultService(Platforms(settings or Settings()))
    service.kept = Kept(kept, rules_of("ascend")) if kept else None  # type: ignore[arg-type]
    server = grpc.aio.server()
    pubfault_pb2_grpc.add_PubFaultServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_request_as_the_contract_has_it_is_kept() -> None:
    """The request receives the answer of the contract."""
    kept, told = Remembered(), fault(faultLocation=[{"key": "npuIp", "value": "192.168.0.1"}])
    async with served(kept) as target:
        assert await send(target, request(told)) == (0, "public fault send successfully")
    (one,) = kept.told
    assert (one.fault_code, one.influence[0].node, one.fault_location) == ("220001001", "node-0", {"npuIp": "192.168.0.1"})


def at(**more: Any) -> dict[str, Any]:
    return fault(influence=[{"nodeName": "node-0", "deviceIds": [0], **more}])


@pytest.mark.parametrize(
    ("told", "code", "words"),
    [
        (request(fault(), id="short"), 409, "id: "),
        (request(fault(), id="with a blank"), 409, "id: "),
        (request(fault(), timestamp=1), 409, "timestamp: "),
        (request(fault(), timestamp=10**13), 409, "timestamp: "),
        (request(fault(), version="2.0"), 409, "version: "),
        (request(), 409, "faults: 0 faults, accepted are 1 to 100"),
        (request(*[fault()] * 101), 409, "faults: 101 faults"),
        (request(fault(), resource="anybody"), 410, "resource: 'anybody' is no sender of public faults (accepted: CCAE"),
        (request(fault(faultId="x")), 409, "faults.0.faultId: "),
        (request(fault(faultType="Weather")), 409, "faults.0.faultType: "),
        (request(fault("22000100")), 409, "faults.0.faultCode: "),
        (request(fault("999999999")), 409, "faults.0.faultCode: '999999999' has no level"),
        (request(fault(faultTime=5)), 409, "faults.0.faultTime: "),
        (request(fault(assertion="maybe")), 409, "faults.0.assertion: "),
        (request(fault(faultLocation=[{"key": "k" * 17, "value": ""}])), 409, "faults.0.faultLocation"),
        (request(fault(influence=[])), 409, "faults.0.influence: "),
        (request(at(nodeName="")), 409, "names no node: accepted is nodeName or nodeSN"),
        (request(at(nodeName="Not_A_Name")), 409, "faults.0.influence.0.nodeName: "),
        (request(at(deviceIds=[])), 409, "faults.0.influence.0.deviceIds: "),
        (request(at(deviceIds=[3, 3])), 409, "names one twice"),
        (request(at(deviceIds=[32])), 409, "faults.0.influence.0.deviceIds.0: "),
        (request(fault(description="x" * 513)), 409, "faults.0.description: "),
        (request(fault(description="two\nlines")), 409, "faults.0.description: "),
    ],
)
async def test_what_the_contract_does_not_accept_is_refused_by_its_field(told: dict[str, Any], code: int, words: str) -> None:
    """The error names the field, and nothing of the request is kept."""
    kept = Remembered()
    async with served(kept) as target:
        answered, info = await send(target, told)
    assert (answered, kept.told) == (code, [])
    assert words in info


async def test_a_bad_fault_does_not_keep_the_good_ones_beside_it_from_being_taken() -> None:
    """The answer says which were left out."""
    kept = Remembered()
    async with served(kept) as target:
        code, info = await send(target, request(fault(), fault("999999999"), fault("010001002")))
    assert (code, [one.fault_code for one in kept.told]) == (0, ["220001001", "010001002"])
    assert "1 of 3 were left out: faults.1.faultCode: '999999999'" in info


async def test_where_there_is_no_room_for_a_fault_the_end_of_another_one_is_taken() -> None:
    """Otherwise there would never be room again."""
    kept = Remembered()
    kept.problem = BadInput("faults: 5000 public faults stand already")
    async with served(kept) as target:
        code, info = await send(target, request(fault(), fault(assertion="recover")))
        assert (code, [one.assertion for one in kept.told]) == (0, ["recover"])
        assert "1 of 2 were left out: faults: 5000" in info
        assert await send(target, request(fault(), fault())) == (409, "\n".join([str(kept.problem)] * 2))


async def test_large_requests_are_read_between_what_others_have_to_say() -> None:
    """The streams of all jobs are served by the same process."""
    everywhere = [{"nodeName": f"node-{number}", "deviceIds": [0]} for number in range(50)]
    large = json_format.ParseDict(request(*[fault(influence=everywhere)] * 50), wire.PublicFaultRequest())
    service, waiting, turns = PublicFaultService(AsyncMock()), True, 0
    service.kept = Kept(Remembered(), rules_of("ascend"))  # type: ignore[arg-type]

    async def others() -> None:
        nonlocal turns
        while waiting:
            turns += 1
            await asyncio.sleep(0)

    speaking = asyncio.create_task(others())
    answers = await asyncio.gather(*(service.SendPublicFault(large, AsyncMock()) for _ in range(3)))
    waiting = False
    await speaking
    assert ([one.code for one in answers], turns > 100) == ([0] * 3, True)


async def test_a_sender_that_sends_too_much_is_told_so() -> None:
    """A sender of a hundred requests at once is refused; requests of others are accepted all the same."""
    async with served(Remembered()) as target:
        answers = [(await send(target, request(fault())))[0] for _ in range(BURST + 5)]
        assert (answers[:BURST], 410 in answers[BURST:]) == ([0] * BURST, True)
        assert (await send(target, request(fault(), resource="CCAE")))[0] == 0


async def test_what_cannot_be_kept_is_to_be_sent_again() -> None:
    """A fault that cannot be kept is a gRPC error. So is a request of a sender without permission, and one where nothing keeps
    faults."""
    kept = Remembered()
    kept.problem = ClusterUnavailable("the API server is away")
    foreign = Settings(cluster="kubernetes", platforms=("10.0.7.0/24",))  # type: ignore[arg-type]
    expected = {"UNAVAILABLE": (kept, None), "UNIMPLEMENTED": (None, None), "PERMISSION_DENIED": (Remembered(), foreign)}
    for status, (keeps, settings) in expected.items():
        async with served(keeps, settings) as target:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await send(target, request(fault()))
            assert refused.value.code().name == status
