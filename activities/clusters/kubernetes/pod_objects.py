"""Pod objects that we make or change: backups, standbys, and where they may go. Pure; used by the strategies of all kinds."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.devices import GIVEN
from activities.clusters.kubernetes.external_queues import GIVES_WAY, STAYS, is_queues_own, unassigned
from activities.clusters.kubernetes.kind import MANAGER, Workload
from activities.clusters.kubernetes.schemas import reading
from rekindle.errors import BadInput
from rekindle.model import keys
from rekindle.model.cluster import PodRole

BACKUP_OF = "rekindle.io/backup-of"
"""Label of a backup pod: the UID of the pod that it replaces."""

TAKES_OVER = "rekindle.io/takes-over"
"""Annotation of a backup pod: JSON of the labels, owners and finalizers by which its job's controller counts it later."""

STANDBY_CLASS = "rekindle-standby"
"""PriorityClass of standbys, as defined in `deploy/base/standbys.yaml`. Any other pod preempts them."""

OWN_CLASS = "rekindle.io/priority-class"
"""Annotation of a standby with the PriorityClass of its model, which clones of the standby get again."""

SAME_TOPOLOGY = (keys.TOPOLOGY, "kueue.x-k8s.io/podset-required-topology")
"""Annotations of a job, or of its pods, that name the label of nodes which all its pods share."""

ROLE_FIELDS = {
    keys.ENV_POD_ROLE: f"metadata.annotations['{keys.POD_TYPE}']",
    keys.ENV_POD_RANK: f"metadata.annotations['{keys.RANK_INDEX}']",
}
"""Field paths of environment variables with the pod's role and rank, by variable."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MOST_WEIGHT = 100
MOST_TERMS = 100
"""Maximum number of terms of an affinity.

Each term names all nodes that the pod avoids, up to 500. Ten thousand terms of a tenant would make pods of 60 MiB, many at a
time.
"""

LIVING = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
)
"""Fields of metadata that the API server writes."""


# ---- the backup of a pod


def backup_of(old: Object, job: Workload, name: str, rank: str, affinity: Object) -> Object:
    """Returns a clone with another name, and with the rank and marks of a backup. The job's controller does not count it yet.

    Args:
        old: a pod, or what one was made of: then it has no UID.
        affinity: of its node, from `placed`.
    """
    metadata, withheld = old["metadata"], job.kind.count.labels
    labels = {key: value for key, value in metadata.get("labels", {}).items() if key not in withheld and not is_queues_own(key)}
    not_said = (OWN_CLASS, *GIVEN)
    said = {
        key: value for key, value in metadata.get("annotations", {}).items() if key not in not_said and not is_queues_own(key)
    }
    annotations = {**said, **({keys.RANK_INDEX: rank} if rank else {})}
    marks = {keys.POD_TYPE: PodRole.BACKUP.value, keys.BACKUP_SOURCE: metadata["name"]}
    if withheld:
        marks[TAKES_OVER] = json.dumps(_place(metadata, job))
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
            **_as_worker(startable(unassigned(old["spec"], metadata), metadata.get("labels", {}), withheld), metadata),
            "affinity": affinity,
        },
    }


def written_since(metadata: Object) -> set[str]:
    """Returns labels and annotations that others than the pod's creator have written on it, by the API server's record of field
    managers. Those that admission adds at creation count as its creator's, as the spec that belongs to them is cloned too."""
    records = [one for one in metadata.get("managedFields", ()) if not one.get("subresource")]
    makers = {one.get("manager") for one in records if "f:containers" in one.get("fieldsV1", {}).get("f:spec", {})}
    if not makers:
        return set()
    made, others = [
        {key for one in records if (one.get("manager") in makers) is mine for key in _written(one)} for mine in (True, False)
    ]
    return others - made


def _written(record: Object) -> Iterable[str]:
    metadata = record.get("fieldsV1", {}).get("f:metadata", {})
    fields = [field for part in ("f:labels", "f:annotations") for field in metadata.get(part, ())]
    return (field.removeprefix("f:") for field in fields if field.startswith("f:"))


