"""Tenants of one cluster: an object of one tenant changes nothing of another one's job.

The API server is one that admits everything, and asks as the real one does.
"""

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from activities.clusters.api_server import Change, Listing
from activities.clusters.kubernetes import reader
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kind import Kind, Workload
from activities.clusters.kubernetes.kinds import ASCEND_JOB, BATCH_JOB, JOB_SET, KINDS, TRAINING_JOB
from activities.clusters.kubernetes.pod_objects import TAKES_OVER, joined
from activities.clusters.port import Snapshot
from rekindle.errors import ClusterUnavailable, NotFound
from rekindle.model import keys
from rekindle.model.cluster import JobObject, Pod, WatchEvent
from rekindle.settings import Settings
from tests.support.tenants import WAIT_LIMIT, Tenants, holders, owner
from tests.support.valid_objects import JOBS, pod


async def test_who_waits_for_many_pods_sees_at_once_what_came_meanwhile(tenants: Tenants) -> None:
    """Each look walks all pods: thousands of pods that start are not walked thousands of times."""
    await tenants.pod("victim", "pod-0", "victim.large")
    looks, seen = 0, 1
    async with aclosing(tenants.cluster.follow("victim.large")) as states:
        await anext(states)
        following = asyncio.create_task(anext(states))
        await tenants.scripted.until_watched("/api/v1/namespaces/victim/pods")
        for number in range(1, 41):
            await tenants.pod("victim", f"pod-{number}", "victim.large")
        async with asyncio.timeout(WAIT_LIMIT):
            while seen <= 40:
                looks, seen = looks + 1, len(await following)
                following = asyncio.create_task(anext(states))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert looks < 20


def test_a_backup_takes_over_a_place_and_nothing_else() -> None:
    """A backup takes over a place and nothing else. A tenant may write the annotation that describes it, and our account, which
    may do more, applies it."""
    asked = {
        "uid": "uid-of-another",
        "labels": {"controller-uid": "uid-of-train", "pod-security.example.com/exempt": "true"},
        "annotations": {"example.com/approved": "yes"},
        "ownerReferences": [owner(BATCH_JOB, "train")],
        "finalizers": ["batch.kubernetes.io/job-tracking", "example.com/never"],
    }
    backup = {"metadata": {"uid": "uid-of-spare", "annotations": {TAKES_OVER: json.dumps(asked)}, "finalizers": ["own"]}}
    job = Workload(BATCH_JOB, JOBS[BATCH_JOB])
    assert joined(backup, job) == {
        "metadata": {
            "uid": "uid-of-spare",
            "labels": {"controller-uid": "uid-of-train"},
            "annotations": {TAKES_OVER: None},
            "ownerReferences": [owner(BATCH_JOB, "train")],
            "finalizers": ["batch.kubernetes.io/job-tracking", "own"],
        }
    }


# ---- whose pod it is


@pytest.mark.parametrize("said", ["label", "owner"])
async def test_a_pod_of_another_namespace_is_no_pod_of_the_job(tenants: Tenants, said: str) -> None:
    """A tenant who knows a job's id can write it on a pod of his own, which would then hold a rank, or fail in its place."""
    await tenants.job(BATCH_JOB, "victim", "train")
    await tenants.pod("victim", "real", "uid-of-train", owner(BATCH_JOB, "train"))
    if said == "label":
        await tenants.pod("attacker", "forged", "uid-of-train", owner(BATCH_JOB, "other"))
    else:
        await tenants.pod("attacker", "forged", "", owner(JOB_SET, "train", "uid-of-train"))
    assert holders(await tenants.snapshot()) == {"real": "uid-of-train"}


