"""Pod objects that we make or change: backups, the pods of our own jobs, and where they may go. Pure; used by `direct.py`."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.devices import GIVEN
from activities.clusters.kubernetes.kinds import (
    BATCH_JOB_NAME,
    COMPLETION_INDEX,
    JOBSET_JOB_INDEX,
    KINDS,
    MANAGER,
    REPLICA_INDEX,
    REPLICATED_JOB,
    Workload,
)
from activities.clusters.kubernetes.queues import GIVES_WAY, STAYS, unassigned
from activities.clusters.kubernetes.shapes import reading
from rekindle.errors import BadInput
from rekindle.model import keys
from rekindle.model.cluster import PodRole
from rekindle.model.job import TrainingSide
from rekindle.model.manifest import Kubernetes, Manifest

BACKUP_OF = "rekindle.io/backup-of"
"""Label of a backup pod: the UID of the pod that it replaces."""

TAKES_OVER = "rekindle.io/takes-over"
"""Annotation of a backup pod: what its job's controller is to find on it, once it counts."""

STANDBY_CLASS = "rekindle-standby"
"""PriorityClass of standbys, as `deploy/base/standbys.yaml` has it: any other pod takes their place."""

OWN_CLASS = "rekindle.io/priority-class"
"""Annotation of a standby: the PriorityClass that its model had, and that clones of it have again."""

FINALIZER = "batch.kubernetes.io/job-tracking"
"""Of the pods of a batch Job, which counts a finished pod by removing it."""

FAILURES_OF_INDEX = "batch.kubernetes.io/job-index-failure-count"
"""Annotation of a pod of a batch Job that counts failures by index."""

INDICES = (COMPLETION_INDEX, JOBSET_JOB_INDEX, REPLICA_INDEX, FAILURES_OF_INDEX)
"""Labels and annotations by which controllers say which pod it is of those that they make."""

SAME_KIND = (keys.GENERATION, keys.REPLICA_TYPE, REPLICATED_JOB)
"""Labels of pods that are made from one template, in one life of their job."""

SAME_TOPOLOGY = (keys.TOPOLOGY, "kueue.x-k8s.io/podset-required-topology")
"""Annotations of a job, or of its pods, that name the label of nodes which all its pods share."""

ROLE_FIELDS = {
    keys.ENV_POD_ROLE: f"metadata.annotations['{keys.POD_TYPE}']",
    keys.ENV_POD_RANK: f"metadata.annotations['{keys.RANK_INDEX}']",
}
FIELDS = {
    keys.ENV_POD_IP: "status.podIP",
    keys.ENV_POD_NAME: "metadata.name",
    keys.ENV_POD_UID: "metadata.uid",
    keys.ENV_NODE: "spec.nodeName",
    **ROLE_FIELDS,
    keys.ENV_GENERATION: f"metadata.labels['{keys.GENERATION}']",
}
"""By the variable: where a pod finds what it knows of itself."""

TOKEN_VOLUME = "rekindle-token"

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MOST_WEIGHT = 100
MASTER_PORT = 29500
LIVING = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
)
"""What the API server writes into metadata."""


# ---- the backup of a pod


def backup_of(old: Object, job: Workload, name: str, rank: str, affinity: Object) -> Object:
    """A clone under another name, with its rank and marks; its job's controller does not count it yet.

    Args:
        old: a pod, or what one was made of: then it has no UID.
        affinity: of its node, from `placed`.
    """
    metadata, withheld = old["metadata"], job.kind.withheld
    labels = {key: value for key, value in metadata.get("labels", {}).items() if key not in withheld}
    said = {key: value for key, value in metadata.get("annotations", {}).items() if key not in (OWN_CLASS, *GIVEN)}
    annotations = {**said, **({keys.RANK_INDEX: rank} if rank else {})}
    marks = {keys.POD_TYPE: PodRole.BACKUP.value, keys.BACKUP_SOURCE: metadata["name"]}
    if withheld:
        marks[TAKES_OVER] = json.dumps(_place(metadata, withheld))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {**labels, keys.JOB_ID: job.uid, BACKUP_OF: metadata.get("uid", "")},
            "annotations": {**annotations, **STAYS, **marks},
            "ownerReferences": _uncontrolled(metadata, job) if withheld else _unblocked(metadata),
        },
        "spec": {
            **_as_worker(_startable(unassigned(old["spec"], metadata), metadata.get("labels", {}), withheld), metadata),
            "affinity": affinity,
        },
    }


