"""TrainingJob, our own kind: `workers.operator` creates a job's first pods, and recoveries create all later ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.kind import Kind, Places, PodAccess, Template, Workload
from activities.clusters.kubernetes.missing_rank import LostRank
from activities.clusters.kubernetes.objects import metadata_of
from activities.clusters.kubernetes.pod_objects import ROLE_FIELDS, fields, placed
from activities.clusters.kubernetes.pod_operations import generation_of
from activities.clusters.kubernetes.pod_ownership import ByNobody
from activities.clusters.kubernetes.restarting import ByOurHand
from activities.clusters.kubernetes.schemas import reading
from rekindle.errors import BadInput, NotFound
from rekindle.model import keys, manifest
from rekindle.model.cluster import JobObject, PodRole
from rekindle.model.manifest import Kubernetes, Manifest
from rekindle.model.training_side import TrainingSide
from rekindle.settings import Settings

FIELDS = {
    keys.ENV_POD_IP: "status.podIP",
    keys.ENV_POD_NAME: "metadata.name",
    keys.ENV_POD_UID: "metadata.uid",
    keys.ENV_NODE: "spec.nodeName",
    **ROLE_FIELDS,
    keys.ENV_GENERATION: f"metadata.labels['{keys.GENERATION}']",
}
"""Field paths of environment variables with facts about the pod, by variable."""

TOKEN_VOLUME = "rekindle-token"

MASTER_PORT = 29500


@dataclass(frozen=True)
class FromItsObject(ByOurHand):
    async def make(self, ops: PodAccess, job: Workload, there: Sequence[Object], generation: str, places: Places) -> list[Object]:
        return await ops.create_all(job, pods_of_training_job(job, generation, places, ops.settings.gateway_address))


def _templates(spec: Object) -> list[Template]:
    """Returns the template of the workers, only with the parts that concern nodes and the start of pods."""
    return [Template({"spec": spec.get("kubernetes", {}).get("pod", {})}, int(spec["pods"]))]


def _read(job: Workload) -> JobObject:
    metadata = {key: job.metadata[key] for key in ("name", "namespace", "labels", "annotations") if key in job.metadata}
    read = manifest.read(
        {"apiVersion": "rekindle.io/v1", "kind": "TrainingJob", "metadata": metadata, "spec": job.object["spec"]}
    )
    meta = metadata_of(job.object).model_copy(update={"annotations": read.metadata.annotations})
    return read.model_copy(update={"metadata": meta})


def _unseen(job: Workload, lost: LostRank, settings: Settings) -> Object:
    """Returns the pod of a lost rank, in the generation of the youngest other pod. Raises NotFound if no other pod is left."""
    if not lost.others:
        raise NotFound(f"no pod of job {job.name} is left: the whole job has to start again")
    youngest = max(lost.others, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    wanted = pods_of_training_job(job, generation_of(youngest), Places(), settings.gateway_address)
    return next(pod for pod in wanted if pod["metadata"]["annotations"].get(keys.RANK_INDEX) == str(lost.rank))


def _said_side(job: Workload) -> object:
    return job.object.get("spec", {}).get("trainingSide")


TRAINING_JOB = Kind(
    name="TrainingJob",
    api="/apis/rekindle.io/v1",
    plural="trainingjobs",
    pod_label=keys.JOB_ID,
    shape=schemas.Job[schemas.TrainingJob],
    templates=_templates,
    read=_read,
    restart=FromItsObject(),
    count=ByNobody(_unseen),
    said_side=_said_side,
    is_ours=True,
    is_queued=False,
)


# ---- its pods


def pods_of_training_job(job: Workload, generation: str, places: Places, gateway: str) -> list[Object]:
    """Returns the pods of the job: its manager, and one pod for each pod rank.

    Raises:
        BadInput: the image is missing, or a field is wrong.
    """
    document = {"apiVersion": "rekindle.io/v1", "kind": "TrainingJob", "metadata": {"name": job.name}, "spec": job.object["spec"]}
    with reading("spec"):
        spec = Manifest.model_validate(document).spec
    if not spec.kubernetes.image:
        raise BadInput("spec.kubernetes.image: missing, pods on Kubernetes are started from an image")
    host, port = gateway.rsplit(":", 1)
    contract = {
        keys.ENV_JOB_ID: job.uid,
        keys.ENV_GATEWAY_HOST: host,
        keys.ENV_GATEWAY_PORT: port,
        keys.ENV_MASTER_ADDR: f"{job.name}-manager.{job.namespace}.svc",
        keys.ENV_MASTER_PORT: str(MASTER_PORT),
    }
    environment = [
        *({"name": name, "value": value} for name, value in {**contract, **spec.env}.items()),
        *fields(FIELDS, spec.env),
    ]
    affinity = placed(spec.kubernetes.pod.get("affinity", {}), places.avoid, shun_nodes=places.shun)
    make = _Maker(job, generation, affinity, spec.kubernetes, environment)
    amount = spec.accelerators_per_pod
    resources = {"limits": {spec.kubernetes.accelerator_resource: str(amount)}} if amount else {}
    managers = [make.pod(PodRole.MANAGER, 0, make.spec(spec.manager_command, {}))] if spec.manager_command else []
    if spec.training_side is TrainingSide.REKINDLE:
        managers = [_with_token(pod) for pod in managers]
    worker = make.spec(spec.command, resources)  # shared by all pods: thousands of copies of a megabyte are gigabytes
    return managers + [make.pod(PodRole.WORKER, rank, worker) for rank in range(spec.pods)]


class _Maker:
    """Builds pods of one job and generation from the parts that they share."""

    def __init__(self, job: Workload, generation: str, affinity: Object, own: Kubernetes, environment: list[Object]) -> None:
        self._job, self._generation, self._affinity, self._own, self._environment = job, generation, affinity, own, environment

    def spec(self, command: Sequence[str], resources: Object) -> Object:
        container: dict[str, Any] = {
            "name": "training",
            "image": self._own.image,
            "command": list(command),
            **self._own.container,
        }
        own = container.get("env", ())  # such as a key of a Secret, which a manifest can express only so
        named = {entry["name"] for entry in own}
        container["env"] = [*(entry for entry in self._environment if entry["name"] not in named), *own]
        container["resources"] = _merged(container.get("resources", {}), resources)
        return {"restartPolicy": "Never", **self._own.pod, "affinity": self._affinity, "containers": [container]}

    def pod(self, role: PodRole, index: int, spec: Object) -> Object:
        job = self._job
        rank = {keys.RANK_INDEX: str(index)} if role is PodRole.WORKER else {}
        made_of = {keys.OBJECT_GENERATION: str(job.metadata.get("generation", ""))}
        labels = {keys.JOB_ID: job.uid, keys.BARE_JOB_NAME: job.name, keys.REPLICA_TYPE: role, keys.GENERATION: self._generation}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{job.name}-{role}-{index}",
                "namespace": job.namespace,
                "labels": labels,
                "annotations": {**rank, **made_of},
                "ownerReferences": [{**job.reference, "controller": True}],
            },
            "spec": spec,
        }


def _with_token(pod: Object) -> Object:
    """Returns the pod with a mounted token by which the gateway identifies it.

    A volume that the owner has mounted at that path is kept instead.
    """
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    mounts, volumes = container.get("volumeMounts", []), spec.get("volumes", [])
    if any(mount.get("mountPath", "").rstrip("/") == keys.TOKEN_PATH for mount in mounts):
        return pod
    source = {"audience": keys.TOKEN_AUDIENCE, "expirationSeconds": keys.TOKEN_SECONDS, "path": keys.TOKEN_NAME}
    volume = {"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": source}]}}
    file = {"name": keys.ENV_TOKEN_FILE, "value": f"{keys.TOKEN_PATH}/{keys.TOKEN_NAME}"}
    own = {
        **container,
        "env": [*container["env"], *([] if any(entry["name"] == file["name"] for entry in container["env"]) else [file])],
        "volumeMounts": [*mounts, {"name": TOKEN_VOLUME, "mountPath": keys.TOKEN_PATH, "readOnly": True}],
    }
    return {**pod, "spec": {**spec, "volumes": [*volumes, volume], "containers": [own]}}


def _merged(one: Object, other: Object) -> Object:
    """Returns both merged: the fields of `other` are added, and fields that it does not have, such as a list of claims, stay as
    they are."""
    return {**one, **{key: {**one.get(key, {}), **value} for key, value in other.items()}}
