"""Links that are switched while training is paused, with real processes over two addresses and a scripted gateway."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.dialogue import status
from tests.training.gateway_service import GatewayPeer
from tests.training.interfaces import Alias, addresses
from tests.training.job import WORLD, Job
from tests.training.standalone import last_words

ALL_TO_BACKUP = dict.fromkeys(range(WORLD), True)


@pytest.fixture
def links() -> Iterator[tuple[Alias, Alias]]:
    first, backup = Alias("a", 77), Alias("b", 78)
    yield first, backup
    for link in (first, backup):
        link.remove()


@pytest.fixture
def linked(job: Job, links: tuple[Alias, Alias]) -> Job:
    """A job of which each pod has two links; it waits for somebody who lets it hurry."""
    job.script, job.arguments = str(Path(__file__).with_name("linked.py")), []
    job.environment |= {"REKINDLE_LINKS": ",".join(link.name for link in links), "PACE_MS": "300"}
    return job


def of_all(job: Job) -> list[set[str]]:
    """The addresses of each rank's connections to the others."""
    return [addresses(job.children(f"worker-{rank // 2}")[rank % 2]) for rank in range(WORLD)]


async def result(gateway: GatewayPeer, number: int = 1) -> tuple[bool, str]:
    """The answer to an order to switch links, of the attempt that is under way."""
    reply = await gateway.report("ReplySwitchNicResult", number)
    metadata = gateway.metadata["ReplySwitchNicResult"][number - 1]
    assert metadata.get("rekindle-attempt", "") in ("", f"attempt-{number}", "attempt-1")
    return reply.result, metadata["rekindle-info-bin"]


async def paused(job: Job, gateway: GatewayPeer) -> None:
    await job.start()
    await job.reached(2)
    await gateway.pause()
    assert (await gateway.report("ReportStopComplete")).status.code == 0


async def ends_well(job: Job, undisturbed: list[str]) -> None:
    job.hurry()
    assert await job.codes() == {0}
    assert last_words(job.outputs()) == undisturbed
    for rank in range(WORLD):
        done = [line["step"] for line in job.steps(rank)]
        assert done == sorted(set(done))


async def test_collectives_move_to_the_other_link_and_back(
    linked: Job, gateway: GatewayPeer, links: tuple[Alias, Alias], undisturbed: list[str]
) -> None:
    """Connections between ranks have the addresses of the one link, of the other, and of the first again; no bit is lost."""
    first, backup = ({link.address} for link in links)
    await paused(linked, gateway)
    assert of_all(linked) == WORLD * [first]
    await gateway.switch(ALL_TO_BACKUP)
    assert await result(gateway) == (True, "4 of 4 ranks are on their backup links")
    assert of_all(linked) == WORLD * [backup]
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 0)
    await gateway.pause("attempt-2")
    await gateway.report("ReportStopComplete", 2)
    await gateway.switch(dict.fromkeys(range(WORLD), False))
    assert await result(gateway, 2) == (True, "0 of 4 ranks are on their backup links")
    assert of_all(linked) == WORLD * [first]
    await gateway.go_on("attempt-2")
    assert (await status(gateway, 2))[:2] == ("continue", 0)
    await ends_well(linked, undisturbed)
    print(f"pause {linked.pause_seconds():.3f} s")
