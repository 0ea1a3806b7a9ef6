"""HTTP API of the local cluster, served by a Kubernetes on this machine, for `rekindle submit`, `nodes`, `fault` and the demos.

It has the rights of an administrator, which recoveries do not have.
"""

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import TRAINING_JOB
from activities.clusters.kubernetes.objects import job_object_of, node_of, pod_of
from activities.clusters.kubernetes.pod_operations import delete_pod
from activities.clusters.kubernetes.reader import in_scope
from activities.clusters.kubernetes.watch import NODES
from rekindle.errors import Conflict, NotFound
from rekindle.model import keys
from rekindle.model.cluster import ClusterEvent, Condition, JobObject, JobObjectStatus, NodePatch
from simulators.kubernetes.kubelet import LOST
from simulators.local_cluster.environment import LOOPBACK, free_port, job_directory
from simulators.local_cluster.http import body_of, list_of, number_of, one, piece_of, refusals, start_of_tail

ACCELERATOR = "huawei.com/Ascend910"

IMAGE = "process"
"""Image of all pods: pods are processes here, and nothing is pulled."""

CONFLICTS = 10


def application(api: Api, state_dir: Path, pod_logs: Path) -> web.Application:
    """Returns the application with its routes; some routes of the local cluster have no meaning here and are missing."""
    console = Console(api, state_dir, pod_logs)
    app = web.Application(middlewares=[refusals])
    app.add_routes(
        [
            web.get("/jobs", console.list_jobs),
            web.post("/jobs", console.submit),
            web.get("/jobs/{job}", console.get_job),
            web.delete("/jobs/{job}", console.delete_job),
            web.get("/pods", console.list_pods),
            web.get("/pods/{pod}/logs", console.logs),
            web.get("/nodes", console.list_nodes),
            web.get("/nodes/{node}", console.get_node),
            web.patch("/nodes/{node}", console.patch_node),
            web.get("/events", console.list_events),
        ]
    )
    return app