async def test_pods_that_nobody_controls_never_replace_a_job(tenants: Tenants) -> None:
    """Pods with the id of another tenant's job and a name of their own are no job, and their end is not the job's."""
    await tenants.job(BATCH_JOB, "victim", "train")
    await tenants.pod("attacker", "forged", "uid-of-train")
    async with aclosing(tenants.cluster.watch()) as news:
        first = await anext(news)
        assert isinstance(first, Snapshot)
        assert [(one.kind, one.metadata.namespace) for one in first.jobs] == [("Job", "victim")]
        following = asyncio.ensure_future(anext(news))
        for path in ("/api/v1/pods", BATCH_JOB.path()):
            await tenants.scripted.until_watched(path)
        await tenants.scripted.remove("/api/v1/namespaces/attacker/pods", "forged")
        await tenants.pod("attacker", "again", "uid-of-train")
        await tenants.pod("victim", "real", "uid-of-train", owner(BATCH_JOB, "train"))
        event = await asyncio.wait_for(following, WAIT_LIMIT)
    assert isinstance(event, WatchEvent)
    assert isinstance(event.object, Pod)
    assert event.object.metadata.name == "real"


async def test_pods_that_nobody_controls_are_a_job_of_their_namespace(tenants: Tenants) -> None:
    """Pods without a controller are a job of their namespace, with which their id begins. A guessed id elsewhere has no effect,
    and an event says so."""
    await tenants.pod("attacker", "forged", "victim.guessed", made="2025-01-02T00:00:00Z")
    await tenants.pod("victim", "real", "victim.guessed")
    seen = await tenants.snapshot()
    assert [one.metadata.namespace for one in seen.jobs] == ["victim"]
    assert holders(seen) == {"real": "victim.guessed"}
    assert [one.metadata.name for one in await tenants.cluster.pods("victim.guessed")] == ["real"]
    said = await tenants.scripted.until("/api/v1/namespaces/attacker/events", "forged", "message")
    assert "begin it with its namespace and a dot, such as 'attacker.victim.guessed'" in said["message"]


async def test_a_pod_that_cannot_be_read_hides_no_job_of_another_namespace(tenants: Tenants) -> None:
    """The API server admits an amount of fifty digits. Such a pod with a foreign id says nothing about that job."""
    await tenants.pod("victim", "real", "victim.guessed")
    forged = await tenants.pod("attacker", "forged", "victim.guessed", made="2026-01-02T00:00:00Z")
    forged["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1" * 50}}
    assert [one.metadata.name for one in await tenants.cluster.pods("victim.guessed")] == ["real"]


@pytest.mark.parametrize("job_id", ["../victim.x", "victim.a,b=c", "Victim.x", "victim.", ".x", "victim.x/../y"])
async def test_an_id_that_anybody_sends_is_no_path_and_no_selector(tenants: Tenants, job_id: str) -> None:
    """The gateway looks up any text that a client gives as its job."""
    with pytest.raises(NotFound):
        await tenants.cluster.pods(job_id)
    assert not tenants.scripted.requests


@pytest.mark.parametrize(("owners", "counts"), [((), False), (("other",), False), (("part",), True), (("other", "part"), True)])
async def test_a_mark_and_an_owner_say_the_same(tenants: Tenants, owners: tuple[str, ...], counts: bool) -> None:
    """A worker that was copied without its owner belongs to no job; a backup has an owner, which does not control it yet."""
    await tenants.job(JOB_SET, "victim", "train")
    await tenants.job(BATCH_JOB, "victim", "part", owner(JOB_SET, "train"))
    await tenants.job(BATCH_JOB, "victim", "other")
    await tenants.pod("victim", "one", "uid-of-train", *({**owner(BATCH_JOB, name), "controller": False} for name in owners))
    assert holders(await tenants.snapshot()) == ({"one": "uid-of-train"} if counts else {})


async def test_who_controls_a_pod_comes_before_what_it_says(tenants: Tenants) -> None:
    """A template may carry any label."""
    await tenants.job(BATCH_JOB, "victim", "train")
    await tenants.job(BATCH_JOB, "victim", "next")
    await tenants.pod("victim", "one", "uid-of-next", owner(BATCH_JOB, "train"))
    assert holders(await tenants.snapshot()) == {"one": "uid-of-train"}


