"""Finds out whether a Temporal service can be used, why not, and how to mend it. Used by `rekindle.doctor` and by processes."""

import asyncio
from datetime import timedelta

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from rekindle.errors import Unavailable
from rekindle.model.base import Value
from rekindle.model.compatibility import TEMPORAL
from rekindle.model.examined import Problem
from rekindle.temporal import FORBIDDEN, UNREACHABLE, ensure_search_attributes, in_words

TOO_OLD = "TemporalTooOld"
NAMESPACE_MISSING = "TemporalNamespaceMissing"
ATTRIBUTES_MISSING = "SearchAttributesMissing"

REASONS = {
    RPCStatusCode.NOT_FOUND: NAMESPACE_MISSING,
    RPCStatusCode.PERMISSION_DENIED: FORBIDDEN,
    RPCStatusCode.UNAUTHENTICATED: FORBIDDEN,
}

MENDS = {
    NAMESPACE_MISSING: "create it: temporal operator namespace create --namespace {0}; or set TEMPORAL_NAMESPACE",
    FORBIDDEN: "let this identity read and write the namespace {0}: TEMPORAL_API_KEY, TEMPORAL_TLS_*",
    UNREACHABLE: "look at the Temporal service, and at TEMPORAL_ADDRESS",
}


class Service(Value):
    """Temporal service as it describes itself."""

    version: str = ""
    retention: timedelta = timedelta()
    """Time for which closed workflows are kept. Zero: it does not say."""

    problem: Problem | None = None
    """Reason for which it cannot be used. None: it can."""


async def look_at(client: Client, limit: float | None = None) -> Service:
    """Asks the service for its version and for the client's namespace.

    Args:
        limit: seconds after which it counts as unreachable; None: the client's own limits hold.
    """
    try:
        async with asyncio.timeout(limit):
            return await _look_at(client)
    except TimeoutError:
        words = f"Temporal does not answer at {_address(client)} within {limit:g} s"
        return Service(problem=Problem(reason=UNREACHABLE, words=words))
    except (RPCError, RuntimeError) as error:  # RuntimeError: a lazy client that cannot connect
        return Service(problem=problem_of(error, client))


async def _look_at(client: Client) -> Service:
    version = (await client.workflow_service.get_system_info(GetSystemInfoRequest())).server_version
    if unfit := TEMPORAL.problem(version):
        problem = Problem(reason=TOO_OLD, words=unfit, mend=f"let TEMPORAL_ADDRESS name a newer one than {_address(client)}")
        return Service(version=version, problem=problem)
    try:
        found = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        if error.status not in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
            raise
        await client.count_workflows()  # an identity that may work in a namespace need not be allowed to describe it
        return Service(version=version)
    return Service(version=version, retention=found.config.workflow_execution_retention_ttl.ToTimedelta())


def problem_of(error: Exception, client: Client) -> Problem:
    """Returns the problem behind an answer of the service to a request that concerns its namespace."""
    status = error.status if isinstance(error, RPCError) else None
    reason = REASONS.get(status, UNREACHABLE) if status else UNREACHABLE
    if reason == UNREACHABLE:
        words = f"Temporal does not answer at {_address(client)}: {in_words(error)}"
    else:
        words = f"Temporal at {_address(client)}, namespace {client.namespace}: {in_words(error)}"
    return Problem(reason=reason, words=words, mend=MENDS[reason].format(client.namespace))


async def attributes_problem(client: Client) -> Problem | None:
    """Registers the search attributes that are missing. Returns why that is not possible; None: all are there."""
    try:
        await ensure_search_attributes(client)
    except Unavailable as error:
        return Problem(reason=ATTRIBUTES_MISSING, words=str(error))
    except RPCError as error:
        problem = problem_of(error, client)
        if problem.reason != FORBIDDEN:
            return problem
        mend = "let this identity list and add search attributes; or add those that `rekindle doctor` names"
        words = f"search attributes of namespace {client.namespace} cannot be listed or added: {in_words(error)}"
        return Problem(reason=ATTRIBUTES_MISSING, words=words, mend=mend)
    return None


def _address(client: Client) -> str:
    return client.service_client.config.target_host
