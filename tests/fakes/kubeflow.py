"""Simulated controllers of JobSets, PyTorchJobs and TrainJobs over the real API server, for the jobs of one namespace.

A JobSet's child Jobs are real ones, and the real controller creates their pods. Keys are spelled out again here, so that a
misspelling of ours is noticed. What their webhooks would refuse fails at once. Not simulated: policies for failure and startup,
and restarts of failed replicas. Sources: jobset (`jobset_controller.go`, `jobset_webhook.go`), training-operator
(`common/job.go`, `common/pod.go`, `pytorchjob_controller.go`, `pytorch/envvar.go`, `webhooks/pytorch`), trainer
(`plugins/torch/torch.go`, `plugins/jobset/{jobset,builder}.go`).
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from typing import Any

from activities.clusters.api_server import Object
from rekindle.errors import Conflict, Invalid
from tests.fakes.controller import Controller, is_terminating, labels_of
from tests.kubernetes.world.control_plane import ACCELERATOR, Namespace

JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2"
KUBEFLOW = "/apis/kubeflow.org/v1"
TRAINER = "/apis/trainer.kubeflow.org/v1alpha1"

SLEEP = ("sleep", "1000")


def job_sets_path(namespace: str, name: str = "") -> str:
    return f"{JOB_SETS}/namespaces/{namespace}/jobsets" + (f"/{name}" if name else "")


def pytorch_jobs_path(namespace: str, name: str = "") -> str:
    return f"{KUBEFLOW}/namespaces/{namespace}/pytorchjobs" + (f"/{name}" if name else "")


def train_jobs_path(namespace: str, name: str = "") -> str:
    return f"{TRAINER}/namespaces/{namespace}/trainjobs" + (f"/{name}" if name else "")


# ---- jobs


def pod_template(container: Object | None = None, labels: Mapping[str, str] | None = None) -> Object:
    """Args:
    container: fields that differ from a container that sleeps.
    """
    own = {"name": "pytorch", "image": "none", "command": list(SLEEP), **(container or {})}
    spec = {"containers": [own], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return {"metadata": {"labels": dict(labels or {})}, "spec": spec}


def replicated_job(name: str, template: Object, *, replicas: int = 1, pods: int = 1, **spec: Any) -> Object:
    """Returns the part of a JobSet with some Jobs of some pods each; a failed pod fails its Job."""
    job = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "backoffLimit": 0, **spec}
    return {"name": name, "replicas": replicas, "template": {"spec": {**job, "template": template}}}


async def submit(path: Callable[[str], str], namespace: Namespace, metadata: Object, spec: Object) -> Object:
    """Creates a job called `demo`."""
    return await namespace.api.create(
        path(namespace.name), {**KINDS[path], "metadata": {"name": "demo", **metadata}, "spec": spec}
    )


async def submit_job_set(namespace: Namespace, metadata: Object, container: Object | None = None) -> Object:
    """Creates a JobSet with two Jobs of two pods."""
    workers = replicated_job("workers", pod_template(container), replicas=2, pods=2)
    return await submit(job_sets_path, namespace, metadata, {"replicatedJobs": [workers]})


async def submit_pytorch_job(namespace: Namespace, metadata: Object, container: Object | None = None) -> Object:
    """Creates a PyTorchJob with a Master and three Workers."""
    replicas = {"Worker": 3, "Master": 1}
    specs = {
        name: {"replicas": count, "restartPolicy": "Never", "template": pod_template(container)}
        for name, count in replicas.items()
    }
    return await submit(pytorch_jobs_path, namespace, metadata, {"pytorchReplicaSpecs": specs})


async def submit_train_job(namespace: Namespace, metadata: Object, container: Object | None = None) -> Object:
    """Creates a TrainJob with four nodes, of a simulated runtime."""
    given = dict(container or {})
    trainer = {"numNodes": 4, "resourcesPerNode": given.pop("resources", {}), **given}
    return await submit(train_jobs_path, namespace, metadata, train_spec(trainer))


def train_spec(trainer: Object, **more: Any) -> Object:
    """Args:
    more: a runtime called `marked` has a trainer of another name, and marks it.
    """
    return {"runtimeRef": {"name": "played"}, "trainer": trainer, **more}


KINDS: dict[Callable[..., str], Object] = {
    job_sets_path: {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"},
    pytorch_jobs_path: {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"},
    train_jobs_path: {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"},
}

SUBMIT: dict[str, Callable[..., Coroutine[Any, Any, Object]]] = {
    "JobSet": submit_job_set,
    "PyTorchJob": submit_pytorch_job,
    "TrainJob": submit_train_job,
}
"""Functions that create a job of four pods, by kind."""

PATHS = {"JobSet": job_sets_path, "PyTorchJob": pytorch_jobs_path, "TrainJob": train_jobs_path}


# ---- controllers


class JobController(Controller):
    """Controller that serves the jobs of one collection, one after the other, until they end."""

    def __init__(self, namespace: Namespace, jobs: str, made: str) -> None:
        """Args:
        made: path of what it makes.
        """
        super().__init__(namespace, jobs, made)
        self._jobs, self._made = jobs, made

    async def round(self) -> None:
        for job in self.known(self._jobs):
            if not is_terminating(job) and not _holds(job, "Failed") and not _holds(job, *DONE):
                await self.serve(job)

    @abstractmethod
    async def serve(self, job: Object) -> None:
        """Creates the missing objects of a job."""

    def made_by(self, job: Object) -> list[Object]:
        """Returns the objects that the job controls."""
        uid = job["metadata"]["uid"]

        def owns(thing: Object) -> bool:
            return any(one["uid"] == uid and one.get("controller") for one in thing["metadata"].get("ownerReferences", ()))

        return [thing for thing in self.known(self._made) if owns(thing)]

    async def make(self, body: Object) -> None:
        self.remember(self._made, await self.api.create(self._made, body))

    async def change(self, thing: Object, patch: Object, part: str = "") -> None:
        """Args:
        part: `/status`.
        """
        name = thing["metadata"]["name"]
        self.remember(self._made, await self.api.patch(f"{self._made}/{name}{part}", patch))

    async def tell(self, job: Object, kind: str, status: str, message: str = "") -> None:
        """Sets a condition of a job."""
        conditions = job.get("status", {}).get("conditions", [])
        if (kind, status) not in {(one["type"], one["status"]) for one in conditions}:
            told = {"type": kind, "status": status, "reason": f"{job['kind']}{kind}", "message": message}
            body = {"status": {"conditions": [*(one for one in conditions if one["type"] != kind), told]}}
            path = f"{self._jobs}/{job['metadata']['name']}/status"
            self.remember(self._jobs, await self.api.patch(path, body))

    async def tell_suspended(self, job: Object, *, suspended: bool) -> None:
        """Sets the condition Suspended, except on a job that was never suspended."""
        if suspended or _holds(job, "Suspended"):
            await self.tell(job, "Suspended", str(suspended))


DONE = ("Completed", "Complete", "Succeeded")


class JobSets(JobController):
    """Creates the Jobs of JobSets. When it resumes one, it copies labels, annotations and node selectors of its templates, but no
    affinity, which its webhook refuses to change."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, job_sets_path(namespace.name), namespace.path("jobs"))

    async def serve(self, job: Object) -> None:
        children = self.made_by(job)
        if failed := [child for child in children if _holds(child, "Failed")]:
            first = failed[0]["metadata"]["name"]
            message = f"jobset failed due to one or more job failures (first failed job: {first})"
            await self.tell(job, "Failed", "True", message)
            return
        suspended = bool(job["spec"].get("suspend"))
        names = {child["metadata"]["name"] for child in children}
        for body in _children_of(job):
            if body["metadata"]["name"] not in names:
                await self.make(body)
        for child in children:
            if suspended and not child["spec"].get("suspend"):
                await self.change(child, {"spec": {"suspend": True}})
            elif not suspended and child["spec"].get("suspend"):
                await self._resume(job, child)
        counted = job["spec"].get("successPolicy", {}).get("targetReplicatedJobs")
        part = "jobset.sigs.k8s.io/replicatedjob-name"
        judged = [child for child in children if not counted or labels_of(child)[part] in counted]
        if judged and all(_holds(child, "Complete") for child in judged):
            await self.tell(job, "Completed", "True")
        await self.tell_suspended(job, suspended=suspended)

    async def _resume(self, job: Object, child: Object) -> None:
        if child.get("status", {}).get("startTime"):
            await self.change(child, {"status": {"startTime": None}}, "/status")
        name = labels_of(child)["jobset.sigs.k8s.io/replicatedjob-name"]
        (own,) = (one["template"]["spec"]["template"] for one in job["spec"]["replicatedJobs"] if one["name"] == name)
        metadata = {key: own.get("metadata", {}).get(key, {}) for key in ("labels", "annotations")}
        template = {"metadata": metadata, "spec": {"nodeSelector": own["spec"].get("nodeSelector", {})}}
        try:
            await self.change(child, {"spec": {"suspend": False, "template": template}})
        except Invalid as error:
            raise Conflict(f"the Job is not suspended yet, and asked again: {error}") from error