async def test_jobs_of_others_are_not_asked_for_one_by_one(tenants: Tenants) -> None:
    """A cluster may have thousands of jobs that ask for nothing: what was listed of them is known. Their pods delay no request,
    and are not shown to the drain of their node."""
    await tenants.job(BATCH_JOB, "victim", "train")
    rank = await tenants.pod("victim", "train-0", "", owner(BATCH_JOB, "train"))
    rank["metadata"]["labels"]["batch.kubernetes.io/job-name"] = "train"
    for number in range(3):
        alien = await tenants.job(BATCH_JOB, "attacker", f"alien-{number}")
        alien["metadata"]["labels"] = {}
        alien["metadata"]["annotations"] = {}
        part = await tenants.pod("attacker", f"alien-{number}-0", "", owner(BATCH_JOB, f"alien-{number}"))
        part["metadata"]["labels"]["batch.kubernetes.io/job-name"] = f"alien-{number}"
    seen = await tenants.snapshot()
    assert [one.metadata.name for one in seen.jobs] == ["train"]
    assert not [path for _, path in tenants.scripted.requests if "/jobs/alien" in path]
    assert [one.metadata.name for one in await tenants.cluster.pods_on("n")] == ["train-0"]


async def test_owners_that_are_not_there_are_asked_for_once(tenants: Tenants) -> None:
    """A tenant invents owners, or deletes a Job and leaves its pods. Without this each change of such a pod would be a
    request."""
    await tenants.job(BATCH_JOB, "victim", "train")
    await tenants.job(BATCH_JOB, "attacker", "named")
    tenants.scripted.refused["GET", BATCH_JOB.path("attacker", "gone")] = (404, "there is none")
    strange = [owner(BATCH_JOB, "gone"), owner(BATCH_JOB, "named", "uid-of-another")]
    pods = [await tenants.pod("attacker", one["name"], "", one) for one in strange]
    async with aclosing(tenants.cluster.watch()) as news:
        assert holders(await anext(news)) == {}  # type: ignore[arg-type]
        following = asyncio.ensure_future(anext(news))
        await tenants.scripted.until_watched("/api/v1/pods", len(tenants.cluster._reader.pod_labels))
        for _ in range(5):
            for pod_ in pods:
                await tenants.scripted.put("/api/v1/namespaces/attacker/pods", pod_)
        await tenants.pod("victim", "real", "", owner(BATCH_JOB, "train"))
        event = await asyncio.wait_for(following, WAIT_LIMIT)
    assert isinstance(event, WatchEvent)
    assert event.object.metadata.name == "real"
    for name in ("gone", "named"):
        assert len([path for _, path in tenants.scripted.requests if path == BATCH_JOB.path("attacker", name)]) == 1


async def test_who_may_speak_for_a_job_is_read_of_pods_and_nothing_else(tenants: Tenants) -> None:
    """Permission to speak for a job is read from its pods and nothing else. An odd field in one of them refuses no caller, and
    other fields of thousands cost no time."""
    await tenants.job(BATCH_JOB, "victim", "train")
    odd = await tenants.pod("victim", "odd", "", owner(BATCH_JOB, "train"))
    odd["metadata"]["labels"]["batch.kubernetes.io/job-name"] = "train"
    odd["spec"] |= {"affinity": "anywhere", "hostNetwork": True}
    odd["status"] = {"phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.9.0.1", "conditions": [None]}
    found = await tenants.cluster.speakers("uid-of-train")
    assert (set(found.pods), set(found.addresses)) == ({"uid-of-odd"}, {"10.0.0.1", "10.9.0.1"})


async def test_nobody_is_told_that_there_is_no_job_by_a_server_that_did_not_answer(tenants: Tenants) -> None:
    """Callers at the same time share one look at all jobs, and share its failure. Otherwise a job that trains would be taken to
    have ended."""
    tenants.scripted.refused["GET", BATCH_JOB.path()] = (503, "the store is away")
    ids = [f"uid-of-{number}" for number in range(3)]
    asked = [*map(tenants.cluster.job, ids), *map(tenants.cluster.locate, ids)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(one) for one in found} == {ClusterUnavailable}