def _as_worker(spec: Object, metadata: Object) -> Object:
    """What a pod that was a standby has for the sake of that is not cloned. Its role and its rank are its annotations again."""
    waits = {"name": keys.ENV_POD_ROLE, "value": PodRole.STANDBY.value}
    for container in spec["containers"]:
        own = container.get("env", [])
        if waits in own:
            container["env"] = [*(entry for entry in own if entry != waits), *_fields(ROLE_FIELDS)]
    if spec.get("priorityClassName") != STANDBY_CLASS:
        return spec
    own_class = metadata.get("annotations", {}).get(OWN_CLASS)
    rest = {key: value for key, value in spec.items() if key != "priorityClassName"}
    return {**rest, **({"priorityClassName": own_class} if own_class else {})}


# ---- standbys


def standby_of(model: Object, job: Workload, name: str, affinity: Object, rank_keys: Sequence[str]) -> Object:
    """A clone of a worker's pod with everything but what says its rank; its job's controller does not count it."""
    body = backup_of(model, job, name, "", affinity)
    ranks = {*INDICES, *rank_keys, keys.RANK_INDEX, keys.POD_TYPE, keys.BACKUP_SOURCE, keys.TAKEN_AS, BACKUP_OF, TAKES_OVER}
    metadata, spec = body["metadata"], body["spec"]
    labels, annotations = [
        {key: value for key, value in metadata[part].items() if key not in ranks} for part in ("labels", "annotations")
    ]
    metadata["labels"] = {**labels, keys.STANDBY_OF: job.uid}
    own_class = {OWN_CLASS: spec["priorityClassName"]} if spec.get("priorityClassName") else {}
    gives_way = {key: value for key, value in annotations.items() if key not in STAYS} | dict(GIVES_WAY)
    metadata["annotations"] = {**gives_way, **own_class, keys.POD_TYPE: PodRole.STANDBY.value}
    spec.pop("hostname", None)  # a Job's controller writes its index there
    for container in spec["containers"]:
        own = [entry for entry in container.get("env", ()) if entry["name"] not in (keys.ENV_POD_ROLE, keys.ENV_POD_RANK)]
        container["env"] = [*own, {"name": keys.ENV_POD_ROLE, "value": PodRole.STANDBY.value}]
    return {**body, "spec": {**spec, "priorityClassName": STANDBY_CLASS}}


def may_stand_in(standby: Object, backup: Object, avoid_nodes: Collection[str]) -> bool:
    """Whether a standby runs where a backup pod may be, in the same life of the job, made after a pod of the same kind."""
    metadata, spec = standby["metadata"], standby["spec"]
    labels, wanted = metadata.get("labels", {}), backup["metadata"]["labels"]
    runs = standby.get("status", {}).get("phase") == "Running" and spec.get("nodeName") not in avoid_nodes
    is_standby = metadata.get("annotations", {}).get(keys.POD_TYPE) == PodRole.STANDBY
    return runs and is_standby and all(labels.get(key) == wanted.get(key) for key in SAME_KIND)


def taken(standby: Object, backup: Object) -> Object:
    """The patch after which a standby is this backup pod, which then need not be made. Refused when somebody else was faster."""
    own, wanted = standby["metadata"], backup["metadata"]
    return {
        "metadata": {
            "uid": own["uid"],
            "resourceVersion": own["resourceVersion"],
            "labels": wanted["labels"],
            "annotations": {**wanted["annotations"], keys.TAKEN_AS: wanted["name"]},
            "ownerReferences": wanted["ownerReferences"],
        }
    }


def of_index(neighbour: Object, job: Workload, index: int) -> Object:
    """The pod of another index of the same batch Job, as its controller makes it: they differ in nothing else."""
    metadata, spec = neighbour["metadata"], neighbour["spec"]
    mine = {COMPLETION_INDEX: str(index)}
    own = {key: metadata[key] for key in ("namespace", "ownerReferences")}
    not_mine = (FAILURES_OF_INDEX, *GIVEN)
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key not in not_mine}
    return {
        "metadata": {
            **own,
            "name": f"{job.name}-{index}",
            "labels": {**metadata["labels"], **mine},
            "annotations": {**annotations, **mine},
        },
        "spec": {**spec, "hostname": f"{job.name}-{index}"} if spec.get("hostname") else spec,
    }


