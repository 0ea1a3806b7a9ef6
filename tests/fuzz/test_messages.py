"""Messages of training sides: of any content, and of any bytes."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from rekindle_wire import recover_pb2 as wire
from tests.fuzz.broken import TEXTS, fuzzed, reads
from workers.gateway import messages

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LARGEST = 256 * 1024
"""Highest size of a read message in a payload, in bytes."""

READERS: dict[type[Message], Callable[[Any], Any]] = {
    wire.StopCompleteRequest: messages.stop_complete,
    wire.RecoverStrategyRequest: messages.strategies,
    wire.RecoverStatusRequest: messages.status,
    wire.ProcessFaultRequest: lambda message: messages.process_fault(message, "process/1", NOW),
}

text = st.one_of(st.sampled_from([one for one in TEXTS if one != "\ud800"]), st.text(st.characters(codec="utf-8"), max_size=30))
status = st.builds(wire.Status, code=st.integers(-(2**31), 2**31 - 1), info=text)
ranks = st.lists(
    st.builds(wire.FaultRank, rankId=st.one_of(text, st.integers().map(str)), faultType=st.one_of(text, st.sampled_from("012"))),
    max_size=5,
)
CONTENTS: dict[type[Message], st.SearchStrategy[Any]] = {
    wire.StopCompleteRequest: st.builds(
        wire.StopCompleteRequest, jobId=text, status=st.one_of(st.none(), status), faultRanks=ranks
    ),
    wire.RecoverStrategyRequest: st.builds(
        wire.RecoverStrategyRequest, jobId=text, faultRanks=ranks, strategies=st.lists(text, max_size=40)
    ),
    wire.RecoverStatusRequest: st.builds(
        wire.RecoverStatusRequest,
        jobId=text,
        status=st.one_of(st.none(), status),
        strategy=text,
        isolateRankIds=st.lists(st.one_of(text, st.integers(0, 100).map(str)), max_size=5),
    ),
    wire.ProcessFaultRequest: st.builds(wire.ProcessFaultRequest, jobId=text, faultRanks=ranks),
}


def read(message: Message) -> Any:
    """Reads a message as the gateway does."""
    messages.job_id(message.jobId)  # type: ignore[attr-defined]
    return READERS[type(message)](message)


def checked(message: Message) -> None:
    answer = reads(lambda: read(message))
    assert answer is None or len(answer.model_dump_json()) < LARGEST


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@fuzzed
def test_a_message_of_any_content_is_read_or_refused_by_its_field(kind: type[Message], data: st.DataObject) -> None:
    """A message of any content that is read is small enough to be stored."""
    checked(data.draw(CONTENTS[kind]))


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.__name__)
@given(content=st.binary(max_size=300))
@fuzzed
def test_a_message_of_any_bytes_is_read_or_refused_by_its_field(kind: type[Message], content: bytes) -> None:
    """A message of any bytes that gRPC itself accepts is read or refused by its field."""
    try:
        message = kind.FromString(content)
    except DecodeError:
        return
    checked(message)


@given(job=text)
@fuzzed
def test_a_job_id_can_be_a_part_of_a_workflow_id(job: str) -> None:
    """A job id can be a part of a workflow id, or is refused."""
    found = reads(lambda: messages.job_id(job))
    assert found is None or ("/" not in found and found.isprintable())