def _children_of(job: Object) -> Iterator[Object]:
    """Yields the Jobs of a JobSet."""
    before = 0
    for replicated in job["spec"]["replicatedJobs"]:
        for index in range(replicated["replicas"]):
            spec = {"completionMode": "Indexed", **deepcopy(replicated["template"]["spec"])}
            spec["template"]["spec"] |= {"subdomain": job["metadata"]["name"]}
            marks = {
                "jobset.sigs.k8s.io/jobset-name": job["metadata"]["name"],
                "jobset.sigs.k8s.io/jobset-uid": job["metadata"]["uid"],
                "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
                "jobset.sigs.k8s.io/replicatedjob-replicas": str(replicated["replicas"]),
                "jobset.sigs.k8s.io/restart-attempt": "0",
                "jobset.sigs.k8s.io/job-index": str(index),
                "jobset.sigs.k8s.io/job-global-index": str(before + index),
            }
            own = spec["template"].setdefault("metadata", {})
            for key in ("labels", "annotations"):
                own[key] = {**own.get(key, {}), **marks}
            name = f"{job['metadata']['name']}-{replicated['name']}-{index}"
            labels = {**replicated["template"].get("metadata", {}).get("labels", {}), **marks}
            metadata = {"name": name, "labels": labels, "annotations": marks, "ownerReferences": [_owner(job)]}
            yield {"metadata": metadata, "spec": {**spec, "suspend": bool(job["spec"].get("suspend"))}}
        before += replicated["replicas"]