async def test_nobody_is_told_that_there_is_no_job_by_who_has_given_up(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """One activity is cancelled in its look at all jobs, while that of another job waits for it."""
    monkeypatch.setattr(reader, "LOOK_GAP", 0.0)
    await tenants.job(BATCH_JOB, "victim", "train")
    where = ("GET", BATCH_JOB.path())
    tenants.scripted.held[where] = asyncio.Event()
    looking, waiting = [asyncio.create_task(tenants.cluster.job(f"uid-of-{name}")) for name in ("another", "train")]
    await tenants.scripted.until_asked(*where)
    looking.cancel()
    with pytest.raises(ClusterUnavailable):
        await waiting
    tenants.scripted.held.pop(where).set()
    assert (await tenants.cluster.job("uid-of-train")).metadata.name == "train"


async def test_strangers_make_us_list_all_jobs_a_part_of_the_time_only(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers with unknown jobs make us list all jobs a part of the time only: after each list, such a call waits four times as
    long as the list took."""
    now = [1000.0]
    pauses: list[float] = []

    async def listed(path: str) -> AsyncGenerator[Listing, None]:
        now[0] += 2.0
        yield Listing([], "1")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += max(0.0, seconds)

    monkeypatch.setattr(reader, "_now", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(tenants.api, "metadata", listed)
    for unknown in ("a", "b"):
        with pytest.raises(NotFound):
            await tenants.cluster.locate(unknown)
    took = 2.0 * len(KINDS)
    assert pauses[1] == 4 * took


async def test_what_was_listed_is_not_kept_while_it_is_watched(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed objects are not kept while they are watched: each has a hundred times as much as is read of it."""
    await tenants.job(BATCH_JOB, "victim", "train")
    listed: list[weakref.ref[Change]] = []
    real = tenants.api.everything

    async def everything(path: str, **selectors: str) -> AsyncGenerator[Change, None]:
        async for change in real(path, **selectors):
            listed.append(weakref.ref(change))
            yield change

    monkeypatch.setattr(tenants.api, "everything", everything)
    async with aclosing(tenants.cluster.watch()) as news:
        await anext(news)
        following = asyncio.create_task(anext(news))
        await tenants.scripted.until_watched("/api/v1/nodes")
        gc.collect()
        assert not [one for one in listed if one()]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_forged_owner_takes_no_pods_from_a_job_set(tenants: Tenants) -> None:
    """A pod that names its own Job with the UID of another tenant's Job says nothing about that one."""
    await tenants.job(JOB_SET, "attacker", "mine")
    await tenants.job(BATCH_JOB, "attacker", "forged", owner(JOB_SET, "mine"))
    await tenants.job(JOB_SET, "victim", "train")
    await tenants.job(BATCH_JOB, "victim", "part", owner(JOB_SET, "train"))
    await tenants.pod("attacker", "first", "", owner(BATCH_JOB, "forged", "uid-of-part"))
    await tenants.pod("victim", "real", "", owner(BATCH_JOB, "part"))
    assert holders(await tenants.snapshot()) == {"real": "uid-of-train"}


# ---- what the API server would refuse


async def test_a_job_whose_set_is_deleted_without_it_has_its_pods(tenants: Tenants) -> None:
    """The job keeps its pods after `kubectl delete jobset --cascade=orphan`: the former JobSet is not remembered. Otherwise the
    job would have no pods, and be restarted."""
    await tenants.job(JOB_SET, "victim", "set")
    await tenants.job(BATCH_JOB, "victim", "part", owner(JOB_SET, "set"))
    pod_ = await tenants.pod("victim", "worker", "", owner(BATCH_JOB, "part"))
    pod_["metadata"]["labels"] |= {"batch.kubernetes.io/job-name": "part", "jobset.sigs.k8s.io/jobset-name": "set"}
    worker = KubernetesCluster(tenants.api, Settings(cluster="kubernetes"))
    assert [pod.metadata.name for pod in await worker.pods("uid-of-set")] == ["worker"]
    async with aclosing(tenants.cluster.watch()) as news:
        first = await anext(news)
        assert isinstance(first, Snapshot)
        assert holders(first) == {"worker": "uid-of-set"}
        following = asyncio.ensure_future(anext(news))
        await tenants.scripted.until_watched(BATCH_JOB.path())
        await tenants.job(BATCH_JOB, "victim", "part")
        await tenants.scripted.remove(JOB_SET.path("victim"), "set")
        async with asyncio.timeout(WAIT_LIMIT):
            event = await following
            while not (isinstance(event, WatchEvent) and isinstance(event.object, Pod)):
                event = await anext(news)
        assert event.object.metadata.owner_uid == "uid-of-part"
    assert [pod.metadata.name for pod in await worker.pods("uid-of-part")] == ["worker"]


async def test_a_job_whose_name_fits_into_no_label_does_not_end_the_watch(tenants: Tenants) -> None:
    """A job whose name is too long for a label does not end the watch, though the API server refuses a selector with 64
    characters. An event reports the limit."""
    name = "x" * 64
    pods = "/api/v1/namespaces/attacker/pods"
    tenants.scripted.refused["GET", pods] = (400, "unable to parse requirement: must be no more than 63 characters")
    async with aclosing(tenants.cluster.watch()) as news:
        await anext(news)
        following = asyncio.ensure_future(anext(news))
        for kind in (ASCEND_JOB, BATCH_JOB):
            await tenants.scripted.until_watched(kind.path())
        await tenants.job(ASCEND_JOB, "attacker", name)
        said = await tenants.scripted.until("/api/v1/namespaces/attacker/events", name, "message")
        await tenants.job(BATCH_JOB, "victim", "train")
        event = await asyncio.wait_for(following, WAIT_LIMIT)
    assert "at most 63" in said["message"]
    assert isinstance(event, WatchEvent)
    assert isinstance(event.object, JobObject)
    assert event.object.metadata.name == "train"


async def test_what_is_wrong_with_an_object_is_said_whatever_the_length_of_its_name(tenants: Tenants) -> None:
    """An event's name is that of its object and a little more, and no longer than the API server admits."""
    await tenants.job(JOB_SET, "attacker", "x" * 253)
    await tenants.snapshot()
    event = await tenants.scripted.until("/api/v1/namespaces/attacker/events", "x", "reason")
    assert event["reason"] == "JobRefused"
    assert len(event["metadata"]["name"]) == 253


async def test_the_name_of_an_owner_may_have_any_length(tenants: Tenants) -> None:
    """The API server keeps owners with names of a megabyte, and answers no request for one."""
    await tenants.job(BATCH_JOB, "victim", "train")
    await tenants.pod("victim", "real", "uid-of-train", owner(BATCH_JOB, "train"))
    await tenants.pod("attacker", "endless", "", owner(BATCH_JOB, "x" * 1_200_000))
    assert holders(await tenants.snapshot()) == {"real": "uid-of-train"}


async def test_an_object_of_many_megabytes_does_not_end_the_watch(tenants: Tenants) -> None:
    """The API server writes some characters as six, so an event may be several times as large as its object."""
    path = "/api/v1/namespaces/victim/pods"
    await tenants.scripted.put(path, pod("", "large"))
    async with aclosing(tenants.api.watch(path, "1")) as changes:
        following = asyncio.ensure_future(anext(changes))
        await tenants.scripted.until_watched(path)
        large = pod("", "large")
        large["spec"]["containers"][0]["args"] = ["x" * 9_000_000]
        await tenants.scripted.put(path, large)
        assert (await asyncio.wait_for(following, WAIT_LIMIT)).object["metadata"]["name"] == "large"


@pytest.mark.parametrize("name", ["../../../nodes/node-0", "a?watch=true", "", "x" * 1000])
async def test_the_name_of_a_pod_that_was_left_behind_is_no_path(tenants: Tenants, name: str) -> None:
    """Such names are read from an annotation of the job, where its tenant writes too."""
    await tenants.job(BATCH_JOB, "victim", "train")
    await tenants.cluster.ensure_deleted("uid-of-train", name, "uid", 0)
    jobs = {kind.path() for kind in KINDS} | {BATCH_JOB.path("victim", "train")}
    assert {path.partition("?")[0] for _, path in tenants.scripted.requests} <= jobs


async def test_an_owner_of_another_group_is_no_job_of_ours_although_its_kind_has_the_same_name(tenants: Tenants) -> None:
    """Volcano has a Job too, and SageMaker a TrainingJob: a Job that they own is a job of its own, with its pods."""
    for name, above in (("volcano", "batch.volcano.sh/v1alpha1"), ("sagemaker", "sagemaker.services.k8s.aws/v1alpha1")):
        kind = "Job" if name == "volcano" else "TrainingJob"
        other = {"apiVersion": above, "kind": kind, "name": "other", "uid": "uid-of-other", "controller": True}
        await tenants.job(BATCH_JOB, "victim", name, other)
        await tenants.pod("victim", f"pod-of-{name}", "", owner(BATCH_JOB, name))
    seen = await tenants.snapshot()
    assert {job.metadata.name for job in seen.jobs} == {"volcano", "sagemaker"}
    assert holders(seen) == {"pod-of-volcano": "uid-of-volcano", "pod-of-sagemaker": "uid-of-sagemaker"}


# ---- environment of our own kind


async def test_a_container_has_its_owners_variables_beside_those_of_the_contract(tenants: Tenants) -> None:
    """A Secret's key can be named there only. Without the contract's own variables the pod would not find its job or its rank."""
    body = await tenants.job(TRAINING_JOB, "victim", "train")
    key = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "safe", "key": "word"}}}
    body["spec"]["kubernetes"]["container"] = {"env": [key, {"name": keys.ENV_MASTER_PORT, "value": "1"}]}
    await tenants.cluster.ensure_pods("uid-of-train", "0", ())
    spec = tenants.scripted.collections["/api/v1/namespaces/victim/pods"]["train-worker-0"]["spec"]
    environment = spec["containers"][0]["env"]
    named = {entry["name"]: entry for entry in environment}
    assert len(named) == len(environment)
    assert named["PASSWORD"] == key
    assert named[keys.ENV_JOB_ID]["value"] == "uid-of-train"
    assert named[keys.ENV_POD_RANK]["valueFrom"]
    assert named[keys.ENV_MASTER_PORT]["value"] == "1"


