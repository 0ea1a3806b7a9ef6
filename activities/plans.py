"""Activities of the upgrade of a switch: find the jobs on a leaf, and begin, end and look up their maintenances."""

import asyncio

from temporalio import activity
from temporalio.client import Client, WorkflowExecution, WorkflowQueryFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.clusters.port import Cluster
from activities.error_mapping import translating_errors
from activities.heartbeat import heartbeating
from rekindle import ids
from rekindle.client import Rekindle
from rekindle.errors import BadInput, Busy, NotFound, NotMoved, Refused, Unavailable
from rekindle.maintenances import Maintenances
from rekindle.model.base import sent
from rekindle.model.cluster import JobView
from rekindle.model.job import JobId
from rekindle.model.links import describe
from rekindle.model.plan import FailOver, JobOnLeaf, Leaf, LeafView, MoveBack, Moved, SurveyLeafRequest
from rekindle.model.state import JobStatus
from rekindle.policy.detection.devices import devices
from rekindle.policy.operations import switch_upgrade
from rekindle.temporal import TASK_TIMEOUT, Attributes, living

AT_ONCE = 16
"""Jobs that are queried at the same time."""


BEGUN_BY = "begunBy"
"""Memo of a maintenance that an upgrade has begun: first run id of the upgrade."""


class PlanActivities:
    def __init__(self, client: Client, cluster: Cluster) -> None:
        self._client, self._cluster = client, cluster
        self._maintenances = Maintenances(Rekindle(client))

    @activity.defn
    async def survey_leaf(self, request: SurveyLeafRequest) -> LeafView:
        """Returns the jobs that have devices on a leaf, and the nodes and jobs of the request that are unknown."""
        with translating_errors():
            async with heartbeating():
                runs = {run.id: run async for run in self._client.list_workflows(living(ids.Workflows.TRAINING_JOB))}
                chosen = [run for run in runs.values() if not request.jobs or not _names(run).isdisjoint(request.jobs)]
                known = {name for run in chosen for name in _names(run)}
                unknown = [f"job {job}" for job in request.jobs if job not in known]
                unknown += [f"node {node}" for node in await self._unknown_nodes(request.leaf)]
                places = asyncio.Semaphore(AT_ONCE)

                async def look(run: WorkflowExecution) -> JobOnLeaf | None:
                    async with places:
                        return await self._look(_id(run), request.leaf)

                found = await asyncio.gather(*(look(run) for run in chosen))
        return switch_upgrade.view(sorted((job for job in found if job), key=lambda job: (job.job, job.job_id)), unknown)

    async def _unknown_nodes(self, leaf: Leaf) -> list[str]:
        unknown = []
        for name in dict.fromkeys(one.node for one in leaf.links):
            try:
                await self._cluster.node(name)
            except NotFound:
                unknown.append(name)
        return unknown

    async def _look(self, job_id: JobId, leaf: Leaf) -> JobOnLeaf | None:
        """Returns the devices of a job on a leaf; None: it has none there, or has ended."""
        try:
            job, pods = await self._cluster.job(job_id), await self._cluster.pods(job_id)
        except NotFound:
            return None
        rows, nodes = devices(JobView(job=job, pods=tuple(pods))), {one.node for one in leaf.links}
        if nodes.isdisjoint(row.node for row in rows):
            return None
        status = await self._status(job_id)
        found = switch_upgrade.on_leaf(status, rows, leaf) if status and not status.state.ended else None
        if found is None or status is None or not found.move:
            return found
        return found.model_copy(update={"maintenance": ids.failover_workflow(status.state.job, found.move)})

    async def _status(self, job_id: JobId) -> JobStatus | None:
        try:
            status: JobStatus = await self._client.get_workflow_handle(ids.job_workflow(job_id)).query(
                ids.Queries.STATUS, result_type=JobStatus
            )
        except WorkflowQueryFailedError as error:
            raise Unavailable(f"job {job_id} did not say how it is: {error}") from error
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise Unavailable(f"job {job_id} did not say how it is: {error}") from error
            return None
        return status

    @activity.defn
    async def fail_over(self, wanted: FailOver) -> Moved:
        """Begins a maintenance and waits until it has failed its links over, or has failed itself.

        After the death of a worker, the retry waits for the maintenance that was begun. A maintenance that another party has
        begun is waited for as well, and reported as such.
        """
        with translating_errors():
            async with heartbeating():
                ours = await self._begin(wanted)
                try:
                    known = await self._maintenances.settled(wanted.maintenance)
                except (BadInput, Refused, NotMoved) as error:
                    return Moved(problem=str(error), busy=isinstance(error, Busy) or not ours)
        if not ours:
            return Moved(problem=f"these links were failed over by somebody else, {wanted.maintenance}")
        return Moved(info=known.moves[-1].reason if known.moves else "")

    async def _begin(self, wanted: FailOver) -> bool:
        """Begins the maintenance, and returns whether it belongs to this upgrade.

        It has no parent: it outlives the upgrade, and begins on the current version of the code.
        """
        request = wanted.request
        try:
            await self._client.start_workflow(
                ids.Workflows.LINK_FAILOVER,
                sent(request),
                id=wanted.maintenance,
                task_queue=ids.CONTROL_QUEUE,
                task_timeout=TASK_TIMEOUT,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                static_summary=f"{request.name}: {describe(request.links)}"[:200],
                memo={BEGUN_BY: wanted.whose},
            )
        except WorkflowAlreadyStartedError:
            found = await self._client.get_workflow_handle(wanted.maintenance).describe()
            return str(await found.memo_value(BEGUN_BY, "")) == wanted.whose
        return True

    @activity.defn
    async def move_back(self, request: MoveBack) -> Moved:
        """Moves the links of a maintenance back.

        After the death of a worker, the retry waits for the movement that was requested.
        """
        with translating_errors():
            async with heartbeating():
                while True:
                    try:
                        known = await self._maintenances.settled(request.maintenance)
                        if not known.on_backup:
                            return Moved(info=known.moves[-1].reason if known.moves else "")
                        done = await self._maintenances.switch_back(request.maintenance, requested_by=request.requested_by)
                        return Moved(info=done)
                    except Busy:  # the same was requested by another party; `settled` waits for its end
                        continue
                    except (BadInput, Refused, NotMoved) as error:
                        return await self._not_back(request.maintenance, str(error))

    async def _not_back(self, maintenance: str, problem: str) -> Moved:
        """Reports why links were not moved back, and whether that is a problem.

        A maintenance that has ended has nothing on its backup link, and one that could not fail over never had. One that was
        terminated moves nothing any more.
        """
        try:
            known = await self._maintenances.settled(maintenance)
        except BadInput as error:
            return Moved(info=f"nothing is to be moved back: {error}")
        except (Refused, NotMoved) as error:
            known = await self._maintenances.status(maintenance)
            if not known.on_backup:
                return Moved(info=f"nothing is to be moved back: {error}")
            problem = f"{maintenance} was ended before it had moved its links back; fail the same devices over again"
        return Moved(problem=problem) if known.on_backup else Moved(info=problem)


def _id(run: WorkflowExecution) -> JobId:
    return JobId(run.id.removeprefix(ids.job_workflow("")))


def _names(run: WorkflowExecution) -> set[str]:
    return {_id(run), run.typed_search_attributes.get(Attributes.JOB) or ""}
