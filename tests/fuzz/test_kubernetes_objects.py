"""Objects of the API server, of every kind that is read."""

import copy
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.kind import REPLICA_INDEX, Kind, Places, Template, Workload, rank_of
from activities.clusters.kubernetes.kinds import BARE, BATCH_JOB, KINDS, PYTORCH_JOB, TRAINING_JOB
from activities.clusters.kubernetes.kinds.bare_pods import bare_job, brought_back, is_bare, remembered
from activities.clusters.kubernetes.kinds.training_job import pods_of_training_job
from activities.clusters.kubernetes.objects import failure_of, is_managed, job_object_of, node_of, pod_of
from activities.clusters.kubernetes.pod_objects import backup_of, controller_of, joined, placed, topology_of
from rekindle.errors import BadInput
from rekindle.model import keys
from rekindle.model.cluster import JobObject, JobView, Pod
from rekindle.policy.detection.sighting import sight
from tests.fuzz.broken import broken, fuzzed, reads, text
from tests.kubernetes.world.attempts import BOMB, MERGES
from tests.support.valid_objects import JOBS, namespace, node, pod

RANK_KEYS = ("my/rank",)
CONTRACT = (
    keys.SUB_HEALTHY_STRATEGY,
    keys.RECOVER_STRATEGY,
    keys.PROCESS_RECOVER_ENABLE,
    keys.FRAMEWORK,
    keys.RANK_INDEX,
    keys.POD_TYPE,
    keys.BACKUP_SOURCE,
    keys.JOB_NAME,
    keys.REPLICA_TYPE,
    keys.JOB_ID,
    keys.BARE_JOB_NAME,
    keys.PODS,
    keys.RANKS_PER_POD,
    keys.TRAINING_SIDE,
    keys.LIMITS,
    keys.TOPOLOGY,
    keys.MANAGED,
    keys.GENERATION,
    keys.CAPABILITIES,
    keys.DOWNGRADED,
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
    "jobset.sigs.k8s.io/job-index",
    "jobset.sigs.k8s.io/replicatedjob-name",
)
words = st.dictionaries(st.sampled_from(CONTRACT), text, max_size=6)


def read_job(kind: Kind, raw: Object) -> JobObject:
    """Reads a job as the watcher, the drivers and our own controller do."""
    job = Workload(kind, raw).checked()
    is_managed(job)
    failure_of(job)
    found = job_object_of(job, observe=False)
    for template in job.templates:
        placed(template.body.get("spec", {}).get("affinity", {}), ["node-1"])
    if kind is TRAINING_JOB:
        pods_of_training_job(job, "0", Places(["node-1"], ["node-2"]), "gateway:8899")
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_valid_job_is_read(kind: Kind) -> None:
    """A valid job is read, so the examples below start from valid objects."""
    assert kind in JOBS, f"add a valid {kind.name} to tests/support/valid_objects.py"
    assert read_job(kind, JOBS[kind]).metadata.name == "job"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(data=st.data())
@fuzzed
def test_a_broken_job_is_refused_by_its_field(kind: Kind, data: st.DataObject) -> None:
    """Errors of any sort in any field are refused."""
    raw = data.draw(broken(JOBS[kind]))
    reads(lambda: read_job(kind, raw))


def test_what_a_container_says_of_its_resources_stays_beside_the_accelerators() -> None:
    """Claims of devices are a list, as in Kubernetes; limits add up."""
    own = JOBS[TRAINING_JOB]
    resources = {"claims": [{"name": "gpu"}], "limits": {"cpu": "1"}}
    spec = {**own["spec"], "accelerators": 2, "kubernetes": {"image": "training", "container": {"resources": resources}}}
    job = Workload(TRAINING_JOB, {**own, "spec": spec}).checked()
    worker = pods_of_training_job(job, "0", Places(), "gateway:8899")[-1]["spec"]["containers"][0]
    assert worker["resources"]["claims"] == [{"name": "gpu"}]
    assert worker["resources"]["limits"].items() > {"cpu": "1"}.items()


def test_the_templates_of_a_job_are_walked_once_and_not_for_each_of_its_pods() -> None:
    """Ten thousand templates fit into an object: each pod's rank would take 15 ms in which no other request is served."""
    walked: list[Object] = []

    def templates(spec: Object) -> list[Template]:
        walked.append(spec)
        return PYTORCH_JOB.templates(spec)

    job = Workload(replace(PYTORCH_JOB, templates=templates), JOBS[PYTORCH_JOB])
    for number in range(3):
        one = pod("", f"worker-{number}")
        one["metadata"]["labels"] |= {REPLICA_INDEX: f"{number}", keys.REPLICA_TYPE: "worker"}
        one["metadata"]["annotations"] = {}
        read_pod(one, job)
    assert len(walked) == 1


def test_thousands_of_pods_share_what_their_object_says_of_each() -> None:
    """Thousands of pods share one spec, because their object may have a megabyte. Their controller has less memory than five
    hundred of them would take."""
    own = JOBS[TRAINING_JOB]
    job = Workload(TRAINING_JOB, {**own, "spec": {**own["spec"], "pods": 3}}).checked()
    _, *workers = pods_of_training_job(job, "0", Places(), "gateway:8899")
    assert len(workers) == 3
    assert len({id(worker["spec"]) for worker in workers}) == 1


