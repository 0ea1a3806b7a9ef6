"""Versions of the control worker, as Temporal keeps them: one deployment with one version for each build (docs/decisions/0013).

Called by the control worker, which makes its version the current one, and by `rekindle versions`.
"""

from datetime import UTC, datetime, timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.deployment.v1 import WorkerDeploymentInfo, WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType, WorkerDeploymentVersionStatus
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import VersioningOverride, WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
    UpdateWorkflowExecutionOptionsRequest,
)
from temporalio.client import Client
from temporalio.client import WorkflowExecution as Listed
from temporalio.service import RPCError, RPCStatusCode

from rekindle.ids import CONTROL_QUEUE, DEPLOYMENT
from rekindle.model.base import Value

SILENT = timedelta(seconds=70)
"""Time without a request for work after which a version counts as without workers. A worker asks at least once a minute."""

NEVER = datetime.fromtimestamp(0, UTC)

NEVER_CURRENT = (
    WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_UNSPECIFIED,
    WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_INACTIVE,
    WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_CREATED,
)


class Version(Value):
    """Build of the control worker."""

    build_id: str
    current: bool = False
    """True if new recoveries begin on this version."""

    served: bool = False
    """True if the version is current or was before. If not, it is new to this deployment."""

    drained: bool = False
    """True if nothing runs on this version any more. The server checks that every few minutes."""

    asked_at: datetime = NEVER
    """Time at which one of its workers last asked for work."""

    def has_workers(self, now: datetime) -> bool:
        return now - self.asked_at < SILENT


class Deployment(Value):
    """All versions that Temporal knows, the newest first."""

    versions: tuple[Version, ...] = ()
    token: bytes = b""
    """Token that makes a change fail if the deployment has changed since it was read."""

    @property
    def current(self) -> str:
        """Build id of the current version; empty: there is none."""
        return next((version.build_id for version in self.versions if version.current), "")

    @property
    def asked_at(self) -> datetime:
        """Time by the server's clock at which a worker of any version last asked for work."""
        return max((version.asked_at for version in self.versions), default=NEVER)

    def version(self, build_id: str) -> Version:
        return next((version for version in self.versions if version.build_id == build_id), Version(build_id=build_id))

    def yields_to(self, build_id: str) -> bool:
        """Returns whether a version becomes current when it is started.

        A version that is new to the deployment does. One that was current before does not, so that restarting an old worker does
        not undo an upgrade.
        """
        return not self.current or not self.version(build_id).served


async def read_deployment(client: Client) -> Deployment:
    """Returns the current versions; none if no worker with a version has ever run."""
    try:
        answer = await client.workflow_service.describe_worker_deployment(
            DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=DEPLOYMENT)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return Deployment()
    asked = await _asked(client)
    return Deployment(versions=_versions(answer.worker_deployment_info, asked), token=answer.conflict_token)


def _versions(info: WorkerDeploymentInfo, asked: dict[str, datetime]) -> tuple[Version, ...]:
    current = info.routing_config.current_deployment_version.build_id
    summaries = sorted(info.version_summaries, key=lambda summary: summary.create_time.ToNanoseconds(), reverse=True)
    return tuple(
        Version(
            build_id=summary.deployment_version.build_id,
            current=summary.deployment_version.build_id == current,
            served=summary.status not in NEVER_CURRENT,
            drained=summary.status == WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_DRAINED,
            asked_at=asked.get(summary.deployment_version.build_id, NEVER),
        )
        for summary in summaries
    )


async def _asked(client: Client) -> dict[str, datetime]:
    """Returns when a worker of each version last asked for workflow tasks, as far as the server remembers."""
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=CONTROL_QUEUE),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    asked: dict[str, datetime] = {}
    for poller in answer.pollers:
        build_id, at = poller.deployment_options.build_id, poller.last_access_time.ToDatetime(UTC)
        asked[build_id] = max(at, asked.get(build_id, NEVER))
    return asked


async def make_current(client: Client, build_id: str, token: bytes = b"") -> None:
    """Makes a version current: new recoveries begin on it, and jobs move to it as soon as they have no recovery.

    Raises:
        RPCError: it is not known, none of its workers has asked for work yet, or the deployment has changed since `token`.
    """
    await client.workflow_service.set_worker_deployment_current_version(
        SetWorkerDeploymentCurrentVersionRequest(
            namespace=client.namespace,
            deployment_name=DEPLOYMENT,
            build_id=build_id,
            conflict_token=token,
            identity=client.identity,
        )
    )


def _open(build_id: str) -> str:
    return f"TemporalWorkerDeploymentVersion = '{DEPLOYMENT}:{build_id}' AND ExecutionStatus = 'Running'"


async def count_open(client: Client, build_id: str, begins: str = "") -> int:
    """Returns the number of workflows that run on a version; all, or those whose ids begin so."""
    only = f" AND WorkflowId STARTS_WITH '{begins}'" if begins else ""
    return (await client.count_workflows(_open(build_id) + only)).count


async def list_open(client: Client, build_id: str) -> list[Listed]:
    return [workflow async for workflow in client.list_workflows(_open(build_id))]


async def move(client: Client, workflow: Listed, build_id: str) -> None:
    """Moves a workflow to another version from its next task on.

    Used for workflows whose version has no worker. The other version's code must be able to replay their history.
    """
    target = WorkerDeploymentVersion(deployment_name=DEPLOYMENT, build_id=build_id)
    override = VersioningOverride(one_time=VersioningOverride.OneTimeOverride(target_deployment_version=target))
    request = UpdateWorkflowExecutionOptionsRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=workflow.id, run_id=workflow.run_id),
        workflow_execution_options=WorkflowExecutionOptions(versioning_override=override),
    )
    request.update_mask.paths.append("versioning_override")
    try:
        await client.workflow_service.update_workflow_execution_options(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # it has ended meanwhile
            raise
