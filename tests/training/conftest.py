"""One zygote and one undisturbed run for all tests; a gateway and a job for each."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.training.gateway_service import GatewayPeer
from tests.training.job import EXAMPLE, STEPS, WORLD, Job
from tests.training.processes import Zygote
from tests.training.scripts.plain import final
from tests.training.standalone import Standalone, last_words


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reference(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> list[bytes]:
    """The final parameters of each rank of an undisturbed run: one pod with four ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    await Standalone(folder, zygote).run(EXAMPLE, script=f"--steps={STEPS}")
    return final(folder, WORLD)


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[GatewayPeer]:
    peer = GatewayPeer()  # type: ignore[abstract]  # what it does not serve is answered with UNIMPLEMENTED
    await peer.start()
    yield peer
    await peer.stop()


@pytest_asyncio.fixture
async def job(tmp_path: Path, zygote: Zygote, gateway: GatewayPeer) -> AsyncIterator[Job]:
    """Yields a job that is not started yet. The output of its processes is shown when the test fails."""
    job = Job(tmp_path, zygote, gateway)
    yield job
    await job.end()
    print(job.outputs())


STRUCK = str(Path(__file__).with_name("scripts").joinpath("repaired.py"))


@pytest.fixture
def recovered(job: Job) -> Job:
    """Prepares a job with the script on which faults act."""
    job.script, job.arguments = STRUCK, []
    return job


@pytest.fixture(scope="session")
def last_of_undisturbed() -> list[str]:
    """Keeps the last output lines of an undisturbed run of that script, once there was one."""
    return []


@pytest_asyncio.fixture
async def undisturbed(tmp_path: Path, zygote: Zygote, last_of_undisturbed: list[str]) -> list[str]:
    if not last_of_undisturbed:
        peer = GatewayPeer()  # type: ignore[abstract]
        await peer.start()
        (tmp_path / "undisturbed").mkdir()
        job = Job(tmp_path / "undisturbed", zygote, peer, {}, [], STRUCK)
        await job.start()
        assert await job.codes() == {0}
        last_of_undisturbed.extend(last_words(job.outputs()))
        await peer.stop()
    return last_of_undisturbed


@pytest_asyncio.fixture
async def alone(tmp_path: Path, zygote: Zygote) -> AsyncIterator[Standalone]:
    """Yields a job without a control plane, which is not started yet."""
    alone = Standalone(tmp_path / "alone", zygote)
    yield alone
    await alone.end()


@pytest_asyncio.fixture
async def beside(tmp_path: Path, zygote: Zygote) -> AsyncIterator[Standalone]:
    """Yields another job without a control plane, to compare with."""
    beside = Standalone(tmp_path / "beside", zygote)
    yield beside
    await beside.end()


@pytest.fixture
def group() -> Iterator[None]:
    """Makes a process group of one rank: checkpoints are written by all ranks together."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def four_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this process rank 0 of four, of which the others do not exist."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch's says that this is rank 0
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


LAUNCHED = {
    "REKINDLE_LAUNCHER": "rekindle-train",
    "REKINDLE_PROCESS": "a-process",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REKINDLE_CHECKPOINT_EVERY", raising=False)
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
