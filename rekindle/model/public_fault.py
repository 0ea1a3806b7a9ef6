"""Public faults: faults of nodes that platforms and agents report by the wire contract's `PubFault` or in a ConfigMap.

Used by the gateway, which validates them, and by the readers of reports about nodes. Codes, levels and senders are those of
ClusterD.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from rekindle.model.base import Value

SENDERS = ("CCAE", "fd-online", "pingmesh", "Netmind", "dpcStorage", "dtfsStorage")

NOT_HANDLE, SUB_HEALTH, SEPARATE, PRE_SEPARATE = "NotHandleFault", "SubHealthFault", "SeparateNPU", "PreSeparateNPU"

LEVELS: Mapping[str, str] = {
    **dict.fromkeys(("200001006", "200001010", "200001011", "200001012", "100001011"), NOT_HANDLE),
    **dict.fromkeys(
        (
            *("010001001", "010001002", "010001004", "310001005", "210001007", "210001008", "210001009"),
            *("110001010", "110001020", "110001021"),
        ),
        SUB_HEALTH,
    ),
    **dict.fromkeys(
        (
            *(f"22000100{number}" for number in range(1, 8)),
            *("120001001", "120001002", "120001003", "020001001", "020001003", "020001004"),
        ),
        SEPARATE,
    ),
    **dict.fromkeys(("110001022", "110001023"), PRE_SEPARATE),
}
"""Levels by fault code. Source: ClusterD."""

MOST_FAULTS, MOST_INFLUENCES = 100, 1000
"""Maximum numbers of faults in a request and of influences of a fault."""

LEAST_SECONDS = 5.0
"""Minimum duration of a fault in seconds. The report of its end may arrive before that of its beginning. Source: ClusterD."""

SERIAL = "sn/"
"""Prefix of a node that is identified by its serial number instead of its name."""

EARLIEST = 1_735_689_600_000
"""Earliest accepted time, 2025-01-01, in milliseconds."""

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{8,128}$")]
Moment = Annotated[int, Field(ge=EARLIEST, lt=10**13)]
"""Milliseconds since 1970, a number of 13 digits."""


def _different(ids: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(ids)) < len(ids):
        raise ValueError("names one twice")
    return ids


class _Message(Value):
    """Base class of messages, with field names as on the wire."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Influence(_Message):
    """Node that is affected by the fault."""

    node_name: Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")] = ""
    node_sn: Annotated[str, StringConstraints(pattern=r"^[!-~]{0,128}$")] = Field(default="", alias="nodeSN")
    """Serial number of the node; its annotation `product-serial-number`."""

    device_ids: Annotated[
        tuple[Annotated[int, Field(ge=0, le=31)], ...], Field(min_length=1, max_length=32), AfterValidator(_different)
    ]

    @model_validator(mode="after")
    def _names_a_node(self) -> "Influence":
        if not self.node_name and not self.node_sn:
            raise ValueError("names no node: accepted is nodeName or nodeSN")
        return self

    @property
    def node(self) -> str:
        return self.node_name or f"{SERIAL}{self.node_sn}"


class PublicFault(_Message):
    fault_id: Id
    fault_type: Literal["NPU", "Node", "Network", "Storage"]
    fault_code: Annotated[str, StringConstraints(min_length=9, max_length=9)]
    fault_time: Moment
    assertion: Literal["occur", "recover", "once"]
    fault_location: Annotated[
        dict[Annotated[str, Field(max_length=16)], Annotated[str, Field(max_length=128)]], Field(max_length=10)
    ] = {}
    influence: Annotated[tuple[Influence, ...], Field(min_length=1, max_length=MOST_INFLUENCES)]
    description: Annotated[str, StringConstraints(pattern=r"^[\S ]{0,512}$")] = ""


class Envelope(_Message):
    """Fields of a request other than its faults. The faults are validated one by one."""

    id: Id
    timestamp: Moment
    version: Literal["1.0"]
    resource: str
    """Sender of the request."""
