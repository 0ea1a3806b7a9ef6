"""Temporal plugin that workers and the replayer share: the sandbox, the checks of arguments, and the converter."""

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.plugin import SimplePlugin
from temporalio.worker import Interceptor, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from rekindle.absent import Leaving
from rekindle.arguments import Arguments
from rekindle.current_span import CurrentSpan
from rekindle.otlp import exporter

PASSED_THROUGH = (
    "rekindle.model",
    "rekindle.ids",
    "rekindle.errors",
    "rekindle.otlp",
    "rekindle.spans",
    "rekindle.temporal",
    "activities",
    "workflows.metrics",
    "prometheus_client",
    "pydantic",
    "temporalio",
)
"""Modules that the sandbox does not reload for each workflow.

`rekindle.policy` is not among them, so that the sandbox checks our decisions.
"""


def _runner(wanted: WorkflowRunner | None) -> WorkflowRunner:
    """Returns the sandbox with the modules that are passed through, or another runner if the worker requests it.

    Missing search attributes are removed from commands of workflows.
    """
    if wanted is not None and not isinstance(wanted, SandboxedWorkflowRunner):
        return Leaving(wanted)
    return Leaving(SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)))


def plugin() -> SimplePlugin:
    """Returns the plugin.

    It sets the converter of clients, workers and the replayer; for the latter two also the checks of arguments, and the sandbox
    unless a worker requests another runner. Where traces are on, log lines carry their spans.
    """
    interceptors: list[Interceptor] = [Arguments(), CurrentSpan()] if exporter() else [Arguments()]
    return SimplePlugin("rekindle", data_converter=pydantic_data_converter, workflow_runner=_runner, interceptors=interceptors)
