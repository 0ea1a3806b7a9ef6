"""Sender of public faults that does not use our code: its messages are generated from the contract's table of fields."""

from typing import Any

import grpc
from google.protobuf import json_format

from tests.support.contract import messages

NOW = 1_760_000_000_000

_FIELDS: dict[str, tuple[str, ...]] = {
    "RespStatus": ("int32 code", "string info"),
    "PubFaultInfo": ("string nodeName", "string nodeSN", "repeated int32 deviceIds"),
    "Location": ("string key", "string value"),
    "Fault": (
        "string faultId",
        "string faultType",
        "string faultCode",
        "int64 faultTime",
        "string assertion",
        "repeated Location faultLocation",  # what a map is on the wire
        "repeated PubFaultInfo influence",
        "string description",
    ),
    "PublicFaultRequest": ("string id", "int64 timestamp", "string version", "string resource", "repeated Fault faults"),
}

MESSAGES = messages(_FIELDS)


def fault(code: str = "220001001", assertion: str = "occur", **more: Any) -> dict[str, Any]:
    return {
        "faultId": "11937763019444715778",
        "faultType": "Network",
        "faultCode": code,
        "faultTime": NOW,
        "assertion": assertion,
        "influence": [{"nodeName": "node-0", "deviceIds": [0]}],
        "description": "port down",
        **more,
    }


def request(*faults: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "message-1", "timestamp": NOW, "version": "1.0", "resource": "pingmesh", "faults": list(faults), **more}


async def send(target: str, told: dict[str, Any]) -> tuple[int, str]:
    """Sends a request, and returns code and info of the answer."""
    async with grpc.aio.insecure_channel(target) as channel:
        method = channel.unary_unary(
            "/PubFault/SendPublicFault",
            request_serializer=MESSAGES["PublicFaultRequest"].SerializeToString,
            response_deserializer=MESSAGES["RespStatus"].FromString,
        )
        answer = await method(json_format.ParseDict(told, MESSAGES["PublicFaultRequest"]()))
        return answer.code, answer.info
