"""Counts the requests of a recovery to a Kubernetes API server, by the size of the job: `python -P -m benchmarks.api_calls`.

Runs the activities of a hot switch, and of a restart of the whole job after the loss of a node, in their order. The control plane
is real, with simulated kubelets. There is no training side, so that only pods are waited for.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from temporalio.testing import ActivityEnvironment

from activities.clusters.api_server import Api, Request
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kinds import TRAINING_JOB
from activities.journal import JournalActivities
from activities.pods import PodActivities
from rekindle.model.activities.jobs import RememberRequest, SurveyRequest
from rekindle.model.activities.pods import (
    Backup,
    BackupRequest,
    NewPodsRequest,
    OldPodsRequest,
    PodCount,
    PodsRequest,
    Restart,
    StartRequest,
    StopRequest,
    SwapRequest,
)
from rekindle.model.cluster import ClusterEvent, PodPhase
from rekindle.model.state import Remembered
from rekindle.settings import Settings
from workers.operator import Operator

PATIENCE = timedelta(minutes=5)
VERBS = ("GET", "LIST", "WATCH", "POST", "PATCH", "DELETE")

console = Console(width=110)


class CountingApi(Api):
    """API client that counts every request, including each page of a list."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig)
        self.asked = Counter[str]()

    @asynccontextmanager
    async def _sent(self, request: Request) -> AsyncIterator[Any]:
        self.asked["WATCH" if "watch" in request.query else "LIST" if "limit" in request.query else request.method] += 1
        async with super()._sent(request) as answer:
            yield answer


@asynccontextmanager
async def kubernetes(pods: int) -> AsyncIterator[Path]:
    """Runs a Kubernetes on this machine, and yields the kubeconfig of an administrator."""
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as directory:
        command = [sys.executable, "-P", "-m", "simulators.kubernetes", f"--state-dir={directory}"]
        command.append(f"--accelerators-per-node={pods}")
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout
        try:
            async for line in process.stdout:
                if line.startswith(b"ready kubernetes "):
                    yield Path(line.decode().removeprefix("ready kubernetes ").strip())
                    break
        finally:
            process.terminate()
            await process.wait()


async def submit(api: Api, pods: int) -> str:
    spec = {"pods": pods, "ranksPerPod": 1, "command": ["sleep", "100000"], "manager": None, "kubernetes": {"image": "none"}}
    metadata = {"name": f"sleep-{pods}", "labels": {"subHealthyStrategy": "hotSwitch"}}
    body = {"apiVersion": TRAINING_JOB.api_version, "kind": TRAINING_JOB.name, "metadata": metadata, "spec": spec}
    return str((await api.create(TRAINING_JOB.path("default"), body))["metadata"]["uid"])


class Recoveries:
    """Runs the activities of the control worker on one job."""

    def __init__(self, api: CountingApi, cluster: KubernetesCluster, job_id: str) -> None:
        self._api, self._cluster, self._job_id = api, cluster, job_id
        self._pods, self._journal = PodActivities(cluster), JournalActivities(cluster)

    async def until_running(self, count: int) -> None:
        async with aclosing(self._cluster.follow(self._job_id)) as states:
            async for pods in states:
                if sum(pod.status.phase is PodPhase.RUNNING for pod in pods) == count:
                    return

    async def measured(self, work: Callable[[], Awaitable[None]]) -> tuple[Counter[str], float]:
        self._api.asked.clear()
        began = time.perf_counter()
        await work()
        return self._api.asked.copy(), time.perf_counter() - began

    async def hot_switch(self) -> None:
        await self._remember()
        asked = BackupRequest(job_id=self._job_id, pod_rank=1, name_suffix="0001", avoid_nodes=())
        made: Backup = await _run(self._pods.ensure_backup, asked)
        await _run(self._pods.await_scheduled, self._wait(made.backup))
        await _run(self._pods.await_running, self._wait(made.backup))
        swap = SwapRequest(job_id=self._job_id, old=made.old, backup=made.backup)
        await _run(self._pods.swap, swap)
        await _run(self._pods.await_gone, self._wait(made.old))
        await _run(self._pods.promote, swap)
        await self._conclude()

    async def restart(self) -> None:
        await self._look()
        await self._remember()
        stopped: PodCount = await _run(self._pods.delete_pods, StopRequest(job_id=self._job_id, grace_seconds=5))
        restart = Restart(job_id=self._job_id, generation="second", youngest=stopped.youngest)
        await _run(self._pods.await_old_gone, OldPodsRequest(restart=restart, within=PATIENCE))
        made: PodCount = await _run(
            self._pods.ensure_pods, StartRequest(job_id=self._job_id, generation="second", avoid_nodes=())
        )
        await _run(self._pods.await_new_running, NewPodsRequest(restart=restart, pods=made.count, within=PATIENCE))
        await self._conclude()

    def _wait(self, *pods: Any) -> PodsRequest:
        return PodsRequest(job_id=self._job_id, pods=pods, within=PATIENCE)

    async def _look(self) -> None:
        await _run(self._pods.survey, SurveyRequest(job_id=self._job_id, nodes=("node-0",)))

    async def _remember(self, event: ClusterEvent | None = None) -> None:
        request = RememberRequest(job_id=self._job_id, memory=Remembered(incidents=1), event=event)
        await _run(self._journal.remember, request)

    async def _conclude(self) -> None:
        await self._look()
        await self._remember(ClusterEvent(name="job", kind="TrainingJob", reason="RecoveryRecovered", message="measured"))


async def _run(activity: Callable[..., Any], request: object) -> Any:
    return await ActivityEnvironment().run(activity, request)


async def measure(sizes: list[int], table: Table) -> None:
    async with kubernetes(max(sizes) + 1) as kubeconfig, Api(kubeconfig) as admin:
        operator = asyncio.create_task(Operator(admin, Settings(cluster="kubernetes")).run())
        for size in sizes:
            api = CountingApi(kubeconfig)
            cluster = KubernetesCluster(api, Settings(cluster="kubernetes"))
            recoveries = Recoveries(api, cluster, await submit(admin, size))
            await recoveries.until_running(size)
            for name, work in (("hot switch", recoveries.hot_switch), ("restart", recoveries.restart)):
                asked, seconds = await recoveries.measured(work)
                table.add_row(f"{size}", name, *(str(asked[verb]) for verb in VERBS), str(asked.total()), f"{seconds:.2f}")
            await cluster.close()
        operator.cancel()
        await asyncio.gather(operator, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, nargs="+", default=[2, 1000], help="sizes of the job (default: 2 1000)")
    table = Table("pods", "recovery", *VERBS, "all", "s", title="requests to the API server")
    asyncio.run(measure(parser.parse_args().pods, table))
    console.print(table)


if __name__ == "__main__":
    main()
