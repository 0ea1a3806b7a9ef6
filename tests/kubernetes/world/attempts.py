"""Table of attacks by one tenant on the jobs of another. Each writes only into the attacker's own namespace."""

import copy
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.kind import Kind
from activities.clusters.kubernetes.kinds import BATCH_JOB, JOB_SET, TRAIN_JOB, TRAINING_JOB
from activities.clusters.kubernetes.pod_objects import BACKUP_OF, LIVING, TAKES_OVER
from rekindle.errors import Forbidden, Invalid, NotFound
from rekindle.model import keys
from tests.kubernetes.world.worlds import pod_spec
from tests.support.cluster import FOREVER

MANAGED = {keys.MANAGED: "true"}
FAILS = ("sh", "-c", "exit 1")
LARGEST = 250 * 1024
"""Approximate number of bytes of all annotations of an object that the API server admits."""

ODD = "\u202emoc \U0001f4a5 \u0000".replace("\u0000", "\u2028") + "e\u0301" * 50
"""Text with right-to-left characters, ones beyond the basic plane, a line separator, and combining letters."""

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
"""YAML of 500 bytes with 9 to the power of 9 leaves."""

MERGES = "a: &a {pause: 60}\n" + "".join(
    f"{b}: &{b} {{<<: [{','.join([f'*{a}'] * 9)}]}}\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
"""The same with merge keys, whose values are copied where they are referred to."""


@dataclass
class Attacker:
    """Attacking tenant and the victim's objects."""

    api: Api
    namespace: str
    victims: Mapping[str, Object]
    """Objects of the victim: `job`, `set`, `part` (the set's Job), `own`."""

    pods: list[Object]
    """Pods of the victim."""

    loose: str
    """Id of the victim's job whose pods have no controller."""

    number: int
    """Number of the attempt, which makes its names unique."""

    @property
    def name(self) -> str:
        return f"x{self.number}"

    def uid(self, victim: str) -> str:
        return str(self.victims[victim]["metadata"]["uid"])

    def owner(self, kind: Kind, name: str, uid: str, *, controller: bool = True) -> Object:
        return {"apiVersion": kind.api_version, "kind": kind.name, "name": name, "uid": uid, "controller": controller}

    async def create(self, plural: str, body: Object) -> Object:
        return await self.api.create(f"/api/v1/namespaces/{self.namespace}/{plural}", body)

    async def pod(
        self, *owners: Object, name: str = "", command: Any = FOREVER, labels: Any = None, annotations: Any = None
    ) -> Object:
        metadata: Object = {"name": name or self.name, "ownerReferences": list(owners)}
        metadata |= {"labels": labels or {}, "annotations": annotations or {keys.RANK_INDEX: "0"}}
        return await self.create("pods", {"metadata": metadata, "spec": pod_spec(command, 0)})

    async def job(self, kind: Kind, *owners: Object, name: str = "", spec: Any = None, **metadata: Any) -> Object:
        specs: dict[Kind, Object] = {
            BATCH_JOB: {"completions": 1, "completionMode": "Indexed", "template": {"spec": pod_spec(FOREVER, 0)}},
            JOB_SET: {
                "replicatedJobs": [{"name": "workers", "template": {"spec": {"template": {"spec": pod_spec(FOREVER, 0)}}}}]
            },
            TRAIN_JOB: {"trainer": {"numNodes": 1}},
            TRAINING_JOB: {"pods": 1, "ranksPerPod": 1, "command": ["true"], "manager": None, "kubernetes": {"image": "none"}},
        }
        head = {"name": name or self.name, "labels": MANAGED, "ownerReferences": list(owners), **metadata}
        body = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": head, "spec": spec or specs[kind]}
        return await self.api.create(kind.path(self.namespace), body)

    async def annotated_job(self, annotations: dict[str, str]) -> None:
        await self.job(BATCH_JOB, annotations=annotations)

    async def delete(self, path: str, thing: Object) -> None:
        """Deletes an object, unless the garbage collector already did."""
        with suppress(NotFound):
            await self.api.delete(f"{path}/{thing['metadata']['name']}", thing["metadata"]["uid"], 0)


Attempt = Callable[[Attacker], Awaitable[object]]


# ---- pods that pretend to be another tenant's


async def _marked(by: Attacker) -> None:
    for victim in ("job", "set", "part", "own"):
        await by.pod(name=f"{by.name}-{victim}", labels={keys.JOB_ID: by.uid(victim)})


async def _marked_that_fails(by: Attacker) -> None:
    for victim in ("job", "own"):
        await by.pod(name=f"{by.name}-{victim}", labels={keys.JOB_ID: by.uid(victim), **MANAGED}, command=FAILS)


async def _all_labels(by: Attacker) -> None:
    """Creates pods with all labels of the victim's pods, without their owners."""
    for number, pod in enumerate(by.pods):
        await by.pod(name=f"{by.name}-{number}", labels=pod["metadata"]["labels"], annotations=pod["metadata"].get("annotations"))


async def _copied(by: Attacker) -> list[Object]:
    """Copies the victim's pods into another namespace, as with `kubectl get -o yaml` and `kubectl apply`. Returns the copies."""
    made = []
    for number, pod in enumerate(by.pods):
        body = {"metadata": copy.deepcopy(pod["metadata"]), "spec": copy.deepcopy(pod["spec"])}
        body["metadata"] = {key: value for key, value in body["metadata"].items() if key not in (*LIVING, "finalizers")}
        body["metadata"] |= {"name": f"{by.name}-{number}", "namespace": by.namespace}
        body["spec"].pop("nodeName", None)
        with suppress(Forbidden):  # one that has a mark
            made.append(await by.create("pods", body))
    return made


async def _copied_and_deleted(by: Attacker) -> None:
    for pod in await _copied(by):
        await by.delete(f"/api/v1/namespaces/{by.namespace}/pods", pod)


async def _as_backup(by: Attacker) -> None:
    old = by.pods[0]["metadata"]
    place = {"labels": {"batch.kubernetes.io/controller-uid": by.uid("job")}, "ownerReferences": [], "finalizers": []}
    marks = {keys.POD_TYPE: "backup", keys.BACKUP_SOURCE: old["name"], TAKES_OVER: json.dumps(place), keys.RANK_INDEX: "0"}
    await by.pod(labels={keys.JOB_ID: by.uid("job"), BACKUP_OF: old["uid"]}, annotations=marks)


async def _as_standby(by: Attacker) -> None:
    labels = {keys.JOB_ID: by.uid("own"), keys.STANDBY_OF: by.uid("own"), keys.GENERATION: "0"}
    await by.pod(labels=labels, annotations={keys.POD_TYPE: "standby"})


async def _as_manager(by: Attacker) -> None:
    labels = {keys.MANAGER_OF: "train", keys.REPLICA_TYPE: "manager", keys.JOB_ID: by.uid("own")}
    await by.pod(labels=labels)


async def _as_manager_by_name(by: Attacker) -> None:
    await by.pod(labels={keys.MANAGER_OF: "train", keys.REPLICA_TYPE: "manager"})


async def _same_address(by: Attacker) -> None:
    """Sets the address of a pod to that of a victim's pod, as a tenant can who may write the status of pods."""
    made = await by.pod(labels={"batch.kubernetes.io/job-name": "train"})
    path = f"/api/v1/namespaces/{by.namespace}/pods/{made['metadata']['name']}/status"
    address = by.pods[0]["status"].get("podIP", "10.9.9.9")
    await by.api.patch(path, {"status": {"phase": "Failed", "podIP": address, "podIPs": [{"ip": address}]}})


async def _marked_by_its_status(by: Attacker) -> None:
    made = await by.pod()
    marks = {"labels": {keys.JOB_ID: by.uid("own"), keys.STANDBY_OF: by.uid("own")}, "annotations": {keys.POD_TYPE: "standby"}}
    path = f"/api/v1/namespaces/{by.namespace}/pods/{made['metadata']['name']}/status"
    await by.api.patch(path, {"metadata": marks})


# ---- owners


async def _owner_elsewhere(by: Attacker) -> None:
    """Creates pods owned by a Job in another namespace. The garbage collector deletes such pods after a while."""
    labels = {"batch.kubernetes.io/job-name": "train"}
    for controller in (True, False):
        owner = by.owner(BATCH_JOB, "train", by.uid("job"), controller=controller)
        await by.pod(owner, name=f"{by.name}-{controller}".lower(), labels=labels, command=FAILS)


async def _owner_and_mark(by: Attacker) -> None:
    owner = by.owner(BATCH_JOB, "train", by.uid("job"), controller=False)
    await by.pod(owner, labels={keys.JOB_ID: by.uid("job")})


async def _owner_set(by: Attacker) -> None:
    await by.pod(by.owner(JOB_SET, "set", by.uid("set")), labels={"batch.kubernetes.io/job-name": "part"})


async def _own_job_of_a_foreign_set(by: Attacker) -> None:
    await by.job(BATCH_JOB, by.owner(JOB_SET, "set", by.uid("set")))


async def _own_name_foreign_uid(by: Attacker) -> None:
    """Creates a pod whose owner reference has the name of an existing Job and the UID of another one."""
    await by.job(JOB_SET)
    mine = await by.api.get(JOB_SET.path(by.namespace, by.name))
    await by.job(BATCH_JOB, by.owner(JOB_SET, by.name, mine["metadata"]["uid"]))
    owner = by.owner(BATCH_JOB, by.name, by.uid("part"))
    await by.pod(owner, labels={"batch.kubernetes.io/job-name": by.name})


async def _many_owners(by: Attacker) -> None:
    owners = [by.owner(BATCH_JOB, f"o{n}", f"{n}", controller=False) for n in range(200)]
    await by.pod(*owners, by.owner(BATCH_JOB, "train", by.uid("job"), controller=False), labels={keys.JOB_ID: by.uid("job")})


async def _cycle(by: Attacker) -> None:
    """Creates a JobSet and a TrainJob that own each other, a Job of the JobSet, and a pod of the Job."""
    one, other = await by.job(JOB_SET), await by.job(TRAIN_JOB)
    for kind, thing, above, its in ((JOB_SET, one, TRAIN_JOB, other), (TRAIN_JOB, other, JOB_SET, one)):
        owner = by.owner(above, by.name, its["metadata"]["uid"])
        await by.api.patch(kind.path(by.namespace, thing["metadata"]["name"]), {"metadata": {"ownerReferences": [owner]}})
    job = await by.job(BATCH_JOB, by.owner(JOB_SET, by.name, one["metadata"]["uid"]))
    await by.pod(by.owner(BATCH_JOB, by.name, job["metadata"]["uid"]), labels={"batch.kubernetes.io/job-name": by.name})


async def _own_owner(by: Attacker) -> None:
    job = await by.job(BATCH_JOB)
    owner = by.owner(BATCH_JOB, by.name, job["metadata"]["uid"])
    await by.api.patch(BATCH_JOB.path(by.namespace, by.name), {"metadata": {"ownerReferences": [owner]}})


async def _name_of_an_owner(by: Attacker) -> None:
    for number, name in enumerate(("../../../nodes", "x" * 100_000, ODD)):
        owner = by.owner(BATCH_JOB, name, by.uid("job"))
        await by.pod(owner, name=f"{by.name}-{number}", labels={"batch.kubernetes.io/job-name": "train"})


# ---- names that are used again


async def _same_names(by: Attacker) -> None:
    for kind in (BATCH_JOB, JOB_SET, TRAINING_JOB):
        made = await by.job(kind, name={BATCH_JOB: "train", JOB_SET: "set", TRAINING_JOB: "own"}[kind])
        await by.delete(kind.path(by.namespace), made)


async def _again_and_again(by: Attacker) -> None:
    """Deletes an owner and creates it again under the same name, while its pods live on."""
    for _ in range(3):
        job = await by.job(BATCH_JOB)
        owner = by.owner(BATCH_JOB, by.name, job["metadata"]["uid"])
        await by.pod(owner, name=f"{by.name}-{job['metadata']['uid'][:5]}", labels={"batch.kubernetes.io/job-name": by.name})
        await by.delete(BATCH_JOB.path(by.namespace), job)


# ---- pods without a controller


async def _loose(by: Attacker) -> None:
    labels = {keys.JOB_ID: by.loose, keys.BARE_JOB_NAME: "loose", **MANAGED}
    await by.pod(labels=labels, annotations={keys.PODS: "1", keys.RANK_INDEX: "0"}, command=FAILS)


async def _loose_with_a_uid(by: Attacker) -> None:
    for victim in ("job", "own"):
        labels = {keys.JOB_ID: by.uid(victim), keys.BARE_JOB_NAME: "train", **MANAGED}
        made = await by.pod(name=f"{by.name}-{victim}", labels=labels, annotations={keys.PODS: "1", keys.RANK_INDEX: "0"})
        await by.delete(f"/api/v1/namespaces/{by.namespace}/pods", made)


async def _remembered(by: Attacker) -> None:
    """Creates a pod template as a restart would leave of such pods."""
    labels = {keys.JOB_ID: by.loose, keys.BARE_JOB_NAME: "loose"}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(FAILS, 0)}
    await by.create("podtemplates", {"metadata": {"name": by.name, "labels": labels}, "template": template})