def _startable(spec: Object, labels: dict[str, str], withheld: Sequence[str]) -> Object:
    """The same pod before it was scheduled. Fields that refer to withheld labels become what they were."""
    gone = ("nodeName", "priority", "preemptionPolicy", "ephemeralContainers", "affinity")
    clone = deepcopy({key: value for key, value in spec.items() if key not in gone})
    literal = {f"metadata.labels['{label}']": labels.get(label, "") for label in withheld}
    for container in (*clone.get("initContainers", ()), *clone["containers"]):
        for entry in container.get("env", ()):
            path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            if path in literal:
                del entry["valueFrom"]
                entry["value"] = literal[path]
    return clone


def shared_claim(pod: Object) -> str:
    """A claim of devices that pods share by its name; empty: the pod has none. Its devices are on the pod's node, and a pod
    beside it could be nowhere else."""
    claims = pod["spec"].get("resourceClaims", ())
    return next((str(claim["resourceClaimName"]) for claim in claims if claim.get("resourceClaimName")), "")


def _place(metadata: Object, withheld: Sequence[str]) -> Object:
    """All by which the controller counts a pod."""
    labels = metadata.get("labels", {})
    return {
        "labels": {label: labels[label] for label in withheld if label in labels},
        "ownerReferences": _unblocked(metadata),
        "finalizers": [FINALIZER] if BATCH_JOB_NAME in labels else [],  # a pod whose failure was counted has it no more
    }


def _uncontrolled(metadata: Object, job: Workload) -> list[Object]:
    """Deleted with its job's object, and counted by no controller."""
    return [{**owner, "controller": False} for owner in _unblocked(metadata)] or [job.reference]


def _unblocked(metadata: Object) -> list[Object]:
    """The same owners, whose deletion waits for nobody: where OwnerReferencesPermissionEnforcement is on, as on OpenShift,
    another word is for those who may change an owner's finalizers."""
    owners = metadata.get("ownerReferences", ())
    return [{key: value for key, value in owner.items() if key != "blockOwnerDeletion"} for owner in owners]


def released(old: Object, job: Workload) -> Object:
    """The patch after which its controller does not count a pod any more."""
    labels: dict[str, str | None] = dict.fromkeys(job.kind.withheld)
    return {
        "metadata": {
            "uid": old["metadata"]["uid"],
            "labels": {**labels, keys.JOB_ID: job.uid},
            "ownerReferences": _uncontrolled(old["metadata"], job),
        }
    }


def joined(backup: Object) -> Object | None:
    """The patch after which the controller counts the backup in the old pod's place; None: it does so already. A tenant writes
    annotations, and we may write more than he: nothing but a place is taken from this one."""
    metadata = backup["metadata"]
    if not (place := metadata.get("annotations", {}).get(TAKES_OVER)):
        return None
    with reading(f"metadata.annotations.{TAKES_OVER}"):
        said = json.loads(place)
        counted = {label for kind in KINDS for label in kind.withheld}
        return {
            "metadata": {
                "uid": metadata["uid"],
                "labels": {label: value for label, value in said["labels"].items() if label in counted},
                "annotations": {TAKES_OVER: None},
                "ownerReferences": said["ownerReferences"],
                "finalizers": sorted({*metadata.get("finalizers", ()), *({FINALIZER} & set(said["finalizers"]))}),
            }
        }


def controller_of(pod: Object) -> Object | None:
    """The owner that counts the pod."""
    return next((owner for owner in pod["metadata"].get("ownerReferences", ()) if owner.get("controller")), None)


# ---- where a pod may go


@dataclass(frozen=True)
class Places:
    """Where the pods of a restart may go."""

    avoid: Sequence[str] = ()
    shun: Sequence[str] = ()
    """Nodes that are better than none."""


def placed(
    affinity: Object, avoid_nodes: Iterable[str], same: Iterable[tuple[str, str]] = (), *, shun_nodes: Iterable[str] = ()
) -> Object:
    """An affinity that also keeps off these nodes, by their names, and to nodes that share these labels. What an earlier call
    said of nodes' names is forgotten.

    Args:
        affinity: the pod's own.
        shun_nodes: taken where there is no other.
    """
    changed = _shunning(affinity, shun_nodes)
    required = changed.setdefault("nodeAffinity", {}).setdefault(REQUIRED, {})
    fields = _not(avoid_nodes)
    labels = [{"key": key, "operator": "In", "values": [value]} for key, value in same]
    terms = []
    for term in required.get("nodeSelectorTerms") or [{}]:  # any one of them suffices, so each says it
        own = [one for one in term.get("matchFields", ()) if one["operator"] != "NotIn"]
        more = {**term, "matchFields": own + fields, "matchExpressions": [*term.get("matchExpressions", ()), *labels]}
        terms.append({key: value for key, value in more.items() if value})
    required["nodeSelectorTerms"] = [term for term in terms if term]
    if not required["nodeSelectorTerms"]:
        del changed["nodeAffinity"][REQUIRED]
    return {key: value for key, value in changed.items() if value}


