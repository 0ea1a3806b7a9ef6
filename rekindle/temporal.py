"""Connections to Temporal with the converter of our payloads, and the typed search attributes.

Called by `rekindle.client` and by the processes of `workers`. Imports nothing of Temporal's workers, which take as long to import
as everything else that a client needs.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client, Plugin, WithStartWorkflowOperation
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from rekindle.errors import BadInput, Unavailable
from rekindle.model.compatibility import TEMPORAL

TASK_TIMEOUT = timedelta(seconds=2)
"""Workflow task timeout of every workflow. It is the delay that a killed worker causes after its sticky queue has timed out."""

STICKY_TIMEOUT = timedelta(seconds=1)

ASKED_AGAIN, LONGEST_PAUSE = 0.2, 5.0
"""Seconds before a service that did not answer is asked again; the pause doubles from the first to the second value."""

UNREACHABLE, FORBIDDEN = "TemporalUnreachable", "TemporalForbidden"
"""Reasons of an error of a service that does not answer, and of one that refuses our identity."""

REFUSED = re.compile(r"Unauthenticated|PermissionDenied|valid authentication credentials|does not have permission")
"""Matches the code of a refusal in an error of Temporal's core."""

QUOTED = re.compile(r"\s*\d*\s*\|")
"""Matches a line of an error that quotes the configuration file: an API key may be in it."""

ADDRESS = re.compile(r"[^/\s]+:[^/\s:]+")
"""Matches host and port. Without a port, the core would look for a name."""

LISTED_LATE = timedelta(minutes=1)
"""Time in which the list of workflows catches up with events. It usually takes one second."""


class Attributes:
    """Search attributes of `TrainingJob` and of every recovery. None is ever encrypted."""

    JOB = SearchAttributeKey.for_keyword("RekindleJob")
    MODE = SearchAttributeKey.for_keyword("RekindleMode")
    PHASE = SearchAttributeKey.for_keyword("RekindlePhase")
    VERDICT = SearchAttributeKey.for_keyword("RekindleVerdict")
    FAULT = SearchAttributeKey.for_keyword("RekindleFault")
    NODE = SearchAttributeKey.for_keyword_list("RekindleNode")
    FAULT_AT = SearchAttributeKey.for_datetime("RekindleFaultAt")
    SECONDS = SearchAttributeKey.for_float("RekindleSeconds")


ATTRIBUTES: tuple[SearchAttributeKey[Any], ...] = tuple(
    value for value in vars(Attributes).values() if isinstance(value, SearchAttributeKey)
)

WANTED: dict[str, IndexedValueType.ValueType] = {
    key.name: IndexedValueType.ValueType(key.indexed_value_type.value) for key in ATTRIBUTES
}
"""Types of the attributes, by name."""


def living(workflow: str) -> str:
    """Returns a query for the running workflows of a type that misses none.

    The list is updated with a delay: a workflow that has just continued as new may be listed only by its previous run. So a
    workflow may be listed several times, or although it has ended.
    """
    since = (datetime.now(UTC) - LISTED_LATE).isoformat(timespec="seconds")
    continued = f"ExecutionStatus = 'ContinuedAsNew' AND CloseTime > '{since}'"
    return f"WorkflowType = '{workflow}' AND (ExecutionStatus = 'Running' OR ({continued}))"