class PyTorchJobs(JobController):
    """Creates the pods of PyTorchJobs. It counts pods by labels alone, regardless of their owner. Two pods of one index are
    reported and left alone."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, pytorch_jobs_path(namespace.name), namespace.path("pods"))
        self.complaints: set[str] = set()
        """Names of pods that share their index with another pod."""

    def _counted(self, job: Object) -> list[Object]:
        own = {
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            "training.kubeflow.org/job-name": job["metadata"]["name"],
        }
        return [pod for pod in self.known(self._made) if own.items() <= labels_of(pod).items()]

    async def serve(self, job: Object) -> None:
        if problem := refused_pytorch_job(job):
            await self.tell(job, "Failed", "True", problem)
            return
        suspended = bool(job["spec"].get("runPolicy", {}).get("suspend"))
        if suspended:
            for pod in self._counted(job):
                if not is_terminating(pod):
                    await self.api.delete(f"{self._made}/{pod['metadata']['name']}", pod["metadata"]["uid"])
        else:
            for kind, replicas in job["spec"]["pytorchReplicaSpecs"].items():
                await self._fill(job, kind, replicas)
        await self.tell_suspended(job, suspended=suspended)
        if any(_is_master(pod) and pod["status"].get("phase") == "Succeeded" for pod in self._counted(job)):
            await self.tell(job, "Succeeded", "True")

    async def _fill(self, job: Object, kind: str, replicas: Object) -> None:
        own = [pod for pod in self._counted(job) if labels_of(pod)["training.kubeflow.org/replica-type"] == kind.lower()]
        for index in range(replicas["replicas"]):
            pods = [pod for pod in own if labels_of(pod)["training.kubeflow.org/replica-index"] == str(index)]
            if not pods:
                await self.make(_replica(job, kind, index, replicas["template"]))
            elif len(pods) > 1:
                self.complaints |= {pod["metadata"]["name"] for pod in pods}
            elif pods[0]["status"].get("phase") == "Failed" and not is_terminating(pods[0]):
                await self.tell(job, "Failed", "True", f"PyTorchJob demo is failed because 1 {kind} replica(s) failed.")


def refused_pytorch_job(job: Object) -> str:
    """Returns the message of the operator's webhook; empty: it accepts the job."""
    for kind, replicas in job["spec"]["pytorchReplicaSpecs"].items():
        where = f"spec.pytorchReplicaSpecs[{kind}]"
        if kind not in ("Master", "Worker"):
            return f"{where}: is not valid, must be Master or Worker"
        if kind == "Master" and replicas["replicas"] != 1:
            return f"{where}.replicas: must be 1"
        containers = replicas["template"]["spec"]["containers"]
        if not all(one.get("image") for one in containers):
            return f"{where}.template.spec.containers.image: must be required"
        if not any(one["name"] == "pytorch" for one in containers):
            return f"{where}.template.spec.containers: must have at least one container with name pytorch"
    return ""


