"""A node is lost and no other one is free, for real: training goes on with fewer pods, and takes the missing one back.

The node returns while the job trains.
"""

import json
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle.cli.demos.scenario import until
from rekindle.cli.stack import Machine, Stack, running
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.model.keys import ELASTIC, RANK_INDEX
from rekindle.model.manifest import parse
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.temporal import connect

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[1] / "training" / "scripts" / "elastic.py"
PODS = 3


def manifest(pace: Path) -> str:
    """Returns the manifest of a job of three pods, each of which needs a node, and which may train with two."""
    return json.dumps(
        {
            "apiVersion": "rekindle.io/v1",
            "kind": "TrainingJob",
            "metadata": {"name": "small", "annotations": {ELASTIC: "2; wait=0"}},
            "spec": {
                "pods": PODS,
                "ranksPerPod": 1,
                "command": ["rekindle-train", f"--nnodes={PODS}", "--nproc-per-node=1", str(SCRIPT)],
                "env": {"PACE_MS": "6000", "PACE_FILE": str(pace)},
                "limits": {"nodeLost": 0, "growAgain": 1, "backupScheduled": 2},
            },
        }
    )


class SmallJob:
    """Job that trains on all nodes."""

    def __init__(self, stack: Stack, rekindle: Rekindle) -> None:
        self._rekindle = rekindle
        self.cluster = ClusterClient(Path(stack.addresses.socket))
        self.id, self.directory = "", Path()

    async def submit(self, pace: Path) -> None:
        job = await self.cluster.submit(parse(manifest(pace)))
        self.id, self.directory = job.metadata.uid, Path(job.status.directory)

    async def state(self) -> JobState:
        return (await self._rekindle.status(self.id, ended=True)).state

    async def reached(self, step: int) -> None:
        """Waits until every rank has drawn the samples of a step."""

        async def done() -> bool:
            logs = [log.read_text() for log in (self.directory / "samples").glob("*.jsonl")]
            return len(logs) == PODS and all(f'"step": {step},' in log for log in logs)

        await until(done, f"step {step}")

    async def of_size(self, missing: int) -> None:
        """Waits until this number of pods is missing, and no recovery runs."""

        async def done() -> bool:
            status = await self._rekindle.status(self.id)
            small = status.state.small
            return status.running is None and (len(small.missing) if small else 0) == missing and bool(status.state.history)

        await until(done, f"{missing} missing pods")

    def finals(self) -> set[str]:
        """Returns the digests of the parameters with which the ranks have ended."""
        logs = [log.read_text() for log in (self.directory / "logs").iterdir()]
        return {found for text in logs for found in re.findall(r"final \d+ (\w+)", text)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small_job() -> AsyncIterator[SmallJob]:
    async with AsyncExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="rekindle-e2e-")))
        stack = await held.enter_async_context(running(folder, Machine(nodes=PODS, accelerators=1)))
        job = SmallJob(stack, Rekindle(await connect(stack.addresses.temporal, started_here=True)))
        held.push_async_callback(job.cluster.close)
        yield job


@pytest.mark.same_path("the whole product, on one machine")
async def test_a_job_goes_on_without_a_lost_node_and_takes_it_back(small_job: SmallJob, tmp_path: Path) -> None:
    """No step is lost, no process of another pod ends, and all ranks end with the same parameters."""
    pace = tmp_path / "pace"
    await small_job.submit(pace)
    await small_job.reached(4)
    pods = await small_job.cluster.pods(small_job.id)
    lost = next(pod for pod in pods if pod.metadata.annotations.get(RANK_INDEX) == "2").spec.node_name
    await small_job.cluster.take_down(lost)
    await small_job.of_size(1)
    await small_job.cluster.bring_up(lost)
    await small_job.of_size(0)
    pace.write_text("0")

    async def over() -> bool:
        return bool((await small_job.state()).ended)

    await until(over, "the end of the job")
    state = await small_job.state()
    ladders = [[verdict.mode for verdict in incident.ladder] for incident in state.history]
    assert ladders[0] == [Mode.ELASTIC_TRAINING]
    assert ladders[-1] == [Mode.SCALING]
    assert Mode.JOB_RESCHEDULING not in {mode for modes in ladders for mode in modes}
    assert len(small_job.finals()) == 1
