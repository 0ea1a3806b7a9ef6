from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rekindle.cluster_client import ClusterClient
from rekindle.errors import NotFound
from rekindle.policy.detection import isolation
from tests.fakes.scripted_api import scripted_api
from tests.support.cluster import shared_cluster, until
from tests.support.tenants import Tenants


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One local cluster for a module; `client` leaves it empty and healthy."""
    with shared_cluster(tmp_path_factory.mktemp("state"), nodes=3, accelerators_per_node=2) as socket:
        yield socket


@pytest.fixture
async def client(socket: Path) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(socket) as client:
        yield client
        for job in await client.jobs():
            with suppress(NotFound):  # it may have been on its way out
                await client.delete_job(job.metadata.uid, 0)
        await until(client, lambda view: not view.jobs)
        for node in await client.nodes():
            await client.heal(node.metadata.name)
            await client.bring_up(node.metadata.name)
            await client.set_capacity(node.metadata.name, 2)
            await client.annotate_node(node.metadata.name, isolation.release(node.metadata.annotations))
            await client.cordon(node.metadata.name, cordoned=False)
            for link in node.status.links:
                await client.set_link(node.metadata.name, link.name, up=True)


@pytest.fixture
async def tenants(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with scripted_api(tmp_path) as (scripted, api):
        yield Tenants(scripted, api)
