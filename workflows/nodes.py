"""Workflow of a person's request about nodes: mark or cordon them, and look at them.

Started by `rekindle.nodes`, and over within a second.
"""

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.explained import NodesNow, NodesRequest
from workflows import steps


@workflow.defn(name=Workflows.NODES)
class Nodes:
    @workflow.run
    async def run(self, request: NodesRequest) -> NodesNow:
        if request.mark:
            await steps.mark_nodes(request)
        if request.cordon is not None:
            await steps.cordon_nodes(request)
        return await steps.look_at_nodes(request)
