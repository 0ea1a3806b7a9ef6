"""An installation that is gone leaves no mark on jobs, pods and nodes, and no job that does not train."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import leftovers as leftovers_module
from activities.clusters.kubernetes.claims import Claims
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kinds import JOB_SET
from activities.clusters.kubernetes.leftovers import LEASES, Leftovers
from activities.clusters.kubernetes.pod_objects import BACKUP_OF
from rekindle.cli.exits import Exit
from rekindle.cli.ports import free_ports
from rekindle.errors import Forbidden
from rekindle.model import keys
from rekindle.policy.detection import isolation
from rekindle.settings import Settings
from tests.fakes.ascend_operator import groups_path, submit_ascend_job
from tests.fakes.controller import annotations_of, apply_crds, labels_of
from tests.fakes.foreign import Setting
from tests.kubernetes.test_claims import a_job, claims_of
from tests.kubernetes.world.control_plane import Namespace
from workers.removal import removed

NODE = "/api/v1/nodes/node-2"


class Installation:
    """An installation in a namespace of its own, as far as it writes on objects of others."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace, self.settings = namespace, Settings(namespaces=(namespace.name,), namespace=namespace.name)
        self.claims: Claims = claims_of(namespace, "ours")
        self.cluster = KubernetesCluster(namespace.api, self.settings, claims=self.claims)

    async def serves(self, uid: str) -> None:
        """Recovers a job: claims it, and leaves notes and a budget."""
        await self.claims.renew()
        await self.cluster.ensure_job_metadata(uid, {}, {keys.MEMORY: "{}", keys.LAST_VERDICT: "recovered"})
        await self.cluster.evictions.ensure_budget(uid, holds=True)

    async def found(self) -> dict[str, str]:
        """Returns what is left of each object of this test."""
        return {one.thing: one.words async for one in self.leftovers().find()}

    async def remove(self) -> list[str]:
        """Removes all of it, and returns what became of each."""
        return [(await removed(one))[1] async for one in self.leftovers().find()]

    def leftovers(self, namespace: str = "") -> Leftovers:
        """Returns what looks for things that are left, by default for the installation itself."""
        settings = self.settings.model_copy(update={"namespace": namespace or self.settings.namespace})
        return Leftovers(self.namespace.api, settings, again=0.2)

    async def no_other_lives(self) -> None:
        """Deletes the Leases of other tests."""
        for lease in (await self.namespace.api.list(LEASES, labelSelector="app.kubernetes.io/part-of=rekindle")).items:
            where = f"/apis/coordination.k8s.io/v1/namespaces/{lease['metadata']['namespace']}/leases/{lease['metadata']['name']}"
            await self.namespace.api.delete(where, lease["metadata"]["uid"])

    async def objects(self) -> dict[str, Object]:
        """Returns what users see of the objects of the namespace, by path."""
        found: dict[str, Object] = {}
        for kind in ("jobs", "pods", "poddisruptionbudgets", "leases", "configmaps"):
            path = _path(self.namespace, kind)
            for one in (await self.namespace.api.list(path)).items:
                spec = {key: value for key, value in (one.get("spec") or {}).items() if key not in ("suspend", "nodeName")}
                marks = (labels_of(one), annotations_of(one))
                found[f"{kind}/{one['metadata']['name']}"] = {"marks": marks, "spec": spec}
        return found


def _path(namespace: Namespace, kind: str) -> str:
    groups = {"jobs": "/apis/batch/v1", "poddisruptionbudgets": "/apis/policy/v1", "leases": "/apis/coordination.k8s.io/v1"}
    return f"{groups.get(kind, '/api/v1')}/namespaces/{namespace.name}/{kind}"


@pytest.fixture
def installation(namespace: Namespace) -> Installation:
    return Installation(namespace)