async def _own_loose(by: Attacker) -> None:
    """Creates own pods with the largest and most invalid values that the API server admits."""
    labels = {keys.JOB_ID: f"{by.namespace}.{by.name}", keys.BARE_JOB_NAME: by.name}
    for number, said in enumerate(("9" * 4000, "-1", "\u0663", ODD)):
        await by.pod(name=f"{by.name}-{number}", labels=labels, annotations={keys.PODS: said, keys.RANK_INDEX: said})


# ---- values


async def _odd_words(by: Attacker) -> None:
    every = (
        keys.RANKS_PER_POD,
        keys.LIMITS,
        keys.STANDBYS,
        keys.CAPABILITIES,
        keys.TRAINING_SIDE,
        keys.TOPOLOGY,
        keys.RECOVER_STRATEGY,
    )
    for number, said in enumerate(("", "9" * 9000, "-1", "1e999", "null", "[[[[", ODD, "\u0663", "x" * 200_000)):
        await by.job(
            BATCH_JOB, name=f"{by.name}-{number}", annotations=dict.fromkeys(every[: 1 if len(said) > 9000 else None], said)
        )


async def _bomb(by: Attacker) -> None:
    for number, text in enumerate((BOMB, MERGES)):
        await by.job(BATCH_JOB, name=f"{by.name}-{number}", annotations={keys.LIMITS: text})