def without(pod: Object, keys: Collection[str]) -> Object:
    """Returns the pod without these labels and annotations."""
    kept = {
        part: {key: value for key, value in pod["metadata"].get(part, {}).items() if key not in keys}
        for part in ("labels", "annotations")
    }
    return {**pod, "metadata": {**pod["metadata"], **kept}}


def _as_worker(spec: Object, metadata: Object) -> Object:
    """Returns the spec without the parts that only standbys have. The role and the rank are read from annotations again."""
    waits = {"name": keys.ENV_POD_ROLE, "value": PodRole.STANDBY.value}
    for container in spec["containers"]:
        own = container.get("env", [])
        if waits in own:
            container["env"] = [*(entry for entry in own if entry != waits), *fields(ROLE_FIELDS)]
    if spec.get("priorityClassName") != STANDBY_CLASS:
        return spec
    own_class = metadata.get("annotations", {}).get(OWN_CLASS)
    rest = {key: value for key, value in spec.items() if key != "priorityClassName"}
    return {**rest, **({"priorityClassName": own_class} if own_class else {})}


# ---- standbys


def standby_of(model: Object, job: Workload, name: str, affinity: Object, rank_keys: Sequence[str]) -> Object:
    """Returns a clone of a worker's pod without its rank. The job's controller does not count it."""
    body = backup_of(model, job, name, "", affinity)
    ranks = {
        *job.kind.indexing.of_one_pod,
        *rank_keys,
        keys.RANK_INDEX,
        keys.POD_TYPE,
        keys.BACKUP_SOURCE,
        keys.TAKEN_AS,
        BACKUP_OF,
        TAKES_OVER,
    }
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


def may_stand_in(standby: Object, backup: Object, job: Workload, avoid_nodes: Collection[str]) -> bool:
    """Returns whether a standby can become this backup pod: it runs on an allowed node, in the same generation, and was cloned
    from a pod of the same type."""
    metadata, spec = standby["metadata"], standby["spec"]
    labels, wanted = metadata.get("labels", {}), backup["metadata"]["labels"]
    runs = standby.get("status", {}).get("phase") == "Running" and spec.get("nodeName") not in avoid_nodes
    is_standby = metadata.get("annotations", {}).get(keys.POD_TYPE) == PodRole.STANDBY
    same = (keys.GENERATION, keys.REPLICA_TYPE, job.kind.indexing.type_label)
    return runs and is_standby and all(labels.get(key) == wanted.get(key) for key in same)


def taken(standby: Object, backup: Object) -> Object:
    """Returns the patch that makes a standby this backup pod, so that none need be created.

    It is refused if the standby has changed meanwhile.
    """
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


def startable(spec: Object, labels: dict[str, str], withheld: Sequence[str]) -> Object:
    """Returns the spec as it was before the pod was scheduled. Fields that refer to withheld labels get their values."""
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
    """Returns the device claim that the pod shares with others by name; empty: it has none.

    Such devices are on the pod's node, so another pod with the claim cannot run elsewhere.
    """
    claims = pod["spec"].get("resourceClaims", ())
    return next((str(claim["resourceClaimName"]) for claim in claims if claim.get("resourceClaimName")), "")


def _place(metadata: Object, job: Workload) -> Object:
    """Returns everything by which the controller counts a pod."""
    labels, counts = metadata.get("labels", {}), job.kind.count
    return {
        "labels": {label: labels[label] for label in counts.labels if label in labels},
        "ownerReferences": _unblocked(metadata),
        "finalizers": list(counts.finalizers),  # a pod whose failure was counted has lost them
    }


def _uncontrolled(metadata: Object, job: Workload) -> list[Object]:
    """Returns owner references by which the pod is deleted with its job's object, and counted by no controller."""
    return [{**owner, "controller": False} for owner in _unblocked(metadata)] or [job.reference]