async def test_no_mark_stays_on_a_job_that_trains(installation: Installation) -> None:
    """Objects are as they were before the installation served the job; the notes of the job's owner stay."""
    job = await a_job(installation.namespace)
    own = {keys.LIMITS: "pause: 60s"}
    await installation.namespace.api.patch(installation.namespace.path("jobs", "train"), {"metadata": {"annotations": own}})
    await installation.namespace.until("jobs", "train", lambda job: job["status"].get("active") == 1)
    before = await installation.objects()
    await installation.serves(job["metadata"]["uid"])
    found = await installation.found()
    place = installation.namespace.name
    assert found[f"Job {place}/train"] == f"annotations {keys.MEMORY}, {keys.RECOVERED_BY}, {keys.LAST_VERDICT}"
    assert {one.split()[0] for one in found} == {"Job", "PodDisruptionBudget", "Lease"}
    assert set(await installation.remove()) == {"removed"}
    assert await installation.objects() == before
    assert await installation.found() == {}


async def test_a_job_that_a_restart_has_suspended_is_resumed(installation: Installation) -> None:
    """The processes died between the suspension and the new pods: without them, nobody would resume the job."""
    uid = (await a_job(installation.namespace))["metadata"]["uid"]
    await installation.serves(uid)
    await installation.cluster.ensure_stopped(uid, 0)
    path = installation.namespace.path("jobs", "train")
    assert (await installation.namespace.api.get(path))["spec"]["suspend"]
    found = await installation.found()
    assert "suspended by a restart that was not finished" in found[f"Job {installation.namespace.name}/train"]
    await installation.remove()
    job = await installation.namespace.api.get(path)
    assert not job["spec"]["suspend"]
    assert keys.STOPPED not in annotations_of(job)


async def test_a_job_that_its_owner_has_suspended_stays_suspended(installation: Installation) -> None:
    """Lifts a suspension by a restart, and no other."""
    job = await a_job(installation.namespace, suspend=True)
    await installation.serves(job["metadata"]["uid"])
    await installation.remove()
    assert (await installation.namespace.api.get(installation.namespace.path("jobs", "train")))["spec"]["suspend"]


async def test_process_level_recovery_does_not_stay_on_pause(installation: Installation) -> None:
    """Volcano would restart the job as a whole at the next fault."""
    namespace = installation.namespace
    await apply_crds(namespace.api)
    job = await submit_ascend_job(namespace)
    name = f"{job['metadata']['name']}-{job['metadata']['uid']}"
    group = {"metadata": {"name": name, "labels": {keys.PROCESS_RECOVER_ENABLE: "pause"}}, "spec": {"minMember": 2}}
    kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
    await namespace.api.create(groups_path(namespace.name), {**kind, **group})
    assert await installation.found() == {}  # ClusterD may have paused a job that we never served
    await installation.cluster.ensure_job_metadata(job["metadata"]["uid"], {}, {keys.LAST_VERDICT: "recovered"})
    assert (await installation.found())[f"AscendJob {namespace.name}/demo"].endswith("of its PodGroup is pause")
    assert await installation.remove() == ["removed"]
    assert labels_of(await namespace.api.get(groups_path(namespace.name, name)))[keys.PROCESS_RECOVER_ENABLE] == "on"


async def test_pods_that_train_stay_and_those_that_wait_go(setting: Setting) -> None:
    """A standby is deleted. A pod that has taken a rank over loses the marks of its past, and its processes are not touched."""
    namespace = setting.namespace
    installation = Installation(namespace)
    uid = await setting.running(await a_job(namespace), 1)
    await setting.hot_switch(uid, "0", "train-hot-0001")
    (standby,) = await setting.cluster.ensure_standbys(uid, 1, ())
    before = await namespace.api.get(namespace.path("pods", "train-hot-0001"))
    found = await installation.found()
    assert found[f"Pod {namespace.name}/{standby.metadata.name}"] == "standby"
    assert keys.JOB_ID in found[f"Pod {namespace.name}/train-hot-0001"]
    assert set(await installation.remove()) == {"removed"}
    after = await namespace.api.get(namespace.path("pods", "train-hot-0001"))
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])
    assert not [key for key in {**labels_of(after), **annotations_of(after)} if key.startswith("rekindle.io/")]
    await setting.until_gone(uid, standby)
    assert await installation.found() == {}


