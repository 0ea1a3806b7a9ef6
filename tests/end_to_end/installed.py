"""An installation by the chart on a real Kubernetes, whose processes are pods; and recoveries in whose middle it is changed."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helm_python import Config
from temporalio.service import RPCError

from activities.clusters.api_server import Api, Object
from rekindle import deployment
from rekindle.cli.demos.process_faults import ProcessFaults, ProcessFaultScenario, Strike, processes_of
from rekindle.cli.demos.scenario import Options, Scenario
from rekindle.cli.demos.sub_health import HotSwitchScenario, SubHealth
from rekindle.cli.ports import free_ports
from rekindle.cli.stack import Stack, server_root
from rekindle.client import Rekindle
from rekindle.errors import NotFound
from rekindle.model.cluster import Pod, PodPhase
from rekindle.model.keys import JOB_ID, POD_TYPE
from rekindle.model.mode import Mode
from rekindle.temporal import connect
from simulators.kubernetes.container import IMAGES, folder_of
from simulators.kubernetes.empty import kubernetes_of
from tests.end_to_end.all_objects import Key, all_objects
from tests.end_to_end.conftest import STEPS
from tests.support.charts import CHART, CRDS_CHART, given
from workers.versions import build_of_code

NAMESPACE = "mindx-dl"
IMAGE = "rekindle-control-plane"
NEWER = "0.2.0"
"""Tag of an image with a changed procedure."""

PATIENCE = 300.0
PAUSE = 0.5
"""Seconds between two looks at the versions."""
LONG_MS = 15_000.0
"""Milliseconds of a step while the release is changed, which training outlasts."""

COMPONENTS = {"control": 2, "gateway": 2, "watcher": 1, "operator": 1}
"""Pods of the release, by component."""


def chart_for_this_machine(folder: Path) -> Path:
    """Returns a copy of the chart whose test has a port of its own for its ranks. All pods of this machine share its ports."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    template = chart / "templates" / "tests" / "hot-switch.yaml"
    text = template.read_text()
    assert "  ranksPerPod: 1\n" in text
    template.write_text(text.replace("  ranksPerPod: 1\n", f'  ranksPerPod: 1\n  env: {{MASTER_PORT: "{free_ports(1)[0]}"}}\n'))
    return chart


@dataclass
class Installed:
    """A release, the cluster and the Temporal that it uses, and what it runs."""

    stack: Stack
    directory: Path
    chart: Path
    api: Api
    release: Config
    rekindle: Rekindle
    before: dict[Key, Object]
    """All objects that were there before."""

    @property
    def values(self) -> Object:
        return given(temporal__address=self.stack.addresses.temporal, test__image="training:1", log={"level": "INFO"})

    async def install(self) -> None:
        """Types the two commands of an installation."""
        await asyncio.to_thread(self.release.install, CRDS_CHART, "rekindle-crds", {})
        await asyncio.to_thread(self.release.install, self.chart, "rekindle", self.values, wait="watcher", timeout=int(PATIENCE))

    async def upgrade(self) -> None:
        """Upgrades to the image with changed code, and waits until its version is current and all pods are replaced."""
        older = await self.current()
        values = {**self.values, "image": {"tag": NEWER}}
        await asyncio.to_thread(self.release.upgrade, self.chart, "rekindle", values)
        await self._replaced(older, NEWER)

    async def roll_back(self) -> None:
        """Rolls back, and waits until the version from before is current and all pods are replaced."""
        newer = await self.current()
        await asyncio.to_thread(self.release.rollback, "rekindle")
        await self._replaced(newer, "0.1.0")

    async def at(self, *, newer: bool) -> str:
        """Has a version installed while no recovery runs, and returns its build."""
        if newer != ((await self.current()) != build_of_code()):
            await (self.upgrade() if newer else self.roll_back())
        return await self.current()

    async def current(self) -> str:
        return (await self._deployment()).current

    async def _deployment(self) -> deployment.Deployment:
        """Reads the versions as soon as the server lets us: it refuses several requests at a time."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(RPCError):
                    return await deployment.read_deployment(self.rekindle.temporal)
                await asyncio.sleep(PAUSE)

    async def _replaced(self, before: str, tag: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.current() == before or not await self._all_ready(tag):
                await asyncio.sleep(PAUSE)

    async def _all_ready(self, tag: str) -> bool:
        """Returns whether each component has its pods of this image. Those of another one may still end.

        The pod of `helm test` stays for its log, and has ended.
        """
        pods = await self._pods("app.kubernetes.io/part-of=rekindle,app.kubernetes.io/component!=test")
        staying = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        ready = [pod for pod in staying if _is_ready(pod) and pod["spec"]["containers"][0]["image"].endswith(f":{tag}")]
        return len(ready) == len(staying) and Counter(map(_component, ready)) == COMPONENTS

    async def only(self, build: str) -> None:
        """Waits until nothing runs on other builds, and their pods have ended."""
        async with asyncio.timeout(PATIENCE):
            while await self._others(build):
                await asyncio.sleep(PAUSE)

    async def _others(self, build: str) -> int:
        client = self.rekindle.temporal
        known = (await self._deployment()).versions
        running = [await deployment.count_open(client, one.build_id) for one in known if one.build_id != build]
        return sum(running) + len(await self._pods("app.kubernetes.io/component=control")) - COMPONENTS["control"]

    async def _pods(self, selector: str) -> list[Object]:
        return (await self.api.list(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=selector)).items

    async def struck(self, mode: Mode, change: Callable[[], Awaitable[None]]) -> "Struck":
        """Runs a job through a recovery, in whose middle the installation is changed."""
        pods: list[Object] = []
        watching = asyncio.create_task(self._watch(pods))
        try:
            result = await _scenario(mode, self, change).run()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        described = await self.rekindle.temporal.get_workflow_handle(result["workflow_id"]).describe()
        build = described.raw_description.workflow_execution_info.versioning_info.deployment_version.build_id
        (manager,) = (kubernetes_of(self.stack) / "pods").glob(f"default_gpt-manager-0.{_manager_of(pods)[:8]}.log")
        return Struck(result, build, pods, manager.read_text())

    async def _watch(self, pods: list[Object]) -> None:
        """Notes each pod of a job that is made from now on."""
        path = "/api/v1/namespaces/default/pods"
        listing = await self.api.list(path)
        async for change in self.api.watch(path, listing.resource_version, labelSelector=JOB_ID):
            if change.type == "ADDED":
                pods.append(change.object)  # noqa: PERF401  (the watch has no end)


@dataclass(frozen=True)
class Struck:
    """Result of a recovery."""

    result: dict[str, Any]
    build: str
    """Version on which it ended."""
    pods: list[Object]
    """Every pod of the job that was made."""
    manager: str
    """Log of the job's manager."""


