"""Marks activities and workflows of a recovery with their spans, so that their log lines carry the ids. Part of the plugin of
`rekindle.temporal` where traces are on.

It exports nothing: the spans are drawn from the histories when the incident has ended.
"""

from typing import Any

from temporalio import activity, workflow
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from rekindle.spans import activity_place, enter, mode_place, within


class _OfActivity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002  # the SDK's name
        info = activity.info()
        mode = mode_place(info.workflow_id or "")
        with within(mode and activity_place(mode, info.activity_id)):
            return await super().execute_activity(input)


class _OfWorkflow(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002
        enter(mode_place(workflow.info().workflow_id))
        return await super().execute_workflow(input)


class CurrentSpan(Interceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _OfActivity(next)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002
        return _OfWorkflow