def _is_master(pod: Object) -> bool:
    return labels_of(pod)["training.kubeflow.org/replica-type"] == "master"


def _replica(job: Object, kind: str, index: int, template: Object) -> Object:
    body = deepcopy(template)
    name = f"{job['metadata']['name']}-{kind.lower()}-{index}"
    labels = {
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": job["metadata"]["name"],
        "training.kubeflow.org/replica-type": kind.lower(),
        "training.kubeflow.org/replica-index": str(index),
        **({"training.kubeflow.org/job-role": "master"} if kind == "Master" else {}),
    }
    for container in body["spec"]["containers"]:
        container["env"] = [*container.get("env", ()), *_pytorch_environment(job, kind, index)]
    metadata = {**body.get("metadata", {}), "name": name, "ownerReferences": [_owner(job)]}
    said = job["spec"]["pytorchReplicaSpecs"][kind].get("restartPolicy", "Never")
    spec = {**body["spec"], "restartPolicy": "Never" if said == "ExitCode" else said}
    return {"metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels}}, "spec": spec}


def _pytorch_environment(job: Object, kind: str, index: int) -> list[Object]:
    """Returns the variables that the operator appends to those of the template, in its order."""
    specs, each = job["spec"]["pytorchReplicaSpecs"], job["spec"].get("nprocPerNode")
    pods = sum(one["replicas"] for one in specs.values())
    ranks = pods * (int(each) if each and each.isdecimal() else 1)
    variables = {"PYTHONUNBUFFERED": "1"}
    if "Master" in specs:
        master = f"{job['metadata']['name']}-master-0"
        variables |= {"MASTER_PORT": "23456", "PET_MASTER_PORT": "23456", "MASTER_ADDR": master, "PET_MASTER_ADDR": master}
        rank = str(index + (kind == "Worker"))
        variables |= {"WORLD_SIZE": str(ranks), "RANK": rank, "PET_NODE_RANK": rank}
    variables |= ({"PET_NPROC_PER_NODE": each} if each else {}) | {"PET_NNODES": str(pods)}
    return [{"name": name, "value": value} for name, value in variables.items()]


class TrainJobs(JobController):
    """Creates a JobSet for each TrainJob, and changes it while one of the two is suspended."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, train_jobs_path(namespace.name), job_sets_path(namespace.name))

    async def serve(self, job: Object) -> None:
        if problem := refused_train_job(job):
            await self.tell(job, "Failed", "True", problem)
            return
        suspended = bool(job["spec"].get("suspend"))
        made = self.made_by(job)
        if not made:
            await self.make(await self._job_set_of(job, suspended=suspended))
        for job_set in made:
            if suspended != bool(job_set["spec"].get("suspend")):
                await self.change(job_set, {"spec": {"suspend": suspended}})
            for kind, same in (("Completed", "Complete"), ("Failed", "Failed")):
                if _holds(job_set, kind):
                    await self.tell(job, same, "True", _message(job_set, kind))
        await self.tell_suspended(job, suspended=suspended)

    async def _job_set_of(self, job: Object, *, suspended: bool) -> Object:
        if job["spec"]["runtimeRef"].get("kind") != "TrainingRuntime":
            return _of_a_played_runtime(job, suspended=suspended)
        name = job["spec"]["runtimeRef"]["name"]
        runtime = await self.api.get(f"{TRAINER}/namespaces/{self.namespace.name}/trainingruntimes/{name}")
        return _of_runtime(job, runtime, suspended=suspended)


RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def refused_train_job(job: Object) -> str:
    """Returns the message of the trainer's webhook for a job of torch; empty: it accepts the job."""
    said = job["spec"]["trainer"]
    if wrong := sorted({one["name"] for one in said.get("env", ())} & set(RESERVED)):
        return f"spec.trainer.env: must not have reserved envs, invalid envs configured: {wrong}"
    each = said.get("numProcPerNode", 1)
    if not isinstance(each, int) and each not in ("auto", "cpu", "gpu"):
        return "spec.trainer.numProcPerNode: must have an int value or [auto cpu gpu]"
    return ""


def _of_runtime(job: Object, runtime: Object, *, suspended: bool) -> Object:
    """Returns the JobSet that the trainer creates from a runtime for torch."""
    name, said = job["metadata"]["name"], job["spec"]["trainer"]
    spec = {**deepcopy(runtime["spec"]["template"]["spec"]), "suspend": suspended}
    for replicated in spec["replicatedJobs"]:
        labels = replicated["template"].get("metadata", {}).get("labels", {})
        if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") != "trainer":
            continue
        own = replicated["template"]["spec"]
        own |= {"parallelism": said["numNodes"], "completions": said["numNodes"]}
        (container,) = (one for one in own["template"]["spec"]["containers"] if one["name"] == "node")
        container |= {key: said[key] for key in ("image", "command", "args") if key in said}
        container |= {"resources": said["resourcesPerNode"]} if "resourcesPerNode" in said else {}
        resources = said.get("resourcesPerNode")
        each = str(said["numProcPerNode"]) if resources is None or "requests" in resources else "1"
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        added = [
            *said.get("env", ()),
            {"name": "PET_NNODES", "value": str(said["numNodes"])},
            {"name": "PET_NPROC_PER_NODE", "value": each},
            {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
            {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
            {"name": "PET_MASTER_PORT", "value": "29500"},
        ]
        names = {one["name"] for one in added}
        container["env"] = [*(one for one in container.get("env", ()) if one["name"] not in names), *added]
    return {**KINDS[job_sets_path], "metadata": {"name": name, "ownerReferences": [_owner(job)]}, "spec": spec}


def _of_a_played_runtime(job: Object, *, suspended: bool) -> Object:
    """Returns the JobSet of a simulated runtime: the trainer, and an initializer if the job has one."""
    trainer = job["spec"]["trainer"]
    container = {key: trainer[key] for key in ("command", "env") if key in trainer}
    template = pod_template({"name": "node", "resources": trainer["resourcesPerNode"], **container})
    marked = job["spec"]["runtimeRef"]["name"] == "marked"
    jobs = [replicated_job("gpus" if marked else "node", template, pods=trainer["numNodes"])]
    if "dataset" in job["spec"].get("initializer", {}):
        jobs.insert(0, replicated_job("dataset-initializer", pod_template()))
    for one, step in zip(reversed(jobs), ("trainer", "dataset-initializer"), strict=False):
        if marked:
            one["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": step}}
    return {
        **KINDS[job_sets_path],
        "metadata": {"name": job["metadata"]["name"], "ownerReferences": [_owner(job)]},
        "spec": {"replicatedJobs": jobs, "suspend": suspended},
    }


def _owner(job: Object) -> Object:
    metadata = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**owner, "controller": True, "blockOwnerDeletion": True}


def _holds(thing: Object, *kinds: str) -> bool:
    return any(one["type"] in kinds and one["status"] == "True" for one in thing.get("status", {}).get("conditions") or ())


def _message(thing: Object, kind: str) -> str:
    return next(str(one.get("message", "")) for one in thing["status"]["conditions"] if one["type"] == kind)


@asynccontextmanager
async def kubeflow(namespace: Namespace) -> AsyncIterator[Mapping[str, Controller]]:
    """Runs all three controllers, and yields them by the kind that they serve."""
    peers: Sequence[Controller] = (JobSets(namespace), PyTorchJobs(namespace), TrainJobs(namespace))
    async with AsyncExitStack() as stack:
        for peer in peers:
            await stack.enter_async_context(peer)
        yield dict(zip(SUBMIT, peers, strict=True))


def accelerators(count: int) -> Object:
    """Returns the resources of a container."""
    return {"limits": {ACCELERATOR: str(count)}}
