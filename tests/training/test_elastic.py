"""Training goes on with the ranks that are left, and takes missing ones back, with the same samples in the same steps."""

import json
import re
import signal
from collections import defaultdict
from pathlib import Path

import pytest
import pytest_asyncio

from tests.training.dialogue import opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.processes import Zygote

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("elastic.py"))
PODS = 4

Finals = dict[int, tuple[str, str]]
"""Digests of the parameters and of the random numbers with which each rank ended."""


@pytest.fixture
def elastic(job: Job) -> Job:
    """Prepares a job of four pods with one rank each, whose number of ranks may change."""
    job.script, job.arguments, job.pods = SCRIPT, [], PODS
    job.slow_down(300)
    return job


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Finals, dict[int, list[list[int]]]]:
    """Returns how an undisturbed run of the script ended, and the samples of each of its steps."""
    folder = tmp_path_factory.mktemp("whole")
    peer = GatewayPeer()  # type: ignore[abstract]
    await peer.start()
    job = Job(folder, zygote, peer, {}, [], SCRIPT, pods=PODS)
    await job.start()
    assert await job.codes() == {0}, job.outputs()
    await peer.stop()
    return finals(job), samples(job)


def finals(job: Job) -> Finals:
    return {int(rank): (model, numbers) for rank, model, numbers in re.findall(r"final (\d+) (\w+) (\w+)", job.outputs())}


def samples(job: Job) -> dict[int, list[list[int]]]:
    """Returns the batches of each step, each once: a repeated step has drawn the same again."""
    found: defaultdict[int, list[list[int]]] = defaultdict(list)
    for log in (job.folder / "samples").glob("*.jsonl"):
        for line in map(json.loads, log.read_text().splitlines()):
            if line["samples"] not in found[line["step"]]:
                found[line["step"]].append(line["samples"])
    return {step: sorted(batches) for step, batches in found.items()}


async def lost(elastic: Job, gateway: GatewayPeer, pod: int, *, uuid: str = "attempt-1", number: int = 1) -> list[str]:
    """Loses a pod with its processes, and opens a recovery. Returns the offered strategies."""
    await elastic.lose(f"worker-{pod}")
    await gateway.report("ReportProcessFault", number)
    return await opened(gateway, pod, uuid=uuid, number=number)


async def test_training_goes_on_without_a_pod_that_is_lost(
    elastic: Job, gateway: GatewayPeer, whole: tuple[Finals, dict[int, list[list[int]]]]
) -> None:
    """No process takes the lost rank. Another rank computes its share, and the parameters equal those of an undisturbed run."""
    await elastic.start()
    await elastic.reached(3)
    assert await lost(elastic, gateway, 3) == ["recover", "downgrade", "dump", "exit"]
    await gateway.smaller(3)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("downgrade", 0)
    assert re.fullmatch(r"training goes on after step \d+, with 3 of 4 ranks", info)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert finals(elastic) == {rank: end for rank, end in whole[0].items() if rank != 3}
    assert samples(elastic) == whole[1]