def _unblocked(metadata: Object) -> list[Object]:
    """Returns the owner references without blocking the owner's deletion.

    With OwnerReferencesPermissionEnforcement, as on OpenShift, blocking requires the right to change the owner's finalizers.
    """
    owners = metadata.get("ownerReferences", ())
    return [{key: value for key, value in owner.items() if key != "blockOwnerDeletion"} for owner in owners]


def released(old: Object, job: Workload) -> Object:
    """Returns the patch after which the job's controller does not count a pod any more."""
    labels: dict[str, str | None] = dict.fromkeys(job.kind.count.labels)
    return {
        "metadata": {
            "uid": old["metadata"]["uid"],
            "labels": {**labels, keys.JOB_ID: job.uid},
            "ownerReferences": _uncontrolled(old["metadata"], job),
        }
    }


def joined(backup: Object, job: Workload) -> Object | None:
    """Returns the patch after which the controller counts the backup in the old pod's place; None: it does so already.

    The annotation is written by a tenant, whose rights are less than ours: only the place is read from it.
    """
    metadata = backup["metadata"]
    if not (place := metadata.get("annotations", {}).get(TAKES_OVER)):
        return None
    with reading(f"metadata.annotations.{TAKES_OVER}"):
        said, counts = json.loads(place), job.kind.count
        return {
            "metadata": {
                "uid": metadata["uid"],
                "labels": {label: value for label, value in said["labels"].items() if label in counts.labels},
                "annotations": {TAKES_OVER: None},
                "ownerReferences": said["ownerReferences"],
                "finalizers": sorted({*metadata.get("finalizers", ()), *({*counts.finalizers} & {*said["finalizers"]})}),
            }
        }


def controller_of(pod: Object) -> Object | None:
    """Returns the owner that counts the pod; None: there is none."""
    return next((owner for owner in pod["metadata"].get("ownerReferences", ()) if owner.get("controller")), None)


# ---- where a pod may go


def placed(
    affinity: Object, avoid_nodes: Iterable[str], same: Iterable[tuple[str, str]] = (), *, shun_nodes: Iterable[str] = ()
) -> Object:
    """Returns an affinity that also avoids these nodes by name, and requires nodes with these labels.

    Node names that an earlier call added are removed.

    Args:
        affinity: the pod's own.
        shun_nodes: used only if no other node is free.

    Raises:
        BadInput: it has too many terms.
    """
    changed = _shunning(affinity, shun_nodes)
    required = changed.setdefault("nodeAffinity", {}).setdefault(REQUIRED, {})
    fields = _not(avoid_nodes)
    labels = [{"key": key, "operator": "In", "values": [value]} for key, value in same]
    terms = []
    said = required.get("nodeSelectorTerms") or [{}]
    if len(said) > MOST_TERMS:
        raise BadInput(f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms: {len(said)} are too many, use {MOST_TERMS} at most")
    for term in said:  # terms are alternatives, so each needs it
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


def avoided_by(pod: Object) -> set[str]:
    """Returns the names of nodes that the pod avoids, or uses only if no other node is free."""
    of_nodes = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = [
        *of_nodes.get(REQUIRED, {}).get("nodeSelectorTerms", ()),
        *(one["preference"] for one in of_nodes.get(PREFERRED, ())),
    ]
    fields = [field for term in terms for field in term.get("matchFields", ()) if field["operator"] == "NotIn"]
    return {name for field in fields for name in field["values"]}


def topology_of(job: Workload, pod: Object) -> str:
    """Returns the node label whose value all pods of the job share; empty: they may be anywhere."""
    annotations = pod["metadata"].get("annotations", {})
    return next((found for key in SAME_TOPOLOGY if (found := job.annotation(key) or annotations.get(key, ""))), "")


def fields(paths: Mapping[str, str], own: Collection[str] = ()) -> list[Object]:
    """Returns environment variables that are filled from fields of the pod, without those in `own`."""
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items() if name not in own]


def is_manager(pod: Object) -> bool:
    return bool(pod["metadata"].get("labels", {}).get(keys.REPLICA_TYPE) == MANAGER)
