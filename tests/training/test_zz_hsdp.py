import signal
import pytest
from tests.training.dialogue import opened, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job
from tests.training.test_elastic import Whole, is_as_whole, lost
from tests.training.test_elastic_sharded import elastic, whole  # noqa: F401


async def small(elastic, gateway):
    await elastic.start()
    await elastic.reached(3, rank=2)
    await lost(elastic, gateway, 0)
    await gateway.smaller(0, 1, uuid="attempt-1")
    assert (await status(gateway, 1))[:2] == ("downgrade", 0)
    await elastic.lose("worker-1")


async def test_dump(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    await small(elastic, gateway)
    await lost(elastic, gateway, 4, uuid="attempt-2", number=2)
    await gateway.dump(uuid="attempt-2")
    got = await status(gateway, 2)
    assert got[:2] == ("dump", 0), got
    await elastic.end()
    elastic.generation += 1
    elastic.hurry()
    await elastic.start()
    assert 0 in await elastic.codes()
    assert is_as_whole(elastic, whole)


async def test_elsewhere_while_small(elastic: Job, gateway: GatewayPeer, whole: Whole) -> None:
    await small(elastic, gateway)
    await lost(elastic, gateway, 3, uuid="attempt-2", number=2)
    await gateway.elsewhere(3, uuid="attempt-2")
    await elastic.backup(3)
    assert (await status(gateway, 2))[:2] == ("recover", 0)
    assert await elastic.codes() == {0, -signal.SIGKILL}
    assert is_as_whole(elastic, whole, 0, 1)
