"""Our own kind as users see it in `kubectl`: fields that cannot be changed, its status, and its names."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.journal import JournalActivities
from rekindle.errors import Forbidden, Invalid
from rekindle.model.activities.jobs import RememberRequest
from rekindle.model.state import Remembered
from rekindle.settings import Settings
from simulators.kubernetes.binaries import kubectl
from simulators.kubernetes.installation import install
from tests.fakes.controller import apply_crds
from tests.kubernetes.world.control_plane import RBAC, WAIT_LIMIT, Namespace, endpoint_of
from tests.support.cluster import FOREVER
from workers.operator import PAUSE, Operator


@asynccontextmanager
async def operating(namespace: Namespace) -> AsyncIterator[None]:
    running = asyncio.create_task(Operator(namespace.api, Settings(cluster="kubernetes", namespaces=(namespace.name,))).run())
    try:
        yield
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def submit(namespace: Namespace, **changes: Any) -> Object:
    await apply_crds(namespace.api)
    spec = {"pods": 1, "ranksPerPod": 1, "command": list(FOREVER), "manager": None, "accelerators": 0}
    spec |= {"kubernetes": {"image": "none"}, **changes}
    body = {"apiVersion": "rekindle.io/v1", "kind": "TrainingJob", "metadata": {"name": "demo"}, "spec": spec}
    return await namespace.api.create(namespace.path("trainingjobs"), body)


def condition(job: Object, kind: str) -> Object:
    found: Object = next((one for one in job.get("status", {}).get("conditions", ()) if one["type"] == kind), {})
    return found


async def until_runs(namespace: Namespace) -> Object:
    return await namespace.until("trainingjobs", "demo", lambda job: condition(job, "Training").get("status") == "True")


CHANGES: list[Object] = [
    {"pods": 2},
    {"ranksPerPod": 2},
    {"command": ["true"]},
    {"env": {"A": "b"}},
    {"accelerators": 1},
    {"accelerators": None},
    {"manager": ["mine"]},
    {"trainingSide": "rekindle"},
    {"kubernetes": {"image": "other"}},
]


async def test_what_a_job_is_made_of_cannot_be_changed_once_it_has_begun(namespace: Namespace) -> None:
    """Fields that define a job's pods cannot be changed once it has begun, because the change would be ignored. Fields that are
    read each time may be changed."""
    await submit(namespace)
    path = namespace.path("trainingjobs", "demo")
    async with operating(namespace):
        await until_runs(namespace)
        for change in CHANGES:
            with pytest.raises(Invalid, match=rf"spec\.{next(iter(change))}.*cannot be changed once the job has begun"):
                await namespace.api.patch(path, {"spec": change})
        await namespace.api.patch(path, {"spec": {"limits": {"pause": 60}, "standbys": 1, "capabilities": ["watchdog"]}})
        job = await namespace.until("trainingjobs", "demo", lambda job: job["status"].get("observedGeneration") == 2)
    assert {one["observedGeneration"] for one in job["status"]["conditions"]} == {2}


async def test_a_job_that_was_refused_is_mended_by_changing_it(namespace: Namespace) -> None:
    """No object of a refused job was created."""
    await submit(namespace, limits={"pause": -1}, command=["false"])
    async with operating(namespace):
        job = await namespace.until("trainingjobs", "demo", lambda job: condition(job, "Accepted").get("status") == "False")
        assert "spec.limits.pause" in condition(job, "Accepted")["message"]
        change = {"limits": {"pause": 60}, "command": list(FOREVER)}
        await namespace.api.patch(namespace.path("trainingjobs", "demo"), {"spec": change})
        job = await until_runs(namespace)
    assert (condition(job, "Accepted")["status"], job["status"]["message"]) == ("True", "")


async def test_pods_that_a_quota_refuses_are_said_on_the_job_until_there_is_room(namespace: Namespace) -> None:
    """A refusal by a quota is in the job's status and in an event, with the API server's message. It is retried ever more
    rarely."""
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    path = namespace.path("resourcequotas")
    made = await namespace.api.create(path, quota)
    await namespace.until("resourcequotas", "none", lambda quota: bool(quota.get("status", {}).get("hard")))
    await submit(namespace)
    async with operating(namespace):
        job = await namespace.until("trainingjobs", "demo", lambda job: condition(job, "PodsMade").get("status") == "False")
        assert "exceeded quota: none" in condition(job, "PodsMade")["message"]
        assert "phase" not in job["status"]
        assert "exceeded quota" in (await namespace.until_event("NotDoneYet"))["message"]
        await namespace.api.delete(f"{path}/none", made["metadata"]["uid"])
        job = await until_runs(namespace)
    assert condition(job, "PodsMade")["status"] == "True"


async def test_no_job_is_made_of_two_versions_of_its_object(namespace: Namespace) -> None:
    """A quota admits a part of the pods, the owner changes the job, and the quota grows: all pods follow the changed job."""
    quota = {"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    await namespace.api.create(namespace.path("resourcequotas"), quota)
    await namespace.until("resourcequotas", "one", lambda quota: bool(quota.get("status", {}).get("hard")))
    await submit(namespace, pods=2)
    async with operating(namespace):
        await namespace.until("trainingjobs", "demo", lambda job: condition(job, "PodsMade").get("status") == "False")
        assert len((await namespace.api.list(namespace.path("pods"))).items) == 1
        await namespace.api.patch(namespace.path("trainingjobs", "demo"), {"spec": {"env": {"A": "new"}}})
        await namespace.api.patch(namespace.path("resourcequotas", "one"), {"spec": {"hard": {"pods": "9"}}})
        await until_runs(namespace)
    pods = (await namespace.api.list(namespace.path("pods"))).items
    assert len(pods) == 2
    for pod in pods:
        assert {"name": "A", "value": "new"} in pod["spec"]["containers"][0]["env"]


async def test_a_job_that_is_changed_while_its_pods_are_made_is_what_it_says(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods follow a change of the job that is made after its last pod and before it has begun. The event of that pod arrives
    later than those of the change and than the next try."""
    create, take = namespace.api.create, Operator._take_pod
    late: list[Callable[[], None]] = []
    tries = list[str]()

    def held_back(operator: Operator, change: str, pod: Object) -> None:
        if len(tries) > 1:
            take(operator, change, pod)
        else:
            late.append(lambda: take(operator, change, pod))

    async def changed(path: str, body: Object) -> Object:
        if body.get("kind") == "Pod":
            tries.append(path)
        if len(tries) > 1:
            while late:
                late.pop(0)()
        made = await create(path, body)
        if len(tries) == 1 and body.get("kind") == "Pod":
            await namespace.api.patch(namespace.path("trainingjobs", "demo"), {"spec": {"env": {"A": "new"}}})
        return made

    await submit(namespace)
    monkeypatch.setattr(namespace.api, "create", changed)
    monkeypatch.setattr(Operator, "_take_pod", held_back)
    async with operating(namespace):
        await until_runs(namespace)
    (pod,) = (await namespace.api.list(namespace.path("pods"))).items
    assert {"name": "A", "value": "new"} in pod["spec"]["containers"][0]["env"]


