"""`rekindle scale`, and what the other commands say of a job that trains with fewer pods than it was started with."""

import json

from temporalio.testing import WorkflowEnvironment

from tests.cli.test_recover import ended, typed
from tests.fakes.peer import Script
from tests.support.harness import a_job, training
from tests.workflows.test_elastic_training import OFFERS, elastic, lose, without_spare


async def test_a_job_is_scaled_and_every_view_says_so(temporal: WorkflowEnvironment) -> None:
    """The post-mortem of the request follows. `show`, `top`, `explain` and the list have the new size."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _peer):
        code, words = await ended(await typed(world, "scale", job.id, "--replicas", "3"))
        assert (code, "scaling: recovered" in words) == (0, True), words
        for command in ("show", "explain"):
            code, words = await ended(await typed(world, command, job.id))
            assert (code, "3 of 4 replicas, since " in words, "as ordered by hand" in words) == (0, True, True), words
        code, words = await ended(await typed(world, "top", "--once", "-o", "json"))
        (line,) = [line for line in json.loads(words) if line["id"] == job.id]
        assert line["state"] == "training, small"
        assert line["note"].startswith("3 of 4 replicas, since ")


async def test_a_lost_node_is_named_until_the_job_is_whole_again(temporal: WorkflowEnvironment) -> None:
    """So is what the job waits for."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, _peer):
        await lose(world, 2)
        await world.incident()
        code, words = await ended(await typed(world, "show", job.id))
        assert (code, "node-2 lost, waits for one node" in words) == (0, True), words


async def test_a_size_that_cannot_be_has_its_own_exit_code(temporal: WorkflowEnvironment) -> None:
    """Bad input names the field and what is accepted; a refusal names what is missing. Nothing is ordered."""
    job = elastic()
    async with training(temporal, job, Script(repairs=OFFERS), without_spare(job)) as (world, peer):
        for more in ([], ["--dry-run"]):
            code, words = await ended(await typed(world, "scale", job.id, "--replicas", "1", *more))
            assert (code, "replicas: 1 is below the least size" in words, "accepted are 2 to 4" in words) == (2, True, True), (
                words
            )
        code, words = await ended(await typed(world, "scale", job.id, "--replicas", "4"))
        assert (code, "has 4 replicas already" in words) == (4, True), words
        code, words = await ended(await typed(world, "scale", job.id, "--replicas", "3", "--dry-run"))
        assert (code, "would be accepted: scaling, then, if it fails, job rescheduling" in words) == (0, True), words
        assert peer.orders == []
    fixed = a_job(pods=4, annotations={})
    async with training(temporal, fixed, cluster=without_spare(fixed)) as (world, peer):
        code, words = await ended(await typed(world, "scale", fixed.id, "--replicas", "3"))
        assert (code, "annotation rekindle.io/elastic" in words, peer.orders) == (4, True, []), words