@pytest.mark.parametrize("is_served", [True, False])
@pytest.mark.parametrize("from_standby", [True, False])
async def test_a_pod_that_has_taken_over_stays_before_it_is_promoted(
    setting: Setting, is_served: bool, from_standby: bool
) -> None:
    """The processes died after the old pod was deleted. Nothing else holds the rank."""
    namespace = setting.namespace
    installation = Installation(namespace)
    uid = await setting.running(await a_job(namespace), 1)
    if is_served:
        await installation.serves(uid)
    if from_standby:
        (standby,) = await setting.cluster.ensure_standbys(uid, 1, ())
        await setting.until_runs(uid, standby)
    old = await setting.holder(uid, "0")
    backup = await setting.until_runs(uid, await setting.cluster.ensure_backup(old, "train-hot-0001", ()))
    await setting.cluster.ensure_deleted(uid, old.metadata.name, old.metadata.uid, 0)
    await setting.until_gone(uid, old)
    assert set(await installation.remove()) == {"removed"}
    (after,) = (await namespace.api.list(namespace.path("pods"))).items
    assert after["metadata"]["uid"] == backup.metadata.uid
    assert "deletionTimestamp" not in after["metadata"]
    marks = {**labels_of(after), **annotations_of(after)}
    assert not [key for key in marks if key.startswith("rekindle.io/") or key in (keys.POD_TYPE, keys.BACKUP_SOURCE)]
    assert await installation.found() == {}


async def test_a_backup_goes_while_the_old_pod_trains(setting: Setting) -> None:
    """The processes died at the beginning of a hot switch."""
    namespace = setting.namespace
    uid = await setting.running(await a_job(namespace), 1)
    old = await setting.holder(uid, "0")
    backup = await setting.until_runs(uid, await setting.cluster.ensure_backup(old, "train-hot-0001", ()))
    assert await Installation(namespace).remove() == ["removed"]
    await setting.until_gone(uid, backup)
    (after,) = (await namespace.api.list(namespace.path("pods"))).items
    assert after["metadata"]["uid"] == old.metadata.uid


async def test_a_node_that_was_set_aside_is_released(installation: Installation) -> None:
    """A mark that another party set stays."""
    api = installation.namespace.api
    await installation.no_other_lives()
    await api.patch(NODE, {"metadata": {"annotations": dict(isolation.isolation({}, "two incidents"))}})
    try:
        assert (await installation.found())["Node node-2"] == "isolated: two incidents"
        assert await installation.remove() == ["removed"]
        assert not {keys.ISOLATED, keys.NODE_HEALTHY} & {*annotations_of(await api.get(NODE))}
        await api.patch(NODE, {"metadata": {"annotations": {keys.NODE_HEALTHY: isolation.UNHEALTHY}}})
        assert await installation.found() == {}
    finally:
        await api.patch(NODE, {"metadata": {"annotations": {keys.ISOLATED: None, keys.NODE_HEALTHY: None}}})