async def test_a_refusal_in_other_words_each_time_is_tried_again_no_sooner(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal with a different message each time, as of a webhook that counts its requests, is retried no sooner. The status
    written for each refusal causes no new look at the job."""
    create, tries, enough = namespace.api.create, list[float](), asyncio.Event()

    async def never(path: str, body: Object) -> Object:
        if body.get("kind") != "Pod":
            return await create(path, body)
        tries.append(asyncio.get_running_loop().time())
        if len(tries) == 3:
            enough.set()
        raise Forbidden(f"request {len(tries)} is denied")

    await submit(namespace)
    monkeypatch.setattr(namespace.api, "create", never)
    async with operating(namespace), asyncio.timeout(WAIT_LIMIT):
        await enough.wait()
    assert tries[2] - tries[0] > 2 * PAUSE


async def test_a_list_shows_how_jobs_are(namespace: Namespace, kubeconfig: Path) -> None:
    """The list has phase, policy, current mode and last verdict; the kind has a name, a short name and a category."""
    job = await submit(namespace)
    path = namespace.path("trainingjobs", "demo")
    await namespace.api.patch(path, {"metadata": {"labels": {"subHealthyStrategy": "hotSwitch"}}})
    async with operating(namespace):
        await until_runs(namespace)
    cluster = KubernetesCluster(Api(kubeconfig), Settings(cluster="kubernetes"))
    request = RememberRequest(
        job_id=job["metadata"]["uid"], memory=Remembered(), recovering="hot switch", last_verdict="recovered: online retry"
    )
    await ActivityEnvironment().run(JournalActivities(cluster).remember, request)
    await cluster.close()
    for name in ("trainingjobs", "rkjob", "rekindle"):
        shown = await asked(kubeconfig, "get", name, "-n", namespace.name)
        head, row = (re.split(r"  +", line.strip()) for line in shown.strip().splitlines())
        columns = dict(zip(head, row, strict=True))
        wanted = ("PHASE", "POLICY", "RECOVERING", "LAST VERDICT")
        assert [columns[name] for name in wanted] == ["Running", "hotSwitch", "hot switch", "recovered: online retry"]


async def test_a_job_that_was_given_up_has_a_condition(namespace: Namespace, kubeconfig: Path) -> None:
    """`kubectl wait` waits for the end of the recoveries of a job, and for its recovery by another try."""
    job = await submit(namespace)
    cluster = KubernetesCluster(Api(kubeconfig), Settings(cluster="kubernetes"))
    request = RememberRequest(job_id=job["metadata"]["uid"], memory=Remembered(), given_up="the pods do not run")

    async def until(status: str) -> Object:
        found = await namespace.until("trainingjobs", "demo", lambda job: condition(job, "GivenUp").get("status") == status)
        return condition(found, "GivenUp")

    async with operating(namespace):
        assert condition(await until_runs(namespace), "GivenUp") == {}
        await ActivityEnvironment().run(JournalActivities(cluster).remember, request)
        assert (await until("True"))["message"] == "the pods do not run"
        await asked(kubeconfig, "wait", "-n", namespace.name, "--for=condition=GivenUp", "rkjob/demo", "--timeout=10s")
        again = request.model_copy(update={"given_up": ""})
        await ActivityEnvironment().run(JournalActivities(cluster).remember, again)
        assert (await until("False"))["reason"] == "Resumed"
    await cluster.close()


async def asked(kubeconfig: Path, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(kubectl(print)), f"--kubeconfig={kubeconfig}", *words, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_whoever_may_see_or_edit_things_may_see_or_edit_jobs(
    kubeconfig: Path, namespace: Namespace, tmp_path: Path
) -> None:
    """The roles `view`, `edit` and `admin` of Kubernetes include our kind; a viewer may not change it."""
    await install(namespace.api, endpoint_of(kubeconfig), tmp_path)
    for role in ("view", "edit", "admin"):
        binding = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": role, "apiGroup": "rbac.authorization.k8s.io"}],
        }
        await namespace.api.create(f"{RBAC}/namespaces/{namespace.name}/rolebindings", binding)

    async def may(user: str, verb: str) -> bool:
        asked = {"verb": verb, "group": "rekindle.io", "resource": "trainingjobs", "namespace": namespace.name}
        spec = {"user": user, "resourceAttributes": asked}
        answer = await namespace.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(answer["status"]["allowed"])

    async with asyncio.timeout(WAIT_LIMIT):
        while not (await may("view", "list") and await may("admin", "delete")):  # a controller puts the roles together
            await asyncio.sleep(0.05)
    assert await may("edit", "create")
    assert not await may("view", "create")
    assert not await may("stranger", "list")
