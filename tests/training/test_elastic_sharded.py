"""A job whose model is sharded within replicas (HSDP) goes on with fewer replicas, and takes them back as a whole."""

import signal
from pathlib import Path

import pytest
import pytest_asyncio

from tests.training.dialogue import opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.processes import Zygote
from tests.training.test_elastic import Whole, finals, is_as_whole, lost, samples

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("elastic_sharded.py"))
RANKS = 6
"""Three replicas of two ranks, each of which is a pod."""


@pytest.fixture
def elastic(job: Job) -> Job:
    """Prepares a job of six pods with one rank each."""
    job.script, job.arguments, job.pods, job.ranks_of_all = SCRIPT, [], RANKS, RANKS
    job.slow_down(1500)
    return job


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Whole:
    """Returns how an undisturbed run of the script ended, and the samples of each of its steps."""
    peer = GatewayPeer()  # type: ignore[abstract]
    await peer.start()
    job = Job(tmp_path_factory.mktemp("whole"), zygote, peer, {}, [], SCRIPT, pods=RANKS, ranks_of_all=RANKS)
    await job.start()
    assert await job.codes() == {0}, job.outputs()
    await peer.stop()
    return finals(job), samples(job)


async def test_replicas_leave_and_come_back_as_a_whole(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    """That of rank 0 is lost, then another one, and both come back. Samples and parameters are those of an undisturbed run."""
    await elastic.start()
    await elastic.reached(3, rank=2)
    assert await lost(elastic, gateway, 1) == ["recover", "downgrade", "dump", "exit"]
    await gateway.smaller(1)
    strategy, code, info = await status(gateway)
    assert (strategy, code) == ("downgrade", 406)
    assert info.startswith("ranks [0, 1] are one replica, and rank 0 of it is not named: its pods leave and come back together")
    await gateway.smaller(0, 1, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("downgrade", 0)
    await elastic.lose("worker-0")
    await lost(elastic, gateway, 4, uuid="attempt-3", number=2)
    await gateway.smaller(4, 5, uuid="attempt-3")
    strategy, code, info = await status(gateway, 3)
    assert (strategy, code) == ("downgrade", 0)
    assert info.endswith("with 2 of 6 ranks")
    await elastic.lose("worker-5")
    for number, pods in enumerate(((0, 1), (4, 5)), 4):
        for pod in pods:
            await elastic.worker(pod)
        await gateway.larger(*pods, uuid=f"attempt-{number}")
        assert (await status(gateway, number))[:2] == ("upgrade", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole)
