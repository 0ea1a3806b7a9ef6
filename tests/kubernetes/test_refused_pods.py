"""Restarts whose new pods the cluster refuses: who refuses them is asked before anything is stopped, and passed on meanwhile."""

import asyncio
from pathlib import Path

import pytest

from rekindle.errors import Conflict, Refused, Withheld
from rekindle.model import keys
from tests.fakes.controller import annotations_of
from tests.fakes.foreign import Setting
from tests.fakes.kubeflow import PATHS, SUBMIT
from tests.kubernetes.world.control_plane import Namespace
from tests.kubernetes.world.worlds import WORLDS, OwnKind, tried

ASKS = {"labels": {keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}}
ENFORCE = "pod-security.kubernetes.io/enforce"
WAIT_LIMIT = 60.0

every_kind = pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.same_path(over="kind")) for kind in SUBMIT])


async def secure(namespace: Namespace, standard: str | None) -> None:
    """Changes, as an administrator does, what pods of a namespace may do."""
    await namespace.api.patch(f"/api/v1/namespaces/{namespace.name}", {"metadata": {"labels": {ENFORCE: standard}}})


async def limit(namespace: Namespace, amount: int | str, of: str = "pods") -> None:
    """A quota, as soon as it counts."""
    path = namespace.path("resourcequotas")
    await namespace.api.create(path, {"metadata": {"name": "gpus"}, "spec": {"hard": {of: str(amount)}}})
    async with asyncio.timeout(WAIT_LIMIT):
        while not (await namespace.api.get(f"{path}/gpus")).get("status", {}).get("used"):
            await asyncio.sleep(0.05)


@every_kind
async def test_nothing_is_stopped_where_the_new_pods_would_be_refused(setting: Setting, kind: str) -> None:
    """The standard of the namespace became stricter while the job ran: its pods run on, and the refusal has the server's
    message."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    await secure(setting.namespace, "restricted")
    with pytest.raises(Refused, match=r"the cluster would refuse the new pods: .*violates PodSecurity"):
        await setting.cluster.ensure_stopped(uid, 0)
    assert not [pod for pod in await setting.cluster.pods(uid) if pod.metadata.deletion_timestamp]
    job = await setting.namespace.api.get(PATHS[kind](setting.namespace.name, "demo"))
    assert keys.STOPPED not in annotations_of(job)


async def test_pods_of_our_own_kind_are_asked_for_before_they_are_stopped(kubeconfig: Path, tmp_path: Path) -> None:
    """No controller makes them but us."""
    async with WORLDS["direct, TrainingJob"](kubeconfig, tmp_path) as world:
        assert isinstance(world, OwnKind)
        uid = await world.job(2)
        await secure(world.namespace, "restricted")
        with pytest.raises(Refused, match="violates PodSecurity"):
            await world.cluster.ensure_stopped(uid, 0)
        await secure(world.namespace, None)
        stopped = await world.cluster.ensure_stopped(uid, 0)
        for pod in stopped:
            await world.until_gone(uid, pod)
        await secure(world.namespace, "restricted")
        with pytest.raises(Withheld, match="violates PodSecurity"):
            await world.cluster.ensure_pods(uid, "second", ())


@pytest.mark.parametrize(("pods", "refused"), [(4, False), (3, True)])
async def test_a_quota_that_is_full_of_the_job_itself_refuses_no_restart(setting: Setting, pods: int, *, refused: bool) -> None:
    """The pods of a job make room for themselves, unless there are more of them than are allowed now."""
    uid = await setting.running(await SUBMIT["JobSet"](setting.namespace, ASKS))
    await limit(setting.namespace, pods)
    if refused:
        with pytest.raises(Refused, match="exceeded quota: gpus"):
            await setting.cluster.ensure_stopped(uid, 0)
    else:
        assert len(await setting.cluster.ensure_stopped(uid, 0)) == pods


@pytest.mark.parametrize("amount", ["4e9", "4000M", "3906250Ki"])
async def test_a_quota_may_be_written_in_any_of_the_ways_that_there_are(setting: Setting, amount: str) -> None:
    """The server returns the quota as it was written, and its use in the format of the pods. A restart is allowed for each
    format."""
    container = {"resources": {"requests": {"memory": "1G"}}}
    uid = await setting.running(await SUBMIT["JobSet"](setting.namespace, ASKS, container))
    await limit(setting.namespace, amount, "requests.memory")
    assert len(await setting.cluster.ensure_stopped(uid, 0)) == 4


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
async def test_what_a_controller_says_is_passed_on(setting: Setting, kind: str) -> None:
    """The controller creates no pods, and tries again. The answer contains its message until the pods exist."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    stopped = await setting.cluster.ensure_stopped(uid, 0)
    await setting.until_gone(uid, *stopped)
    await secure(setting.namespace, "restricted")
    with pytest.raises(Withheld, match=r"0 of 4 pods of .* are there: FailedCreate.* violates PodSecurity"):
        await tried(lambda: setting.cluster.ensure_pods(uid, "second", ()))
    await secure(setting.namespace, None)
    assert len(await made(setting, uid)) == len(stopped)


async def made(setting: Setting, uid: str) -> list[object]:
    async with asyncio.timeout(WAIT_LIMIT):
        while True:
            try:
                return list(await setting.cluster.ensure_pods(uid, "second", ()))
            except (Conflict, Withheld):
                await asyncio.sleep(0.1)


@every_kind
async def test_a_backup_that_would_be_refused_is_known_before_one_is_needed(setting: Setting, kind: str) -> None:
    """Nothing is made for the answer."""
    uid = await setting.running(await SUBMIT[kind](setting.namespace, ASKS))
    assert await setting.cluster.refusal_of_backup(uid) == ""
    await secure(setting.namespace, "restricted")
    assert "violates PodSecurity" in await setting.cluster.refusal_of_backup(uid)
    assert len(await setting.cluster.pods(uid)) == len((await setting.namespace.api.list(setting.namespace.path("pods"))).items)
