"""Links to Temporal's web UI show what is wrong, and nothing else."""

import asyncio
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

from temporalio.testing import WorkflowEnvironment

from rekindle.cli.views import NOW, link, of_job
from rekindle.model.limits import Limits
from tests.cli.test_recover import ended, environment
from tests.fakes.peer import Script
from tests.support.commands import begun
from tests.support.harness import Harness, a_job, training


async def _until_listed(world: Harness, query: str, kinds: set[str]) -> None:
    """Waits until a query finds these kinds of workflows of the job, by the beginnings of their ids: lists are a second late."""
    mine = (world.job.id, world.job.id[:8], f".{world.job.name}/")
    async with asyncio.timeout(60):
        while True:
            listed = [run.id async for run in world.client.list_workflows(query)]
            if {name.split("/")[0] for name in listed if any(part in name for part in mine)} == kinds:
                return
            await asyncio.sleep(0.03)


async def test_the_view_shows_what_lives_and_what_runs(temporal: WorkflowEnvironment) -> None:
    """Requests are not in it, and a recovery that went well leaves it; the story of the job keeps it."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        front = await world.front(force=True)
        await peer.until(lambda: "new pod running" in peer.orders)
        await _until_listed(world, NOW, {"job", "recovery"})
        await peer.pause()
        await front.result()
        await _until_listed(world, NOW, {"job"})
        await _until_listed(world, of_job(world.job.name), {"job", "recovery"})


async def test_a_recovery_at_whose_end_a_person_has_to_look_stays_in_the_view(temporal: WorkflowEnvironment) -> None:
    """A recovery that left a sub-health alone is green in the UI, and would be overlooked."""
    limits = Limits(backup_scheduled=timedelta(seconds=0.3))
    async with training(temporal, a_job(limits=limits)) as (world, _peer):
        world.cluster.spare = False
        front = await world.front(force=True)
        assert (await front.result()).outcome == "ignored"
        await _until_listed(world, NOW, {"job", "recovery"})


async def test_show_prints_the_link_where_the_address_of_the_ui_is_known(temporal: WorkflowEnvironment) -> None:
    """The query of the link is the story of the job."""
    async with training(temporal, a_job()) as (world, _peer):
        known = {**environment(world), "REKINDLE_TEMPORAL_UI": "https://temporal.example.com/"}
        code, words = await ended(await begun(("show", world.job.id), known))
        assert code == 0, words
        (line,) = [line for line in words.splitlines() if "https://" in line]
        address = urlsplit(line.split()[-1])
        assert address.path == "/namespaces/default/workflows"
        assert parse_qs(address.query)["query"] == [of_job(world.job.name)]


def test_a_link_is_one_word() -> None:
    """A terminal makes a link of it, and a shell does not split it."""
    assert " " not in link("http://127.0.0.1:8233", NOW)
    assert '"' not in link("http://127.0.0.1:8233", NOW)