@asynccontextmanager
async def connected(stack: Stack, directory: Path) -> AsyncIterator[Installed]:
    """Yields what installs the chart in an empty namespace. The image of the newer version has one file of workflows changed."""
    newer = kubernetes_of(stack) / IMAGES / folder_of(f"{IMAGE}:{NEWER}") / "workflows"
    await asyncio.to_thread(shutil.copytree, server_root() / "workflows", newer)
    with (newer / "steps.py").open("a") as steps:
        steps.write('\nCHANGED = "another build"\n')
    kubeconfig = kubernetes_of(stack) / "kubeconfig"
    chart = await asyncio.to_thread(chart_for_this_machine, directory)
    rekindle = Rekindle(await connect(stack.addresses.temporal, started_here=True))
    async with Api(kubeconfig) as api:
        with Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE) as release:
            await _make_namespace(api)
            yield Installed(stack, directory, chart, api, release, rekindle, await all_objects(api))


async def _make_namespace(api: Api) -> None:
    """Makes the namespace, and waits until it has what controllers put into each one."""
    await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    async with asyncio.timeout(PATIENCE):
        for path in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
            while not await _is_there(api, f"/api/v1/namespaces/{NAMESPACE}/{path}"):
                await asyncio.sleep(0.1)


async def _is_there(api: Api, path: str) -> bool:
    try:
        await api.get(path)
    except NotFound:
        return False
    return True


# ---- a recovery in the middle of which something happens


def _scenario(mode: Mode, installed: Installed, change: Callable[[], Awaitable[None]]) -> Scenario[Any]:
    where = (installed.stack, installed.directory, lambda _: None)
    if mode is Mode.HOT_SWITCH:
        return _HotSwitch(SubHealth(steps=STEPS), *where, change=change)
    return _Rescheduling(ProcessFaults(mode=mode, fault=Strike.KILL, steps=STEPS), *where, change=change)


class _Interrupted(Scenario[Any]):
    """A run in which the backup pod is held while it loads, until something has happened."""

    def __init__(self, options: Options, *where: Any, change: Callable[[], Awaitable[None]]) -> None:
        super().__init__(options, *where)
        self._change = change

    async def strike(self) -> None:
        await super().strike()  # type: ignore[safe-super]  # that of the demo
        backup = await self._loading()
        _signal_all(backup, signal.SIGSTOP)
        try:
            await self._change()
        finally:
            _signal_all(backup, signal.SIGCONT)

    async def _loading(self) -> Pod:
        """Returns the pod that takes over, as soon as it runs."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for pod in await self.cluster.pods(self.job_id):
                    if POD_TYPE in pod.metadata.annotations and pod.status.phase is PodPhase.RUNNING:
                        return pod
                await asyncio.sleep(0.05)


class _HotSwitch(_Interrupted, HotSwitchScenario):
    async def strike(self) -> None:
        """Slows training down, which goes on, so that it does not end before."""
        self._tell_pace(LONG_MS)
        await super().strike()
        self._tell_pace(min(self._drag_ms, LONG_MS))  # a step must end within the limit of a minute


class _Rescheduling(_Interrupted, ProcessFaultScenario):
    pass


def _signal_all(pod: Pod, number: signal.Signals) -> None:
    for pid in processes_of(pod.metadata.uid):
        os.kill(pid, number)


def _manager_of(pods: list[Object]) -> str:
    (manager,) = (pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"] == "gpt-manager-0")
    return str(manager)


def _component(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def _is_ready(pod: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
