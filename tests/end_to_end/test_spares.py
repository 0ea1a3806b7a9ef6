"""Two jobs and one spare node, for real: one job gets it, the other one goes on where it is and says why."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle.cli.demos import measure, scenario
from rekindle.cli.demos.scenario import until
from rekindle.cli.demos.sub_health import SubHealth
from rekindle.cli.stack import Machine, Stack, running
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.model.cluster import Pod
from rekindle.model.incident import Incident
from rekindle.model.keys import PRIORITY, RANK_INDEX
from rekindle.model.manifest import parse
from rekindle.model.mode import Outcome
from rekindle.temporal import connect

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

NAMES = ("high", "low")
STEP_MS = 200.0


def manifest(name: str, priority: int) -> str:
    """Returns the manifest of a job of two pods, each of which needs a node."""
    known = json.loads(scenario.manifest(SubHealth(steps=100_000), STEP_MS))
    command = known["spec"]["command"]
    command[command.index("--nproc-per-node") + 1] = "1"
    known["metadata"] |= {"name": name, "annotations": {PRIORITY: str(priority)}}
    known["spec"] |= {"ranksPerPod": 1, "limits": {"backupScheduled": 3}}
    return json.dumps(known)


class TwoJobs:
    """Two jobs that train on four of five nodes."""

    def __init__(self, stack: Stack, rekindle: Rekindle) -> None:
        self._rekindle = rekindle
        self.cluster = ClusterClient(Path(stack.addresses.socket))
        self.jobs: dict[str, str] = {}
        self._directories: dict[str, Path] = {}

    async def submit(self, name: str, priority: int) -> None:
        job = await self.cluster.submit(parse(manifest(name, priority)))
        self.jobs[name], self._directories[name] = job.metadata.uid, Path(job.status.directory)

    async def train_on(self) -> None:
        """Waits until both jobs have completed five more steps."""
        goals = {name: measure.last_step(measure.read_steps(at)) + 5 for name, at in self._directories.items()}

        async def done() -> bool:
            return all(measure.last_step(measure.read_steps(at)) >= goals[name] for name, at in self._directories.items())

        await until(done, "five more steps of both jobs")

    async def pod(self, name: str) -> Pod:
        """Returns the pod of pod rank 1 of a job."""
        pods = await self.cluster.pods(self.jobs[name])
        return next(pod for pod in pods if pod.metadata.annotations.get(RANK_INDEX) == "1")

    async def incidents(self) -> dict[str, Incident]:
        """Waits until both jobs have had an incident, and returns them."""
        found: dict[str, Incident] = {}

        async def over() -> bool:
            for name, job_id in self.jobs.items():
                if history := (await self._rekindle.status(job_id)).state.history:
                    found[name] = history[0]
            return len(found) == len(NAMES)

        await until(over, "the end of both incidents")
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_jobs() -> AsyncIterator[TwoJobs]:
    async with AsyncExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="rekindle-e2e-")))
        stack = await held.enter_async_context(running(folder, Machine(nodes=5, accelerators=1)))
        jobs = TwoJobs(stack, Rekindle(await connect(stack.addresses.temporal, started_here=True)))
        held.push_async_callback(jobs.cluster.close)
        yield jobs


@pytest.mark.same_path("the whole product, on one machine")
async def test_one_of_two_jobs_gets_the_only_spare_node(two_jobs: TwoJobs) -> None:
    """Two nodes are sub-healthy at once. One pod moves to the spare node, the other job trains on and names the job that won."""
    for name, priority in zip(NAMES, (10, 0), strict=True):
        await two_jobs.submit(name, priority)
    await two_jobs.train_on()
    before = {name: await two_jobs.pod(name) for name in NAMES}
    nodes = [pod.spec.node_name for pod in before.values()]
    await asyncio.gather(*(two_jobs.cluster.degrade(node, "80E18005", "NPU link is degraded") for node in nodes))
    found = await two_jobs.incidents()
    (winner,) = [name for name, one in found.items() if one.verdict is Outcome.RECOVERED]
    (loser,) = {*NAMES} - {winner}
    reason = found[loser].ladder[0].reason
    assert found[loser].verdict is Outcome.IGNORED
    assert reason.startswith("no spare: ")
    assert f"the hot switch of job default/{winner}" in reason
    assert winner == "high" or "its pod is already being created" in reason or "asked for a spare node first" in reason, reason
    await two_jobs.train_on()
    after = {name: await two_jobs.pod(name) for name in NAMES}
    assert after[winner].spec.node_name not in nodes
    assert after[loser].metadata.uid == before[loser].metadata.uid