async def connect(address: str = "", *, lazy: bool = False, started_here: bool = False, plugins: Sequence[Plugin] = ()) -> Client:
    """A client of the Temporal service that the environment names (`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, ...).

    Args:
        address: `host:port`, instead of the environment's.
        started_here: it is the embedded server of a stack on this machine. What the environment and the configuration file say of
            another one (namespace, keys, TLS) is not meant for it.
        plugins: those of the workers that use the client (`rekindle.worker_plugin`).

    Raises:
        BadInput: the environment or the configuration file cannot be used.
        Unavailable: the service does not answer; the message names the address.
    """
    config = ClientConnectConfig() if started_here else _configuration()
    host = config["target_host"] = address or config.get("target_host", "localhost:7233")
    if ADDRESS.fullmatch(host) is None:
        raise BadInput(f"TEMPORAL_ADDRESS: {host!r} is not accepted (accepted: HOST:PORT, such as localhost:7233)")
    try:
        return await Client.connect(**config, data_converter=pydantic_data_converter, plugins=plugins, lazy=lazy)
    except (OSError, ValueError) as error:
        raise _unusable(error) from error
    except RuntimeError as error:
        where = f"{config['target_host']} (set TEMPORAL_ADDRESS)"
        reason = FORBIDDEN if REFUSED.search(str(error)) else UNREACHABLE
        raise Unavailable(f"Temporal does not answer at {where}: {in_words(error)}", reason) from error


async def version_problem(client: Client) -> str:
    """Returns why the version of the service does not fit; empty: it does, or the service does not say it."""
    try:
        answer = await client.workflow_service.get_system_info(GetSystemInfoRequest())
    except RPCError:
        return ""
    return TEMPORAL.problem(answer.server_version)


def in_words(error: Exception) -> str:
    """Returns the innermost reason of an error of Temporal's client, without the structures of its core."""
    text = str(error)
    if "tonic::" not in text and "Status {" not in text:
        return text
    reasons = re.findall(r'(?:message|error): "((?:[^"\\]|\\.)*)"', text)
    return reasons[-1] if reasons else re.split(r"tonic::|Status \{", text)[0].rstrip(": ")


def _configuration() -> ClientConnectConfig:
    try:
        return ClientConfig.load_client_connect_config()
    except (OSError, ValueError, RuntimeError) as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> BadInput:
    words = " ".join(line.strip() for line in str(error).splitlines() if not QUOTED.match(line))
    return BadInput(f"TEMPORAL_*: the environment or Temporal's configuration file cannot be used: {words}")


async def identity_of(client: Client) -> str:
    """Returns a unique name of the Temporal namespace, in which workflows of jobs live.

    Waits until the service answers. A service that does not describe its namespaces is named by its address.
    """
    pause = ASKED_AGAIN
    while True:
        try:
            answer = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
        except (RPCError, RuntimeError) as error:  # RuntimeError: a lazy client that cannot connect
            if isinstance(error, RPCError) and error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
                return f"{client.namespace} at {client.service_client.config.target_host}"
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return f"{client.namespace} {answer.namespace_info.id}"


async def ensure_search_attributes(client: Client) -> None:
    """Registers the search attributes and compares their types: the server takes a second registration without a word.

    Raises:
        Unavailable: an attribute exists with another type; the message names both types.
    """
    known = await registered_attributes(client)
    await register_attributes(client, WANTED.keys() - known.keys())
    for name, kind in known.items():
        if kind != WANTED[name]:
            raise Unavailable(
                f"search attribute {name} has type {IndexedValueType.Name(kind)} in namespace {client.namespace}, "
                f"expected {IndexedValueType.Name(WANTED[name])}: remove it or use another namespace"
            )


async def registered_attributes(client: Client) -> dict[str, IndexedValueType.ValueType]:
    """Returns the types of those of our search attributes that the server has."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    listing = await client.operator_service.list_search_attributes(request)
    return {name: kind for name, kind in listing.custom_attributes.items() if name in WANTED}


async def register_attributes(client: Client, missing: Collection[str]) -> None:
    if not missing:
        return
    request = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes={name: WANTED[name] for name in sorted(missing)}
    )
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


@asynccontextmanager
async def handle_unread(start: WithStartWorkflowOperation[Any, Any]) -> AsyncIterator[None]:
    """Wraps an update that starts its workflow without using the workflow's handle.

    The SDK reports a failure on the handle too, and logs it as unhandled unless it is read.
    """
    handle = asyncio.ensure_future(start.workflow_handle())
    try:
        yield
    finally:
        handle.cancel()
        await asyncio.gather(handle, return_exceptions=True)
