"""A gateway that does not reach Temporal any more, while it holds streams of jobs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from tests.fakes.peer import ScriptedPeer
from tests.fakes.platform_peer import platform
from tests.fakes.proxy import Dropped, Proxy
from tests.support.harness import GatewayProcess, a_job, harness
from workers.gateway import cut_off


class Cable:
    """Connection between a gateway and Temporal, which may be pulled."""

    def __init__(self) -> None:
        self.pulled = False
        self.dropped = 0
        """Looks of the gateway that nothing answered."""

    async def before(self, _caller: str, method: str, _request: bytes) -> None:
        if self.pulled:
            self.dropped += method == "GetSystemInfo"
            raise Dropped

    async def after(self, *_: object) -> None:
        """Passes."""


@asynccontextmanager
async def _attached(env: WorkflowEnvironment, gateways: int) -> AsyncIterator[tuple[Cable, ScriptedPeer]]:
    """A job whose stream is at a gateway with such a cable."""
    cable, job = Cable(), a_job()
    async with harness(env, job), Proxy("gateway", env.client.service_client.config.target_host, cable) as way:
        client = await Client.connect(way.address, namespace=env.client.namespace, data_converter=env.client.data_converter)
        gateway = await GatewayProcess(client, f"cut-off-{job.id}", keep_alive=0.5, gateways=gateways).start()
        try:
            async with ScriptedPeer(gateway.address, job.id) as peer:
                yield cable, peer
        finally:
            cable.pulled = False
            await gateway.stop()


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_off, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(cut_off, "LONG_SECONDS", 0.3)


async def test_a_gateway_that_is_cut_off_sends_its_clients_to_the_others(temporal: WorkflowEnvironment) -> None:
    """Orders for their jobs would not reach them here."""
    async with _attached(temporal, gateways=2) as (cable, peer):
        cable.pulled = True
        await peer.until(lambda: bool(peer.ended))
        assert cut_off.WORDS in peer.ended[0]
        cable.pulled = False
        await asyncio.wait_for(peer.attached.wait(), 60)


async def test_a_gateway_that_is_cut_off_sends_platforms_to_the_others(temporal: WorkflowEnvironment) -> None:
    """Platforms would hear nothing of what changes."""
    async with _attached(temporal, gateways=2) as (cable, peer), platform(peer.address) as listener:
        await listener.register_for_faults(peer.job_id)
        heard = listener.faults(peer.job_id)
        await heard.next()
        cable.pulled = True
        assert await heard.end() == f"ABORTED: {cut_off.WORDS}"


async def test_a_gateway_that_is_alone_keeps_its_clients(temporal: WorkflowEnvironment) -> None:
    """Clients of the only gateway would find no other one, and reconnect at longer and longer intervals."""
    async with _attached(temporal, gateways=1) as (cable, peer):
        cable.pulled = True
        seen = len(peer.keep_alives)
        await peer.until(lambda: len(peer.keep_alives) > seen + 1)
        assert not peer.ended
        assert not cable.dropped