class Console:
    def __init__(self, api: Api, state_dir: Path, pod_logs: Path) -> None:
        self._api, self._state_dir, self._pod_logs = api, state_dir, pod_logs

    # ---- jobs, by UID or by name

    async def list_jobs(self, _: web.Request) -> web.Response:
        return list_of([_read(job) for job in await self._jobs()])

    async def get_job(self, request: web.Request) -> web.Response:
        return one(_read(await self._job(request.match_info["job"])))

    async def submit(self, request: web.Request) -> web.Response:
        job = await body_of(request, JobObject)
        metadata = job.metadata
        body = {
            "apiVersion": TRAINING_JOB.api_version,
            "kind": TRAINING_JOB.name,
            "metadata": {"name": metadata.name, "labels": metadata.labels, "annotations": metadata.annotations},
            "spec": self._spec(job),
        }
        return one(_read(Workload(TRAINING_JOB, await self._api.create(TRAINING_JOB.path(metadata.namespace), body))), 201)

    def _spec(self, job: JobObject) -> Object:
        """Returns the spec of a job, with the environment that the local cluster itself would give its pods."""
        spec = job.spec
        here = {
            keys.ENV_MASTER_ADDR: LOOPBACK,
            keys.ENV_MASTER_PORT: str(free_port(())),
            keys.ENV_JOB_DIR: str(job_directory(self._state_dir, job.metadata.name, uuid.uuid4().hex)),
        }
        return {
            "pods": spec.pods,
            "ranksPerPod": spec.ranks_per_pod,
            "command": list(spec.template.command),
            "env": {**here, **spec.template.env},
            "accelerators": spec.template.accelerators,
            "manager": list(spec.manager.command) if spec.manager else None,
            "trainingSide": spec.training_side,
            "standbys": spec.standbys,
            "limits": spec.limits,
            "kubernetes": {"image": IMAGE},
        }

    async def delete_job(self, request: web.Request) -> web.Response:
        job = await self._job(request.match_info["job"])
        grace = number_of(request, "grace")
        await self._api.delete(job.path, job.uid)
        if grace is not None:
            for pod in await self._pods(job):
                await delete_pod(self._api, pod, grace)
        return one(_read(job))

    async def _jobs(self) -> list[Workload]:
        return [Workload(TRAINING_JOB, item) for item in (await self._api.list(TRAINING_JOB.path())).items]

    async def _job(self, reference: str) -> Workload:
        for job in await self._jobs():
            if reference in (job.uid, job.name):
                return job
        raise NotFound(f"no job {reference}")

    # ---- pods and nodes

    async def list_pods(self, request: web.Request) -> web.Response:
        wanted = request.query.get("job")
        jobs = [job for job in await self._jobs() if wanted in (None, job.uid)]
        return list_of([pod_of(pod, job, (keys.RANK_INDEX,)) for job in jobs for pod in await self._pods(job)])

    async def _pods(self, job: Workload) -> list[Object]:
        return (await self._api.list(in_scope("pods", ""), labelSelector=f"{keys.JOB_ID}={job.uid}")).items

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """Sends the existing log. Following a log until its pod ends works on the local cluster only."""
        found = sorted(self._pod_logs.glob(f"*_{request.match_info['pod']}.*.log"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise NotFound(f"no pod {request.match_info['pod']} has run here")
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        start = start_of_tail(found[-1], number_of(request, "tail"))
        await response.prepare(request)
        while piece := piece_of(found[-1], start):
            start += len(piece)
            await response.write(piece)
        return response

    async def list_nodes(self, _: web.Request) -> web.Response:
        return list_of([node_of(node) for node in (await self._api.list(NODES)).items])

    async def get_node(self, request: web.Request) -> web.Response:
        return one(node_of(await self._api.get(f"{NODES}/{request.match_info['node']}")))

    async def patch_node(self, request: web.Request) -> web.Response:
        """Patches a node as its daemons would. A condition Ready that is not True takes the node's kubelet away."""
        path = f"{NODES}/{request.match_info['node']}"
        patch = await body_of(request, NodePatch)
        node = await self._api.get(path)
        if patch.accelerators is not None:
            amounts = {ACCELERATOR: str(patch.accelerators)}
            node = await self._api.patch(f"{path}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
        if patch.annotations:
            node = await self._api.patch(path, {"metadata": {"annotations": patch.annotations}})
        if patch.unschedulable is not None:
            node = await self._api.patch(path, {"spec": {"unschedulable": patch.unschedulable or None}})
        for condition in patch.conditions:
            if condition.type == "Ready":
                lost = None if condition.status == "True" else condition.message or "taken down"
                node = await self._api.patch(path, {"metadata": {"annotations": {LOST: lost}}})
            else:
                node = await self._with_condition(path, condition)
        return one(node_of(node))

    async def _with_condition(self, path: str, condition: Condition) -> Object:
        for _ in range(CONFLICTS):
            node = await self._api.get(path)
            said = json.loads(condition.model_dump_json(by_alias=True, exclude_none=True))
            known: Object = next((old for old in node["status"]["conditions"] if old["type"] == condition.type), {})
            if known.get("status") != condition.status:
                said["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            others = [old for old in node["status"]["conditions"] if old["type"] != condition.type]
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            try:
                status = {"conditions": [*others, {**known, **said}]}
                return await self._api.patch(f"{path}/status", {"metadata": version, "status": status})
            except Conflict:
                continue
        raise Conflict(f"{path} is written by another client all the time")

    async def list_events(self, request: web.Request) -> web.Response:
        name = request.query.get("name")
        events = (await self._api.list("/api/v1/events")).items
        return list_of([_event(event) for event in events if name in (None, event["involvedObject"]["name"])])


def _read(job: Workload) -> JobObject:
    environment: dict[str, Any] = job.object["spec"].get("env", {})
    read = job_object_of(job, observe=False)
    status = JobObjectStatus(
        phase=read.status.phase,
        master_port=int(environment.get(keys.ENV_MASTER_PORT, 0)),
        directory=environment.get(keys.ENV_JOB_DIR, ""),
    )
    return read.model_copy(update={"status": status})


def _event(event: Object) -> ClusterEvent:
    about = event["involvedObject"]
    return ClusterEvent(
        name=about["name"],
        kind=about["kind"],
        reason=event.get("reason") or "",
        message=event.get("message") or "",
        type="Warning" if event.get("type") == "Warning" else "Normal",
    )
