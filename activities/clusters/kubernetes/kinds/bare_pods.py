"""Jobs of pods without controller, which are grouped by their labels; there is no other object.

The owner of such a pod creates it again. A restart stores the pods as PodTemplates: there is no other place that outlives our
processes.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.devices import GIVEN
from activities.clusters.kubernetes.kind import MANAGER, Kind, Places, PodAccess, Right, Template, Workload
from activities.clusters.kubernetes.missing_rank import is_backup
from activities.clusters.kubernetes.objects import as_its_pods_say
from activities.clusters.kubernetes.pod_objects import placed, startable
from activities.clusters.kubernetes.pod_operations import side_by_side
from activities.clusters.kubernetes.pod_ownership import ByNobody
from activities.clusters.kubernetes.restarting import ByOurHand
from rekindle.errors import BadInput, Conflict, NotFound
from rekindle.model import keys
from rekindle.model.cluster import JobObject
from rekindle.model.job import Trait
from rekindle.model.own_annotations import count_of
from rekindle.model.sizes import LONGEST_LABEL

BARE_ID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\.[-A-Za-z0-9_.]*[A-Za-z0-9]")
"""Pattern of the id of such a job: the namespace of its pods, a dot, and a word that their owner chose."""

OF_POD = "rekindle.io/pod-uid"
"""Annotation of a stored PodTemplate: UID of its pod."""


@dataclass(frozen=True)
class FromWhatTheyWere(ByOurHand):
    async def prepare(self, ops: PodAccess, job: Workload, pods: Sequence[Object], grace_seconds: int) -> None:
        known = {template["metadata"]["name"]: template for template in await _templates(ops, job)}
        own = [pod for pod in pods if not is_backup(pod)]
        await side_by_side(_remember(ops, job, pod, known.get(pod["metadata"]["name"])) for pod in own)

    async def make(self, ops: PodAccess, job: Workload, there: Sequence[Object], generation: str, places: Places) -> list[Object]:
        path, templates = _templates_path(job), await _templates(ops, job)
        if not templates and not there:
            raise NotFound(f"nothing is known of the pods of job {job.name}: neither they nor their templates are there")
        pods = await ops.create_all(job, [brought_back(template, generation, places) for template in templates])
        for template in templates:
            await ops.api.delete(f"{path}/{template['metadata']['name']}", template["metadata"]["uid"])
        return list({pod["metadata"]["uid"]: pod for pod in [*there, *pods]}.values())


async def _remember(ops: PodAccess, job: Workload, pod: Object, before: Object | None) -> None:
    """Stores a PodTemplate of the pod.

    Replaces the template of an unfinished restart, if the owner has created another pod since.
    """
    path = _templates_path(job)
    if before:
        if before["metadata"].get("annotations", {}).get(OF_POD) == pod["metadata"]["uid"]:
            return
        await ops.api.delete(f"{path}/{before['metadata']['name']}", before["metadata"]["uid"])
    with suppress(Conflict):
        await ops.api.create(path, remembered(pod))


async def _templates(ops: PodAccess, job: Workload) -> list[Object]:
    return (await ops.api.list(_templates_path(job), labelSelector=f"{keys.JOB_ID}={job.uid}")).items


def _templates_path(job: Workload) -> str:
    return f"/api/v1/namespaces/{job.namespace}/podtemplates"


def remembered(pod: Object) -> Object:
    """Returns a PodTemplate with everything that a restart needs of a pod without controller.

    It is kept while there is no pod.
    """
    metadata = pod["metadata"]
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key not in GIVEN}
    kept = {"labels": metadata.get("labels", {}), "annotations": annotations}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": metadata["name"], **kept, "annotations": {**annotations, OF_POD: metadata["uid"]}},
        "template": {"metadata": kept, "spec": startable(pod["spec"], {}, ()) | {"affinity": pod["spec"].get("affinity", {})}},
    }


def brought_back(template: Object, generation: str, places: Places) -> Object:
    """Returns the pod of a template, in the new generation."""
    own = template["template"]["metadata"]
    spec = template["template"]["spec"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": template["metadata"]["name"],
            "labels": {**own.get("labels", {}), keys.GENERATION: generation},
            "annotations": own.get("annotations", {}),
        },
        "spec": {**spec, "affinity": placed(spec.get("affinity", {}), places.avoid, shun_nodes=places.shun)},
    }


# ---- the job that they are together


def bare_job(namespace: str, uid: str, pods: Sequence[Object]) -> Workload:
    """Returns the job that these pods form; its object is derived from that of rank 0.

    Args:
        pods: at least one, checked; pods, or the templates that a restart left of them.
    """
    workers = [pod for pod in pods if pod["metadata"].get("labels", {}).get(keys.REPLICA_TYPE) != MANAGER] or pods
    speaker = min(
        workers, key=lambda pod: (pod["metadata"].get("annotations", {}).get(keys.RANK_INDEX, ""), pod["metadata"]["name"])
    )
    own = speaker["metadata"]
    labels, annotations = own.get("labels", {}), own.get("annotations", {})
    said = annotations.get(keys.PODS, "")
    metadata = {
        "name": labels.get(keys.BARE_JOB_NAME) or own["name"],
        "namespace": namespace,
        "uid": uid,
        "labels": labels,
        "annotations": annotations,
        "resourceVersion": str(max(int(pod["metadata"].get("resourceVersion") or 0) for pod in pods)),
        "creationTimestamp": min(str(pod["metadata"].get("creationTimestamp") or "") for pod in pods) or None,
    }
    template = {"spec": speaker["spec"] if "spec" in speaker else speaker["template"]["spec"]}
    spec: Object = {"pods": count_of(said) or len(workers), "template": template}
    done = {pod["metadata"]["name"] for pod in workers if pod.get("status", {}).get("phase") == "Succeeded"}
    phase = {"phase": "Succeeded"} if len(done) >= spec["pods"] else {}
    return Workload(BARE, {"metadata": metadata, "spec": spec, "status": {"speaker": own["name"], **phase}})


def is_bare(pod: Object) -> bool:
    """Returns whether a pod names its job in its namespace, and has no owner."""
    metadata = pod["metadata"]
    return _says_its_job(metadata) and metadata["labels"][keys.JOB_ID].startswith(f"{metadata['namespace']}.")


def refuse_misnamed(pod: Object) -> None:
    """Checks the job's name on a pod without owner.

    Raises:
        BadInput: the name could be that of a job in another namespace.
    """
    metadata = pod["metadata"]
    if _says_its_job(metadata) and not is_bare(pod):
        said, namespace = metadata["labels"][keys.JOB_ID], metadata["namespace"]
        raise BadInput(
            f"metadata.labels.{keys.JOB_ID}: {said!r} is not accepted for a pod without a controller, begin it with its "
            f"namespace and a dot, such as {f'{namespace}.{said}'[:LONGEST_LABEL]!r}"
        )


def _says_its_job(metadata: Object) -> bool:
    return {keys.JOB_ID, keys.BARE_JOB_NAME} <= metadata.get("labels", {}).keys() and not metadata.get("ownerReferences")


def _read(job: Workload) -> JobObject:
    if not job.annotation(keys.PODS).isdecimal():
        raise BadInput(
            f"metadata.annotations.{keys.PODS}: missing on pods without a controller: the number of pods that have ranks"
        )
    return as_its_pods_say(job)


def _speaker(job: Workload) -> list[tuple[str, str]]:
    return [(f"{job.kind.path(job.namespace)}/{job.object['status']['speaker']}", "")]


BARE = Kind(
    name="Pods",
    api="/api/v1",
    plural="pods",
    pod_label=keys.JOB_ID,
    shape=schemas.Job[schemas.Loose],
    templates=lambda spec: [Template(spec["template"], int(spec["pods"]))],
    read=_read,
    restart=FromWhatTheyWere(),
    count=ByNobody(),
    traits=(Trait.NO_STANDBYS, Trait.FIRST_WORD_HOLDS),
    is_ours=True,
    has_object=False,
    written_to=_speaker,
    rights=(Right("", "podtemplates", ("list", "create", "delete")),),
    reading=(Right("", "podtemplates", ("list",)),),
)