async def test_the_jobs_of_another_installation_that_lives_are_left_alone(installation: Installation) -> None:
    """Marks and budget of the other one stay. When it is gone too, they are left over like ours."""
    namespace = installation.namespace
    await installation.serves((await a_job(namespace))["metadata"]["uid"])
    (lease,) = (await namespace.api.list(_path(namespace, "leases"))).items
    elsewhere = installation.leftovers("default")
    assert {one.thing async for one in elsewhere.find()} == set()
    long_ago = {"spec": {"renewTime": datetime(2026, 1, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
    await namespace.api.patch(f"{_path(namespace, 'leases')}/{lease['metadata']['name']}", long_ago)
    later = installation.leftovers("default")
    assert {one.thing.split()[0] async for one in later.find()} == {"Job", "PodDisruptionBudget"}


async def test_a_node_stays_isolated_while_another_installation_lives(namespace: Namespace, installation: Installation) -> None:
    """The mark does not say whose it is: the other one may have set it after a stress test."""
    api = namespace.api
    await installation.claims.renew()
    await api.patch(NODE, {"metadata": {"annotations": dict(isolation.isolation({}, "stress test"))}})
    try:
        (node,) = [one async for one in installation.leftovers("default").find() if one.thing == "Node node-2"]
        assert (await removed(node))[0]
        assert "another installation lives: rekindle nodes release node-2" in node.words
        assert keys.ISOLATED in annotations_of(await api.get(NODE))
    finally:
        await api.patch(NODE, {"metadata": {"annotations": {keys.ISOLATED: None, keys.NODE_HEALTHY: None}}})


async def test_an_installation_lives_although_its_clock_is_late(
    namespace: Namespace, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Lease that looks old is read again after a renewal was due."""
    await installation.claims.renew()
    (lease,) = (await namespace.api.list(_path(namespace, "leases"))).items
    path = f"{_path(namespace, 'leases')}/{lease['metadata']['name']}"
    await namespace.api.patch(path, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    leftovers = installation.leftovers()

    async def renewed(_seconds: float) -> None:
        await namespace.api.patch(path, {"spec": {"renewTime": "2026-01-01T00:00:10.000000Z"}})

    monkeypatch.setattr(leftovers_module, "asyncio", SimpleNamespace(sleep=renewed))
    assert await leftovers.running() == f"{namespace.name}/{lease['metadata']['name']}"
    monkeypatch.undo()
    assert await installation.leftovers().running() == ""


async def test_the_parts_and_bare_pods_of_another_installation_are_left_alone(installation: Installation) -> None:
    """Pods of a JobSet belong to a Job of it, which does not name its installation. Bare pods name it on one of them."""
    namespace, api = installation.namespace, installation.namespace.api
    await apply_crds(api)
    await installation.claims.renew()
    marks = {keys.RECOVERED_BY: await installation.claims.own(), keys.MEMORY: "{}"}
    sets = JOB_SET
    whole: Object = {"metadata": {"name": "set", "annotations": marks}, "spec": {"replicatedJobs": []}}
    whole = await api.create(sets.path(namespace.name), {"apiVersion": sets.api_version, "kind": "JobSet", **whole})
    owner = {"apiVersion": sets.api_version, "kind": "JobSet", "name": "set", "uid": whole["metadata"]["uid"], "controller": True}
    part = await a_job(namespace, suspend=True)
    await api.patch(namespace.path("jobs", "train"), {"metadata": {"ownerReferences": [owner]}})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": part["metadata"]["uid"]}
    spec = {"containers": [{"name": "main", "image": "none"}]}
    bare = {keys.JOB_ID: f"{namespace.name}.gpt", keys.BARE_JOB_NAME: "gpt"}
    pods: dict[str, Object] = {
        "set-0": {"labels": {keys.GENERATION: "3"}, "ownerReferences": [{**owner, "controller": True}]},
        "gpt-0": {"labels": bare, "annotations": marks},
        "gpt-1-hot": {"labels": {**bare, BACKUP_OF: "gone"}, "annotations": {keys.POD_TYPE: "backup"}},
    }
    for name, more in pods.items():
        await api.create(namespace.path("pods"), {"metadata": {"name": name, **more}, "spec": spec})
    elsewhere = installation.leftovers("default")
    assert {one.thing async for one in elsewhere.find()} == set()


async def test_a_job_that_cannot_be_changed_does_not_keep_the_others(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is shown beside it, and it is found again."""
    await installation.serves((await a_job(installation.namespace))["metadata"]["uid"])
    patch = installation.namespace.api.patch

    async def refused(path: str, body: Object) -> Object:
        if "/jobs/" in path:
            raise Forbidden("a policy of the cluster says no")
        return await patch(path, body)

    monkeypatch.setattr(installation.namespace.api, "patch", refused)
    said = await installation.remove()
    assert sorted(set(said)) == ["not removed: a policy of the cluster says no", "removed"]
    assert {one.split()[0] for one in await installation.found()} == {"Job"}


# ---- the command


@asynccontextmanager
async def expired(installation: Installation) -> AsyncIterator[None]:
    """Lets the Lease of the installation look as if its processes had ended a while ago."""
    path = _path(installation.namespace, "leases")
    for lease in (await installation.namespace.api.list(path)).items:
        await installation.namespace.api.patch(f"{path}/{lease['metadata']['name']}", {"spec": {"renewTime": None}})
    yield


async def uninstall(kubeconfig: Path, namespace: Namespace, *options: str, **more: str) -> tuple[int | None, str, str]:
    """Runs the command, and returns its exit code and what it wrote."""
    environment: Mapping[str, str] = {**os.environ, "REKINDLE_NAMESPACES": json.dumps([namespace.name]), **more}
    said = [] if "REKINDLE_NAMESPACE" in more else [f"--namespace={namespace.name}"]
    command = ["-P", "-m", "rekindle", "uninstall", f"--kubeconfig={kubeconfig}", *said, *options]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.costly
async def test_the_command_lists_removes_and_then_finds_nothing(kubeconfig: Path, installation: Installation) -> None:
    """The command only lists while the installation runs. The exit code says whether something is left."""
    namespace = installation.namespace
    await installation.serves((await a_job(namespace))["metadata"]["uid"])
    code, output, _ = await uninstall(kubeconfig, namespace, "--check")
    assert (code, f"Job {namespace.name}/train: annotations" in output, "left: 3; " in output) == (1, True, True)
    code, output, errors = await uninstall(kubeconfig, namespace)
    assert (code, output) == (4, "")
    assert "the installation is running, its Lease" in errors
    async with expired(installation):
        code, output, _ = await uninstall(kubeconfig, namespace, "--output=json")
        assert code == 0
        assert {one["result"] for one in map(json.loads, output.splitlines())} == {"removed"}
        code, output, _ = await uninstall(kubeconfig, namespace, "--check")
        assert (code, output) == (0, "nothing of the installation is left on jobs, pods and nodes\n")


async def test_a_server_that_does_not_answer_is_no_remainder(namespace: Namespace, kubeconfig: Path, tmp_path: Path) -> None:
    """A script that waits for exit code 0, or acts on 1, must not take an outage for either."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_ports(1)[0]}"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    code, output, errors = await uninstall(tmp_path / "kubeconfig", namespace, "--check")
    assert (code, output, errors.startswith("error: ")) == (3, "", True), errors


async def test_an_output_that_is_lost_is_no_remainder(kubeconfig: Path, namespace: Namespace) -> None:
    """The disk is full, or a pipe was closed. Nothing is left, and nobody has read it."""
    command = ["-P", "-m", "rekindle", "uninstall", "--check", f"--kubeconfig={kubeconfig}", f"--namespace={namespace.name}"]
    environment = {**os.environ, "REKINDLE_NAMESPACES": json.dumps([namespace.name])}
    full = os.open("/dev/full", os.O_WRONLY)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=environment, stdout=full, stderr=asyncio.subprocess.PIPE
    )
    os.close(full)
    _, errors = await process.communicate()
    assert process.returncode == Exit.UNWRITTEN
    assert errors.decode().startswith("error: the output could not be written")


async def test_what_may_not_be_looked_at_is_no_remainder(namespace: Namespace, kubeconfig: Path, tmp_path: Path) -> None:
    """The account has no rights, and the message says which it needs."""
    code, output, errors = await uninstall(await namespace.kubeconfig_of("nobody", kubeconfig, tmp_path), namespace, "--check")
    assert (code, output) == (3, "")
    assert "cannot list resource" in errors


async def test_words_of_others_cannot_control_a_terminal(kubeconfig: Path, namespace: Namespace) -> None:
    """A node writes its own annotations, and what is isolated is listed with the reason."""
    await namespace.api.patch(NODE, {"metadata": {"annotations": {keys.ISOLATED: "\x1b[2Jnothing\nis left"}}})
    try:
        code, output, _ = await uninstall(kubeconfig, namespace, "--check")
    finally:
        await namespace.api.patch(NODE, {"metadata": {"annotations": {keys.ISOLATED: None}}})
    assert code == 1
    assert "Node node-2: isolated: ?[2Jnothing is left" in output


async def test_the_namespace_may_be_said_by_the_environment(kubeconfig: Path, installation: Installation) -> None:
    """The Lease of the installation is found, as `rekindle doctor` finds it."""
    await installation.claims.renew()
    namespace = installation.namespace
    code, output, _ = await uninstall(kubeconfig, namespace, "--check", REKINDLE_NAMESPACE=namespace.name)
    assert (code, f"Lease {namespace.name}/" in output) == (1, True), output


async def test_a_kubeconfig_that_is_missing_is_named(namespace: Namespace, tmp_path: Path) -> None:
    """The message says which file was looked for."""
    code, _, errors = await uninstall(tmp_path / "none", namespace, "--check")
    assert code == 2
    assert f"--kubeconfig: {tmp_path / 'none'} is not a file" in errors
