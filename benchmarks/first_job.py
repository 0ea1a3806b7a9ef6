"""Measures the way from an empty namespace to a protected job, by the chart: `python -P -m benchmarks.first_job`.

Kubernetes is a real control plane on this machine, whose pods are processes: no image is pulled. Temporal runs already. Each
run has a cluster of its own, whose start is not counted. A job is protected when it has completed a step, and a hot switch of it
would be accepted. The floor is the same release with pods that only sleep: what Helm and Kubernetes take alone. `--write` updates
the table in docs/kubernetes.md.
"""

import argparse
import asyncio
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from statistics import median

from helm_python import Config

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.kinds import TRAINING_JOB
from rekindle.cli.ports import free_ports
from rekindle.cli.stack import Stack
from rekindle.client import Rekindle
from rekindle.errors import RekindleError
from rekindle.model.incident import ModeRequest
from rekindle.model.keys import SUB_HEALTHY_STRATEGY
from rekindle.model.mode import Mode
from rekindle.policy.modes import requests
from rekindle.temporal import connect
from simulators.kubernetes.empty import empty_cluster, kubernetes_of

ROOT = Path(__file__).parents[1]
CHARTS = ROOT / "deploy" / "helm"
PAGE = ROOT / "docs" / "kubernetes.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

NAMESPACE, JOB = "mindx-dl", "gpt"
RUNS, PATIENCE = 5, 600

COMMANDS = (
    "`helm upgrade --install rekindle-crds`",
    "`helm upgrade --install rekindle --wait`",
    "`rekindle doctor`",
    "`kubectl apply -f job.yaml`, until the job is protected",
)

WAITS = 0.1
"""Seconds between two looks at the job."""


def job() -> Object:
    """Returns a small job, of which all processes share this machine."""
    command = ["rekindle-train", "--nnodes=2", "--nproc-per-node=1", "-m", "rekindle_training.examples.gpt"]
    return {
        "apiVersion": "rekindle.io/v1",
        "kind": "TrainingJob",
        "metadata": {"name": JOB, "labels": {SUB_HEALTHY_STRATEGY: "hotSwitch"}},
        "spec": {
            "pods": 2,
            "ranksPerPod": 1,
            "command": [*command, "--steps=1000000", "--step-ms=200"],
            "env": {"MASTER_PORT": str(free_ports(1)[0])},
            "kubernetes": {"image": "training:1"},
        },
    }


class Installation:
    """An empty cluster, and the commands that are typed there."""

    def __init__(self, stack: Stack, api: Api, helm: Config) -> None:
        self._stack, self._api, self._helm = stack, api, helm

    async def definitions(self) -> None:
        await asyncio.to_thread(self._helm.install, CHARTS / "rekindle-crds", "rekindle-crds", {}, create_namespace=True)

    async def processes(self, chart: Path) -> None:
        values = {"temporal": {"address": self._stack.addresses.temporal}}
        await asyncio.to_thread(self._helm.install, chart, "rekindle", values, wait="watcher", timeout=PATIENCE)

    async def examination(self) -> None:
        """Runs the command as in a pod of ours, which has the address of Temporal in its environment."""
        environment = {**os.environ, "TEMPORAL_ADDRESS": self._stack.addresses.temporal}
        program = Path(sys.executable).parent / "rekindle"
        done = await asyncio.create_subprocess_exec(program, "doctor", env=environment, stdout=asyncio.subprocess.PIPE)
        words, _ = await done.communicate()
        if done.returncode:
            raise SystemExit(f"rekindle doctor ended with code {done.returncode}\n{words.decode()}")

    async def apply(self) -> None:
        await self._api.create(TRAINING_JOB.path("default"), job())

    async def protected(self) -> None:
        """Applies a job, and waits until a hot switch of it would be accepted."""
        await self.apply()
        rekindle = Rekindle(await connect(self._stack.addresses.temporal, started_here=True))
        request = ModeRequest(job=JOB, mode=Mode.HOT_SWITCH, pod_rank=1, force=True)
        async with asyncio.timeout(PATIENCE):
            while await _refused(rekindle, request):
                await asyncio.sleep(WAITS)


async def _refused(rekindle: Rekindle, request: ModeRequest) -> str:
    try:
        status = await rekindle.status(JOB)
    except RekindleError as error:  # it is not registered yet
        return str(error)
    return requests.refused(status.state, request)


async def measured(*, floor: bool) -> list[float | None]:
    """Returns the seconds of each command in an empty cluster. None: it has no floor."""
    with tempfile.TemporaryDirectory(prefix="rk-first-") as name:
        folder = Path(name)
        async with empty_cluster(folder, nodes=3) as stack:
            kubeconfig = kubernetes_of(stack) / "kubeconfig"
            async with Api(kubeconfig) as api:
                with Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE) as helm:
                    here = Installation(stack, api, helm)
                    chart = chart_that_sleeps(folder) if floor else CHARTS / "rekindle"
                    first = [await _timed(here.definitions()), await _timed(here.processes(chart))]
                    if floor:
                        return [*first, None, await _timed(here.apply())]
                    return [*first, await _timed(here.examination()), await _timed(here.protected())]


async def _timed(work: Awaitable[None]) -> float:
    began = time.monotonic()
    await work
    return time.monotonic() - began


def chart_that_sleeps(folder: Path) -> Path:
    """Returns a copy of the chart, of which all pods sleep, and are ready at once."""
    chart = folder / "chart"
    shutil.copytree(CHARTS / "rekindle", chart)
    for path in (chart / "templates").glob("*"):
        if path.is_file():
            text = path.read_text().replace("[python, -P, -m, workers.{{ .component }}]", "[sleep, infinity]")
            path.write_text(re.sub(r"^ *readinessProbe:\n(?: +(?:grpc|httpGet|\w+Seconds):.*\n)+", "", text, flags=re.MULTILINE))
    return chart


def rows(runs: list[list[float | None]], floors: list[list[float | None]]) -> list[str]:
    """Returns the rows of the table, the last one with the sum."""
    names = [*COMMANDS, f"all {len(COMMANDS)}"]
    columns = [zip(*_with_sums(one), strict=True) for one in (runs, floors)]
    return [f"| {name} | {_words(own)} | {_words(floor)} |" for name, own, floor in zip(names, *columns, strict=True)]


def _with_sums(runs: list[list[float | None]]) -> list[list[float | None]]:
    return [[*run, sum(one or 0 for one in run)] for run in runs]


def _words(seconds: tuple[float | None, ...]) -> str:
    found = [one for one in seconds if one is not None]
    return f"{median(found):.1f} s ({min(found):.1f} to {max(found):.1f})" if found else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how many, of each sort (default: {RUNS})")
    parser.add_argument("--write", action="store_true", help="put the table into docs/kubernetes.md")
    options = parser.parse_args()
    runs, floors = ([asyncio.run(measured(floor=floor)) for _ in range(options.runs)] for floor in (False, True))
    about = f"Median of {options.runs} runs, least and most, on {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}:"
    lines = [about, "", "| command | seconds | Helm and Kubernetes alone |", "|---|---|---|", *rows(runs, floors)]
    print("\n".join([*lines, "", f"Python {platform.python_version()}, {platform.machine()}"]))
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, behind = rest.partition(END)
        PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{behind}"]))


if __name__ == "__main__":
    main()