@pytest.mark.parametrize("kind", [TRAINING_JOB, BATCH_JOB])
async def test_standbys_are_named_after_their_job_and_no_other(tenants: Tenants, kind: Kind) -> None:
    """A job of another kind may have the same name in the same namespace, where a pod's name is unique."""
    await tenants.job(kind, "victim", "job", uid="1a2b3c4d-5e6f")
    await tenants.pod("victim", "worker", "1a2b3c4d-5e6f", owner(kind, "job", "1a2b3c4d-5e6f"))
    (standby,) = await tenants.cluster.ensure_standbys("1a2b3c4d-5e6f", 1, ())
    assert standby.metadata.name == "job-1a2b3-standby-0"


async def test_the_name_of_a_standby_fits_into_its_hosts(tenants: Tenants) -> None:
    """The length of its job's name does not matter."""
    await tenants.job(TRAINING_JOB, "victim", "t" * 63)
    await tenants.pod("victim", "worker", f"uid-of-{'t' * 63}", owner(TRAINING_JOB, "t" * 63))
    (standby,) = await tenants.cluster.ensure_standbys(f"uid-of-{'t' * 63}", 1, ())
    assert len(standby.metadata.name) <= 63


@pytest.mark.parametrize(
    "name", ["../namespaces/victim/pods/worker", "node?watch=true", "%2e%2e/namespaces", "", "Node", "n" * 300]
)
async def test_the_name_of_a_node_reaches_no_other_object(tenants: Tenants, name: str) -> None:
    """Training sides and administrators name nodes, and the name would be a part of a path."""
    for ask in (lambda: tenants.cluster.node(name), lambda: tenants.cluster.annotate_node(name, {keys.HEALTH: "well"})):
        with pytest.raises(NotFound):
            await ask()
    assert not tenants.scripted.requests


async def test_a_driver_that_is_closed_records_what_it_has_refused(tenants: Tenants) -> None:
    """The event of a refused object is recorded in the background. A worker that stops at once does not lose it."""
    await tenants.job(BATCH_JOB, "victim", "train")
    tenants.scripted.collections[BATCH_JOB.path("victim")]["train"]["spec"]["completions"] = "many"
    await tenants.snapshot()
    await tenants.cluster.close()
    (event,) = tenants.scripted.collections["/api/v1/namespaces/victim/events"].values()
    assert (event["reason"], event["regarding" if "regarding" in event else "involvedObject"]["name"]) == ("JobRefused", "train")
