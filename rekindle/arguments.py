"""Rejects messages to workflows whose arguments do not fit the handler. Part of the plugin of `rekindle.temporal`.

The SDK calls a handler with any arguments that arrive, and a handler that cannot be called stops its workflow. A signal stays in
the history, so such a workflow would be stopped forever.
"""

import inspect
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, get_args

from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from rekindle.ids import ErrorTypes


def _misfit(handler: Callable[..., Any] | None, given: Sequence[object]) -> str:
    """Returns why a handler cannot be called with these arguments; empty: it can, or there is none."""
    if handler is None:
        return ""
    signature = inspect.signature(handler)
    try:
        bound = signature.bind(*given)
    except TypeError as error:
        return f"the input does not fit: {error}"
    wanted = {name: signature.parameters[name].annotation for name, value in bound.arguments.items() if value is None}
    null = [name for name, kind in wanted.items() if kind is not object and NoneType not in get_args(kind)]
    return f"{null[0]}: must not be null" if null else ""


class _Fitting(WorkflowInboundInterceptor):
    async def handle_signal(self, input: HandleSignalInput) -> None:  # noqa: A002  # the SDK's name
        if problem := _misfit(workflow.get_signal_handler(input.signal), input.args):
            workflow.logger.warning("signal dropped", extra={"signal": input.signal, "error": problem})
            return
        await super().handle_signal(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:  # noqa: A002
        _refuse_misfit(input)
        super().handle_update_validator(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:  # noqa: A002
        """Rejects an update that does not fit. An update without a validator reaches only its handler."""
        _refuse_misfit(input)
        return await super().handle_update_handler(input)


def _refuse_misfit(given: HandleUpdateInput) -> None:
    if problem := _misfit(workflow.get_update_handler(given.update), given.args):
        raise ApplicationError(problem, type=ErrorTypes.REQUEST_INVALID, non_retryable=True)


class Arguments(Interceptor):
    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002
        return _Fitting