@pytest.mark.parametrize("words", ["x" * 200_000, ",".join(["x"] * 100_000)], ids=["a long word", "many words"])
@pytest.mark.parametrize("key", [keys.SUB_HEALTHY_STRATEGY, keys.FRAMEWORK, keys.CAPABILITIES])
def test_a_refusal_is_short_however_long_what_it_refuses(key: str, words: str) -> None:
    """Annotations of 256 KiB are accepted by the API server; a message about them becomes an event."""
    own = JOBS[TRAINING_JOB]
    raw = {**own, "metadata": {**own["metadata"], "labels": {key: words}, "annotations": {key: words}}}
    assert reads(lambda: read_job(TRAINING_JOB, raw)) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", [BOMB, MERGES, "[" * 200_000], ids=["references", "merges", "deep"])
def test_limits_that_say_more_than_any_memory_holds_are_refused(text: str) -> None:
    """One tenant's annotation of a few lines would block the watcher, and with it all jobs, for hours."""
    own = JOBS[BATCH_JOB]
    raw = {**own, "metadata": {**own["metadata"], "annotations": {keys.LIMITS: text}}}
    with pytest.raises(BadInput, match=keys.LIMITS):
        read_job(BATCH_JOB, raw)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("names", [["pause" * 200_000], [f"paus{n}" for n in range(50_000)]], ids=["a long name", "many names"])
@pytest.mark.parametrize("where", ["limits", "annotations"])
def test_what_was_meant_is_looked_for_of_few_names(where: str, names: list[str]) -> None:
    """One tenant's object of a megabyte would block the watcher, and with it all jobs, for seconds at each of its changes."""
    own = copy.deepcopy(JOBS[TRAINING_JOB])
    (own["spec"] if where == "limits" else own["metadata"])[where] = dict.fromkeys(names, "1")
    began = time.process_time()
    reads(lambda: read_job(TRAINING_JOB, own))
    assert time.process_time() - began < 3


def read_pod(raw: Object, job: Workload) -> Pod:
    """Reads a pod as the watcher, the drivers and our own controller do."""
    found = pod_of(raw, job, RANK_KEYS)
    checked = schemas.checked(schemas.Pod, raw)
    affinity = placed(checked["spec"].get("affinity", {}), ["node-1"])
    backup_of(checked, job, "spare", rank_of(job, checked, RANK_KEYS), affinity)
    brought_back(remembered(checked), "1", Places(["node-1"], ["node-2"]))
    controller_of(checked)
    topology_of(job, checked)
    joined(checked, job)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(raw=broken(pod("uid-of-job", "pod")))
@fuzzed
def test_a_broken_pod_is_refused_by_its_field(kind: Kind, raw: Object) -> None:
    """The pod may belong to a job of any kind."""
    reads(lambda: read_pod(raw, Workload(kind, JOBS[kind])))


@given(raw=broken([pod("loose", "one"), pod("loose", "two")]))
@fuzzed
def test_broken_pods_that_nobody_controls_are_refused_by_their_field(raw: list[Any]) -> None:
    """Pods without a controller are a job together."""

    def read() -> JobObject | None:
        pods = [schemas.checked(schemas.Pod, one) for one in raw if isinstance(one, dict)]
        bare = [one for one in pods if is_bare(one)]
        return job_object_of(bare_job("default", "loose", bare), observe=False) if bare else None

    reads(read)


@given(raw=broken(remembered(pod("loose", "one")) | {"metadata": pod("loose", "one")["metadata"]}))
@fuzzed
def test_broken_templates_of_such_pods_are_refused_by_their_field(raw: Object) -> None:
    """A restart leaves them, and every user of the namespace may change them."""

    def read() -> JobObject:
        job = bare_job("default", "loose", [schemas.checked(schemas.PodTemplate, raw)])
        assert job.kind is BARE
        return job_object_of(job, observe=False)

    reads(read)


@given(raw=broken(node("node-0")))
@fuzzed
def test_a_broken_node_is_refused_by_its_field(raw: Object) -> None:
    """A broken node is refused by its field: its conditions come from foreign programs."""
    reads(lambda: node_of(raw))


@given(raw=broken(namespace("default")))
@fuzzed
def test_a_broken_namespace_is_refused_by_its_field(raw: Object) -> None:
    """Only its name and its labels are read."""
    reads(lambda: schemas.checked(schemas.Named, raw))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(labels=words, annotations=words)
@fuzzed
def test_the_contracts_labels_and_annotations_may_say_anything(
    kind: Kind, labels: dict[str, str], annotations: dict[str, str]
) -> None:
    """A label or annotation of the contract, on a job or its pods, may have any value. An invalid one is refused by its name, or
    reported as a problem of the job."""
    own, its = JOBS[kind], pod("uid-of-job", "pod")
    raw = {**own, "metadata": {**own["metadata"], "labels": labels, "annotations": annotations}}
    of_it = {**its, "metadata": {**its["metadata"], "labels": labels, "annotations": annotations}}
    job = reads(lambda: read_job(kind, raw))
    found = reads(lambda: read_pod(of_it, Workload(kind, own)))
    if job and found:
        sight(JobView(job=job, pods=(found, found)))
