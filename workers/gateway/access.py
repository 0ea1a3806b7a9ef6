"""Checks that all methods of the gateway share: only pods of a job may speak for it, and errors become codes of the contract."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext

import grpc

from rekindle.errors import BadInput, Refused, Unavailable
from rekindle.ids import ErrorTypes
from rekindle.model.dialogue import Receipt
from rekindle.policy.caller_proof import token_of
from workers.gateway import messages, metrics
from workers.gateway.caller_auth import Senders
from workers.gateway.job_workflows import Rejected

OK = 0
UNREGISTERED = 400
ORDER_MIX = 401
JOB_NOT_EXIST = 402
PROCESS_RECOVER_OFF = 403
UNINITIALIZED = 408
INVALID_PARAMETER = 409
OM_IS_RUNNING = 411
PARAMETERS = 413
"""Code for a requested operation that does not match the job, such as an unknown device."""

OUT_OF_MAX_JOBS = 500
POD_GROUP = 502

CODES = {
    ErrorTypes.JOB_UNKNOWN: UNREGISTERED,
    ErrorTypes.NOT_REGISTERED: UNREGISTERED,
    ErrorTypes.NOT_INITIALIZED: UNINITIALIZED,
    ErrorTypes.RECOVERY_OFF: PROCESS_RECOVER_OFF,
    ErrorTypes.REPORT_UNEXPECTED: ORDER_MIX,
    ErrorTypes.BETWEEN_MODES: ORDER_MIX,
    ErrorTypes.REQUEST_INVALID: INVALID_PARAMETER,
}

Context = grpc.aio.ServicerContext[object, object]


class Desk:
    """Authorizes callers and translates errors into codes of the contract, for all methods of the gateway."""

    def __init__(self, senders: Senders | None) -> None:
        self._senders = senders

    async def admit(self, context: Context, job_id: str) -> None:
        """Returns if the caller may speak for the job; aborts the call otherwise.

        A stranger gets a gRPC error and no code: managers in Go ignore the code of a report, 403 ends the older Python client,
        and any other would be untrue. It may still be a pod of the job whose address the cluster does not know yet. Its client
        retries after a gRPC error, as when a gateway is away.

        Raises:
            BadInput: no job has such an id.
        """
        messages.job_id(job_id)
        if self._senders is None:
            return
        try:
            await self._senders.check(job_id, context.peer(), _token(context))
        except Refused as error:
            metrics.refused(metrics.SENDER)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def job_of(self, context: Context, said: str) -> str:
        """Returns the job's id as the caller gives it, or that of the job whose pod the token names. Empty: neither says it."""
        token = _token(context)
        if said or not token or self._senders is None:
            return said
        try:
            return await self._senders.job_of(context.peer(), token)
        except Refused as error:
            metrics.refused(metrics.SENDER)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError("an aborted call goes no further")

    async def answer(self, context: Context, job_id: str, work: Callable[[], Awaitable[Receipt]], unknown: int) -> Receipt:
        """Returns the receipt of `work`, or the contract's code for its error; `unknown` is the code for an unknown job."""
        try:
            await self.admit(context, job_id)
            return await work()
        except BadInput as error:
            metrics.refused(ErrorTypes.REQUEST_INVALID)
            return Receipt(code=INVALID_PARAMETER, info=str(error))
        except Rejected as error:
            metrics.refused(error.kind)
            code = unknown if error.kind == ErrorTypes.JOB_UNKNOWN else CODES.get(error.kind, ORDER_MIX)
            return Receipt(code=code, info=str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise

    @asynccontextmanager
    async def subscription(self, context: Context, job_id: str) -> AsyncIterator[None]:
        """Admits a subscriber for the time of the block. Errors end the stream with a gRPC error, which clients retry."""
        try:
            await self.admit(context, job_id)
            with self._senders.holding(job_id, context.peer()) if self._senders else nullcontext():
                yield
        except (BadInput, Rejected) as error:
            metrics.refused(error.kind if isinstance(error, Rejected) else ErrorTypes.REQUEST_INVALID)
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def _token(context: Context) -> str:
    return token_of([value for key, value in context.invocation_metadata() or () if key == "authorization"])