def _shunning(affinity: Object, nodes: Iterable[str]) -> Object:
    changed = deepcopy(affinity)
    said = changed.get("nodeAffinity", {}).pop(PREFERRED, ())
    own = [one for one in said if not any(field["operator"] == "NotIn" for field in one["preference"].get("matchFields", ()))]
    ours = [{"weight": MOST_WEIGHT, "preference": {"matchFields": fields}}] if (fields := _not(nodes)) else []
    if own or ours:
        changed.setdefault("nodeAffinity", {})[PREFERRED] = own + ours
    return changed


def _not(nodes: Iterable[str]) -> list[Object]:
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(set(nodes))]


def topology_of(job: Workload, pod: Object) -> str:
    """The label of nodes that all pods of the job share; empty: they may be anywhere."""
    annotations = pod["metadata"].get("annotations", {})
    return next((found for key in SAME_TOPOLOGY if (found := job.annotation(key) or annotations.get(key, ""))), "")


# ---- the pods of our own jobs


def pods_of_training_job(job: Workload, generation: str, places: Places, gateway: str) -> list[Object]:
    """Its manager and one pod for each rank.

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
        *_fields(FIELDS, spec.env),
    ]
    affinity = placed(spec.kubernetes.pod.get("affinity", {}), places.avoid, shun_nodes=places.shun)
    make = _Maker(job, generation, affinity, spec.kubernetes, environment)
    amount = spec.accelerators_per_pod
    resources = {"limits": {spec.kubernetes.accelerator_resource: str(amount)}} if amount else {}
    managers = [make.pod(PodRole.MANAGER, 0, spec.manager_command, {})] if spec.manager_command else []
    if spec.training_side is TrainingSide.REKINDLE:
        managers = [_with_token(pod) for pod in managers]
    return managers + [make.pod(PodRole.WORKER, rank, spec.command, resources) for rank in range(spec.pods)]


def _fields(paths: Mapping[str, str], own: Collection[str] = ()) -> list[Object]:
    """What a pod knows of itself."""
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items() if name not in own]


class _Maker:
    """What the pods of one job and generation share."""

    def __init__(self, job: Workload, generation: str, affinity: Object, own: Kubernetes, environment: list[Object]) -> None:
        self._job, self._generation, self._affinity, self._own, self._environment = job, generation, affinity, own, environment

    def pod(self, role: PodRole, index: int, command: Sequence[str], resources: Object) -> Object:
        job = self._job
        container: dict[str, Any] = {
            "name": "training",
            "image": self._own.image,
            "command": list(command),
            **self._own.container,
        }
        own = container.get("env", ())  # such as a Secret's key, which a manifest can say in no other way
        named = {entry["name"] for entry in own}
        container["env"] = [*(entry for entry in self._environment if entry["name"] not in named), *own]
        container["resources"] = _merged(container.get("resources", {}), resources)
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
            "spec": {"restartPolicy": "Never", **self._own.pod, "affinity": self._affinity, "containers": [container]},
        }


def _with_token(pod: Object) -> Object:
    """The same pod with a token by which the gateway knows it; where its owner has mounted something there, that."""
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
    """What the other says is added; what it does not speak of, such as a list of claims, stays as it is."""
    return {**one, **{key: {**one.get(key, {}), **value} for key, value in other.items()}}


def is_manager(pod: Object) -> bool:
    return bool(pod["metadata"].get("labels", {}).get(keys.REPLICA_TYPE) == MANAGER)


# ---- pods that nobody makes again


def remembered(pod: Object) -> Object:
    """What a restart needs of a pod that nobody controls, kept as a PodTemplate while there is none."""
    metadata = pod["metadata"]
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key not in GIVEN}
    kept = {"labels": metadata.get("labels", {}), "annotations": annotations}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": metadata["name"], **kept},
        "template": {"metadata": kept, "spec": _startable(pod["spec"], {}, ()) | {"affinity": pod["spec"].get("affinity", {})}},
    }


def brought_back(template: Object, generation: str, places: Places) -> Object:
    """The pod again, in its next life."""
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