async def _deep(by: Attacker) -> None:
    await by.annotated_job({keys.LIMITS: "[" * 20_000})


async def _very_many_annotations(by: Attacker) -> None:
    """Creates a job and a pod with as many annotations as the API server admits."""
    many = {f"rekindle.io/a{number}": "" for number in range(LARGEST // 18)}
    await by.annotated_job(many)
    await by.pod(annotations=many, labels={"batch.kubernetes.io/job-name": "train"})


async def _too_many_annotations(by: Attacker) -> None:
    with suppress(Invalid):
        await by.annotated_job({f"rekindle.io/a{number}": "" for number in range(20_000)})


async def _one_large_annotation(by: Attacker) -> None:
    for key in (keys.MEMORY, keys.LIMITS, keys.DOWNGRADED):
        await by.job(BATCH_JOB, name=f"{by.name}-{key.partition('/')[2]}", annotations={key: "\u0001" * (LARGEST // 2)})


async def _large_counts(by: Attacker) -> None:
    spec = {"completions": 2**31 - 1, "parallelism": 0, "completionMode": "Indexed", "suspend": True}
    await by.job(
        BATCH_JOB,
        spec={
            "completions": 100_000,
            "parallelism": 0,
            "completionMode": "Indexed",
            "suspend": True,
            "template": {"spec": pod_spec(FOREVER, 0)},
        },
    )
    job = {"spec": {**spec, "template": {"spec": pod_spec(FOREVER, 0)}}}
    await by.job(JOB_SET, spec={"replicatedJobs": [{"name": "w", "replicas": 2**31 - 1, "template": job}]})
    await by.job(TRAIN_JOB, spec={"trainer": {"numNodes": 2**31 - 1, "numProcPerNode": "9" * 1000}})


async def _long_names(by: Attacker) -> None:
    await by.job(JOB_SET, name="x" * 240 + by.name)
    await by.job(TRAIN_JOB, name="y" * 240 + by.name)
    await by.pod(name="z" * 240 + by.name, labels={"batch.kubernetes.io/job-name": "train"})


async def _memory_that_means_nothing(by: Attacker) -> None:
    for number, said in enumerate(('{"incidents": 1e999}', "[" * 5000, '{"running": {"workflow_id": "../job"}}')):
        await by.job(BATCH_JOB, name=f"{by.name}-{number}", annotations={keys.MEMORY: said, keys.STOPPED: "yes"})


async def _own_kind_that_means_nothing(by: Attacker) -> None:
    deep: Object = {}
    for _ in range(200):
        deep = {"a": deep}
    base = {"pods": 1, "ranksPerPod": 1, "command": ["true"], "manager": None}
    for number, pod in enumerate(
        ({"affinity": None}, {"affinity": "x"}, {"affinity": deep}, {"volumes": 7}, {"containers": ODD})
    ):
        await by.job(TRAINING_JOB, name=f"{by.name}-{number}", spec={**base, "kubernetes": {"image": "none", "pod": pod}})


async def _sets_that_mean_nothing(by: Attacker) -> None:
    specs: list[Object] = [
        {"replicatedJobs": []},
        {"replicatedJobs": None},
        {"replicatedJobs": [{"name": ODD}]},
        {"replicatedJobs": {"a": 1}},
    ]
    for number, spec in enumerate(specs):
        await by.job(JOB_SET, name=f"{by.name}-{number}", spec=spec)


async def _never_ends(by: Attacker) -> None:
    """Creates a job with an unknown finalizer, deletes it, and then removes the finalizer."""
    made = await by.job(BATCH_JOB, finalizers=["example.com/never"])
    await by.delete(BATCH_JOB.path(by.namespace), made)
    await by.api.patch(BATCH_JOB.path(by.namespace, by.name), {"metadata": {"finalizers": None}})


ATTEMPTS: Mapping[str, Attempt] = {
    "a pod with the mark of another tenant's job": _marked,
    "the same, and it fails": _marked_that_fails,
    "a pod with all labels of another tenant's": _all_labels,
    "pods of another tenant, copied as they are": _copied,
    "the same, and deleted": _copied_and_deleted,
    "a backup of another tenant's pod": _as_backup,
    "a standby of another tenant's job": _as_standby,
    "a manager of another tenant's job": _as_manager,
    "a manager of a job of that name": _as_manager_by_name,
    "a pod that says it has another tenant's address": _same_address,
    "a pod that is marked by way of its status": _marked_by_its_status,
    "a pod that another tenant's Job owns": _owner_elsewhere,
    "the same, with the mark": _owner_and_mark,
    "a pod that another tenant's JobSet owns": _owner_set,
    "a Job that another tenant's JobSet owns": _own_job_of_a_foreign_set,
    "an owner's own name with another tenant's UID": _own_name_foreign_uid,
    "two hundred owners": _many_owners,
    "owners that own each other": _cycle,
    "a Job that owns itself": _own_owner,
    "owners with names that are none": _name_of_an_owner,
    "jobs with the names of another tenant's, made and deleted": _same_names,
    "an owner that is deleted and made again": _again_and_again,
    "pods that nobody controls, with another tenant's id": _loose,
    "the same, with a job's UID": _loose_with_a_uid,
    "a template of such pods": _remembered,
    "such pods with odd numbers": _own_loose,
    "odd words in every annotation": _odd_words,
    "YAML that grows": _bomb,
    "YAML that is nested 20,000 levels deep": _deep,
    "as many annotations as are admitted": _very_many_annotations,
    "more annotations than are admitted": _too_many_annotations,
    "annotations of characters that are written as six": _one_large_annotation,
    "jobs of thousands of millions of pods": _large_counts,
    "names of 243 characters": _long_names,
    "a memory that means nothing": _memory_that_means_nothing,
    "jobs of our own kind that mean nothing": _own_kind_that_means_nothing,
    "JobSets that mean nothing": _sets_that_mean_nothing,
    "a job that does not end": _never_ends,
}
