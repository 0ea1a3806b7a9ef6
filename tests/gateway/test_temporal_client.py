"""A process is refused by a Temporal service that cannot be used, with a reason for programs and with what to do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.api.workflowservice.v1 import GetSystemInfoResponse
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from rekindle import temporal_service
from rekindle.cli.ports import free_ports
from rekindle.client import Rekindle
from rekindle.errors import BadInput, Unavailable
from rekindle.model.compatibility import TEMPORAL
from rekindle.temporal import ATTRIBUTES, WANTED, Attributes, connect
from tests.support.temporal import BINARY, START_LIMIT
from workers.temporal_client import connected, service_problem


class Refusing(grpc.GenericRpcHandler):
    """Temporal service that lets this identity do nothing but what is answered without credentials."""

    def __init__(self, *answered: str) -> None:
        self._answered = answered

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method.rpartition("/")[2]

        async def answer(_: bytes, context: Any) -> bytes:
            if method not in self._answered:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "Request unauthorized.")
            return GetSystemInfoResponse(server_version="1.32.0").SerializeToString() if method == "GetSystemInfo" else b""

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def refusing(*answered: str) -> AsyncIterator[str]:
    server = grpc.aio.server(handlers=[Refusing(*answered)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


@pytest.fixture
def address(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets the environment name the real service."""
    found = temporal.client.service_client.config.target_host
    monkeypatch.setenv("TEMPORAL_ADDRESS", found)
    return found


async def refusal() -> Unavailable:
    with pytest.raises(Unavailable) as refused:
        await connected(registers=True)
    return refused.value


async def test_a_service_that_can_be_used_is_no_problem(address: str) -> None:
    """All attributes are registered, and probes see none either."""
    client = await connected(registers=True)
    assert await service_problem(client)() is None


async def test_a_missing_namespace_comes_with_the_command_that_creates_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names namespace and address."""
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "elsewhere")
    error = await refusal()
    assert error.reason == "TemporalNamespaceMissing"
    assert str(error).startswith(f"Temporal at {address}, namespace elsewhere: ")
    assert "temporal operator namespace create --namespace elsewhere" in str(error)


async def test_a_server_that_is_too_old_is_named_with_what_fits(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process does not start, and a client warns."""
    newer = TEMPORAL.model_copy(update={"oldest": "99.0"})
    monkeypatch.setattr(temporal_service, "TEMPORAL", newer)
    monkeypatch.setattr("rekindle.temporal.TEMPORAL", newer)
    error = await refusal()
    assert error.reason == "TemporalTooOld"
    assert "the Temporal server is 1." in str(error)
    assert "accepted are versions from 99.0" in str(error)
    with pytest.warns(UserWarning, match=r"the Temporal server is 1\..*: accepted are versions from 99\.0"):
        await Rekindle.connect(address)


async def test_a_service_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason tells it from one that refuses us."""
    (nobody,) = free_ports(1)
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{nobody}")
    error = await refusal()
    assert (error.reason, f"Temporal does not answer at 127.0.0.1:{nobody}" in str(error)) == ("TemporalUnreachable", True)


@pytest.mark.parametrize("answered", [(), ("GetSystemInfo",)], ids=["nothing", "what needs no namespace"])
async def test_credentials_without_rights_are_told_from_silence(
    answered: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service refuses everything, or what concerns the namespace."""
    async with refusing(*answered) as address:
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
        error = await refusal()
    assert (error.reason, "Request unauthorized" in str(error)) == ("TemporalForbidden", True)


async def test_an_identity_that_may_only_work_in_its_namespace_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity may not describe the namespace; without the right to add search attributes it is refused for that."""
    async with refusing("GetSystemInfo", "CountWorkflowExecutions") as address:
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
        await connected()
        error = await refusal()
    assert error.reason == "SearchAttributesMissing"
    assert "let this identity list and add search attributes" in str(error)


async def test_an_attribute_of_another_type_is_named_with_both_types(own_server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process does not start, since it could not write such an attribute."""
    name = Attributes.VERDICT.name
    namespace, operator = own_server.namespace, own_server.operator_service
    monkeypatch.setenv("TEMPORAL_ADDRESS", own_server.service_client.config.target_host)
    await operator.remove_search_attributes(RemoveSearchAttributesRequest(namespace=namespace, search_attributes=[name]))
    kind = WANTED[Attributes.SECONDS.name]
    await operator.add_search_attributes(AddSearchAttributesRequest(namespace=namespace, search_attributes={name: kind}))
    error = await refusal()
    assert error.reason == "SearchAttributesMissing"
    assert f"search attribute {name} has type" in str(error)


@pytest.fixture
async def own_server() -> AsyncIterator[Client]:
    """Starts a server whose attributes may be changed."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(BINARY), dev_server_startup_timeout=START_LIMIT, search_attributes=ATTRIBUTES
    ) as env:
        yield env.client


async def test_an_error_of_the_configuration_file_quotes_nothing_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error is written to the log, to an event and to the message of a container, and an API key is in the file."""
    (tmp_path / "temporal.toml").write_text('[profile.default]\napi_key = "a-secret-key\n')
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    with pytest.raises(BadInput, match=r"TOML parse error at line 2, column \d+ invalid basic string") as raised:
        await connect()
    assert "a-secret-key" not in str(raised.value)
